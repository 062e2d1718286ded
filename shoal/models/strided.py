"""1x1 convolutions with a stride and few channels: PyTorch's gradient of their weights writes outside of its memory.

Seen in PyTorch 2.13 on the CPU with rows that are channels-last, 2 to 6 input channels and an even number of pixels
(``free(): invalid pointer``, or wrong numbers elsewhere). Such a convolution looks at some of the pixels alone, so it
is the convolution without a stride of those pixels, whose gradient is sound.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

FEW = 8
"""Convolutions of fewer input channels are replaced."""


def is_unsafe(layer: nn.Conv2d) -> bool:
    """Whether a convolution has a stride, one pixel, no padding, no groups, and few channels."""
    point = layer.kernel_size == (1, 1) and max(layer.stride) > 1
    return point and layer.padding in ((0, 0), "valid") and layer.groups == 1 and layer.in_channels < FEW


class StridedPoint(nn.Conv2d):
    """Such a convolution, with the same parameters and the same results."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x[..., :: self.stride[0], :: self.stride[1]], self.weight, self.bias)


def own_strided(module: nn.Module) -> nn.Module:
    """Replaces every unsafe ``nn.Conv2d`` in a module by `StridedPoint`, in place."""
    for layer in module.modules():
        if type(layer) is nn.Conv2d and is_unsafe(layer):
            layer.__class__ = StridedPoint
    return module
