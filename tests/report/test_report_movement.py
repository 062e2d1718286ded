"""Movement of the entries: gaps where nobody trained, means that weigh; and what is held on streams without tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from report_folders import write_lines, write_run

from shoal.report import movement, timeline
from shoal.report.charts import lines
from shoal.report.load import Run, read
from shoal.report.page import page
from shoal.report.series import over_seeds


def moved(round: int, value: float | None, **more: Any) -> dict[str, Any]:
    return {"round": round, "metric": "entry_cosine", "value": value, "over": "all", **more}


def run_of(*lines: dict[str, Any], **stream: Any) -> Run:
    return Run(Path(), "a", "0", lines=({"round": 0, "record": "stream", **stream}, *lines))


def test_rounds_without_training_are_missing() -> None:
    run = run_of(moved(0, 9.0, entry="a"), moved(1, 0.5, entry="a"), moved(4, 0.1, entry="a"), moved(2, 0.3, entry="b"),
                 moved(3, None, entry="a"))  # fmt: skip
    assert movement.entries_of(run) == ["a", "b"]
    assert movement.curves(run, "all", "a") == {1: 0.5, 4: 0.1}
    assert movement.curves(run, "head", "a") == {}


def test_a_curve_is_joined_between_neighbours_only() -> None:
    (line,) = lines(over_seeds([{1: 1.0, 2: 2.0, 5: 3.0, 6: 4.0}]), "a", "a", 0, gaps=True)
    assert list(line.x) == [1, 2, 3, 5, 6]
    assert list(line.y) == [1, 2, None, 3, 4]
    assert line.mode == "lines+markers"
    (whole,) = lines(over_seeds([{1: 1.0, 2: 2.0, 5: 3.0}]), "a", "a", 0)
    assert list(whole.x) == [1, 2, 5]


def test_rounds_that_are_thinned_out_are_no_gaps() -> None:
    every = {round: 0.5 for round in range(1, 1001) if not 700 < round <= 710}
    (line,) = lines(over_seeds([every]), "a", "a", 0, 1, [400], gaps=True)
    assert len(line.x) < 520
    assert [x for x, y in zip(line.x, line.y, strict=True) if y is None] == [701]


def test_a_line_over_many_entries_counts_as_many() -> None:
    run = run_of(moved(1, 0.2, entries=3), moved(1, 0.6, entry="a"), moved(2, 0.4, entries=40))
    assert movement.mean(run, "all") == pytest.approx({1: (3 * 0.2 + 0.6) / 4, 2: 0.4})


def test_the_page_draws_every_entry_with_a_choice_of_scope(tmp_path: Path) -> None:
    more = [
        {**moved(r, 0.1 * r, entry=e), "over": over} for r in (1, 2, 4) for e in ("a", "b") for over in ("all", "head")
    ]
    text = page(read(write_run(tmp_path / "run", rounds=4, boundaries=(2,), more=more)))
    part = text[text.index("Movement of the entries") :]
    assert '<option value="0">the head</option><option value="1">all parameters</option>' in part
    chart = json.loads(part.partition('<script type="application/json">')[2].partition("</script>")[0])
    assert [trace["meta"]["view"] for trace in chart["data"]] == [[0, 0], [0, 0], [1, 0], [1, 0]]
    assert chart["data"][0]["y"] == [0.1, 0.2, None, 0.4]


# ---- what is held, and what is trained, on streams without tasks ------------------------------------------------


def record(round: int, held: dict[str, dict[str, list[int]]], trained: dict[str, list[int]]) -> dict[str, Any]:
    everyone = sorted({c for values in held.values() for clients in values.values() for c in clients})
    return {"round": round, "record": "round", "participants": everyone, "tasks": {}, "trained": trained, "held": held}


def test_concepts_come_before_domains_and_names_are_sorted() -> None:
    run = run_of(record(1, {"domain": {"sea": [0], "air": [1]}}, {"global": [0, 1]}))
    assert timeline.held_label(run) == "domain"
    assert timeline.cells_of(run) == {(0, 1): (1, True), (1, 1): (0, True)}
    both = run_of(record(1, {"domain": {"sea": [0]}, "concept": {"3": [0]}}, {"global": []}))
    assert timeline.held_label(both) == "concept"
    assert timeline.cells_of(both) == {(0, 1): (3, False)}


def test_what_is_trained_is_drawn_where_it_is_something_else() -> None:
    concepts = {"concept": {"0": [0], "1": [1]}}
    same = run_of(record(1, concepts, {"m/0": [0], "m/1": [1]}))
    assert [line.label for line in timeline.timelines(same)] == ["concept"]
    one = run_of(record(1, concepts, {"global": [0, 1]}))
    assert [line.label for line in timeline.timelines(one)] == ["concept"]
    mixed = run_of(record(1, concepts, {"m/0": [0], "m/1": [1]}), record(2, concepts, {"m/0": [0, 1]}))
    held, trained = timeline.timelines(mixed)
    assert trained.label == "entry"
    assert trained.names == ["m/0", "m/1"]
    assert trained.cells == {(0, 1): (0, True), (1, 1): (1, True), (0, 2): (0, True), (1, 2): (0, True)}
    assert held.names == ["concept 0", "concept 1"]


def test_a_stream_of_concepts_does_not_speak_of_tasks(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rounds=4, tasks=(), boundaries=(2,), clients=3)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line.get("record") == "round":
            line["held"] = {"concept": {"0": [0, 1], "1": [2]}}
    write_lines(folder / "metrics.jsonl", lines)
    text = page(read(folder))
    body = text[text.index("<header>") : text.index('<section id="configuration"')]
    assert "concept held" in body
    assert "0: concept 0" in body
    assert "task" not in body.lower()


def test_a_hundred_clients_and_five_hundred_rounds(tmp_path: Path) -> None:
    rounds = [
        {"round": r, "record": "round", "participants": list(range(100)), "trained": {"global": list(range(1, 100))},
         "held": {"concept": {str(c): list(range(c, 100, 4)) for c in range(4)}}}
        for r in range(1, 501)
    ]  # fmt: skip
    folder = tmp_path / "run"
    folder.mkdir()
    write_lines(folder / "metrics.jsonl", [{"round": 0, "record": "stream", "rounds": 500, "clients": 100}, *rounds])
    text = page(read(folder))
    assert len(text) < 6_000_000
    chart = json.loads(text[text.index("concept held") :].partition('json">')[2].partition("</script>")[0])
    assert len(chart["data"]) == 1  # 500 lost updates are pale, without crosses
    assert len(chart["data"][0]["z"]) == 100
    assert {row[0] for row in chart["data"][0]["z"]} == {1, 2, 4, 6, 0}
