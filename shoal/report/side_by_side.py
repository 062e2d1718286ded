"""Several folders laid over one another: a comparison and its page in a folder of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import RunError
from ..files import write_atomically
from .comparison import compare_runs
from .load import read
from .page import page

OWN = ("comparison.json", "report.html")
"""The files of a comparison."""
RUNS = frozenset({"config.yaml", "metrics.jsonl", "summary.json"})
"""Files that make a folder that of a run, or of several."""


def write_comparison(folders: Sequence[Path | str], out: Path | str, force: bool = False) -> Path:
    """Writes ``comparison.json`` and ``report.html`` into the new folder ``out`` and gives the path of the latter.

    The folders are runs or folders of runs; nothing is written into them. Where they differ in data, stream, rounds
    or seeds, the comparison's ``warnings`` and the page say so. A comparison that is there already is replaced only
    with ``force``; other files in ``out`` are then left alone. Raises `RunError` if a folder holds no run, if one is
    named twice, or if ``out`` has files of something else; with ``force``, too, if these are a run or several.
    """
    paths = [Path(folder) for folder in folders]
    out = Path(out)
    if not paths:
        raise RunError("a comparison needs at least one folder of runs; none was given")
    known: set[Path] = set()
    for path in paths:
        if path.resolve() in known:
            raise RunError(f"{path} is named twice; each folder is compared once")
        known.add(path.resolve())
    if out.exists() and not out.is_dir():
        raise RunError(f"{out} is a file; a comparison needs a folder of its own")
    _check_free(out, force)
    runs = read(paths[0], *paths[1:])
    comparison = compare_runs(runs)
    text = page(runs, comparison)
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "comparison.json", _json(comparison))
    write_atomically(out / "report.html", text.encode())
    return out / "report.html"


def _check_free(out: Path, force: bool) -> None:
    there = sorted(path.name for path in out.iterdir()) if out.exists() else []
    others = [name for name in there if name not in OWN]
    named = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
    if set(there) & RUNS:
        raise RunError(
            f"{out} holds other files ({named}): those of a run, whose report would be lost; "
            f"give a folder that is new or empty"
        )
    if others and not force:
        raise RunError(
            f"{out} holds other files ({named}); give a folder that is new or empty, or --force to write beside them"
        )
    if there and not force:
        raise RunError(f"{out} holds a comparison already; choose another --out, or --force to replace it")


def _json(comparison: Mapping[str, Any]) -> bytes:
    return (json.dumps(comparison, indent=2, allow_nan=False, ensure_ascii=False) + "\n").encode()
