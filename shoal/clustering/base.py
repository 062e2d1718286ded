"""What a clusterer is: points and a number of clusters in, labels out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from .geometry import Array, one_thread

Labels = npt.NDArray[np.int64]

SAME = 1e-6
"""Points nearer than this share of the largest distance are one point: it is the rounding of exact coordinates."""


@dataclass(frozen=True)
class Cloud:
    """Points ``[n, r]`` as clusterers see them: points that are the same up to rounding are moved onto each other."""

    given: Array

    def __post_init__(self) -> None:
        shape = np.shape(self.given)
        if len(shape) != 2 or not shape[0] or not np.isfinite(self.given).all():
            raise ValueError(f"clustering needs a matrix of finite numbers with at least one row; got shape {shape}")

    @cached_property
    def _between(self) -> Array:
        centred = self.given - self.given.mean(axis=0)
        squares = np.einsum("nr,nr->n", centred, centred)
        distances = np.sqrt(np.maximum(squares[:, None] + squares - 2 * centred @ centred.T, 0.0))
        np.fill_diagonal(distances, 0.0)
        return np.asarray((distances + distances.T) / 2, dtype=np.float64)

    @cached_property
    def groups(self) -> Labels:
        """Which point each one is: a number from 0 on, in the order of first appearance."""
        from scipy.sparse.csgraph import connected_components

        _, found = connected_components(self._between <= SAME * self._between.max(), directed=False)
        return renumbered(found)

    @cached_property
    def first(self) -> Labels:
        """The row of each group's first point."""
        return np.unique(self.groups, return_index=True)[1].astype(np.int64)

    @property
    def distinct(self) -> int:
        """How many different points there are."""
        return len(self.first)

    @cached_property
    def points(self) -> Array:
        """The points ``[n, r]``, those of a group all at the first one's place."""
        return np.ascontiguousarray(self.given[self.first[self.groups]])

    @cached_property
    def distances(self) -> Array:
        """Euclidean distances ``[n, n]``, exactly zero inside a group and nowhere else."""
        rows = self.first[self.groups]
        return np.ascontiguousarray(self._between[np.ix_(rows, rows)])

    @property
    def median(self) -> float:
        """The median distance of two points that are not the same; 0 if all are."""
        apart = self.distances[np.triu_indices(len(self.given), 1)]
        return float(np.median(apart[apart > 0])) if (apart > 0).any() else 0.0

    @cached_property
    def outward(self) -> Labels:
        """The rows by their distance from the mean: an order that does not depend on how clients are numbered."""
        away = np.linalg.norm(self.given - self.given.mean(axis=0), axis=1)
        # Rounded, so that points at the same distance do not change places by their last bits.
        return np.argsort(np.round(away / (away.max() or 1.0), 9), kind="stable").astype(np.int64)


class Clusterer:
    """Finds groups among points. A member says in `fit` what its algorithm makes of them.

    Settings are keyword-only parameters of ``__init__``; attributes never change afterwards.
    """

    part: ClassVar[str] = "clusterer"
    needs_number: bool = True
    """Whether it must be told how many clusters to make; one that need not ignores the number."""

    def labels(self, points: Array, clusters: int | None, rng: np.random.Generator) -> Labels:
        """A label for each of the points ``[n, r]``, ``int64 [n]``, numbered by first appearance from 0 on.

        More ``clusters`` than different points become as many as there are; points that are all the same are one
        cluster. Points are handed to the algorithm by their distance from the mean, so that the numbering of
        clients changes the numbering of clusters and nothing else. Raises ``ValueError`` for points that are not
        finite or none at all, and for a number of clusters that is missing or below one.
        """
        if self.needs_number and (clusters is None or clusters < 1):
            raise ValueError(f"{type(self).__name__} needs a number of clusters, at least one; got {clusters}")
        with one_thread():
            cloud = Cloud(np.asarray(points, dtype=np.float64))
            if cloud.distinct == 1 or (self.needs_number and clusters == 1):
                return np.zeros(len(points), dtype=np.int64)
            order = cloud.outward
            sorted_cloud = Cloud(cloud.points[order])
            found = np.empty(len(order), dtype=np.int64)
            found[order] = self.fit(sorted_cloud, min(clusters or 1, cloud.distinct), rng)
        return renumbered(found)

    def fit(self, cloud: Cloud, clusters: int, rng: np.random.Generator) -> Labels:
        """A label for each point; there are at least two different ones. Noise has the label -1.

        ``clusters`` is between 2 and the number of different points, and means nothing unless `needs_number`.
        """
        raise NotImplementedError


def renumbered(labels: npt.ArrayLike) -> Labels:
    """Labels numbered by first appearance, ``int64``; each -1 (noise) is a cluster of its own."""
    given = np.asarray(labels, dtype=np.int64).copy()
    noise = given < 0
    given[noise] = given.max(initial=0) + 1 + np.arange(noise.sum())
    _, first, inverse = np.unique(given, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse].astype(np.int64)


def seed_of(rng: np.random.Generator) -> int:
    """A seed for scikit-learn's ``random_state``."""
    return int(rng.integers(2**32, dtype=np.uint64))
