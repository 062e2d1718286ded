"""Files that survive a crash at any moment, and reading those that grow line by line."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

BROKEN = object()
"""What `json_lines` gives for a line that is no JSON."""
_BLOCK = 10_000


def json_lines(path: Path) -> Iterator[Any]:
    """The value of each line, `BROKEN` where there is none; nothing without a file.

    A last line without its end may be half-written, and is left out unless it is whole. Raises ``OSError``.
    """
    try:
        *lines, last = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return
    lines = [line for line in lines if line.strip()]
    for begin in range(0, len(lines), _BLOCK):
        yield from _values(lines[begin : begin + _BLOCK])
    if last.strip():
        with contextlib.suppress(ValueError):
            yield json.loads(last)


def _values(lines: Sequence[bytes]) -> list[Any]:
    """The lines as one list: twice as fast as one by one, and equal keys are kept once."""
    with contextlib.suppress(ValueError):
        found = json.loads(b"[" + b",".join(lines) + b"]")
        if len(found) == len(lines):
            return list(found)
    return [_value(line) for line in lines]


def _value(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return BROKEN


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces a file by this content, so that a crash at any moment leaves the old or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes renames inside a folder last (where the system can)."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
