"""The LeNet of federated continual learning, with local response normalisation."""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from .base import Shape, image_shape


class LocalResponseNorm(nn.Module):
    """``x / (1 + alpha / size * sum of x**2 over size neighbouring channels) ** 0.75``.

    Equal to ``torch.nn.LocalResponseNorm(size, alpha, 0.75, k=1)`` up to rounding, for an odd ``size`` and a
    known number of channels; TensorFlow's ``depth_radius`` is ``(size - 1) / 2``, its ``alpha`` is ours divided
    by ``size``. The sum over channels is a 1x1 convolution with a banded matrix, and the power is made of square
    roots: on a CPU several times faster than a pooling over channels and ``pow``.
    """

    band: Tensor
    one: Tensor

    def __init__(self, channels: int, size: int = 9, alpha: float = 1e-3) -> None:
        super().__init__()
        at = torch.arange(channels)
        near = (at[:, None] - at[None, :]).abs() <= size // 2
        self.register_buffer("band", near[:, :, None, None] * (alpha / size), persistent=False)
        self.register_buffer("one", torch.ones(channels), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        root = F.conv2d(x * x, self.band, self.one).rsqrt()
        return x * (root * root.sqrt())


class SamePool(nn.Module):
    """3x3 max-pooling with stride 2 and TensorFlow's ``SAME`` padding: ``n`` -> ``ceil(n / 2)``.

    An even side is padded at its end only, an odd one at both ends.
    """

    def forward(self, x: Tensor) -> Tensor:
        # ceil_mode pads at the end what the last window lacks: nothing for an odd side, one for an even one.
        return F.max_pool2d(x, 3, 2, padding=(x.shape[-2] % 2, x.shape[-1] % 2), ceil_mode=True)


def lenet(shape: Shape, outputs: int, *, width: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0) -> nn.Module:
    """Twice conv 5x5 (20, then 50 channels) - ReLU - LRN - max-pool 3x3/2, all ``SAME``; then 800 - 500 - head.

    The network of FedWeIT ("Federated Continual Learning with Weighted Inter-client Transfer", ICML 2021) in
    its plain variant, also used for Concept Matching: 2,987,870 parameters without the head on 3x32x32 images.
    ``width`` scales the channels and the dense widths. ``classifier`` is the three dense layers. Takes
    ``[rows, *shape]``, gives logits; the original ends in a softmax, which is part of the loss here.
    Initialisation as in Keras: Glorot uniform, biases zero.
    """
    channels, height, across = image_shape("lenet", shape)
    first, second, fc1, fc2 = (max(1, round(width * units)) for units in (20, 50, 800, 500))
    features = OrderedDict(
        conv1=nn.Conv2d(channels, first, 5, padding=2),
        relu1=nn.ReLU(),
        norm1=LocalResponseNorm(first),
        pool1=SamePool(),
        conv2=nn.Conv2d(first, second, 5, padding=2),
        relu2=nn.ReLU(),
        norm2=LocalResponseNorm(second),
        pool2=SamePool(),
        flatten=nn.Flatten(),
    )
    classifier = OrderedDict(
        fc1=nn.Linear(second * -(-height // 4) * -(-across // 4), fc1),
        relu1=nn.ReLU(),
        fc2=nn.Linear(fc1, fc2),
        relu2=nn.ReLU(),
        output=nn.Linear(fc2, outputs),
    )
    model = nn.Sequential(OrderedDict(features=nn.Sequential(features), classifier=nn.Sequential(classifier)))
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return model
