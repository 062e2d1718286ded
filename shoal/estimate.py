"""How long a run will take, from one client's work tried out before it starts."""

from __future__ import annotations

import time
from dataclasses import dataclass

from .bank import State
from .experiment import Experiment


@dataclass(frozen=True)
class Estimate:
    """``seconds`` in all, from ``clients`` a round at ``client_seconds`` each and ``evaluation_seconds`` a round."""

    seconds: float
    rounds: int
    clients: int
    client_seconds: float
    evaluation_seconds: float

    def __str__(self) -> str:
        return (
            f"about {duration(self.seconds)}: {self.rounds} rounds x {self.clients} clients at "
            f"{self.client_seconds:.2g} s each, and {self.evaluation_seconds:.2g} s a round for measuring"
        )


def duration(seconds: float) -> str:
    """``45 s``, ``3 min``, ``2.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def estimate(experiment: Experiment, state: State) -> Estimate | None:
    """Runs one client of the next round and throws the answer away: ``state`` stays as it is.

    ``None`` where there is nothing to try (no rounds left, or no client with rows).
    """
    config = experiment.setup.config
    rounds = config.rounds - max(0, state.round)
    if rounds <= 0:
        return None
    began = time.perf_counter()
    tried = experiment.trial(state)
    if tried is None:
        return None
    first = time.perf_counter() - began
    if first < 1:  # the first run builds the module and warms torch up
        began = time.perf_counter()
        experiment.trial(state)
        first = time.perf_counter() - began
    evaluation = 0.0
    if config.evaluate.every:
        began = time.perf_counter()
        for target in experiment.setup.stream.targets(1)[:1]:
            groups = experiment.setup.method.candidates(state.bank, target.labels)
            born = [keys for keys in groups if keys and all(key in state.bank.entries for key in keys)]
            models = [experiment.setup.method.compose(state.bank, keys) for keys in born[:1]]
            experiment.engine.score([(models, target.test)])
        evaluation = (time.perf_counter() - began) * len(experiment.setup.stream.targets(1)) / config.evaluate.every
    parallel = min(experiment.engine.workers, tried)
    warmup = experiment.setup.stream.clients if state.round < 0 else 0
    fits = (rounds * tried + warmup) * max(1, experiment.asking(state))
    total = fits * first / parallel + rounds * evaluation
    return Estimate(total, rounds, tried, first, evaluation)
