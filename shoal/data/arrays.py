"""Data that are handed over in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from torch import Tensor

from ..errors import DataError
from .dataset import Dataset
from .source import Array, Decoded, Source, assemble, class_codes, many_classes

_CHANNELS = (1, 2, 3, 4)
_REGRESSION = "; to predict numbers (a regression) say learn='values'"


def from_arrays(
    x: Array | Tensor,
    y: Array | Tensor | Sequence[int] | Sequence[str] | Sequence[float],
    x_test: Array | Tensor | None = None,
    y_test: Array | Tensor | Sequence[int] | Sequence[str] | Sequence[float] | None = None,
    *,
    test: float = 0.2,
    columns: Mapping[str, Array | Tensor | Sequence[int] | Sequence[str]] | None = None,
    name: str = "arrays",
    seed: int = 0,
    normalize: Literal["channel", "half", "unit", "none"] = "channel",
    learn: Literal["classes", "values"] = "classes",
) -> Dataset:
    """A data set from numpy arrays or torch tensors; the values are copied.

    ``x`` is images, uint8 ``[n, height, width]`` or ``[n, height, width, channels]``, or a table of numbers ``[n,
    features]`` (normalised in float64, kept as float32). ``y`` is one label per row, any integers or strings. Without
    ``x_test`` and ``y_test``, ``test`` rows (a share below 1, or a number) are held out, stratified by label and
    ``columns`` and drawn with ``seed``. ``columns`` are groupings of the rows, such as a domain, with one integer or
    string for each row of ``x`` and then of ``x_test``. ``normalize`` is that of the other sources (for a table per
    feature); ``none`` leaves the values alone.

    With ``learn="values"`` (a regression) ``y`` is numbers, ``[n]`` or ``[n, outputs]``; the models learn them with
    mean 0 and deviation 1 over the training rows, and `Dataset.in_units` leads back.

    Raises `DataError` for a wrong type, shape or length, and for a NaN or an infinity.
    """
    features, peak = _features(x, "x")
    if learn not in ("classes", "values"):
        raise DataError(f"learn: 'classes' or 'values'; got {learn!r}")
    classed = learn == "classes"
    wanted: Any = _labels(y, "y", len(features)) if classed else _values(y, "y", len(features))
    train_rows = None
    if (x_test is None) != (y_test is None):
        raise DataError("x_test and y_test go together; give both or neither")
    if x_test is not None and y_test is not None:
        train_rows = len(features)
        more, _ = _features(x_test, "x_test")
        if more.shape[1:] != features.shape[1:] or more.dtype != features.dtype:
            raise DataError(
                f"x_test: rows of {more.dtype} {more.shape[1:]}, but those of x are {features.dtype} "
                f"{features.shape[1:]}; bring both to one type and shape"
            )
        if classed:
            wanted = [*wanted, *_labels(y_test, "y_test", len(more))]
        else:
            further = _values(y_test, "y_test", len(more))
            if further.shape[1] != wanted.shape[1]:
                raise DataError(f"y_test: {further.shape[1]} values a row, but y has {wanted.shape[1]}")
            wanted = np.concatenate([wanted, further])
        features = np.concatenate([features, more])
    if classed:
        codes, classes = class_codes(wanted, "y", hint=_REGRESSION)
    else:
        codes, classes = np.zeros(len(features), dtype=np.int64), ("all",)
    groups = {
        column: class_codes(_listed(values, f"columns[{column!r}]", len(features)), f"columns[{column!r}]")
        for column, values in (columns or {}).items()
    }
    notes = many_classes(classes, len(codes), "say learn='values'") if classed and features.ndim == 2 else []
    rows = Decoded(
        features, codes, classes, groups, train_rows, peak, values=None if classed else wanted, notes=tuple(notes)
    )
    return assemble(rows, name, normalize, test=test, split_seed=seed)


def _array(values: Any, what: str) -> Array:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        return np.asarray((values.double() if values.is_floating_point() else values).numpy())
    try:
        return np.asarray(values)
    except ValueError as error:
        raise DataError(f"{what}: rows of different lengths do not make an array: {error}") from None


def _labels(values: Any, what: str, rows: int) -> list[Any]:
    return _listed(values, what, rows, _REGRESSION)


def _values(values: Any, what: str, rows: int) -> Array:
    """What a regression learns, float64 ``[n, outputs]``."""
    given = _array(values, what)
    if given.dtype.kind not in "buif":
        raise DataError(f"{what}: learn='values' needs numbers; got {given.dtype}")
    if given.ndim == 1:
        given = given[:, None]
    if given.ndim != 2 or given.shape[1] == 0:
        raise DataError(f"{what}: learn='values' needs the shape [n] or [n, outputs]; got {given.shape}")
    if len(given) != rows:
        raise DataError(f"{what}: {len(given)} values for {rows} rows; there must be one for each row")
    wrong = _endless(given).any(axis=1)
    if wrong.any():
        raise DataError(
            f"{what}: {int(wrong.sum())} rows have a value that is NaN or infinite (as float32), the first is row "
            f"{int(wrong.argmax())}; fill them in or leave those rows out"
        )
    return given.astype(np.float64)


def _endless(given: Array) -> Array:
    """Which numbers are NaN or infinite once they are float32."""
    with np.errstate(over="ignore"):
        return ~np.isfinite(given.astype(np.float32))


def _listed(values: Any, what: str, rows: int, hint: str = "") -> list[Any]:
    """Labels or groups as a list; a column ``[n, 1]`` is taken as ``[n]``."""
    if isinstance(values, Sequence) and not isinstance(values, str):
        found: list[Any] = list(values)
    else:
        array = _array(values, what)
        if array.ndim == 2 and array.shape[1] == 1:
            array = array[:, 0]
        class_codes(array, what, hint=hint)
        found = array.tolist()
    if len(found) != rows:
        raise DataError(f"{what}: {len(found)} values for {rows} rows; there must be one for each row")
    return found


def as_table(given: Array, what: str) -> Array:
    """Numbers ``[n, features]`` as float64, a copy; raises `DataError` for a NaN or an infinity, naming the first."""
    wrong = _endless(given)
    if wrong.any():
        row, feature = (int(i) for i in np.argwhere(wrong)[0])
        raise DataError(
            f"{what}: {int(wrong.sum())} values are NaN or infinite (as float32), the first in row {row}, feature "
            f"{feature}; fill them in or leave those rows out"
        )
    return given.astype(np.float64)


def _features(values: Any, what: str) -> tuple[Array, float]:
    """A copy as the data set keeps it, and the largest raw value of a pixel."""
    given = _array(values, what)
    if given.dtype.kind not in "buif":
        raise DataError(f"{what}: needs numbers; got {given.dtype}; encode text and dates as numbers first")
    if given.size == 0:
        raise DataError(f"{what}: there is nothing in it; its shape is {given.shape}")
    if given.ndim == 2:
        return as_table(given, what), 255.0
    if given.ndim not in (3, 4):
        raise DataError(
            f"{what}: needs a table [n, features] or images [n, height, width] or [n, height, width, channels]; "
            f"got the shape {given.shape}"
        )
    if given.dtype != np.uint8:
        raise DataError(
            f"{what}: images are uint8 (0..255); got {given.dtype}; convert them, for values in 0..1 with "
            f"(255 * x).round().astype('uint8')"
        )
    if given.ndim == 4 and given.shape[3] not in _CHANNELS:
        hint = "; channels come last: use x.transpose(0, 2, 3, 1)" if given.shape[1] in _CHANNELS else ""
        raise DataError(f"{what}: images have 1 to 4 channels; the shape {given.shape} has {given.shape[3]}{hint}")
    images = np.array(given, order="C")
    return (images[..., None] if images.ndim == 3 else images), 255.0


class Arrays(Source):
    """Marks a run whose data are handed over in Python; it cannot load them by itself."""

    def __init__(self) -> None:
        pass

    def load(self) -> Dataset:
        """Raises `DataError`: there is nothing to load from."""
        raise DataError(
            "data: {kind: arrays} holds no rows; hand them over in Python, shoal.run(config, data=dataset), with "
            "dataset = shoal.data.arrays.from_arrays(x, y)"
        )
