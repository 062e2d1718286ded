"""Decoded rows kept on disk: found by the content of the source files, memory-mapped, checked, rebuilt if damaged."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from .source import Decoded, digest

FORMAT = "shoal-rows-1"
log = logging.getLogger(__name__)


def default_folder() -> Path:
    """The folder ``shoal`` under the user's cache directory; ``XDG_CACHE_HOME`` says where that is."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    if chosen and Path(chosen).is_absolute():
        return Path(chosen) / "shoal"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "shoal"
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "shoal"


def cached(
    cache: str | None, files: Sequence[Path], settings: Mapping[str, Any], decode: Callable[[], Decoded]
) -> Decoded:
    """The rows from the cache, or decoded and put there.

    The key is a hash of the files' bytes and of ``settings`` (plain values that decide the decoding). ``cache`` is a
    folder, ``"auto"`` (`default_folder`) or ``None`` (no cache). Every array is checked against its hash. A missing
    or damaged entry is decoded again; a folder that cannot be written is logged, and the rows stay in memory.
    """
    if cache is None:
        return decode()
    folder = default_folder() if cache == "auto" else Path(cache).expanduser()
    folder = folder / _key(files, settings)
    found = _read(folder)
    if found is not None:
        return found
    rows = decode()
    rows = replace(rows, digests={name: digest(array) for name, array in rows.arrays().items()})
    try:
        _write(folder, rows)
    except OSError as error:
        log.warning("decoded data are not cached, %s cannot be written: %s", folder, error)
    return rows


def _key(files: Sequence[Path], settings: Mapping[str, Any]) -> str:
    key = hashlib.sha256(json.dumps([FORMAT, settings], sort_keys=True).encode())
    for path in files:
        with path.open("rb") as file:
            key.update(hashlib.file_digest(file, "sha256").digest())
    return key.hexdigest()[:32]


def _read(folder: Path) -> Decoded | None:
    """The rows of an entry; ``None`` if there is none or anything about it is wrong."""
    try:
        meta = json.loads((folder / "meta.json").read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.info("cache %s cannot be read, decoding again: %s", folder, error)
        return None
    try:
        # "c" maps copy-on-write: what torch wants of a tensor's memory, while the file is never written.
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="c") for name in meta["digests"]}
        wrong = [name for name, array in arrays.items() if digest(array) != meta["digests"][name]]
        if wrong:
            raise ValueError(f"{wrong} do not have the hash that was written down")
        columns = {
            column: (_plain(arrays[f"column-{i}"]), tuple(names))
            for i, (column, names) in enumerate(meta["columns"])
        }
        return Decoded(
            _plain(arrays["features"]),
            _plain(arrays["labels"]),
            tuple(meta["classes"]),
            columns,
            meta["train_rows"],
            meta["peak"],
            meta["digests"],
        )
    except (OSError, ValueError, KeyError, TypeError, EOFError, AttributeError) as error:
        log.info("cache %s is damaged, decoding again: %s", folder, error)
        return None


def _plain(array: np.ndarray) -> np.ndarray:
    return array.view(np.ndarray)


def _write(folder: Path, rows: Decoded) -> None:
    """Writes an entry; the file that makes it valid comes last, and each appears at once or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in rows.arrays().items():
        _replace(folder / f"{name}.npy", lambda file, array=array: np.save(file, array, allow_pickle=False))
    meta = {
        "digests": dict(rows.digests),
        "classes": rows.classes,
        "columns": [(column, names) for column, (_, names) in rows.columns.items()],
        "train_rows": rows.train_rows,
        "peak": rows.peak,
    }
    _replace(folder / "meta.json", lambda file: file.write(json.dumps(meta).encode()))


def _replace(path: Path, write: Callable[[Any], object]) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
