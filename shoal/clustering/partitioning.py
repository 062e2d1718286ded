"""Clusterers that are told how many clusters to make: k-means, agglomerative, BIRCH and spectral clustering.

Each is scikit-learn's, with its settings; what differs is said in the class.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from .base import Cloud, Clusterer, Labels, seed_of

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def positive(name: str, value: float | None) -> float | None:
    """The value, checked: positive and finite, or ``None``; else ``ValueError``."""
    if value is not None and not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, or null for a rule from the data; got {value}")
    return value


class KMeans(Clusterer):
    """k-means (Lloyd), the best of ``n_init`` starts by k-means++."""

    def __init__(self, *, n_init: Annotated[int, Field(ge=1)] = 10) -> None:
        if n_init < 1:
            raise ValueError(f"n_init is a number of starts, at least one; got {n_init}")
        self.n_init = n_init

    def fit(self, cloud: Cloud, clusters: int, rng: np.random.Generator) -> Labels:
        """The labels of the start with the smallest sum of squares."""
        from sklearn.cluster import KMeans as Estimator

        seed = seed_of(rng)
        if clusters == cloud.distinct:
            return cloud.groups
        found = Estimator(clusters, n_init=self.n_init, random_state=seed, algorithm="lloyd").fit_predict(cloud.points)
        return np.asarray(found, dtype=np.int64)


class Agglomerative(Clusterer):
    """Agglomerative clustering: the two nearest clusters are joined until so many are left."""

    def __init__(self, *, linkage: Literal["ward", "complete", "average", "single"] = "ward") -> None:
        self.linkage = linkage

    def fit(self, cloud: Cloud, clusters: int, rng: np.random.Generator) -> Labels:
        """The labels of the tree, cut at ``clusters``."""
        from sklearn.cluster import AgglomerativeClustering

        found = AgglomerativeClustering(clusters, linkage=self.linkage).fit_predict(cloud.points)
        return np.asarray(found, dtype=np.int64)


class Birch(Clusterer):
    """BIRCH: points nearer than ``threshold`` become sub-clusters, which Ward's rule joins until so many are left.

    Without a ``threshold`` it is 0.1 times the median distance of two points, where scikit-learn has 0.5 whatever
    the unit is. Below every distance the result is Ward's on the points. Where there are fewer sub-clusters than
    clusters asked for, each is one.
    """

    def __init__(
        self, *, threshold: Positive | None = None, branching_factor: Annotated[int, Field(ge=2)] = 50
    ) -> None:
        self.threshold = positive("threshold", threshold)
        if branching_factor < 2:
            raise ValueError(f"branching_factor: a node of the tree needs at least 2 branches; got {branching_factor}")
        self.branching_factor = branching_factor

    def fit(self, cloud: Cloud, clusters: int, rng: np.random.Generator) -> Labels:
        """The labels of the sub-clusters, joined."""
        from sklearn.cluster import Birch as Estimator

        threshold = self.threshold or 0.1 * cloud.median
        tree = Estimator(threshold=threshold, branching_factor=self.branching_factor, n_clusters=None)
        tree.fit(cloud.points)
        fewer = min(clusters, len(tree.subcluster_centers_))
        if fewer == 1:
            return np.zeros(len(cloud.points), dtype=np.int64)
        tree.set_params(n_clusters=fewer).partial_fit()  # without points this is the last step alone
        return np.asarray(tree.predict(cloud.points), dtype=np.int64)


class Spectral(Clusterer):
    """Spectral clustering with the affinity ``exp(-gamma d ** 2)``.

    Without a ``gamma`` it is ``1 / (2 m ** 2)`` with the median distance m of two points. ``assign`` says how the
    embedded points become clusters: ``cluster_qr`` (without chance) or ``kmeans`` (the best of ten starts).
    """

    def __init__(
        self, *, gamma: Positive | None = None, assign: Literal["cluster_qr", "kmeans"] = "cluster_qr"
    ) -> None:
        self.gamma = positive("gamma", gamma)
        self.assign = assign

    def fit(self, cloud: Cloud, clusters: int, rng: np.random.Generator) -> Labels:
        """The labels in the space of the first eigenvectors of the graph."""
        from sklearn.cluster import SpectralClustering

        seed = seed_of(rng)
        if clusters == cloud.distinct:
            return cloud.groups
        gamma = self.gamma or 1 / (2 * cloud.median**2)
        # A far point would fall out of the graph where its affinity underflows.
        affinity = np.maximum(np.exp(-gamma * cloud.distances**2), np.finfo(np.float64).eps)
        found = SpectralClustering(
            clusters, affinity="precomputed", assign_labels=self.assign, random_state=seed, n_init=10
        ).fit_predict(affinity)
        return np.asarray(found, dtype=np.int64)
