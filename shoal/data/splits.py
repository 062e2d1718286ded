"""A seeded, stratified choice of rows: what is held out of training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import DataError

Array = np.ndarray


def strata(*codes: Array) -> Array:
    """One code per distinct combination of the given codes, dense from 0, in sorted order."""
    if len(codes) == 1:
        return np.unique(codes[0], return_inverse=True)[1].reshape(-1)
    return np.unique(np.stack(codes, axis=1), axis=0, return_inverse=True)[1].reshape(-1)


def shares(weights: Array, total: int, room: Array, rng: np.random.Generator) -> Array:
    """Whole numbers proportional to ``weights`` with the sum ``total``, none above ``room`` (largest remainder).

    Equal remainders are ranked at random. Needs ``total <= room.sum()``.
    """
    whole = weights.sum()
    exact: Array = weights * (total / whole if whole > 0 else 0.0)
    taken: Array = np.minimum(np.floor(exact).astype(np.int64), room)
    rank = np.lexsort((rng.random(len(weights)), -(exact - np.floor(exact))))
    while (missing := total - int(taken.sum())) > 0:
        open_ = rank[taken[rank] < room[rank]]
        taken[open_[:missing]] += 1
    return taken


def stratified(groups: Array, count: int, rng: np.random.Generator, keep: Array | None = None) -> Array:
    """``count`` positions, as nearly as possible in proportion to the sizes of the groups (int codes ``[n]``).

    Positions in ``keep`` are never chosen. Returns sorted int64 positions; raises `DataError` when there are not
    that many to choose from.
    """
    order = rng.permutation(len(groups))
    if keep is not None:
        order = order[~np.isin(order, keep)]
    if count > len(order):
        raise DataError(
            f"test: asks for {count} rows, but only {len(order)} of {len(groups)} can be held out without leaving "
            f"a class untrained; ask for fewer"
        )
    sizes = np.bincount(groups)
    room = np.bincount(groups[order], minlength=len(sizes))
    taken = shares(sizes, count, room, rng)
    order = order[np.argsort(groups[order], kind="stable")]
    first = np.repeat(np.cumsum(room) - room, room)
    return np.sort(order[np.arange(len(order)) - first < np.repeat(taken, room)])


def check_amount(amount: float) -> None:
    """Raises `DataError` unless this is a share below 1, or a whole number."""
    if not 0 < amount < np.inf or (amount >= 1 and amount != int(amount)):
        raise DataError(f"test: a share between 0 and 1, or a whole number of rows; got {amount}")


def hold_out(
    labels: Array, columns: Sequence[Array], amount: float, rng: np.random.Generator, by: Array | None = None
) -> Array:
    """The test rows of a source without a split: sorted positions, stratified by label and columns.

    ``amount`` below 1 is a share of the rows, from 1 on a number of rows; with ``by`` (codes) it holds for each of
    its groups. One row of every class, drawn at random, always stays for training. Raises `DataError`.
    """
    check_amount(amount)
    order = rng.permutation(len(labels))
    kept = order[np.unique(labels[order], return_index=True)[1]]
    groups = strata(labels, *columns)
    by = np.zeros(len(labels), dtype=np.int64) if by is None else by
    chosen = []
    for group in np.unique(by):
        members = np.flatnonzero(by == group)
        count = max(1, round(amount * len(members))) if amount < 1 else int(amount)
        keep = np.flatnonzero(np.isin(members, kept))
        chosen.append(members[stratified(strata(groups[members]), count, rng, keep)])
    return np.sort(np.concatenate(chosen))
