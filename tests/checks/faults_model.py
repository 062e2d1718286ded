"""Models with one fault each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class _Doubled(torch.autograd.Function):
    """Twice a number, with a rule for vmap of its own that is wrong."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Tensor:
        return 2 * d

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> tuple[Tensor, int]:
        return 2 * x.mean(in_dims[0], keepdim=True).expand_as(x), in_dims[0]


class Entwined(nn.Module):
    """A layer that under vmap gives every client the mean of all."""

    def __init__(self, shape: Sequence[int], outputs: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(shape[0], outputs)

    def forward(self, x: Tensor) -> Tensor:
        doubled: Tensor = _Doubled.apply(self.classifier(x))
        return doubled


class Evaluated(nn.Module):
    """A model that trains otherwise after it was shown a batch of one row in evaluation mode, as a probe does."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.features = nn.Linear(shape[0], 4)
        self.classifier = nn.Linear(4, outputs)
        self.shown = False

    def forward(self, x: Tensor) -> Tensor:
        scale = 1.01 if self.training and self.shown else 1.0
        self.shown = not self.training and len(x) == 1
        found: Tensor = self.classifier(torch.relu(self.features(x))) * scale
        return found
