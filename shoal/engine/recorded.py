"""Chains that leave going backward to autograd, whose leaves are views into the flat vectors of a stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor, nn

from ..bank import Buffers
from ..models.base import Model
from ..requests import Served
from .chain import Chain, Pass, Statistics, is_vector


class Recorded(Chain):
    """A chain with buffers whose forward pass is written down, and no backward one."""

    def __init__(self, model: Model, module: nn.Module) -> None:
        self.model, self.space, self.module = model, model.space, module
        self.coupled = model.batch_coupled
        self.floats, self.counters = (places(module, names) for names in (model.buffers.floats, model.buffers.counters))
        self.sizes = total(self.floats), total(self.counters)

    def outputs(self, values: Mapping[str, Tensor], x: Tensor, how: Pass) -> Tensor:
        """The outputs, with their graph, from the parameters by name, ``[clients, ...]``."""
        raise NotImplementedError

    def holds(self, served: Served) -> bool:
        """See `Chain`: the buffers may be there, all or some."""
        floats, counters = served.buffers.floats, served.buffers.counters
        whole = floats is None or is_vector(floats, self.sizes[0])
        counted = counters is None or (counters.shape == (self.sizes[1],) and counters.dtype == torch.int64)
        return is_vector(served.vector, self.space.size) and not served.constants and whole and counted

    def statistics(self, served: Sequence[Served]) -> Statistics:
        """See `Chain`; what a model does not bring starts fresh."""
        fresh = self._fresh
        floats = [fresh.floats if one.buffers.floats is None else one.buffers.floats for one in served]
        counters = [fresh.counters if one.buffers.counters is None else one.buffers.counters for one in served]
        stacks = [None if each[0] is None else torch.stack(each) for each in (floats, counters)]  # type: ignore[arg-type]
        return Statistics(*stacks)

    @cached_property
    def _fresh(self) -> Buffers:
        return self.model.buffers.read(self.model.build())

    def wanted(self, slices: Sequence[slice]) -> list[str]:
        """The parameters that lie in these slices."""
        return [
            name
            for name, slot in self.space.slots.items()
            if any(s.start < slot.offset + slot.size and slot.offset < s.stop for s in slices)
        ]

    def forward(self, vectors: Tensor, x: Tensor, how: Pass, kept: list[Tensor] | None = None) -> Tensor:
        """See `Chain`; ``kept`` gets the outputs with their graph, and then the parameters, in their order."""
        with torch.set_grad_enabled(kept is not None):
            values = {name: self.space.view(vectors, name).detach() for name in self.space.names}
            if kept is not None:
                for value in values.values():
                    value.requires_grad_()
            outputs = self.outputs(values, x, how)
        if kept is not None:
            kept += [outputs, *values.values()]
        return outputs.detach()

    def backward(
        self,
        vectors: Tensor,
        gradients: Tensor,
        kept: list[Tensor],
        d: Tensor,
        how: Pass,
        wanted: Sequence[str] | None = None,
        power: int = 1,
    ) -> None:
        """See `Chain`; only ``power`` 1. A parameter that was not used has no gradient: zeros."""
        outputs, *leaves = kept
        kept.clear()
        names = self.space.names if wanted is None else wanted
        chosen = [leaf for name, leaf in zip(self.space.names, leaves, strict=True) if name in names]
        gradient: tuple[Tensor | None, ...] = torch.autograd.grad(outputs, chosen, d, allow_unused=True)
        for name, found in zip(names, gradient, strict=True):
            into = self.space.view(gradients, name)
            if found is None:
                into.zero_()
            else:
                into.copy_(found)


def places(module: nn.Module, names: Sequence[str]) -> dict[str, slice]:
    """Where the buffers of these names lie in their vector."""
    values, begin, found = dict(module.named_buffers()), 0, {}
    for name in names:
        found[name] = slice(begin, begin + values[name].numel())
        begin = found[name].stop
    return found


def total(found: Mapping[str, slice]) -> int:
    """How long the vector is."""
    return max((place.stop for place in found.values()), default=0)
