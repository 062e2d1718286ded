"""Clusterers: scikit-learn's labels on the vectors themselves, noise, equal points, and every order of clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from clouds import by_appearance, mixture
from sklearn.cluster import DBSCAN, AgglomerativeClustering
from sklearn.cluster import Birch as SkBirch
from sklearn.cluster import KMeans as SkKMeans

from shoal import registry
from shoal.clustering.base import Cloud, Clusterer, renumbered
from shoal.clustering.density import radius
from shoal.clustering.geometry import coordinates
from shoal.clustering.own import clusterer_of
from shoal.errors import ConfigError, RunError
from shoal.randomness import generator

NUMBERED = ["kmeans", "agglomerative", "birch", "spectral"]
ALL: list[Any] = [
    *registry.PARTS["clusterer"],
    *({"kind": "agglomerative", "linkage": linkage} for linkage in ("complete", "average", "single")),
    {"kind": "optics", "cut": "xi"},
    {"kind": "spectral", "assign": "kmeans"},
    {"kind": "hdbscan", "single": True},
]


def made(given: Any) -> Clusterer:
    return clusterer_of(registry.build("clusterer", registry.resolve("clusterer", given)))


def labels(given: Any, points: Any, clusters: int | None = 3, seed: int = 0) -> list[int]:
    return made(given).labels(np.asarray(points, dtype=np.float64), clusters, generator(seed)).tolist()


@pytest.mark.parametrize("kind", ALL, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_labels_from_coordinates_are_those_from_the_vectors(kind: Any, seed: int) -> None:
    # From well apart to overlapping: not only the easy labels agree.
    vectors, _ = mixture(seed, [7, 4, 6], apart=[3.0, 0.6, 0.2][seed])
    points = coordinates(vectors)
    for clusters in (3, 5):
        assert labels(kind, points, clusters, seed) == labels(kind, vectors.double().numpy(), clusters, seed)


@pytest.mark.parametrize("kind", ALL, ids=str)
def test_groups_that_are_apart_are_found_whatever_their_sizes(kind: Any) -> None:
    for seed, sizes in enumerate([[5, 5, 5], [12, 2, 4], [3, 9, 6]]):
        vectors, truth = mixture(seed, sizes)
        assert labels(kind, coordinates(vectors)) == by_appearance(truth)


def test_scikit_learn_on_the_vectors_gives_the_same_labels() -> None:
    for seed in range(2):
        vectors, _ = mixture(seed, [6, 5, 8, 3], apart=0.6)
        raw, points = vectors.double().numpy(), coordinates(vectors)
        for linkage in ("ward", "average", "complete", "single"):
            expected = AgglomerativeClustering(4, linkage=linkage).fit_predict(raw)
            assert labels({"kind": "agglomerative", "linkage": linkage}, points, 4) == by_appearance(expected)
        expected = SkKMeans(4, n_init=20, random_state=0).fit_predict(raw)
        assert labels({"kind": "kmeans", "n_init": 20}, points, 4) == by_appearance(expected)
        expected = DBSCAN(eps=27.0, min_samples=3).fit_predict(raw)
        noise = expected < 0
        expected[noise] = 100 + np.arange(noise.sum())
        assert labels({"kind": "dbscan", "eps": 27.0, "min_samples": 3}, points) == by_appearance(expected)
        ward = AgglomerativeClustering(4).fit_predict(raw)
        assert labels({"kind": "birch", "threshold": 1e-3}, points, 4) == by_appearance(ward)
        expected = SkBirch(threshold=1e-3, n_clusters=4).fit_predict(raw - raw.mean(axis=0))
        assert labels({"kind": "birch", "threshold": 1e-3}, points, 4) == by_appearance(expected)


@pytest.mark.parametrize("kind", ALL, ids=str)
@pytest.mark.parametrize("apart", [3.0, 0.3])
def test_the_order_of_clients_changes_only_the_numbering(kind: Any, apart: float) -> None:
    vectors, _ = mixture(7, [5, 4, 6], apart=apart)
    expected = labels(kind, coordinates(vectors), 4)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(vectors))
        found = labels(kind, coordinates(vectors[order]), 4)
        assert found == by_appearance(np.asarray(expected)[order])


@pytest.mark.parametrize("kind", ALL, ids=str)
def test_points_that_are_the_same_are_one_cluster(kind: Any) -> None:
    assert labels(kind, coordinates(torch.full((6, 9), 0.3)), 4) == [0] * 6
    assert labels(kind, coordinates(torch.zeros(2, 3)), 2) == [0, 0]
    assert labels(kind, np.ones((1, 1)), 3) == [0]
    # twins stay together, and more clusters than different points are as many as there are
    vectors = mixture(3, [1, 1, 1])[0][[0, 1, 1, 2, 0, 2]]
    assert labels(kind, coordinates(vectors), 5) == [0, 1, 1, 2, 0, 2]


@pytest.mark.parametrize("kind", NUMBERED)
def test_more_clusters_than_clients(kind: str) -> None:
    points = coordinates(mixture(4, [1, 1, 1])[0])
    assert labels(kind, points, 7) == [0, 1, 2]
    assert labels(kind, points, 1) == [0, 0, 0]
    for clusters in (None, 0):
        with pytest.raises(ValueError, match=f"needs a number of clusters, at least one; got {clusters}"):
            labels(kind, points, clusters)


@pytest.mark.parametrize("kind", ["dbscan", "optics", "hdbscan"])
def test_noise_is_a_cluster_of_its_own_and_the_number_is_ignored(kind: str) -> None:
    vectors, truth = mixture(5, [6, 6])
    vectors[3] += 9 * torch.randn(300, generator=torch.Generator().manual_seed(0))
    vectors[8] += 9 * torch.randn(300, generator=torch.Generator().manual_seed(1))
    truth[3], truth[8] = 5, 6
    for clusters in (None, 1, 9):
        assert labels(kind, coordinates(vectors), clusters) == by_appearance(truth)


@pytest.mark.parametrize("kind", ["dbscan", "optics"])
def test_clients_that_do_not_differ_are_one_cluster(kind: str) -> None:
    assert labels(kind, coordinates(mixture(6, [12])[0]), None) == [0] * 12


def test_the_radius_by_hand() -> None:
    # joined at 1, 1, 1.5, 6, 20: ratios 1.5, 4, 3.33 where at most three clusters of six points are left
    line = np.array([[0.0], [1.0], [2.0], [3.5], [9.5], [29.5]])
    assert radius(Cloud(line)) == pytest.approx((1.5 + 6) / 2)
    assert labels("dbscan", line) == [0, 0, 0, 0, 1, 2]
    # one close pair among points without structure: 0.1, 1, 1, 1
    assert radius(Cloud(np.array([[0.0], [0.1], [1.1], [2.1], [3.1]]))) == pytest.approx(3.1)
    # twins everywhere: half of 3
    assert radius(Cloud(np.array([[0.0], [0.0], [3.0], [3.0], [7.0], [7.0]]))) == pytest.approx(1.5)
    # 1, 1.15: below the smallest gap
    assert radius(Cloud(np.array([[0.0], [1.0], [2.15]]))) == pytest.approx(2.15)
    assert radius(Cloud(np.array([[0.0], [1.0], [2.15]])), gap=1.1) == pytest.approx(1.075)


def test_the_threshold_of_birch_follows_the_scale() -> None:
    vectors, truth = mixture(8, [5, 5, 5])
    for scale in (1e-4, 1.0, 1e4):
        assert labels("birch", coordinates(vectors * scale)) == by_appearance(truth)
    # above every distance all points are one sub-cluster
    assert labels({"kind": "birch", "threshold": 1e6}, coordinates(vectors)) == [0] * 15
    # two near twins are one sub-cluster: three are found where four were asked for
    line = np.array([[0.0], [0.01], [5.0], [10.0]])
    assert labels("birch", line, 4) == [0, 0, 1, 2]


def test_a_clusterer_of_ones_own() -> None:
    vectors, truth = mixture(9, [4, 6, 5])
    points = coordinates(vectors)
    for given in (
        "sklearn.mixture:GaussianMixture",
        "sklearn.cluster:AgglomerativeClustering",
        {"kind": "sklearn.cluster:MeanShift", "bandwidth": 40.0},
        "test_clusterers:Halves",
    ):
        clusters = 3 if given != "test_clusterers:Halves" else 2
        found = labels(given, points[:, :2], clusters)
        expected = by_appearance(truth) if clusters == 3 else by_appearance(points[:, 0] > 0)
        assert found == expected, given
    assert not made("sklearn.mixture:GaussianMixture").estimator.__dict__.get("means_")
    with pytest.raises(ValueError, match=r"has fit_predict\(points\) as scikit-learn's; dict has not"):
        clusterer_of({})
    for given, told in (
        ("Wrong", r"method.clusterer: Wrong.fit_predict gave float64 of shape \(15, 2\) for 15 points"),
        ("Words", r"gave <U1 of shape \(15,\) for 15 points; it must give a whole number for each"),
        ("Nothing", r"gave float64 of shape \(15,\)"),
        ("Raising", r"method.clusterer: Raising.fit_predict failed on 15 points: ZeroDivisionError: by zero"),
    ):
        with pytest.raises(RunError, match=told):
            labels(f"test_clusterers:{given}", points[:, :2])


class Halves:
    """Left and right; remembers how it was called, which must not reach the object itself."""

    n_clusters = 7
    called = 0

    def fit_predict(self, points: np.ndarray) -> np.ndarray:
        self.called += 1
        assert self.called == 1
        assert self.n_clusters == 2
        return (points[:, 0] > 0).astype(int)


class Words:
    def fit_predict(self, points: np.ndarray) -> np.ndarray:
        return np.array(["a"] * len(points))


class Nothing:
    def fit_predict(self, points: np.ndarray) -> np.ndarray:
        return np.full(len(points), np.nan)


class Raising:
    def fit_predict(self, points: np.ndarray) -> np.ndarray:
        raise ZeroDivisionError("by zero")


class Wrong:
    """Gives back the points."""

    def fit_predict(self, points: np.ndarray) -> np.ndarray:
        return points


def test_labels_are_numbered_by_first_appearance() -> None:
    assert renumbered([5, -1, 2, 5, -1, 2]).tolist() == [0, 1, 2, 0, 3, 2]
    assert renumbered([-1, -1]).tolist() == [0, 1]
    assert renumbered([]).tolist() == []


def test_chance_comes_from_the_given_generator_alone() -> None:
    points = coordinates(mixture(10, [20], apart=0.0)[0])
    kmeans = {"kind": "kmeans", "n_init": 1}
    np.random.seed(1)  # noqa: NPY002 (to show that it is not read)
    first = labels(kmeans, points, 5)
    np.random.seed(2)  # noqa: NPY002
    assert labels(kmeans, points, 5) == first
    assert any(labels(kmeans, points, 5, seed) != first for seed in range(1, 5))


def test_bad_points_and_settings_are_refused() -> None:
    with pytest.raises(ValueError, match=r"finite numbers with at least one row; got shape \(0, 2\)"):
        labels("kmeans", np.zeros((0, 2)))
    with pytest.raises(ValueError, match="finite numbers"):
        labels("kmeans", [[np.nan], [1.0]])
    for given in (
        {"kind": "kmeans", "n_init": 0},
        {"kind": "agglomerative", "linkage": "median"},
        {"kind": "birch", "threshold": 0},
        {"kind": "birch", "branching_factor": 1},
        {"kind": "dbscan", "eps": -1},
        {"kind": "dbscan", "min_samples": 1},
        {"kind": "optics", "xi": 1},
        {"kind": "optics", "gap": 1},
        {"kind": "hdbscan", "min_cluster_size": 1},
        {"kind": "spectral", "gamma": float("inf")},
    ):
        with pytest.raises(ConfigError, match=f"clusterer.{[*given][1]}: "):
            made(given)
        settings = {name: value for name, value in given.items() if name not in ("kind", "linkage")}
        if settings:
            with pytest.raises(ValueError, match=next(iter(settings))):
                registry.find("clusterer", str(given["kind"]))(**settings)


def test_rounds_in_which_concepts_are_missing_or_rare() -> None:
    # rounds of 20 clients that each draw one of five concepts, given the number that is there
    for kind in ("kmeans", "agglomerative", "birch"):
        for seed in range(4):
            sizes = np.bincount(np.random.default_rng(seed).integers(0, 5, 20), minlength=5)
            vectors, truth = mixture(seed, sizes.tolist(), apart=1.5)
            assert labels(kind, coordinates(vectors), int((sizes > 0).sum())) == by_appearance(truth), (kind, seed)
