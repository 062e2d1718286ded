"""What a run records of concepts and domains, where its stream has no tasks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import shoal

STREAM = """
from dataclasses import replace
from shoal.streams.static import StaticStream


class Sites(StaticStream):
    def holding(self, client, round):
        truth = {"concept": (client + round) % 2, "domain": "sea" if client else "air", "phase": 0}
        return replace(super().holding(client, round), truth=truth)
"""
CONFIG = {
    "rounds": 2, "data": {"kind": "digits", "limit": 60}, "model": {"kind": "mlp", "hidden": []},
    "execution": {"kind": "serial"}, "evaluate": {"measures": []},
}  # fmt: skip


def rounds(folder: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line.get("record") == "round"]


def test_who_held_which_concept_and_domain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "streams_of_sites.py").write_text(STREAM)
    stream = {"kind": "streams_of_sites:Sites", "clients": 3}
    shoal.run({**CONFIG, "stream": stream}, out=tmp_path / "run")
    assert [line["held"] for line in rounds(tmp_path / "run")] == [
        {"concept": {"1": [0, 2], "0": [1]}, "domain": {"air": [0], "sea": [1, 2]}},
        {"concept": {"0": [0, 2], "1": [1]}, "domain": {"air": [0], "sea": [1, 2]}},
    ]
    text = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "concept held" in text


@pytest.mark.parametrize("stream", [{"kind": "static"}, {"kind": "tasks", "tasks": 2}])
def test_streams_of_tasks_or_of_nothing_record_no_more(tmp_path: Path, stream: dict[str, object]) -> None:
    shoal.run({**CONFIG, "stream": {**stream, "clients": 2}}, out=tmp_path / "run")
    assert all("held" not in line for line in rounds(tmp_path / "run"))
