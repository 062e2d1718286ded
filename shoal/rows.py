"""Further rows for a model that is finished: files, arrays and frames, read as the run's own data were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from .data.arrays import as_table
from .data.dataset import Dataset
from .data.normalisation import shifted
from .errors import DataError, in_words


@dataclass(frozen=True)
class Rows:
    """Rows as the run's data set keeps them, before they are normalised.

    ``names`` are files, or ``None``: rows are counted. ``notes`` say what was missing in a table, which categories are
    new, and which images were left out; then ``places`` are the numbers of the rows that are here.
    """

    features: np.ndarray
    names: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    places: np.ndarray | None = None


def read_rows(given: Any, serving: Mapping[str, Any], column: str | None = None) -> Rows:
    """Further rows: a path, an array ``[rows, ...]``, a data frame, a list of image files, or a `Dataset` (all rows).

    What a path may be depends on the run's own source (``serving["reader"]``): a table is a CSV, TSV or parquet file,
    images are a folder (of any depth), one file, or a parquet file with a column of images (``column``, by default
    the only one that can be), anything else an ``.npy`` file. Raises `DataError`.
    """
    reader = serving["reader"]
    kind = reader.get("kind")
    if isinstance(given, Dataset):
        if given.members is not None:
            raise DataError(f"{given.name}: its sources keep their rows each in its own way; give one of them alone")
        raw = given.features if given.shift is None else given.features.double() + given.shift
        return Rows(_checked(raw.cpu().numpy(), serving, given.name))
    if isinstance(given, str | Path):
        path = Path(given).expanduser()
        if not path.exists():
            raise DataError(f"there is no {str(path)!r} to predict")
        if path.suffix == ".npy":
            return Rows(_checked(_npy(path), serving, str(path)))
        if kind == "table":
            return _encoded(_frame(path, reader.get("separator")), serving, str(path))
        if kind == "image":
            return _images(path, serving, column)
        raise DataError(
            f"{path}: the run's data ({serving['data']}) came as arrays; give further rows as an .npy file with "
            f"{_wanted(serving)}"
        )
    if kind == "table":
        if not isinstance(given, pd.DataFrame):
            raise DataError(
                f"the run learned from a table with named columns; give a DataFrame or a file with the same columns, "
                f"not a {type(given).__name__}"
            )
        return _encoded(given, serving, "the rows")
    if isinstance(given, Sequence) and given and all(isinstance(item, str | Path) for item in given):
        if kind != "image":
            raise DataError(f"a list of files was given, but the run's data ({serving['data']}) were no image files")
        return _decoded([(str(item), Path(item).expanduser()) for item in given], serving)
    if isinstance(given, pd.DataFrame | pd.Series):
        given = given.to_numpy()
    if isinstance(given, Tensor):
        given = given.detach().cpu().numpy()
    return Rows(_checked(_array(given), serving, "the rows"))


def _wanted(serving: Mapping[str, Any]) -> str:
    """What an array must be, in words."""
    if not serving["image"]:
        return f"numbers of the shape [rows, {serving['shape'][0]}]"
    channels, height, width = serving["shape"]
    more = " (or [rows, height, width])" if channels == 1 else ""
    return f"uint8 images of the shape [rows, {height}, {width}, {channels}]{more}, 0 to {serving['peak']:g}"


def _array(given: Any) -> np.ndarray:
    try:
        return np.asarray(given)
    except ValueError as error:
        raise DataError(f"the rows do not make an array: {error}") from None


def _npy(path: Path) -> np.ndarray:
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        reason = in_words(error) if isinstance(error, OSError) else str(error)
        raise DataError(f"{path}: cannot be read as an array: {reason}") from None
    assert isinstance(found, np.ndarray)
    return found


def _checked(given: np.ndarray, serving: Mapping[str, Any], where: str) -> np.ndarray:
    """An array as features; raises `DataError` for another shape or type, or values that no such row can have."""
    said = f"the run's data ({serving['data']}) are {_wanted(serving)}"
    if given.dtype.kind not in "buif":
        raise DataError(f"{where}: needs numbers; got {given.dtype}; {said}")
    if serving["image"]:
        channels, height, width = serving["shape"]
        found = given[..., None] if given.ndim == 3 and channels == 1 else given
        if found.shape[1:] != (height, width, channels):
            hint = "; channels come last" if found.shape[1:] == (channels, height, width) else ""
            raise DataError(f"{where}: {said}; got the shape {given.shape}{hint}")
        if found.size and not (np.equal(found, np.floor(found)).all() and 0 <= found.min() <= found.max()):
            raise DataError(f"{where}: pixels are whole numbers from 0; {said}")
        if found.size and found.max() > serving["peak"]:
            raise DataError(f"{where}: a pixel has the value {found.max():g}; {said}")
        return np.array(found, dtype=np.uint8, order="C")
    if given.ndim != 2 or given.shape[1] != serving["shape"][0]:
        raise DataError(f"{where}: {said}; got the shape {given.shape}")
    shift = serving.get("shift")
    return shifted(as_table(given, where), None if shift is None else np.asarray(shift))


# ---- tables -----------------------------------------------------------------------------------------------------


def _frame(path: Path, separator: str | None) -> pd.DataFrame:
    """A table file as the table source reads it."""
    from .data.frames import SUFFIXES, read_table

    if not path.name.lower().endswith(SUFFIXES):
        raise DataError(f"{path}: the run learned from a table; give a file that ends in {', '.join(SUFFIXES)}")
    return read_table(path, separator)


def _encoded(frame: pd.DataFrame, serving: Mapping[str, Any], where: str) -> Rows:
    from .data.encoding import Encoding, Unfit
    from .data.table import told

    tally: Counter[tuple[str, str]] = Counter()
    try:
        found = Encoding.from_json(serving["reader"]).apply(frame, tally)
    except Unfit as error:
        raise DataError(f"{where}: {error.fault}; {error.further}") from None
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    return Rows(_checked(found, serving, where), notes=tuple(told(tally, len(frame))))


# ---- images -----------------------------------------------------------------------------------------------------


def _images(path: Path, serving: Mapping[str, Any], column: str | None) -> Rows:
    from .data.folder import SUFFIXES

    if path.is_dir():
        files = sorted(p.relative_to(path).as_posix() for p in path.rglob("*") if p.suffix.lower() in SUFFIXES)
        files = [name for name in files if not any(part.startswith(".") for part in Path(name).parts)]
        if not files:
            raise DataError(f"{path}: no image in it (files that end in {', '.join(SUFFIXES)})")
        return _decoded([(name, path / name) for name in files], serving)
    if path.suffix.lower() == ".parquet":
        return _decoded(list(_column(path, column)), serving, named=False)
    return _decoded([(path.name, path)], serving)


def _column(path: Path, column: str | None) -> Iterator[tuple[str, bytes | None]]:
    """The encoded images of a parquet file, as bytes or as structs with ``bytes``; ``None`` where there are none."""
    import pyarrow
    import pyarrow.parquet

    try:
        schema = pyarrow.parquet.read_schema(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path}: cannot be read as parquet: {error}") from None

    def holds(kind: pyarrow.DataType) -> bool:
        if pyarrow.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
            kind = kind.field("bytes").type
        return bool(pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind))

    able = [field.name for field in schema if holds(field.type)]
    if column is None and len(able) != 1:
        holders = f"the columns {able} hold" if able else "no column holds"
        hint = "; name one with --column" if able else ""
        raise DataError(f"{path}: {holders} encoded images (bytes, or structs with 'bytes'){hint}")
    if column is not None and column not in able:
        raise DataError(f"{path}: no column {column!r} with encoded images; such columns: {able}")
    row = 0
    with pyarrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=[column or able[0]], batch_size=256):
            for value in batch.column(0).to_pylist():
                yield str(row), value.get("bytes") if isinstance(value, dict) else value
                row += 1


def _decoded(items: Sequence[tuple[str, Path | bytes | None]], serving: Mapping[str, Any], named: bool = True) -> Rows:
    """The images; those that cannot be read are an error, or left out where the run's own were (``unreadable``)."""
    from .data.images import BrokenImage, left_out, read_image

    pixels, kept, lost = [], [], []
    for place, (name, item) in enumerate(items):
        where = name if named else f"row {name}"
        try:
            pixels.append(read_image(item, serving["reader"], where))
            kept.append(place)
        except BrokenImage as error:
            if serving["reader"].get("unreadable") != "skip":
                raise DataError(f"{error}; mend it or leave it out") from None
            lost.append((where, error))
    if lost and not kept:
        raise DataError(f"none of {len(lost)} images can be read; the first: {lost[0][1]}")
    channels, height, width = serving["shape"]
    features = np.stack(pixels) if pixels else np.zeros((0, height, width, channels), np.uint8)
    return Rows(
        _checked(features, serving, "the images"),
        tuple(items[place][0] for place in kept) if named else None,
        (left_out([where for where, _ in lost], len(items)),) if lost else (),
        np.array(kept, dtype=np.int64),
    )
