"""Decoded rows kept on disk: found by the content of the source files, memory-mapped, checked, rebuilt if damaged."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError
from .source import OPTIONAL, Decoded, digest

FORMAT = "shoal-rows-3"
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
        try:
            with path.open("rb") as file:
                key.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error}") from None
    return key.hexdigest()[:32]


def _read(folder: Path) -> Decoded | None:
    """The rows of an entry; ``None`` if there is none or anything about it is wrong."""
    if not (folder / "meta.json").exists():
        return None
    try:
        return _checked(folder)
    except Exception as error:  # whatever a damaged file makes of numpy's or json's parser
        log.info("cache %s is damaged, decoding again: %s", folder, error)
        return None


def _checked(folder: Path) -> Decoded:
    written = json.loads((folder / "meta.json").read_text("utf-8"))
    meta = json.loads(written["content"])
    if written["sha256"] != _text_digest(written["content"]):
        raise ValueError("meta.json does not have its own hash")
    # "c" maps copy-on-write: what torch wants of a tensor's memory, while the file is never written.
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="c") for name in meta["digests"]}
    wrong = [name for name, array in arrays.items() if digest(array) != meta["digests"][name]]
    if wrong:
        raise ValueError(f"{wrong} do not have the hash that was written down")
    columns = {column: (arrays[f"column-{i}"], tuple(names)) for i, (column, names) in enumerate(meta["columns"])}
    return Decoded(
        arrays["features"],
        arrays["labels"],
        tuple(meta["classes"]),
        columns,
        meta["train_rows"],
        meta["peak"],
        meta["digests"],
        notes=tuple(meta["notes"]),
        reader=meta["reader"],
        **{name: arrays.get(name) for name in OPTIONAL},
    )


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _write(folder: Path, rows: Decoded) -> None:
    """Writes an entry; the file that makes it valid comes last, and each appears at once or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in rows.arrays().items():
        _replace(folder / f"{name}.npy", functools.partial(np.save, arr=array, allow_pickle=False))
    content = {
        "digests": dict(rows.digests),
        "classes": rows.classes,
        "columns": [(column, names) for column, (_, names) in rows.columns.items()],
        "train_rows": rows.train_rows,
        "peak": rows.peak,
        "notes": rows.notes,
        "reader": rows.reader,
    }
    text = json.dumps(content)
    meta = json.dumps({"content": text, "sha256": _text_digest(text)}).encode()
    _replace(folder / "meta.json", lambda file: file.write(meta))


def _replace(path: Path, write: Callable[[Any], object]) -> None:
    # Not tempfile, whose files nobody else may read: a cache can be shared.
    temporary = path.with_name(f".writing-{os.getpid()}-{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            write(file)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
