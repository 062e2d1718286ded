"""A dense model run for many clients at once: batched matrix products, and the gradient written by hand."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from ..data.dataset import inputs
from ..models.base import Dropout, Model
from ..parameters import ParameterSpace, frozen_modules, is_under
from ..placing import placed
from .chain import Chain, Masks, Pass, is_hooked
from .products import ALIGNED, add_product, add_product_, gelu, gelu_back, product, room, roomy
from .rows import Rows

if TYPE_CHECKING:
    from .kernel import Kernel


@dataclass(frozen=True)
class Layer:
    """A linear layer with what follows it. A weight is a parameter's name, or a constant that all clients share."""

    weight: str | Tensor
    bias: str | Tensor | None
    after: tuple[nn.Module, ...]
    """Activations and dropouts, in order."""
    begin: int
    end: int
    """Where the layer's parameters lie in the vector; nowhere (0 to 0) for constants."""


class Opened(NamedTuple):
    """The numbers of a layer for all clients: ``[clients, outputs, inputs]`` and ``[clients, 1, outputs]``, or those of
    a constant without the first extent."""

    weight: Tensor
    bias: Tensor | None


class Dense(Chain):
    """The stacked forward and backward pass of a chain of linear layers."""

    threaded = descends = has_gradients = True

    def __init__(self, space: ParameterSpace, layers: Sequence[Layer], dropouts: Sequence[Dropout]) -> None:
        self.space = space
        count = next((i for i, layer in enumerate(layers) if not _is_constant(layer)), len(layers))
        self.frozen, self.layers = tuple(layers[:count]), tuple(layers[count:])
        self.dropouts = tuple(dropouts)
        """All of the module, in its order: their masks are drawn by their place in it."""
        # Of the inputs alone: what is worked out of them is given room.
        self.row_step = ALIGNED // math.gcd(ALIGNED, self._shape(layers[0])[1])
        self._frozen = [self._opened(layer, torch.empty(0)) for layer in self.frozen]

    def on(self, device: torch.device) -> Dense:
        """The same with its constants on a device."""
        layers = [
            replace(layer, weight=placed(layer.weight, device), bias=placed(layer.bias, device))
            for layer in (*self.frozen, *self.layers)
        ]
        return Dense(self.space, layers, self.dropouts)

    @cached_property
    def signature(self) -> Hashable:
        """See `Chain`."""
        places = {**self.space.segments, "head": self.space.head}
        segments = tuple((name, s.start, s.stop) for name, s in places.items())
        layers = tuple(
            (*(_named(self.space, part) for part in (layer.weight, layer.bias)), *map(self._does, layer.after))
            for layer in (*self.frozen, *self.layers)
        )
        return (segments, layers)

    def _does(self, module: nn.Module) -> Hashable:
        return (repr(module), self.dropouts.index(module) if isinstance(module, Dropout) else None)

    def _shape(self, layer: Layer) -> tuple[int, ...]:
        weight = layer.weight
        return self.space.slots[weight].shape if isinstance(weight, str) else tuple(weight.shape)

    def dropout_shapes(self, x: Tensor) -> Sequence[tuple[int, ...] | None]:
        """See `Chain`."""
        return self._dropout_shapes

    @cached_property
    def _dropout_shapes(self) -> list[tuple[int, ...] | None]:
        widths = [{id(module): self._shape(layer)[:1] for module in layer.after} for layer in self.layers]
        return [next((of[id(dropout)] for of in widths if id(dropout) in of), None) for dropout in self.dropouts]

    def opened(self, vectors: Tensor) -> list[Opened]:
        """See `Chain`."""
        return [self._opened(layer, vectors) for layer in self.layers]

    def _opened(self, layer: Layer, vectors: Tensor) -> Opened:
        weight, bias = (
            self.space.view(vectors, what) if isinstance(what, str) else what for what in (layer.weight, layer.bias)
        )
        assert weight is not None
        return Opened(weight, None if bias is None else bias.unsqueeze(-2))

    def _linear(self, layer: Opened, x: Tensor) -> Tensor:
        # A product for each client, of a shared weight too: with all rows in one, bits would depend on how many.
        weight = layer.weight.expand(len(x), -1, -1).transpose(1, 2)
        into = room(x, x.shape[1], weight.shape[2])
        return product(x, weight, into) if layer.bias is None else add_product(layer.bias, x, weight, into)

    def source(self, kernel: Kernel, rows: Sequence[Tensor], again: bool) -> _Rows:
        """See `Chain`."""
        return _Rows(self, kernel, rows, again)

    def lead(self, x: Tensor) -> Tensor:
        """The frozen first layers: ``[clients, rows, features]`` to what `forward` takes."""
        for layer, own in zip(self.frozen, self._frozen, strict=True):
            x = self._linear(own, x)
            for module in layer.after:
                x = self._after(module, x, (), None)
        return x

    def forward(self, vectors: Sequence[Opened], x: Tensor, how: Pass, kept: list[Tensor] | None = None) -> Tensor:
        """See `Chain`; from what `lead` gave."""
        for layer, own in zip(self.layers, vectors, strict=True):
            if kept is not None:
                kept.append(x)
            x = self._linear(own, x)
            for module in layer.after:
                x = self._after(module, x, how.masks, kept)
        return x

    def _after(self, module: nn.Module, x: Tensor, masks: Masks, kept: list[Tensor] | None) -> Tensor:
        if isinstance(module, Dropout):
            mask = masks[self.dropouts.index(module)] if masks else None
            return x if mask is None else roomy(x * mask)
        if isinstance(module, nn.GELU):
            if kept is not None:
                kept.append(x)
            return roomy(gelu(x, module.approximate))
        x = torch.relu_(x) if isinstance(module, nn.ReLU) else torch.tanh_(x)
        if kept is not None:
            kept.append(x)
        return x

    def wanted(self, slices: Sequence[slice]) -> list[bool]:
        """Of each layer whether it has parameters in these slices."""
        return [any(layer.begin < s.stop and layer.end > s.start for s in slices) for layer in self.layers]

    def backward(
        self,
        vectors: Sequence[Opened],
        gradients: Sequence[Opened],
        kept: list[Tensor],
        d: Tensor,
        how: Pass,
        wanted: Sequence[bool] | None = None,
        power: int = 1,
    ) -> None:
        """See `Chain`. Squares of a row's gradients are ``(d h)^2 = d^2 h^2``."""
        lowest = 0 if wanted is None else list(wanted).index(True)
        for place, here, h in self._backward(vectors, kept, d, how, lowest):
            if wanted is None or wanted[place]:
                both = (here, h) if power == 1 else (roomy(here.pow(power)), roomy(h.pow(power)))
                self._write(self.layers[place], gradients[place], *both)

    def descend(
        self, vectors: Sequence[Opened], kept: list[Tensor], d: Tensor, how: Pass, rate: float | Tensor
    ) -> None:
        """See `Chain`. The rate goes to the few numbers of ``d``, where one number gives the bits of a column."""
        by = rate.unsqueeze(-1) if isinstance(rate, Tensor) else rate
        for place, here, h in self._backward(vectors, kept, d, how, 0):
            layer, own = self.layers[place], vectors[place]
            if not isinstance(layer.weight, str):
                continue
            away = here.mul_(-by)
            add_product_(own.weight, away.transpose(1, 2), h)
            if own.bias is not None and isinstance(layer.bias, str):
                own.bias.add_(away.sum(1, keepdim=True))

    def _backward(
        self, vectors: Sequence[Opened], kept: list[Tensor], d: Tensor, how: Pass, lowest: int
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """From the last layer to the ``lowest``: the derivative by its outputs, and its inputs. What comes next has
        been worked out by then, so that the layer, and what was given, may be changed."""
        d = roomy(d)
        for place in range(len(self.layers) - 1, lowest - 1, -1):
            layer = self.layers[place]
            for module in reversed(layer.after):
                d = self._back(module, d, how.masks, kept)
            here = d
            if place > lowest:
                weight = vectors[place].weight
                d = product(d, weight.expand(len(d), -1, -1), room(d, d.shape[1], weight.shape[-1]))
            yield place, here, kept.pop()

    def _write(self, layer: Layer, gradients: Opened, d: Tensor, h: Tensor) -> None:
        if not isinstance(layer.weight, str):
            return
        product(d.transpose(1, 2), h, gradients.weight)
        if gradients.bias is not None and isinstance(layer.bias, str):
            torch.sum(d, 1, keepdim=True, out=gradients.bias)

    def _back(self, module: nn.Module, d: Tensor, masks: Masks, kept: list[Tensor]) -> Tensor:
        if isinstance(module, Dropout):
            mask = masks[self.dropouts.index(module)] if masks else None
            return d if mask is None else d.mul_(mask)
        x = kept.pop()
        if isinstance(module, nn.ReLU):
            torch.ops.aten.threshold_backward.grad_input(d, x, 0, grad_input=d)
        elif isinstance(module, nn.Tanh):
            torch.ops.aten.tanh_backward.grad_input(d, x, grad_input=d)
        else:
            assert isinstance(module, nn.GELU)
            d = roomy(gelu_back(d, x, module.approximate))
        return d


class _Rows(Rows):
    """Rows as `Dense.forward` takes them."""

    def __init__(self, dense: Dense, kernel: Kernel, rows: Sequence[Tensor], again: bool) -> None:
        self.dense = dense
        super().__init__(kernel, rows, again)

    def inputs(self, rows: Tensor) -> Tensor:
        return inputs(super().inputs(rows)).flatten(1)

    def take(self, at: Tensor) -> tuple[Tensor, Tensor]:
        x, y = super().take(at)
        # The frozen layers are done with the batch: once for all rows would be cheaper, but see `Dense._linear`.
        return self.dense.lead(x), y


def _named(space: ParameterSpace, part: str | Tensor | None) -> Hashable:
    """A parameter by its place and shape, a constant by its numbers."""
    if isinstance(part, str):
        return (part, *space.slots[part])
    if part is None:
        return None
    return (*part.shape, hashlib.sha256(part.cpu().contiguous().numpy().data).hexdigest())


def _is_constant(layer: Layer) -> bool:
    return not (isinstance(layer.weight, str) or any(isinstance(module, Dropout) for module in layer.after))


def dense_of(model: Model) -> Dense | None:
    """The stacked form of a model that is a chain of linear layers, activations and dropouts; ``None`` for others.

    The module must be made of ``nn.Sequential``, ``nn.Flatten``, ``nn.Linear``, ``nn.ReLU``, ``nn.Tanh``, ``nn.GELU``,
    dropout and ``nn.Identity``, without hooks, buffers, and a parameter or a dropout that is used twice. Frozen layers
    are shared.
    """
    module = model.build()
    chain = _chain(module)
    if chain is None or any(True for _ in module.buffers()) or _twice([m for m in chain if isinstance(m, Dropout)]):
        return None
    frozen = frozen_modules(module)
    still = {id(m) for name, m in module.named_modules() if any(is_under(name, f) for f in frozen)}
    # What is frozen as a whole stays in evaluation mode, see `set_mode`: its dropouts drop nothing.
    chain = [piece for piece in chain if not (isinstance(piece, Dropout) and id(piece) in still)]
    names = {id(p): name for name, p in module.named_parameters()}
    layers: list[Layer] = []
    used: set[str] = set()
    for piece in chain:
        if isinstance(piece, nn.Flatten):
            if layers or piece.start_dim != 1 or piece.end_dim != -1:
                return None
        elif isinstance(piece, nn.Linear):
            weight, bias = (_source(p, names) for p in (piece.weight, piece.bias))
            mine = [name for name in (weight, bias) if isinstance(name, str)]
            if weight is None or used & set(mine) or len(mine) not in (0, 1 if piece.bias is None else 2):
                return None
            if any(isinstance(part, Tensor) and part.dtype != torch.float32 for part in (weight, bias)):
                return None
            used |= set(mine)
            slots = [model.space.slots[name] for name in mine]
            begin = min((slot.offset for slot in slots), default=0)
            layers.append(Layer(weight, bias, (), begin, max((slot.offset + slot.size for slot in slots), default=0)))
        elif not layers:
            return None
        else:
            layers[-1] = replace(layers[-1], after=(*layers[-1].after, piece))
    dropouts = [m for m in module.modules() if isinstance(m, Dropout)]
    whole = used == set(model.space.names) and bool(layers)
    return Dense(model.space, layers, dropouts) if whole else None


def _chain(module: nn.Module) -> list[nn.Module] | None:
    if is_hooked(module):
        return None
    if type(module) is nn.Sequential:
        found: list[nn.Module] = []
        for child in module:
            inner = _chain(child)
            if inner is None:
                return None
            found += inner
        return found
    if type(module) is nn.Identity:
        return []
    return [module] if type(module) in (nn.Flatten, nn.Linear, nn.ReLU, nn.Tanh, nn.GELU, Dropout) else None


def _twice(modules: Sequence[nn.Module]) -> bool:
    return len({id(module) for module in modules}) < len(modules)


def _source(parameter: Tensor | None, names: dict[int, str]) -> str | Tensor | None:
    """A trainable parameter's name, or the constant itself."""
    if parameter is None:
        return None
    return names[id(parameter)] if parameter.requires_grad else parameter.detach()
