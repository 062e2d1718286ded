"""Confusion matrices as a reader sees them: original names, shares of the true class, the last moment first."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from report_folders import confusion, write_run, write_sweep

from shoal.report.confusion import matrices
from shoal.report.load import read
from shoal.report.page import page

PETS = ("cat", "dog", "<fox>")
COUNTS = [[8, 2, 0], [0, 5, 5], [0, 0, 0]]


def section(text: str) -> str:
    return text[text.index('<section id="confusion"') :].partition("</section>")[0]


def chart(text: str) -> dict[str, Any]:
    return json.loads(section(text).partition('<script type="application/json">')[2].partition("</script>")[0])


def test_shares_are_of_the_true_class_and_names_are_the_original_ones(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rounds=4, boundaries=(2,), more=[confusion(4, PETS, COUNTS, task=0)])
    text = page(read(folder))
    (trace,) = chart(text)["data"]
    assert trace["z"] == [[0.8, 0.2, 0], [0, 0.5, 0.5], [0, 0, 0]]
    assert trace["text"] == COUNTS
    assert trace["y"] == trace["x"] == ["cat", "dog", "&lt;fox&gt;"]
    rows = re.findall(r"<tr><th.*?</tr>", section(text))
    cells = [re.sub(r"<[^>]+>", "|", row) for row in rows]
    assert [[c for c in cell.split("|") if c] for cell in cells[1:]] == [
        ["dog", "&lt;fox&gt;", "5", "50.0 %"], ["cat", "dog", "2", "20.0 %"],
    ]  # fmt: skip


def test_the_reader_chooses_target_and_moment_and_the_end_comes_first(tmp_path: Path) -> None:
    more = [confusion(r, PETS, COUNTS, task=t) for r in (2, 4) for t in (0, 1)]
    text = section(page(read(write_run(tmp_path / "run", rounds=4, boundaries=(2,), more=more))))
    assert re.findall(r"<option[^>]*>(.*?)</option>", text) == [
        "the run", "identity", "rotate90", "the end (round 4)", "boundary after round 2",
    ]  # fmt: skip
    views = [
        trace["meta"]["view"] for trace in json.loads(text.partition('json">')[2].partition("</script>")[0])["data"]
    ]
    assert views == [[0, 0, 1], [0, 1, 1], [0, 0, 0], [0, 1, 0]]


def test_many_targets_together_and_targets_without_counts(tmp_path: Path) -> None:
    more = [confusion(4, PETS, COUNTS, targets=50), {**confusion(4, PETS, [], task=1), "excluded": 1}]
    run = read(write_run(tmp_path / "run", rounds=4, boundaries=(), more=more)).runs[0]
    assert [m.target for m in matrices(run, "x")] == ["all 50 targets together"]


@pytest.mark.parametrize(("count", "written"), [(30, True), (31, False)])
def test_many_classes_have_no_numbers_in_the_cells(tmp_path: Path, count: int, written: bool) -> None:
    names = [f"class number {i} with a name that is rather long" for i in range(count)]
    eye = [[int(i == j) for j in range(count)] for i in range(count)]
    folder = write_run(tmp_path / "run", rounds=2, boundaries=(), more=[confusion(2, names, eye)])
    (trace,) = chart(page(read(folder)))["data"]
    assert ("texttemplate" in trace) is written
    assert len(set(trace["x"])) == count  # shortened names stay apart


def test_too_many_classes_have_the_table_alone(tmp_path: Path) -> None:
    record = {**confusion(2, [str(i) for i in range(800)], []), "counts": [[3, 7, 5], [3, 3, 5]]}
    text = section(page(read(write_run(tmp_path / "run", rounds=2, boundaries=(), more=[record]))))
    assert "application/json" not in text
    assert "50.0 %" in text


def test_several_runs_and_broken_records(tmp_path: Path) -> None:
    good = confusion(2, PETS, COUNTS)
    bad: list[dict[str, Any]] = [
        {**good, "counts": [[0, 9, 1], [-1, 0, 2], [0, None, 3], "x"]},
        {**good, "classes": None},
        {**good, "round": None},
    ]
    folder = write_sweep(tmp_path / "x", {"a": {"more": [good]}, "b": {"more": bad}}, [0, 1], rounds=2, boundaries=())
    text = page(read(folder))
    assert len(chart(text)["data"]) == 2
    # Two seeds of ten and ten rows each.
    assert "<td>10</td><td>50.0 %</td>" in section(text).replace(' class="text"', "")


def test_a_page_carries_only_so_many_cells(tmp_path: Path) -> None:
    names = [str(i) for i in range(100)]
    more = [confusion(r, names, [[1] * 100] * 100, task=t) for r in (1, 2, 3) for t in range(4)]
    text = page(read(write_run(tmp_path / "run", rounds=3, boundaries=(1, 2), more=more)))
    views = [trace["meta"]["view"][2] for trace in chart(text)["data"]]
    assert views.count(0) == 4  # the end of every task is there
    assert len(views) == 6
    assert len(text) < 6_000_000
    assert "6 of 12 matrices are left out" in section(text)


def test_without_records_there_is_no_section(tmp_path: Path) -> None:
    assert 'id="confusion"' not in page(read(write_run(tmp_path / "run", rounds=2, boundaries=())))
