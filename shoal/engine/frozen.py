"""Frozen modules for the clients of a stack: what all share and nobody trains, so that only inputs have gradients.

Activations are ``[clients, rows, values]``, an image's values channels last. A convolution over a map of few pixels is
one matrix, and a pointwise one a product over pixels; both are done for all clients at once (`products.matmul`). What
is exact whatever the order, such as a rectifier or max-pooling, sees the rows of all clients as one batch. Everything
else is called for each client alone: rounding may depend on how many rows come together.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..models.backbones import Residual
from ..models.base import Shape
from ..models.efficientnet import SameConv2d
from ..models.resnet import Subsample
from ..models.strided import StridedPoint
from ..models.teacher import flat, unflat
from .products import matmul

MATRIX_BYTES = 2**25
"""A convolution becomes a matrix if that takes no more than this, and about as many multiplications as itself."""
EXACT: tuple[type[nn.Module], ...] = (nn.MaxPool2d, nn.AdaptiveMaxPool2d, nn.ZeroPad2d, Subsample)
"""Modules of images that choose values and calculate with none."""
RECTIFIERS: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {nn.ReLU: torch.relu, nn.ReLU6: F.relu6}
CONVOLUTIONS: tuple[type[nn.Module], ...] = (nn.Conv2d, SameConv2d, StridedPoint)


class Frozen:
    """One module in evaluation mode, for rows of one shape; ``shape`` is what it gives."""

    quick = False
    """Whether something in it is done for all clients at once that a call for each would do more slowly."""

    def __init__(self, module: nn.Module, given: Shape) -> None:
        self.module, self.given = module, given
        self.shape = _shape(module, given)

    @property
    def sizes(self) -> list[int]:
        """How many values a row has on the way."""
        return [math.prod(self.given), math.prod(self.shape)]

    def __call__(self, x: Tensor) -> Tensor:
        """``[clients, rows, values]`` to the same."""
        raise NotImplementedError


class Each(Frozen):
    """Any module, called for each client."""

    def __call__(self, x: Tensor) -> Tensor:
        return torch.stack([flat(self.module(unflat(one, self.given))) for one in x.unbind()])


class Exact(Frozen):
    """A module that sees the rows of all clients."""

    def __call__(self, x: Tensor) -> Tensor:
        return flat(self.module(unflat(x.flatten(0, 1), self.given))).view(*x.shape[:2], -1)


class Elementwise(Frozen):
    """A rectifier, or nothing."""

    def __call__(self, x: Tensor) -> Tensor:
        function = RECTIFIERS.get(type(self.module))
        return x if function is None else function(x)


class Matrix(Frozen):
    """A linear layer, or a convolution over so few pixels that its matrix is as cheap."""

    quick = True

    @cached_property
    def numbers(self) -> tuple[Tensor, Tensor | None]:
        """The matrix ``[outputs, inputs]`` and the bias ``[outputs]``; made when they are first needed."""
        module, size = self.module, math.prod(self.given)
        with torch.no_grad():
            bias = None if module.bias is None else flat(module(unflat(torch.zeros(1, size), self.given)))[0]
            # What it makes of each input alone. Without the bias, which would be rounded with the weights.
            bare = copy.copy(module)
            bare._parameters = {**module._parameters, "bias": None}
            return flat(bare(unflat(torch.eye(size), self.given))).t().contiguous(), bias

    def __call__(self, x: Tensor) -> Tensor:
        matrix, bias = self.numbers
        y = matmul(x, matrix.expand(len(x), -1, -1))
        return y if bias is None else y + bias


class Pointwise(Frozen):
    """A 1x1 convolution: a linear layer over the channels of each pixel."""

    quick = True

    def __call__(self, x: Tensor) -> Tensor:
        module = self.module
        assert isinstance(module, nn.Conv2d)
        pixels = x.reshape(len(x), -1, self.given[0])
        y = matmul(pixels, module.weight.flatten(1).expand(len(x), -1, -1))
        y = y if module.bias is None else y + module.bias
        return y.view(*x.shape[:2], -1)


class Sum(Frozen):
    """The branch and the shortcut of a `Residual`, added."""

    def __init__(self, module: Residual, given: Shape) -> None:
        super().__init__(module, given)
        self.parts = [frozen(module.branch, given), frozen(module.shortcut, given)]
        self.quick = any(part.quick for part in self.parts)

    @property
    def sizes(self) -> list[int]:
        return [size for part in self.parts for size in part.sizes]

    def __call__(self, x: Tensor) -> Tensor:
        branch, shortcut = self.parts
        return branch(x) + shortcut(x)


class Line(Frozen):
    """The layers of a sequence."""

    def __init__(self, module: nn.Module, given: Shape) -> None:
        super().__init__(module, given)
        self.parts: list[Frozen] = []
        for layer in module.children():
            self.parts.append(frozen(layer, given))
            given = self.parts[-1].shape
        self.quick = any(part.quick for part in self.parts)

    @property
    def sizes(self) -> list[int]:
        return [size for part in self.parts for size in part.sizes]

    def __call__(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x


def frozen(module: nn.Module, given: Shape) -> Frozen:
    """The form of a frozen module that does most for all clients at once."""
    kind = type(module)
    if kind in RECTIFIERS or kind is nn.Identity:
        return Elementwise(module, given)
    if kind in EXACT:
        return Exact(module, given)
    if kind is nn.Linear and len(given) == 1:
        return Matrix(module, given)
    if kind in CONVOLUTIONS:
        return _convolution(module, given)
    made: Frozen | None = None
    if isinstance(module, Residual) and kind is Residual:
        made = Sum(module, given)
    elif kind is nn.Sequential:
        made = Line(module, given)
    return made if made is not None and (made.quick or not _has_each(made)) else Each(module, given)


def _has_each(made: Frozen) -> bool:
    return isinstance(made, Each) or (isinstance(made, Sum | Line) and any(_has_each(part) for part in made.parts))


def _convolution(module: nn.Module, given: Shape) -> Frozen:
    assert isinstance(module, nn.Conv2d)
    shape = _shape(module, given)
    plain = module.padding_mode == "zeros" and module.groups == 1
    if plain and module.kernel_size == (1, 1) and shape[1:] == given[1:]:
        return Pointwise(module, given)
    size = math.prod(given) * math.prod(shape)
    itself = math.prod(shape[1:]) * module.weight.numel()
    return (Matrix if size <= 2 * itself and 4 * size <= MATRIX_BYTES else Each)(module, given)


@torch.no_grad()
def _shape(module: nn.Module, given: Shape) -> Shape:
    return tuple(module(torch.zeros((1, *given))).shape[1:])
