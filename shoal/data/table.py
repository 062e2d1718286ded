"""Tables: labelled rows with numeric and categorical columns, from CSV or parquet files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pydantic

from ..errors import ConfigError, DataError
from ..randomness import generator
from .dataset import Dataset
from .encoding import Encoding, Fill, Rules, checked_numbers, fit
from .frames import SUFFIXES, Array, find_tables, first_row, numbers, read_table, texts
from .heldout import by_client, canonical, latest, moments
from .normalisation import constant
from .roles import UNNAMED, Roles, gaps_of, listed
from .source import Amount, Decoded, Limit, Normalize, Source, assemble, class_codes, located, many_classes
from .splits import hold_out

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Table", "read_table"]


@dataclass(frozen=True)
class _Rows:
    """Rows on the way to a data set. Every column of the file is in ``frame``; the arrays are int64 codes, ``[n]``."""

    frame: pd.DataFrame
    labels: Array
    classes: tuple[str, ...]
    values: Array | None
    columns: dict[str, tuple[Array, tuple[str, ...]]]
    test: Array
    """Which rows are for testing: bool ``[n]``."""

    def at(self, rows: Array) -> _Rows:
        """These rows alone."""
        columns = {name: (codes[rows], names) for name, (codes, names) in self.columns.items()}
        values = None if self.values is None else self.values[rows]
        frame = self.frame.iloc[rows]
        return _Rows(frame, self.labels[rows], self.classes, values, columns, self.test[rows])


class Table(Source):
    """Rows of a table: a file, or a folder with a file called ``train`` and perhaps one called ``test``.

    Files are ``.csv``, ``.csv.gz``, ``.tsv``, ``.tsv.gz`` or ``.parquet``. ``path`` is seen from ``root`` (``""``: the
    working directory).

    ``learn: classes`` takes ``label`` as classes, ``values`` as a number to be predicted (a regression). ``client`` is
    a column of client ids and ``columns`` are further groupings of the rows: partitions and tasks can use them by their
    names. A row without a value there is an error, always. ``ignore`` lists columns that are left out. All others are
    features: columns listed in ``numeric`` or ``categorical`` as what they are declared, the rest by what they hold
    (numbers are numeric; texts, booleans and numbers with leading zeros categorical; a mixture is an error).

    A categorical column is one-hot over the categories of the training rows, sorted, and one feature for all others
    (``unseen: other``; ``error`` refuses them). More than ``categories_max`` categories are an error. A missing one is
    a category of its own (``missing_category``). A missing number is an error, or ``missing`` fills in the training
    rows' ``mean`` or ``median``, or ``zero``, or says to ``drop`` the row; ``missing_indicator`` adds a feature that is
    1 where a number was missing in a column with gaps. ``missing_label: drop`` leaves out rows without a label. Empty
    cells, NA, NaN, null and None are missing, and the texts in ``missing_values``. ``decimal`` and ``separator`` are
    those of a text file.

    Without a test file, ``test`` rows (a share below 1, or a number) are held out with ``split_seed``: stratified by
    label and ``columns``; with ``client`` such that every client with two rows has a test row; with ``time`` (ISO 8601,
    compared in UTC, or numbers) the latest of each client, see `heldout.latest`. The order of the rows in the file does
    not change which rows are held out, and not which are kept by ``limit`` and ``limit_test``. Means, categories and
    ``normalize`` come from the training rows alone; one-hot features stay 0 and 1.

    The data set's ``reader`` is that of `Encoding.to_json`, with ``features`` (names), ``label``, ``learn``,
    ``classes`` and ``separator`` beside it.
    """

    def __init__(
        self,
        *,
        path: str,
        root: str = "",
        label: str,
        learn: Literal["classes", "values"] = "classes",
        client: str | None = None,
        time: str | None = None,
        numeric: list[str] | None = None,
        categorical: list[str] | None = None,
        columns: list[str] | None = None,
        ignore: list[str] | None = None,
        missing: Fill = "error",
        missing_indicator: bool = False,
        missing_category: Literal["error", "own"] = "own",
        missing_label: Literal["error", "drop"] = "error",
        missing_values: list[str] | None = None,
        unseen: Literal["other", "error"] = "other",
        categories_max: Annotated[int, pydantic.Field(ge=1)] = 100,
        decimal: Literal[".", ","] = ".",
        separator: Annotated[str, pydantic.Field(min_length=1, max_length=1)] | None = None,
        test: Amount = 0.2,
        split_seed: int = 0,
        normalize: Normalize = "channel",
        limit: Limit = None,
        limit_test: Limit = None,
    ) -> None:
        if missing_indicator and missing in ("error", "drop"):
            raise ConfigError(
                f"data.missing_indicator: marks numbers that were filled in, but data.missing is {missing}; set it to "
                f"mean, median or zero"
            )
        self.path = path
        self.root = root
        self.learn = learn
        self.missing_label = missing_label
        self.separator = separator
        self.test = test
        self.split_seed = split_seed
        self.normalize = normalize
        self.limits = {"limit": limit, "limit_test": limit_test}
        self.rules = Rules(
            missing, missing_indicator, missing_category, unseen, categories_max, decimal, tuple(missing_values or ())
        )
        self.roles = Roles(
            label,
            client,
            time,
            tuple(columns or ()),
            tuple(numeric or ()),
            tuple(categorical or ()),
            tuple(ignore or ()),
            self.rules,
        )

    def load(self) -> Dataset:
        """The rows. Raises `DataError`, for contrary settings `ConfigError`."""
        path = located(self.root, self.path)
        files = [file for file in find_tables(path) if file is not None]
        notes: list[str] = []
        frames = self._read(files, path, notes)
        tally: Counter[tuple[str, str]] = Counter()
        try:
            rows, features = self._rows(frames, notes)
            encoding = fit(rows.frame[~rows.test], features, self.rules)
            table = encoding.apply(rows.frame, tally)
        except DataError as error:
            where = " (rows of the test file are counted after those of the training file)" if len(files) == 2 else ""
            raise DataError(f"{path}: {error}{where}") from None
        notes += told(tally, len(rows.labels))
        notes += self._remarks(rows, encoding, table)
        decoded = Decoded(
            table,
            rows.labels,
            rows.classes,
            rows.columns,
            values=rows.values,
            notes=tuple(notes),
            reader={
                **encoding.to_json(),
                "features": encoding.features,
                "label": self.roles.label,
                "learn": self.learn,
                "classes": list(rows.classes),
                "separator": self.separator,
            },
            held=np.flatnonzero(rows.test),
            flags=encoding.flags,
        )
        return assemble(decoded, _name(path), self.normalize)

    def _read(self, files: Sequence[Path], path: Path, notes: list[str]) -> list[pd.DataFrame]:
        """The frames of the training file and of the test file, if there is one, with every column that is needed."""
        if len(files) == 2 and self.roles.time is not None:
            raise ConfigError(
                f"data.time: says which rows are for testing, but {path} has a test file; use one of them"
            )
        frames = [read_table(file, self.separator) for file in files]
        for file, frame in zip(files, frames, strict=True):
            if not len(frame):
                raise DataError(f"{file}: there is no row in it")
        self.roles.check(files[0], list(frames[0].columns))
        if len(files) == 2:
            frames[1] = self._matched(files[1], frames[0], frames[1], notes)
        return frames

    def _matched(self, file: Path, train: pd.DataFrame, test: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
        """The test rows with those columns that the training rows have."""
        for name in (self.roles.label, *self.roles.groupings):
            if name not in test.columns:
                raise DataError(f"{file}: has no column {name!r}, which the training rows have")
        apart = {*UNNAMED, *self.roles.ignore}
        for name in (name for name in train.columns if name not in test.columns and name not in apart):
            if self.rules.missing in ("error", "drop") and self.roles.is_numeric(train[name], name):
                raise DataError(
                    f"{file}: has no column {name!r}, which the training rows have; add it, list it under data.ignore, "
                    f"or set data.missing to mean, median or zero"
                )
            notes.append(f"a column that the test file lacks, taken as missing: {name}")
        further = [name for name in test.columns if name not in train.columns and name not in UNNAMED]
        if further:
            notes.append(f"columns that only the test file has, left out: {listed(further)}")
        return test.drop(columns=further)

    def _rows(self, frames: Sequence[pd.DataFrame], notes: list[str]) -> tuple[_Rows, list[tuple[str, bool]]]:
        """The rows that are used, and the columns that are features, with whether they are numeric."""
        import pandas as pd

        # Both files side by side: a column of numbers in one and of text in the other shows. The index of the frame
        # stays that of the files, so that an error can name the row.
        frame = pd.concat(frames, ignore_index=True) if len(frames) == 2 else frames[0]
        frame = self._labelled(frame, notes)
        features = self.roles.features(frame, notes)
        if self.rules.missing == "drop":
            frame = self._dropped(frame, [name for name, numeric in features if numeric], notes)
        labels, classes, values = self._learned(frame)
        columns = {name: class_codes(self._names(frame, name), f"column {name!r}") for name in self.roles.groupings}
        test = np.asarray(frame.index >= len(frames[0]))
        rows = _Rows(frame, labels, classes, values, columns, test)
        encoded = [self._numbered(frame[name], numeric) for name, numeric in features]
        wanted = labels if values is None else values
        order = canonical([*(codes for codes, _ in columns.values()), wanted, *encoded])
        if len(frames) == 1:
            rows = replace(rows, test=self._held(rows, order, notes))
        if rows.test.all():
            raise DataError("there is no training row left")
        rows = rows.at(self._limited(rows.test, order))
        return rows, self.roles.filled(rows.frame[~rows.test], features, notes)

    def _labelled(self, frame: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
        """The rows with a label; raises `DataError` where a grouping has no value."""
        for name in self.roles.groupings:
            gaps = gaps_of(texts(frame[name], self.rules.gaps))
            if gaps.any():
                raise DataError(
                    f"data.{'client' if name == self.roles.client else 'columns'}: {int(gaps.sum())} of {len(gaps)} "
                    f"rows have no value in {name!r}, the first is row {first_row(gaps)}; fill them in or leave those "
                    f"rows out: nobody can say whose they are"
                )
        gaps = gaps_of(texts(frame[self.roles.label], self.rules.gaps))
        if not gaps.any():
            return frame
        if self.missing_label == "error":
            raise DataError(
                f"data.label: {int(gaps.sum())} of {len(gaps)} rows have no value in {self.roles.label!r}, the first "
                f"is row {first_row(gaps)}; fill them in, or set data.missing_label: drop"
            )
        if gaps.all():
            raise DataError(f"data.label: no row has a value in {self.roles.label!r}")
        notes.append(f"rows without a label, left out: {int(gaps.sum())} of {len(gaps)}")
        return frame[~gaps]

    def _dropped(self, frame: pd.DataFrame, numeric: Sequence[str], notes: list[str]) -> pd.DataFrame:
        gaps = np.zeros(len(frame), dtype=bool)
        for name in numeric:
            gaps |= np.isnan(checked_numbers(frame[name], name, self.rules))
        if gaps.all():
            raise DataError("data.missing: drop leaves no row, because every one lacks a number")
        if gaps.any():
            notes.append(f"rows that lack a number, left out: {int(gaps.sum())} of {len(gaps)}")
        return frame[~gaps]

    def _learned(self, frame: pd.DataFrame) -> tuple[Array, tuple[str, ...], Array | None]:
        """Labels and classes, or the values of a regression."""
        column = frame[self.roles.label]
        if self.learn == "values":
            try:
                values = checked_numbers(column, self.roles.label, self.rules)
            except DataError as error:
                raise DataError(f"data.learn: values needs numbers: {error}") from None
            return np.zeros(len(frame), dtype=np.int64), ("all",), values[:, None]
        parsed, wrong = numbers(column, self.rules.decimal, self.rules.gaps)
        broken = parsed != np.rint(parsed)
        if not wrong.any() and broken.any():
            raise DataError(
                f"data.label: {self.roles.label!r} holds numbers such as {parsed[broken][0]:g}, which are no classes; "
                f"to predict numbers set data.learn: values"
            )
        labels, classes = class_codes(self._names(frame, self.roles.label), f"column {self.roles.label!r}")
        if len(classes) < 2:
            raise DataError(f"data.label: all rows have the label {classes[0]!r}; there must be two classes or more")
        return labels, classes, None

    def _names(self, frame: pd.DataFrame, name: str) -> Array:
        return _whole(texts(frame[name], self.rules.gaps))

    def _numbered(self, column: pd.Series[Any], numeric: bool) -> Array:
        """A column as numbers that depend on its values alone."""
        if numeric:
            return checked_numbers(column, str(column.name), self.rules)
        given = texts(column, self.rules.gaps)
        place = {value: i for i, value in enumerate(sorted(set(given.tolist()) - {None}))}
        return np.fromiter((place.get(value, -1) for value in given), dtype=np.float64, count=len(given))

    def _held(self, rows: _Rows, order: Array, notes: list[str]) -> Array:
        """Which rows are held out."""
        count = len(order)
        clients = np.zeros(count, dtype=np.int64) if self.roles.client is None else rows.columns[self.roles.client][0]
        rng = generator(self.split_seed, "test rows")
        if self.roles.time is not None:
            stamps, remarks = moments(rows.frame[self.roles.time], self.roles.time, self.rules.gaps)
            notes += remarks
            held = latest(stamps, clients, self.test)
        elif self.roles.client is None:
            codes = [codes[order] for codes, _ in rows.columns.values()]
            held = order[hold_out(rows.labels[order], codes, self.test, rng)]
        else:
            codes = [codes[order] for name, (codes, _) in rows.columns.items() if name != self.roles.client]
            held = order[by_client(rows.labels[order], clients[order], codes, self.test, rng)]
        test = np.zeros(count, dtype=bool)
        test[held] = True
        return test

    def _limited(self, test: Array, order: Array) -> Array:
        """The positions of the rows that the limits leave, in the order of the file."""
        kept = []
        for purpose, rows in (("limit", order[~test[order]]), ("limit_test", order[test[order]])):
            limit = self.limits[purpose]
            whole = limit is None or limit >= len(rows)
            kept.append(rows if whole else generator(self.split_seed, purpose).permutation(rows)[:limit])
        return np.sort(np.concatenate(kept))

    def _remarks(self, rows: _Rows, encoding: Encoding, table: Array) -> list[str]:
        notes = []
        training = np.flatnonzero(~rows.test)
        dull = constant(table, training)
        same = {name for name, alike in zip(encoding.features, dull, strict=True) if alike}
        alike = [c.name for c in encoding.columns if all(f in same for f in c.features) and len(training) > 1]
        if alike:
            notes.append(f"columns with the same value in every training row: {listed(alike)}")
        if rows.values is None:
            notes += many_classes(rows.classes, len(rows.labels), "set data.learn: values")
            only = set(rows.labels[rows.test].tolist()) - set(rows.labels[~rows.test].tolist())
            if only:
                notes.append(f"labels that no training row has: {listed([rows.classes[i] for i in sorted(only)])}")
        if self.roles.client is not None:
            codes, names = rows.columns[self.roles.client]
            for what, part in (("training", codes[~rows.test]), ("test", codes[rows.test])):
                lacking = len(names) - len(np.unique(part))
                if lacking:
                    notes.append(f"clients without a {what} row: {lacking} of {len(names)}")
        return notes


def _whole(values: Array) -> Array:
    """Texts as integers where all of them are written like ones, so that they are sorted as numbers."""
    plain = all(str(value).lstrip("-").isdecimal() and str(int(value)) == value for value in set(values.tolist()))
    if plain and all(abs(int(value)) < 2**63 for value in set(values.tolist())):
        return np.array([int(value) for value in values], dtype=np.int64)
    return values.astype(str)


def told(tally: Counter[tuple[str, str]], rows: int) -> list[str]:
    """What `Encoding.apply` filled in, what became another category and which columns it lacked, as notes."""
    said = {"filled": "missing numbers, filled in", "other": "values of a category that no training row has"}
    lacking = [column for kind, column in tally if kind == "lacking"]
    notes = [f"columns that are not there, taken as missing: {listed(lacking)}"] if lacking else []
    for what, text in said.items():
        counts = [f"{column} ({count})" for (kind, column), count in tally.items() if kind == what]
        if counts:
            notes.append(f"{text}, of {rows} rows: {listed(counts)}")
    return notes


def _name(path: Path) -> str:
    """The name of a file without its suffix, or of a folder."""
    name = path.resolve().name
    return next((name[: -len(s)] for s in sorted(SUFFIXES, key=len, reverse=True) if name.lower().endswith(s)), name)
