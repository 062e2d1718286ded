"""`Encoding`: how the columns of a table become features, learned from the training rows and then fixed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..errors import DataError
from .frames import MISSING, Array, distinct, first_row, grouped, numberlike, numbers, texts

if TYPE_CHECKING:
    import pandas as pd

Fill = Literal["error", "mean", "median", "zero", "drop"]

NO_CATEGORY = "(missing)"
OTHER = "(other)"


class Unfit(DataError):
    """Rows that do not fit an encoding: the ``fault``, and the advice for rows to learn from.

    ``further`` is the advice for rows that a finished model shall predict: no setting can help them any more.
    """

    def __init__(self, fault: str, advice: str, further: str) -> None:
        super().__init__(f"{fault}; {advice}")
        self.fault = fault
        self.further = further


@dataclass(frozen=True)
class Rules:
    """What is done where a column's values alone do not say it; see `shoal.data.table.Table`."""

    missing: Fill = "error"
    missing_indicator: bool = False
    missing_category: Literal["error", "own"] = "own"
    unseen: Literal["other", "error"] = "other"
    categories_max: int = 100
    decimal: str = "."
    missing_values: tuple[str, ...] = ()
    """Texts that mean a missing value, beside `frames.MISSING`."""

    @property
    def gaps(self) -> frozenset[str]:
        """All texts that mean a missing value."""
        return frozenset((*MISSING, *self.missing_values))


@dataclass(frozen=True)
class Number:
    """A numeric column: one feature, and with ``indicator`` a second one that is 1 where the value was missing.

    ``fill`` takes the place of a missing value; ``None``: there must be none.
    """

    name: str
    fill: float | None = None
    indicator: bool = False

    @property
    def features(self) -> list[str]:
        """The names of its features."""
        return [self.name, f"{self.name}={NO_CATEGORY}"] if self.indicator else [self.name]


@dataclass(frozen=True)
class Category:
    """A categorical column, one-hot: a feature per category and, with ``other``, a last one for all further values.

    ``None`` among the categories is a missing value.
    """

    name: str
    categories: tuple[str | None, ...]
    other: bool = True

    @property
    def features(self) -> list[str]:
        """The names of its features."""
        known = [NO_CATEGORY if category is None else category for category in self.categories]
        return [f"{self.name}={category}" for category in (*known, *([OTHER] if self.other else []))]


@dataclass(frozen=True)
class Encoding:
    """The features of a table's rows, in a fixed order that no later frame can shift.

    Columns are found by name: their order, and columns that are not listed here, do not matter. It is written as
    JSON (`to_json`) and read back (`from_json`).
    """

    columns: tuple[Number | Category, ...]
    rules: Rules = Rules()

    @property
    def features(self) -> list[str]:
        """The names of the features: ``age``, ``colour=red``, ``colour=(missing)``, ``colour=(other)``."""
        return [feature for column in self.columns for feature in column.features]

    @property
    def flags(self) -> Array:
        """Which features are 0 or 1 and mean it: bool ``[features]``."""
        kinds = [isinstance(c, Category) or i > 0 for c in self.columns for i in range(len(c.features))]
        return np.array(kinds, dtype=bool)

    def apply(self, frame: pd.DataFrame, tally: Counter[tuple[str, str]] | None = None) -> Array:
        """The features of the rows of a frame, float64 ``[n, features]``.

        A column that the frame lacks is one whose values are all missing. ``tally`` counts, by (what, column), the
        values that were ``filled``, those that became ``other``, and columns that were ``lacking``. Raises `DataError`
        for a missing value without a rule, a text where a number belongs, an infinity, and (``unseen: error``) a
        category that the training rows do not have.
        """
        if not frame.columns.is_unique:
            raise DataError("the rows have more than one column of the same name; rename them")
        tally = Counter() if tally is None else tally
        out = np.zeros((len(frame), len(self.features)))
        begin = 0
        for column in self.columns:
            end = begin + len(column.features)
            if column.name not in frame.columns:
                tally["lacking", column.name] += 1
            if isinstance(column, Number):
                self._number(column, frame, out[:, begin:end], tally)
            else:
                self._category(column, frame, out[:, begin:end], tally)
            begin = end
        return out

    def _number(self, column: Number, frame: pd.DataFrame, out: Array, tally: Counter[tuple[str, str]]) -> None:
        if column.name in frame.columns:
            values = checked_numbers(frame[column.name], column.name, self.rules)
        elif column.fill is None:
            raise DataError(f"there is no column {column.name!r}, which the model needs and no rule fills in")
        else:
            values = np.full(len(frame), np.nan)
        gaps = np.isnan(values)
        if gaps.any():
            if column.fill is None:
                raise Unfit(
                    f"column {column.name!r}: {int(gaps.sum())} of {len(gaps)} rows have no value, the first is "
                    f"row {first_row(gaps, frame.index)}",
                    "fill them in, or set data.missing (mean, median, zero, drop)",
                    f"fill them in, or leave those rows out: the model was trained with data.missing: "
                    f"{self.rules.missing}, which gives it no value to put there",
                )
            tally["filled", column.name] += int(gaps.sum())
            values = np.where(gaps, column.fill, values)
        out[:, 0] = values
        if column.indicator:
            out[:, 1] = gaps

    def _category(self, column: Category, frame: pd.DataFrame, out: Array, tally: Counter[tuple[str, str]]) -> None:
        count = len(frame)
        given = texts(frame[column.name], self.rules.gaps) if column.name in frame.columns else np.full(count, None)
        place = {category: i for i, category in enumerate(column.categories)}
        codes = np.fromiter((place.get(value, -1) for value in given), dtype=np.int64, count=count)
        strange = codes < 0
        if self.rules.missing_category == "error":
            gaps = np.fromiter((value is None for value in given), dtype=bool, count=count)
            if gaps.any():
                raise Unfit(
                    f"column {column.name!r}: {int(gaps.sum())} of {count} rows have no category, the first is row "
                    f"{first_row(gaps, frame.index)}",
                    "fill them in, or set data.missing_category: own",
                    "fill them in, or leave those rows out: the model was trained with data.missing_category: error",
                )
        if strange.any():
            if not column.other:
                value = given[strange][0]
                raise Unfit(
                    f"column {column.name!r}: {int(strange.sum())} of {count} rows have a category that no training "
                    f"row has, such as {NO_CATEGORY if value is None else repr(value)} in row "
                    f"{first_row(strange, frame.index)}",
                    "leave them out, or train with data.unseen: other",
                    "leave them out: the model was trained with data.unseen: error",
                )
            tally["other", column.name] += int(strange.sum())
            codes[strange] = len(column.categories)
        out[np.arange(count), codes] = 1

    def to_json(self) -> dict[str, Any]:
        """The encoding as a JSON value, a `Dataset.reader` of the kind ``table``."""
        columns = [asdict(column) for column in self.columns]
        return {"kind": "table", "columns": columns, "rules": asdict(self.rules)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Encoding:
        """The encoding in a JSON value; further keys do not matter. Raises `DataError` where there is none."""
        try:
            columns = [
                Category(c["name"], tuple(c["categories"]), bool(c["other"])) if "categories" in c else Number(**c)
                for c in value["columns"]
            ]
            rules = value["rules"]
            return cls(tuple(columns), Rules(**{**rules, "missing_values": tuple(rules["missing_values"])}))
        except (KeyError, TypeError) as error:
            raise DataError(f"no encoding of a table: {type(error).__name__}: {error}") from None


def checked_numbers(column: pd.Series[Any], name: str, rules: Rules) -> Array:
    """The values of a numeric column, float64 ``[n]``, NaN where they are missing; raises `DataError` for others."""
    values, wrong = numbers(column, rules.decimal, rules.gaps)
    if wrong.any():
        text = str(column[wrong].iloc[0])
        hint = _hint(column, wrong, name, rules)
        mark = "the decimal comma" if rules.decimal == "," else "a decimal point"
        raise Unfit(
            f"column {name!r}: {int(wrong.sum())} of {len(wrong)} values are no numbers, such as {text!r} in row "
            f"{first_row(wrong, column.index)}",
            f"{hint} (data.missing_values names texts that mean a missing value)",
            f"write them as in the training rows, with {mark} and nothing between thousands; a missing value is an "
            f"empty cell",
        )
    with np.errstate(over="ignore"):
        endless = np.isinf(values.astype(np.float32))
    if endless.any():
        raise DataError(
            f"column {name!r}: {int(endless.sum())} values are infinite (as float32), the first in row "
            f"{first_row(endless, column.index)}; mend them or leave those rows out"
        )
    return values


def _hint(column: pd.Series[Any], wrong: Array, name: str, rules: Rules) -> str:
    """What to do about the values that are no numbers."""
    bad = numberlike(distinct(column[wrong]))
    mark = grouped(bad)
    comma = rules.decimal == "." and any("," in text for text in bad)
    if mark is not None:
        # 1,120 alone may be 1.12; beside 2.5 or 1,120.68 it is not.
        pointed = any("." in text for text in distinct(column))
        if comma and not pointed and all(text.count(",") == 1 for text in bad):
            return (
                "if the comma separates thousands, remove it from the numbers of the file; where it is the decimal "
                "mark, set data.decimal: ','"
            )
        more = ", and set data.decimal: ','" if comma and mark == "." else ""
        return f"{mark!r} separates thousands there: remove it from the numbers of the file{more}"
    if comma:
        return "where the comma is the decimal mark, set data.decimal: ','"
    return f"mend it, list {name!r} under data.categorical or data.ignore"


def fit(frame: pd.DataFrame, columns: Sequence[tuple[str, bool]], rules: Rules) -> Encoding:
    """The encoding of these columns (name, and whether it is numeric), learned from the training rows in ``frame``.

    Categories are those of these rows in the order of their text, a missing one last. Raises `DataError`.
    """
    made: list[Number | Category] = []
    for name, numeric in columns:
        made.append(_number(frame[name], name, rules) if numeric else _category(frame[name], name, rules))
    return Encoding(tuple(made), rules)


def _number(column: pd.Series[Any], name: str, rules: Rules) -> Number:
    if rules.missing in ("error", "drop"):
        return Number(name)
    values = checked_numbers(column, name, rules)
    known = values[~np.isnan(values)]
    if rules.missing != "zero" and not len(known):
        raise DataError(
            f"column {name!r}: no training row has a value, so there is no {rules.missing}; list it under data.ignore"
        )
    fill = 0.0 if rules.missing == "zero" else float(np.mean(known) if rules.missing == "mean" else np.median(known))
    return Number(name, fill, rules.missing_indicator and len(known) < len(values))


def _category(column: pd.Series[Any], name: str, rules: Rules) -> Category:
    found = set(texts(column, rules.gaps).tolist())
    named = sorted(found - {None})
    if len(found) > rules.categories_max:
        raise DataError(
            f"column {name!r}: {len(found)} categories, such as {' and '.join(map(repr, named[:2]))}; more than "
            f"{rules.categories_max} are hardly meant: list it under data.ignore (or data.numeric, or data.columns to "
            f"group rows by it), or raise data.categories_max"
        )
    return Category(name, (*named, None) if None in found else tuple(named), rules.unseen == "other")
