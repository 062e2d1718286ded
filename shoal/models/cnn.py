"""Small convolutional networks: a few convolutions with poolings, then dense layers; no BatchNorm."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field
from torch import nn

from .base import Shape, image_shape

Size = Annotated[int, Field(ge=1)]
Margin = Annotated[int, Field(ge=0)]


def cnn(
    shape: Shape,
    outputs: int,
    *,
    channels: Sequence[Size] = (6, 16),
    kernel: Size | Sequence[Size] = 5,
    stride: Size | Sequence[Size] = 1,
    padding: Margin | Sequence[Margin] = 0,
    pool: Size | Sequence[Size] = 2,
    hidden: Sequence[Size] = (120, 84),
    width: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0,
) -> nn.Module:
    """Convolutions with ``channels`` outputs, each with max-pooling and a rectifier, then dense ``hidden`` layers.

    ``kernel``, ``stride``, ``padding`` (zeros on every side) and ``pool`` are one number for all convolutions, or a
    list with one for each; ``pool: 1`` is none. ``width`` scales the channels and the dense widths. Some networks of
    papers, with their numbers of parameters:

    - as it is: conv 5x5 (6) - pool 2 - conv 5x5 (16) - pool 2 - 120 - 84 - head, 62,006 on 3x32x32 with 10 outputs. The
      model of HAST and DAC ("Decentralized adaptive clustering of deep nets is beneficial for client collaboration",
      2022); on PACS (3x227x227) it is used with ``stride: 3``;
    - ``channels: [32, 64, 64], kernel: 3, padding: 1, pool: [1, 2, 2], hidden: [256, 128]``: 893,002 on 1x28x28. Our
      reading of the "CNN with 5 hidden layers" for MNIST in "Effective Federated Adaptive Gradient Methods with Non-IID
      Decentralized Data" (arXiv 2009.06557), which does not give the layers;
    - ``channels: [12, 32], kernel: [5, 2], stride: 2, padding: [2, 0], pool: [2, 1], hidden: [64]``: 35,962 on 3x32x32,
      a cheap network for many clients.

    ``classifier`` is all dense layers: ``fc1``, ``fc2`` ... and ``output``. Takes ``[rows, *shape]``, gives logits; the
    original ends in a log-softmax, which is part of the loss here. Initialisation: torch's.

    Pooling comes before the rectifier: the maximum of rectified numbers is the rectified maximum, so values and
    gradients are those of the usual order, and the rectifier has fewer numbers.

    Raises ``ValueError`` for lists of other lengths, for a padding of more than half a kernel (it would be nothing but
    zeros), and for images that are too small: below 16x16 as it is, below 50x50 with ``stride: 3``.
    """
    if not channels:
        raise ValueError("channels: needs at least one convolution; a network without one is kind: mlp")
    count = len(channels)
    kernels, strides = _each("kernel", kernel, count), _each("stride", stride, count)
    paddings, pools = _each("padding", padding, count), _each("pool", pool, count)
    for size, margin in zip(kernels, paddings, strict=True):
        if margin > size // 2:
            raise ValueError(f"padding: at most half the kernel; got {margin} for a kernel of {size}")
    layers = list(zip(kernels, strides, paddings, pools, strict=True))
    # What is left in the end must be at least 1x1.
    smallest = 1
    for size, step, margin, pooled in reversed(layers):
        smallest = max(1, (smallest * pooled - 1) * step + size - 2 * margin)
    inputs, *sides = image_shape(f"cnn with stride {stride}", shape, smallest)
    features: OrderedDict[str, nn.Module] = OrderedDict()
    for i, (units, (size, step, margin, pooled)) in enumerate(zip(channels, layers, strict=True), 1):
        units = _scaled(units, width)
        features[f"conv{i}"] = nn.Conv2d(inputs, units, size, step, margin)
        if pooled > 1:
            features[f"pool{i}"] = nn.MaxPool2d(pooled)
        features[f"relu{i}"] = nn.ReLU()
        sides = [((side + 2 * margin - size) // step + 1) // pooled for side in sides]
        inputs = units
    features["flatten"] = nn.Flatten()
    classifier: OrderedDict[str, nn.Module] = OrderedDict()
    inputs *= sides[0] * sides[1]
    for i, units in enumerate(hidden, 1):
        units = _scaled(units, width)
        classifier[f"fc{i}"] = nn.Linear(inputs, units)
        classifier[f"relu{i}"] = nn.ReLU()
        inputs = units
    classifier["output"] = nn.Linear(inputs, outputs)
    return nn.Sequential(OrderedDict(features=nn.Sequential(features), classifier=nn.Sequential(classifier)))


def _scaled(units: int, width: float) -> int:
    return max(1, round(width * units))


def _each(name: str, given: int | Sequence[int], count: int) -> list[int]:
    """One number for each convolution; raises ``ValueError`` for a list of another length."""
    each = [given] * count if isinstance(given, int) else list(given)
    if len(each) != count:
        raise ValueError(f"{name}: one number, or one for each of {count} convolutions; got {given}")
    return each
