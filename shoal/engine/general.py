"""Any model run for many clients at once: its own forward pass under `torch.func.vmap`, with each client's numbers.

For models that have no form written by hand. Convolutions with weights of their own become grouped ones, and products
batched ones, by the rules that torch has for it. That pays on a GPU, where a small model is limited by calls; on a CPU
grouped convolutions are slow. It agrees with the reference to rounding, and rounding may depend on the company in a
stack, so stacks are never shared with other runs.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..models.base import Dropout, Model, set_mode
from .chain import Masks, Pass, is_hooked
from .features import CHAINS, PURE
from .recorded import Recorded
from .rows import Rows

if TYPE_CHECKING:
    from .kernel import Kernel

NORMS: tuple[type[nn.Module], ...] = (nn.BatchNorm1d, nn.BatchNorm2d)
"""What is swapped for `_Norm`, so that rows of padding count for nothing."""


class _Now:
    """What the swapped layers of a module must know of the batch that goes through it: one client's, under vmap."""

    real: Tensor | None = None
    """1 for each row that counts and 0 for padding, ``[rows]``; ``None``: all count."""
    masks: Mapping[int, Tensor] = {}
    """What the dropout layers multiply by, by their place."""


class _Norm(nn.Module):
    """BatchNorm of which only some rows of a batch count. It has the parameters and buffers of the layer it is for."""

    def __init__(self, layer: nn.modules.batchnorm._BatchNorm, now: _Now) -> None:
        super().__init__()
        self._parameters, self._buffers = layer._parameters, layer._buffers
        self._non_persistent_buffers_set = layer._non_persistent_buffers_set
        self.eps, self.momentum, self.now = layer.eps, layer.momentum, now

    def forward(self, x: Tensor) -> Tensor:
        own, buffers = self._parameters, self._buffers
        weight, bias, mean, variance = own["weight"], own["bias"], buffers["running_mean"], buffers["running_var"]
        assert self.momentum is not None
        counter = buffers["num_batches_tracked"]
        if self.training and counter is not None:
            counter.add_(1)
        if not self.training or self.now.real is None:
            training = self.training or mean is None
            return F.batch_norm(x, mean, variance, weight, bias, training, self.momentum, self.eps)
        wide = (-1, *(1,) * (x.dim() - 2))
        rows = self.now.real.view(-1, 1, *wide[1:])
        y = x.float()
        dims = [d for d in range(y.dim()) if d != 1]
        count = self.now.real.sum() * y[0, 0].numel()
        found = (y * rows).sum(dims) / count
        away = y - found.view(wide)
        spread = (away.square() * rows).sum(dims) / count
        if mean is not None and variance is not None:
            mean.mul_(1 - self.momentum).add_(found.detach() * self.momentum)
            unbiased = spread.detach() * (count / (count - 1))
            variance.mul_(1 - self.momentum).add_(unbiased * self.momentum)
        y = away * (spread + self.eps).rsqrt().view(wide)
        if weight is not None and bias is not None:
            y = y * weight.view(wide) + bias.view(wide)
        return y.to(x.dtype)


class _Drop(nn.Module):
    """Dropout with a mask that is given."""

    def __init__(self, place: int, now: _Now) -> None:
        super().__init__()
        self.place, self.now = place, now

    def forward(self, x: Tensor) -> Tensor:
        mask = self.now.masks.get(self.place) if self.training else None
        return x if mask is None else x * mask.to(x.dtype)


class General(Recorded):
    """The stacked passes of one model on a device, from a module of its own."""

    def __init__(self, model: Model, device: torch.device) -> None:
        module = copy.deepcopy(model.build()).to(device)  # a copy: moving a module moves its constants in place
        set_mode(module, True)
        super().__init__(model, module)
        known = (*PURE, *CHAINS, *NORMS, Dropout)
        self.exact = not all(type(layer) in known for layer in module.modules())
        batch_norms = [layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
        self.has_scores = not self.exact and all(layer.track_running_stats for layer in batch_norms)
        self.dropouts = [layer for layer in module.modules() if isinstance(layer, Dropout)]
        self._now = _Now()
        self._own = object()
        self._shapes: dict[tuple[int, ...], list[tuple[int, ...] | None]] = {}
        self._drops: list[_Drop | None] = []
        swaps: dict[nn.Module, nn.Module] = {}
        for place, layer in enumerate(self.dropouts):
            # In a part that is frozen as a whole they stand still.
            drop = _Drop(place, self._now) if layer.training else None
            self._drops.append(drop)
            swaps[layer] = nn.Identity() if drop is None else drop
        swaps |= {n: _Norm(n, self._now) for n in batch_norms if type(n) in NORMS and n.training}
        for parent in list(module.modules()):
            for name, child in parent._modules.items():
                if child in swaps:
                    parent._modules[name] = swaps[child]
        self.buffers = dict(module.named_buffers())

    @property
    def signature(self) -> Hashable:
        """See `Chain`: its own, because stacks are not shared with other runs."""
        return self._own

    def source(self, kernel: Kernel, rows: Sequence[Tensor], again: bool) -> Rows:
        """See `Chain`."""
        return _Inputs(kernel, rows, again)

    def dropout_shapes(self, x: Tensor) -> Sequence[tuple[int, ...] | None]:
        """See `Chain`; found by one row of zeros. Raises ``ValueError`` for a layer that is used twice."""
        row = tuple(x.shape[2:])
        if row not in self._shapes:
            self._shapes[row] = self._found(x)
        return self._shapes[row]

    @torch.no_grad()
    def _found(self, x: Tensor) -> list[tuple[int, ...] | None]:
        shapes: list[tuple[int, ...] | None] = [None] * len(self._drops)

        def note(drop: nn.Module, given: tuple[Tensor, ...]) -> None:
            place = cast(_Drop, drop).place
            if shapes[place] is not None:
                raise ValueError("a dropout that is used twice draws twice, but a stack's mask is drawn once")
            shapes[place] = tuple(given[0].shape[1:])

        hooks = [drop.register_forward_pre_hook(note) for drop in self._drops if drop is not None]
        try:
            set_mode(self.module, False)
            self.module(torch.zeros_like(x[0, :1]))
        finally:
            for hook in hooks:
                hook.remove()
        return shapes

    def outputs(self, values: Mapping[str, Tensor], x: Tensor, how: Pass) -> Tensor:
        """See `Recorded`."""
        training = how.counts is not None
        if self.module.training != training:
            set_mode(self.module, training)
        real = None
        if how.counts is not None and not how.full and self.coupled:
            real = (torch.arange(x.shape[1], device=x.device) < how.counts[:, None]).float()
        # In plain order: behind channels-last weights some layers set strides in place, for which vmap has no rule.
        values = {name: value.contiguous() for name, value in values.items()}
        buffers = self._buffers_of(how)
        given: dict[str, Any] = {"values": {**values, **buffers}, "x": x, "masks": _by_place(how.masks)}
        if real is not None:
            given["real"] = real
        try:
            outputs: Tensor = torch.func.vmap(self._one)(given)
        finally:
            self._now.real, self._now.masks = None, {}
        if training and how.follow:
            for flat, where in self._flat(how):
                torch.cat([buffers[name].reshape(len(flat), -1) for name in where], 1, out=flat)
        if outputs.dim() != 3:
            raise ValueError(f"a stack takes models with outputs [rows, outputs]; got {tuple(outputs.shape[1:])}")
        return outputs.float()

    def _one(self, given: Mapping[str, Any]) -> Tensor:
        self._now.real, self._now.masks = given.get("real"), given["masks"]
        found: Tensor = torch.func.functional_call(self.module, given["values"], (given["x"],))
        return found

    def _flat(self, how: Pass) -> list[tuple[Tensor, Mapping[str, slice]]]:
        """The clients' buffers, ``[clients, numbers]``, and which of them lie where."""
        both = (how.statistics.floats, self.floats), (how.statistics.counters, self.counters)
        return [(flat, where) for flat, where in both if flat is not None]

    def _buffers_of(self, how: Pass) -> dict[str, Tensor]:
        """Copies of the clients' buffers by name. In memory of their own, each in one piece: the rule that vmap has for
        BatchNorm would write what it knows of a batch into a copy of any other."""
        found: dict[str, Tensor] = {}
        for flat, where in self._flat(how):
            for name, place in where.items():
                like = self.buffers[name]
                found[name] = flat[:, place].clone().view(len(flat), *like.shape).to(like.dtype)
        return found


class _Inputs(Rows):
    """Rows as a module takes them: images ``[clients, rows, channels, height, width]``."""

    def take(self, at: Tensor) -> tuple[Tensor, Tensor]:
        x, y = super().take(at)
        return x.movedim(-1, -3).contiguous() if x.dim() == 5 else x, y


def _by_place(masks: Masks) -> dict[int, Tensor]:
    return {place: mask for place, mask in enumerate(masks) if mask is not None}


def general_of(model: Model, device: torch.device) -> General | None:
    """The stacked form of any model; ``None`` for those that cannot be stacked.

    These are modules with hooks, BatchNorm that averages its statistics without a momentum, and other layers than
    `NORMS` whose buffers travel: one that is set anew, and not written to, would be lost. What else cannot be put under
    vmap fails when it is tried, and is left to the reference kernel. A module with layers that are not known to see
    each row by itself is stacked in batches without padding.
    """
    module = model.build()
    layers = dict(module.named_modules())
    owners = {layers[name.rpartition(".")[0]] for name in (*model.buffers.floats, *model.buffers.counters)}
    followed = all(type(layer) in NORMS and getattr(layer, "momentum", None) is not None for layer in owners)
    return General(model, device) if followed and not any(map(is_hooked, layers.values())) else None
