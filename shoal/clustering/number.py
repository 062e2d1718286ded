"""How many clusters there are: a given number, or the one with the best silhouette."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from .base import Cloud, Clusterer, Labels
from .geometry import Array

NumberRule = Literal["fixed", "silhouette"]

LEAST_SILHOUETTE = 0.25
"""Below this mean silhouette clusters are taken for noise, see `silhouette`."""


@dataclass(frozen=True)
class Clusters:
    """Labels ``int64 [n]`` numbered by first appearance, and the mean silhouette of each number that was tried."""

    labels: Labels
    silhouettes: Mapping[int, float] = field(default_factory=dict)

    @property
    def number(self) -> int:
        """How many clusters there are."""
        return int(self.labels.max()) + 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of points of each cluster."""
        return tuple(np.bincount(self.labels).tolist())


def fixed(points: Array, clusterer: Clusterer, clusters: int, rng: np.random.Generator) -> Clusters:
    """So many clusters, or as many as there are different points; a clusterer that needs no number finds its own."""
    return Clusters(clusterer.labels(points, clusters, rng))


def silhouette(
    points: Array, clusterer: Clusterer, most: int, rng: np.random.Generator, least: float = LEAST_SILHOUETTE
) -> Clusters:
    """The number of clusters from 2 to ``most`` with the largest mean silhouette (Rousseeuw 1987), or one.

    A point's silhouette is ``(b - a) / max(a, b)`` with its mean distance a from its own cluster and b from the
    nearest other one; a point alone has 0. All points are one cluster where no number reaches ``least``: in many
    dimensions, points without structure are all about equally far from each other, and every silhouette is near 0.
    So are two points, and any that are all alone: there is no scale to tell them apart by. Of equally good numbers the
    smallest is taken. A clusterer that needs no number finds its own. Raises ``ValueError`` for ``most < 1``.
    """
    if most < 1:
        raise ValueError(f"the largest number of clusters is at least one; got {most}")
    if not clusterer.needs_number:
        return Clusters(clusterer.labels(points, None, rng))
    from sklearn.metrics import silhouette_score

    cloud = Cloud(np.asarray(points, dtype=np.float64))
    best, score = np.zeros(len(points), dtype=np.int64), -1.0
    scores: dict[int, float] = {}
    for clusters in range(2, min(most, cloud.distinct, len(points) - 1) + 1):
        labels = clusterer.labels(points, clusters, rng)
        found = int(labels.max()) + 1
        # Fewer than asked for (BIRCH) were tried already.
        if found < 2 or found in scores or found >= len(points):
            continue
        scores[found] = float(silhouette_score(cloud.distances, labels, metric="precomputed"))
        if scores[found] >= least and scores[found] > score:
            best, score = labels, scores[found]
    return Clusters(best, scores)


def clustered(
    points: Array,
    clusterer: Clusterer,
    rule: NumberRule,
    most: int,
    rng: np.random.Generator,
    least: float = LEAST_SILHOUETTE,
) -> Clusters:
    """The clusters of the points by one of the two rules: ``most`` of them, or the best number up to ``most``."""
    return fixed(points, clusterer, most, rng) if rule == "fixed" else silhouette(points, clusterer, most, rng, least)
