"""The section on concepts and models: sentences, tables and charts from hand-made lines."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from report_folders import write_run, write_sweep

from shoal.metrics.concepts import Concepts
from shoal.metrics.concepts_models import models_of
from shoal.report.comparison import compare_runs, rows
from shoal.report.concepts_distances import limits_of, points_of
from shoal.report.concepts_words import lost_words, sentences
from shoal.report.load import Run, read
from shoal.report.numbers import describe, written
from shoal.report.page import page

NAMES = ["cars", "cats", "digits"]


def met(round: int, *found: tuple[int, str | None, str, str, int], ari: float | None = 1.0) -> list[dict[str, Any]]:
    """Of each concept: what its cluster updated, its fate, the model that its clients trained, and how many."""
    listed = [
        {"concept": k, "cluster": place, "model": model, "fate": fate, "pairs": [[choice, model, clients]]}
        for place, (k, model, fate, choice, clients) in enumerate(found)
    ]
    rand = {"round": round, "metric": "ari", "value": ari, "clients": 4, "clusters": len(found), "concepts": len(found)}
    return [rand, {"round": round, "record": "concepts", "label": "concept", "met": listed}]


def clusters(round: int, labels: list[int], models: list[Any], fates: list[str], **more: Any) -> dict[str, Any]:
    return {"round": round, "record": "clusters", "clients": list(range(len(labels))), "choices": [], "labels": labels,
            "models": models, "fates": fates, **more}  # fmt: skip


LINES = [
    *met(1, (0, "m/0", "claimed", "m/0", 2), (1, "m/1", "claimed", "m/0", 1), (2, "m/0", "merged", "m/0", 1), ari=0.5),
    *met(2, (0, "m/0", "accepted", "m/0", 2), (1, None, "rejected", "m/1", 1), (2, "m/0", "merged", "m/0", 1)),
    *met(3, (0, "m/0", "accepted", "m/0", 3), (2, None, "overwritten", "m/0", 1)),
    clusters(1, [0, 0, 1, 2], ["m/0", "m/1", "m/0"], ["claimed", "claimed", "merged"], entries=["m/0", "m/1"],
             distances=[[4.0, 5.0], [6.0, 2.0], [3.0, 9.0]], kept={"usual": [4.0, 2.0]}),
    clusters(2, [0, 0, 1, 2], ["m/0", None, "m/0"], ["accepted", "rejected", "merged"], entries=["m/0", "m/1"],
             distances=[[5.0, 8.0], [9.0, 7.0], [0.0, 9.0]], kept={"usual": [4.3, 2.4]}),
    clusters(3, [0, 0, 0, 1], ["m/0", None], ["accepted", "overwritten"], entries=["m/0", "m/1"],
             distances=[[1.0, 8.0], [None, 7.0]], kept={"usual": [3.0, 2.4]}),
]  # fmt: skip
CONFIG = {"method": {"kind": "concept-matching", "matching": {"kind": "gated", "gate": 1.5}}}
SUMMARY = {**Concepts.summarise(LINES), "acc_weighted": 0.8}
SETTING: dict[str, Any] = {"rounds": 3, "boundaries": (), "tasks": (), "more": LINES, "summary": SUMMARY,
                           "config": CONFIG}  # fmt: skip
ALL_OWN = {**SUMMARY, "concepts_lost": 0, "concepts_found": 3,
           "own_model": dict.fromkeys(SUMMARY["own_model"], 1)}  # fmt: skip


def one(folder: Path, **more: Any) -> Path:
    """A run whose concepts have names."""
    return named(write_run(folder, **{**SETTING, **more}))


def named(folder: Path) -> Path:
    path = folder / "metrics.jsonl"
    first, *lines = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps({**json.loads(first), "concept_names": NAMES}), *lines]) + "\n")
    return folder


def section(text: str) -> str:
    return text[text.index('<section id="concepts"') :].partition("</section>")[0]


def charts(text: str) -> dict[str, dict[str, Any]]:
    titles = re.findall(r"<figcaption>(.*?)</figcaption>", section(text))
    found = section(text).split('<script type="application/json">')[1:]
    return {html.unescape(t): json.loads(part.partition("</script>")[0]) for t, part in zip(titles, found, strict=True)}


def cells(text: str, caption: str) -> list[list[str]]:
    (found,) = [t for t in re.findall(r"<table>.*?</table>", section(text), re.S) if f"<span>{caption}" in t]
    plain = html.unescape(found).replace("\N{MINUS SIGN}", "-")
    every = [re.findall(r"<t[hd].*?</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", plain, re.S)]
    return [[re.sub("<[^>]+>", "", cell) for cell in row] for row in every]


# ---- sentences --------------------------------------------------------------------------------------------------


def test_the_page_of_a_run_opens_with_the_concepts_without_a_model(tmp_path: Path) -> None:
    text = page(read(one(tmp_path / "run")))
    lead = text[text.index('<p class="lead">') :].partition("</p>")[0]
    assert "One of three concepts has no model of its own (digits)" in lead
    said = section(text).replace("\N{NO-BREAK SPACE}", " ")
    # Of 12 matches: 2 of cars (cats chose cars' model) and 1 of digits; 2, 0 and 1; 3 and 0. Two of these were dropped.
    assert "75.0 % of the matches are right" in said
    assert "cluster updates it; 91.7 %, if a cluster that was dropped is no error." in said
    assert "The clusters are the true concepts in 2 of 3 rounds (adjusted Rand index 0.833 on average, 0.500" in said
    assert "digits has no model of its own: its clients train and update m/0 most often, which is that of cars." in said


def test_a_concept_whose_clusters_are_all_dropped(tmp_path: Path) -> None:
    found = [(0, "m/0", "accepted", "m/0", 2), (1, None, "rejected", "m/1", 1)]
    lines = [*met(1, *found), *met(2, *found)]  # type: ignore[arg-type]
    text = page(read(one(tmp_path / "run", more=lines, summary=Concepts.summarise(lines))))
    assert "One of two concepts has no model of its own (cats)" in text
    said = section(text).replace("\N{NO-BREAK SPACE}", " ")
    assert "cats has no model of its own: its clients train m/1 most often, and none of its clusters ever" in said
    assert cells(text, "Concept by concept")[2][1] == "none (m/1 is never updated by it)"


def test_models_that_were_remembered(tmp_path: Path) -> None:
    spared = [{**line, "remembered": line["round"] - 1} if line.get("record") == "clusters" else line for line in LINES]
    words = "In 3 of 12 clients' rounds the model of the task was remembered"  # 0, 1 and 2 of four clients
    said = html.unescape(section(page(read(one(tmp_path / "a", more=spared)))))
    assert words in said.replace("\N{NO-BREAK SPACE}", " ")
    assert "remembered" not in section(page(read(one(tmp_path / "b"))))


def test_all_have_their_own_and_nothing_is_dropped(tmp_path: Path) -> None:
    matched = dict.fromkeys(SUMMARY["concept_matching_accuracy"], 1.0)
    perfect = {
        **ALL_OWN,
        "ari_mean": 1.0,
        "ari_min": 1.0,
        "ari_perfect_rounds": 3,
        "concept_matching_accuracy": matched,
    }
    comparison = compare_runs(read(one(tmp_path / "run", summary=perfect)))
    assert sentences(comparison) == [
        "The clusters are the true concepts in every round (adjusted Rand index 1.00 on average).",
        "100.0 % of the matches are right: the client trains the model of its concept, and updates it.",
        "Every concept has a model of its own.",
    ]
    assert lost_words(comparison) == ""


def test_several_variants_and_seeds_in_words(tmp_path: Path) -> None:
    variants: dict[str, Any] = {"cm": {"summary": ALL_OWN}, "ifca": {}, "fedavg": {"summary": {"acc": 0.5}, "more": []}}
    comparison = compare_runs(read(write_sweep(tmp_path / "x", variants, [0, 1], **SETTING)))
    assert sentences(comparison) == [
        "Of all matches of a client with a model, a dropped cluster being no error: 91.7 ± 0.0 % are right with cm "
        "(every concept has its own model); 91.7 ± 0.0 % are right with ifca (2 of 6 concepts without a model of their "
        "own over all seeds)."
    ]
    assert lost_words(comparison) == "concepts without a model of their own: 1 of 3 on average with ifca"
    assert "oncepts without a model of their own: 1 of 3 on average with ifca" in comparison["findings"][1]
    (table,) = [row for row in rows(comparison, full=True) if row["variant"] == "ifca"]
    assert (table["ARI"], table["concepts lost"]) == ("0.833 ± 0", "1 ± 0")


def test_a_concept_that_nobody_met_is_said_first(tmp_path: Path) -> None:
    summary = {**ALL_OWN, "unmet": {"concept=1": 1}}
    comparison = compare_runs(read(one(tmp_path / "x", summary=summary)))
    assert lost_words(comparison) == "cats was measured, but met by no client whose answer counted"


def test_seeds_of_one_variant(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "x", {"cm": {}}, [0, 1, 2], **SETTING)
    (folder / "cm" / "2" / "summary.json").write_text(json.dumps({**ALL_OWN, "method": "concept-matching", "acc": 0.5}))
    said = "in two of three seeds there are concepts without a model of their own"
    assert lost_words(compare_runs(read(folder))) == f"{said} (concept 2)"
    for seed in range(3):
        named(folder / "cm" / str(seed))
    assert lost_words(compare_runs(read(folder))) == f"{said} (digits)"


# ---- tables -----------------------------------------------------------------------------------------------------


def test_the_runs_beside_each_other(tmp_path: Path) -> None:
    variants: dict[str, Any] = {"cm": {}, "fedavg": {"summary": {"acc_weighted": 0.5}, "more": []}}
    text = page(read(write_sweep(tmp_path / "x", variants, [0, 1], **SETTING)))
    head, cm, fedavg = cells(text, "Concepts and models, mean")
    row = dict(zip(head, cm, strict=True))
    assert row["Accuracy by rows (%)"] == "80.0 ± 0.0"
    assert (row["ARI, mean"], row["Lowest"], row["Perfect rounds"]) == ("0.833 ± 0", "0.500 ± 0", "2 ± 0")
    assert (row["Concepts met"], row["Found"], row["Lost"]) == ("3 ± 0", "2 ± 0", "1 ± 0")
    assert row["Clusters dropped"] == "4 of 16"
    row = dict(zip(head, fedavg, strict=True))
    assert (row["Accuracy by rows (%)"], row["ARI, mean"], row["Clusters dropped"]) == ("50.0 ± 0.0", "-", "-")


def test_concept_by_concept(tmp_path: Path) -> None:
    last = [{"round": 3, "metric": "accuracy", "value": 0.9, "rows": 1200, "entry": "m/1", "concept": 1}]
    text = page(read(one(tmp_path / "run", more=[*LINES, *last])))
    _, cars, cats, digits = cells(text, "Concept by concept")
    assert cars == ["cars", "m/0", "-", "-", "-", "3", "0", "7", "100.0", "100.0"]
    assert cats == ["cats", "m/1", "m/1", "90.0", "1,200", "2", "1", "2", "0.0", "50.0"]
    assert digits == ["digits", "none (m/0 is shared)", "-", "-", "-", "3", "1", "3", "66.7", "100.0"]


# ---- charts -----------------------------------------------------------------------------------------------------


def test_curves_and_the_timeline(tmp_path: Path) -> None:
    found = charts(page(read(one(tmp_path / "run"))))
    (rand,) = found["Clusters against true concepts"]["data"]
    assert (rand["x"], rand["y"]) == ([1, 2, 3], [0.5, 1, 1])
    (right,) = found["Matches that are right, dropped clusters no error"]["data"]
    assert right["y"] == [75, 100, 100]
    heat, marks = found["Models of the concepts' clusters"]["data"]
    assert heat["y"] == ["cars", "cats", "digits (lost)"]
    # Models 0 and 1, doubled; odd where the cluster was dropped, in the colour of what the clients trained.
    assert heat["z"] == [[0, 0, 0], [2, 3, None], [0, 0, 1]]
    assert heat["hovertext"][1] == [
        "1 client: 1 trained m/0<br>cluster 1 updated m/1 (claimed)",
        "1 client: 1 trained m/1<br>cluster 1 was rejected", "",
    ]  # fmt: skip
    assert list(zip(marks["x"], marks["y"], marks["marker"]["symbol"], strict=True)) == [
        (1, "cars", "circle-open"), (1, "cats", "circle-open"), (2, "cats", "x-thin"),
        (1, "digits (lost)", "cross-thin"), (2, "digits (lost)", "cross-thin"), (3, "digits (lost)", "line-ne"),
    ]  # fmt: skip


def test_distances_beside_the_gates(tmp_path: Path) -> None:
    found = charts(page(read(one(tmp_path / "run"))))
    gate, updated, dropped = (trace for trace in found["m/1"]["data"])
    # The gate of a round is 1.5 times what was remembered after the round before.
    assert gate["name"] == "gate"
    assert list(zip(gate["x"], gate["y"], strict=True)) == [(2, 3.0), (3, pytest.approx(3.6)), (4, pytest.approx(3.6))]
    assert (updated["x"], updated["y"], updated["marker"]["symbol"]) == ([1], [2], ["circle-open"])
    # Round 2: 9 from m/0 and 7 from m/1; round 3: no distance from m/0.
    assert (dropped["x"], dropped["y"], dropped["marker"]["symbol"]) == ([2, 3], [7, 7], ["x", "x-open"])
    assert dropped["hovertext"] == ["rejected, one client: cats", "overwritten, one client: digits"]
    _, updated = found["m/0"]["data"]
    assert list(zip(updated["x"], updated["y"], strict=True)) == [(1, 4), (1, 3), (2, 5), (3, 1)]  # 0 is not drawn
    assert all("meta" not in trace for trace in found["m/1"]["data"])  # there is no choice: all is shown


def test_the_distances_of_several_runs_are_chosen(tmp_path: Path) -> None:
    paper = {"method": {"kind": "concept-matching", "matching": {"kind": "paper", "slack": 1.0}}}
    lines = [{**line, "kept": {"record": [2.0, 4.0]}} if "kept" in line else line for line in LINES]
    variants: dict[str, Any] = {"gated": {}, "paper": {"config": paper, "more": lines}}
    text = page(read(write_sweep(tmp_path / "x", variants, [0], **SETTING)))
    assert re.findall(r"<option[^>]*>(.*?)</option>", section(text)) == ["gated, seed 0", "paper, seed 0"]
    limits = [trace for trace in charts(text)["m/1"]["data"] if trace.get("name")]
    assert [(t["name"], t["meta"]["view"], t["y"]) for t in limits] == [
        ("gate", [0], [3.0, pytest.approx(3.6), pytest.approx(3.6)]), ("record", [1], [4, 4, 4]),
    ]  # fmt: skip
    assert limits[0]["line"]["color"] != limits[1]["line"]["color"]


def test_records_corrected_sizes_and_rules_of_ones_own() -> None:
    lines = [clusters(1, [0, 0, 0, 0], ["m/0"], ["accepted"], entries=["m/0"], distances=[[3.0]], kept={"record": [6]})]
    paper = {"kind": "paper", "slack": 1.1, "size_corrected": True}
    run = Run(Path(), "a", "0", config={"method": {"matching": paper}}, lines=lines)
    (point,) = points_of(run, None)
    assert (point.distance, point.concepts) == (6.0, "no concept's")  # 3 times the root of 4
    ((name, values),) = limits_of(run, "m/0")
    assert (name, list(values)) == ("record", [2])
    assert values[2] == pytest.approx(6.6)
    own = Run(Path(), "a", "0", lines=[{**lines[0], "kept": {"radius": [2.0], "claimed": [0]}}])
    assert [(one.name, one.values) for one in limits_of(own, "m/0")] == [("radius", {2: 2.0})]


def test_broken_records_are_passed_over(tmp_path: Path) -> None:
    broken = [
        {"round": 1, "record": "clusters"}, clusters(1, [0], ["m/0"], ["accepted"], entries=["m/0"], distances=[[]]),
        {**clusters(1, [0], [], [], entries=[], distances=[]), "round": None},
        clusters(2, [0], ["m/0"], ["accepted"], entries=["m/0"], distances=[[None]], kept={"usual": "x"}),
        {"round": 1, "record": "concepts", "met": [{"concept": 0}]},
    ]  # fmt: skip
    folder = write_run(tmp_path / "run", **{**SETTING, "more": broken, "summary": {}})
    assert 'id="concepts"' not in page(read(folder))
    assert list(points_of(read(folder).runs[0], None)) == []


def test_runs_with_choices_alone_have_no_distances_and_other_runs_no_section(tmp_path: Path) -> None:
    plain = [line for line in LINES if line.get("record") != "clusters"]
    assert "Distances in" not in section(page(read(one(tmp_path / "a", more=plain))))
    assert 'id="concepts"' not in page(read(write_run(tmp_path / "b", rounds=2, boundaries=())))


def test_concepts_without_names_and_with_words() -> None:
    lines = met(1, (0, "m/0", "accepted", "m/0", 1))
    lines[1]["met"][0]["concept"] = "<photo>"
    models = models_of(lines)
    assert models is not None
    assert list(models.of) == ["<photo>"]


def test_numbers_have_names_and_units() -> None:
    assert written("concept_matching_accuracy.strict", 0.448) == "44.8 %"
    assert (written("concepts_lost", 1.0), written("concepts_lost", 0.5, 0.7)) == ("1", "0.5 ± 0.7")
    assert (written("ari_perfect_rounds", 96.0, 0.0), written("ari_mean", 0.994)) == ("96 ± 0", "0.994")
    assert describe("own_model.concept=2").label == "Model of its own, concept=2"
    assert describe("concept_matching_accuracy.accepted_own").meaning
