"""Cross entropy with a price on what a tailored network computes."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ConfigError
from .classes import CrossEntropy


class NetTailorLoss(CrossEntropy):
    """Cross entropy plus ``complexity`` (0.3) times the expected complexity of ``model: nettailor``, see
    `shoal.models.nettailor.Tail.complexity`; measured is the cross entropy alone. Argument ``label_smoothing`` (0).

    Morgado and Vasconcelos, "NetTailor" (2019), equation 9 without the teacher's term. Raises `ConfigError` for another
    model.
    """

    def __call__(  # type: ignore[override]
        self, module: nn.Module, x: Tensor, y: Tensor, *, complexity: float = 0.3, label_smoothing: float = 0.0
    ) -> Tensor:
        from ..models.nettailor import Tail  # here, because models read the configuration, which names losses

        tail = next((part for part in module.modules() if isinstance(part, Tail)), None)
        if tail is None:
            raise ConfigError("local.loss: nettailor prices the paths of model.kind: nettailor; use cross_entropy")
        loss = F.cross_entropy(module(x), y, label_smoothing=label_smoothing)
        return loss + complexity * tail.complexity()
