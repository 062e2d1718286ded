"""`Dropout` with a mask from a named generator, and the check that no layer draws from torch's global one."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from ..placing import placed

_ALWAYS_GLOBAL = (nn.modules.dropout._DropoutNd, nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)
_GLOBAL_WITH_DROPOUT = (nn.RNNBase, nn.MultiheadAttention)


class Dropout(nn.Module):
    """Dropout whose mask comes from the fit's own named stream, not from torch's global generator.

    Every number is zero with probability ``p``, the others are divided by ``1 - p``. In evaluation mode, and
    outside a fit (no ``rng``), it is the identity. Raises ``ValueError`` unless ``0 <= p < 1``.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"dropout needs 0 <= p < 1; got {p}")
        self.p = p
        self.rng: np.random.Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0 or self.rng is None:
            return x
        # 32-bit uniforms: numpy draws them three times faster than torch draws a Bernoulli mask on the CPU.
        kept = self.rng.random(x.shape, dtype=np.float32) >= self.p
        return x * placed(torch.from_numpy(kept), x.device).to(x.dtype).mul_(1 / (1 - self.p))

    def extra_repr(self) -> str:
        return f"p={self.p}"


def own_dropout(module: nn.Module, path: str = "") -> nn.Module:
    """Replaces every ``nn.Dropout`` inside a module by `Dropout`, in place.

    Raises ``ValueError`` for other layers that read torch's global generator while training, with their place.
    """
    # Not named_children(): that skips the second name of a layer that is used twice.
    for name, child in module._modules.items():
        place = f"{path}.{name}" if path else name
        if type(child) is nn.Dropout:
            module._modules[name] = Dropout(child.p)
        elif child is not None and _reads_global(child):
            raise ValueError(
                f"layer {place!r} is a {type(child).__name__} that reads torch's global random generator, so "
                f"results would depend on the number of workers; use nn.Dropout (it is replaced by "
                f"shoal.models.Dropout) or a layer without randomness"
            )
        elif child is not None:
            own_dropout(child, place)
    return module


def _reads_global(module: nn.Module) -> bool:
    if isinstance(module, _GLOBAL_WITH_DROPOUT):
        return module.dropout > 0
    return isinstance(module, _ALWAYS_GLOBAL)
