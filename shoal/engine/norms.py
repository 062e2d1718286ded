"""BatchNorm and mixtures for the clients of a stack, each with numbers and statistics of its own, with gradients.

Multiplied and added one after another, never fused: elementwise functions then give a number the same bits wherever
it stands in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .products import product


class Moments(NamedTuple):
    """Mean and variance of each client and channel, ``[clients, 1, channels]``; the variance divides by the number."""

    mean: Tensor
    variance: Tensor


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Tensor, shift: Tensor, eps: float, share: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        mean = _sum(x, mask).mul_(share)
        away = x - mean
        variance = _sum(away.square(), mask).mul_(share)
        inverse = (variance + eps).rsqrt_()
        away.mul_(inverse)
        ctx.save_for_backward(away, scale, inverse, share)
        ctx.mask = mask
        ctx.mark_non_differentiable(mean, variance)
        return (away * scale).add_(shift), mean, variance

    @staticmethod
    def backward(ctx: Any, d: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        away, scale, inverse, share = ctx.saved_tensors
        # Nothing comes back from padding: ``d`` is 0 there.
        shift_back = d.sum(1, keepdim=True)
        scale_back = (d * away).sum(1, keepdim=True)
        if not ctx.needs_input_grad[0]:
            return None, scale_back, shift_back, None, None, None
        pull = (away * (scale_back * share)).add_(shift_back * share)
        if ctx.mask is not None:
            pull.mul_(ctx.mask)
        back = torch.sub(d, pull, out=pull).mul_(scale * inverse)
        return back, scale_back, shift_back, None, None, None


def _sum(x: Tensor, mask: Tensor | None) -> Tensor:
    return (x if mask is None else x * mask).sum(1, keepdim=True)


def norm(
    x: Tensor, scale: Tensor, shift: Tensor, eps: float, counts: Tensor, mask: Tensor | None
) -> tuple[Tensor, Moments]:
    """BatchNorm in training mode of ``x`` ``[clients, n, channels]``, and the moments of the batches.

    ``scale`` and ``shift`` are ``[clients, 1, channels]``. ``counts`` ``[clients]`` are the places of the n that count;
    ``mask`` ``[clients, n, 1]`` is 1 at them and 0 elsewhere, ``None`` where all of all clients count.
    """
    y, mean, variance = _Norm.apply(x, scale, shift, eps, (1 / counts)[:, None, None], mask)  # type: ignore[no-untyped-call]
    return y, Moments(mean, variance)


def normed(x: Tensor, scale: Tensor, shift: Tensor, eps: float, moments: Moments) -> Tensor:
    """BatchNorm in evaluation mode, with these statistics."""
    factor = scale * (moments.variance + eps).rsqrt_()
    return (x - moments.mean).mul_(factor).add_(shift)


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, alphas: Tensor, *ways: Tensor) -> Tensor:
        ctx.save_for_backward(alphas, *ways)
        mixed = ways[0] * _of(alphas, 0)
        for i, way in enumerate(ways[1:], start=1):
            mixed.add_(way * _of(alphas, i))
        return mixed

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        alphas, *ways = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        back = [d * _of(alphas, i) if wanted[i + 1] else None for i in range(len(ways))]
        if not wanted[0]:
            return None, *back
        row = d.flatten(1).unsqueeze(1)
        return torch.cat([product(row, way.flatten(1).unsqueeze(2)).flatten(1) for way in ways], 1), *back


def _of(alphas: Tensor, place: int) -> Tensor:
    return alphas[:, place, None, None]


def mix(alphas: Tensor, ways: Sequence[Tensor]) -> Tensor:
    """The sum of the ``ways`` ``[clients, rows, values]``, weighed by ``alphas`` ``[clients, ways]``."""
    found: Tensor = _Mix.apply(alphas, *ways)  # type: ignore[no-untyped-call]
    return found
