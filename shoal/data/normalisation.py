"""Normalisation: the scale and offset of every channel or feature, and what a table keeps of its numbers in float32."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

Array = np.ndarray

FAR = 64.0
"""A feature whose mean is more than so many deviations away from 0 is kept less its mean, see `stored`."""

_SMALLEST = float(np.finfo(np.float32).tiny)
_ROUNDING = 8 * float(np.finfo(np.float64).eps)


class Stored(NamedTuple):
    """Features as a data set keeps them, and how they become inputs: ``features * scale + offset``.

    ``features`` is uint8 or float32; ``shift`` (float64 ``[features]``) was subtracted from a table's numbers, ``None``
    where none of them was shifted. ``scale`` and ``offset`` are float32.
    """

    features: Array
    shift: Array | None
    scale: Array
    offset: Array


def stored(features: Array, train: Array, how: str, peak: float = 255.0, flags: Array | None = None) -> Stored:
    """The features and their normalisation, worked out in float64 from the training rows.

    A float32 has 24 bits. Of a moment such as 1.7e9 (a second of today) they leave steps of 128, so a minute of such
    moments would be one number. Features that are that far from 0 (`FAR`) are therefore stored less their mean, which
    is subtracted in float64; all others are stored as they are. With ``none`` (the values are left alone) nothing is
    shifted. ``flags`` (bool ``[features]``) are features that are 0 or 1 and stay so.
    """
    scale, offset = normalisation(features, train, how, peak)
    if flags is not None:
        scale[flags], offset[flags] = 1.0, 0.0
    shift = None
    if features.ndim == 2 and how != "none":
        mean, spread = moments(features, train)
        far = np.abs(mean) > FAR * spread
        if flags is not None:
            far &= ~flags
        if far.any():
            shift = np.where(far, mean, 0.0)
            offset = offset + shift * scale
    kept = shifted(features, shift) if features.ndim == 2 else features
    return Stored(kept, shift, scale.astype(np.float32), offset.astype(np.float32))


def shifted(table: Array, shift: Array | None) -> Array:
    """The numbers of a table ``[n, features]`` less the shift, subtracted in float64; float32."""
    if shift is None:
        return table.astype(np.float32, copy=False)
    out = np.empty(table.shape, dtype=np.float32)
    for feature, amount in enumerate(shift.tolist()):
        out[:, feature] = table[:, feature] - np.float64(amount) if amount else table[:, feature]
    return out


def normalisation(features: Array, train: Array, how: str, peak: float = 255.0) -> tuple[Array, Array]:
    """``scale`` and ``offset`` (float64, per channel or feature) of a normalisation, from the training rows alone.

    The peak of a table's feature is its largest absolute value. A constant feature is only shifted. ``none`` leaves
    the values as they are.
    """
    width = features.shape[-1]
    scale, offset = np.ones(width), np.zeros(width)
    if how in ("unit", "half"):
        peaks = np.full(width, peak)
        if features.ndim == 2:
            peaks = np.zeros(width)
            for block in _blocks(features, train):
                peaks = np.maximum(peaks, np.abs(block).max(axis=0))
        scale = 1 / np.where(peaks >= _SMALLEST, peaks, 1.0)
        if how == "half":
            scale, offset = 2 * scale, offset - 1
    elif how == "channel":
        mean, spread = moments(features, train)
        scale = 1 / np.where(spread == 0, 1.0, spread)
        offset = -mean * scale
    return scale, offset


def moments(features: Array, rows: Array) -> tuple[Array, Array]:
    """Mean and standard deviation (of the population) per channel or column, float64; exact sums for bytes.

    The deviation is exactly 0 where all values are equal, and where they differ by no more than the rounding of
    float64, or by less than the smallest normal float32.
    """
    width = features.shape[-1]
    if features.dtype == np.uint8:
        counts = np.zeros((width, 256), dtype=np.int64)
        for block in _blocks(features, rows):
            for channel in range(width):
                counts[channel] += np.bincount(block[:, channel], minlength=256)
        values = np.arange(256.0)
        total = counts.sum(axis=1)
        mean = counts @ values / total
        return mean, np.sqrt((counts * (values - mean[:, None]) ** 2).sum(axis=1) / total)
    # Less the first row, so that the mean of equal values is that value.
    first = features[rows[0]].astype(np.float64)
    mean = first + sum((block - first).sum(axis=0) for block in _blocks(features, rows)) / len(rows)
    squares = sum(((block - mean) ** 2).sum(axis=0) for block in _blocks(features, rows))
    spread = np.sqrt(squares / len(rows))
    return mean, np.where(spread <= np.maximum(_SMALLEST, _ROUNDING * np.abs(mean)), 0.0, spread)


def constant(features: Array, rows: Array) -> Array:
    """Which features have the same value in all these rows, as far as a model can see: bool ``[features]``."""
    return np.asarray(moments(features, rows)[1] == 0)


def _blocks(features: Array, rows: Array, values: int = 2**22) -> Iterable[Array]:
    """The rows in blocks of a bounded number of values, images as ``[pixels, channels]``."""
    step = max(1, values // max(1, int(np.prod(features.shape[1:]))))
    for begin in range(0, len(rows), step):
        yield features[rows[begin : begin + step]].reshape(-1, features.shape[-1])
