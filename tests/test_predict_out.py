"""Where ``shoal predict --out`` does not write, and what it says of models that nobody trained."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import Shoal
from prediction_helpers import CONFIG, TASKS
from sklearn.datasets import load_digits

import shoal as library

PARTS = '''
from shoal.learners.base import Learner

class Failing(Learner):
    """Raises."""
    def fit(self, *args, **more):
        raise ZeroDivisionError("nothing to share")
        yield

class OfTaskOne(Learner):
    """Trains nothing but the first task."""
    def fit(self, key, *args, **more):
        if key != "task/0":
            raise ZeroDivisionError("another task")
        return (yield from super().fit(key, *args, **more))
'''
ROWS = load_digits().images[:5].astype(np.uint8)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs in one folder."""
    folder = tmp_path_factory.mktemp("runs")
    return library.run(CONFIG, {"rounds": 1, "seeds": [0, 1]}, out=folder / "many").folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    np.save("rows.npy", ROWS)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_the_rows_themselves_are_not_written_over(many: Path, here: Path, shoal: Shoal) -> None:
    run = str(many / "small" / "0")
    (here / "link.npy").symlink_to("rows.npy")
    os.link("rows.npy", "hard.npy")
    (here / "sub").mkdir()
    before = contents(here)
    for out in ("rows.npy", "./sub/../rows.npy", "link.npy", "hard.npy", str(here / "rows.npy")):
        said = shoal("predict", run, "rows.npy", "--out", out)
        assert (said.code, "the rows to predict" in said.err) == (2, True), out
    (here / "rows.npy").rename(here / "sub" / "rows.npy")
    said = shoal("predict", run, "sub", "--out", "sub/deep/p.csv")  # whatever the rows are: it is refused first
    assert (said.code, "in sub, the rows to predict" in said.err) == (2, True)
    (here / "sub" / "rows.npy").rename(here / "rows.npy")
    assert contents(here) == before


@pytest.mark.parametrize(
    "out",
    [
        "model.safetensors",
        "metrics.jsonl",
        "checkpoint/p.csv",
        ".lock",
        "clients.csv",
        "../../config.yaml",
        "../1/summary.json",
    ],
)
def test_the_files_of_a_run_are_not_written_over(many: Path, here: Path, shoal: Shoal, out: str) -> None:
    run = many / "small" / "0"
    before = contents(many)
    said = shoal("predict", str(run), "rows.npy", "--out", str(run / out))
    assert said.code == 2
    assert "one of the files of the run in" in said.err
    assert contents(many) == before


def test_other_files_in_the_folder_of_a_run_and_beside_a_configuration_are_fine(
    many: Path, here: Path, shoal: Shoal
) -> None:
    run = many / "small" / "0"
    (here / "config.yaml").write_text("rounds: 1\n")  # no run
    for out in (run / "predictions.csv", here / "clients.csv"):
        assert shoal("predict", str(run), "rows.npy", "--out", str(out)).code == 0
        assert len(pd.read_csv(out)) == 5
    (run / "predictions.csv").unlink()


def test_one_missing_folder_is_made_and_told_and_more_are_refused(many: Path, here: Path, shoal: Shoal) -> None:
    run = str(many / "small" / "0")
    said = shoal("predict", run, "rows.npy", "--out", "new/p.csv")
    assert said.code == 0
    assert "note: the folder new is new\n" in said.out
    assert "is new" not in shoal("predict", run, "rows.npy", "--out", "new/p.csv").out
    for out, message in (
        ("a/b/p.csv", "there is no folder a;"),
        ("new", "that is a folder; give a file in it, such as new/predictions.csv"),
        ("rows.npy/p.csv", "in rows.npy, the rows to predict"),
        ("new/p.csv/q.csv", "new/p.csv is a file, not a folder"),
    ):
        said = shoal("predict", run, "rows.npy", "--out", out)
        assert (said.code, message in said.err) == (2, True), said.err
    assert not (here / "a").exists()


# ---- models that nobody trained ------------------------------------------------------------------------------------


def test_a_model_that_no_update_has_reached_is_called_untrained(here: Path, shoal: Shoal) -> None:
    (here / "idle_parts.py").write_text(PARTS)
    run = library.run(CONFIG, {"local.learner": "idle_parts:Failing"}, out="idle").folder
    note = "untrained: no client's update has reached global in any round"
    assert library.predict(run, ROWS).attrs["notes"] == [note]
    said = shoal("predict", "idle", "rows.npy")
    assert (said.code, f"note: {note}\n" in said.out) == (0, True)
    none = library.run(CONFIG, {"rounds": 0}, out="none").folder
    assert library.predict(none, ROWS).attrs["notes"] == [note]
    (run / "metrics.jsonl").unlink()  # the summary knows it, too
    assert library.predict(run, ROWS).attrs["notes"] == [note]


def test_of_several_models_those_that_no_update_has_reached_are_named(here: Path) -> None:
    (here / "idle_parts.py").write_text(PARTS)
    config: dict[str, Any] = {**CONFIG, "rounds": 5, "stream": {**TASKS, "order": "synchronous"}}
    run = library.run(config, {"method.per": "task", "local.learner": "idle_parts:OfTaskOne"}, out="part").folder
    assert library.predict(run, ROWS, target="task=0").attrs["notes"] == []
    assert library.predict(run, ROWS, target="task=3").attrs["notes"] == [
        "untrained: no client's update has reached task/3 in any round"
    ]
