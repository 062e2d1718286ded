"""Every block of docs/commands.md works, one after another, and every command is on the page."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from conftest import Shoal

from shoal.cli.app import app

PAGE = (Path(__file__).parent.parent / "docs" / "commands.md").read_text(encoding="utf-8")


def test_the_blocks_run_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shoal: Shoal) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    blocks = re.findall(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert {language for language, file, _ in blocks if not file} == {"console", "python"}
    for language, file, text in blocks:
        if file:
            (tmp_path / file).write_text(text)
        elif language == "python":
            exec(compile(text, "commands.md", "exec"), {"__name__": "page"})
        else:
            for line in text.splitlines():
                program, *arguments = shlex.split(line.removeprefix("$ "))
                assert program == "shoal"
                said = shoal(*arguments)
                assert said.code == 0, f"{line}\n{said.err}"
                assert said.out
    assert (tmp_path / "runs/both/report.html").exists()
    assert (tmp_path / "runs/s/lr=0.05/0/report.html").exists()
    assert (tmp_path / "predictions.csv").read_text().startswith("row,prediction,confidence,p:0,p:1")
    assert re.fullmatch(r"0\.\d\d\n", (tmp_path / "runs/u/best.txt").read_text())


def test_every_command_is_on_the_page() -> None:
    names = [command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands]
    assert len(names) >= 10
    assert [name for name in names if f"`shoal {name}" not in PAGE] == []
    assert [name for name in names if f"$ shoal {name}" not in PAGE] == []
