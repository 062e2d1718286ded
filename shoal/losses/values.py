"""Losses that learn real values: outputs and targets are both ``[rows, outputs]``, standardised as the data set says.

Each row's loss is the mean over its outputs. There is no accuracy.
"""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from .base import Learns, RowLoss


def _error(outputs: Tensor, y: Tensor) -> Tensor:
    # Torch would broadcast [rows] against [rows, 1] to all pairs of rows.
    if outputs.shape != y.shape:
        raise ValueError(f"outputs of shape {tuple(outputs.shape)} do not fit targets of shape {tuple(y.shape)}")
    return outputs - y


class MeanSquared(RowLoss):
    """Mean squared error, ``e ** 2`` (without a factor of one half)."""

    learns: ClassVar[Learns] = "values"

    def rows(self, outputs: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
        """The mean of the squares over the outputs."""
        return _error(outputs, y).square().mean(-1)

    def derivative(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """``2 e`` by the number of outputs."""
        error = _error(outputs, y)
        return error.square().mean(-1), error * (2 / error.shape[-1])


class MeanAbsolute(RowLoss):
    """Mean absolute error, ``|e|``; its gradient at 0 is 0."""

    learns: ClassVar[Learns] = "values"

    def rows(self, outputs: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
        """The mean of the absolute errors over the outputs."""
        return _error(outputs, y).abs().mean(-1)

    def derivative(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """The sign of ``e`` by the number of outputs."""
        error = _error(outputs, y)
        return error.abs().mean(-1), error.sign() / error.shape[-1]


class Huber(RowLoss):
    """Huber's loss: ``e ** 2 / 2`` up to ``|e| = delta``, from there ``delta * (|e| - delta / 2)``.

    Argument ``delta`` (1), in standard deviations of the training values. Huber, "Robust estimation of a location
    parameter" (1964).
    """

    learns: ClassVar[Learns] = "values"

    def rows(self, outputs: Tensor, y: Tensor, *, delta: float = 1.0) -> Tensor:  # type: ignore[override]
        """The mean of Huber's function of the errors over the outputs."""
        if not delta > 0:
            raise ValueError(f"huber needs a delta above 0; got {delta}")
        _error(outputs, y)
        return F.huber_loss(outputs, y, reduction="none", delta=delta).mean(-1)

    def derivative(  # type: ignore[override]
        self, outputs: Tensor, y: Tensor, *, delta: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """``e``, at most ``delta`` on both sides, by the number of outputs."""
        error = _error(outputs, y).clamp(-delta, delta)
        return self.rows(outputs, y, delta=delta), error / error.shape[-1]
