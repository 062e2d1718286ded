"""`rounded`: a table of fractions as whole numbers, such that every row and every column keeps its sum."""

from __future__ import annotations

import numpy as np

Array = np.ndarray

_NEAR = 1e-9
"""Sums of fractions that are so near to a whole number are that number."""


def rounded(numerators: Array, divisors: Array, rng: np.random.Generator) -> Array:
    """The table ``numerators / divisors[:, None]`` in whole numbers, int64 of the same shape.

    ``numerators`` are int64 ``[rows, columns]``, not negative, ``divisors`` int64 ``[rows]``, positive; every row has a
    whole sum. Every number is rounded down or up, every row keeps its sum, and every column's sum is its exact one,
    rounded down or up. Which numbers go up is decided by lots.

    Such a rounding always exists (the fractions are a flow, and a flow with whole bounds can be had in whole numbers).
    It is found as a maximum flow. Source: Cox, "A Constructive Procedure for Unbiased Controlled Rounding", JASA 82,
    1987, for the task; the lots here are an order of rows and columns drawn at random, not an unbiased rounding.
    """
    down, rest = np.divmod(numerators, divisors[:, None])
    needed = (rest.sum(axis=1) // divisors).astype(np.int64)
    sums = (rest / divisors[:, None]).sum(axis=0)
    for near in (_NEAR, -_NEAR):  # the second for sums that were near to a whole number and yet are none
        low, high = np.floor(sums + near).astype(np.int64), np.ceil(sums - near).astype(np.int64)
        up = _flow(rest > 0, needed, np.maximum(low, 0), high, rng)
        if up is not None:
            return np.asarray(down + up, dtype=np.int64)
    raise AssertionError("a table of fractions can be rounded")


def _flow(open_: Array, needed: Array, low: Array, high: Array, rng: np.random.Generator) -> Array | None:
    """Zeros and ones, ones only where ``open_``, with these row sums, and column sums from ``low`` to ``high``.

    ``None`` where there is no such table.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import maximum_flow

    rows, columns = open_.shape
    total = int(needed.sum())
    if int(low.sum()) > total:
        return None
    by_row, by_column = rng.permutation(rows), rng.permutation(columns)
    at, to = np.nonzero(open_[by_row][:, by_column])
    # source - rows - columns - sink: a column's lower bound goes straight to the sink, what is more by way of `spare`.
    source, sink, spare = rows + columns, rows + columns + 1, rows + columns + 2
    low, high, needed = low[by_column], high[by_column], needed[by_row]
    ends = rows + np.arange(columns)
    edges = [
        (np.full(rows, source), np.arange(rows), needed),
        (at, rows + to, np.ones(len(at), dtype=np.int64)),
        (ends, np.full(columns, sink), low),
        (ends, np.full(columns, spare), high - low),
        (np.array([spare]), np.array([sink]), np.array([total - low.sum()])),
    ]
    begin, end, capacity = (np.concatenate(parts) for parts in zip(*edges, strict=True))
    size = spare + 1
    graph = coo_array((capacity.astype(np.int32), (begin, end)), shape=(size, size)).tocsr()
    found = maximum_flow(graph, source, sink)
    if found.flow_value != total:
        return None
    up = np.zeros((rows, columns), dtype=np.int64)
    sent = found.flow.tocoo()
    ones = (sent.row < rows) & (sent.col >= rows) & (sent.col < rows + columns) & (sent.data > 0)
    up[by_row[sent.row[ones]], by_column[sent.col[ones] - rows]] = 1
    return up
