"""Laws of partitions, each tried alone on a pool of labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..randomness import generator
from ..streams.cells import Array, Partition
from .law import law, require
from .laws_bits import global_generators

CLIENTS = 5
ROWS = 90
SHARE = 0.2


@dataclass
class PartitionCase:
    """A partition to be tried. ``shares_rows`` and ``leaves_rows`` as in `laws_stream.StreamCase`."""

    make: Callable[[], Partition]
    shares_rows: bool = False
    leaves_rows: bool = False
    clients: int = CLIENTS


def pool() -> tuple[Array, dict[str, Array]]:
    """Labels of 90 rows in six classes of unequal size, and a column."""
    rng = generator("stand-in", "pool")
    labels = rng.choice(6, size=ROWS, p=[0.4, 0.2, 0.15, 0.1, 0.1, 0.05])
    labels[:6] = np.arange(6)
    return labels, {"domain": rng.integers(0, 3, ROWS)}


def _dealt(case: PartitionCase, seed: int = 0, pool_number: int = 0) -> list[Array]:
    labels, columns = pool()
    split = case.make().split(labels, case.clients, (seed, "stream", "partition", pool_number), columns)
    return [split.rows(client) for client in range(case.clients)]


@law("partition")
def positions_are_valid(case: PartitionCase) -> None:
    """Every client gets int64 positions of the pool, none twice."""
    for client, rows in enumerate(_dealt(case)):
        require(rows.dtype == np.int64 and rows.ndim == 1, f"client {client}: {rows.dtype} of shape {rows.shape}")
        require(len(np.unique(rows)) == len(rows), f"client {client} holds a row twice")
        require(not len(rows) or (rows.min() >= 0 and rows.max() < ROWS), f"client {client}: positions out of range")
    require(sum(len(rows) for rows in _dealt(case)), "nobody holds a row")


@law("partition")
def every_row_has_one_owner(case: PartitionCase) -> None:
    """No row is held by two clients and none by nobody (where the settings do not ask for it)."""
    held = np.concatenate(_dealt(case))
    if not case.shares_rows:
        twice = [int(row) for row, count in zip(*np.unique(held, return_counts=True), strict=True) if count > 1]
        require(not twice, f"rows {twice[:5]} are held by two clients")
    if not case.shares_rows and not case.leaves_rows:
        lost = np.setdiff1d(np.arange(ROWS), held)
        require(not len(lost), f"{len(lost)} of {ROWS} rows are held by nobody, such as {lost[:5].tolist()}")


@law("partition")
def validation_rows_are_held_back(case: PartitionCase) -> None:
    """A share of the rows is held back for validation, and nobody trains on it."""
    labels, columns = pool()
    cells = case.make().cells(labels, case.clients, (0, "stream"), SHARE, columns)
    pairs = [cells.rows(client) for client in range(case.clients)]
    held = np.concatenate([validation for _, validation in pairs])
    trained = np.concatenate([train for train, _ in pairs])
    require(len(held), "no row is held back")
    both = np.intersect1d(trained, np.union1d(held, cells.validation))
    require(not len(both), f"validation rows {both[:5].tolist()} are trained on")
    require(set(held.tolist()) <= set(cells.validation.tolist()), "the pool's validation rows lack a client's")
    if not case.shares_rows:
        every = np.union1d(trained, held)
        require(
            cells.unused == ROWS - len(every), f"{ROWS - len(every)} rows are held by nobody; it says {cells.unused}"
        )


@law("partition")
def a_split_is_a_function_of_its_names(case: PartitionCase) -> None:
    """The same names give the same split, in any order of asking; another seed or pool gives another one."""
    with global_generators() as mark:
        before = mark()
        first = _dealt(case)
        require(mark() == before, "the split read or seeded a global random generator")
    labels, columns = pool()
    split = case.make().split(labels, case.clients, (0, "stream", "partition", 0), columns)
    for client in reversed(range(case.clients)):
        require(np.array_equal(split.rows(client), first[client]), f"client {client}, asked backwards")
        require(np.array_equal(split.rows(client), first[client]), f"client {client}, asked again")
    if not case.make().seeded:  # natural clients: whose a row is stands in the data
        return
    for what, other in (("seed", _dealt(case, seed=1)), ("pool", _dealt(case, pool_number=1))):
        same = all(np.array_equal(np.sort(a), np.sort(b)) for a, b in zip(first, other, strict=True))
        require(not same, f"another {what} deals the very same rows to everyone")


@law("partition")
def labels_stay_as_they_are(case: PartitionCase) -> None:
    """A split changes neither the labels nor the columns of the pool in place."""
    labels, columns = pool()
    before = labels.copy(), columns["domain"].copy()
    split = case.make().split(labels, case.clients, (0, "stream"), columns)
    for client in range(case.clients):
        split.rows(client)
    same = np.array_equal(labels, before[0]) and np.array_equal(columns["domain"], before[1])
    require(same, "labels or columns were changed in place")


@law("partition")
def one_client_holds_everything(case: PartitionCase) -> None:
    """A pool that is dealt to a single client is that client's (where no number of clients is asked for)."""
    if case.shares_rows or case.leaves_rows or case.clients != CLIENTS:
        return
    labels, columns = pool()
    alone = case.make().split(labels, 1, (0, "stream"), columns).rows(0)
    require(len(alone) == ROWS, f"a single client holds {len(alone)} of {ROWS} rows")
