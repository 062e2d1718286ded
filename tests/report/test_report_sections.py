"""What the sections make of the lines: curves over seeds, the rounds after a boundary, who held what, the colours."""

from __future__ import annotations

import math
import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from report_folders import write_lines, write_run, write_sweep

from shoal.report import timeline, transfer
from shoal.report.charts import colour, dash, figure, lines, plain, span
from shoal.report.configuration import leaves
from shoal.report.load import Run, read
from shoal.report.page import page, write_report
from shoal.report.series import by_target, curve, mean_curve, over_seeds, quantile, thinned, title_of


def run_of(*lines: dict[str, Any], **stream: Any) -> Run:
    header = {"round": 0, "record": "stream", "boundaries": [], "tasks": 0, **stream}
    return Run(Path(), "a", "0", lines=(header, *lines))


def held(round: int, tasks: dict[str, list[int]], trained: dict[str, list[int]] | None = None) -> dict[str, Any]:
    trained = tasks if trained is None else trained
    everyone = sorted(client for clients in tasks.values() for client in clients)
    return {"round": round, "record": "round", "participants": everyone, "tasks": tasks, "trained_tasks": trained}


def accuracy(round: int, task: int, value: float | None) -> dict[str, Any]:
    return {"round": round, "metric": "accuracy", "value": value, "rows": 9, "entry": "x", "task": task}


# ---- curves -----------------------------------------------------------------------------------------------------


def test_mean_and_sample_deviation_by_round() -> None:
    found = over_seeds([{1: 0.2, 2: 0.4, 3: 0.6}, {1: 0.4, 2: 0.4}, {}])
    assert found.rounds == [1, 2, 3]
    assert found.mean == pytest.approx([0.3, 0.4, 0.6])
    assert found.sd == pytest.approx([math.sqrt(0.02), 0, 0])
    assert found.seeds == 2
    assert over_seeds([]).rounds == []


def test_a_curve_takes_the_labels_asked_for_and_leaves_out_what_is_no_number() -> None:
    cells = [(2, 4.0, "all"), (1, 1.0, "all"), (2, 6.0, "all"), (1, 9.0, "head"), (3, None, "all"), (4, True, "all")]
    found = [{"round": round, "value": value, "over": over} for round, value, over in cells]
    assert curve(found, over="all") == {1: 1.0, 2: 5.0}


def test_targets_are_told_apart_and_sorted_as_numbers() -> None:
    run = run_of(accuracy(1, 10, 0.1), accuracy(1, 9, 0.2), accuracy(2, 9, 0.4), accuracy(2, 10, None))
    found = by_target(run)
    assert list(found) == [(("task", 9),), (("task", 10),)]
    assert found[("task", 9),] == {1: 0.2, 2: 0.4}
    names = {"task": ["up", "down"], "client": ["ann", "bob"]}
    assert title_of((("task", 1),), names) == "down"
    assert title_of((("task", 2),), names) == "task 2"
    assert title_of((("client", 0), ("task", 0)), names) == "client 0 (ann), up"
    assert title_of((("client", 3), ("domain", "sea"))) == "client 3, domain sea"


def test_the_mean_over_targets_is_the_logged_one_if_there_is_one() -> None:
    both = [accuracy(1, 0, 0.2), accuracy(1, 1, 0.4)]
    assert mean_curve(run_of(*both)) == pytest.approx({1: 0.3})
    logged = {"round": 1, "metric": "mean_accuracy", "value": 0.9, "weighting": "targets"}
    rows = {**logged, "value": 0.1, "weighting": "rows"}
    assert mean_curve(run_of(*both, logged, rows)) == {1: 0.9}


def test_quantiles() -> None:
    assert quantile([3, 1, 2, 4], 0.5) == 2.5
    assert quantile([1, 2, 3, 4, 5], 0.1) == pytest.approx(1.4)
    assert quantile([7], 0.9) == 7


def test_thinning_keeps_the_end_and_the_rounds_at_a_boundary() -> None:
    rounds = list(range(1, 3001))
    kept = [rounds[i] for i in thinned(rounds, [1000])]
    assert len(kept) <= 510
    assert {1, 3000, *range(1000, 1006)} <= set(kept)
    assert thinned([5, 6]) == [0, 1]
    assert thinned([]) == []


# ---- the rounds after a boundary --------------------------------------------------------------------------------


def test_changes_after_a_boundary_by_hand() -> None:
    """Task 0 is an event at boundary 2 (-0.2, then +0.1); task 1 is first trained after it and does not count."""
    values = {1: (0.5, 0.1), 2: (0.6, 0.1), 3: (0.4, 0.5), 4: (0.7, 0.6)}
    metrics = [accuracy(r, t, v) for r, pair in values.items() for t, v in enumerate(pair)]
    rounds = [
        held(1, {"0": [0, 1]}),
        held(2, {"0": [0, 1]}),
        held(3, {"0": [0], "1": [1]}),
        held(4, {"0": [0], "1": [1]}),
    ]
    events = transfer.events_of(run_of(*metrics, *rounds, boundaries=[2], tasks=2))
    assert [(e.task, e.boundary) for e in events] == [(0, 2)]
    assert transfer.mean_change(events) == pytest.approx({0: 0, 1: -0.2, 2: 0.1})
    assert transfer.worst_change(events) == pytest.approx({0: 0, 1: -0.2, 2: -0.2, 3: -0.2, 4: -0.2, 5: -0.2})


def test_an_update_that_did_not_arrive_trains_nothing() -> None:
    metrics = [accuracy(r, 0, 0.5) for r in (1, 2)]
    rounds = [held(1, {"0": [0]}), held(2, {"0": [0]}, trained={"0": []})]
    assert transfer.events_of(run_of(*metrics, *rounds, boundaries=[1], tasks=1)) == []


# ---- who held what ----------------------------------------------------------------------------------------------


def test_cells_of_the_timeline() -> None:
    run = run_of(held(0, {"0": [9]}), held(1, {"0": [0], "1": [2, 3]}, trained={"0": [0], "1": [3]}))
    assert timeline.cells_of(run) == {(0, 1): (0, True), (2, 1): (1, False), (3, 1): (1, True)}
    static = {"round": 2, "record": "round", "participants": [4, 5], "tasks": {}, "trained": {"global": [5]}}
    assert timeline.cells_of(run_of(static)) == {(4, 2): (-1, False), (5, 2): (-1, True)}


def test_a_task_is_written_once_in_the_middle_of_its_stretch() -> None:
    # Even codes are updates that arrived, odd ones those that did not: the stretch goes on.
    grid = [[4, 5, 4, 0, None, None, 3], [None] * 7]
    assert timeline._labels(grid) == [["", "2", "", "0", "", "", "1"], [""] * 7]
    assert timeline._labels([[0, 1]]) == [["", ""]]  # a single task needs no number


def test_runs_with_the_same_timeline_share_a_chart(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "x", {"a": {}, "b": {}}, [0, 1], rounds=8, boundaries=(4,))
    text = page(read(folder))
    assert "Seed 0, all variants" in text
    assert "Seed 1, all variants" in text
    one = write_sweep(tmp_path / "y", {"a": {}, "b": {"clients": 3}}, [0], rounds=8, boundaries=(4,))
    text = page(read(one))
    assert "b, seed 0" in text
    assert "all variants" not in text


def test_of_many_clients_those_that_took_part_most_are_drawn(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rounds=2, clients=200, boundaries=())
    more = {"round": 3, "record": "round", "participants": [150], "tasks": {"0": [150]}, "trained_tasks": {"0": [150]}}
    run = read(folder).runs[0]
    (line,) = timeline.timelines(Run(Path(), "a", "0", lines=(*run.lines, more)))
    drawn = timeline._chart(line).data[0]
    assert len(drawn.y) == 100
    assert 150 in drawn.y
    assert "Drawn are the 100 clients, of 200" in page(read(folder))


# ---- charts -----------------------------------------------------------------------------------------------------


def test_bands_are_one_deviation_and_end_at_the_floor() -> None:
    band, line = lines(over_seeds([{1: 1.0, 2: 0.1}, {1: 3.0, 2: 1.9}]), "a", "a", 0, floor=0)
    assert list(line.y) == [2, 1]
    sd = math.sqrt(2), math.sqrt(1.62)
    assert list(band.y) == pytest.approx([2 + sd[0], 1 + sd[1], 0, 2 - sd[0]], rel=1e-5)
    assert list(band.x) == [1, 2, 2, 1]
    (alone,) = lines(over_seeds([{1: 1.0}]), "a", "a", 0)
    assert alone.customdata is None


def test_boundaries_lie_between_two_rounds() -> None:
    assert [s.x0 for s in figure([], "y", boundaries=(6, 12)).layout.shapes] == [6.5, 12.5]


def test_more_series_than_colours_get_another_dash() -> None:
    looks = [(colour(i), dash(i)) for i in range(32)]
    assert len(set(looks)) == 32
    assert len({c for c, _ in looks}) == 8


def test_text_in_charts_is_literal() -> None:
    assert plain("<a href='x'>b & c</a>") == "&lt;a href='x'&gt;b &amp; c&lt;/a&gt;"


def test_a_common_range() -> None:
    assert span([], 0, 100) is None
    assert span([20, 60], 0, 100) == (18, 62)
    assert span([50, 50], 0, 100) == pytest.approx((40.5, 50.5))
    assert span([99, 100], 0, 100) == pytest.approx((90, 100))
    assert span([0, 1], 0, 100) == pytest.approx((0, 10))


def luminance(colour: str) -> float:
    """Relative luminance by WCAG 2."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_can_be_told_from_their_ground(scheme: int) -> None:
    """WCAG 2.1: text 4.5 to 1, graphics 3 to 1."""
    style = resources.files("shoal.report").joinpath("page.css").read_text()
    blocks = re.findall(r":root \{(.*?)\}", style, re.S)
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", blocks[scheme]))
    for ground in ("card", "page"):
        for name in ("text", "soft", "link"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
    for place in range(1, 9):
        assert contrast(colours[f"series-{place}"], colours["card"]) >= 3, place


def test_leaves_of_a_configuration() -> None:
    config = {"a": {"b": 1, "c": {"d": [1, 2]}}, "e": "x", "f": {}, "g": None}
    assert leaves(config) == {"a.b": "1", "a.c.d": "[1, 2]", "e": "x", "f": "{}", "g": "null"}


def test_the_file_of_a_resumed_run_gives_each_round_its_last_time(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rounds=2, boundaries=())
    write_lines(folder / "timings.jsonl", [{"round": r, "seconds": s} for r, s in ((0, 9), (1, 1), (2, 2), (2, 3))])
    text = page(read(folder))
    chart = text[text.index("Seconds per round") :]
    assert '"y":[1.0,3.0]' in chart


def test_classes_go_by_the_labels_of_the_data(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    html = write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert "Classes, by the labels that the data give them: shirt, 7, &lt;41&gt;." in html
