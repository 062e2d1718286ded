"""Whole runs of peers whose labels shift: the same bytes by any way, and numbers worked out again from the lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.loading import merged
from shoal.setup import assemble, resolve_config
from shoal.streams.base import Stream

RUN: dict[str, Any] = {
    "name": "shifting",
    "rounds": 7,
    "data": {"kind": "digits", "limit": 400, "limit_test": 200},
    "stream": {"kind": "shifts", "clusters": [[0, 1, 8, 9], [3, 4, 5, 7]], "clients": 6, "steps": 2,
               "rounds_per_step": 3, "rows": 20, "validation_rows": 5},
    "model": {"kind": "mlp", "hidden": [8]},
    "method": {"kind": "dac", "contacts": 2, "probes": True},
    "local": {"lr": 0.1, "batch_size": 8},
    "execution": {"kind": "serial"},
}  # fmt: skip


def lines_of(result: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return shoal.run(RUN, out=tmp_path_factory.mktemp("shifting") / "run")


@pytest.fixture(scope="module")
def stream() -> Stream:
    return assemble(resolve_config(RUN)).stream


def test_drops_are_those_of_the_accuracies_of_the_run(played: Any, stream: Stream) -> None:
    lines = lines_of(played)
    accuracy = {(x["client"], x["round"]): x["value"] for x in lines if x.get("metric") == "accuracy"}
    clusters = {(c, r): stream.holding(c, r).truth["cluster"] for c in range(6) for r in (3, 4)}
    changed = [c for c in range(6) if clusters[c, 3] != clusters[c, 4]]
    assert 0 < len(changed) < 6
    records = {x["group"]: x for x in lines if x.get("record") == "shift"}
    for group, members in (("changed", changed), ("stayed", [c for c in range(6) if c not in changed])):
        drops = [accuracy[c, 4] - accuracy[c, 3] for c in members]
        assert records[group]["clients"] == len(members)
        assert records[group]["drops"]["after"] == pytest.approx(sum(drops) / len(drops))
    assert played.summary["drop_after_shift"]["changed"]["after"] == records["changed"]["drops"]["after"]
    before = {(x["client"], x["round"]): x["value"] for x in lines if x.get("label") == "before" and "client" in x}
    drops = [before[c, 4] - accuracy[c, 3] for c in changed]
    assert records["changed"]["drops"]["before"] == pytest.approx(sum(drops) / len(drops))


def test_probes_agree_with_the_accuracy_after_the_round(played: Any) -> None:
    lines = lines_of(played)
    after = {(x["client"], x["round"]): x["value"] for x in lines if x.get("metric") == "accuracy"}
    found = {(x["client"], x["round"]): x["value"] for x in lines if x.get("label") == "trained" and "client" in x}
    assert found == after
    means = {x["round"]: x["value"] for x in lines if x.get("metric") == "mean_probe" and x["label"] == "trained"}
    assert means == {
        x["round"]: x["value"] for x in lines if x.get("metric") == "mean_accuracy" and x["weighting"] == "targets"
    }


def test_contacts_and_messages(played: Any) -> None:
    lines = lines_of(played)
    purity = [x for x in lines if x.get("metric") == "contact_purity"]
    # Two contacts of six clients; two of the five others are in the own cluster.
    assert {x["contacts"] for x in purity if x["drawn"] == "similar"} == {12}
    assert [x["value"] for x in purity if x["drawn"] == "chance"] == pytest.approx([2 / 5] * 7)
    assert [x["value"] for x in lines if x.get("metric") == "messages"] == [12] * 7
    assert played.summary["messages_per_round"] == 2
    assert [x["round"] for x in lines if x.get("record") == "similarity"] == [3, 4, 7]


def test_workers_give_the_same_bytes(played: Any, tmp_path: Path) -> None:
    other = shoal.run(merged(RUN, {"execution": {"kind": "workers", "workers": 2}}), out=tmp_path / "run")
    assert (other.folder / "metrics.jsonl").read_bytes() == (played.folder / "metrics.jsonl").read_bytes()


def test_measuring_rarely_still_has_the_boundary(tmp_path: Path) -> None:
    change = {"rounds": 30, "stream": {"rounds_per_step": 12}, "evaluate": {"every": 100}, "local": {"steps": 1}}
    lines = lines_of(shoal.run(merged(RUN, change), out=tmp_path / "run"))
    rounds = sorted({x["round"] for x in lines if x.get("metric") in ("probe", "accuracy")})
    assert rounds == [12, 13, 14, 15, 16, 17, 26, 27, 28, 29, 30]
    assert {x["boundary"] for x in lines if x.get("record") == "shift"} == {12}
    assert {x["round"] for x in lines if x.get("metric") == "contact_purity"} == set(range(1, 31))
