"""Fault: with every measurement off, or nothing to measure, the end of a run takes the best of nothing and fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Shoal
from fault_lab import config

STATIC = {"kind": "static", "clients": 3}
TASKS = {"kind": "tasks", "tasks": 2, "by": "class", "clients": 3, "validation": 0}
OFF: dict[str, dict[str, Any]] = {
    "never": {"evaluate": {"every": 0}},
    "no-measures": {"evaluate": {"measures": []}},
    "all-off": {"evaluate": {"every": 0, "measures": [], "metrics": []}},
    "no-rounds": {"rounds": 0},
    "interval-above-rounds": {"rounds": 7, "evaluate": {"every": 1000}},
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(here: Path, stream: dict[str, Any], changes: dict[str, Any]) -> None:
    data = {"kind": "digits", "limit": 60, "limit_test": 30}
    (here / "off.yaml").write_text(yaml.safe_dump({**config(data=data), "stream": stream, **changes}))


@pytest.mark.parametrize("name", OFF)
@pytest.mark.parametrize("stream", [STATIC, TASKS], ids=["static", "tasks"])
def test_every_command_works_without_a_measurement(here: Path, shoal: Shoal, name: str, stream: dict[str, Any]) -> None:
    write(here, stream, OFF[name])
    if name == "no-rounds" and stream is TASKS:
        said = shoal("run", "off.yaml", "--out", "a")
        assert said.code == 2
        assert "tasks need at least one round each" in said.err
        return
    assert shoal("show", "off.yaml").code == 0
    said = shoal("run", "off.yaml", "--out", "a")
    assert said.code == 0, said.out + said.err
    lines = (here / "a" / "metrics.jsonl").read_bytes()
    summary = json.loads((here / "a" / "summary.json").read_text())
    (here / "a" / "summary.json").unlink()  # as if the run had been killed before its end
    (here / "a" / "report.html").unlink()
    assert shoal("resume", "a").code == 0
    assert (here / "a" / "metrics.jsonl").read_bytes() == lines
    again = json.loads((here / "a" / "summary.json").read_text())
    assert again["finished"]
    assert again.get("acc") == summary.get("acc")
    assert (again.get("acc") is not None) == (name == "interval-above-rounds")
    assert shoal("report", "a").code == 0
    assert (here / "a" / "report.html").is_file()
    assert shoal("run", "off.yaml", "seed=1", "--out", "b").code == 0
    assert shoal("compare", "a", "b").code == 0


@pytest.mark.parametrize("name", OFF)
def test_several_runs_are_compared_without_a_measurement(here: Path, shoal: Shoal, name: str) -> None:
    write(here, STATIC, {**OFF[name], "seeds": [0, 1], "variants": {"x": {}, "y": {"local.lr": 0.2}}})
    said = shoal("run", "off.yaml", "--out", "many")
    assert said.code == 0, said.out + said.err
    comparison = json.loads((here / "many" / "comparison.json").read_text())
    assert comparison["finished"]
    assert set(comparison["variants"]) == {"x", "y"}
    assert shoal("report", "many").code == 0
    assert shoal("resume", "many").code == 0
