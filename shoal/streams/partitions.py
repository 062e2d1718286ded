"""Partitions by name: IID, shards, given sizes; Dirichlet mixes and independent draws from their own file."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from typing import Annotated

import numpy as np
import pydantic

from ..data.dataset import Dataset
from ..data.splits import shares
from ..errors import ConfigError, nearest
from ..randomness import generator
from .cells import Array, Cells, Dealt, Names, Partition, Pool, Split, even
from .dirichlet import Dirichlet, Draw

__all__ = ["ByColumn", "Dirichlet", "Draw", "Iid", "Shards", "Sizes"]


class ByColumn(Partition):
    """Natural clients: every value of ``column`` is a client that holds its own rows, and its own test rows.

    Clients are numbered in the order of the column's names (numbers by size, texts by alphabet), and have these names.
    A client may have test rows alone: it is there, and skipped in training. Nothing is drawn but validation rows.
    """

    seeded = False

    def __init__(self, *, column: str) -> None:
        self.column = column

    def client_names(self, data: Dataset) -> tuple[str, ...]:
        """The values of the column."""
        if self.column not in data.columns:
            known = nearest(self.column, data.columns) if data.columns else "it has none"
            raise ConfigError(
                f"partition.column: {data.name} has no column {self.column!r}; {known} (data.client or data.columns "
                f"name the columns that are kept)"
            )
        return data.columns[self.column].names

    def split(self, labels: Array, clients: int, names: Names, columns: Mapping[str, Array] | None = None) -> Split:
        """Each row to the client that is its value; raises `ConfigError` for more values than clients."""
        if columns is None or self.column not in columns:
            known = sorted(columns or {})
            raise ConfigError(f"partition.column: the rows have no column {self.column!r}; they have {known}")
        owner = columns[self.column]
        if len(owner) and int(owner.max()) >= clients:
            raise ConfigError(
                f"partition.column: {self.column!r} has {int(owner.max()) + 1} values or more, but there are {clients} "
                f"clients; each value is a client"
            )
        return Dealt(owner, clients)

    def test_split(
        self, cells: Cells, train: Pool, test: Pool, clients: int, names: Names, rows: int | None = None
    ) -> Split:
        """Each test row to the client that is its value; raises `ConfigError` for a number of ``rows``."""
        if rows is not None:
            raise ConfigError(
                f"stream.test_rows: with partition: column every client has its own test rows, as many as there are; "
                f"got {rows}. Leave it out"
            )
        return self.split(test.labels, clients, names, test.columns)


class Iid(Partition):
    """Every client gets an equal share of the shuffled rows; the sizes differ by at most one."""

    def split(self, labels: Array, clients: int, names: Names, columns: Mapping[str, Array] | None = None) -> Split:
        """All rows, each to one client."""
        owner = np.empty(len(labels), dtype=np.int64)
        order = generator(*names, "rows").permutation(len(labels))
        owner[order] = np.repeat(np.arange(clients), even(len(labels), clients))
        return Dealt(owner, clients)


class Shards(Partition):
    """Sort and partition: rows sorted by class are cut into ``clients * per_client`` shards and dealt at random.

    A client so holds few classes: about ``per_client``. Rows of one class are in random order, and the sizes of
    shards differ by at most one (with fewer rows than shards some are empty). A shard may hold the end of one class and
    the beginning of the next, and a client may draw two shards of one class.

    ``distinct: true`` gives every client rows of exactly ``per_client`` classes: every class is cut into shards of its
    own, so many that the largest shard is as small as can be, and a client draws shards of different classes. Sizes
    then follow the sizes of the classes.

    Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS
    2017, section 3 (MNIST: 100 clients, 200 shards of 300).
    """

    def __init__(self, *, per_client: Annotated[int, pydantic.Field(ge=1)] = 2, distinct: bool = False) -> None:
        if per_client < 1:
            raise ConfigError(f"partition.per_client: needs at least one shard a client; got {per_client}")
        self.per_client = per_client
        self.distinct = distinct

    @property
    def by_class(self) -> bool:
        """Shards are cut out of rows that are sorted by class."""
        return True

    def split(self, labels: Array, clients: int, names: Names, columns: Mapping[str, Array] | None = None) -> Split:
        """All rows, each to one client; raises `ConfigError` where ``distinct`` classes cannot be had."""
        order = generator(*names, "rows").permutation(len(labels))
        order = order[np.argsort(labels[order], kind="stable")]
        if self.distinct:
            sizes = np.unique(labels, return_counts=True)[1]
            cuts = self._cuts(sizes, clients)
            rng = generator(*names, "shards")
            holders = [rng.permutation(some) for some in self._holders(cuts, clients, rng)]
            parts = [np.repeat(who, even(size, len(who))) for who, size in zip(holders, sizes, strict=True)]
            owner = np.empty(len(labels), dtype=np.int64)
            owner[order] = np.concatenate([*parts, owner[:0]])
            return Dealt(owner, clients)
        shards = clients * self.per_client
        holder = generator(*names, "shards").permutation(shards) // self.per_client
        owner = np.empty(len(labels), dtype=np.int64)
        owner[order] = np.repeat(holder, even(len(labels), shards))
        return Dealt(owner, clients)

    def _cuts(self, sizes: Array, clients: int) -> Array:
        """Into how many shards each class is cut, int64 ``[classes]``: at least 1, and the largest shard is smallest.

        A class has no more shards than clients, who hold one each, and no more than rows.
        """
        shards = clients * self.per_client
        room = np.minimum(sizes, clients)
        if not len(sizes) <= shards <= room.sum() or self.per_client > len(sizes):
            raise ConfigError(
                f"partition.distinct: {clients} clients with {self.per_client} different classes each are {shards} "
                f"shards, but the {sum(sizes)} rows of {len(sizes)} classes can be cut into {len(sizes)} to "
                f"{room.sum()}, at least one a class and at most one a client; change per_client or the number of "
                f"clients, or use distinct: false"
            )
        cuts = np.ones(len(sizes), dtype=np.int64)
        largest = [(-float(size), c) for c, size in enumerate(sizes) if room[c] > 1]
        heapq.heapify(largest)
        for _ in range(shards - len(sizes)):
            c = largest[0][1]
            cuts[c] += 1
            following = (-sizes[c] / cuts[c], c)
            if cuts[c] < room[c]:
                heapq.heapreplace(largest, following)
            else:
                heapq.heappop(largest)
        return cuts

    def _holders(self, cuts: Array, clients: int, rng: np.random.Generator) -> list[list[int]]:
        """Who gets the shards of each class: every client ``per_client`` of different classes, by what is left of them.

        A class with as many shards left as there are clients left is taken by all of them, so that all shards go.
        """
        left = cuts.copy()
        holders: list[list[int]] = [[] for _ in cuts]
        for done, client in enumerate(rng.permutation(clients)):
            to_come = clients - done
            forced = np.flatnonzero(left == to_come)
            open_ = np.flatnonzero((left > 0) & (left < to_come))
            weights = left[open_] / max(1, left[open_].sum())
            free = self.per_client - len(forced)
            drawn = rng.choice(open_, free, replace=False, p=weights) if free else open_[:0]
            for c in (*forced, *drawn):
                holders[c].append(int(client))
            left[forced] -= 1
            left[drawn] -= 1
        return holders


class Sizes(Partition):
    """Clients of unequal size with the same mix of classes: shuffled rows, cut at the given sizes.

    ``sizes`` lists one number per client: whole numbers are rows, numbers with a decimal point are shares of the
    pool. What they leave over is held by nobody. Or ``exponent``: the client of rank ``r`` gets a share in
    proportion to ``r ** -exponent`` (ranks are dealt at random, all rows are used; 0 is equal sizes).
    """

    def __init__(
        self,
        *,
        sizes: list[int] | list[float] | None = None,
        exponent: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)] | None = None,
    ) -> None:
        if (sizes is None) == (exponent is None):
            raise ConfigError("partition: kind sizes needs either 'sizes' (one per client) or 'exponent', and not both")
        if sizes is not None and any(not 0 <= size < math.inf for size in sizes):
            raise ConfigError(f"partition.sizes: needs finite numbers from 0 on; got {sizes}")
        if exponent is not None and not 0 <= exponent < math.inf:
            raise ConfigError(f"partition.exponent: needs a finite number from 0 on; got {exponent}")
        self.sizes = sizes
        self.exponent = exponent

    def split(self, labels: Array, clients: int, names: Names, columns: Mapping[str, Array] | None = None) -> Split:
        """The first rows of the shuffled pool to client 0, the next to client 1, and so on."""
        counts = self._counts(len(labels), clients, names)
        owner = np.full(len(labels), -1)
        order = generator(*names, "rows").permutation(len(labels))
        owner[order[: counts.sum()]] = np.repeat(np.arange(clients), counts)
        return Dealt(owner, clients)

    def _counts(self, total: int, clients: int, names: Names) -> Array:
        rng = generator(*names, "sizes")
        if self.sizes is None:
            weights = rng.permutation(np.arange(1, clients + 1) ** -float(self.exponent or 0))
            return shares(weights, total, np.full(clients, total), rng)
        if len(self.sizes) != clients:
            raise ConfigError(
                f"partition.sizes: needs one number per client; got {len(self.sizes)} for {clients} clients"
            )
        asked = sum(self.sizes)
        if all(isinstance(size, int) for size in self.sizes):
            if asked > total:
                raise ConfigError(f"partition.sizes: asks for {asked} rows in all, but there are {total}; lower them")
            return np.asarray(self.sizes, dtype=np.int64)
        if asked > 1 + 1e-9:
            raise ConfigError(
                f"partition.sizes: shares of the pool sum to at most 1; got {asked:g} (numbers of rows are written "
                f"without a decimal point)"
            )
        weights = np.asarray(self.sizes, dtype=np.float64)
        return shares(weights, min(total, round(asked * total)), np.full(clients, total), rng)
