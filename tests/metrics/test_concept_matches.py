"""Clusters against true concepts, and who updates whose model: worked out by hand."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from math import comb
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from measure_fakes import FakeMethod, bank, context, entry, seen

import shoal
from shoal.bank import Bank, Entry
from shoal.messages import Assignment
from shoal.metrics.concepts import Concepts, adjusted_rand_index
from shoal.metrics.concepts_models import models_of


class Telling(FakeMethod):
    """Tells these lines of its last exchange."""

    def __init__(self, *told: dict[str, Any], exchange: int = 0) -> None:
        self.told, self.at = told, exchange
        self.exchanges, self.learner = 1, SimpleNamespace(exchanges=exchange + 1)  # type: ignore[assignment]

    def records(self, before: Any, after: Any, updates: Any, when: Any) -> Any:
        return self.told if when.exchange == self.at else ()


def clusters(choices: str, labels: list[int], models: list[Any], fates: list[str], **more: Any) -> dict[str, Any]:
    """Client i trained the i-th of ``choices``."""
    return {"record": "clusters", "clients": list(range(len(labels))), "choices": list(choices), "labels": labels,
            "models": models, "fates": fates, **more}  # fmt: skip


def observed(method: FakeMethod, truths: dict[int, Any], round: int = 1, **look: Any) -> list[dict[str, Any]]:
    look = {"trained": {"a": tuple(truths)}, "after": bank(a=1.0, b=2.0), **look}
    return Concepts(context(method=method)).observe(seen(round, truths=truths, **look), {})[0]


def concepts(*found: Any) -> dict[int, dict[str, Any]]:
    return {client: {"concept": concept, "phase": 0} for client, concept in enumerate(found)}


# ---- a round ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("true", "labels", "expected"),
    [
        ([0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 1, 1], Fraction(4, 9)),
        ([0, 0, 1, 1], [0, 1, 0, 1], Fraction(-1, 2)),
        ([0, 0, 1, 1], [1, 1, 0, 0], Fraction(1)),
        ([5, 5, 5], [0, 0, 1], Fraction(0)),  # one concept, split
        (["x", "x", "y"], [0, 0, 0], Fraction(0)),
        ([3, 3], [0, 0], Fraction(1)),
    ],
)
def test_the_rand_index_is_that_of_counted_pairs(true: list[Any], labels: list[int], expected: Fraction) -> None:
    def pairs(groups: list[Any]) -> int:
        return sum(comb(size, 2) for size in Counter(groups).values())

    both, a, b = pairs(list(zip(true, labels, strict=True))), pairs(true), pairs(labels)
    chance = Fraction(a * b, comb(len(true), 2))
    most = Fraction(a + b, 2)
    assert most == chance or (both - chance) / (most - chance) == expected
    assert adjusted_rand_index(true, labels) == pytest.approx(float(expected), abs=1e-12)


def test_a_single_client_says_nothing_of_clusters() -> None:
    assert adjusted_rand_index([0], [0]) is None
    line, record = observed(Telling(clusters("a", [0], ["a"], ["accepted"])), concepts(4))
    assert line == {"metric": "ari", "value": None, "clients": 1, "clusters": 1, "concepts": 1}
    assert record["met"][0]["concept"] == 4


def test_a_round_has_its_index_and_who_trained_and_updated_what() -> None:
    told = clusters("aaabb", [0, 0, 1, 1, 1], ["a", None], ["merged", "rejected"])
    line, record = observed(Telling(told), concepts(7, 7, 7, 2, 2))
    # Pairs together: 1 and 1 + 0 of the truth's 3 + 1 and the clusters' 1 + 3; by chance 4 * 4 / 10.
    assert line.pop("value") == pytest.approx((2 - 1.6) / (4 - 1.6))
    assert line == {"metric": "ari", "clients": 5, "clusters": 2, "concepts": 2}
    assert record == {
        "record": "concepts", "label": "concept",
        "met": [
            {"concept": 2, "cluster": 1, "model": None, "fate": "rejected", "pairs": [["b", None, 2]]},
            {"concept": 7, "cluster": 0, "model": "a", "fate": "merged", "pairs": [["a", None, 1], ["a", "a", 2]]},
        ],
        "lost": [2],  # its cluster never updated b
        "duplicated": {},
    }  # fmt: skip


def test_of_clusters_with_equally_many_clients_the_first_stands_in() -> None:
    told = clusters("abab", [1, 0, 1, 0], ["a", "b"], ["accepted", "claimed"])
    _, record = observed(Telling(told), concepts(0, 0, 0, 0))
    (met,) = record["met"]
    assert (met["cluster"], met["model"], met["fate"]) == (0, "a", "accepted")
    assert met["pairs"] == [["a", "b", 2], ["b", "a", 2]]


def test_who_has_no_concept_or_is_not_told_of_does_not_count() -> None:
    told = clusters("aab", [0, 0, 1], ["a", "b"], ["accepted"] * 2)
    line, record = observed(Telling(told), concepts(0, -1, 1, 1))  # client 3 never answered
    assert (line["clients"], line["value"]) == (2, 1.0)
    assert [one["pairs"] for one in record["met"]] == [[["a", "a", 1]], [["b", "b", 1]]]
    assert observed(Telling(told), concepts(-1, -1, -1)) == []


@pytest.mark.parametrize("label", ["concept", "cluster", "domain", "task"])
def test_concepts_may_have_another_name_in_the_truth(label: str) -> None:
    told = clusters("ab", [0, 1], ["a", "b"], ["accepted"] * 2)
    truths = {0: {label: "photo", "phase": 1}, 1: {label: "sketch", "phase": 1}}
    line, record = observed(Telling(told), truths)
    assert (line["value"], record["label"]) == (1.0, label)
    assert [one["concept"] for one in record["met"]] == ["photo", "sketch"]
    assert observed(Telling(told), {0: {"phase": 1}, 1: {"phase": 1}}) == []


def test_models_that_went_are_told_and_the_last_exchange_counts() -> None:
    told = clusters("a", [0], ["a"], ["accepted"], joined={"b": "a"}, retired=[], born=["c"])
    _, record = observed(Telling(told, exchange=1), concepts(0))
    assert record["joined"] == {"b": "a"}
    assert "retired" not in record


def test_no_lines_where_nothing_was_trained_and_in_the_warm_up() -> None:
    method = Telling(clusters("a", [0], ["a"], ["accepted"]))
    assert observed(method, concepts(0), trained={}) == []
    assert observed(method, concepts(0), round=0) == []


@pytest.mark.parametrize(
    "broken", [{"labels": [0, 2]}, {"labels": [0]}, {"models": "ab"}, {"fates": ["accepted"]}, {"choices": None}]
)
def test_records_that_mean_something_else_are_passed_over(broken: dict[str, Any]) -> None:
    told = clusters("ab", [0, 1], ["a", "b"], ["accepted"] * 2) | broken
    assert observed(Telling(told), concepts(0, 1)) == []


def test_of_a_method_that_tells_nothing_the_choices_are_the_clusters() -> None:
    given = [Assignment(c, ("a", "b")) for c in range(4)]
    look: dict[str, Any] = {"assignments": given, "trained": {"b": (0, 1, 3), "a": (2,)}}
    line, record = observed(Telling(), concepts(5, 5, 6, 6), **look)
    # Together: 1 of the truth's 2 pairs, and of the clusters' 3; by chance 2 * 3 / 6.
    assert line["value"] == pytest.approx((1 - 1) / (2.5 - 1))
    assert [one["pairs"] for one in record["met"]] == [[["b", "b", 2]], [["a", "a", 1], ["b", "b", 1]]]
    assert {one["fate"] for one in record["met"]} == {"accepted"}


@pytest.mark.parametrize(
    "look",
    [
        {"assignments": [Assignment(c, ("a",)) for c in range(2)]},  # nothing to choose from
        {"assignments": [Assignment(c, ("a", "b"), (f"client/{c}",)) for c in range(2)]},  # peers
        {"assignments": [Assignment(c, ("a", "b")) for c in range(2)], "trained": {"a": (0, 1), "b": (1,)}},
        {
            "assignments": [Assignment(c, ("a", "b")) for c in range(2)],
            "after": Bank().put({"a": Entry(torch.ones(1), segments=("head",)), "b": entry(1.0)}),
        },
    ],
)
def test_methods_without_a_choice_of_whole_models_have_no_lines(look: dict[str, Any]) -> None:
    assert observed(Telling(), concepts(0, 1), **look) == []


def test_lost_concepts_and_spare_models_are_those_that_are_known_by_then() -> None:
    rounds: list[tuple[dict[str, Any], Any]] = [
        # Both concepts update a; b and c are not there yet.
        (clusters("aaa", [0, 0, 0], ["a"], ["accepted"]), ([7], {})),
        # Votes of 7: 2 for a, 2 for b, the later ones; it has one of its own.
        (clusters("aab", [0, 0, 1], ["a", "b"], ["accepted"] * 2), ([], {})),
        # c is updated by clients of 2, whose model is a by 8 votes to 2 and then 6.
        (clusters("ccb", [0, 0, 1], ["c", "b"], ["accepted"] * 2), ([], {"c": 2})),
        (clusters("ccb", [0, 0, 1], ["c", "b"], ["accepted"] * 2, joined={"c": "a"}), ([], {})),
    ]
    memory: Any = {}
    for round, (told, expected) in enumerate(rounds, start=1):
        measure = Concepts(context(method=Telling(told)))
        look: dict[str, Any] = {"trained": {"a": (0, 1, 2)}, "after": bank(a=1.0, b=2.0, c=3.0)}
        lines, memory = measure.observe(seen(round, truths=concepts(2, 2, 7), **look), memory)
        assert (lines[1]["lost"], lines[1]["duplicated"]) == expected
        memory = json.loads(json.dumps(memory))  # as in a checkpoint


# ---- a run ------------------------------------------------------------------------------------------------------


def met(concept: Any, model: str | None, *pairs: Any) -> dict[str, Any]:
    fate = "accepted" if model else "rejected"
    return {"concept": concept, "cluster": 0, "model": model, "fate": fate, "pairs": [list(p) for p in pairs]}


def run(*rounds: list[dict[str, Any]], **more: dict[int, Any]) -> list[dict[str, Any]]:
    """A record per round; ``joined={2: ...}`` is told in round 2."""
    return [
        {"round": r, "record": "concepts", "label": "concept", "met": some}
        | {name: by_round[r] for name, by_round in more.items() if r in by_round}
        for r, some in enumerate(rounds, start=1)
    ]


TWO = run(
    [met(0, "a", ("a", "a", 2), ("b", None, 1)), met(1, "b", ("a", "b", 2))],
    [met(0, None, ("a", None, 3)), met(1, "b", ("b", "b", 1), ("b", "a", 1))],
)


def test_matches_by_the_four_ways_of_counting() -> None:
    # Concept 0 votes 2 + 2 + 3 for a and 1 for b; concept 1 votes 2 + 1 for a, and 2 + 2 + 1 for b.
    models = models_of(TWO)
    assert models is not None
    assert models.of == {0: "a", 1: "b"}
    assert (models.owners, models.lost, models.duplicated) == ({"a": 0, "b": 1}, (), {})
    # In round 1 two clients of concept 0 are right; concept 1's chose a. In round 2 concept 0 chose a, but its cluster
    # was dropped; both of concept 1 chose b, whose stand-in cluster updated it, and one was in the cluster of a.
    assert models.accuracy() == (2 + 2, 2 + 3 + 2, 2 + 1, 2 + 3 + 1, 10)
    assert Concepts.summarise(TWO)["concept_matching_accuracy"] == {
        "strict": 0.4, "accepted": 0.7, "strict_own": 0.3, "accepted_own": 0.6, "second_half": 1.0,
    }  # fmt: skip


def test_a_concept_that_shares_the_model_of_another_one_is_lost() -> None:
    lines = run(*[[met(0, "a", ("a", "a", 3)), met(1, "a", ("a", "a", 1)), met(2, "b", ("b", "b", 1))]] * 2)
    summary = Concepts.summarise(lines)
    assert summary["own_model"] == {"concept=0": 1, "concept=1": 0, "concept=2": 1}
    counts = {name: summary[name] for name in ("concepts_met", "concepts_found", "concepts_lost", "models_duplicated")}
    assert counts == {"concepts_met": 3, "concepts_found": 2, "concepts_lost": 1, "models_duplicated": 0}
    # It counts as right all the same: that is why it is said.
    assert summary["concept_matching_accuracy"]["strict"] == 1.0


def test_one_model_for_all_belongs_to_the_first_of_equal_ones() -> None:
    models = models_of(run([met(k, "a", ("a", "a", 2)) for k in (2, 0, 1)]))
    assert models is not None
    assert (models.owners, models.lost) == ({"a": 0}, (1, 2))


def test_a_concept_that_never_updates_the_model_that_it_chooses_is_lost() -> None:
    models = models_of(run(*[[met(0, None, ("a", None, 2)), met(1, "b", ("b", "b", 2))]] * 3))
    assert models is not None
    assert (models.of[0], models.owners["a"], models.lost) == ("a", 0, (0,))
    assert models.accuracy(one for one in models.met if one.concept == 0) == (0, 6, 0, 6, 6)
    # Another concept's update of it is no help, one of its own is enough.
    other = [met(0, None, ("a", None, 2)), met(1, "b", ("b", "b", 2), ("b", "a", 1))]
    for more, lost in (([], (0,)), ([met(0, "a", ("a", "a", 1))], ())):
        found = models_of(run(other, other, more))
        assert found is not None
        assert (found.of, found.lost) == ({0: "a", 1: "b"}, lost)
        summary = Concepts.summarise(run(other, other, more))
        assert (summary["concepts_found"], summary["concepts_lost"]) == (2 - len(lost), len(lost))


def test_of_equally_many_votes_the_latest_counts_and_then_the_first_model() -> None:
    later = models_of(run([met(0, "b", ("b", "b", 1))], [met(0, "a", ("a", "a", 1))]))
    again = models_of(run([met(0, "a", ("a", "a", 1))], [met(0, "b", ("b", "b", 1))]))
    both = models_of(run([met(0, "k/10", ("k/10", "k/10", 1), ("k/2", "k/2", 1))]))
    assert [models.of[0] for models in (later, again, both) if models] == ["a", "b", "k/2"]


def test_models_that_were_updated_and_are_nobodys_are_duplicates() -> None:
    rounds = [
        [met(0, "c", ("a", "c", 2)), met(1, "b", ("b", "b", 3))],
        [met(0, "a", ("a", "a", 2)), met(1, "b", ("b", "b", 3))],
    ]
    models = models_of(run(*rounds))
    assert models is not None
    assert models.duplicated == {"c": 0}
    # Chosen alone is not updated: a model that nobody ever touched is no duplicate.
    chosen = models_of(run([met(0, None, ("c", None, 1), ("a", None, 2))]))
    assert chosen is not None
    assert chosen.duplicated == {}
    retired = models_of(run(*rounds, retired={2: ["c"]}))
    assert retired is not None
    assert retired.duplicated == {}


def test_a_concept_whose_model_was_retired_is_lost() -> None:
    rounds = [[met(0, "a", ("a", "a", 2)), met(1, "b", ("b", "b", 3))], [met(1, "b", ("b", "b", 3))]]
    models = models_of(run(*rounds, retired={2: ["a"]}))
    assert models is not None
    assert (models.of, models.lost, models.retired) == ({0: "a", 1: "b"}, (0,), ("a",))
    summary = Concepts.summarise(run(*rounds, retired={2: ["a"]}))
    assert (summary["concepts_lost"], summary["own_model"]) == (1, {"concept=0": 0, "concept=1": 1})


def test_a_concept_that_was_measured_and_never_met_is_told() -> None:
    rounds = run([met(0, "a", ("a", "a", 2)), met(1, "b", ("b", "b", 3))])
    measured = [{"round": 1, "metric": "accuracy", "value": 0.5, "concept": concept} for concept in (0, 1, 2)]
    assert Concepts.summarise([*rounds, *measured])["unmet"] == {"concept=2": 1}
    assert "unmet" not in Concepts.summarise([*rounds, *measured[:2]])


def test_a_joined_model_counts_as_the_one_that_it_went_into() -> None:
    lines = run(
        [met(0, "c", ("c", "c", 2)), met(1, "b", ("b", "b", 1))],
        [met(0, "d", ("d", "d", 2)), met(1, "b", ("b", "b", 1))],
        [met(0, "a", ("a", "a", 1)), met(1, "b", ("b", "b", 1))],
        joined={1: {"c": "d"}, 2: {"d": "a"}},
    )
    summary = Concepts.summarise(lines)
    assert summary["concept_matching_accuracy"]["strict"] == 1.0
    assert (summary["concepts_lost"], summary["models_duplicated"]) == (0, 0)
    assert Concepts.summarise([{**line, "joined": {}} for line in lines])["models_duplicated"] == 2


def test_the_summary_of_the_index_leaves_out_what_is_not_known() -> None:
    values = [0.5, 1.0, None, -0.1, 1.0]
    lines = [{"round": r, "metric": "ari", "value": value} for r, value in enumerate(values, start=1)]
    summary = Concepts.summarise([*lines, *TWO])
    assert summary["ari_mean"] == pytest.approx(2.4 / 4)
    assert {name: summary[name] for name in ("ari_min", "ari_perfect_rounds", "ari_rounds")} == {
        "ari_min": -0.1, "ari_perfect_rounds": 2, "ari_rounds": 4,
    }  # fmt: skip
    nothing = Concepts.summarise(TWO)
    assert (nothing["ari_mean"], nothing["ari_min"], nothing["ari_rounds"]) == (None, None, 0)


def test_nothing_without_concepts_and_broken_records_are_passed_over() -> None:
    assert Concepts.summarise([{"round": 1, "record": "round"}]) == {}
    wrong = [{}, met(0, "a"), met(None, "a", ("a", "a", 1)), met(0, "a", ("a", "a")), met(0, "a", (None, "a", 1))]
    broken: list[dict[str, Any]] = [
        {"round": 1, "record": "concepts"},
        {"record": "concepts", "met": []},
        {"round": 1, "record": "concepts", "met": wrong},
    ]
    assert models_of(broken) is None
    kept = models_of([*broken, *TWO])
    assert kept is not None
    assert kept.accuracy().all == 10


# ---- whole runs -------------------------------------------------------------------------------------------------

RUN: dict[str, Any] = {
    "rounds": 4,
    "data": {"kind": "digits", "limit": 500, "limit_test": 200},
    "stream": {"kind": "concepts", "concepts": {"by": "transform", "groups": ["identity", "invert"]}, "clients": 5,
               "window": 30},
    "model": {"kind": "mlp", "hidden": [8]},
    "local": {"lr": 0.3, "batch_size": 10, "epochs": 3},
    "execution": {"kind": "serial"},
    "evaluate": {"measures": ["accuracy", "costs", "concepts"]},
}  # fmt: skip


@pytest.mark.parametrize(
    "method",
    [
        {"kind": "concept-matching", "concepts": 2, "matching": {"kind": "paper"}},
        {"kind": "concept-matching", "concepts": "auto"},
        {"kind": "concept-matching", "concepts": 2, "client_matching": "oracle", "server_matching": "choices"},
        {"kind": "ifca", "concepts": 2},
        {"kind": "feddrift", "step": 1, "delta": 0.1, "most": 4},
    ],
)
def test_runs_of_real_methods_are_counted_from_what_they_tell(method: dict[str, Any], tmp_path: Path) -> None:
    result = shoal.run({**RUN, "method": method}, out=tmp_path / "run")
    lines = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    held = {x["round"]: x["held"]["concept"] for x in lines if x.get("record") == "round"}
    told = {x["round"]: x for x in lines if x.get("record") == "clusters"}
    assert sorted(told) == [1, 2, 3, 4]
    records = [x for x in lines if x.get("record") == "concepts"]
    for line in records:
        record = told[line["round"]]
        of = {client: int(k) for k, clients in held[line["round"]].items() for client in clients}
        counted = Counter(
            (of[client], choice, record["models"][label])
            for client, choice, label in zip(record["clients"], record["choices"], record["labels"], strict=True)
        )
        assert counted == {(m["concept"], *pair[:2]): pair[2] for m in line["met"] for pair in m["pairs"]}
        assert sum(counted.values()) == 5
    summary = result.summary
    assert summary["ari_rounds"] == 4
    assert summary["concepts_found"] + summary["concepts_lost"] == summary["concepts_met"] == 2
    assert len(records[-1]["lost"]) == summary["concepts_lost"]
    assert len(records[-1]["duplicated"]) == summary["models_duplicated"]
    if method.get("client_matching") == "oracle":
        assert summary["ari_mean"] == summary["concept_matching_accuracy"]["strict"] == 1.0
        assert summary["concepts_lost"] == summary["models_duplicated"] == 0
