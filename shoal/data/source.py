"""`Source`: from decoded rows to a `Dataset`. Split, limits, normalisation and fingerprint are the same for all."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pydantic
import torch

from ..errors import ConfigError, DataError, nearest
from ..randomness import generator
from .dataset import Column, Dataset
from .duplicates import repeated
from .normalisation import moments, stored
from .splits import hold_out

Array = np.ndarray

Normalize = Literal["channel", "half", "unit"]
"""``channel``: mean 0 and standard deviation 1 over the training rows, per channel or feature; ``unit``: divided by
the largest value; ``half``: that, less 0.5, times 2."""

Amount = Annotated[int | float, pydantic.Field(gt=0)]
"""Test rows to hold out where the source has no split: a share below 1, or a whole number of rows from 1 on."""

Limit = Annotated[int, pydantic.Field(ge=1)] | None
"""How many rows to keep: the first of a seeded shuffle. ``null`` keeps all."""


Span = Annotated[list[Annotated[int, pydantic.Field(ge=0)]], pydantic.Field(min_length=2, max_length=2)] | None
"""``[first, end]``: the training rows from position ``first`` up to ``end``, which is the first left out, in the
source's own order, before any limit; test rows stay. Runs whose spans do not meet have no training row in common."""


FEW, MANY = 10, 50
"""See `many_classes`."""

OPTIONAL = ("values", "held", "flags")
"""Arrays that not all decoded rows have."""


@dataclass(frozen=True)
class Decoded:
    """Rows as a source has them. ``labels`` are dense int64 codes of ``classes``.

    ``features`` is uint8 ``[n, height, width, channels]`` or float64 ``[n, features]``. Rows from ``train_rows`` on
    are the source's own test rows; ``None``: it has no split. ``columns`` are codes and names by column.
    """

    features: Array
    labels: Array
    classes: tuple[str, ...]
    columns: Mapping[str, tuple[Array, tuple[str, ...]]] = field(default_factory=dict)
    train_rows: int | None = None
    peak: float = 255.0
    digests: Mapping[str, str] = field(default_factory=dict)
    """The hashes of the arrays, where somebody has them already."""
    values: Array | None = None
    """What a regression learns, float64 ``[n, outputs]`` in the source's units; labels are then all 0."""
    notes: tuple[str, ...] = ()
    reader: Mapping[str, Any] = field(default_factory=dict)
    """`Dataset.reader`; JSON."""
    held: Array | None = None
    """The positions of the source's own test rows, ascending, where they do not come last; ``train_rows`` is None."""
    flags: Array | None = None
    """Features of a table that are 0 or 1 and stay so, whatever the normalisation: bool ``[features]``."""

    def arrays(self) -> dict[str, Array]:
        """All arrays by a name that can be part of a file's."""
        columns = {f"column-{i}": codes for i, (codes, _) in enumerate(self.columns.values())}
        some = {name: array for name in OPTIONAL if (array := getattr(self, name)) is not None}
        return {"features": self.features, "labels": self.labels, **some, **columns}


def digest(array: Array) -> str:
    """SHA-256 of an array's type, shape and values."""
    found = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def encode(values: Array) -> tuple[Array, tuple[str, ...]]:
    """Dense int64 codes of labels, and the original ones: integers in numeric, strings in alphabetic order."""
    names, codes = np.unique(values, return_inverse=True)
    return codes.reshape(-1).astype(np.int64), tuple(str(name) for name in names)


class Source:
    """Where rows come from. Settings are keyword-only parameters of ``__init__``; `load` needs nothing else.

    The split never depends on a run's seed, so that every seed is measured on the same test rows.
    """

    part: ClassVar[str] = "data"

    def load(self) -> Dataset:
        """The rows. Raises `DataError`."""
        raise NotImplementedError


def located(root: str, path: str) -> Path:
    """``path`` seen from the folder ``root`` (``""``: the working directory); ``~`` is the home folder."""
    found = Path(root).expanduser() / Path(path).expanduser()
    if not found.exists():
        hint = "" if root else "; relative paths start in the working directory unless data.root names a folder"
        raise DataError(f"data.path: there is no {str(found)!r}{hint}")
    return found


@dataclass(frozen=True)
class Cut:
    """What most sources do with the rows that they have decoded, by settings of these names; see `assemble`."""

    normalize: Normalize
    test: float = 0.2
    test_by: str | None = None
    split_seed: int = 0
    span: Sequence[int] | None = None
    limit: int | None = None
    limit_test: int | None = None

    def of(self, rows: Decoded, name: str) -> Dataset:
        """The data set. Raises `DataError` or `ConfigError`."""
        return assemble(rows, name, **vars(self))


def assemble(
    rows: Decoded,
    name: str,
    normalize: str,
    *,
    test: float = 0.2,
    test_by: str | None = None,
    split_seed: int = 0,
    span: Sequence[int] | None = None,
    limit: int | None = None,
    limit_test: int | None = None,
) -> Dataset:
    """The data set of decoded rows: split where the source has none, cut to the `Span` and the limits, normalised.

    ``test_by`` names a column; ``test`` is then held out of each of its groups. Raises `DataError` or `ConfigError`.
    """
    n = len(rows.labels)
    if n == 0 or rows.train_rows == 0 or (rows.held is not None and len(rows.held) == n):
        raise DataError(f"{name}: there is no training row")
    if test_by is not None and test_by not in rows.columns:
        hint = nearest(test_by, rows.columns) if rows.columns else "name it in data.columns"
        raise ConfigError(f"data.test_by: {name} has no column {test_by!r}; {hint}")
    if rows.held is not None:
        held = rows.held
        train = np.setdiff1d(np.arange(n), held, assume_unique=True)
    elif rows.train_rows is None:
        by = None if test_by is None else rows.columns[test_by][0]
        codes = [codes for codes, _ in rows.columns.values()]
        held = hold_out(rows.labels, codes, test, generator(split_seed, "test rows"), by)
        train = np.setdiff1d(np.arange(n), held, assume_unique=True)
    else:
        train, held = np.arange(rows.train_rows), np.arange(rows.train_rows, n)
    train, left_out = _spanned(train, span, rows, name)
    train = limited(train, limit, split_seed, "limit")
    held = limited(held, limit_test, split_seed, "limit_test")
    kept = stored(rows.features, train, normalize, rows.peak, rows.flags)
    values = _standardised(rows.values, train)
    notes = (*rows.notes, *left_out, *repeated(rows.features, rows.labels, rows.values, train, held))
    return Dataset(
        name=name,
        features=torch.from_numpy(kept.features),
        labels=torch.from_numpy(rows.labels),
        classes=rows.classes,
        train=torch.from_numpy(train),
        test=torch.from_numpy(held),
        scale=torch.from_numpy(kept.scale),
        offset=torch.from_numpy(kept.offset),
        shift=None if kept.shift is None else torch.from_numpy(kept.shift),
        columns={c: Column(torch.from_numpy(codes), names) for c, (codes, names) in rows.columns.items()},
        peak=rows.peak,
        fingerprint=_fingerprint(rows, train, held, kept.scale, kept.offset),
        **values,
        notes=notes,
        reader=rows.reader,
    )


def _standardised(values: Array | None, train: Array) -> dict[str, Any]:
    """What a regression learns, with mean 0 and deviation 1 over the training rows, and the way back."""
    if values is None:
        return {}
    mean, spread = moments(values, train)
    scale = np.where(spread == 0, 1.0, spread)
    found = {"values": ((values - mean) / scale).astype(np.float32), "value_scale": scale, "value_offset": mean}
    return {name: torch.from_numpy(array) for name, array in found.items()}


def limited(rows: Array, limit: int | None, seed: int, purpose: str) -> Array:
    """So many of the rows, sorted: the first of a shuffle that ``seed`` and ``purpose`` name; ``None`` keeps all."""
    if limit is None or limit >= len(rows):
        return rows
    return np.sort(generator(seed, purpose).permutation(rows)[:limit])


def _spanned(train: Array, span: Sequence[int] | None, rows: Decoded, name: str) -> tuple[Array, list[str]]:
    """The training rows of a `Span`, and a note if it has no row of some class (of a source that is sorted, say)."""
    if span is None:
        return train, []
    first, end = span
    if not first < end <= len(train):
        raise ConfigError(
            f"data.rows: needs [first, end] with first < end <= {len(train)} (the training rows of {name}); got "
            f"{list(span)}"
        )
    taken = train[first:end]
    lost = len(np.setdiff1d(rows.labels[train], rows.labels[taken]))
    return taken, [f"data.rows: rows {first} to {end} have no row of {lost} of the classes"] if lost else []


def _fingerprint(rows: Decoded, *arrays: Array) -> str:
    parts: list[Any] = [rows.classes, rows.peak, *(digest(array) for array in arrays)]
    parts += [rows.digests.get(key) or digest(array) for key, array in rows.arrays().items()]
    parts += [(column, names) for column, (_, names) in rows.columns.items()]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def many_classes(classes: Sequence[str], rows: int, setting: str) -> list[str]:
    """A note where the labels of a table are whole numbers and so many that they may be an amount.

    So many: more than 50, or more than 10 and a tenth of the rows. ``setting`` is how to say that they are an amount.
    """
    count = len(classes)
    if count <= FEW or (count <= MANY and count <= rows / 10):
        return []
    if not all(name.removeprefix("-").isdecimal() for name in classes):
        return []
    return [f"the label has {count} different whole numbers, each taken as a class; if it is an amount, {setting}"]


def class_codes(
    values: Sequence[Any] | Array, what: str, names: Sequence[str] | None = None, hint: str = ""
) -> tuple[Array, tuple[str, ...]]:
    """Labels or a grouping column as dense codes and original names; ``names`` are those that the source gives.

    Raises `DataError` for values that are neither integers nor strings (``hint`` ends the message), and for a code
    outside the names.
    """
    given = _uniform(values, what)
    if given.ndim != 1:
        fix = "; one-hot rows become labels with argmax(1)" if given.ndim == 2 else ""
        raise DataError(f"{what}: needs one value per row; got the shape {given.shape}{fix}")
    if given.dtype.kind == "b":
        given = given.astype(np.int64)
    if given.dtype.kind not in "iuU":
        raise DataError(
            f"{what}: needs integers or strings; got {given.dtype}, such as {given[:3].tolist()}; convert them, "
            f"for example with astype(int){hint}"
        )
    if names is None or given.dtype.kind == "U":
        return encode(given)
    outside = given[(given < 0) | (given >= len(names))]
    if len(outside):
        raise DataError(
            f"{what}: {len(outside)} rows have codes outside the {len(names)} names that the source gives, such as "
            f"{int(outside[0])} (-1 often marks rows without a label); leave those rows out"
        )
    return given.astype(np.int64), tuple(names)


def _uniform(values: Sequence[Any] | Array, what: str) -> Array:
    """An array of one kind; numpy alone would turn ``[1, "a"]`` into strings without a word."""
    if isinstance(values, np.ndarray) and values.dtype != object:
        return values
    plain = values.tolist() if isinstance(values, np.ndarray) else list(values)
    missing = sum(value is None for value in plain)
    if missing:
        raise DataError(f"{what}: {missing} of {len(plain)} rows have no value; fill them in or leave them out")
    kinds = {str if isinstance(v, str) else int if isinstance(v, int | np.integer) else type(v) for v in plain}
    if len(kinds) > 1:
        raise DataError(f"{what}: needs values of one kind; got {sorted(kind.__name__ for kind in kinds)}")
    try:
        return np.asarray(plain)
    except ValueError as error:
        raise DataError(f"{what}: needs one value per row: {error}") from None
