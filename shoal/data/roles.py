"""`Roles`: what each column of a table is for, as the settings say and as its values show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ConfigError, DataError, nearest
from .encoding import Rules, checked_numbers
from .frames import Array, distinct, grouped, holds_numbers, numberlike, numbers, padded, texts

if TYPE_CHECKING:
    import pandas as pd

UNNAMED = ("", "__index_level_0__")
"""Columns that pandas makes of an index: the number of a row says nothing about it."""
_LISTED = 8
_CONTRARY = (
    ("label", "client"),
    ("label", "time"),
    ("label", "columns"),
    ("label", "numeric"),
    ("label", "categorical"),
    ("label", "ignore"),
    ("client", "ignore"),
    ("time", "ignore"),
    ("columns", "ignore"),
    ("numeric", "categorical"),
    ("numeric", "ignore"),
    ("categorical", "ignore"),
)


@dataclass(frozen=True)
class Roles:
    """Names of columns, see `shoal.data.table.Table`. ``columns`` are groupings beside ``client``."""

    label: str
    client: str | None
    time: str | None
    columns: tuple[str, ...]
    numeric: tuple[str, ...]
    categorical: tuple[str, ...]
    ignore: tuple[str, ...]
    rules: Rules

    @property
    def groupings(self) -> list[str]:
        """The client's column, and all further groupings of the rows."""
        return [*dict.fromkeys([*([self.client] if self.client else []), *self.columns])]

    @property
    def declared(self) -> set[str]:
        """Columns that are features because the settings say so."""
        return {*self.numeric, *self.categorical}

    def check(self, file: Path, there: Sequence[str]) -> None:
        """Raises `DataError` for a column that does not exist, `ConfigError` for one with two contrary roles."""
        settings: dict[str, list[str]] = {}
        for setting in ("label", "client", "time", "columns", "numeric", "categorical", "ignore"):
            given = getattr(self, setting)
            settings[setting] = [given] if isinstance(given, str) else list(given or ())
            for name in settings[setting]:
                if name not in there:
                    raise DataError(f"data.{setting}: {file} has no column {name!r}; {nearest(name, there)}")
        for one, other in _CONTRARY:
            both = [name for name in settings[one] if name in settings[other]]
            if both:
                raise ConfigError(f"data.{other}: column {both[0]!r} is named by data.{one} too; it can be one of them")

    def is_numeric(self, column: pd.Series[Any], name: str) -> bool:
        """Whether a feature is numeric: as declared, or by what it holds; raises `DataError` for a mixture.

        Numbers with leading zeros are names.
        """
        if name in self.declared:
            return name in self.numeric
        by_type = holds_numbers(column)
        if by_type is not None:
            return by_type
        if padded(column, self.rules.gaps) is not None:
            return False
        values, wrong = numbers(column, self.rules.decimal, self.rules.gaps)
        if not np.isnan(values).all():
            checked_numbers(column, name, self.rules)
            return True
        if wrong.any():
            # Numbers that are written in another way would be as many categories as there are rows.
            commas, still = numbers(column, ",", self.rules.gaps)
            as_commas = self.rules.decimal == "." and not still.any() and not np.isnan(commas).all()
            written = distinct(column[wrong])
            like = numberlike(written)
            if as_commas or (grouped(like) is not None and 2 * len(like) >= len(written)):
                checked_numbers(column, name, self.rules)
        return False

    def features(self, frame: pd.DataFrame, notes: list[str]) -> list[tuple[str, bool]]:
        """The columns that are features, in the order of the file, with whether they are numeric."""
        apart = {self.label, *self.ignore, *({self.time, *self.groupings} - self.declared)}
        found: list[tuple[str, bool]] = []
        names = []
        for name in map(str, frame.columns):
            if name in apart:
                continue
            if name in UNNAMED and name not in self.declared:
                notes.append("a column without a name (the index of pandas?), left out")
                continue
            kind = _unreadable(frame[name])
            if kind is not None:
                raise DataError(f"column {name!r} holds {kind}; make numbers of it, or list it under data.ignore")
            numeric = self.is_numeric(frame[name], name)
            found.append((name, numeric))
            text = None if numeric or name in self.declared else padded(frame[name], self.rules.gaps)
            if text is not None:
                names.append(f"{name} ({text})")
        if not found:
            raise DataError(f"no column is left to be a feature; there are {listed(list(frame.columns))}")
        if names:
            notes.append(
                f"columns with leading zeros, taken as names and not as numbers (data.numeric says otherwise): "
                f"{listed(names)}"
            )
        return found

    def filled(
        self, training: pd.DataFrame, features: Sequence[tuple[str, bool]], notes: list[str]
    ) -> list[tuple[str, bool]]:
        """The features without those columns that hold nothing in any training row, unless they are declared."""
        empty = []
        for name, numeric in features:
            if name in self.declared:
                continue
            if numeric:
                found = ~np.isnan(numbers(training[name], self.rules.decimal, self.rules.gaps)[0])
            else:
                found = ~gaps_of(texts(training[name], self.rules.gaps))
            if not found.any():
                empty.append(name)
        if not empty:
            return list(features)
        if len(empty) == len(features):
            raise DataError("no column that could be a feature has a value in any training row")
        notes.append(f"columns without a value in any training row, left out: {listed(empty)}")
        return [(name, numeric) for name, numeric in features if name not in empty]


def gaps_of(values: Array) -> Array:
    """Where `texts` found no value: bool ``[n]``."""
    return np.fromiter((value is None for value in values), dtype=bool, count=len(values))


def listed(names: Sequence[str]) -> str:
    """Names as a list in words; of many, the first ones."""
    more = len(names) - _LISTED
    return ", ".join(map(str, names[:_LISTED])) + (f" and {more} more" if more > 0 else "")


def _unreadable(column: pd.Series[Any]) -> str | None:
    """What a column holds that is neither number nor text: stamps, lists."""
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(column.dtype) or pd.api.types.is_timedelta64_dtype(column.dtype):
        return "dates or times"
    if column.dtype == object:
        odd = [v for v in column.dropna().head(1000) if isinstance(v, list | dict | tuple | bytes | np.ndarray)]
        return f"{type(odd[0]).__name__} values" if odd else None
    return None
