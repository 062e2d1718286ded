"""Losses: what a model is trained on, and how its outputs are scored."""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from . import registry


class Loss:
    """A training loss and the score that goes with it. Holds no state."""

    part: ClassVar[str] = "loss"

    def __call__(self, module: nn.Module, x: Tensor, y: Tensor, **args: Any) -> Tensor:
        """The mean loss of a batch, a scalar that can be differentiated. ``args`` are ``Fit.loss_args``: numbers and
        tensors."""
        raise NotImplementedError

    def score(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and accuracy of each row (1.0 where it is right), from the outputs in evaluation mode."""
        raise NotImplementedError


class CrossEntropy(Loss):
    """Cross entropy of logits ``[rows, classes]`` with labels ``[rows]``; argument ``label_smoothing`` (0)."""

    def __call__(self, module: nn.Module, x: Tensor, y: Tensor, **args: Any) -> Tensor:
        return F.cross_entropy(module(x), y, label_smoothing=float(args.get("label_smoothing", 0.0)))

    def score(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        outputs = outputs.float()
        return F.cross_entropy(outputs, y, reduction="none"), (outputs.argmax(1) == y).float()


@functools.cache
def loss_of(kind: str) -> Loss:
    """The loss of this kind."""
    found = registry.build("loss", {"kind": kind})
    assert isinstance(found, Loss)
    return found
