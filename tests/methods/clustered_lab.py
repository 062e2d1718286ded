"""Where methods with several models are tried: logistic regression on rows whose labels mean something else by concept.

In concept k the class of a row is ``(place of its largest number + k) % 3``: no model is good at two concepts. With
batches of all rows, local training is plain gradient descent, and `descended` is the same arithmetic in numpy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from shoal.bank import Bank, Entry, State
from shoal.data.dataset import Dataset
from shoal.engine import make_engine, one_torch_thread
from shoal.experiment import Experiment
from shoal.loading import merged
from shoal.messages import Assignment, Client, Update
from shoal.setup import Setup, assemble, resolve_config
from shoal.streams.base import Holding, Stream, Target

CLASSES, ROWS = 3, 400
"""Numbers in a row, classes and concepts are as many; rows of each concept."""


def rows(concepts: int = CLASSES, seed: int = 3) -> Dataset:
    """The same rows under each concept, one after another."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(ROWS, CLASSES))
    labels = np.concatenate([(x.argmax(1) + k) % CLASSES for k in range(concepts)])
    every = torch.arange(len(labels))
    features = torch.tensor(np.tile(x, (concepts, 1)), dtype=torch.float32)
    ones = torch.ones(CLASSES)
    return Dataset("rows", features, torch.from_numpy(labels), tuple("abc"), every, every, ones, 0 * ones)


class Plan(Stream):
    """Client i holds ``sizes[i]`` rows of the concept ``plan[step][i]``; time steps last ``lasting`` rounds.

    The last step goes on for ever. ``fresh``: every step has rows of its own. ``united``: all rows of the steps so far,
    the latest first. ``named``: clients know their concept, as their task.
    """

    def __init__(
        self,
        data: Dataset,
        seed: int,
        rounds: int,
        by_task: bool,
        *,
        sizes: list[int],
        plan: list[list[int]],
        lasting: int = 1,
        fresh: bool = True,
        united: bool = False,
        named: bool = False,
    ) -> None:
        self.dataset, self.clients, self.outputs = data, len(sizes), CLASSES
        self.sizes, self.plan, self.lasting = sizes, plan, lasting
        self.fresh, self.united, self.named = fresh, united, named
        self.tasks = CLASSES if named else 0
        self.task_names = tuple(str(k) for k in range(self.tasks))
        self.boundaries = tuple(lasting * step for step in range(1, len(plan)) if lasting * step < rounds)

    def step(self, round: int) -> int:
        """The time step of a round."""
        return min((round - 1) // self.lasting, len(self.plan) - 1)

    def _rows(self, client: int, step: int) -> torch.Tensor:
        begin = sum(self.sizes[:client]) + (sum(self.sizes) * step if self.fresh else 0)
        return torch.arange(begin, begin + self.sizes[client]) % ROWS + ROWS * self.plan[step][client]

    def holding(self, client: int, round: int) -> Holding:
        step = self.step(max(1, round))
        concept = self.plan[step][client]
        train = self._rows(client, step)
        if self.united:
            train = torch.cat([self._rows(client, s) for s in range(step, -1, -1)])
        spare = torch.arange(ROWS - 20, ROWS) + ROWS * concept
        truth = {"concept": concept, "task": concept} if self.named else {"concept": concept}
        return Holding(train, spare, spare, concept if self.named else None, truth)

    def targets(self, round: int) -> Sequence[Target]:
        seen = sorted({k for step in self.plan for k in step})
        name = "task" if self.named else "concept"
        every = torch.arange(ROWS - 20, ROWS)
        return [Target({name: k}, every + ROWS * k, every + ROWS * k) for k in seen]


@dataclass
class Run:
    """The states before the first round and after each, their lines, and all assignments and updates."""

    setup: Setup
    states: list[State]
    lines: list[list[dict[str, Any]]]
    assigned: list[dict[int, Assignment]]
    answered: list[dict[int, Update]]
    asked: list[dict[int, list[str]]]
    """The kinds of request that each client's program made."""

    @property
    def bank(self) -> Bank:
        """The last bank."""
        return self.states[-1].bank

    def decided(self) -> list[dict[str, Any]]:
        """The records of what was decided."""
        return self.told("clusters")

    def told(self, record: str) -> list[dict[str, Any]]:
        """All records of a kind."""
        return [line for lines in self.lines for line in lines if line.get("record") == record]

    def accuracies(self) -> dict[int, float]:
        """The accuracy on each concept after the last round."""
        lines = [line for line in self.lines[-1] if line.get("metric") == "accuracy"]
        return {line.get("concept", line.get("task")): line["value"] for line in lines}

    def concept(self, client: int, round: int) -> int:
        """The true concept of a client in a round."""
        return int(self.setup.stream.holding(client, round).truth["concept"])


def config(method: Any, **parts: Any) -> dict[str, Any]:
    """Six clients, two of each concept, full batches, three rounds."""
    base = {
        "rounds": 3,
        "stream": {"kind": "clustered_lab:Plan", "sizes": [12, 20, 16, 12, 20, 16], "plan": [[0, 1, 2, 0, 1, 2]]},
        "model": {"kind": "mlp", "hidden": []},
        "method": method,
        "local": {"lr": 0.5, "batch_size": 1000},
        "execution": {"kind": "serial"},
        "evaluate": {"measures": ["accuracy", "costs"]},
    }
    return merged(base, parts)


def built(method: Any, **parts: Any) -> Setup:
    """The parts of a run."""
    return assemble(resolve_config(config(method, **parts)), rows())


def play(method: Any, *, state: State | None = None, clean: bool = True, **parts: Any) -> Run:
    """Plays from a state, or from the start; unless not ``clean``, nobody may have failed, been late or rejected."""
    setup = built(method, **parts)
    run = Run(setup, [], [], [], [], [])
    settings = setup.config
    train = setup.method.train

    def watched(given: Assignment, client: Client) -> Any:
        run.assigned[-1][client.id] = given
        kinds = run.asked[-1].setdefault(client.id, [])
        program, result = train(given, client), None
        while True:
            try:
                request = program.send(result)  # type: ignore[union-attr]
            except StopIteration as end:
                run.answered[-1][client.id] = end.value
                return end.value
            kinds.append(type(request).__name__)
            result = yield request

    setup.method.train = watched  # type: ignore[method-assign]
    with one_torch_thread():
        engine = make_engine(settings.execution, setup.world.models, setup.stream.dataset, settings.local.loss)
        experiment = Experiment(setup, engine)
        run.states.append(state or experiment.start())
        while run.states[-1].round < settings.rounds:
            for kept in (run.assigned, run.answered, run.asked):
                kept.append({})
            played = experiment.play(run.states[-1])
            run.states.append(played.state)
            run.lines.append(played.lines)
        engine.close()
    if clean:
        for record in ("failed", "rejected", "straggler", "skipped", "diverged", "unchanged"):
            assert not run.told(record)
    return run


def like(method: Any, vectors: Mapping[str, Any], memory: Mapping[str, Any] | None = None, **parts: Any) -> State:
    """The state before the first round with these models in the place of the first ones."""
    bank = built(method, **parts).method.start()
    first = next(iter(bank.entries.values()))
    entries = {key: first.new(vector=torch.as_tensor(v, dtype=torch.float32)) for key, v in vectors.items()}
    removed: dict[str, Entry | None] = {key: None for key in bank.entries if key not in entries}
    return State(0, bank.put({**removed, **entries}, **(memory or {})))


def same_models(a: Bank, b: Bank) -> bool:
    """Whether two banks have the same models, bit by bit."""
    return a.entries.keys() == b.entries.keys() and all(torch.equal(a[k].vector, b[k].vector) for k in a.entries)


def starting(state: State, **entries: Any) -> State:
    """The state with these entries."""
    return replace(state, bank=state.bank.put(entries))


# ---- the same in numpy, in double precision -------------------------------------------------------------------


def perfect(concept: int, size: float = 4.0) -> np.ndarray:
    """A good model of a concept: the weights ``[class, number]``, then the biases."""
    weights = np.zeros((CLASSES, CLASSES))
    for place in range(CLASSES):
        weights[(place + concept) % CLASSES, place] = size
    return np.concatenate([weights.ravel(), np.zeros(CLASSES)])


def data_of(run: Run, client: int, round: int) -> tuple[np.ndarray, np.ndarray]:
    """The client's rows and their classes."""
    held = run.setup.stream.holding(client, round).train
    data = run.setup.stream.dataset
    return data.features[held].double().numpy(), data.labels[held].numpy()


def loss(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """The mean cross entropy."""
    return float(-np.log(_chances(w, x)[np.arange(len(y)), y]).mean())


def descended(w: np.ndarray, x: np.ndarray, y: np.ndarray, lr: float = 0.5, steps: int = 1) -> np.ndarray:
    """The model after steps of gradient descent."""
    for _ in range(steps):
        away = (_chances(w, x) - np.eye(CLASSES)[y]) / len(y)
        w = w - lr * np.concatenate([(away.T @ x).ravel(), away.sum(0)])
    return w


def _chances(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    scores = x @ w[: CLASSES**2].reshape(CLASSES, CLASSES).T + w[CLASSES**2 :]
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))
