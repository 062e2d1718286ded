"""The command line: what it prints, what it refuses, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Shoal

import shoal as library

SMALL = ["quickstart", "rounds=5", "seeds=[]", "variants={}", "local.epochs=1"]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_run_prints_a_table_and_is_quiet_where_there_is_no_terminal(shoal: Shoal, tmp_path: Path) -> None:
    said = shoal("run", *SMALL)
    assert said.code == 0, said.err
    assert said.err == ""
    assert "acc" in said.out
    assert "runs/quickstart/report.html" in said.out
    summary = json.loads((tmp_path / "runs/quickstart/summary.json").read_text())
    assert summary["finished"] is True
    keys = """method seed rounds acc acc_last5 trainable_parameters model_bytes bytes_down_per_round
        bytes_up_per_round total_bytes_down total_bytes_up seconds client_steps_per_second engine bwt_f client_drift
        peak_memory_mb server"""
    assert [key for key in keys.split() if summary.get(key) is None] == []
    assert summary["trainable_parameters"] == 64 * 64 + 64 + 64 * 10 + 10
    assert summary["model_bytes"] == 4 * summary["trainable_parameters"]
    assert summary["bytes_down_per_round"] == summary["bytes_up_per_round"] == summary["model_bytes"]
    assert summary["total_bytes_down"] == 5 * 5 * summary["model_bytes"]
    names = {p.name for p in (tmp_path / "runs/quickstart").iterdir() if not p.name.startswith(".")}
    assert names == {
        "config.yaml",
        "environment.json",
        "metrics.jsonl",
        "timings.jsonl",
        "summary.json",
        "checkpoint",
        "model.safetensors",
        "report.html",
        "clients.csv",
    }


def test_the_table_of_a_run_has_mean_and_worst_tenth_of_further_metrics(shoal: Shoal, tmp_path: Path) -> None:
    said = shoal("run", *SMALL, "evaluate.metrics=[f1]")
    assert said.code == 0, said.err
    rows = dict(
        (cell.strip() for cell in line.strip("│").split("│")) for line in said.out.splitlines() if line.count("│") == 3
    )
    spread = json.loads((tmp_path / "runs/quickstart/summary.json").read_text())["over_targets"]
    assert rows["f1"] == f"{spread['f1']['mean']:.4g}"
    for name in ("accuracy", "f1"):
        assert rows[f"{name}, worst tenth"] == f"{spread[name]['worst_decile']:.4g} (over {spread[name]['n']} targets)"


def test_a_finished_run_is_not_overwritten(shoal: Shoal) -> None:
    assert shoal("run", *SMALL).code == 0
    said = shoal("run", *SMALL)
    assert said.code == 2
    assert "finished run" in said.err
    assert "--force" in said.err
    assert shoal("run", *SMALL, "--force").code == 0
    assert "nothing to do" in shoal("resume", "runs/quickstart").err


def test_a_folder_with_other_files_is_left_alone(shoal: Shoal, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    said = shoal("run", *SMALL, "--out", "mine")
    assert said.code == 2
    assert "other files" in said.err
    assert [p.name for p in (tmp_path / "mine").iterdir() if p.name != ".lock"] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "quikstart"], "did you mean 'quickstart'"),
        (["run", *SMALL, "local.learning_rate=1"], "local.learning_rate: no such setting"),
        (["run", *SMALL, "method.server.kind=adm"], "did you mean 'adam'"),
        (["run", *SMALL, "rounds=3"], "rounds"),
        (["run", *SMALL, "participation.count=9"], "9 different clients a round, but only 5"),
        (["run", *SMALL, "method.server={kind: adam, tau: 0.1, calibration: {kind: p}}"], "tau"),
        (["run", *SMALL, "data={kind: idx, path: nowhere}"], "nowhere"),
        (["run", *SMALL, "data=arrays"], "data="),
        (["resume", "nowhere"], "holds no run"),
        (["report", "nowhere"], "holds no run"),
        (["show", "quickstart", "stream.partition.alpha=0"], "alpha"),
    ],
)
def test_mistakes_get_one_message_and_leave_nothing_behind(
    shoal: Shoal, tmp_path: Path, arguments: list[str], message: str
) -> None:
    said = shoal(*arguments)
    assert said.code == 2, said.out
    assert message in said.err
    assert "Traceback" not in said.err
    assert not list(tmp_path.rglob("metrics.jsonl"))


def test_show_tells_who_holds_what_when(shoal: Shoal) -> None:
    said = shoal("show", "quickstart", "rounds=5", "stream.clients=3")
    assert said.code == 0
    assert "order: asynchronous" in said.out
    assert "4,810 trainable parameters" in said.out
    assert "rotate90" in said.out


def test_lists(shoal: Shoal) -> None:
    methods = shoal("methods").out
    for word in ("fedavg", "amsgrad", "softplus", "dirichlet", "resnet20", "fedadam"):
        assert word in methods
    assert "quickstart" in shoal("recipes").out
    assert shoal("--version").out.strip() == library.__version__


def test_variants_and_seeds_become_runs_side_by_side(shoal: Shoal, tmp_path: Path) -> None:
    changes = [
        "rounds=5",
        "seeds=[0, 4]",
        "local.epochs=1",
        "variants={a: {method.server.lr: 0.5}, b: {method: fedadam}}",
    ]
    said = shoal("run", "quickstart", *changes, "--out", "many")
    assert said.code == 0, said.err
    comparison = json.loads((tmp_path / "many" / "comparison.json").read_text())
    assert set(comparison["variants"]) == {"a", "b"}
    runs = sorted(str(p.parent.relative_to(tmp_path / "many")) for p in (tmp_path / "many").rglob("summary.json"))
    assert runs == ["a/0", "a/4", "b/0", "b/4"]
    (tmp_path / "many" / "b" / "4" / "summary.json").unlink()
    assert shoal("resume", "many").code == 0
    assert (tmp_path / "many" / "b" / "4" / "summary.json").exists()
    result = library.Result(tmp_path / "many")
    assert set(result.frame()["variant"]) == {"a", "b"}
    assert shoal("run", "quickstart", *changes, "--out", "many").code == 2
    assert shoal("run", "quickstart", *changes, "--out", "many", "--force").code == 0


def test_compare_lays_runs_side_by_side(shoal: Shoal, tmp_path: Path) -> None:
    for seed in ("0", "1"):
        assert shoal("run", *SMALL, f"seed={seed}", "--out", f"r{seed}").code == 0
    said = shoal("compare", "r0", "r1")
    assert said.code == 0, said.err
    assert "accuracy %" in said.out
    assert "report: runs/compare-r0-r1/report.html" in said.out
    assert (tmp_path / "runs/compare-r0-r1/comparison.json").exists()
    for arguments, message in (
        (["r0"], "two folders or more"),
        (["r0", "r0"], "twice"),
        (["r0", "nowhere"], "holds no run"),
        (["r0", "r1", "--out", "r0"], "holds other files"),
    ):
        said = shoal("compare", *arguments)
        assert said.code == 2, arguments
        assert message in said.err


def test_runs_of_several_get_their_report_on_demand(shoal: Shoal, tmp_path: Path) -> None:
    assert shoal("run", *SMALL[:2], "local.epochs=1", "variants={a: {}}", "seeds=[0, 1]", "--out", "many").code == 0
    assert (tmp_path / "many" / "report.html").exists()
    assert not list((tmp_path / "many").glob("*/*/report.html"))
    assert shoal("report", "many/a/1").code == 0
    assert shoal("report", "many/a").code == 0
    assert (tmp_path / "many" / "a" / "1" / "report.html").exists()
    assert library.Result(tmp_path / "many").runs["a/0"].report.exists()


def test_an_empty_folder_has_no_report(shoal: Shoal, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    said = shoal("report", "empty")
    assert said.code == 2
    assert "found neither" in said.err
