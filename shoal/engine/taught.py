"""What a model's teacher makes of the rows of a request: constants, worked out once for a run where memory allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..data.dataset import inputs
from ..losses import Beside, Loss
from ..placing import placed
from .batches import Batches
from .features import Kept
from .plan import Step


class Lessons:
    """A loss and a teacher on the rows of one request.

    With ``kept`` what the teacher makes of all the rows is taken from there, or worked out and left there. Else, and
    where it would take too much memory, it is worked out for each batch.
    """

    def __init__(self, loss: Loss, teacher: nn.Module, name: str, batches: Batches, kept: Kept | None) -> None:
        self.loss = loss
        self.teacher = teacher
        self.batches = batches
        self.shown = None if kept is None else kept.of(f"{name}: teacher", teacher, batches)

    def of_step(self, step: Step, x: Tensor | None) -> Beside:
        """The loss of one step of a fit, on its rows ``x``, which may be augmented; ``None`` where they are not there,
        but only what the layers in front make of them."""
        if self.shown is not None:
            at = placed(torch.from_numpy(step.positions), self.shown.device)
            return Beside(self.loss, self.shown.index_select(0, at))
        return self._now(inputs(self.batches.take(step)[0]) if x is None else x)

    def of_range(self, begin: int, x: Tensor) -> Beside:
        """The loss of the rows ``x``, which follow one another in the request from ``begin`` on."""
        return self._now(x) if self.shown is None else Beside(self.loss, self.shown[begin : begin + len(x)])

    def _now(self, x: Tensor) -> Beside:
        with torch.no_grad():
            return Beside(self.loss, self.teacher(x.clone()))  # an own layer may work in place


def lessons(
    loss: Loss, args: Mapping[str, Any], teacher: nn.Module | None, name: str, batches: Batches, kept: Kept | None
) -> Lessons | None:
    """Those of a request, where the loss compares with a teacher and the model of this name has one."""
    if teacher is None or not loss.wants_teacher(**args):
        return None
    return Lessons(loss, teacher, name, batches, kept)
