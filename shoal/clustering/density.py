"""Clusterers that find the number of clusters themselves: DBSCAN, OPTICS and HDBSCAN, scikit-learn's.

A point that belongs to no cluster (noise) is one of its own.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from .base import SAME, Cloud, Clusterer, Labels
from .geometry import Array
from .partitioning import Positive, positive

Members = Annotated[int, Field(ge=2)]
Gap = Annotated[float, Field(gt=1, allow_inf_nan=False)]


def _members(name: str, value: int) -> int:
    if value < 2:
        raise ValueError(f"{name} counts the point itself and needs at least 2; got {value}")
    return value


def _gap(value: float) -> float:
    if not 1 < value < float("inf"):
        raise ValueError(f"gap is the ratio of two distances and needs 1 < gap, finite; got {value}")
    return value


def _apart(cloud: Cloud) -> Array:
    """The distances, points of one group a hair apart: a density that is infinite has no logarithm."""
    hair = SAME * cloud.distances.max()
    found: Array = np.maximum(cloud.distances, hair)
    np.fill_diagonal(found, 0.0)
    return found


def radius(cloud: Cloud, gap: float = 1.2) -> float:
    """The radius ``eps`` inside which points are neighbours, from the distances alone.

    The distances at which single linkage joins the different points, in rising order, are small inside clusters and
    large between them. ``eps`` is the middle of the two neighbouring ones with the largest ratio, among those that
    leave at most half as many clusters as points (rounded up): a single pair of close points is no structure. If that
    ratio is below ``gap``, ``eps`` is the largest distance, and all points are one cluster. Where every point has
    another one at its very place, those groups are the clusters, and ``eps`` is half the smallest distance.
    """
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    between = cloud.distances[np.ix_(cloud.first, cloud.first)]
    joins = np.sort(linkage(squareform(between, checks=False), "single")[:, 2])
    if np.bincount(cloud.groups).min() > 1:
        return float(joins[0] / 2)
    lowest = len(joins) - (len(joins) + 2) // 2
    ratios = joins[lowest + 1 :] / joins[lowest:-1]
    if not len(ratios) or ratios.max() < gap:
        return float(between.max())
    at = lowest + int(ratios.argmax())
    return float((joins[at] + joins[at + 1]) / 2)


class Dbscan(Clusterer):
    """DBSCAN: chains of points with ``min_samples`` points (itself among them) nearer than ``eps``.

    Without ``eps`` it is found from the distances, see `radius`, whose ``gap`` is a setting here.
    """

    needs_number = False

    def __init__(self, *, eps: Positive | None = None, min_samples: Members = 2, gap: Gap = 1.2) -> None:
        self.eps = positive("eps", eps)
        self.min_samples = _members("min_samples", min_samples)
        self.gap = _gap(gap)

    def fit(self, cloud: Cloud, clusters: int, rng: np.random.Generator) -> Labels:
        """The labels of the chains; -1 outside of them."""
        from sklearn.cluster import DBSCAN

        eps = self.eps or radius(cloud, self.gap)
        found = DBSCAN(eps=eps, min_samples=self.min_samples, metric="precomputed").fit_predict(cloud.distances)
        return np.asarray(found, dtype=np.int64)


class Optics(Clusterer):
    """OPTICS: points in the order of reachability, cut at a distance or at its steep slopes.

    ``cut: eps`` cuts at ``eps``, found as by `Dbscan` if it is not given; ``cut: xi`` where reachability changes by
    the share ``xi`` from one point to the next.
    """

    needs_number = False

    def __init__(
        self,
        *,
        cut: Literal["eps", "xi"] = "eps",
        eps: Positive | None = None,
        xi: Annotated[float, Field(gt=0, lt=1)] = 0.05,
        min_samples: Members = 2,
        gap: Gap = 1.2,
    ) -> None:
        self.cut = cut
        self.eps = positive("eps", eps)
        if not 0 < xi < 1:
            raise ValueError(f"xi is a share of the reachability and needs 0 < xi < 1; got {xi}")
        self.xi = xi
        self.min_samples = _members("min_samples", min_samples)
        self.gap = _gap(gap)

    def fit(self, cloud: Cloud, clusters: int, rng: np.random.Generator) -> Labels:
        """The labels of the valleys; -1 on the slopes."""
        from sklearn.cluster import OPTICS

        least = min(self.min_samples, len(cloud.points))
        # In units of the largest distance, because scikit-learn rounds reachability to 15 decimals.
        unit = float(cloud.distances.max())
        if self.cut == "xi":
            estimator = OPTICS(min_samples=least, metric="precomputed", cluster_method="xi", xi=self.xi)
        else:
            eps = (self.eps or radius(cloud, self.gap)) / unit
            estimator = OPTICS(min_samples=least, metric="precomputed", cluster_method="dbscan", eps=eps)
        return np.asarray(estimator.fit_predict(_apart(cloud) / unit), dtype=np.int64)


class Hdbscan(Clusterer):
    """HDBSCAN: the clusters that last longest while the radius shrinks.

    ``single`` allows that all points are one cluster (``allow_single_cluster``): then clusters that lie not much
    further apart than they are wide are one, without it clients that do not differ are cut up.
    """

    needs_number = False

    def __init__(self, *, min_cluster_size: Members = 2, min_samples: Members = 2, single: bool = False) -> None:
        self.min_cluster_size = _members("min_cluster_size", min_cluster_size)
        self.min_samples = _members("min_samples", min_samples)
        self.single = single

    def fit(self, cloud: Cloud, clusters: int, rng: np.random.Generator) -> Labels:
        """The labels of the clusters with the largest excess of mass; -1 outside of them."""
        from sklearn.cluster import HDBSCAN

        found = HDBSCAN(
            min_cluster_size=self.min_cluster_size,
            min_samples=min(self.min_samples, len(cloud.points)),
            metric="precomputed",
            allow_single_cluster=self.single,
            copy=True,
        ).fit_predict(_apart(cloud))
        return np.asarray(found, dtype=np.int64)
