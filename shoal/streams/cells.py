"""How a pool of rows is dealt to clients: `Partition`, what it gives, and each client's validation rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from .. import registry
from ..data.dataset import Dataset
from ..errors import ConfigError
from ..randomness import Name, generator
from .rounding import rounded

Array = np.ndarray
Names = tuple[Name, ...]
"""The names of the randomness of one pool; every draw adds what it is for."""

IID: Any = {"kind": "iid"}
"""The partition of a stream that names none."""

_NONE = np.empty(0, dtype=np.int64)


def held_out(rows: int, share: float) -> int:
    """How many of so many rows are validation rows: at least 1 if there are two, and never all of them."""
    if share == 0 or rows < 2:
        return 0
    return min(max(1, round(share * rows)), rows - 1)


def even(total: int, parts: int) -> Array:
    """Sizes with this total that differ by at most one, the larger ones first."""
    return np.full(parts, total // parts) + (np.arange(parts) < total % parts)


@dataclass(frozen=True)
class Pool:
    """Rows that are dealt: their labels, and further groupings of them by column; int64 ``[n]`` each."""

    labels: Array
    columns: Mapping[str, Array] = field(default_factory=dict)

    @classmethod
    def of(cls, data: Dataset, rows: Tensor) -> Pool:
        """These rows of a data set."""
        base = rows.cpu() % len(data)
        columns = {name: column.codes.cpu()[base].numpy() for name, column in data.columns.items()}
        return cls(data.labels.cpu()[base].numpy(), columns)


class Split:
    """Who holds what of a pool. Positions are those of the pool, int64 ``[n]``."""

    def rows(self, client: int) -> Array:
        """The positions of one client, in any order but always the same."""
        raise NotImplementedError

    def sizes(self, clients: int) -> Array:
        """How many positions each of ``clients`` clients has, int64 ``[clients]``."""
        return np.fromiter((len(self.rows(client)) for client in range(clients)), np.int64, clients)


class Dealt(Split):
    """A split that is known as a whole: ``owner`` is the client of each position, -1 for nobody's."""

    def __init__(self, owner: Array, clients: int) -> None:
        unowned = int((owner < 0).sum())
        self._order = np.argsort(owner, kind="stable")[unowned:]
        self._ends = np.cumsum(np.bincount(owner[owner >= 0], minlength=clients))

    def rows(self, client: int) -> Array:
        """The positions of one client, ascending."""
        return self._order[self._ends[client - 1] if client else 0 : self._ends[client]]

    def sizes(self, clients: int) -> Array:
        """How many positions each client has, without looking at them."""
        return np.diff(self._ends, prepend=0)


class Cells:
    """The training and validation rows of every client of one pool (a task); sorted positions."""

    validation: Array
    """The validation rows of all clients together."""
    empty: int = 0
    """How many clients hold no row at all."""
    unused: int = 0
    """How many rows of the pool no client holds."""

    def rows(self, client: int) -> tuple[Array, Array]:
        """Training and validation rows of one client; they never overlap."""
        raise NotImplementedError

    def held(self, client: int) -> Array:
        """The validation rows of one client alone."""
        return self.rows(client)[1]

    def sizes(self, clients: int) -> Array | None:
        """How many training rows each client has, int64 ``[clients]``; ``None``: known only by asking for each."""
        return None


class OwnCells(Cells):
    """Every client holds back a share of its own rows."""

    def __init__(self, split: Split, total: int, clients: int, names: Names, share: float) -> None:
        self._split = split
        self._names = names
        self._share = share
        sizes = split.sizes(clients)
        # Few different sizes: one look at each, and one array for all rows, instead of one for each of a million.
        each, which = np.unique(sizes, return_inverse=True)
        counts = np.array([held_out(int(size), share) for size in each], dtype=np.int64)[which]
        held = np.empty(counts.sum(), dtype=np.int64)
        ends = np.cumsum(counts)
        for client in np.flatnonzero(counts).tolist():
            held[ends[client] - counts[client] : ends[client]] = self.rows(client)[1]
        self.validation = np.unique(held)
        self.empty = int((sizes == 0).sum())
        self.unused = max(0, total - int(sizes.sum()))
        self._trained = sizes - counts

    def rows(self, client: int) -> tuple[Array, Array]:
        """Training and validation rows of one client."""
        rows = self._split.rows(client)
        count = held_out(len(rows), self._share)
        if count == 0:
            return np.sort(rows), _NONE
        shuffled = generator(*self._names, "validation", client).permutation(rows)
        return np.sort(shuffled[count:]), np.sort(shuffled[:count])

    def sizes(self, clients: int) -> Array:
        """How many training rows each client has."""
        return self._trained


class Partition:
    """How a pool of rows is dealt to clients. A kind overrides `split`; its settings are keyword-only.

    Every draw comes from ``generator(*names, ...)``, so a split is a function of its arguments. A client may hold
    no row: the run records and skips it.
    """

    part: ClassVar[str] = "partition"
    seeded: ClassVar[bool] = True
    """Whether another seed deals the rows in another way; false where the data say whose they are."""

    @property
    def by_class(self) -> bool:
        """Whether the classes of the rows decide who holds them; the rows of a regression have none."""
        return False

    def client_names(self, data: Dataset) -> tuple[str, ...]:
        """The names of all clients, where the data have them: their number is then fixed. Raises `ConfigError`."""
        return ()

    def strata(self, pool: Pool) -> Array:
        """The groups of rows that clients hold different shares of, int64 ``[n]``; test rows are dealt by them."""
        return pool.labels

    def split(self, labels: Array, clients: int, names: Names, columns: Mapping[str, Array] | None = None) -> Split:
        """Deals the positions of ``labels`` (int64 ``[n]``) to clients ``0..clients-1``.

        ``columns`` are further groupings of the rows, int64 ``[n]`` each. Raises `ConfigError` when the settings ask
        for what this pool cannot give.
        """
        raise NotImplementedError

    def cells(
        self,
        labels: Array,
        clients: int,
        names: Names,
        share: float,
        columns: Mapping[str, Array] | None = None,
    ) -> Cells:
        """The split with a share of each client's rows held back for validation."""
        return OwnCells(self.split(labels, clients, names, columns), len(labels), clients, names, share)

    def pool(self, data: Dataset, rows: Tensor) -> Pool:
        """These rows of a data set as they are dealt; a kind may add groupings of its own. Raises `ConfigError`."""
        return Pool.of(data, rows)

    def test_split(
        self, cells: Cells, train: Pool, test: Pool, clients: int, names: Names, rows: int | None = None
    ) -> Split:
        """Deals the test rows such that each client has the mix of its own rows (training and validation).

        The test rows of each group (`strata`) are shared among the clients in proportion to their own rows of it. No
        row is dealt twice; nobody's are those of groups of which no client holds a row. With ``rows`` every client
        that holds a row gets exactly so many test rows, and the rest are nobody's; raises `ConfigError` where a group
        has too few of them. Shares are rounded up or down by lots, never by more than a row, and so that a client's
        number of test rows is off by less than one as well (`rounded`).
        """
        rng = generator(*names, "test rows")
        own, wanted = self.strata(train), self.strata(test)
        held = [np.concatenate(cells.rows(client)) for client in range(clients)]
        holder = np.repeat(np.arange(clients), [len(some) for some in held])
        kept = own[np.concatenate(held)] if held else own[:0]
        groups = np.union1d(kept, wanted)
        size = (len(groups), clients)
        places = np.ravel_multi_index((np.searchsorted(groups, kept), holder), size)
        table = np.bincount(places, minlength=len(groups) * clients).reshape(size)
        there = np.bincount(np.searchsorted(groups, wanted), minlength=len(groups))
        counts = np.zeros(size, dtype=np.int64)
        if rows is None:
            some = table.any(axis=1)
            counts[some] = rounded(table[some] * there[some, None], table[some].sum(axis=1), rng)
        else:
            some = table.any(axis=0)
            _check_test_rows(rows, table[:, some], there)
            counts[:, some] = rounded(table[:, some].T * rows, table[:, some].sum(axis=0), rng).T
        owner = np.full(len(wanted), -1, dtype=np.int64)
        for group, number in zip(groups, counts, strict=True):
            drawn = rng.permutation(np.flatnonzero(wanted == group))[: number.sum()]
            owner[drawn] = np.repeat(np.arange(clients), number)
        return Dealt(owner, clients)


def _check_test_rows(rows: int, table: Array, there: Array) -> None:
    """Raises `ConfigError` where clients with these rows (``[groups, clients]``) want more of a group than there is."""
    each = (table / table.sum(axis=0)).sum(axis=1)
    wanted = rows * each
    short = np.flatnonzero(wanted > there * (1 + 1e-9))
    if len(short):
        worst = short[np.argmax(wanted[short] - there[short])]
        most = int(min(there[each > 0] / each[each > 0] + 1e-9))
        raise ConfigError(
            f"stream.test_rows: {rows} test rows for each client, with the mix of its own rows, take "
            f"{int(np.ceil(wanted[worst] - 1e-9)):,} of one group of classes, of which there are {there[worst]:,}; "
            + (f"{most} rows are possible" if most else "that cannot be had even with a single row")
        )


def make_partition(given: Partition | Mapping[str, Any] | str) -> Partition:
    """The partition itself, or the one that settings such as ``{"kind": "shards"}`` describe."""
    if isinstance(given, Partition):
        return given
    made = registry.build("partition", registry.resolve("partition", given))
    assert isinstance(made, Partition)
    return made


def deal(data: Dataset, rows: Tensor, partition: Partition, clients: int, names: Names, share: float) -> Cells:
    """The cells of a pool: these rows of a data set (positions of the cells are positions in ``rows``).

    Raises `ConfigError`, also for a number of clients or a validation share that means nothing.
    """
    if clients < 1:
        raise ConfigError(f"stream.clients: needs at least one client; got {clients}")
    if not 0 <= share < 1:
        raise ConfigError(f"stream.validation: a share of each client's rows, from 0 to below 1; got {share}")
    if data.is_regression and partition.by_class:
        raise ConfigError(
            f"partition: {type(partition).__name__} deals rows by their classes, but {data.name} has none, it learns "
            f"values; use iid, sizes, column, or dirichlet by client with group: a column"
        )
    pool = partition.pool(data, rows)
    return partition.cells(pool.labels, clients, names, share, pool.columns)


def count_clients(data: Dataset, partition: Partition, given: int | None) -> tuple[int, tuple[str, ...]]:
    """The number of clients and, where the data have them, their names. Raises `ConfigError`."""
    names = partition.client_names(data)
    if not names and given is None:
        raise ConfigError(
            "stream.clients: needs a number; only with partition: column do the data say how many there are"
        )
    if names and given is not None and given != len(names):
        raise ConfigError(
            f"stream.clients: {given}, but the column of the partition has {len(names)} values, and each is a client; "
            f"leave stream.clients out"
        )
    return len(names) if given is None else given, names


def check_client(client: int, clients: int) -> None:
    """Raises ``IndexError`` for a client that does not exist; a negative one must not count from the end."""
    if not 0 <= client < clients:
        raise IndexError(f"no client {client}; the stream has clients 0 to {clients - 1}")
