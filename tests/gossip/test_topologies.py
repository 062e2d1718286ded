"""Topologies: neighbours by hand, degrees, counts of graphs, time, and what is refused."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest
import scipy.stats

from shoal import registry
from shoal.errors import ConfigError
from shoal.gossip.graphs import Graph
from shoal.gossip.topologies import Rounds, Topology


def topology(kind: str, **settings: Any) -> Topology:
    made = registry.build("topology", registry.resolve("topology", {"kind": kind, **settings}))
    assert isinstance(made, Topology)
    return made


def lists(kind: str, clients: int, round: int = 1, seed: int = 0, **settings: Any) -> list[list[int]]:
    graph = topology(kind, **settings).graph(clients, seed, round)
    found = [graph.neighbours(c).tolist() for c in range(clients)]
    for client, near in enumerate(found):
        assert client not in near
        assert near == sorted(set(near))
        assert graph.degree(client) == len(near)
        assert all(client in found[j] for j in near)
    return found


def test_complete() -> None:
    assert lists("complete", 3) == [[1, 2], [0, 2], [0, 1]]
    assert lists("complete", 1) == [[]]


def test_ring() -> None:
    assert lists("ring", 5) == [[1, 4], [0, 2], [1, 3], [2, 4], [0, 3]]
    assert lists("ring", 6, reach=2)[0] == [1, 2, 4, 5]
    assert lists("ring", 1) == [[]]
    assert lists("ring", 2) == [[1], [0]]
    assert lists("ring", 4, reach=9) == lists("complete", 4)


def test_torus() -> None:
    found = lists("torus", 12)  # 3 rows of 4
    assert found[0] == [1, 3, 4, 8]
    assert found[6] == [2, 5, 7, 10]
    assert lists("torus", 6, rows=2)[0] == [1, 2, 3]  # two rows: above and below are the same
    assert lists("torus", 5) == lists("ring", 5)
    fitting = r"; got 6, which have rows: 3 or 6, or rows: null"
    with pytest.raises(ValueError, match=f"a torus of 4 rows needs a multiple of 4 clients{fitting}"):
        topology("torus", rows=4).graph(6, 0, 1)
    with pytest.raises(ValueError, match="got 6, which have rows: 6, or rows: null"):
        topology("torus", rows=7).graph(6, 0, 1)


@pytest.mark.parametrize(("clients", "degree"), [(50, 6), (11, 4), (10, 3), (6, 5), (5, 0), (3, 2)])
def test_every_client_of_a_regular_graph_has_its_degree(clients: int, degree: int) -> None:
    assert {len(near) for near in lists("random-regular", clients, degree=degree)} == {degree}


def test_regular_graphs_of_six_clients_come_in_their_numbers() -> None:
    """Of the 70 cubic graphs on six names 10 are K33 (no triangle) and 60 prisms (two triangles)."""
    counts: collections.Counter[bool] = collections.Counter()
    for seed in range(280):
        near = lists("random-regular", 6, seed=seed, degree=3)
        counts[any(c in near[b] for a in range(6) for b in near[a] for c in near[a])] += 1
    assert scipy.stats.binomtest(counts[False], 280, 10 / 70).pvalue > 0.001


def test_what_a_regular_graph_cannot_be() -> None:
    for clients, degree in ((5, 3), (4, 4)):
        with pytest.raises(ValueError, match=f"got degree {degree} for {clients} clients"):
            topology("random-regular", degree=degree).graph(clients, 0, 1)


def test_pairs_are_joined_with_their_probability() -> None:
    edges = sum(len(near) for near in lists("erdos-renyi", 60, probability=0.2)) // 2
    assert scipy.stats.binomtest(edges, 60 * 59 // 2, 0.2).pvalue > 0.001
    assert lists("erdos-renyi", 7, probability=1) == lists("complete", 7)
    assert lists("erdos-renyi", 4, probability=0) == [[], [], [], []]
    places = np.zeros((4, 4))
    for seed in range(300):
        for a, near in enumerate(lists("erdos-renyi", 4, seed=seed, probability=0.5)):
            places[a, near] += 1
    assert np.abs(places[~np.eye(4, dtype=bool)] - 150).max() < 45  # five standard deviations of 8.7


def test_a_listed_graph_and_an_isolated_client() -> None:
    assert lists("listed", 4, edges=[[0, 2], [2, 1], [1, 2]]) == [[2], [2], [0, 1], []]
    assert lists("listed", 3, adjacency=[[0, 1, 0], [1, 0, 0], [0, 0, 0]]) == [[1], [0], []]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "needs either edges or adjacency"),
        ({"edges": [[1, 1]]}, r"joins two different clients; got \[1, 1\]"),
        ({"adjacency": [[0, 1], [0, 0]]}, r"must be symmetric; \[0\]\[1\] and \[1\]\[0\] differ"),
        ({"adjacency": [[0, 1], [1]]}, "square matrix of 0 and 1; look at row 1"),
        ({"adjacency": [[1]]}, r"joins two different clients; got \[0, 0\]"),
    ],
)
def test_bad_lists_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        topology("listed", **settings)


def test_a_list_for_other_clients_is_refused() -> None:
    with pytest.raises(ValueError, match=r"one of the clients|two of the clients 0 to 2; got \[0, 3\]"):
        topology("listed", edges=[[0, 3]]).graph(3, 0, 1)
    with pytest.raises(ValueError, match="adjacency has 1 rows for 2 clients"):
        topology("listed", adjacency=[[0]]).graph(2, 0, 1)


@pytest.mark.parametrize(("kind", "more"), [("random-regular", {"degree": 4}), ("erdos-renyi", {"probability": 0.3})])
def test_a_graph_is_redrawn_when_its_rounds_are_over(kind: str, more: dict[str, Any]) -> None:
    found = [lists(kind, 12, round=r, redraw=3, **more) for r in range(1, 8)]
    assert found[0] == found[1] == found[2] != found[3] == found[5] != found[6]
    assert [lists(kind, 12, round=r, **more) for r in (1, 9)] == [lists(kind, 12, **more)] * 2
    assert lists(kind, 12, seed=1, **more) != lists(kind, 12, **more)


def test_a_sequence_goes_round() -> None:
    graphs = ["ring", {"kind": "listed", "edges": [[0, 1]]}]
    ring, pair = lists("ring", 4), [[1], [0], [], []]
    assert [lists("sequence", 4, round=r, graphs=graphs, rounds=[2, 1]) for r in range(1, 6)] == [
        ring, ring, pair, ring, ring,
    ]  # fmt: skip
    assert [lists("sequence", 4, round=r, graphs=graphs) for r in (1, 2, 3)] == [ring, pair, ring]
    with pytest.raises(ConfigError, match=r"got 3 for 2 graphs"):
        topology("sequence", graphs=graphs, rounds=[1, 1, 1])
    with pytest.raises(ConfigError, match=r"^topology\.graphs\[1\]\.kind: no topology is called 'star'"):
        topology("sequence", graphs=["ring", "star"])


def test_two_random_graphs_of_a_sequence_differ_and_all_are_tried_first() -> None:
    both = [{"kind": "random-regular", "degree": 3}] * 2
    assert lists("sequence", 10, round=1, graphs=both) != lists("sequence", 10, round=2, graphs=both)
    with pytest.raises(ValueError, match="degree 3 for 2 clients"):
        Rounds(topology("sequence", graphs=["complete", both[0]]), 2, 0)


def test_those_who_are_there() -> None:
    ring = topology("ring").graph(6, 0, 1)
    assert ring.among(0, np.array([2, 3, 5])).tolist() == [5]
    assert ring.among(0, np.arange(6)).tolist() == [1, 5]
    assert ring.among(0, np.array([], dtype=np.int64)).tolist() == []
    assert Graph(6).among(2, np.array([1, 2, 4])).tolist() == [1, 4]


def test_two_thousand_clients() -> None:
    graph = topology("random-regular", degree=6).graph(2_000, 0, 1)
    assert {graph.degree(c) for c in range(2_000)} == {6}
    assert topology("erdos-renyi", probability=0.002).graph(2_000, 0, 1).degree(1_999) < 30  # 4 expected


def test_a_graph_of_a_round_is_made_once_however_many_clients_ask() -> None:
    """Every client of PENS asks for its degree; a run made anew must not find the graphs of another one."""
    made: list[tuple[int, int]] = []

    class Own(Topology):
        fixed = False

        def graph(self, clients: int, seed: int, round: int) -> Graph:
            made.append((seed, round))
            return Graph(clients, np.array([[0, round]]))

    one, other = Rounds(Own(), 9, 0), Rounds(Own(), 9, 1)
    for round in (1, 2):
        assert [graph.at(round).degree(round) for graph in (one, other) for _ in range(5)] == [1] * 10
    assert sorted(made) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert one.at(3).degree(2) == 0
