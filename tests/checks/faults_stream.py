"""Streams and partitions with one fault each."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch

from shoal.streams.base import Holding, Stream, Target
from shoal.streams.cells import Array, Cells, Names, Split
from shoal.streams.partitions import Iid
from shoal.streams.shifts import ShiftStream
from shoal.streams.static import StaticStream
from shoal.streams.tasks import TaskStream

FIRST: weakref.WeakKeyDictionary[Stream, int] = weakref.WeakKeyDictionary()


class Plain(StaticStream):
    examples: ClassVar[list[dict[str, Any]]] = [{"clients": 4}]


class Tasks(TaskStream):
    examples: ClassVar[list[dict[str, Any]]] = [{"clients": 3, "tasks": 2, "by": "class"}]


class Favouring(Plain):
    """The client that asks first gets its rows in another order."""

    def holding(self, client: int, round: int) -> Holding:
        held = super().holding(client, round)
        first = FIRST.setdefault(self, client)
        return replace(held, train=held.train.flip(0)) if client == first else held


class Wired(Plain):
    """Holds a function that cannot be sent anywhere."""

    def __init__(self, *args: Any, clients: int, **settings: Any) -> None:
        super().__init__(*args, clients=clients, **settings)
        self.same = lambda rows: rows

    def holding(self, client: int, round: int) -> Holding:
        held = super().holding(client, round)
        return replace(held, train=self.same(held.train))


class Warm(Tasks):
    """Round 0 comes before the first task: it has the rows of the other one."""

    def holding(self, client: int, round: int) -> Holding:
        return super().holding(client, round or self.rounds)


class Doubling(Plain):
    """One row counts twice."""

    def holding(self, client: int, round: int) -> Holding:
        held = super().holding(client, round)
        return replace(held, train=torch.cat([held.train, held.train[:1]]))


class Testing(Plain):
    """Trains on a test row."""

    def holding(self, client: int, round: int) -> Holding:
        held = super().holding(client, round)
        return replace(held, train=torch.cat([held.train, held.test[client : client + 1]]))


class Peeking(Plain):
    """Validation rows are trained on."""

    def holding(self, client: int, round: int) -> Holding:
        held = super().holding(client, round)
        return replace(held, train=torch.cat([held.train, held.validation]))


class Sharing(Plain):
    """Clients 0 and 1 hold a row in common."""

    def holding(self, client: int, round: int) -> Holding:
        held = super().holding(client, round)
        other = super().holding(0, round).train[:1]
        return replace(held, train=torch.cat([held.train, other])) if client == 1 else held


class Losing(Plain):
    """Client 2 never gets its last row."""

    def holding(self, client: int, round: int) -> Holding:
        held = super().holding(client, round)
        return replace(held, train=held.train[:-1]) if client == 2 else held


class Seedless(Plain):
    """The same for every seed."""

    def __init__(self, data: Any, seed: int, *args: Any, clients: int, **settings: Any) -> None:
        super().__init__(data, 7, *args, clients=clients, **settings)


class Stampless(Plain):
    """What is measured changes from round to round, and nothing says so."""

    def targets(self, round: int) -> Sequence[Target]:
        (target,) = super().targets(round)
        return [replace(target, test=target.test[round:])]


class Stale(ShiftStream):
    """A client that shifts is measured for ever on what it held first."""

    leaves_rows = True
    examples: ClassVar[list[dict[str, Any]]] = [
        {
            "clients": 4,
            "by": "domain",
            "steps": 2,
            "rounds_per_step": 4,
            "rows": 4,
            "validation_rows": 2,
            "pattern": "rotate",
            "clusters": ["north", "south"],
        }
    ]

    def targets(self, round: int) -> Sequence[Target]:
        return super().targets(1)


class Early(Tasks):
    """Phases end a round too early."""

    def phase(self, round: int) -> int:
        return sum(1 for last in self.boundaries if round >= last)


class Hoarding(Plain):
    """Keeps what it was asked for."""

    def __init__(self, *args: Any, clients: int, **settings: Any) -> None:
        super().__init__(*args, clients=clients, **settings)
        self.asked: dict[int, Holding] = {}

    def holding(self, client: int, round: int) -> Holding:
        self.asked[client] = super().holding(client, round)
        return self.asked[client]


class Narrow(Split):
    """Positions of another type."""

    def __init__(self, inner: Split) -> None:
        self.inner = inner

    def rows(self, client: int) -> Array:
        return self.inner.rows(client).astype(np.int32)


class Narrowing(Iid):
    """Positions that are int32."""

    def split(self, labels: Array, clients: int, names: Names, columns: Mapping[str, Array] | None = None) -> Split:
        return Narrow(super().split(labels, clients, names, columns))


class LosingOne(Iid):
    """The last row of the pool belongs to nobody."""

    def split(self, labels: Array, clients: int, names: Names, columns: Mapping[str, Array] | None = None) -> Split:
        return super().split(labels[:-1], clients, names, columns)


class Rounds(Cells):
    """Training rows that include the validation rows."""

    def __init__(self, inner: Cells) -> None:
        self.inner = inner
        self.validation, self.empty, self.unused = inner.validation, inner.empty, inner.unused

    def rows(self, client: int) -> tuple[Array, Array]:
        train, validation = self.inner.rows(client)
        return np.union1d(train, validation), validation


class Unheld(Iid):
    """Holds validation rows back, and trains on them."""

    def cells(self, *args: Any, **more: Any) -> Cells:
        return Rounds(super().cells(*args, **more))


class Alike(Iid):
    """Deals every pool alike."""

    def split(self, labels: Array, clients: int, names: Names, columns: Mapping[str, Array] | None = None) -> Split:
        return super().split(labels, clients, names[:1], columns)


class Sorting(Iid):
    """Sorts the labels in their place."""

    def split(self, labels: Array, clients: int, names: Names, columns: Mapping[str, Array] | None = None) -> Split:
        labels.sort()
        return super().split(labels, clients, names, columns)


class Between(Iid):
    """Divides by the other clients, of which there may be none."""

    def split(self, labels: Array, clients: int, names: Names, columns: Mapping[str, Array] | None = None) -> Split:
        assert 1 / (clients - 1) <= 1
        return super().split(labels, clients, names, columns)


class Doubled(Iid):
    """The first row belongs to everyone."""

    def split(self, labels: Array, clients: int, names: Names, columns: Mapping[str, Array] | None = None) -> Split:
        return Shared(super().split(labels, clients, names, columns))


class Shared(Split):
    """Everyone holds row 0."""

    def __init__(self, inner: Split) -> None:
        self.inner = inner

    def rows(self, client: int) -> Array:
        return np.union1d(self.inner.rows(client), [0])
