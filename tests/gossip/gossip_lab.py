"""Where gossip is tried: a few clients with rows of their own, full batches, and the same arithmetic again in numpy.

The model is x -> relu(A x + a) -> B h + b with a softmax; ``features`` are A and a, ``classifier`` B and b. With
batches of all rows the order of rows is no matter, so that local training is plain gradient descent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from shoal.bank import State
from shoal.data.dataset import Dataset
from shoal.engine import Serial, one_torch_thread
from shoal.experiment import Experiment
from shoal.loading import merged
from shoal.messages import Assignment, Participant
from shoal.randomness import Moment
from shoal.setup import Setup, assemble, resolve_config
from shoal.streams.base import Holding, Stream, Target

WIDTH, HIDDEN, CLASSES = 4, 5, 3
Weights = dict[str, np.ndarray]


def rows(count: int, seed: int = 7) -> Dataset:
    """Rows of four numbers in three classes, at random."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, size=count)
    x = rng.normal(size=(count, WIDTH)) + labels[:, None] * [0.9, -0.4, 0.0, 0.3]
    every = torch.arange(count)
    return Dataset(
        "rows",
        torch.tensor(x, dtype=torch.float32),
        torch.from_numpy(labels),
        tuple("abc"),
        every,
        every,
        torch.ones(WIDTH),
        torch.zeros(WIDTH),
    )


class Few(Stream):
    """So many rows to each client, in their order, the last ``held`` for validation; ``clusters`` are in the truth.

    With ``tasks`` client i is at task ``(i + round) % tasks``.
    """

    def __init__(
        self,
        data: Dataset,
        seed: int,
        rounds: int,
        by_task: bool,
        *,
        sizes: list[int],
        held: int = 0,
        clusters: list[int] | None = None,
        tasks: int = 0,
    ) -> None:
        self.dataset, self.clients, self.outputs, self.tasks = data, len(sizes), len(data.classes), tasks
        self.task_names = tuple(str(t) for t in range(tasks))
        self.ends = [0, *np.cumsum(sizes).tolist()]
        self.held = held
        self.clusters = clusters

    def holding(self, client: int, round: int) -> Holding:
        mine = torch.arange(self.ends[client], self.ends[client + 1])
        train = mine[: len(mine) - self.held]
        truth: dict[str, int | str] = {} if self.clusters is None else {"cluster": self.clusters[client]}
        task = (client + max(1, round)) % self.tasks if self.tasks else None
        return Holding(train, mine[len(train) :], mine[:3], task, truth if task is None else {"task": task})

    def targets(self, round: int) -> Sequence[Target]:
        if self.tasks:
            return [Target({"task": t}, torch.arange(5), torch.arange(0)) for t in range(self.tasks)]
        held = [self.holding(client, round) for client in range(self.clients)]
        return [Target({"client": c}, h.test, h.validation) for c, h in enumerate(held)]


@dataclass
class Run:
    """The states before the warm-up, after it and after each round, and all lines."""

    setup: Setup
    states: list[State]
    lines: list[dict[str, Any]]

    def state(self, round: int) -> State:
        return self.states[round + 1]

    def assigned(self, round: int) -> dict[int, Assignment]:
        """What a round assigned, drawn again from the state before it."""
        seats = [Participant(c) for c in range(self.setup.world.clients)]
        given = self.setup.method.assign(self.state(round - 1).bank, Moment(self.setup.config.seed, round), seats)
        return {assignment.client: assignment for assignment in given}

    def vector(self, round: int, client: int) -> np.ndarray:
        return self.state(round).bank[f"client/{client}"].vector.double().numpy()

    def all(self, **wanted: Any) -> list[dict[str, Any]]:
        return [line for line in self.lines if all(line.get(name) == value for name, value in wanted.items())]


def config(**parts: Any) -> dict[str, Any]:
    """Five clients with unequal rows."""
    base = {
        "rounds": 3,
        "stream": {"kind": "gossip_lab:Few", "sizes": [12, 20, 9, 16, 24], "held": 3},
        "model": {"kind": "mlp", "hidden": [HIDDEN]},
        "local": {"lr": 0.3, "batch_size": 100, "epochs": 2},
        "method": {"kind": "random", "contacts": 2},
        "execution": {"kind": "serial"},
    }
    return merged(base, parts)


def built(**parts: Any) -> Setup:
    raw = config(**parts)
    return assemble(resolve_config(raw), rows(200))


def play(*, state: State | None = None, clean: bool = True, **parts: Any) -> Run:
    """Plays a configuration; unless not ``clean`` nobody may fail."""
    setup = built(**parts)
    with one_torch_thread():
        local = setup.config.local
        engine = Serial(setup.world.models, setup.stream.dataset, torch.device("cpu"), "float32", local.loss)
        experiment = Experiment(setup, engine)
        states, lines = [state or experiment.start()], []
        while states[-1].round < setup.config.rounds:
            played = experiment.play(states[-1])
            states.append(played.state)
            lines += played.lines
        engine.close()
    bad = ("failed", "rejected", "skipped", "straggler", "diverged", "unchanged")
    problems = [line for line in lines if line.get("record") in bad]
    assert not (clean and problems), problems
    return Run(setup, states, lines)


# ---- the same in numpy ------------------------------------------------------------------------------------------


def weights_of(vector: np.ndarray) -> Weights:
    """The matrices in a vector: A, a, B, b one after another."""
    shapes = {"A": (HIDDEN, WIDTH), "a": (HIDDEN,), "B": (CLASSES, HIDDEN), "b": (CLASSES,)}
    found, at = {}, 0
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        found[name] = vector[at : at + size].reshape(shape).copy()
        at += size
    assert at == len(vector)
    return found


def flat(weights: Weights) -> np.ndarray:
    return np.concatenate([weights[name].ravel() for name in ("A", "a", "B", "b")])


def forward(w: Weights, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Mean cross entropy, hidden values, and the gradient at the logits."""
    h = np.maximum(x @ w["A"].T + w["a"], 0)
    z = h @ w["B"].T + w["b"]
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    loss = -np.log(p[np.arange(len(y)), y]).mean()
    p[np.arange(len(y)), y] -= 1
    return float(loss), h, p / len(y)


def descended(w: Weights, x: np.ndarray, y: np.ndarray, steps: int, lr: float, only: Sequence[str] = "AaBb") -> Weights:
    """Full-batch gradient descent on these matrices."""
    w = {name: value.copy() for name, value in w.items()}
    for _ in range(steps):
        _, h, d = forward(w, x, y)
        back = (d @ w["B"]) * (h > 0)
        gradient = {"A": back.T @ x, "a": back.sum(0), "B": d.T @ h, "b": d.sum(0)}
        for name in only:
            w[name] -= lr * gradient[name]
    return w


def data_of(run: Run, client: int, what: str = "train") -> tuple[np.ndarray, np.ndarray]:
    """A client's rows and labels."""
    held = getattr(run.setup.stream.holding(client, 1), what)
    data = run.setup.stream.dataset
    return data.features[held].double().numpy(), data.labels[held].numpy()


def mean(models: Mapping[int, Weights], sizes: Sequence[int], only: Sequence[str] = "AaBb") -> Weights:
    """The mean by rows of these matrices."""
    total = sum(sizes[j] for j in models)
    return {name: sum(sizes[j] / total * w[name] for j, w in models.items()) for name in only}
