"""Exit codes as docs/commands.md defines them, and errors of the system in words."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Shoal

import shoal as library
from shoal.errors import in_words
from shoal.folder import RunFolder

SMALL: dict[str, Any] = {
    "rounds": 3,
    "data": {"kind": "digits", "limit": 100},
    "stream": {"kind": "static", "clients": 3},
    "model": {"kind": "mlp", "hidden": [4]},
    "execution": {"kind": "serial"},
}
LATE = '''
from shoal.errors import ConfigError
from shoal.methods.fedavg import FedAvg

class Late(FedAvg):
    """Finds in round 2 that something is wrong."""
    def merge(self, bank, updates, when):
        if when.round == 2:
            raise ConfigError("there is no such thing")
        return super().merge(bank, updates, when)
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SMALL))
    return tmp_path


def full(*arguments: Any, **more: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/a/metrics.jsonl")


def test_a_disk_that_is_full_in_mid_run_is_3(here: Path, shoal: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    append, count = RunFolder.append, [0]

    def later(self: RunFolder, name: str, *arguments: Any, **more: Any) -> int:
        count[0] += 1
        if count[0] > 4:  # the header, and round 1
            full()
        return append(self, name, *arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "append", later)
        said = shoal("run", "small.yaml", "--out", "a")
    assert said.code == 3
    assert said.err == (
        "error: 'runs/a/metrics.jsonl' cannot be used: No space left on device; when that is mended go on with: "
        "shoal resume a\n"
    )
    assert shoal("resume", "a").code == 0
    whole = library.run(SMALL, out="whole").folder
    assert (here / "a" / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize("where", ["shoal.many.write_report", "shoal.running.export"])
def test_a_full_disk_stops_several_runs_and_all_go_on_with_one_command(
    where: str, here: Path, shoal: Shoal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of all, and at the end of one of them."""
    with monkeypatch.context() as patched:
        patched.setattr(where, full)
        said = shoal("run", "small.yaml", "seeds=[0, 1]", "rounds=1", "--out", "many")
    assert said.code == 3
    assert said.err.strip().endswith("when that is mended go on with: shoal resume many")
    assert shoal("resume", "many").code == 0


def test_a_part_that_complains_in_mid_run_is_3_and_one_that_does_before_is_2(here: Path, shoal: Shoal) -> None:
    (here / "late_parts.py").write_text(LATE)
    said = shoal("run", "small.yaml", "method=late_parts:Late", "--out", "a")
    assert said.code == 3
    assert said.err == ("error: round 2: there is no such thing; when that is mended go on with: shoal resume a\n")
    assert RunFolder(here / "a").checkpoints.rounds() == [1]
    said = shoal("run", "small.yaml", "method=late_parts:Later", "--out", "b")
    assert said.code == 2
    assert not (here / "b").exists()


def test_a_folder_that_cannot_be_made_gets_a_sentence(here: Path, shoal: Shoal) -> None:
    (here / "file").write_text("x")
    said = shoal("run", "small.yaml", "--out", "file/run")
    assert said.code == 2
    assert said.err == (
        f"error: no run can be kept in file/run: '{Path('file/run')}' cannot be used: Not a directory; "
        f"choose another folder\n"
    )


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
@pytest.mark.parametrize("command", [["run", "small.yaml"], ["sweep", "small.yaml", "local.lr=0.1,0.2"]])
def test_a_place_where_nothing_can_be_made_gets_a_sentence(here: Path, shoal: Shoal, command: list[str]) -> None:
    said = shoal(*command, "--out", "/proc/x")
    assert said.code == 2
    assert "no run can be kept in /proc/x: '/proc/x' cannot be used: No such file or directory" in said.err
    assert "Errno" not in said.err


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(13, "Permission denied", "/a"), "'/a' cannot be used: Permission denied"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError(18, "Invalid link", "/a", None, "/b"), "'/a' -> '/b' cannot be used: Invalid link"),
        (OSError("plain"), "plain"),
        (OSError(), "OSError"),
    ],
)
def test_errors_of_the_system_in_words(error: OSError, text: str) -> None:
    assert in_words(error) == text
