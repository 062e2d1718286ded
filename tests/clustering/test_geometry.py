"""Exact coordinates against scipy's distances of the vectors themselves, and the distances against scipy's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from clouds import mixture
from scipy.spatial.distance import cdist, pdist
from sklearn.decomposition import PCA

from shoal.clustering import geometry
from shoal.clustering.distances import Distance
from shoal.clustering.geometry import coordinates, gram, project
from shoal.randomness import generator


def test_distances_of_the_coordinates_are_those_of_the_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(geometry, "BLOCK", 64)  # several blocks, the last one not full
    vectors, _ = mixture(0, [5, 1, 4])
    points = coordinates(vectors)
    assert points.shape == (10, 9)
    assert points.dtype == np.float64
    np.testing.assert_allclose(pdist(points), pdist(vectors.double().numpy()), rtol=1e-10)
    np.testing.assert_allclose(points.mean(axis=0), 0, atol=1e-9)
    np.testing.assert_array_equal(coordinates(list(vectors)), points)


def test_a_gram_matrix_by_hand() -> None:
    # mean (2, 1): centred (-2, -1), (0, 2), (2, -1)
    found = gram(torch.tensor([[0.0, 0.0], [2.0, 3.0], [4.0, 0.0]]))
    np.testing.assert_allclose(found, [[5, -2, -3], [-2, 4, -2], [-3, -2, 5]], atol=1e-14)


def test_coordinates_are_the_principal_components() -> None:
    vectors, _ = mixture(1, [6, 6], dimensions=5)
    expected = PCA(n_components=5).fit_transform(vectors.double().numpy())
    points = coordinates(vectors)
    assert points.shape == (12, 5)
    np.testing.assert_allclose(np.abs(points), np.abs(expected), rtol=1e-6, atol=1e-8)
    np.testing.assert_array_equal(project(points, "pca", 2, generator(0)), points[:, :2])


def test_the_rank_is_found_and_nothing_is_lost_far_from_zero() -> None:
    line = torch.arange(4.0)[:, None] * torch.tensor([[3.0, 4.0, 0.0]])
    assert coordinates(line).shape == (4, 1)
    np.testing.assert_allclose(pdist(coordinates(line)), [5, 10, 15, 5, 10, 5], rtol=1e-12)
    # These are exact in float32; a mean of squares would have lost the differences.
    far = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]]) + 2.0**19
    np.testing.assert_allclose(pdist(coordinates(far)), [2, 2, 8**0.5], rtol=1e-12)


@pytest.mark.parametrize("vectors", [torch.zeros(3, 4), torch.full((5, 7), 0.1), torch.ones(1, 4), torch.zeros(3, 0)])
def test_equal_vectors_have_no_coordinates(vectors: torch.Tensor) -> None:
    assert coordinates(vectors).shape == (len(vectors), 0)


@pytest.mark.parametrize(("roundings", "rank"), [(1, 0), (60, 5)])
def test_vectors_that_are_equal_up_to_rounding_are_one(roundings: int, rank: int) -> None:
    one = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    shift = torch.randn(6, 1000, generator=torch.Generator().manual_seed(2)).sign()
    # Every number a half or more of its spacing away from the first model's, in one direction or the other.
    vectors = one * (1 + roundings * 2**-23 * shift)
    assert len({tuple(vector.tolist()) for vector in vectors}) == 6
    assert coordinates(vectors).shape == (6, rank)
    assert coordinates(vectors.double()).shape == (6, 5)  # not the rounding of this type


def test_vectors_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(ValueError, match=r"must be finite.*look at rows \[1\]"):
        coordinates(torch.tensor([[0.0, 1.0], [float("nan"), 1.0]]))
    with pytest.raises(ValueError, match=r"look at rows \[0, 2\]"):
        coordinates(torch.tensor([[float("inf"), 1.0], [0.0, 1.0], [0.0, -float("inf")]]))
    with pytest.raises(ValueError, match="flat and of one size"):
        coordinates([torch.zeros(2), torch.zeros(3)])
    with pytest.raises(ValueError, match="got 2 and 3 numbers"):
        Distance()(torch.zeros(1, 2), torch.zeros(1, 3))
    with pytest.raises(ValueError, match="finite"):
        Distance()(torch.tensor([[float("inf")]]), torch.zeros(1, 1))
    with pytest.raises(ValueError, match=r"1 <= p, finite; got 0\.5"):
        Distance("minkowski", p=0.5)


def test_a_random_projection_keeps_squared_distances_in_the_mean() -> None:
    points = coordinates(mixture(2, [10, 10])[0])
    ratios = [
        (pdist(project(points, "random", 8, generator(seed))) ** 2 / pdist(points) ** 2).mean() for seed in range(200)
    ]
    assert np.mean(ratios) == pytest.approx(1, abs=0.05)
    assert project(points, "random", 19, generator(0)) is points
    same = [project(points, "random", 3, generator(5)) for _ in range(2)]
    np.testing.assert_array_equal(*same)
    with pytest.raises(ValueError, match="at least one dimension; got 0"):
        project(points, "pca", 0, generator(0))


@pytest.mark.parametrize(
    ("distance", "metric"),
    [
        (Distance("manhattan"), {"metric": "cityblock"}),
        (Distance("euclidean"), {"metric": "euclidean"}),
        (Distance("chebyshev"), {"metric": "chebyshev"}),
        (Distance("minkowski", p=3), {"metric": "minkowski", "p": 3}),
        (Distance("minkowski", p=1.5), {"metric": "minkowski", "p": 1.5}),
        (Distance("cosine"), {"metric": "cosine"}),
    ],
)
def test_distances_are_scipys(distance: Distance, metric: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.clustering.distances.BLOCK", 7)
    a, b = torch.randn(4, 20, generator=torch.Generator().manual_seed(0)), -torch.rand(3, 20)
    b[1] = -2 * a[0]
    expected = cdist(a.double().numpy(), b.double().numpy(), **metric)
    np.testing.assert_allclose(distance(a, b), expected, rtol=1e-9)
    np.testing.assert_allclose(distance(list(b), list(a)), expected.T, rtol=1e-9)
    assert (np.diag(distance(a, a)) == 0).all()
    assert distance(a[:0], b).shape == (0, 3)


def test_a_vector_of_zeros_has_a_cosine_distance() -> None:
    found = Distance("cosine")(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([[0.0, 0.0], [-1.0, 0.0]]))
    np.testing.assert_allclose(found, [[0, 1], [1, 2]])
