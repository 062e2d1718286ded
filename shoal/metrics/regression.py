"""Metrics of a regression, in the units of the source. ``outputs`` and ``targets`` are ``[rows, values]``.

With several values each metric is the plain mean of its numbers for the single ones. ``None`` where an output is
infinite.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .functions import learns

Array = NDArray[Any]


def _both(outputs: Tensor, targets: Tensor) -> tuple[Array, Array] | None:
    """Outputs and targets as float64; ``None`` if one of them is not finite."""
    if outputs.shape != targets.shape:
        raise ValueError(
            f"needs a value for each output; got outputs of shape {tuple(outputs.shape)} and targets of shape "
            f"{tuple(targets.shape)}"
        )
    found, wanted = outputs.double().numpy(), targets.double().numpy()
    return (found, wanted) if np.isfinite(found).all() and np.isfinite(wanted).all() else None


@learns("values")
def mae(outputs: Tensor, targets: Tensor) -> float | None:
    """The mean absolute error."""
    from sklearn.metrics import mean_absolute_error

    both = _both(outputs, targets)
    return None if both is None else float(mean_absolute_error(both[1], both[0]))


@learns("values")
def rmse(outputs: Tensor, targets: Tensor) -> float | None:
    """The square root of the mean squared error; with several values the mean of their roots."""
    from sklearn.metrics import root_mean_squared_error

    both = _both(outputs, targets)
    return None if both is None else float(root_mean_squared_error(both[1], both[0]))


@learns("values")
def r2(outputs: Tensor, targets: Tensor) -> float | None:
    """The coefficient of determination: 1 minus the squared error by that of the targets' own mean.

    Values whose targets are all equal have none and are left out; ``None`` where that leaves nothing.
    """
    from sklearn.metrics import r2_score

    both = _both(outputs, targets)
    if both is None:
        return None
    found, wanted = both
    varied = (wanted != wanted[:1]).any(axis=0)
    if not varied.any():
        return None
    return float(r2_score(wanted[:, varied], found[:, varied]))
