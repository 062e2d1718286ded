"""What the layers before the first trained one make of a fit's rows, computed once for all its steps.

A fit of some segments (`Fit.segments`) leaves the others as they are. Where those come first, each row has the same
activations in front of the first trained layer in every step. The steps then train the layers from there on, and
nothing goes backward through the others. Where everything in front is frozen for good, the rows have these activations
for the whole run, when they are measured too: they are kept, see `Kept`.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..data.dataset import inputs
from ..models.backbones import Residual
from ..models.base import Dropout
from ..models.decomposed import Decomposed
from ..models.efficientnet import MBConv, SameConv2d
from ..models.lenet import LocalResponseNorm, SamePool
from ..models.nettailor import Fork, NetTailor
from ..models.resnet import Block, Subsample
from ..models.resnet18 import BasicBlock
from ..models.strided import StridedPoint
from ..parameters import ParameterSpace
from ..placing import placed
from .batches import Batches, gather_bytes
from .chain import is_hooked
from .plan import Step

CHUNK = 512
"""Rows that are computed at once; fixed, so that activations never depend on who computes them."""
PURE: tuple[type[nn.Module], ...] = (
    *(nn.Sequential, nn.Identity, nn.Flatten, nn.Unflatten, nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Hardtanh),
    *(nn.Hardswish, nn.Hardsigmoid, nn.PReLU, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.ZeroPad2d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.GroupNorm, nn.LayerNorm),
    *(nn.LocalResponseNorm, LocalResponseNorm, SamePool, Block, Subsample),
    *(BasicBlock, Residual, Fork, MBConv, SameConv2d, StridedPoint),
)
"""Layers that make of each row by itself always the same, in training mode too, as far as the layers inside them do."""
CHAINS: tuple[type[nn.Module], ...] = (nn.Sequential, NetTailor, Decomposed)
"""Modules that are their layers, one after another."""
KEPT_BYTES = 2**28
"""Activations that a kernel keeps from request to request take no more than this, the rows of one request no more than
a quarter of it. Those that were used longest ago make room."""


class Split(NamedTuple):
    """A module in two: its layers in ``front`` of the first trained one, and those from there on."""

    front: nn.Sequential
    back: nn.Sequential


def split(module: nn.Module, space: ParameterSpace, slices: Sequence[slice]) -> Split | None:
    """The module in two, or ``None`` where it cannot be parted, or nothing would be saved by it.

    A chain is one of `CHAINS`, in which further ones may stand. Every layer in front must be one of `PURE`,
    or dropout or BatchNorm that stand still, and one of them must have parameters.
    """
    trained = {
        id(parameter)
        for name, parameter in module.named_parameters(remove_duplicate=False)
        if name in space.slots and _meets(space, name, slices)
    }
    layers = _chain(module)
    place = next((i for i, layer in enumerate(layers) if any(id(p) in trained for p in layer.parameters())), 0)
    front, back = nn.Sequential(*layers[:place]), nn.Sequential(*layers[place:])
    if next(front.parameters(), None) is None or not all(is_still(layer) for layer in front.modules()):
        return None
    return Split(front, back)


def _meets(space: ParameterSpace, name: str, slices: Sequence[slice]) -> bool:
    slot = space.slots[name]
    return any(s.start < slot.offset + slot.size and slot.offset < s.stop for s in slices)


def _chain(module: nn.Module) -> list[nn.Module]:
    """The layers that follow one another; a module that is none of `CHAINS` is a layer by itself."""
    if type(module) not in CHAINS or is_hooked(module):
        return [module]
    children = (child for child in module._modules.values() if child is not None)
    return [layer for child in children for layer in _chain(child)]


def is_still(layer: nn.Module) -> bool:
    """Whether a layer, as it stands, makes of each row by itself always the same; those inside it are not looked at."""
    if is_hooked(layer):
        return False
    if isinstance(layer, Dropout):
        return type(layer) is Dropout and (layer.p == 0 or not layer.training)
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        return not layer.training and layer.track_running_stats
    return type(layer) in PURE


class Kept:
    """What frozen layers make of the rows of whole requests, for a run, in bounded memory.

    By the rows of the request and not by the row: the last bits of a row depend on the company in which it was
    computed, and so would those of the run on who asked first. The rows that a client holds, and those on which a
    target is measured, come back in most rounds.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = KEPT_BYTES if most is None else most
        self.bytes = 0
        self._found: OrderedDict[tuple[Hashable, bytes], Tensor] = OrderedDict()
        self._too_many: dict[Hashable, int] = {}

    def takes(self, numbers: int) -> bool:
        """Whether a request's activations may be so many numbers."""
        return 4 * numbers <= self.most // 4

    def clear(self) -> None:
        """Keeps nothing any more."""
        self._found.clear()
        self.bytes = 0

    def of(self, model: Hashable, front: Callable[[Tensor], Tensor], batches: Batches) -> Tensor | None:
        """The activations ``[rows, ...]`` of these rows, kept or computed; ``None`` where there are no rows or they
        would take too much memory. ``model`` names the layers in front, and tells apart data sets that share this."""
        rows = batches.rows.contiguous()
        key = (model, hashlib.blake2b(rows.cpu().numpy().tobytes(), digest_size=16).digest())
        if key in self._found:
            self._found.move_to_end(key)
            return self._found[key]
        if len(rows) >= self._too_many.get(model, len(rows) + 1):
            return None  # as was found out by trying: never for nothing again
        kept = _computed(front, batches, self.most // 4, lambda shape, device: torch.empty(shape, device=device))
        if kept is None:
            if len(rows):
                self._too_many[model] = len(rows)
            return None
        self.bytes += kept.nbytes
        self._found[key] = kept
        while self.bytes > self.most:
            self.bytes -= self._found.popitem(last=False)[1].nbytes
        return kept


class Fronts:
    """What the layers in front of the first that is ever trained make of rows, for one kernel; ``kept`` may be shared
    with others."""

    def __init__(self, kept: Kept) -> None:
        self.kept = kept
        self._own = object()
        self._names: Mapping[str, Hashable] | None = None

    def share(self, kept: Kept, names: Mapping[str, Hashable]) -> None:
        """Keeps with other kernels what they keep: of each model under what ``names`` says, which must be equal only
        where data and frozen layers are."""
        self.kept, self._names = kept, names

    def of(self, model: str, front: Callable[[Tensor], Tensor], batches: Batches) -> Tensor | None:
        """See `Kept.of`."""
        name = model if self._names is None else self._names.get(model, (self._own, model))
        return self.kept.of(name, front, batches)


def _computed(
    front: Callable[[Tensor], Tensor],
    batches: Batches,
    most: int,
    memory: Callable[[tuple[int, ...], torch.device], Tensor],
) -> Tensor | None:
    """What the layers in front make of the rows, in chunks; ``None`` without rows, or where it takes more bytes."""
    kept: Tensor | None = None
    count = len(batches.rows)
    with torch.no_grad():
        for begin in range(0, count, CHUNK):
            x, _ = batches.range(begin, begin + CHUNK)
            found = front(inputs(x.clone()))  # a layer in front may work in place
            found = found.permute(0, 2, 3, 1) if found.dim() == 4 else found  # as `inputs` expects them
            if kept is None:
                if 4 * count * found[0].numel() > most:
                    return None
                kept = memory((count, *found.shape[1:]), found.device)
            kept[begin : begin + len(found)] = found
    return kept


class Features:
    """The activations of a fit's rows as its batches; in place of `Batches`, whose memory it uses."""

    def __init__(self, batches: Batches, kept: Tensor) -> None:
        self.batches = batches
        self.kept = kept
        self.wanted = batches.dataset.wanted(batches.rows)

    @classmethod
    def of(cls, front: Callable[[Tensor], Tensor], batches: Batches) -> Features | None:
        """Computes them; ``None`` where there are no rows, or they would take more memory than rows may."""

        def memory(shape: tuple[int, ...], device: torch.device) -> Tensor:
            return batches.scratch.take("features", shape, device)

        kept = _computed(front, batches, gather_bytes(batches.device), memory)
        return None if kept is None else cls(batches, kept)

    def take(self, step: Step) -> tuple[Tensor, Tensor]:
        """The activations and targets of a step, good until the next one is asked for."""
        at = placed(torch.from_numpy(step.positions), self.kept.device)
        space = self.batches.scratch.take("feature batch", (len(at), *self.kept.shape[1:]), self.kept.device)
        return torch.index_select(self.kept, 0, at, out=space), self.wanted.index_select(0, at)
