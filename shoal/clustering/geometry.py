"""Clients' models as points: exact Euclidean coordinates of long vectors, and projections of them.

k-means, Ward, BIRCH, DBSCAN and their like only see distances, and n vectors span at most n - 1 dimensions. So the
Gram matrix of the centred vectors has all that they need: its eigenvectors, scaled by the roots of the eigenvalues,
are points with the very distances of the vectors (classical scaling; Torgerson 1952), and clustering a hundred models
of millions of parameters becomes clustering a hundred short rows.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor

Array = npt.NDArray[np.float64]
Rows = Tensor | Sequence[Tensor]
"""Vectors as one matrix ``[n, P]``, or as a list of ``n`` vectors of size ``P``, which then need no second copy."""

BLOCK = 1 << 13
"""Columns that are in memory as float64 at a time."""

ROUNDINGS = 4
"""Vectors that are nearer than so many spacings of their type, times their length, are one vector."""


@functools.cache
def _pools() -> Any:
    import sklearn.cluster  # noqa: F401  (so that its threads are there to be found; looking takes milliseconds)
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]  # comes with scikit-learn

    return ThreadpoolController()


def one_thread() -> AbstractContextManager[Any]:
    """Inside of it BLAS and OpenMP use one thread: a sum that is split depends on their number in its last bits."""
    return _pools().limit(limits=1)  # type: ignore[no-any-return]


def sized(rows: Rows) -> tuple[list[npt.NDArray[Any]], int]:
    """The rows as arrays, which share their memory on the CPU, and their size.

    Raises ``ValueError`` unless all are flat and of one size.
    """
    found = [row.detach().cpu() for row in rows]
    sizes = {tuple(row.shape) for row in found}
    if len(sizes) > 1 or any(len(size) != 1 for size in sizes):
        raise ValueError(f"vectors to compare are flat and of one size; got the shapes {sorted(sizes)}")
    return [row.numpy() for row in found], next(iter(sizes))[0] if sizes else 0


def block(rows: Sequence[npt.NDArray[Any]], begin: int, end: int, out: Array) -> Array:
    """Columns ``begin`` to ``end`` of the rows in float64, in the first columns of ``out``."""
    part = out[:, : end - begin]
    for i, row in enumerate(rows):
        part[i] = row[begin:end]
    return part


def gram(vectors: Rows) -> Array:
    """The Gram matrix ``[n, n]`` of the vectors minus their mean, summed in float64, block by block.

    Differences to the first vector are what is multiplied, and the products are centred afterwards: vectors that
    are equal so give exact zeros. Raises ``ValueError`` for numbers that are not finite.
    """
    from scipy.linalg.blas import dsyrk

    rows, size = sized(vectors)
    n = len(rows)
    total = np.zeros((n, n), order="F")
    if n == 0 or size == 0:
        return total
    memory = np.empty((n, min(BLOCK, size)))
    # Infinities give NaN here, which is told below.
    with one_thread(), np.errstate(invalid="ignore"):
        for begin in range(0, size, BLOCK):
            part = block(rows, begin, min(begin + BLOCK, size), memory)
            part -= part[0].copy()
            # Only one triangle is computed: half of the work.
            total = dsyrk(1.0, part.T, beta=1.0, c=total, trans=1, overwrite_c=1)
    if not np.isfinite(total).all():
        wrong = [i for i, row in enumerate(rows) if not np.isfinite(row).all()]
        raise ValueError(f"vectors to cluster must be finite and of a size that can be squared; look at rows {wrong}")
    full = np.triu(total) + np.triu(total, 1).T
    centred = full - full.mean(axis=0) - full.mean(axis=1)[:, None] + full.mean()
    return np.asarray((centred + centred.T) / 2, dtype=np.float64)


def _rounding(vectors: Rows) -> float:
    """How far apart vectors are that are one up to rounding; all are as long as the first, if they are so near."""
    first = sized(vectors[:1])[0][0]
    spacing = float(np.finfo(first.dtype).eps) if first.dtype.kind == "f" else 0.0
    return ROUNDINGS * spacing * float(np.linalg.norm(first.astype(np.float64)))


def coordinates(vectors: Rows) -> Array:
    """Points ``[n, r]`` in float64 whose Euclidean distances are those of the vectors ``[n, P]``; ``r <= n - 1``.

    The columns are the principal coordinates of the vectors, by falling variance; each sums to zero. ``r`` is the
    rank: eigenvalues that are negative or zero up to rounding (``n`` times the spacing of float64, relative to the
    largest) are cut. Equal vectors give ``r = 0``, and so do those that differ by no more than `ROUNDINGS` roundings of
    their own type: what training left of one model in different batches. Raises ``ValueError`` for numbers that are not
    finite.
    """
    from scipy.linalg import eigh

    centred = gram(vectors)
    n = len(centred)
    if n < 2:
        return np.zeros((n, 0))
    with one_thread():
        values, directions = eigh(centred)
    values, directions = values[:0:-1], directions[:, :0:-1]  # the smallest belongs to the mean, which is zero
    if values[0] <= n * _rounding(vectors) ** 2:
        return np.zeros((n, 0))
    kept = values > n * np.finfo(np.float64).eps * max(values[0], 0.0)
    points = directions[:, kept] * np.sqrt(values[kept])
    # An eigenvector's sign is arbitrary; this one depends on the numbers alone.
    largest = points[np.abs(points).argmax(axis=0), np.arange(points.shape[1])]
    return np.asarray(points * np.sign(largest), dtype=np.float64)


def project(points: Array, kind: Literal["pca", "random"], dimensions: int, rng: np.random.Generator) -> Array:
    """Exact coordinates ``[n, r]`` in ``dimensions`` dimensions; those that have no more are given back as they are.

    ``pca``: the first principal coordinates. ``random``: a Gaussian random projection, which keeps squared distances
    in the mean (Johnson and Lindenstrauss 1984); a Gaussian matrix looks the same from every basis, so projecting the
    coordinates is projecting the vectors. Raises ``ValueError`` for fewer dimensions than one.
    """
    if dimensions < 1:
        raise ValueError(f"a projection needs at least one dimension; got {dimensions}")
    if points.shape[1] <= dimensions:
        return points
    if kind == "pca":
        return points[:, :dimensions]
    matrix = rng.standard_normal((points.shape[1], dimensions)) / np.sqrt(dimensions)
    return np.asarray(np.einsum("nr,rd->nd", points, matrix), dtype=np.float64)
