"""A named architecture: its parameter space, its buffers, and how to build and initialise it."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..bank import Entry
from ..errors import nearest
from ..parameters import BufferSpace, ParameterSpace, frozen_modules, is_under
from ..randomness import generator, torch_seed
from .dropout import Dropout, own_dropout
from .strided import own_strided

__all__ = ["Dropout", "Model", "Shape", "image_shape", "place_constants", "set_mode"]

GLOBAL_RANDOM = threading.RLock()
"""Held while torch's global generator is used, of which there is one for all threads: runs may be set up at once."""

Shape = tuple[int, ...]
"""The shape of one input: ``(channels, height, width)`` of an image, ``(features,)`` of a table row."""


class Model:
    """A named architecture, one per shape of entry.

    ``make`` builds the module (with torch's own initialisation). It is called a few times, in the main thread
    only; every worker gets a copy that shares the frozen parameters. With ``like``, frozen parameters and the
    buffers of frozen layers are that model's, where name and shape agree: heads of several sizes then stand on
    one and the same backbone. ``groups`` are the segments, see `ParameterSpace`. ``teacher`` is what the model is
    compared with while it is trained, see `shoal.losses.Loss.beside`: a constant, outside of the module.

    Raises ``ValueError`` for a module without trainable parameters, with trainable parameters that are not
    float32, or with a layer that reads torch's global random generator.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], nn.Module],
        groups: Mapping[str, Sequence[str]] | None = None,
        seed: int = 0,
        like: Model | None = None,
        teacher: nn.Module | None = None,
    ) -> None:
        self.name = name
        self.teacher = teacher
        self._make = make
        self._template = self._seeded(generator(seed, "template", name))
        if like is not None:
            _take_constants(self._template, like._template)
        for parameter in self._template.parameters():
            # Once and here: workers share the frozen weights, and none may change their layout under another.
            if parameter.dim() == 4 and not parameter.requires_grad:
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
        self.space = ParameterSpace(self._template, groups)
        if self.space.size == 0:
            raise ValueError(f"model {name!r} has no trainable parameter; is everything frozen?")
        self.buffers = BufferSpace(self._template)
        self.batch_coupled = _is_batch_coupled(self._template)
        """Whether a row's output depends on the other rows of its batch (BatchNorm in training mode)."""
        self.notes: tuple[str, ...] = ()
        """What a user should know of where its numbers come from. Shown by ``shoal show`` and in the report."""

    def _seeded(self, rng: np.random.Generator) -> nn.Module:
        with GLOBAL_RANDOM, torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(rng))
            return own_strided(own_dropout(self._make()))

    def build(self) -> nn.Module:
        """A new module; frozen parameters are shared with all others of this model."""
        shared: dict[int, Any] = {id(p): p for p in self._template.parameters() if not p.requires_grad}
        return copy.deepcopy(self._template, shared)

    def initial(self, rng: np.random.Generator) -> Entry:
        """A freshly initialised entry. Call it in the main thread: torch initialises from its global generator
        (which is seeded from ``rng`` and put back)."""
        module = self._seeded(rng)
        return Entry(self.space.read(module), self.name, buffers=self.buffers.read(module))


def _is_batch_coupled(module: nn.Module) -> bool:
    frozen = frozen_modules(module)
    return any(
        isinstance(m, nn.modules.batchnorm._BatchNorm) and not any(is_under(name, f) for f in frozen)
        for name, m in module.named_modules()
    )


def _take_constants(module: nn.Module, source: nn.Module) -> None:
    frozen, modules = frozen_modules(module), dict(source.named_modules())
    for name, sub in module.named_modules():
        other = modules.get(name)
        if other is None:
            continue
        for leaf, parameter in sub._parameters.items():
            theirs = other._parameters.get(leaf)
            if parameter is None or theirs is None or parameter.requires_grad or theirs.requires_grad:
                continue
            if parameter.shape == theirs.shape:
                sub._parameters[leaf] = theirs
        if any(is_under(name, f) for f in frozen):
            for leaf, buffer in sub._buffers.items():
                value = other._buffers.get(leaf)
                if buffer is not None and value is not None and buffer.shape == value.shape:
                    sub._buffers[leaf] = value.clone()


def set_mode(module: nn.Module, training: bool) -> None:
    """``module.train(training)``, but layers that are frozen as a whole always stay in evaluation mode.

    A frozen backbone is a constant: in training mode its BatchNorm layers would still follow the batches.
    """
    module.train(training)
    if training:
        for name in frozen_modules(module):
            module.get_submodule(name).eval()


@contextmanager
def place_constants(module: nn.Module, constants: Mapping[str, Tensor]) -> Iterator[None]:
    """Puts these tensors in the places of the module's non-persistent buffers of these names, for a ``with`` block.

    The tensors are used as they are (moved to the module's device, never copied into the buffer), so they may
    have another shape than the buffer; afterwards the module has its own buffers back. Raises ``ValueError`` for
    a name that is not a non-persistent buffer; nothing is changed then.
    """
    places = [_place(module, name) for name in constants]
    first = next(module.parameters(), None)
    device = first.device if first is not None else torch.device("cpu")
    own = [owner._buffers[leaf] for owner, leaf in places]
    try:
        for (owner, leaf), value in zip(places, constants.values(), strict=True):
            owner._buffers[leaf] = value.to(device)
        yield
    finally:
        for (owner, leaf), buffer in zip(places, own, strict=True):
            owner._buffers[leaf] = buffer


def _place(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    owner = dict(module.named_modules()).get(path)
    if owner is not None and leaf in owner._buffers and leaf in owner._non_persistent_buffers_set:
        return owner, leaf
    if owner is not None and leaf in owner._buffers:
        raise ValueError(
            f"constant {name!r}: this buffer is persistent, so it travels with the model; register it with "
            f"persistent=False to make it a place for a constant"
        )
    places = [
        f"{path}.{leaf}" if path else leaf
        for path, sub in module.named_modules()
        for leaf in sub._non_persistent_buffers_set
    ]
    hint = nearest(name, places) if places else "it has none"
    raise ValueError(f"constant {name!r}: the module has no non-persistent buffer of this name; {hint}")


def image_shape(kind: str, shape: Shape, smallest: int = 1) -> tuple[int, int, int]:
    """Channels, height and width; raises ``ValueError`` for a table, or an image with a side below ``smallest``."""
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(
            f"{kind} takes images of shape (channels, height, width); got {tuple(shape)}; a table needs "
            f"another model, such as kind: mlp"
        )
    channels, height, width = shape
    if min(height, width) < smallest:
        raise ValueError(
            f"{kind} needs images of at least {smallest}x{smallest}; got {height}x{width}; enlarge the images "
            f"or use another model, such as kind: mlp"
        )
    return channels, height, width
