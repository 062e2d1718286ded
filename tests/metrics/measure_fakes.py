"""Small stand-ins for what a measure sees of a run: no engine, no data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from shoal.bank import Bank, Entry
from shoal.config import Evaluation
from shoal.messages import Assignment, Outcome, World
from shoal.methods.base import Method
from shoal.metrics.base import Context, Seen
from shoal.randomness import Moment
from shoal.requests import Score, Served
from shoal.streams.base import Holding, Stream, Target

EMPTY = torch.empty(0, dtype=torch.int64)


def rows(first: int, count: int) -> torch.Tensor:
    return torch.arange(first, first + count)


def target(test: torch.Tensor, validation: torch.Tensor = EMPTY, stamp: int = 0, **labels: Any) -> Target:
    return Target(labels, test, validation, stamp)


class FakeStream(Stream):
    dataset: Any = SimpleNamespace(is_regression=False)

    def __init__(self, targets: Sequence[Target], tasks: int = 0, boundaries: tuple[int, ...] = ()) -> None:
        self.given = list(targets)
        self.clients = 8
        self.tasks = tasks
        self.boundaries = boundaries

    def targets(self, round: int) -> Sequence[Target]:
        return self.given


class FakeMethod(Method):
    """Serves every target by the groups in ``groups``, keyed by the value of its first label."""

    def __init__(self, groups: Mapping[Any, Sequence[tuple[str, ...]]]) -> None:
        self.groups = groups

    def candidates(self, bank: Bank, target: Mapping[str, Any]) -> Sequence[tuple[str, ...]]:
        return self.groups[next(iter(target.values()))]

    def compose(self, bank: Bank, keys: tuple[str, ...]) -> Served:
        return Served("main", torch.cat([bank[key].vector for key in keys]))


class FakeScore:
    """Answers from a table: (model's numbers, first row) -> (accuracy, loss); remembers what was asked.

    ``more`` has the further metrics: the same keys -> kind -> value.
    """

    def __init__(
        self,
        table: Mapping[tuple[tuple[float, ...], int], tuple[float, float]],
        more: Mapping[tuple[tuple[float, ...], int], Mapping[str, Any]] | None = None,
    ) -> None:
        self.table = table
        self.more = more or {}
        self.metrics: list[tuple[str, ...]] = []
        self.calls: list[list[tuple[tuple[float, ...], int]]] = []

    def __call__(
        self, pairs: Sequence[tuple[Sequence[Served], torch.Tensor]], metrics: Sequence[str] = ()
    ) -> list[list[Score]]:
        asked = [[(tuple(m.vector.tolist()), int(where[0])) for m in models] for models, where in pairs]
        self.calls.append([one for models in asked for one in models])
        self.metrics.append(tuple(metrics))
        return [
            [
                Score(
                    self.table[one][1], self.table[one][0], len(where), {kind: self.more[one][kind] for kind in metrics}
                )
                for one in models
            ]
            for models, (_, where) in zip(asked, pairs, strict=True)
        ]


def bank(**numbers: float) -> Bank:
    """A bank with one-number entries; an underscore in a name stands for a slash."""
    return Bank().put({key.replace("_", "/"): entry(number) for key, number in numbers.items()})


def entry(number: float) -> Entry:
    return Entry(torch.tensor([number]))


def context(
    stream: Stream | None = None,
    method: Method | None = None,
    every: int = 1,
    rounds: int = 100,
    metrics: Sequence[str] = (),
    models: Mapping[str, Any] | None = None,
) -> Context:
    stream = stream or FakeStream([])
    world = World(0, stream.clients, rounds, models or {}, stream.tasks)
    return Context(world, stream, method or FakeMethod({}), Evaluation(every=every, metrics=list(metrics)))


def seen(
    round: int,
    after: Bank | None = None,
    score: Any = None,
    *,
    assignments: Sequence[Assignment] = (),
    outcomes: Sequence[Outcome] = (),
    tasks: Mapping[int, int] | None = None,
    truths: Mapping[int, Mapping[str, int | str]] | None = None,
    last: bool = False,
    before: Bank | None = None,
    trained: Mapping[str, tuple[int, ...]] | None = None,
) -> Seen:
    """A round after which the bank is ``after`` (and before it ``before``, or the same).

    ``tasks``: client -> its task, all of them trained.
    """
    holdings = {c: Holding(EMPTY, EMPTY, EMPTY, task=t) for c, t in (tasks or {}).items()}
    holdings |= {c: Holding(EMPTY, EMPTY, EMPTY, truth=t) for c, t in (truths or {}).items()}
    trained = {f"entry/{c}": (c,) for c in holdings} if trained is None else trained
    after = after or Bank()
    return Seen(
        Moment(0, round),
        after if before is None else before,
        after,
        assignments,
        outcomes,
        [],
        holdings,
        trained,
        score or FakeScore({}),
        last,
    )
