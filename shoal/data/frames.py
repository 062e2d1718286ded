"""Files of rows as pandas frames, and one column of a frame as texts or as numbers."""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

from ..errors import DataError

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray

SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "null", "NULL", "None", "<NA>")
"""Texts that mean a missing value, in any file."""

_WHOLE = re.compile(r"([+-]?\d+)\.0+")
_PADDED = r"^\s*0[0-9][0-9.,]*\s*$"
_GROUPED = re.compile(r"[+-]?\d{1,3}([,.'\u2019 \u00a0\u202f])\d{3}(?:\1\d{3})*(?:[.,]\d+)?")
_DAMAGE = (OSError, EOFError, UnicodeDecodeError, zlib.error, csv.Error, pyarrow.ArrowInvalid)
_BLOCK = 2**26
"""Bytes that are parsed at a time; a row with thousands of values must fit."""


def find_tables(path: Path) -> tuple[Path, Path | None]:
    """The file with the training rows, and the one with test rows if there is one.

    ``path`` is a file, or a folder with ``train`` and perhaps ``test``, each with one of `SUFFIXES`. Raises
    `DataError`.
    """
    if path.is_file():
        if not path.name.lower().endswith(SUFFIXES):
            raise DataError(f"data.path: {path} is no table that can be read; known: {', '.join(SUFFIXES)}")
        return path, None
    found: list[Path | None] = []
    for split in ("train", "test"):
        named = [path / (split + suffix) for suffix in SUFFIXES if (path / (split + suffix)).is_file()]
        if len(named) > 1:
            raise DataError(f"{path}: {' and '.join(p.name for p in named)} could both be the {split} rows; keep one")
        found.append(named[0] if named else None)
    if found[0] is None:
        there = ", ".join(sorted(p.name for p in path.iterdir())[:8]) or "nothing"
        raise DataError(f"{path}: no train file with one of {', '.join(SUFFIXES)}; there is {there}")
    return found[0], found[1]


def read_table(path: Path, separator: str | None = None) -> pd.DataFrame:
    """The rows of a file, in its order, every cell of a text file as text (UTF-8, with or without a BOM).

    ``separator`` is that of a text file, by default a tab in ``.tsv`` and in ``.csv`` a comma, or a semicolon where the
    first line has no comma. Raises `DataError` for a damaged file, a row of another length, and a name that two columns
    have.
    """
    try:
        table = _parquet(path) if path.name.lower().endswith(".parquet") else _text(path, separator)
    except _DAMAGE as error:
        raise DataError(f"{path}: cannot be read: {error}; is it a whole table in UTF-8?") from None
    names = [str(name).strip() for name in table.column_names]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise DataError(f"{path}: more than one column is called {', '.join(map(repr, twice))}; rename them")
    import pandas as pd

    # Nullable integers: a missing value must not turn the ids 7 and 8 into 7.0 and 8.0.
    kinds = {getattr(pyarrow, name.lower())(): getattr(pd, f"{name}Dtype")() for name in _INTEGERS}
    kinds[pyarrow.bool_()] = pd.BooleanDtype()
    frame = table.rename_columns(names).to_pandas(types_mapper=kinds.get, ignore_metadata=True)
    assert isinstance(frame, pd.DataFrame)
    return frame


_INTEGERS = ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")


def _parquet(path: Path) -> pyarrow.Table:
    with pyarrow.parquet.ParquetFile(path) as file:
        return file.read()


def _text(path: Path, separator: str | None) -> pyarrow.Table:
    delimiter = separator or ("\t" if ".tsv" in path.name.lower() else ",")
    header = _header(path, delimiter)
    if separator is None and len(header) == 1 and ";" in header[0]:
        # As spreadsheets write it where the comma is the decimal mark.
        delimiter = ";"
        header = _header(path, delimiter)
    if not header:
        raise DataError(f"{path}: the file is empty; it needs a line with the names of the columns")
    return pyarrow.csv.read_csv(
        path,
        read_options=pyarrow.csv.ReadOptions(block_size=_BLOCK),
        parse_options=pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        # Every cell as it stands: what a column holds is decided when all of it is known, the same for every file.
        convert_options=pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(header, pyarrow.string())),
    )


def _header(path: Path, delimiter: str) -> list[str]:
    zipped = path.name.lower().endswith(".gz")
    with (gzip.open if zipped else open)(path, "rt", encoding="utf-8-sig", newline="") as file:
        return next(csv.reader(file, delimiter=delimiter), [])


def texts(column: pd.Series[Any], missing: Collection[str] = MISSING) -> Array:
    """The values as texts, ``None`` where they are missing: an object array ``[n]``.

    Whole numbers have no decimal point, however they came (``7``, ``7.0`` and ``"7.0"`` are ``"7"``), so that a column
    of ids has the same names in every file. Spaces around a text do not count.
    """
    import pandas as pd

    codes, values = pd.factorize(column)
    named = np.empty(len(values) + 1, dtype=object)
    named[:-1] = [_text_of(value, missing) for value in values]
    return np.asarray(named[codes])


def _text_of(value: Any, missing: Collection[str]) -> str | None:
    if isinstance(value, float | np.floating):
        plain = float(value)
        text = str(int(plain)) if plain.is_integer() and abs(plain) < 2**53 else repr(plain)
    else:
        text = str(value).strip()
    if text in missing:
        return None
    whole = _WHOLE.fullmatch(text)
    return whole[1] if whole else text


def numbers(column: pd.Series[Any], decimal: str = ".", missing: Collection[str] = MISSING) -> tuple[Array, Array]:
    """The values as float64 ``[n]``, NaN where there is none; and where a value is no number (bool ``[n]``)."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column.dtype):
        return column.to_numpy(np.float64, na_value=np.nan), np.zeros(len(column), dtype=bool)
    text = column.astype("string").str.strip()
    empty = (text.isna() | text.isin(list(missing))).to_numpy(bool)
    written = text.str.replace(",", ".", regex=False) if decimal == "," else text
    plain = np.where(empty, np.nan, written.to_numpy(object, na_value=np.nan))
    values = np.asarray(pd.to_numeric(plain, errors="coerce"), dtype=np.float64)
    wrong = np.isnan(values) & ~empty
    if decimal == ",":
        # A point is then the mark of thousands, or a number from elsewhere: 1.500 is not 1.5.
        pointed = text.str.contains(".", regex=False, na=False).to_numpy(bool) & ~empty
        values, wrong = np.where(pointed, np.nan, values), wrong | pointed
    return values, wrong


def padded(column: pd.Series[Any], missing: Collection[str] = MISSING) -> str | None:
    """The first value that is written with a leading zero before another digit, such as ``00012``: a name, no amount.

    ``None`` where there is no such value.
    """
    if holds_numbers(column) is not None:
        return None
    try:
        written = pyarrow.array(column, pyarrow.string(), from_pandas=True)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError):  # not all of them are texts
        written = pyarrow.array(column.dropna().astype(str), pyarrow.string())
    if isinstance(written, pyarrow.ChunkedArray):
        written = written.combine_chunks()
    found = written.filter(pyarrow.compute.match_substring_regex(written, _PADDED)).unique().to_pylist()
    return next((text.strip() for text in found if text is not None and text.strip() not in missing), None)


def distinct(column: pd.Series[Any]) -> list[str]:
    """The different values of a column as texts without spaces around them, as they are written."""
    return [str(value).strip() for value in column.dropna().astype(str).unique()]


def numberlike(values: Collection[str]) -> list[str]:
    """Those of the texts that begin and end like a number."""
    return [value for value in values if value[-1:].isdecimal() and value.lstrip("+-")[:1].isdecimal()]


def grouped(values: Collection[str]) -> str | None:
    """The separator of thousands in these texts, such as the comma of ``-1,120.68``; ``None`` unless all can have one.

    A text like ``1,120`` says the same as ``1.12`` where the comma is the decimal mark; it counts as grouped.
    """
    found = [_GROUPED.fullmatch(value) for value in values]
    marks = {match[1] for match in found if match is not None}
    return marks.pop() if len(marks) == 1 and None not in found else None


def holds_numbers(column: pd.Series[Any]) -> bool | None:
    """Whether the type of the column is one of numbers; not of booleans. ``None``: the type does not say it."""
    import pandas as pd

    if pd.api.types.is_bool_dtype(column.dtype):
        return False
    return True if pd.api.types.is_numeric_dtype(column.dtype) else None


def first_row(where: Array, index: pd.Index[Any] | None = None) -> int:
    """The first row that is marked, counted from 1, as people count the rows below a table's head.

    ``index`` is that of a frame from which rows were taken away; it says where they stood.
    """
    place = int(np.flatnonzero(where)[0])
    if index is not None and index.dtype.kind == "i":
        place = int(index[place])
    return place + 1
