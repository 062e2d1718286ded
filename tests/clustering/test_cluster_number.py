"""The number of clusters: the silhouette by hand and as scikit-learn's, and when there is but one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from clouds import by_appearance, mixture
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import silhouette_score

from shoal import registry
from shoal.clustering.geometry import coordinates
from shoal.clustering.number import clustered, fixed, silhouette
from shoal.randomness import generator


def made(given: Any) -> Any:
    return registry.build("clusterer", registry.resolve("clusterer", given))


def chosen(points: Any, most: int, given: Any = "kmeans", **more: float) -> Any:
    return silhouette(np.asarray(points, dtype=np.float64), made(given), most, generator(0), **more)


def test_a_silhouette_by_hand() -> None:
    # {0, 1}, {4}: of 0: a = 1, b = 4, 3/4; of 1: b = 3, 2/3; of the point alone 0
    found = chosen([[0.0], [1.0], [4.0]], most=9)
    assert found.silhouettes == {2: pytest.approx((3 / 4 + 2 / 3) / 3)}
    assert found.labels.tolist() == [0, 0, 1]
    assert (found.number, found.sizes) == (2, (2, 1))


@pytest.mark.parametrize("kind", ["kmeans", "agglomerative", "birch", "spectral"])
@pytest.mark.parametrize("sizes", [[6, 6], [3, 9, 5], [4, 4, 4, 4], [8, 2, 5, 3, 2]])
def test_as_many_as_there_are(kind: str, sizes: list[int]) -> None:
    vectors, truth = mixture(len(sizes), sizes, apart=1.5)
    found = chosen(coordinates(vectors), 6, kind)
    assert found.labels.tolist() == by_appearance(truth)
    assert found.number == len(sizes)


def test_the_scores_are_scikit_learns_on_the_vectors() -> None:
    vectors, _ = mixture(0, [5, 5, 5], apart=0.8)
    raw = vectors.double().numpy()
    found = chosen(coordinates(vectors), 5, "agglomerative")
    for clusters in range(2, 6):
        expected = silhouette_score(raw, AgglomerativeClustering(clusters).fit_predict(raw))
        assert found.silhouettes[clusters] == pytest.approx(expected)


def test_clients_without_structure_are_one_cluster() -> None:
    points = coordinates(mixture(1, [14])[0])
    found = chosen(points, 5)
    assert found.number == 1
    assert 0 < max(found.silhouettes.values()) < 0.1
    # the bound is a setting, and reaching it is enough
    best = max(found.silhouettes, key=found.silhouettes.get)
    assert chosen(points, 5, least=found.silhouettes[best]).number == best
    assert chosen(points, 5, least=0.0).number == best


def test_limits() -> None:
    three = coordinates(mixture(2, [1, 1, 1])[0])
    two = three[:2]
    assert chosen(two, 5).labels.tolist() == [0, 0]
    assert chosen(coordinates(torch.ones(5, 4)), 5).labels.tolist() == [0] * 5
    assert chosen(three[:1], 5).labels.tolist() == [0]
    assert chosen(three, 1).labels.tolist() == [0, 0, 0]
    # twins: three clusters of six points, each of which has another at its place
    twins = chosen(three[[0, 1, 2, 2, 1, 0]], 6)
    assert twins.labels.tolist() == [0, 1, 2, 2, 1, 0]
    assert twins.silhouettes[3] == 1.0
    assert set(twins.silhouettes) == {2, 3}
    with pytest.raises(ValueError, match="at least one; got 0"):
        chosen(three, 0)


def test_a_fixed_number_and_clusterers_that_find_their_own() -> None:
    vectors, truth = mixture(3, [4, 4, 4])
    points = coordinates(vectors)
    rng = generator(0)
    assert fixed(points, made("kmeans"), 5, rng).number == 5
    assert fixed(points, made("kmeans"), 50, rng).number == 12
    assert clustered(points, made("kmeans"), "fixed", 2, rng).number == 2
    assert clustered(points, made("kmeans"), "silhouette", 5, rng).number == 3
    assert clustered(points, made("kmeans"), "silhouette", 5, rng, least=1.0).number == 1
    for rule in ("fixed", "silhouette"):
        found = clustered(points, made("dbscan"), rule, 2, rng)
        assert found.labels.tolist() == by_appearance(truth)
        assert found.silhouettes == {}
