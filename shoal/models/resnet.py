"""ResNet-20 and its kin for small images, with BatchNorm or GroupNorm."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Annotated, Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from .base import Shape, image_shape

Norm = Callable[[int], nn.Module]


class Subsample(nn.Module):
    """Shortcut A: every ``stride``-th pixel, and channels of zeros behind the given ones. No parameters."""

    def __init__(self, more: int, stride: int) -> None:
        super().__init__()
        self.more = more
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.more))


class Block(nn.Module):
    """``relu(norm(conv(relu(norm(conv(x))))) + shortcut(x))`` with 3x3 convolutions."""

    def __init__(self, inputs: int, channels: int, stride: int, norm: Norm, shortcut: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, padding=1, bias=False)
        self.norm1 = norm(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = norm(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != channels:
            if shortcut == "A":
                self.shortcut = Subsample(channels - inputs, stride)
            else:
                projection = nn.Conv2d(inputs, channels, 1, stride, bias=False)
                self.shortcut = nn.Sequential(OrderedDict(conv=projection, norm=norm(channels)))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def resnet20(
    shape: Shape,
    outputs: int,
    *,
    norm: Literal["batch", "group"] = "batch",
    groups: Annotated[int, Field(ge=1)] = 2,
    width: Annotated[int, Field(ge=1)] = 16,
    blocks: Annotated[int, Field(ge=1)] = 3,
    stem: Literal["small", "imagenet"] = "small",
    shortcut: Literal["A", "B"] = "A",
) -> nn.Module:
    """A stem, three stages of ``blocks`` with ``width``, 2 and 4 times as many channels, mean, head.

    The CIFAR network of He et al., "Deep Residual Learning for Image Recognition" (2016), section 4.2, with 6 n + 2
    layers for n ``blocks`` a stage: 269,722 parameters for n = 3 on 3x32x32 images with 10 outputs. ``stem: small`` is
    a 3x3 convolution, as there; ``imagenet`` that of `resnet18`, a 7x7 convolution with stride 2 and max-pooling, with
    a sixteenth of the pixels in every stage. ``shortcut``: ``A`` pads with zeros, as there; ``B`` projects (1x1
    convolution and norm, 272,474 parameters). ``norm: group`` has ``groups`` groups in every layer and no buffers: rows
    are independent of each other, which suits clients with different data (two groups as in Reddi et al., "Adaptive
    Federated Optimization", 2021). ``classifier`` is the head. Takes ``[rows, *shape]``, gives logits. Initialisation:
    He normal (fan-out) for convolutions, torch's for the head.

    Raises ``ValueError`` if ``groups`` does not divide ``width``.
    """
    channels, *_ = image_shape("resnet20", shape)
    if norm == "group" and width % groups:
        raise ValueError(f"resnet20 needs groups that divide the width; got groups {groups}, width {width}")
    make: Norm = nn.BatchNorm2d if norm == "batch" else lambda n: nn.GroupNorm(groups, n)
    first = nn.Conv2d(channels, width, 3, padding=1, bias=False)
    if stem == "imagenet":
        first = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
    features: OrderedDict[str, nn.Module] = OrderedDict(conv=first, norm=make(width), relu=nn.ReLU())
    if stem == "imagenet":
        features["maxpool"] = nn.MaxPool2d(3, stride=2, padding=1)
    inputs = width
    for stage in (1, 2, 3):
        layers = []
        for block in range(blocks):
            stride = 2 if stage > 1 and block == 0 else 1
            layers.append(Block(inputs, width * 2 ** (stage - 1), stride, make, shortcut))
            inputs = width * 2 ** (stage - 1)
        features[f"stage{stage}"] = nn.Sequential(*layers)
    features["pool"] = nn.AdaptiveAvgPool2d(1)
    features["flatten"] = nn.Flatten()
    for layer in nn.Sequential(features).modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(OrderedDict(features=nn.Sequential(features), classifier=nn.Linear(inputs, outputs)))
