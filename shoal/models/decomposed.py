"""A network whose weights are a shared base under a mask, an own sparse part, and a mixture of other clients' parts."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from ..config import Part
from ..errors import ConfigError
from ..parameters import ParameterSpace, head_layer
from .base import Shape
from .factory import build_network, resolve_network
from .strided import is_unsafe

BASE, MASK, ADAPTIVE, ATTENTION, PRIVATE = "base", "mask", "adaptive", "attention", "private"
SEGMENTS = (BASE, MASK, ADAPTIVE, ATTENTION, PRIVATE)
"""The segments of a decomposed network."""
_FACTORED = SEGMENTS[:-1]
_TRUNCATED = 0.87962566103423978
"""The deviation of a standard normal variable that is drawn again beyond two deviations."""


class Factored(nn.Module):
    """A layer with the weights ``base * sigmoid(mask) + adaptive + sum_i attention_i pool_i``.

    ``base`` and ``adaptive`` are ``[units, weights of one]`` (of a convolution in the order height, width, channels),
    ``mask`` is ``[units]``, ``attention`` ``[parts]``. ``pool`` is the place of a constant, ``[k, units, weights of
    one]`` with k from 0 to ``parts``, of which the first k numbers of ``attention`` are used.
    """

    pool: Tensor

    def __init__(self, layer: nn.Linear | nn.Conv2d, parts: int) -> None:
        super().__init__()
        weight = layer.weight.detach()
        self.shape = tuple(weight.shape)
        flat = (weight.permute(0, 2, 3, 1) if weight.dim() == 4 else weight).reshape(len(weight), -1)
        self.base = nn.Parameter(flat.clone())
        self.mask = nn.Parameter(_scaled(len(weight)))
        self.adaptive = nn.Parameter(flat / 3)
        self.attention = nn.Parameter(_scaled(parts))
        self.bias = layer.bias
        self.register_buffer("pool", torch.zeros(0, *flat.shape), persistent=False)

    def theta(self) -> Tensor:
        """The weights, ``[units, weights of one]``."""
        theta = self.base * torch.sigmoid(self.mask).unsqueeze(1) + self.adaptive
        count = len(self.pool)
        if count:
            theta = theta + (self.attention[:count] @ self.pool.flatten(1)).view_as(theta)
        return theta


class FactoredLinear(Factored):
    """A dense layer with such weights."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.theta(), self.bias)


class FactoredConv2d(Factored):
    """A convolution with such weights, padded with zeros."""

    def __init__(self, layer: nn.Conv2d, parts: int) -> None:
        super().__init__(layer, parts)
        unsafe = is_unsafe(layer)
        self.steps = layer.stride if unsafe else (1, 1)
        stride = (1, 1) if unsafe else layer.stride
        self.settings: tuple[Any, ...] = (stride, layer.padding, layer.dilation, layer.groups)

    def forward(self, x: Tensor) -> Tensor:
        units, inputs, height, width = self.shape
        weight = self.theta().view(units, height, width, inputs).permute(0, 3, 1, 2)
        return F.conv2d(x[..., :: self.steps[0], :: self.steps[1]], weight, self.bias, *self.settings)


def _scaled(count: int) -> Tensor:
    """Numbers from a normal distribution of variance 1 / count, cut at two deviations."""
    deviation = 1 / math.sqrt(count) / _TRUNCATED
    return nn.init.trunc_normal_(torch.empty(count), std=deviation, a=-2 * deviation, b=2 * deviation)


class Decomposed(nn.Sequential):
    """The network, its layers factored; a chain of that one."""

    notes: tuple[str, ...] = ()
    """What should be known of where the network's numbers come from."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__(OrderedDict(network=network))
        given = getattr(network, "undecayed", ())
        names = [name for name in given if isinstance(name, str)] if isinstance(given, tuple | list) else []
        self.undecayed = tuple(f"network.{name}" for name in names)

    @property
    def segments(self) -> dict[str, list[str]]:
        """The four kinds of numbers of all factored layers, and as ``private`` all others that are trained."""
        layers = [name for name, module in self.named_modules() if isinstance(module, Factored)]
        found = {kind: [f"{name}.{kind}" for name in layers] for kind in _FACTORED}
        taken = {name for names in found.values() for name in names}
        trained = [name for name, p in self.named_parameters() if p.requires_grad and name not in taken]
        return {**found, PRIVATE: trained}


def decomposed(
    shape: Shape,
    outputs: int,
    *,
    network: Part = {"kind": "lenet"},  # noqa: B006 (a part's default)
    parts: Annotated[int, Field(ge=1)] = 10,
) -> nn.Module:
    """A network for `method: fedweit`, in which every dense layer and every two-dimensional convolution has the weights

        theta = B sigmoid(m) + A + sum over i of a_i A_i

    with a base B that clients share, a mask m with one number for each output unit, a sparse part A of the client and
    its task, and one weight a_i in each layer for each of up to ``parts`` parts A_i of other clients. Yoon, Jeong, Lee,
    Yang and Hwang, "Federated Continual Learning with Weighted Inter-client Transfer" (ICML 2021), equation 2.

    ``network`` is the network with its settings and perhaps ``weights``: ``lenet``, ``cnn``, ``resnet20``, another
    kind, or a module of your own. Its last linear layer, the head, stays as it is, and so does everything else: biases,
    norms, layers of other kinds. They make the segment ``private``; the others are ``base``, ``mask``, ``adaptive`` and
    ``attention``. What the network says to ``freeze`` stays a constant: only trained layers are factored.

    Initialisation: B the network's own, A = B / 3, m and a truncated normal of variance 1 / n for n numbers, as in the
    authors' code; that also draws biases and B so, from the fan-in.

    Raises ``ValueError`` for a network without a last linear layer or without another trained layer, for a weight that
    two layers share, and for convolutions that are not padded with zeros.
    """
    made = build_network(network, shape, outputs)
    if any(isinstance(layer, Factored) for layer in made.modules()):
        raise ValueError("network: is decomposed already; name the network itself, such as {kind: lenet}")
    _factor(made, parts)
    found = Decomposed(made)
    found.notes = tuple(getattr(made, "notes", ()))
    return found


def _factor(network: nn.Module, parts: int) -> None:
    head = head_layer(network)
    if head is None:
        raise ValueError("network: needs a last linear layer that is trained, the head; this one has none")
    last = network.get_submodule(head)
    uses: dict[int, int] = {}
    new: dict[int, nn.Module] = {}
    for layer in network.modules():
        weight = getattr(layer, "weight", None)
        if isinstance(weight, nn.Parameter):
            uses[id(weight)] = uses.get(id(weight), 0) + 1
    for name, layer in list(network.named_modules()):
        if layer is last or not isinstance(layer, nn.Linear | nn.Conv2d) or not layer.weight.requires_grad:
            continue
        if uses[id(layer.weight)] > 1:
            raise ValueError(f"network: the weight of {name!r} is another layer's, too; a factored layer has its own")
        new[id(layer)] = _factored(name, layer, parts)
    if not new:
        raise ValueError("network: has no trained dense layer or convolution beside the head; nothing is shared")
    for module in list(network.modules()):
        for name, child in module._modules.items():
            if id(child) in new:
                module._modules[name] = new[id(child)]


def _factored(name: str, layer: nn.Linear | nn.Conv2d, parts: int) -> Factored:
    if isinstance(layer, nn.Linear):
        return FactoredLinear(layer, parts)
    if layer.padding_mode != "zeros":
        raise ValueError(f"network: {name!r} is padded by {layer.padding_mode!r}; factored convolutions pad with zeros")
    return FactoredConv2d(layer, parts)


def complete(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with those of the network filled in. Raises `ConfigError`."""
    if settings["freeze"] or settings["segments"]:
        raise ConfigError(
            "model.freeze and model.segments: a decomposed network has segments of its own; what is to be a constant "
            "is named in model.network.freeze"
        )
    return {**settings, "network": resolve_network(settings["network"])}


decomposed.complete = complete  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Layout:
    """Where the factored layers' units lie in the segments of a decomposed network: their sizes in its order."""

    layers: tuple[str, ...]
    units: tuple[int, ...]
    weights: tuple[int, ...]
    """The weights of one unit of each layer."""
    parts: int
    """The numbers of attention of each layer."""

    @classmethod
    def of(cls, space: ParameterSpace) -> Layout:
        """That of a model; ``ValueError`` if it is not decomposed."""
        if tuple(space.segments) != SEGMENTS:
            raise ValueError(f"the model is not decomposed: its segments are {list(space.segments)}")
        where = space.segments[BASE]
        slots = {name: slot for name, slot in space.slots.items() if where.start <= slot.offset < where.stop}
        layers = tuple(name.removesuffix(f".{BASE}") for name in slots)
        units, weights = zip(*(slot.shape for slot in slots.values()), strict=True)
        return cls(layers, units, weights, space.slots[f"{layers[0]}.{ATTENTION}"].size)

    def over(self, values: Tensor) -> Tensor:
        """One number for each unit ``[U]``, at all weights of the unit: ``[B]``, in the order of the base."""
        return torch.repeat_interleave(values, self._each())

    def under(self, values: Tensor) -> Tensor:
        """Of ``[B]`` the numbers at the first weight of each unit: ``[U]``; what `over` made comes back."""
        each = self._each()
        return values[each.cumsum(0) - each]

    def _each(self) -> Tensor:
        return torch.repeat_interleave(torch.tensor(self.weights), torch.tensor(self.units))

    def kept(self, mask: Tensor, sparsity: float) -> Tensor:
        """Which units ``[U]`` are sent: those with a larger ``|m|`` than the element at place ``floor(sparsity n)`` of
        the n of their layer in ascending order, so that ``floor(sparsity n) + 1`` are left out; all for sparsity 0.
        """
        if not sparsity:
            return torch.ones(len(mask), dtype=torch.bool)
        found = []
        for values in torch.split(mask.abs(), list(self.units)):
            found.append(values > values.sort().values[math.floor(sparsity * len(values))])
        return torch.cat(found)

    def pools(self, parts: Tensor) -> dict[str, Tensor]:
        """Parts ``[k, B]`` as constants, by the names of their places; nothing without a part."""
        if not len(parts):
            return {}
        sizes = [n * w for n, w in zip(self.units, self.weights, strict=True)]
        cut = zip(self.layers, torch.split(parts, sizes, dim=1), self.units, self.weights, strict=True)
        return {f"{name}.pool": piece.view(len(parts), n, w) for name, piece, n, w in cut}

    def mixed(self, attention: Tensor, parts: Tensor) -> Tensor:
        """``sum_i a_i A_i`` of parts ``[k, B]`` with the weights ``[layers * parts]``: ``[B]``."""
        weights = attention.view(len(self.layers), self.parts)[:, : len(parts)]
        sizes = [n * w for n, w in zip(self.units, self.weights, strict=True)]
        return torch.cat([a @ piece for a, piece in zip(weights, torch.split(parts, sizes, dim=1), strict=True)])
