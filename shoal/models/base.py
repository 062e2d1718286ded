"""A named architecture: its parameter space, its buffers, and how to build and initialise it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..bank import Entry
from ..parameters import BufferSpace, ParameterSpace
from ..randomness import generator, torch_seed

Shape = tuple[int, ...]
"""The shape of one input: ``(channels, height, width)`` of an image, ``(features,)`` of a table row."""

_COUPLED = (nn.modules.batchnorm._BatchNorm,)
_FOREIGN_DROPOUT = nn.modules.dropout._DropoutNd


class Dropout(nn.Module):
    """Dropout whose mask comes from the fit's own named stream, not from torch's global generator.

    In evaluation mode, and outside a fit, it is the identity.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"dropout needs 0 <= p < 1; got {p}")
        self.p = p
        self.rng: np.random.Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0 or self.rng is None:
            return x
        # 32-bit uniforms: numpy draws them three times faster than torch draws a Bernoulli mask on the CPU.
        kept = self.rng.random(x.shape, dtype=np.float32) >= self.p
        return x * torch.from_numpy(kept).to(x) / (1 - self.p)


def _own_dropout(module: nn.Module) -> nn.Module:
    if type(module) is nn.Dropout:
        return Dropout(module.p)
    for name, child in module.named_children():
        if type(child) is nn.Dropout:
            setattr(module, name, Dropout(child.p))
        elif isinstance(child, _FOREIGN_DROPOUT):
            raise ValueError(
                f"{name!r} is a {type(child).__name__}, which reads torch's global random generator, so results "
                f"would depend on the number of workers; use nn.Dropout (it is replaced by shoal.models.Dropout)"
            )
        else:
            _own_dropout(child)
    return module


class Model:
    """A named architecture, one per shape of entry.

    ``make`` builds the module (with torch's own initialisation). It is called a few times, in the main thread
    only; every worker gets a copy that shares the frozen parameters.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], nn.Module],
        groups: Mapping[str, Sequence[str]] | None = None,
        seed: int = 0,
    ) -> None:
        self.name = name
        self._make = make
        self._template = self._seeded(generator(seed, "template", name))
        trainable = [p for p in self._template.parameters() if p.requires_grad]
        if not trainable:
            raise ValueError(f"model {name!r} has no trainable parameter")
        odd = {p.dtype for p in trainable if p.dtype != torch.float32}
        if odd:
            raise ValueError(f"model {name!r} has trainable parameters of {odd}; they must be float32")
        self.space = ParameterSpace(self._template, groups)
        self.buffers = BufferSpace(self._template)
        self.batch_coupled = any(
            isinstance(m, _COUPLED) and (m.weight is None or m.weight.requires_grad) for m in self._template.modules()
        )
        """Whether a row's output depends on the other rows of its batch (BatchNorm in training mode)."""

    def _seeded(self, rng: np.random.Generator) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(rng))
            return _own_dropout(self._make())

    def build(self) -> nn.Module:
        """A new module; frozen parameters are shared with all others of this model."""
        shared: dict[int, Any] = {id(p): p for p in self._template.parameters() if not p.requires_grad}
        return copy.deepcopy(self._template, shared)

    def initial(self, rng: np.random.Generator) -> Entry:
        """A freshly initialised entry. Call it in the main thread: torch initialises from its global generator."""
        module = self._seeded(rng)
        return Entry(self.space.read(module), self.name, buffers=self.buffers.read(module))
