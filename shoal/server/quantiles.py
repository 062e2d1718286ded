"""Quantiles of an entry's numbers, cheap enough to be taken in every step.

The numbers are magnitudes: signs do not count. Of up to 65,536 coordinates all are taken; of more every k-th one from
the first on, where k (`stride`) is the smallest number that leaves no more than that and shares no factor with 30. So
every place of a 3x3 or 5x5 kernel, of a row of 2 ** n weights and of 10 outputs is taken equally often.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""The shares whose quantiles are logged."""
LIMIT = 1 << 16
"""How many coordinates are looked at, at most."""
CHANGE = "step/change"
"""Where ``Entry.server`` has the quantiles of ``|Delta|`` at these shares, float64, from the entry's last step."""


def stride(size: int) -> int:
    """Which coordinates are taken: every one of this many."""
    step = max(1, -(-size // LIMIT))
    while math.gcd(step, 30) > 1:
        step += 1
    return step


def sample(values: Tensor) -> Tensor:
    """The coordinates that count, flat, as a view."""
    return values.reshape(-1)[:: stride(values.numel())]


def quantiles(values: Tensor, shares: Sequence[float] = SHARES) -> NDArray[np.float64]:
    """The linearly interpolated quantiles of the magnitudes of a `sample`, as `numpy.quantile` defines them.

    Raises ``ValueError`` for no values. Not a number counts as larger than every number.
    """
    x = np.abs(sample(values.detach()).numpy(force=True).astype(np.float32, copy=False))
    if not x.size:
        raise ValueError("quantiles need at least one number; got none")
    place = np.multiply(shares, x.size - 1, dtype=np.float64)
    low = np.floor(place).astype(np.int64)
    high = np.minimum(low + 1, x.size - 1)
    ranks = np.unique([low, high])
    ordered = _at(x, ranks).astype(np.float64)
    below, above = ordered[np.searchsorted(ranks, low)], ordered[np.searchsorted(ranks, high)]
    with np.errstate(invalid="ignore"):  # of infinities, of which the equal ones are not taken from each other
        between = below + (above - below) * (place - low)
    return np.asarray(np.where((below == above) | (place == low), below, between))


def _at(x: NDArray[np.float32], ranks: NDArray[np.int64]) -> NDArray[np.float32]:
    """The numbers of these ranks; the numbers are not negative.

    A histogram of the leading bits finds the few that must be sorted: a quarter of the time of `numpy.partition`.
    """
    # Without a sign, numbers are ordered as the integers that have their bits.
    bits = x.view(np.int32)
    least = bits.min()
    leading = (bits - least) >> max(0, int(bits.max() - least).bit_length() - 15)
    filled = np.cumsum(np.bincount(leading))
    buckets = np.searchsorted(filled, ranks, side="right")
    found = np.empty(len(ranks), dtype=np.float32)
    for bucket in np.unique(buckets):
        here = buckets == bucket
        inside = ranks[here] - (filled[bucket - 1] if bucket else 0)
        found[here] = np.partition(x[leading == bucket], inside)[inside]
    return found


def change(old: Tensor, mean: Tensor) -> dict[str, Tensor]:
    """What a step notes of the pseudo-gradient ``Delta = mean - old``: `CHANGE`, or nothing where there is no number.

    It is taken where the mean is at hand, so it is exact whatever the mean and the server optimiser are.
    """
    if mean.shape != old.shape or not old.numel():
        return {}
    found = quantiles((sample(mean) - sample(old)).clamp(min=-_LARGEST, max=_LARGEST))
    return {CHANGE: torch.from_numpy(found)} if np.isfinite(found).all() else {}


def root(v: Tensor, share: float) -> float | None:
    """The quantile of ``sqrt(v)`` over the coordinates that moved (``v > 0``); ``None`` if none did.

    Where a `sample` has none of them, as when only a small part of a large entry is trained, all coordinates are
    looked through.
    """
    some = sample(v)
    moved = some[some > 0]
    if not moved.numel():
        moved = v[v > 0]
    return float(quantiles(moved.sqrt(), (share,))[0]) if moved.numel() else None


_LARGEST = torch.finfo(torch.float32).max
