"""Losses that learn classes."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Learns, Loss, right


class CrossEntropy(Loss):
    """Cross entropy of logits ``[rows, classes]`` with labels ``[rows]``; argument ``label_smoothing`` (0)."""

    learns: ClassVar[Learns] = "classes"

    def __call__(  # type: ignore[override]
        self, module: nn.Module, x: Tensor, y: Tensor, *, label_smoothing: float = 0.0
    ) -> Tensor:
        return F.cross_entropy(module(x), y, label_smoothing=label_smoothing)

    def derivative(  # type: ignore[override]
        self, outputs: Tensor, y: Tensor, *, label_smoothing: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Softmax less the smoothed labels."""
        logs = outputs.log_softmax(-1)
        if not label_smoothing:  # the same numbers, in half as many calls
            at = y.unsqueeze(-1)
            return -logs.gather(-1, at).squeeze(-1), logs.exp().scatter_add_(-1, at, logs.new_full(at.shape, -1.0))
        wanted = torch.full_like(outputs, label_smoothing / outputs.shape[-1])
        wanted.scatter_add_(-1, y.unsqueeze(-1), torch.full_like(outputs[..., :1], 1 - label_smoothing))
        return -(wanted * logs).sum(-1), logs.exp() - wanted

    def score(self, outputs: Tensor, y: Tensor, **args: Any) -> tuple[Tensor, Tensor]:
        outputs = outputs.float()
        return F.cross_entropy(outputs, y, reduction="none"), right(outputs, y)
