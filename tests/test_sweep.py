"""Sweeps: the same numbers as single runs, resumed to the same files, and the best cell chosen on validation rows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Shoal

import shoal as library
from shoal.data.digits import Digits
from shoal.errors import ConfigError, RunError
from shoal.experiment import Experiment
from shoal.folder import RunFolder
from shoal.running import Interrupted

BASE: dict[str, Any] = {
    "name": "small",
    "rounds": 2,
    "data": {"kind": "digits", "limit": 200, "limit_test": 60},
    "stream": {"kind": "static", "clients": 3, "validation": 0.2},
    "model": {"kind": "mlp", "hidden": [4]},
    "execution": {"kind": "serial"},
    "local": {"lr": 0.1},
}
GRID = {"local.lr": [0.1, 0.2], "local.batch_size": [16, 32]}
CELLS = ["lr=0.1,batch_size=16", "lr=0.1,batch_size=32", "lr=0.2,batch_size=16", "lr=0.2,batch_size=32"]
SAME = ("metrics.jsonl", "model.safetensors")


def files(path: Path) -> dict[str, bytes]:
    """Those files of all runs below a folder that must not depend on when they were made."""
    found = {str(p.relative_to(path)): p.read_bytes() for name in SAME for p in sorted(path.rglob(name))}
    for name in ("sweep.json", "best.yaml", "config.yaml"):
        if (path / name).exists():
            found[name] = (path / name).read_bytes()
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> library.Sweep:
    """An uninterrupted sweep."""
    out = tmp_path_factory.mktemp("whole") / "s"
    return library.sweep(BASE, GRID, seeds=2, best="validation_accuracy", out=out)


def test_every_cell_has_the_numbers_of_the_same_run_alone(whole: library.Sweep, tmp_path: Path) -> None:
    assert list(whole.runs) == [f"{cell}/{seed}" for cell in CELLS for seed in (0, 1)]
    changes = {"local.lr": 0.2, "local.batch_size": 16, "seed": 1}
    alone = library.run(BASE, changes, out=tmp_path / "alone")
    for name in SAME:
        assert (whole.folder / CELLS[2] / "1" / name).read_bytes() == (alone.folder / name).read_bytes()


def test_the_best_cell_has_the_best_mean_over_the_seeds(whole: library.Sweep, tmp_path: Path) -> None:
    means = {}
    for cell in CELLS:
        found = [
            json.loads((whole.folder / cell / s / "summary.json").read_text())["validation_accuracy"] for s in "01"
        ]
        means[cell] = (found[0] + found[1]) / 2
    best = next(cell for cell in CELLS if means[cell] == max(means.values()))
    assert whole.chosen == best
    table = whole.table().set_index("cell")
    assert {cell: pytest.approx(mean) for cell, mean in means.items()} == dict(table["mean"])
    assert set(table["n"]) == {2}
    assert table.loc[CELLS[1], "local.batch_size"] == 32
    raw = yaml.safe_load((whole.folder / "best.yaml").read_text())
    lr, size = (part.partition("=")[2] for part in best.split(","))
    assert raw["local"] == {"lr": float(lr), "batch_size": int(size)}
    assert raw["seeds"] == [0, 1]
    assert "variants" not in raw
    again = library.run(whole.best or "", out=tmp_path / "best")
    for seed in ("0", "1"):
        ours, theirs = (
            folder / "metrics.jsonl" for folder in (again.folder / "small" / seed, whole.folder / best / seed)
        )
        assert ours.read_bytes() == theirs.read_bytes()


def test_cells_get_their_report_on_demand(whole: library.Sweep, shoal: Shoal) -> None:
    assert (whole.folder / "report.html").exists()
    cell = whole.folder / CELLS[0] / "0"
    assert not list(whole.folder.glob("*/*/report.html"))
    assert shoal("report", str(cell)).out.strip() == str(cell / "report.html")
    assert whole.runs[f"{CELLS[1]}/1"].report.exists()
    assert shoal("report", str(cell.parent)).code == 0  # its seeds side by side
    for path in whole.folder.glob("**/report.html"):
        if path.parent != whole.folder:
            path.unlink()


class Killed(BaseException):
    """A process that is gone at once: nothing is saved on the way out."""


@pytest.mark.parametrize(("after", "how"), [(4, KeyboardInterrupt), (9, Killed)])
def test_a_sweep_that_was_stopped_goes_on_to_the_same_files(
    whole: library.Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int, how: type[BaseException]
) -> None:
    play, count = Experiment.play, [0]

    def stopped(self: Experiment, state: Any) -> Any:
        count[0] += 1
        if count[0] == after:
            raise how
        return play(self, state)

    out = tmp_path / "s"
    with monkeypatch.context() as patched:
        patched.setattr(Experiment, "play", stopped)
        with pytest.raises((Interrupted, Killed)) as caught:
            library.sweep(BASE, GRID, seeds=2, best="validation_accuracy", out=out)
    assert not RunFolder(out).sweep()["finished"]
    if how is KeyboardInterrupt:
        assert f"go on with: shoal resume {out}" in str(caught.value)
        found: Any = library.resume(out)
        assert isinstance(found, library.Sweep)
    else:
        found = library.sweep(BASE, GRID, seeds=2, best="validation_accuracy", out=out)
    assert found.chosen == whole.chosen
    assert files(out) == files(whole.folder)


def test_the_measure_of_validation_rows_is_added_where_it_is_needed(tmp_path: Path) -> None:
    raw = {**BASE, "rounds": 1, "evaluate": {"measures": ["accuracy"]}}
    plain = library.sweep(raw, {"local.lr": [0.1, 0.2]}, out=tmp_path / "a")
    assert "validation_accuracy" not in plain.runs["lr=0.1/0"].summary
    assert plain.chosen is None
    assert plain.best is None
    chosen = library.sweep(raw, {"local.lr": [0.1, 0.2]}, out=tmp_path / "b", best="validation_accuracy")
    assert chosen.runs["lr=0.1/0"].summary["validation_accuracy"] > 0
    assert RunFolder(tmp_path / "b" / "lr=0.1" / "0").config()["evaluate"]["measures"] == ["accuracy", "validation"]


def test_finished_cells_are_left_alone_and_data_are_loaded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[object] = []
    load = Digits.load
    monkeypatch.setattr(Digits, "load", lambda self: (loaded.append(self), load(self))[1])
    first = library.sweep(BASE, {"local.lr": [0.1, 0.2]}, out=tmp_path / "s")
    assert len(loaded) == 1
    before = {p: p.stat().st_mtime_ns for p in first.folder.glob("*/*/summary.json")}
    more = library.sweep(BASE, {"local.lr": [0.3, 0.1, 0.2]}, seeds=[0, 5], out=tmp_path / "s")
    assert len(loaded) == 2
    assert [cell["cell"] for cell in more.sweep["cells"]] == ["lr=0.3", "lr=0.1", "lr=0.2"]
    assert len(more.runs) == 6
    assert len(before) == 2
    assert {p: p.stat().st_mtime_ns for p in before} == before
    again = library.sweep(BASE, {"local.lr": [0.3, 0.1, 0.2]}, seeds=[0, 5], out=tmp_path / "s", best="validation_loss")
    assert len(loaded) == 2  # nothing was left to run
    assert again.chosen is not None


def test_a_sweep_may_only_grow(tmp_path: Path) -> None:
    out = tmp_path / "s"
    library.sweep(BASE, {"local.lr": [0.1, 0.2]}, out=out)
    before = files(out)
    for grid, more, message in (
        ({"local.lr": [0.1, 0.3]}, {}, r"runs that this one lacks: lr=0\.2/0"),
        ({"local.lr": [0.1, 0.2]}, {"seeds": [1]}, "lacks"),
        ({"local.lr": [0.1, 0.2], "rounds": [2, 3]}, {}, "lacks"),
        (
            {"local.lr": [0.1, 0.2]},
            {"overrides": {"local.epochs": 2}},
            r"another configuration: local\.epochs \(1.* -> 2",
        ),
    ):
        with pytest.raises(RunError, match=message):
            library.sweep(BASE, grid, out=out, **more)
        assert files(out) == before
    library.sweep(BASE, {"local.lr": [0.2, 0.1]}, out=out, overrides={"execution.kind": "workers", "name": "x"})
    library.sweep(BASE, {"local.lr": [0.5, 0.4]}, out=out, force=True)
    assert {p.name for p in out.glob("*/0/metrics.jsonl")} == {"metrics.jsonl"}
    assert set(library.Sweep(out).runs) == {"lr=0.5/0", "lr=0.4/0"}
    assert not (out / "lr=0.1" / "0" / "config.yaml").exists()


def test_the_order_of_the_settings_does_not_matter_when_a_sweep_goes_on(whole: library.Sweep, tmp_path: Path) -> None:
    shutil.copytree(whole.folder, tmp_path / "s")
    grid = {key: GRID[key] for key in reversed(GRID)}
    library.sweep(BASE, grid, seeds=2, best="validation_accuracy", out=tmp_path / "s")
    assert files(tmp_path / "s") == files(whole.folder)


def test_variants_times_cells_and_plain_overrides(tmp_path: Path) -> None:
    raw = {**BASE, "variants": {"a": {"local.lr": 0.5}, "b": None}, "seeds": [3]}
    grid = {"method.server.lr": [0.5, 1], "rounds": 1}
    found = library.sweep(raw, grid, out=tmp_path / "s")
    assert list(found.runs) == ["a,lr=0.5/3", "a,lr=1/3", "b,lr=0.5/3", "b,lr=1/3"]
    config = RunFolder(tmp_path / "s" / "a,lr=0.5" / "3").config()
    assert (config["rounds"], config["local"]["lr"], config["method"]["server"]["lr"]) == (1, 0.5, 0.5)
    assert set(found.frame()["variant"]) == {"a,lr=0.5", "a,lr=1", "b,lr=0.5", "b,lr=1"}
    only = library.sweep(raw, {}, out=tmp_path / "t", best="validation_accuracy", overrides={"rounds": 1})
    assert only.chosen in ("a", "b")


@pytest.mark.parametrize(
    ("changes", "grid", "best", "message"),
    [
        ({}, {}, None, "nothing to sweep over"),
        ({}, {"local.lr": [0.1]}, None, "nothing to sweep over"),
        ({}, {"local.lr": [0.1, -1]}, None, r"lr=-1: local\.lr: .*greater than 0"),
        ({}, {"local.learning_rate": [1, 2]}, None, r"local\.learning_rate: no such setting"),
        ({}, {"model.kind": ["mlp", "cnn"]}, None, "kind=cnn: model"),
        (
            {"stream.validation": 0},
            {"local.lr": [0.1, 0.2]},
            "validation_loss",
            r"needs validation rows.*stream\.validation",
        ),
        ({"evaluate.every": 0}, {"local.lr": [0.1, 0.2]}, "validation_loss", r"evaluate\.every is 0"),
        ({}, {"local.lr": [0.1, 0.2]}, "acc", "comes from test rows.*validation_accuracy"),
        ({"data.path": "x"}, {"local.lr": [0.1, 0.2]}, None, r"data\.path: no such setting"),
        ({"track": "nothing"}, {"local.lr": [0.1, 0.2]}, None, "no tracker is called 'nothing'"),
    ],
)
def test_everything_wrong_is_found_before_the_first_run(
    tmp_path: Path, changes: dict[str, Any], grid: dict[str, Any], best: str | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        library.sweep(BASE, grid, out=tmp_path / "s", best=best, overrides=changes)
    assert not (tmp_path / "s").exists()


def test_a_sweep_does_not_take_the_folder_of_another_run(tmp_path: Path) -> None:
    library.run(BASE, {"seeds": [0], "rounds": 0}, out=tmp_path / "r")
    with pytest.raises(RunError, match="no sweep"):
        library.sweep(BASE, {"local.lr": [0.1, 0.2]}, out=tmp_path / "r")
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "thesis.tex").write_text("x")
    with pytest.raises(RunError, match="other files"):
        library.sweep(BASE, {"local.lr": [0.1, 0.2]}, out=tmp_path / "o")


# ---- on the command line -------------------------------------------------------------------------------------------


def test_the_command(shoal: Shoal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(yaml.safe_dump(BASE))
    said = shoal("sweep", "small.yaml", "local.lr=0.1,0.2", "rounds=1", "--seeds", "2", "--best", "validation_accuracy")
    assert said.code == 0, said.err
    assert "validation_accuracy, the largest is best" in said.out
    assert "best: lr=0." in said.out
    assert "runs/small-sweep/best.yaml" in said.out
    assert "final accuracy on the test rows" in said.out
    said = shoal("sweep", "small.yaml", "local.lr=0.1,0.2", "rounds=1", "--seeds", "0,1")
    assert said.code == 0, said.err
    assert "accuracy %" in said.out
    refused = shoal("sweep", "small.yaml", "local.lr=0.1,0.2", "--best", "acc")
    assert (refused.code, "comes from test rows" in refused.err) == (2, True)
    explained = " ".join(shoal("sweep", "--help").out.split())
    assert "goes on where an interrupted sweep stopped" in explained


def test_an_interrupt_on_the_command_line_says_how_to_go_on(
    shoal: Shoal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(yaml.safe_dump(BASE))

    def interrupted(self: Experiment, state: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Experiment, "play", interrupted)
        said = shoal("sweep", "small.yaml", "local.lr=0.1,0.2", "--out", "s")
    assert said.code == 130
    assert said.err.strip().endswith("go on with: shoal resume s")
    assert shoal("resume", "s").code == 0
    assert library.Sweep(tmp_path / "s").sweep["finished"] is True
