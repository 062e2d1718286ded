"""Test rows of a table: a share of each client's rows, or its latest ones. The order of the rows never matters."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DataError
from .frames import Array, first_row, numbers
from .splits import check_amount, shares, strata, stratified

if TYPE_CHECKING:
    import pandas as pd

_ZONE = re.compile(r"(?:Z|UTC|GMT|[+-]\d\d(?::?\d\d)?)$")


def canonical(columns: Sequence[Array]) -> Array:
    """The positions of rows in an order that depends on what they hold alone: columns of numbers, ``[n]`` each."""
    table = np.column_stack([np.asarray(column, dtype=np.float64) for column in columns]) + 0.0
    table[np.isnan(table)] = np.inf  # the bits of NaN differ with where it came from
    digests = [hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in table]
    return np.argsort(np.frombuffer(b"".join(digests), dtype=">u8"), kind="stable")


def members_of(groups: Array) -> list[Array]:
    """The positions of each group that occurs, ascending."""
    order = np.argsort(groups, kind="stable")
    found = np.flatnonzero(np.diff(groups[order])) + 1
    return list(np.split(order, found)) if len(order) else []


def by_client(
    labels: Array, clients: Array, columns: Sequence[Array], amount: float, rng: np.random.Generator
) -> Array:
    """Test rows of every client that has two rows or more: sorted positions, stratified by label and columns.

    ``amount`` below 1 is a share of each client's rows (at least one row, and never all); from 1 on it is a number of
    rows in all, in proportion to the clients' sizes. One row of every class stays for training: of the rarest classes
    first, at the client that has the most rows left. Raises `DataError`.
    """
    check_amount(amount)
    members = members_of(clients)
    sizes = np.array([len(rows) for rows in members])
    able = sizes > 1
    if amount < 1:
        counts = np.where(able, np.clip(np.rint(amount * sizes).astype(np.int64), 1, np.maximum(1, sizes - 1)), 0)
    else:
        total, room = int(amount), np.where(able, sizes - 1, 0)
        if not able.sum() <= total <= room.sum():
            raise DataError(
                f"test: {total} rows, but {int(able.sum())} clients have two rows or more, and each of them has a row "
                f"for training and one for testing; ask for {int(able.sum())} to {int(room.sum())} rows, or for a share"
            )
        counts = shares(np.where(able, sizes, 0), total, room, rng)
        for client in np.flatnonzero(able & (counts == 0)):
            counts[np.argmax(counts)] -= 1
            counts[client] = 1
    kept = _kept(labels, clients, rng)
    groups = strata(labels, *columns)
    chosen = []
    for rows, count in zip(members, counts, strict=True):
        keep = np.flatnonzero(kept[rows])
        count = min(int(count), len(rows) - len(keep))
        if count:
            chosen.append(rows[stratified(strata(groups[rows]), count, rng, keep)])
    if not chosen:
        raise DataError("test: no row can be held out without leaving a class or a client untrained; add rows")
    return np.sort(np.concatenate(chosen))


def _kept(labels: Array, clients: Array, rng: np.random.Generator) -> Array:
    """One row of every class, marked; they are spread over the clients."""
    left = np.bincount(clients)
    kept = np.zeros(len(labels), dtype=bool)
    for rows in sorted(members_of(labels), key=len):
        rows = rng.permutation(rows)
        row = rows[np.argmax(left[clients[rows]])]
        kept[row] = True
        left[clients[row]] -= 1
    return kept


def latest(stamps: Array, clients: Array, amount: float) -> Array:
    """The latest rows of every client: sorted positions. ``stamps`` are numbers or ``datetime64``, ``[n]``.

    ``amount`` below 1 is a share of each client's distinct moments (at least one, and never all), from 1 on a number of
    them. Rows of one moment stay together, so a client's last training row is always older than its first test row.
    A client with a single moment has no test row. Raises `DataError` where nobody has two.
    """
    check_amount(amount)
    chosen = []
    for rows in members_of(clients):
        moments = np.unique(stamps[rows])
        count = min(max(1, round(amount * len(moments))) if amount < 1 else int(amount), len(moments) - 1)
        if count:
            chosen.append(rows[stamps[rows] >= moments[-count]])
    if not chosen:
        raise DataError("data.time: no client has rows of two different moments, so there is nothing later to test on")
    return np.sort(np.concatenate(chosen))


def moments(column: pd.Series[Any], name: str, missing: frozenset[str]) -> tuple[Array, list[str]]:
    """The stamps of rows as numbers or as ``datetime64`` in UTC, ``[n]``, and remarks.

    Stamps are numbers (seconds, days, anything that grows), ISO 8601 texts or timestamps; one without a time zone is
    in UTC. Raises `DataError` naming the first row without a stamp that can be read.
    """
    import pandas as pd

    if isinstance(column.dtype, pd.DatetimeTZDtype) or pd.api.types.is_datetime64_any_dtype(column.dtype):
        stamps, unread, remarks = pd.to_datetime(column, utc=True), column.isna().to_numpy(), []
    else:
        values, wrong = numbers(column, ".", missing)
        if not wrong.any() and not np.isnan(values).all():
            _refuse(np.isnan(values), column, name)
            # Whole numbers stay whole: nanoseconds since 1970 are too large for a float.
            exact = pd.to_numeric(column.astype("string").str.strip(), errors="coerce")
            whole = pd.api.types.is_integer_dtype(exact.dtype)
            return (exact.to_numpy(np.int64) if whole else values), []
        text = column.astype("string").str.strip()
        gaps = (text.isna() | text.isin(list(missing))).to_numpy(bool)
        stamps = pd.to_datetime(text.where(~gaps), utc=True, errors="coerce", format="ISO8601")
        unread = stamps.isna().to_numpy()
        zoned = text.str.contains(_ZONE.pattern, na=False).to_numpy(bool) & text.str.contains(":", na=False)
        bare = int((~zoned).sum())
        remarks = [f"stamps without a time zone, read as UTC: {bare} of {len(text)}"] if 0 < bare < len(text) else []
    _refuse(unread, column, name)
    return stamps.dt.tz_convert(None).to_numpy(), remarks


def _refuse(unread: Array, column: pd.Series[Any], name: str) -> None:
    if unread.any():
        raise DataError(
            f"data.time: {int(unread.sum())} rows have no stamp in {name!r} that can be read, the first is row "
            f"{first_row(unread, column.index)}: {str(column[unread].iloc[0])!r}; write ISO 8601 "
            f"(2024-05-01T12:00:00+02:00) or numbers"
        )
