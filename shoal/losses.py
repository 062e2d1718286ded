"""Losses: what a model is trained on, and how its outputs are scored."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from . import registry
from .errors import ConfigError, nearest


class Loss:
    """A training loss and the score that goes with it. Holds no state."""

    part: ClassVar[str] = "loss"

    def __call__(self, module: nn.Module, x: Tensor, y: Tensor, **args: Any) -> Tensor:
        """The mean loss of a batch, a scalar that can be differentiated. ``args`` are ``Fit.loss_args``: numbers and
        tensors."""
        raise NotImplementedError

    def score(self, outputs: Tensor, y: Tensor, **args: Any) -> tuple[Tensor, Tensor]:
        """Loss and accuracy of each row (1.0 where it is right), from the outputs in evaluation mode.

        ``args`` are those of training; a loss may measure without some of them (label smoothing).
        """
        raise NotImplementedError


class CrossEntropy(Loss):
    """Cross entropy of logits ``[rows, classes]`` with labels ``[rows]``; argument ``label_smoothing`` (0)."""

    def __call__(  # type: ignore[override]
        self, module: nn.Module, x: Tensor, y: Tensor, *, label_smoothing: float = 0.0
    ) -> Tensor:
        return F.cross_entropy(module(x), y, label_smoothing=label_smoothing)

    def score(self, outputs: Tensor, y: Tensor, **args: Any) -> tuple[Tensor, Tensor]:
        outputs = outputs.float()
        return F.cross_entropy(outputs, y, reduction="none"), (outputs.argmax(1) == y).float()


def check_arguments(kind: str, args: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for arguments that a loss does not take."""
    parameters = inspect.signature(loss_of(kind).__call__).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return
    known = [name for name, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY]
    for name in args:
        if name not in known:
            raise ConfigError(f"local.loss_args.{name}: {kind} has no such argument; {nearest(name, known)}")


@functools.cache
def loss_of(kind: str) -> Loss:
    """The loss of this kind."""
    found = registry.build("loss", {"kind": kind})
    assert isinstance(found, Loss)
    return found
