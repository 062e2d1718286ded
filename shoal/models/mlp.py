"""The multi-layer perceptron, for tables and small images."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field
from torch import nn

from .base import Dropout, Shape

_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}


def mlp(
    shape: Shape,
    outputs: int,
    *,
    hidden: Sequence[Annotated[int, Field(ge=1)]] = (64,),
    activation: Literal["relu", "tanh", "gelu"] = "relu",
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0,
) -> nn.Module:
    """Linear layers of these ``hidden`` widths, each with an activation and dropout, and a linear head.

    An image is flattened first. ``classifier`` is the head alone; without hidden layers the model is softmax
    regression. Takes ``[rows, *shape]``, gives logits ``[rows, outputs]``. Initialisation: torch's.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if len(shape) != 1:
        layers["flatten"] = nn.Flatten()
    width = math.prod(shape)
    for i, units in enumerate(hidden, start=1):
        layers[f"layer{i}"] = nn.Linear(width, units)
        layers[f"activation{i}"] = _ACTIVATIONS[activation]()
        if dropout:
            layers[f"dropout{i}"] = Dropout(dropout)
        width = units
    return nn.Sequential(OrderedDict(features=nn.Sequential(layers), classifier=nn.Linear(width, outputs)))
