"""Where learners are tried: linear models with half the squared error, on rows that each client is given by hand.

The model of ``d`` inputs is ``w x + b``; its vector is ``[w_1 .. w_d, b]``. With inputs of 0 only b learns, and client
i's loss is ``(b - y_i)^2 / 2``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.bank import Bank, State
from shoal.data.dataset import Dataset
from shoal.engine import Serial, one_torch_thread
from shoal.experiment import Experiment
from shoal.loading import merged
from shoal.methods.fedavg import FedAvg
from shoal.setup import Setup, assemble, resolve_config
from shoal.streams.base import Holding, Stream, Target

Rows = tuple[Sequence[Sequence[float]], Sequence[float]]
NONE = torch.empty(0, dtype=torch.int64)


def half_squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """Half the squared error of each row, so that the gradient has no factor."""
    return 0.5 * (outputs - targets).square().sum(1)


def points(clients: Sequence[Rows]) -> Dataset:
    """A regression in units of its own: all rows of client 0, then those of client 1, and so on."""
    x = torch.tensor([row for rows, _ in clients for row in rows], dtype=torch.float32)
    y = torch.tensor([value for _, values in clients for value in values], dtype=torch.float32)[:, None]
    rows, ones = torch.arange(len(x)), torch.ones(x.shape[1])
    labels = torch.zeros(len(x), dtype=torch.int64)
    units = {"value_scale": torch.ones(1, dtype=torch.float64), "value_offset": torch.zeros(1, dtype=torch.float64)}
    return Dataset("points", x, labels, ("all",), rows, rows[:1], ones, 0 * ones, values=y, **units)


class Dealt(Stream):
    """So many rows to each client, in their order. With ``tasks`` client i is at task ``(i + round) % tasks``."""

    def __init__(
        self, data: Dataset, seed: int, rounds: int, by_task: bool, *, sizes: list[int], tasks: int = 0
    ) -> None:
        self.dataset, self.clients, self.outputs, self.tasks = data, len(sizes), data.outputs, tasks
        self.task_names = tuple(str(t) for t in range(tasks))
        self.ends = [0, *np.cumsum(sizes).tolist()]

    def holding(self, client: int, round: int) -> Holding:
        rows = torch.arange(self.ends[client], self.ends[client + 1])
        task = (client + round) % self.tasks if self.tasks else None
        return Holding(rows, NONE, NONE, task, {} if task is None else {"task": task, "phase": 0})

    def targets(self, round: int) -> Sequence[Target]:
        labels: list[dict[str, Any]] = [{"task": t} for t in range(self.tasks)] or [{}]
        return [Target(label, torch.tensor([0]), NONE) for label in labels]


class Meeting(FedAvg):
    """A method that says it has no server."""

    serverless = True


@dataclasses.dataclass
class Run:
    """The states before the first round and after each, and the lines of each round."""

    setup: Setup
    states: list[State]
    lines: list[list[dict[str, Any]]]

    @property
    def bank(self) -> Bank:
        """The last bank."""
        return self.states[-1].bank

    def vector(self, round: int = -1, key: str = "global") -> np.ndarray:
        """An entry's numbers after a round."""
        return self.states[round].bank[key].vector.double().numpy()

    def bias(self, round: int = -1) -> float:
        """The bias after a round."""
        return float(self.vector(round)[-1])

    def told(self, record: str) -> list[dict[str, Any]]:
        """All records of a kind."""
        return [line for lines in self.lines for line in lines if line.get("record") == record]


def setup_of(clients: Sequence[Rows], learner: Any, **parts: Any) -> Setup:
    """The parts of a run of linear models: batches of 2, rate 1/2, one epoch, two rounds."""
    base = {
        "rounds": 2,
        "stream": {"kind": "learner_lab:Dealt", "sizes": [len(values) for _, values in clients]},
        "model": {"kind": "mlp", "hidden": []},
        "local": {"lr": 0.5, "batch_size": 2, "loss": "learner_lab:half_squared", "learner": learner},
        "execution": {"kind": "serial"},
        "evaluate": {"measures": ["costs"]},
    }
    return assemble(resolve_config(merged(base, parts)), points(clients))


def play(clients: Sequence[Rows], learner: Any, clean: bool = True, **parts: Any) -> Run:
    """Plays from models of zeros; unless not ``clean``, nobody may have failed, been late or rejected."""
    setup = setup_of(clients, learner, **parts)
    config = setup.config
    with one_torch_thread():
        engine = Serial(setup.world.models, setup.stream.dataset, torch.device("cpu"), "float32", config.local.loss, {})
        experiment = Experiment(setup, engine)
        state = experiment.start()
        zeros = {key: entry.new(vector=torch.zeros_like(entry.vector)) for key, entry in state.bank.entries.items()}
        run = Run(setup, [dataclasses.replace(state, bank=state.bank.put(zeros))], [])
        while run.states[-1].round < config.rounds:
            played = experiment.play(run.states[-1])
            run.states.append(played.state)
            run.lines.append(played.lines)
        engine.close()
    if clean:
        for record in ("failed", "rejected", "straggler", "skipped", "diverged", "unchanged"):
            assert not run.told(record)
    return run


def same(a: State, b: State) -> bool:
    """Whether all models of two states have the same bits."""
    pairs = zip(a.bank.entries.values(), b.bank.entries.values(), strict=True)
    return all(torch.equal(x.vector, y.vector) for x, y in pairs)


def drawn(clients: int, rounds: int, wanted: Sequence[Sequence[int]], **participation: Any) -> int:
    """A seed with which these clients are drawn in these rounds."""
    from shoal.config import Participation
    from shoal.participation import Selection
    from shoal.randomness import Moment

    selection = Selection(Participation(**participation), clients, lambda c: 1)
    for seed in range(2000):
        if [[s.client for s in selection.draw(Moment(seed, r))] for r in range(1, rounds + 1)] == wanted:
            return seed
    raise AssertionError("no such seed")


# ---- an independent description in numpy, in double precision ------------------------------------------------

TWO: list[Rows] = [([[0.0]] * 2, [2.0] * 2), ([[0.0]] * 4, [-4.0] * 4)]
"""Two clients with inputs of 0: client 0 wants 2 and takes one step, client 1 wants -4 and takes two."""

CURVED: list[Rows] = [
    ([[1.0, 0.5]] * 2 + [[-0.5, 1.0]] * 2, [1.0, 1.0, 2.0, 2.0]),
    ([[0.3, -1.0]] * 4 + [[1.2, 0.4]] * 2, [-2.0] * 4 + [0.5] * 2),
    ([[-1.0, 0.2]] * 2, [3.0] * 2),
]
"""Three clients with 4, 6 and 2 rows and curvatures of their own."""


def gradient(rows: Rows, at: np.ndarray) -> np.ndarray:
    """Of the mean loss over these rows."""
    x = np.column_stack([np.asarray(rows[0], float), np.ones(len(rows[1]))])
    return x.T @ (x @ at - np.asarray(rows[1])) / len(x)


def minimiser(clients: Sequence[Rows], weights: Mapping[int, float] | Sequence[float]) -> np.ndarray:
    """Of the weighted mean of the clients' mean losses, from the normal equations."""
    left, right = 0.0, 0.0
    for i, (rows, values) in enumerate(clients):
        x = np.column_stack([np.asarray(rows, float), np.ones(len(values))])
        left = left + weights[i] * x.T @ x / len(x)
        right = right + weights[i] * x.T @ np.asarray(values) / len(x)
    return np.linalg.solve(left, right)
