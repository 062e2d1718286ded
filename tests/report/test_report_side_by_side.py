"""Folders laid over one another: what is written where, and what is said of runs that should not be compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from report_folders import write_run, write_sweep

from shoal.errors import RunError
from shoal.report.comparison import compare
from shoal.report.side_by_side import write_comparison


def files(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_a_comparison_has_a_folder_of_its_own(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", rounds=3, boundaries=())
    two = write_sweep(tmp_path / "two", {"a": {}, "b": {}}, [0, 1], rounds=3, boundaries=())
    before = files(one), files(two)
    out = tmp_path / "new" / "folder"
    assert write_comparison([one, two], out) == out / "report.html"
    assert files(out) == ["comparison.json", "report.html"]
    assert (files(one), files(two)) == before
    found = json.loads((out / "comparison.json").read_text(encoding="utf-8"))
    assert found == json.loads(json.dumps(compare(one, two)))
    assert list(found["variants"]) == ["one", "two/a", "two/b"]
    assert len(found["tests"]) == 1
    text = (out / "report.html").read_text(encoding="utf-8")
    assert "<h1>one / two</h1>" in text
    with pytest.raises(RunError, match=r"holds a comparison already.*--force"):
        write_comparison([one, two], out)
    (out / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match=r"holds other files \(notes.txt\).*--force"):
        write_comparison([one, two], out)
    assert write_comparison([one], out, force=True).exists()
    assert files(out) == ["comparison.json", "notes.txt", "report.html"]
    assert list(json.loads((out / "comparison.json").read_text())["variants"]) == ["async-digits"]


def test_what_is_refused(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", rounds=1, boundaries=())
    with pytest.raises(RunError, match="named twice"):
        write_comparison([one, tmp_path / "x" / ".." / "one"], tmp_path / "out")
    with pytest.raises(RunError, match=r"holds other files \(config.yaml"):
        write_comparison([one], one)
    with pytest.raises(RunError, match="those of a run"):
        write_comparison([one], one, force=True)
    with pytest.raises(RunError, match="is a file"):
        write_comparison([one], one / "config.yaml")
    with pytest.raises(RunError, match="found neither"):
        write_comparison([one, tmp_path / "no"], tmp_path / "out")
    with pytest.raises(RunError, match="at least one folder"):
        write_comparison([], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def unlike(tmp_path: Path, changed: dict[str, Any], **more: Any) -> list[str]:
    one = write_run(tmp_path / "one", rounds=3, boundaries=())
    two = write_run(tmp_path / "two", **{"rounds": 3, "boundaries": (), **more}, config=changed)
    return list(compare(one, two)["warnings"])


def test_runs_that_differ_in_the_method_alone_give_no_warning(tmp_path: Path) -> None:
    assert unlike(tmp_path, {"method": {"kind": "other"}, "local": {"lr": 1.0}}) == []


@pytest.mark.parametrize(
    ("changed", "more", "line"),
    [
        (
            {"stream": {"kind": "tasks", "order": "synchronous"}},
            {},
            "stream.order: asynchronous (one); synchronous (two)",
        ),
        ({}, {"rounds": 4}, "rounds: 3 (one); 4 (two)"),
        ({"stream": {"kind": "tasks"}}, {}, "stream.order: asynchronous (one) alone"),
    ],
)
def test_what_differs_is_named(tmp_path: Path, changed: dict[str, Any], more: dict[str, Any], line: str) -> None:
    first, *rest = unlike(tmp_path, changed, **more)
    assert first.startswith("These runs differ in more than a method")
    assert rest == [line]


def test_other_seeds_alone_are_no_other_experiment(tmp_path: Path) -> None:
    assert unlike(tmp_path, {}, seed=7) == [
        "The runs have other seeds, and a test pairs those in common: 0 (one); 7 (two)."
    ]
    assert "differ in more" not in compare(tmp_path / "one", tmp_path / "two")["findings"][1]


def test_other_data_under_the_same_name_are_noticed(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name, rounds=1, boundaries=()) for name in ("one", "two")]
    for folder, print in zip(folders, ("aaa", "bbb"), strict=True):
        (folder / "environment.json").write_text(json.dumps({"data_fingerprint": print}))
    found = compare(*folders)
    assert found["warnings"][1:] == ["the data (their fingerprint): aaa (one); bbb (two)"]
    out = write_comparison(folders, tmp_path / "out")
    assert "the data (their fingerprint): aaa (one); bbb (two)" in out.read_text(encoding="utf-8")


def test_where_data_lie_is_no_difference(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", rounds=1, boundaries=(), config={"data": {"kind": "idx", "path": "/a"}})
    two = write_run(tmp_path / "two", rounds=1, boundaries=(), config={"data": {"kind": "idx", "path": "/b"}})
    assert compare(one, two)["warnings"] == []


def test_of_other_kinds_of_streams_the_kind_is_enough(tmp_path: Path) -> None:
    _, *rest = unlike(tmp_path, {"stream": {"kind": "static", "targets": "all"}})
    assert rest == ["stream.kind: tasks (one); static (two)"]


def test_a_first_one_without_a_test_is_not_called_noise(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", rounds=2, boundaries=(), summary={"acc": 0.99})
    two = write_sweep(tmp_path / "two", {"a": {}, "b": {}}, [0, 1], rounds=2, boundaries=())
    found = compare(one, two)
    assert [test["a"] for test in found["tests"]] == ["two/a"]
    assert "No test can tell whether one is ahead by more than noise" in found["findings"][1]
    assert "within noise" not in found["findings"][1]
