"""Files that survive a crash at any moment, and reading those that grow line by line."""

from __future__ import annotations

import contextlib
import hashlib
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


def read_records(path: Path) -> tuple[list[dict[str, Any]], str | None]:
    """The lines of a file up to the first that is no JSON object, and a sentence if there is such a line.

    What follows a damaged line is not used: nobody knows what was lost with it. Raises ``OSError``.
    """
    found: list[dict[str, Any]] = []
    rest = json_lines(path)
    for value in rest:
        if not isinstance(value, dict):
            after = sum(1 for _ in rest)
            also = f", and what follows it ({after} lines)" if after else ""
            return found, f"{path.name}: line {len(found) + 1} is not JSON as it was written; it{also} is left out"
        found.append(value)
    return found, None


def whole_bytes(path: Path) -> int:
    """How many bytes of a file are whole lines of JSON, from its beginning; 0 without a file."""
    end = 0
    try:
        with path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n") or (line.strip() and not isinstance(_value(line), dict)):
                    break
                end += len(line)
    except FileNotFoundError:
        return 0
    return end


def digest(path: Path, length: int | None = None) -> tuple[int, str]:
    """The length of a file, and the SHA-256 of its first ``length`` bytes (of all of them); (0, ...) without a file."""
    found = hashlib.sha256()
    try:
        size = path.stat().st_size
        left = size if length is None else length
        with path.open("rb") as file:
            while left > 0 and (block := file.read(min(left, 2**20))):
                found.update(block)
                left -= len(block)
    except FileNotFoundError:
        return 0, found.hexdigest()
    return size, found.hexdigest()


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
