"""Cross entropy with a price on what a tailored network computes, and on how far it is from a fine-tuned one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ConfigError
from .classes import CrossEntropy

if TYPE_CHECKING:
    from ..models.nettailor import Tail

TEACHER = 10.0
"""The weight of the teacher's term, where there is a teacher and nothing else is said."""
OMEGAS = ("mean", "sum")


class NetTailorLoss(CrossEntropy):
    """Cross entropy plus ``complexity`` (0.3) times the expected complexity of ``model: nettailor``, see
    `shoal.models.nettailor.Tail.complexity`, plus ``teacher`` (10, with ``model.teacher``) times Omega, the squared
    distance between its activations and logits and the teacher's. Measured is the cross entropy alone. Further
    arguments: ``omega`` (``mean``), ``label_smoothing`` (0).

    Morgado and Vasconcelos, "NetTailor" (2019), equation 9, and equation 10 for Omega, of which paper and code have
    readings of their own:

    - ``omega: mean``, the authors' code: the mean squared error of the logits and of each block's activation, their
      sum divided by the number of blocks. The activations that enter are worked out anew from inputs that are held
      constant, so that each block is trained by its own error alone; the logits' error trains all. Deviations: the
      running statistics of the proxies' BatchNorm follow each batch once, in the code twice; blocks in front of
      ``first_tailored_block``, which do not change, do not count, in the sum and in their number.
    - ``omega: sum``, the paper: the sum of all squared differences of a row, meaned over the batch, with gradients
      through all blocks.

    Blocks that pruning left without inputs are left out of the sum, not of the number, as in the code. Raises
    `ConfigError` for another model, another ``omega``, and for ``teacher`` without ``model.teacher``.
    """

    def __call__(  # type: ignore[override]
        self,
        module: nn.Module,
        x: Tensor,
        y: Tensor,
        *,
        complexity: float = 0.3,
        teacher: float | None = None,
        omega: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Tensor:
        _not_negative(complexity=complexity, teacher=teacher)
        if teacher:
            raise ConfigError(
                f"local.loss_args.teacher: {teacher}, but there is no teacher; name the file of the fine-tuned "
                f"backbone, model.teacher: FILE, or leave the argument out"
            )
        _check(omega)
        loss = F.cross_entropy(module(x), y, label_smoothing=label_smoothing)
        return loss + complexity * _tail(module).complexity()

    def wants_teacher(self, *, teacher: float | None = None, **args: Any) -> bool:
        """Unless its weight is 0."""
        return teacher is None or teacher != 0

    def beside(  # type: ignore[override]
        self,
        module: nn.Module,
        x: Tensor,
        y: Tensor,
        shown: Tensor,
        *,
        complexity: float = 0.3,
        teacher: float | None = None,
        omega: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Tensor:
        """All three terms."""
        _check(omega)
        _not_negative(complexity=complexity, teacher=teacher)
        tail = _tail(module)
        with tail.seeing(locally=omega == "mean") as seen:
            logits = module(x)
        loss = F.cross_entropy(logits, y, label_smoothing=label_smoothing) + complexity * tail.complexity()
        weight = TEACHER if teacher is None else teacher
        return loss + weight * _omega(tail, seen, logits, shown, omega)


def _check(omega: str) -> None:
    if omega not in OMEGAS:
        raise ConfigError(f"local.loss_args.omega: mean (the authors' code) or sum (the paper); got {omega!r}")


def _not_negative(**weights: float | None) -> None:
    for name, weight in weights.items():
        if weight is not None and weight < 0:
            raise ConfigError(f"local.loss_args.{name}: a weight is 0 or more; got {weight}")


def _tail(module: nn.Module) -> Tail:
    from ..models.nettailor import Tail  # here, because models read the configuration, which names losses

    tail = next((part for part in module.modules() if isinstance(part, Tail)), None)
    if tail is None:
        raise ConfigError("local.loss: nettailor prices the paths of model.kind: nettailor; use cross_entropy")
    return tail


def _omega(tail: Tail, seen: Mapping[int, Tensor], logits: Tensor, shown: Tensor, omega: str) -> Tensor:
    """Omega, from what the teacher makes of the rows: the activations of all blocks behind the fixed ones, logits."""
    from ..models.teacher import unflat

    blocks = range(tail.fixed + 1, len(tail.shapes))
    parts = torch.split(shown, [*(math.prod(tail.shapes[block]) for block in blocks), logits.shape[1]], dim=1)
    pairs = [(logits, parts[-1])]
    pairs += [(seen[b], unflat(part, tail.shapes[b])) for b, part in zip(blocks, parts[:-1], strict=True) if b in seen]
    if omega == "mean":
        return torch.stack([F.mse_loss(ours, theirs) for ours, theirs in pairs]).sum() / len(blocks)
    return torch.stack([(ours - theirs).square().sum() for ours, theirs in pairs]).sum() / len(logits)
