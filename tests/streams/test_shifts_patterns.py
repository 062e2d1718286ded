"""Who is in which cluster when: by hand, and by the words that describe FedDrift's patterns."""

import numpy as np
import pytest

from shoal.errors import ConfigError
from shoal.streams.shifts_patterns import FEDDRIFT, deal_clusters, shared_out


def dealt(pattern, steps=4, clients=6, clusters=3, weights=None, seed=0):
    return deal_clusters(pattern, steps, clients, clusters, weights, seed)


@pytest.mark.parametrize(
    ("weights", "clients", "clusters", "sizes"),
    [
        (None, 50, 2, [25, 25]),
        (None, 50, 4, [13, 13, 12, 12]),
        (None, 3, 3, [1, 1, 1]),
        ([50, 50], 20, 2, [10, 10]),
        ([70, 20, 5, 5], 100, 4, [70, 20, 5, 5]),
        ([0.7, 0.2, 0.05, 0.05], 20, 4, [14, 4, 1, 1]),
        # 35, 10, 2.5 and 2.5: the first of the equal remainders.
        ([70, 20, 5, 5], 50, 4, [35, 10, 3, 2]),
        # 2.33 and 4.67.
        ([1, 2], 7, 2, [2, 5]),
        ([1e-300, 1e-300], 5, 2, [3, 2]),
    ],
)
def test_sizes_by_hand(weights, clients, clusters, sizes):
    assert shared_out(weights, clients, clusters).tolist() == sizes


def test_rotate_and_keep_by_hand():
    assert dealt("rotate").tolist() == [[0, 0, 1, 1, 2, 2], [1, 1, 2, 2, 0, 0], [2, 2, 0, 0, 1, 1], [0, 0, 1, 1, 2, 2]]
    assert dealt("keep", weights=[1, 1, 4]).tolist() == [[0, 1, 2, 2, 2, 2]] * 4


def test_random_keeps_the_sizes_and_moves_the_expected_number_of_clients():
    steps, clients = 41, 100
    for clusters, moves in ((2, 50 / 99), (4, 75 / 99)):
        found = dealt("random", steps, clients, clusters)
        assert found[0].tolist() == sorted(found[0])
        for line in found:
            assert np.bincount(line).tolist() == [clients // clusters] * clusters
        # About 4,000 dependent draws; two independent permutations differ at a client with 1 - 1/clusters.
        changed = (found[1:] != found[:-1]).mean()
        assert abs(changed - (1 - 1 / clusters)) < 0.03
        assert abs(changed - moves) < 0.03
    assert not np.array_equal(dealt("random", seed=1), dealt("random"))
    assert np.array_equal(dealt("random", steps=2), dealt("random", steps=4)[:2])


@pytest.mark.parametrize("name", sorted(FEDDRIFT))
def test_every_pattern_has_ten_clients_and_eleven_steps(name):
    assert [len(word) for word in FEDDRIFT[name].split()] == [11] * 10
    found = dealt(name, 11, 20, 4)
    assert np.array_equal(found[:, :10], found[:, 10:])
    assert ["".join(map(str, line)) for line in found.T[:10]] == FEDDRIFT[name].split()
    assert np.array_equal(dealt(name, 3, 10, 4), found[:3, :10])


def test_what_is_said_of_the_patterns():
    tables = {name: dealt(name, 11, 10, 4) for name in FEDDRIFT}
    # Back and forth between two concepts: 0, then 1, then perhaps 0 again.
    for line in tables["A"].T:
        assert line[0] == 0
        assert set(line) == {0, 1}
        assert 1 <= (np.diff(line) != 0).sum() <= 2
    # One way, at a step of the client's own.
    steps = np.arange(11)[:, None]
    at = np.array([6, 3, 4, 4, 8, 4, 6, 3, 5, 8])
    assert np.array_equal(tables["Y"], (steps >= at) * 1)
    assert np.array_equal(tables["Z"], (steps >= at) * 2)
    assert np.argwhere(tables["W"].any(0)).ravel().tolist() == [1, 7]
    assert tables["W"][:, 1].tolist() == [0, 0, *[1] * 9]
    assert np.argwhere(tables["X"].any(0)).ravel().tolist() == [1]
    assert tables["X"][:, 1].tolist() == [0, *[1] * 10]
    # B is C but for four clients, E is C with two concepts exchanged.
    assert np.argwhere((tables["B"] != tables["C"]).any(0)).ravel().tolist() == [3, 4, 5, 8]
    assert np.array_equal(tables["E"], np.array([0, 1, 3, 2])[tables["C"]])
    for name in "BCEF":
        assert (tables[name][0] == 0).all()
        assert set(tables[name].ravel()) == {0, 1, 2, 3}
    assert set(tables["D"][0]) == {0, 1, 2, 3}


def test_random_concepts_every_second_step():
    found = dealt("R", 21, 400, 4)
    assert np.array_equal(found[0:20:2], found[1:20:2])
    changed = (found[2::2] != found[:-2:2]).mean()
    assert abs(changed - 0.75) < 0.03
    # 8,400 draws of each of four: the standard deviation of a share is 0.007 (draws count twice).
    assert np.abs(np.bincount(found.ravel()) / found.size - 0.25).max() < 0.03
    assert dealt("R", 1, 5, 2).shape == (1, 5)


def test_a_listed_pattern_is_taken_as_it_is():
    rows = [[0, 1, 2], [0, 0, 0], [2, 2, 1]]
    assert dealt(rows, 3, 3, 3).tolist() == rows
    assert dealt([[1]], 1, 1, 2).tolist() == [[1]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pattern": "random", "clients": 2}, "3 clusters, but only 2 clients"),
        ({"pattern": "random", "weights": [1, 2]}, "one positive number for each of 3 clusters"),
        ({"pattern": "random", "weights": [1, 0, 2]}, "one positive number for each of 3 clusters"),
        ({"pattern": "random", "weights": [1, float("nan"), 2]}, "one positive number"),
        ({"pattern": "keep", "weights": [80, 15, 1]}, "of 6 clients cluster 2 would have none"),
        ({"pattern": "A", "clients": 10, "weights": [1, 1, 1]}, "leave weights out"),
        ({"pattern": "A"}, "made for 10 clients and repeated for multiples of them; got 6"),
        ({"pattern": "A", "clients": 10, "steps": 12}, "A has 11 time steps"),
        ({"pattern": "B", "clients": 10}, "B needs 4 clusters; got 3"),
        ({"pattern": [[0] * 6] * 3}, "4 lists of 6 numbers; got 3 lists"),
        ({"pattern": [[0] * 6] * 3 + [[0] * 5]}, r"4 lists of 6 numbers; got 4 lists of \[5, 6\]"),
        ({"pattern": [[0] * 6] * 3 + [[0] * 5 + [3]]}, "clusters 0 to 2; got 3"),
        ({"pattern": [[0] * 6] * 3 + [[0] * 5 + [-1]]}, "clusters 0 to 2; got -1"),
    ],
)
def test_what_cannot_be_dealt(changes, message):
    with pytest.raises(ConfigError, match=message):
        dealt(**changes)
