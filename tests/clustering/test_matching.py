"""Matching without a past, and what all rules have in common."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from clouds import mixture

from shoal import registry
from shoal.bank import Bank, State
from shoal.checkpoint import pack, unpack
from shoal.clustering.distances import Distance
from shoal.clustering.geometry import coordinates
from shoal.clustering.matching import Matched, Matching, assigned
from shoal.clustering.number import clustered
from shoal.errors import ConfigError
from shoal.randomness import generator

RULES = [*registry.PARTS["matching"], {"kind": "paper", "order": "pairs"}, {"kind": "paper", "order": "ascending"}]


def made(given: Any) -> Matching:
    found = registry.build("matching", registry.resolve("matching", given))
    assert isinstance(found, Matching)
    return found


def on_a_line(given: Any, means: list[float], models: list[float], past: Any = None, sizes: Any = None) -> Matched:
    """Vectors of one number: distances can be read off."""
    rows = [torch.tensor(values)[:, None] for values in (means, models)]
    return made(given).match(rows[0], rows[1], sizes or [1] * len(means), past or {}, Distance())


def test_the_nearest_model_the_later_cluster_overwrites() -> None:
    found = on_a_line("nearest", [1.0, 9.0, -2.0], [0.0, 10.0, 30.0])
    assert found.models == (None, 1, 0)
    assert found.fates == ("overwritten", "claimed", "accepted")
    assert found.updates == {0: (2,), 1: (1,)}
    np.testing.assert_array_equal(found.distances, [[1, 9, 29], [9, 1, 21], [2, 12, 32]])
    again = on_a_line("nearest", [9.0], [0.0, 10.0, 30.0], found.numbers)
    assert again.fates == ("accepted",)
    assert again.numbers["matching/claimed"].tolist() == [True, True, False]


def test_the_nearest_model_with_merging() -> None:
    found = on_a_line("nearest-merged", [1.0, 9.0, -2.0], [0.0, 10.0, 30.0])
    assert found.models == (0, 1, 0)
    assert found.fates == ("claimed", "claimed", "merged")
    assert found.updates == {0: (0, 2), 1: (1,)}
    assert found.members(np.array([2, 1, 0, 0, 2])) == {0: (0, 2, 3, 4), 1: (1,)}
    assert found.counts == {"claimed": 2, "accepted": 0, "merged": 1, "overwritten": 0, "rejected": 0}


def test_one_to_one_has_the_smallest_sum_of_all_permutations() -> None:
    rng = np.random.default_rng(0)
    for clusters, models in ((3, 4), (4, 4), (5, 3)):
        means, fixed = rng.standard_normal(clusters) * 9, rng.standard_normal(models) * 9
        found = on_a_line("one-to-one", means.tolist(), fixed.tolist())
        d = np.abs(np.float32(means)[:, None] - np.float32(fixed))
        best = min(
            sum(d[c, m] for c, m in zip(cs, ms, strict=True))
            for cs in itertools.combinations(range(clusters), min(clusters, models))
            for ms in itertools.permutations(range(models), min(clusters, models))
        )
        given = [(c, m) for c, m in enumerate(found.models) if m is not None]
        assert len({m for _, m in given}) == len(given) == min(clusters, models)
        assert sum(d[c, m] for c, m in given) == pytest.approx(best, rel=1e-6)
        assert found.fates.count("rejected") == max(clusters - models, 0)


def test_an_assignment_uses_as_many_allowed_pairs_as_can_be() -> None:
    costs = np.array([[1.0, 100.0], [2.0, 50.0]])
    allowed = np.array([[True, True], [True, False]])
    assert assigned(costs, allowed) == [(0, 1), (1, 0)]  # one pair alone would cost 1
    assert assigned(costs, np.zeros((2, 2), dtype=bool)) == []
    assert assigned(np.zeros((2, 2))) == [(0, 0), (1, 1)]
    assert assigned(np.zeros((0, 2))) == []


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_what_holds_for_every_rule(rule: Any) -> None:
    rng = np.random.default_rng(1)
    past: Any = {}
    for round_ in range(12):
        clusters, models = int(rng.integers(0, 7)), 4
        means = torch.tensor(rng.standard_normal((clusters, 3)) * rng.choice([0, 1e-20, 1, 1e10]), dtype=torch.float32)
        bank = torch.tensor(rng.standard_normal((models, 3)), dtype=torch.float32) if round_ else torch.zeros(models, 3)
        copies = (means.clone(), bank.clone(), {name: value.clone() for name, value in past.items()})
        found = made(rule).match(means, bank, [1 + c for c in range(clusters)], past, Distance("euclidean"))
        assert torch.equal(means, copies[0])
        assert torch.equal(bank, copies[1])
        assert all(torch.equal(past[name], copies[2][name]) for name in past)
        for chosen in found.updates.values():  # several clusters of one model are merged, all but the first
            assert sum(found.fates[c] != "merged" for c in chosen) == 1
        for model, fate in zip(found.models, found.fates, strict=True):
            assert (model is None) == (fate in ("rejected", "overwritten"))
        assert sum(found.counts.values()) == clusters
        assert found.distances.shape == (clusters, models)
        assert all(torch.isfinite(value).all() and value.shape == (models,) for value in found.numbers.values())
        claimed = found.numbers["matching/claimed"]
        assert set(found.updates) <= set(torch.nonzero(claimed).flatten().tolist())
        past = found.numbers


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_numbers_can_be_stored_with_those_of_others(rule: Any) -> None:
    found = on_a_line(rule, [1.0, 9.0], [0.0, 10.0, 11.0])
    bank = Bank().put({}, **found.numbers, rounds=3)
    tensors: dict[str, torch.Tensor] = {}
    state = State(1, bank)
    kept = unpack(pack(dict(state.bank.memory), tensors), tensors)
    for past in (found.numbers, bank.memory, kept):
        again = on_a_line(rule, [1.5, 9.5], [1.0, 9.0, 11.0], past)
        assert again.fates == ("accepted", "accepted")


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_numbering_of_clusters_is_no_matter_where_distances_differ(rule: Any) -> None:
    rng = np.random.default_rng(2)
    models = torch.tensor(rng.standard_normal((4, 5)), dtype=torch.float32) * 3
    means = models[[0, 1, 3]] + torch.tensor(rng.standard_normal((3, 5)), dtype=torch.float32) * 0.1
    for order in itertools.permutations(range(3)):
        found = made(rule).match(means[list(order)], models, [1, 2, 3], {}, Distance())
        assert found.models == tuple([0, 1, 3][c] for c in order)


def test_sizes_correct_distances() -> None:
    past = on_a_line({"kind": "paper", "size_corrected": True}, [6.0], [0.0], sizes=[4])
    assert past.numbers["matching/record"].tolist() == [12.0]  # 6 sqrt(4)
    assert past.distances.tolist() == [[6.0]]
    for given, mean, fate in ((True, 11.0, "accepted"), (True, 13.0, "rejected"), (False, 13.0, "rejected")):
        rule = {"kind": "paper", "size_corrected": given}
        assert on_a_line(rule, [mean], [0.0], past.numbers, sizes=[1]).fates == (fate,)
    # a small cluster may lie further away than the large one before it
    plain = on_a_line("paper", [6.0], [0.0], sizes=[4])
    assert on_a_line("paper", [11.0], [0.0], plain.numbers, sizes=[1]).fates == ("rejected",)


def test_clients_that_are_all_the_same_update_one_model_with_their_mean() -> None:
    vectors = torch.full((5, 8), 0.7)
    found = clustered(coordinates(vectors), registry.build("clusterer", {"kind": "kmeans"}), "fixed", 3, generator(0))
    assert found.number == 1
    means = torch.stack([vectors[torch.tensor(found.labels) == c].mean(0) for c in range(found.number)])
    assert torch.equal(means[0], vectors[0])
    for rule in RULES:
        matched = made(rule).match(means, torch.zeros(3, 8), found.sizes, {}, Distance())
        assert matched.members(found.labels) == {0: (0, 1, 2, 3, 4)}


def test_a_round_from_vectors_to_models() -> None:
    vectors, truth = mixture(0, [5, 3, 4])
    centres = torch.stack([vectors[torch.tensor(truth == t)].mean(0) for t in range(3)])
    found = clustered(
        coordinates(vectors), registry.build("clusterer", {"kind": "birch"}), "silhouette", 5, generator(0)
    )
    means = torch.stack([vectors[torch.tensor(found.labels) == c].mean(0) for c in range(found.number)])
    models = [centres[2] + 0.1, centres[0] - 0.1, torch.zeros(300), centres[1]]
    for rule in RULES:
        members = made(rule).match(means, models, found.sizes, {}, Distance()).members(found.labels)
        assert {model: {int(truth[c]) for c in clients} for model, clients in members.items()} == {
            0: {2},
            1: {0},
            3: {1},
        }


def test_models_that_start_alike_and_how_each_rule_starts() -> None:
    for rule in RULES:
        found = on_a_line(rule, [3.0, 2.0], [0.0, 0.0, 0.0])
        alone = made(rule).start == "identical"
        assert alone == (rule not in ("nearest", "nearest-merged"))
        if rule != "paper":  # in whose order of labels the second cluster beats the record of the first
            assert (len(found.updates) == 2) == alone
    assert on_a_line("paper", [3.0, 2.0], [0.0, 0.0, 0.0]).updates == {0: (1,)}
    assert on_a_line("paper", [2.0, 3.0], [0.0, 0.0, 0.0]).updates == {0: (0,), 1: (1,)}
    assert made({"kind": "gated", "start": "independent"}).start == "independent"
    assert [made(rule).number for rule in ("gated", "paper", "nearest")] == ["silhouette", "fixed", "fixed"]


def test_what_cannot_be_matched_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one model"):
        on_a_line("paper", [1.0], [])
    with pytest.raises(ValueError, match=r"2 clusters, but sizes \[1\]"):
        on_a_line("paper", [1.0, 2.0], [0.0], sizes=[1])
    with pytest.raises(ValueError, match=r"1 clusters, but sizes \[0\]"):
        on_a_line("paper", [1.0], [0.0], sizes=[0])
    past = on_a_line("gated", [1.0], [0.0, 1.0]).numbers
    with pytest.raises(ValueError, match=r"matching/claimed has shape \(2,\), but there are 3 models"):
        on_a_line("gated", [1.0], [0.0, 1.0, 2.0], past)
    for given in (
        {"kind": "paper", "slack": 0.9},
        {"kind": "paper", "leak": 0.5},
        {"kind": "gated", "gate": 0},
        {"kind": "gated", "decay": 1.0},
        {"kind": "gated", "widen": 0.9},
        {"kind": "paper", "start": "same"},
    ):
        name = [*given][1]
        with pytest.raises(ConfigError, match=f"matching.{name}: "):
            made(given)
        if name != "start":
            with pytest.raises(ValueError, match=name):
                registry.find("matching", str(given["kind"]))(**{name: given[name]})
