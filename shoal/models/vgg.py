"""VGG-11 with the names of torchvision, and its variants for small images."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field
from torch import nn

from .base import Dropout, Shape, image_shape

_POOL = 0
_LAYERS = (64, _POOL, 128, _POOL, 256, 256, _POOL, 512, 512, _POOL, 512, 512, _POOL)
"""Channels of the 3x3 convolutions; between them max-poolings that halve the image."""
_SMALLEST = 2 ** _LAYERS.count(_POOL)


def vgg11(
    shape: Shape,
    outputs: int,
    *,
    hidden: Sequence[Annotated[int, Field(ge=1)]] = (4096, 4096),
    norm: Literal["none", "batch"] = "none",
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5,
    pool: Annotated[int, Field(ge=1)] | None = None,
) -> nn.Module:
    """Eight 3x3 convolutions with 64 to 512 channels and five max-poolings, then dense layers of ``hidden`` widths.

    Configuration A of Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition"
    (2015), with the architecture and names of torchvision's ``vgg11`` (``norm: batch``: ``vgg11_bn``), so that a file
    with its weights fits by name (``model.weights``). The convolutions' output is averaged to ``pool`` x ``pool``;
    ``null`` is 7, or what is left of the image where that is less (1 of 32 pixels). For torchvision's dense layers on
    small images say ``pool: 7``. Parameters:

    - defaults on 3x224x224 with 1000 outputs: 132,863,336 (``norm: batch``: 132,868,840);
    - ``hidden: [512, 512]`` on 3x32x32 with 10 outputs, a common network for CIFAR-10: 9,750,922;
    - ``hidden: []``, ``norm: batch``, ``dropout: 0`` on 3x32x32 with 100 outputs: 9,277,284. Our reading of the
      "VGGNet" for CIFAR-100 in "Effective Federated Adaptive Gradient Methods with Non-IID Decentralized Data" (arXiv
      2009.06557), which does not give the depth.

    ``classifier`` is all dense layers; each but the last is followed by a rectifier and dropout. Takes
    ``[rows, *shape]``, gives logits ``[rows, outputs]``. Initialisation: He normal (fan-out) and zero biases for
    convolutions, as in torchvision; torch's own for dense layers, which unlike torchvision's (normal, deviation 0.01)
    follows their width, so narrow ones learn too.

    Raises ``ValueError`` for tables and for images below 32x32.
    """
    channels, *sides = image_shape("vgg11", shape, _SMALLEST)
    layers: list[nn.Module] = []
    for width in _LAYERS:
        if width == _POOL:
            layers.append(nn.MaxPool2d(2))
            continue
        convolution = nn.Conv2d(channels, width, 3, padding=1)
        nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
        layers.append(convolution)
        if norm == "batch":
            layers.append(nn.BatchNorm2d(width))
        layers.append(nn.ReLU())
        channels = width
    height, across = (min(7, side // _SMALLEST) if pool is None else pool for side in sides)
    dense: list[nn.Module] = []
    inputs = channels * height * across
    for units in hidden:
        dense += [nn.Linear(inputs, units), nn.ReLU(), Dropout(dropout)]
        inputs = units
    dense.append(nn.Linear(inputs, outputs))
    return nn.Sequential(
        OrderedDict(
            features=nn.Sequential(*layers),
            avgpool=nn.AdaptiveAvgPool2d((height, across)),
            flatten=nn.Flatten(),
            classifier=nn.Sequential(*dense),
        )
    )
