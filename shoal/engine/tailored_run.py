"""One pass of a batch of each client through the tail of a NetTailor model, and what it must know of the tail."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..models.nettailor_paths import OWN, named
from .chain import Pass
from .frozen import Frozen
from .norms import Moments, mix, norm, normed
from .products import ALIGNED, matmul

if TYPE_CHECKING:
    from .tailored import Tailored


class Norm(NamedTuple):
    """A proxy's BatchNorm: its parameters by name, and where its running statistics are among the buffers."""

    name: str
    eps: float
    momentum: float
    mean: slice
    variance: slice


class Proxy(NamedTuple):
    """A proxy: what its rows come through first, its weight by name, a pixel's channels, its norm."""

    pool: Frozen | None
    weight: str
    channels: int
    norm: Norm


class Part(NamedTuple):
    """A stretch of the values that a row brings: something that needs no trained number."""

    begin: int
    end: int


class Run:
    """One pass of a batch of each client: ``values`` are the parameters by name, ``[clients, ...]``."""

    def __init__(self, chain: Tailored, values: Mapping[str, Tensor], x: Tensor, how: Pass) -> None:
        self.chain, self.values, self.x, self.how = chain, values, x, how
        self.clients, self.rows = x.shape[:2]
        self.found: dict[int, Tensor] = {}
        self.real: Tensor | None = None
        if how.counts is not None and not how.full:
            self.real = (torch.arange(self.rows) < how.counts[:, None]).float()
        if how.counts is not None and how.follow and how.statistics.counters is not None:
            how.statistics.counters += 1

    def outputs(self) -> Tensor:
        """What the classifier gives, ``[clients, rows, outputs]``."""
        chain, tail = self.chain, self.chain.tail
        for block, sources in tail.paths.items():
            ways = [self._own(block) if source == OWN else self._through(block, source) for source in sources]
            mixed = ways[0] if len(ways) == 1 else mix(self._alphas(block, sources), ways)
            self.found[block] = chain.activation[block](mixed)
        x = chain.end(self.found[tail.last])
        if len(chain.end.shape) == 3:
            x = x.view(self.clients, self.rows, -1, chain.end.shape[0]).mean(2)
        # As many outputs as fill whole registers, for the products; those that are not wanted are cut off.
        weight = F.pad(self.values["classifier.weight"], (0, 0, 0, -chain.labels % ALIGNED))
        return matmul(x, weight)[..., : chain.labels] + self.values["classifier.bias"].unsqueeze(1)

    def _part(self, name: Hashable) -> Tensor:
        begin, end = self.chain.parts[name]
        return self.x[..., begin:end].contiguous()

    def _own(self, block: int) -> Tensor:
        tail = self.chain.tail
        if tail.forked and block == tail.fixed + 1:
            return self._part("own")
        return self.chain.own[block](self.found[block - 1])

    def _through(self, block: int, source: int) -> Tensor:
        """What a proxy makes of an earlier activation."""
        proxy = self.chain.proxies[block, source]
        if source == self.chain.tail.fixed:
            x = self._part("fixed" if proxy.pool is None else repr(proxy.pool.module))
        else:
            x = self.found[source] if proxy.pool is None else proxy.pool(self.found[source])
        y = matmul(x.view(self.clients, -1, proxy.channels), self.values[proxy.weight].flatten(2))
        return self._normed(proxy.norm, y).view(self.clients, self.rows, -1)

    def _normed(self, one: Norm, y: Tensor) -> Tensor:
        scale, shift = (self.values[f"{one.name}.{what}"].unsqueeze(1) for what in ("weight", "bias"))
        running = self.how.statistics.floats
        assert running is not None
        means, variances = running[:, one.mean].unsqueeze(1), running[:, one.variance].unsqueeze(1)
        if self.how.counts is None:
            return normed(y, scale, shift, one.eps, Moments(means, variances))
        pixels = y.shape[1] // self.rows
        counts = (self.how.counts * pixels).to(y.dtype)
        mask = None if self.real is None else self.real.repeat_interleave(pixels, 1).unsqueeze(2)
        y, (mean, variance) = norm(y, scale, shift, one.eps, counts, mask)
        if self.how.follow:
            unbiased = variance * (counts / (counts - 1))[:, None, None]
            means.mul_(1 - one.momentum).add_(mean * one.momentum)
            variances.mul_(1 - one.momentum).add_(unbiased * one.momentum)
        return y

    def _alphas(self, block: int, sources: Sequence[int]) -> Tensor:
        """``[clients, ways]``: a path's weight among those of its block."""
        numbers = [self.values[f"tail.attention.{block}.{named(source)}"] for source in sources]
        return torch.stack(numbers, 1).softmax(1)
