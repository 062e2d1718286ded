"""The trained tail of a NetTailor model run for many clients at once.

What is in front of it is the same for everybody, and kept for each request's rows, see `shoal.engine.features`. Frozen
blocks go through `shoal.engine.frozen`, proxies and the classifier are batched matrix products, and BatchNorm and
attention each client's own.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..models.base import Model, set_mode
from ..models.nettailor import NetTailor, Tail
from ..models.nettailor_paths import OWN
from ..parameters import frozen_modules, is_under
from .chain import Pass, is_hooked
from .features import is_still, split
from .frozen import Frozen, frozen
from .products import ALIGNED
from .recorded import Recorded
from .tailored_run import Norm, Part, Proxy, Run

if TYPE_CHECKING:
    from .kernel import Kernel


class Tailored(Recorded):
    """The stacked forward and backward pass of one NetTailor model."""

    def __init__(self, model: Model, module: NetTailor, tail: Tail) -> None:
        super().__init__(model, module)
        self.tail, floats = tail, self.floats
        self.proxies: dict[tuple[int, int], Proxy] = {}
        self.own: dict[int, Frozen] = {}
        for block, sources in tail.paths.items():
            for source in sources:
                if source != OWN:
                    self.proxies[block, source] = self._proxy(block, source, floats)
                elif not (tail.forked and block == tail.fixed + 1):
                    self.own[block] = frozen(tail.blocks[str(block)], tail.shapes[block - 1])
        self.activation = {block: frozen(tail.activation, tail.shapes[block]) for block in tail.paths}
        self.end = frozen(module.get_submodule("end"), tail.shapes[tail.last])
        self.labels = self.space.slots["classifier.weight"].shape[0]
        self.pools: dict[Hashable, Frozen] = {}
        self.given, self.parts, self.width = self._parts()
        self.row_step = ALIGNED // math.gcd(ALIGNED, *self._widths())

    def _proxy(self, block: int, source: int, floats: Mapping[str, slice]) -> Proxy:
        name = f"tail.proxies.{block}.{source}"
        layers = dict(self.module.get_submodule(name).named_children())
        batch_norm = layers["norm"]
        assert isinstance(batch_norm, nn.BatchNorm1d | nn.BatchNorm2d)
        assert batch_norm.momentum is not None
        mean, variance = (floats[f"{name}.norm.{what}"] for what in ("running_mean", "running_var"))
        own = Norm(f"{name}.norm", batch_norm.eps, batch_norm.momentum, mean, variance)
        pool = frozen(layers["pool"], self.tail.shapes[source]) if "pool" in layers else None
        weight = next(f"{name}.{layer}.weight" for layer in ("conv", "linear") if layer in layers)
        return Proxy(pool, weight, self.space.slots[weight].shape[1], own)

    def _parts(self) -> tuple[int, dict[Hashable, Part], int]:
        """How many values the layers in front give for a row; which are wanted, and what is made of them at once, in
        the order in which `rows` lays them; and how many these are."""
        tail = self.tail
        fixed = math.prod(tail.shapes[tail.fixed])
        given = fixed + (math.prod(tail.shapes[tail.fixed + 1]) if tail.forked else 0)
        wanted: dict[Hashable, int] = {}
        if tail.forked:
            wanted["own"] = given - fixed
        for (_, source), proxy in self.proxies.items():
            if source == tail.fixed and proxy.pool is not None:
                self.pools[repr(proxy.pool.module)] = proxy.pool
                wanted[repr(proxy.pool.module)] = math.prod(proxy.pool.shape)
            elif source == tail.fixed:
                wanted["fixed"] = fixed
        begin, parts = 0, {}
        for name, size in wanted.items():
            parts[name] = Part(begin, begin + size)
            begin += size
        return given, parts, begin

    def _widths(self) -> list[int]:
        """How many values a row has, wherever matrices are multiplied."""
        found = [part.end - part.begin for part in self.parts.values()]
        found += [math.prod(shape) for shape in self.tail.shapes[self.tail.fixed :]]
        pools = [proxy.pool for proxy in self.proxies.values() if proxy.pool is not None]
        for module in (*self.own.values(), *pools, self.end):
            found += module.sizes
        return [self.width, self.end.shape[0], *found]

    @cached_property
    def signature(self) -> Hashable:
        """See `Chain`. The rows pass the layers in front too: with other constants they would be others."""
        slots = tuple((name, *slot) for name, slot in self.space.slots.items())
        places = {**self.space.segments, "head": self.space.head}
        segments = tuple((name, s.start, s.stop) for name, s in places.items())
        buffers = (*self.model.buffers.floats, *self.model.buffers.counters)
        tail = self.tail
        shape = (tail.fixed, tail.forked, tuple(tail.paths.items()), tail.shapes)
        kinds = tuple((name, _does(part)) for name, part in self.module.named_modules())
        return (slots, segments, buffers, self.space.undecayed, shape, kinds, _constants(self.module))

    def reads(self, kernel: Kernel, rows: Tensor) -> bool:
        """Whether the kernel keeps so much."""
        return kernel.fronts.kept.takes(len(rows) * self.given)

    def source(self, kernel: Kernel, rows: Sequence[Tensor], again: bool) -> _Kept:
        """See `Chain`. Raises ``ValueError`` where the activations cannot be had."""
        found = torch.empty(sum(map(len, rows)), self.width)
        place = 0
        for own in rows:
            kept = kernel.activations(self.model.name, own)
            if kept is None:
                raise ValueError("the activations of these rows take more memory than is allowed for them")
            self._lay(kept.flatten(1), found[place : place + len(own)])
            place += len(own)
        return _Kept(found, kernel.dataset.wanted(torch.cat(list(rows))))

    @torch.no_grad()
    def _lay(self, kept: Tensor, into: Tensor) -> None:
        """Makes of the activations that were kept the values that the tail begins with, into memory for them."""
        fixed = kept[:, : math.prod(self.tail.shapes[self.tail.fixed])]
        made = {"fixed": fixed, "own": kept[:, fixed.shape[1] :]}
        for name, part in self.parts.items():
            found = made[name] if name in made else self.pools[name](fixed.unsqueeze(0))[0]
            into[:, part.begin : part.end] = found

    def outputs(self, values: Mapping[str, Tensor], x: Tensor, how: Pass) -> Tensor:
        """See `Recorded`."""
        return Run(self, values, x, how).outputs()


class _Kept:
    """The values that rows bring to the tail, and their targets."""

    def __init__(self, values: Tensor, wanted: Tensor) -> None:
        self.values, self.wanted = values, wanted

    def ready(self, at: Tensor) -> Tensor:
        return at

    def take(self, at: Tensor) -> tuple[Tensor, Tensor]:
        flat = at.reshape(-1)
        x, y = self.values.index_select(0, flat), self.wanted.index_select(0, flat)
        return x.view(*at.shape, -1), y.view(*at.shape, *y.shape[1:])


def tailored_of(model: Model) -> Tailored | None:
    """The stacked form of a NetTailor model; ``None`` for others.

    Everything frozen must give for a row always the same, whatever comes beside it: `shoal.engine.features.PURE`.
    """
    module = model.build()
    set_mode(module, True)
    tail = dict(module.named_children()).get("tail")
    if type(module) is not NetTailor or not isinstance(tail, Tail) or type(tail) is not Tail:
        return None
    parted = split(module, model.space, [slice(0, model.space.size)])
    if parted is None or next(iter(parted.back.children())) is not tail or any(map(is_hooked, module.modules())):
        return None
    still = [*tail.blocks.modules(), *tail.activation.modules(), *module.get_submodule("end").modules()]
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    whole = all(is_under(name, "tail") or is_under(name, "classifier") for name in trained)
    single = {p.dtype for p in module.parameters()} == {torch.float32} and trained == set(model.space.names)
    pure = all(is_still(part) for part in still if part is not tail.blocks)
    return Tailored(model, module, tail) if whole and single and pure else None


def _does(module: nn.Module) -> Hashable:
    """The class of a module and its plain settings."""
    plain = (bool, int, float, str, tuple, type(None))
    own = {n: v for n, v in vars(module).items() if not n.startswith("_") and n != "training" and isinstance(v, plain)}
    return (type(module), tuple(sorted((name, repr(value)) for name, value in own.items())))


def _constants(module: nn.Module) -> str:
    """A digest of everything that is frozen."""
    digest = hashlib.blake2b(digest_size=32)
    frozen_parts = frozen_modules(module)
    tensors: list[tuple[str, Tensor]] = [(n, p) for n, p in module.named_parameters() if not p.requires_grad]
    tensors += [(n, b) for n, b in module.named_buffers() if any(is_under(n, part) for part in frozen_parts)]
    for name, value in tensors:
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(value.detach().contiguous().numpy().data)
    return digest.hexdigest()
