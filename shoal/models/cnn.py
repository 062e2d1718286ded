"""The small convolutional network of the papers on decentralised learning (62,006 parameters on CIFAR-10)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated

from pydantic import Field
from torch import nn

from .base import Shape, image_shape

KERNEL = 5


def cnn(
    shape: Shape,
    outputs: int,
    *,
    width: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0,
    stride: Annotated[int, Field(ge=1)] = 1,
) -> nn.Module:
    """Conv 5x5 (6) - pool 2 - ReLU - conv 5x5 (16) - pool 2 - ReLU - 120 - ReLU - 84 - ReLU - head.

    The model of HAST and DAC ("Decentralized adaptive clustering of deep nets is beneficial for client
    collaboration", 2022): on 3x32x32 images with 10 outputs it has 62,006 parameters, on PACS (3x227x227) it is
    used with ``stride=3`` in both convolutions. ``width`` scales the channels and the dense widths.
    ``classifier`` is ``fc1``, ``fc2`` and ``output``. Takes ``[rows, *shape]``, gives logits; the original ends
    in a log-softmax, which is part of the loss here. Initialisation: torch's.

    Pooling comes before the rectifier: the maximum of rectified numbers is the rectified maximum, so values and
    gradients are those of the usual order, and the rectifier has a quarter of the numbers.

    Raises ``ValueError`` for images below 16x16 (stride 1; 50x50 for stride 3).
    """
    # What is left after both convolutions and poolings must be at least 1x1.
    smallest = KERNEL + (2 * (KERNEL + stride) - 1) * stride
    channels, *sides = image_shape(f"cnn with stride {stride}", shape, smallest)
    first, second, fc1, fc2 = (max(1, round(width * units)) for units in (6, 16, 120, 84))
    for _ in range(2):
        sides = [((side - KERNEL) // stride + 1) // 2 for side in sides]
    features = OrderedDict(
        conv1=nn.Conv2d(channels, first, KERNEL, stride),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(first, second, KERNEL, stride),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
    )
    classifier = OrderedDict(
        fc1=nn.Linear(second * sides[0] * sides[1], fc1),
        relu1=nn.ReLU(),
        fc2=nn.Linear(fc1, fc2),
        relu2=nn.ReLU(),
        output=nn.Linear(fc2, outputs),
    )
    return nn.Sequential(OrderedDict(features=nn.Sequential(features), classifier=nn.Sequential(classifier)))
