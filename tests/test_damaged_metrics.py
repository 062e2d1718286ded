"""Metrics that were cut, changed or broken after a run had ended: it is said everywhere, and mended where it can be."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Shoal

import shoal as library
from shoal.errors import RunError
from shoal.folder import RunFolder
from shoal.progress import Quiet
from shoal.report.load import read
from shoal.report.page import page
from shoal.summary import summarise

BASE: dict[str, Any] = {
    "name": "small",
    "rounds": 4,
    "data": {"kind": "digits", "limit": 200, "limit_test": 60},
    "stream": {"kind": "static", "clients": 3, "validation": 0.2},
    "model": {"kind": "mlp", "hidden": [4]},
    "execution": {"kind": "serial"},
}


class Listener(Quiet):
    """Remembers what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, with two checkpoints: that of the last round and one before it."""
    return library.run(BASE, out=tmp_path_factory.mktemp("whole") / "run").folder


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


def begins(content: bytes, round: int) -> int:
    """Where the lines of a round begin."""
    return content.index(f'{{"round": {round},'.encode())


def cut_short(content: bytes) -> bytes:
    return content[:-5]


def cut_to_the_line(content: bytes) -> bytes:
    """Whole lines, and every record of a round among them: only some measurements of the last round are gone."""
    return content[: content[:-1].rindex(b"\n") + 1]


def broken(content: bytes) -> bytes:
    """The same length, with a broken line in the last round."""
    place = begins(content, 4)
    return content[:place] + b"!" + content[place + 1 :]


def longer(content: bytes) -> bytes:
    return content + b'{"round": 5, "metric": "accuracy", "value": 1}\n'


DAMAGES: list[tuple[Callable[[bytes], bytes], str]] = [
    (cut_short, "was cut since the run ended"),
    (cut_to_the_line, "was cut since the run ended"),
    (broken, "was changed since the run ended"),
    (longer, "was added to since the run ended"),
]


@pytest.mark.parametrize(("damage", "said"), DAMAGES)
def test_a_damaged_run_counts_as_unfinished_and_is_mended_by_resume(
    run: Path, whole: Path, damage: Callable[[bytes], bytes], said: str
) -> None:
    metrics = run / "metrics.jsonl"
    assert RunFolder(run).finished
    metrics.write_bytes(damage(metrics.read_bytes()))
    folder = RunFolder(run)
    assert (folder.ended, folder.finished) == (True, False)
    assert said in str(folder.damage())
    assert summarise(run)["finished"] is False
    runs = read(run)
    assert not runs.runs[0].finished
    assert said in page(runs)
    listener = Listener()
    library.resume(run, progress=listener)
    assert any(said in text for text in listener.said)
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (run / name).read_bytes() == (whole / name).read_bytes()
    assert RunFolder(run).finished
    assert RunFolder(run).damage() is None
    assert read(run).runs[0].finished


def test_lines_that_say_something_else_are_not_gone_on_from(run: Path) -> None:
    metrics = run / "metrics.jsonl"
    text = metrics.read_bytes().replace(b'"metric": "accuracy"', b'"metric": "accurate"')
    metrics.write_bytes(text)
    with pytest.raises(RunError, match=r"was changed since .*Bring the old file back, or start again with --force"):
        library.resume(run)
    assert metrics.read_bytes() == text
    assert not RunFolder(run).finished  # nothing has made it look like a finished one


def test_what_no_checkpoint_can_mend_is_an_error_that_says_what_to_do(run: Path) -> None:
    metrics = run / "metrics.jsonl"
    content = metrics.read_bytes()
    metrics.write_bytes(content[: begins(content, 1) - 1])  # every checkpoint counts on the lines of round 1
    with pytest.raises(RunError, match=r"changed from outside\. Remove the folder"):
        library.resume(run)
    assert not RunFolder(run).finished
    metrics.unlink()
    with pytest.raises(RunError, match="has 0 bytes, but the checkpoint"):
        library.resume(run)


def test_a_run_of_an_older_version_has_no_record_and_is_left_alone(run: Path) -> None:
    folder = RunFolder(run)
    folder.write_json("environment.json", {k: v for k, v in folder.environment().items() if k != "metrics"})
    assert folder.finished
    assert folder.damage() is None


def test_the_report_and_the_summary_read_the_same_lines(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    for wrong in (b"{oops\n", b"17\n", b"[1, 2]\n", b"\x00\x00\n"):
        (run / "metrics.jsonl").write_bytes(b"".join([*lines[:7], wrong, *lines[7:]]))
        assert len(RunFolder(run).lines()) == 7
        assert list(read(run).runs[0].lines) == RunFolder(run).lines()
        assert (
            f"metrics.jsonl: line 8 is not JSON as it was written; it, and what follows it ({len(lines) - 7} lines)"
            in (read(run).runs[0].faults[-1])
        )


def test_a_sweep_mends_a_cell_and_a_comparison_does_not_count_it(tmp_path: Path, shoal: Shoal) -> None:
    grid, out = {"local.lr": [0.1, 0.2]}, tmp_path / "s"
    library.sweep(BASE, grid, out=out, best="validation_loss")
    cell = out / "lr=0.2" / "0"
    content, chosen = (cell / "metrics.jsonl").read_bytes(), (out / "sweep.json").read_bytes()
    (cell / "metrics.jsonl").write_bytes(cut_short(content))
    said = shoal("compare", str(out / "lr=0.1"), str(out / "lr=0.2"), "--out", str(tmp_path / "c"))
    assert said.code == 0, said.err
    assert "one unfinished run" in said.out
    library.sweep(BASE, grid, out=out, best="validation_loss")
    assert (cell / "metrics.jsonl").read_bytes() == content
    assert (out / "sweep.json").read_bytes() == chosen
