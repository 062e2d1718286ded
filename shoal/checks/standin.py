"""The stand-in world on which laws are tried: 4 clients, 48 rows, two tasks or none, models of a few dozen weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ..config import Config
from ..data.dataset import Column, Dataset
from ..randomness import generator
from ..setup import Setup, assemble, resolve_config
from ..streams.base import Holding, Stream, Target

CLIENTS = 4
ROUNDS = 3
FEATURES = 5
TASK_CLASSES = ((0, 1), (2, 3, 4))
TRAIN_ROWS = ((3, 4, 4, 5), (5, 4, 4, 3))
"""Training rows of each client, for each task; one validation and one test row come on top."""

Rows = Literal["several", "one", "one-class"]
_DATA = "shoal.checks.standin:StandinData"
_STREAM = "shoal.checks.standin:StandinStream"
NORMED: dict[str, Any] = {"kind": "shoal.checks.standin:normed"}
"""The model with BatchNorm."""


def normed(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """A linear layer, BatchNorm, and a linear head: the smallest model with running variances and a counter."""
    features = nn.Sequential(nn.Linear(shape[0], 4), nn.BatchNorm1d(4), nn.ReLU())
    classifier = nn.Linear(4, outputs)
    return nn.Sequential(*features, classifier)


def _blocks() -> list[tuple[int, int, str]]:
    """The owner, the task and the use of each row, in the order of the rows."""
    found = []
    for task, sizes in enumerate(TRAIN_ROWS):
        for client, size in enumerate(sizes):
            found += [(client, task, use) for use in ("train",) * size + ("validation", "test")]
    return found


class StandinData:
    """48 rows of five numbers in five classes: each class has a centre of its own, and much noise."""

    part: ClassVar[str] = "data"

    def load(self) -> Dataset:
        """The rows; always the same."""
        rng = generator("stand-in", "rows")
        blocks = _blocks()
        labels = [TASK_CLASSES[task][i % len(TASK_CLASSES[task])] for i, (_, task, _) in enumerate(blocks)]
        centres = rng.normal(size=(5, FEATURES))
        features = centres[labels] + rng.normal(size=(len(blocks), FEATURES))
        uses = [use for _, _, use in blocks]
        return Dataset(
            name="stand-in",
            features=torch.tensor(features, dtype=torch.float32),
            labels=torch.tensor(labels),
            classes=("a", "b", "c", "d", "e"),
            train=torch.tensor([i for i, use in enumerate(uses) if use != "test"]),
            test=torch.tensor([i for i, use in enumerate(uses) if use == "test"]),
            scale=torch.ones(FEATURES),
            offset=torch.zeros(FEATURES),
            fingerprint="stand-in",
        )


class StandinStream(Stream):
    """Every client holds rows of its own, one row less in each round, another one each time.

    With two ``tasks`` a client trains one of them for two rounds, then the other. ``rows``: ``one`` row a client,
    or rows of ``one-class`` each (which clients share). ``empty`` lists clients without training rows. Client ``c``
    of many holds what client ``c % 4`` holds.
    """

    def __init__(
        self,
        data: Dataset,
        seed: int,
        rounds: int,
        heads_by_task: bool = False,
        *,
        clients: int = CLIENTS,
        tasks: int = 2,
        knows_task: bool = True,
        rows: Rows = "several",
        empty: Sequence[int] = (),
    ) -> None:
        self.dataset = data
        self.clients = clients
        self.tasks = tasks
        self.outputs = len(data.classes)
        self.knows_task = knows_task
        self.rows = rows
        self.empty = tuple(empty)
        if tasks:
            self.task_names = ("first", "second")
            self.boundaries = (2,) if rounds > 2 else ()
        if heads_by_task and tasks:
            self.head = "task"
            self.task_outputs = tuple(len(classes) for classes in TASK_CLASSES)
            self.outputs = max(self.task_outputs)
            places = {c: i for classes in TASK_CLASSES for i, c in enumerate(classes)}
            self.dataset = _retargeted(data, torch.tensor([places[int(label)] for label in data.labels]))
        self._blocks = _blocks()

    def _rows(self, use: str, client: int | None, task: int | None) -> Tensor:
        return torch.tensor(
            [
                row
                for row, (owner, of, what) in enumerate(self._blocks)
                if what == use and (client is None or owner == client % CLIENTS) and (task is None or of == task)
            ],
            dtype=torch.int64,
        )

    def _class_rows(self, client: int, task: int | None) -> Tensor:
        """All training rows of one class, whoever owns them."""
        classes = range(len(self.dataset.classes)) if task is None else TASK_CLASSES[task]
        rows = self._rows("train", None, task)
        return rows[self.dataset.labels[rows] == classes[client % len(classes)]]

    def holding(self, client: int, round: int) -> Holding:
        """The client's rows of its task in this round, or of both where there are no tasks."""
        round = max(1, round)
        task = (client + (round - 1) // 2) % self.tasks if self.tasks else None
        train = self._rows("train", client, task)
        if client in self.empty:
            train = train[:0]
        elif self.rows == "one":
            train = train[round % len(train)].reshape(1)
        else:
            if self.rows == "one-class":
                train = self._class_rows(client, task)
            train = train[torch.arange(len(train)) != round % len(train)]
        return Holding(
            train,
            self._rows("validation", client, task),
            self._rows("test", client, task),
            task if self.knows_task else None,
            {} if task is None else {"task": task, "phase": self.phase(round)},
        )

    def targets(self, round: int) -> Sequence[Target]:
        """The tasks; without tasks everything, and each of the first four clients."""
        if self.tasks:
            return [Target({"task": t}, self._rows("test", None, t), self._rows("validation", None, t)) for t in (0, 1)]
        clients = [
            Target({"client": c}, self._rows("test", c, None), self._rows("validation", c, None))
            for c in range(min(CLIENTS, self.clients))
        ]
        return [Target({}, self._rows("test", None, None), self._rows("validation", None, None)), *clients]


def _retargeted(data: Dataset, targets: Tensor) -> Dataset:
    return replace(data, targets=targets)


def configuration(seed: int = 0, rounds: int = ROUNDS, **parts: Any) -> Config:
    """The resolved configuration of a stand-in run.

    ``parts`` are ``method``, ``learner``, ``model``, ``stream`` (settings of `StandinStream`), ``local``,
    ``participation``, ``evaluate`` and ``device``.
    """
    local = {"lr": 0.1, "batch_size": 2, **parts.get("local", {}), "learner": parts.get("learner", {"kind": "plain"})}
    return resolve_config(
        {
            "name": "stand-in",
            "seed": seed,
            "rounds": rounds,
            "data": {"kind": _DATA},
            "stream": {"kind": _STREAM, **parts.get("stream", {})},
            "model": parts.get("model", {"kind": "mlp", "hidden": [4]}),
            "method": parts.get("method", {"kind": "fedavg"}),
            "local": local,
            "participation": parts.get("participation", {}),
            "evaluate": parts.get("evaluate", {}),
            "execution": {"kind": "serial", "device": parts.get("device", "cpu")},
        }
    )


def world(seed: int = 0, rounds: int = ROUNDS, **parts: Any) -> Setup:
    """The parts of a stand-in run."""
    return assemble(configuration(seed, rounds, **parts))


def pictures() -> Dataset:
    """120 images of 4x4 pixels in six classes and three domains: the rows that streams and partitions deal out."""
    rng = generator("stand-in", "pictures")
    count = 120
    labels = rng.permutation(torch.arange(count).numpy() % 6)
    images = rng.integers(0, 256, size=(count, 4, 4, 1)).astype("uint8")
    test = rng.permutation(count)[:30]
    train = [i for i in range(count) if i not in set(test.tolist())]
    domains = torch.from_numpy(rng.permutation(count) % 3)
    return Dataset(
        name="pictures",
        features=torch.from_numpy(images),
        labels=torch.from_numpy(labels),
        classes=tuple("uvwxyz"),
        train=torch.tensor(train),
        test=torch.from_numpy(test).sort().values,
        scale=torch.full((1,), 1 / 255),
        offset=torch.zeros(1),
        columns={"domain": Column(domains, ("north", "south", "west"))},
        fingerprint="pictures",
    )
