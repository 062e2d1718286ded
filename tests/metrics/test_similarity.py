"""Matrices of similarities: which rounds, which order of rows, means over blocks; against dense numpy."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from measure_fakes import EMPTY, FakeStream, context, seen

from shoal.bank import Bank, Entry
from shoal.errors import ConfigError
from shoal.metrics.base import Context
from shoal.metrics.similarity import SIDE, Similarity, blocks, default_rounds, matrix, published
from shoal.randomness import generator
from shoal.setup import resolve_config
from shoal.streams.base import Holding


class Clusters(FakeStream):
    def __init__(self, clusters: list[int], boundaries: tuple[int, ...] = ()) -> None:
        super().__init__([], boundaries=boundaries)
        self.clusters, self.clients = clusters, len(clusters)

    def holding(self, client: int, round: int) -> Holding:
        return Holding(EMPTY, EMPTY, EMPTY, truth={"cluster": self.clusters[client]})


def bank(views: dict[int, dict[int, float]], ending: str = "") -> Bank:
    entries = {}
    for client, known in views.items():
        table = torch.tensor([list(known), list(known.values())], dtype=torch.float32).reshape(2, -1)
        entries[f"client/{client}{ending}"] = Entry(torch.zeros(3), extra={"gossip/similarities": table})
    return Bank().put(entries)


def about(stream: FakeStream, rounds: int = 10, wanted: list[int] | None = None) -> Context:
    made = context(stream, rounds=rounds)
    return Context(made.world, stream, made.method, made.evaluate.model_copy(update={"similarity_rounds": wanted}))


def test_rows_are_sorted_by_cluster_and_unknown_pairs_are_null() -> None:
    views = {0: {1: 0.5, 2: 2.0}, 1: {0: 0.25}, 2: {0: 3.0, 1: 0.125, 3: 1.0}, 3: {}}
    stream = Clusters([1, 0, 1, 0])
    (line,), _ = Similarity(about(stream)).observe(seen(10, bank(views)), {})
    assert line["clients"] == [1, 3, 0, 2]
    assert line["clusters"] == [0, 0, 1, 1]
    assert line["values"] == [
        [None, None, 0.25, None],
        [None, None, None, None],
        [0.5, None, None, 2.0],
        [0.125, 1.0, 3.0, None],
    ]
    json.dumps(line, allow_nan=False)


def test_four_digits_no_view_of_itself_and_no_infinity() -> None:
    views = {0: {0: 9.0, 1: 1.23456789, 2: float("inf")}, 1: {0: 123456.0}, 2: {1: 0.0}}
    (line,), _ = Similarity(about(Clusters([0, 0, 0]))).observe(seen(10, bank(views)), {})
    assert line["values"] == [[None, 1.235, None], [123500.0, None, None], [None, 0.0, None]]


def test_many_clients_are_averaged_in_blocks_of_one_cluster() -> None:
    count = 450
    rng = generator(0, "test similarities")
    clusters = [int(c) for c in rng.integers(0, 3, count)]
    dense = rng.random((count, count))
    dense[rng.random((count, count)) < 0.9] = np.nan
    np.fill_diagonal(dense, np.nan)
    i, j = np.nonzero(np.isfinite(dense))
    rows, whose = blocks(clusters)
    assert SIDE - 3 <= len(rows) <= SIDE
    assert sorted(c for row in rows for c in row) == list(range(count))
    assert all({clusters[c] for c in row} == {cluster} for row, cluster in zip(rows, whose, strict=True))
    assert {len(row) for row in rows} <= {2, 3}
    found = matrix((i, j, dense[i, j]), rows, count)
    for a, b in [(0, 0), (3, 150), (190, 7), (100, 101)]:
        cells = [dense[x, y] for x in rows[a] for y in rows[b] if np.isfinite(dense[x, y])]
        assert found[a][b] == (pytest.approx(np.mean(cells), rel=1e-3) if cells else None)


def test_exactly_so_many_clients_have_rows_of_their_own() -> None:
    rows, _ = blocks([c % 2 for c in range(SIDE)])
    assert [len(row) for row in rows] == [1] * SIDE
    rows, _ = blocks([0] * (SIDE + 1))
    assert sum(len(row) == 2 for row in rows) == 1


def test_the_record_of_blocks_has_their_sizes() -> None:
    views = {c: {(c + 1) % 401: 1.0} for c in range(401)}
    (line,), _ = Similarity(about(Clusters([c % 2 for c in range(401)]))).observe(seen(10, bank(views)), {})
    assert "clients" not in line
    assert sum(line["sizes"]) == 401
    assert len(line["values"]) == len(line["sizes"]) == len(line["clusters"]) <= SIDE


@pytest.mark.parametrize(
    ("boundaries", "rounds", "expected"),
    [
        ((), 30, [30]),
        ((10,), 30, [10, 11, 15, 30]),
        ((10, 20, 30), 40, [10, 11, 15, 20, 21, 25, 30, 31, 35, 40]),
        ((2, 3), 4, [2, 3, 4]),
        (tuple(range(200, 2000, 200)), 2000, [200, 201, 205, 1000, 1001, 1005, 1800, 1801, 1805, 2000]),
    ],
)
def test_default_rounds(boundaries: tuple[int, ...], rounds: int, expected: list[int]) -> None:
    assert default_rounds(boundaries, rounds) == expected


def test_listed_rounds_replace_the_default_ones() -> None:
    stream, views = Clusters([0, 0], (4,)), {0: {1: 1.0}, 1: {0: 2.0}}

    def rounds(wanted: list[int] | None) -> list[int]:
        measure = Similarity(about(stream, wanted=wanted))
        return [r for r in range(11) if measure.observe(seen(r, bank(views)), {})[0]]

    assert rounds(None) == [4, 5, 9, 10]
    assert rounds([2, 3]) == [2, 3]
    assert rounds([]) == []


def test_entries_per_task_are_averaged_and_others_have_none() -> None:
    views = {0: {1: 1.0}, 1: {0: 4.0}}
    entries = {**bank(views, "/task/0").entries, **bank({0: {1: 2.0}}, "/task/1").entries}
    entries["global"] = Entry(torch.zeros(1), extra={"gossip/similarities": torch.ones(2, 1)})
    (line,), _ = Similarity(about(Clusters([0, 0]))).observe(seen(10, Bank().put(entries)), {})
    assert line["values"] == [[None, 1.5], [4.0, None]]


def test_methods_without_similarities_have_no_record() -> None:
    plain = Bank().put({"client/0": Entry(torch.zeros(1)), "global": Entry(torch.zeros(1))})
    assert [len(part) for part in published(plain)] == [0, 0, 0]
    assert Similarity(about(Clusters([0, 0]))).observe(seen(10, plain), {}) == ([], {})


def test_rounds_are_checked() -> None:
    base: dict[str, Any] = {"stream": {"kind": "static", "clients": 2}}
    with pytest.raises(ConfigError, match=r"evaluate\.similarity_rounds"):
        resolve_config({**base, "evaluate": {"similarity_rounds": [0]}})
    assert resolve_config({**base, "evaluate": {"similarity_rounds": [3]}}).evaluate.similarity_rounds == [3]
