"""ResNet-18 with the names of torchvision, so that its weights fit."""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated, Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from .base import Shape, image_shape
from .resnet import Norm

_WIDTHS = (64, 128, 256, 512)


class BasicBlock(nn.Module):
    """``relu(bn2(conv2(relu(bn1(conv1(x))))) + shortcut(x))``; the shortcut projects where the shape changes."""

    def __init__(self, inputs: int, channels: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, padding=1, bias=False)
        self.bn1 = norm(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = norm(channels)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != channels:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, channels, 1, stride, bias=False), norm(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        shortcut = x if self.downsample is None else self.downsample(x)
        return F.relu(self.bn2(self.conv2(y)) + shortcut)


def resnet18(
    shape: Shape,
    outputs: int,
    *,
    stem: Literal["imagenet", "small"] = "imagenet",
    norm: Literal["batch", "group"] = "batch",
    groups: Annotated[int, Field(ge=1)] = 2,
) -> nn.Module:
    """The ImageNet network of 18 layers: a stem, four stages of two blocks with 64 to 512 channels, mean, head.

    He et al., "Deep Residual Learning for Image Recognition" (2016), table 1, with projections (option B) and the
    architecture and names of torchvision's ``resnet18``, so that a file with its weights fits by name
    (``model.weights``): 11,689,512 parameters on 3x224x224 images with 1000 outputs. ``stem: imagenet`` is a 7x7
    convolution with stride 2 and a max-pooling, ``small`` a 3x3 convolution with stride 1 and no pooling, as is usual
    for images of 32x32 (11,173,962 parameters on 3 channels with 10 outputs). ``norm: group`` has ``groups`` groups in
    every layer and no buffers, under the names of BatchNorm (two groups as in Reddi et al., "Adaptive Federated
    Optimization", 2021).

    ``classifier`` is the head, ``fc``. Takes ``[rows, *shape]`` of any size, gives logits ``[rows, outputs]``.
    Initialisation as in torchvision: He normal (fan-out) for convolutions, torch's for the head.

    Raises ``ValueError`` for tables, and if ``groups`` does not divide 64.
    """
    channels, *_ = image_shape("resnet18", shape)
    if norm == "group" and _WIDTHS[0] % groups:
        raise ValueError(f"resnet18 needs groups that divide its 64 channels; got groups {groups}")
    make: Norm = nn.BatchNorm2d if norm == "batch" else lambda n: nn.GroupNorm(groups, n)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if stem == "imagenet":
        layers["conv1"] = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
    else:
        layers["conv1"] = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
    layers["bn1"] = make(64)
    layers["relu"] = nn.ReLU()
    if stem == "imagenet":
        layers["maxpool"] = nn.MaxPool2d(3, stride=2, padding=1)
    inputs = 64
    for stage, width in enumerate(_WIDTHS, start=1):
        first = BasicBlock(inputs, width, 1 if stage == 1 else 2, make)
        layers[f"layer{stage}"] = nn.Sequential(first, BasicBlock(width, width, 1, make))
        inputs = width
    layers["avgpool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["fc"] = nn.Linear(inputs, outputs)
    model = nn.Sequential(layers)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return model
