"""Files that grow line by line: what a crash leaves of them is read as far as it goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.files import BROKEN, json_lines
from shoal.folder import read_lines


@pytest.mark.parametrize(
    ("content", "whole", "values"),
    [
        (b'{"a": 1}\n{"b": 2}\n', [{"a": 1}, {"b": 2}], [{"a": 1}, {"b": 2}]),
        (b'{"a": 1}\n{"b": 2}', [{"a": 1}, {"b": 2}], [{"a": 1}, {"b": 2}]),
        (b'{"a": 1}\n\n{"b": [2, \xff', [{"a": 1}], [{"a": 1}]),
        (b'{"a": 1}\n{"b": [2\n{"c": 3}\n', [{"a": 1}], [{"a": 1}, BROKEN, {"c": 3}]),
        (b"[1\n2]\n", [], [BROKEN, BROKEN]),
        (b"", [], []),
    ],
)
def test_lines_up_to_a_broken_one(tmp_path: Path, content: bytes, whole: list[object], values: list[object]) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(content)
    assert read_lines(path) == whole
    assert list(json_lines(path)) == values


def test_no_file_is_no_line(tmp_path: Path) -> None:
    assert read_lines(tmp_path / "none.jsonl") == []
    assert list(json_lines(tmp_path / "none.jsonl")) == []
