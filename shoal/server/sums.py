"""`Sum`: a weighted mean of answers that come one after another and are not kept.

It takes the steps of `shoal.server.means.average` in the same order, so where everybody answers as planned it has the
same bits. Beside the first answer it holds one float64 number for each coordinate, however many answers there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .base import check_weights

BLOCK = 1 << 16
"""Coordinates that are averaged at a time."""
Answer = tuple[Tensor, Tensor | None]
"""A vector and its mask, ``None`` where every coordinate was sent."""


class Sum:
    """``first + sum_i w_i (x_i - first)`` over the answers so far, in float64, rounded to float32 once at the end.

    ``old`` is the entry's vector, ``planned`` the weights of those who are asked, in the order of clients: what is
    added is divided by their sum, which is known before anybody answers. Where some stay away, or answer with another
    weight, the mean is divided by the shares of those who did answer; that is the mean over them to float64 rounding.
    """

    def __init__(self, old: Tensor, planned: Sequence[float]) -> None:
        self._old = old
        self._planned = list(planned)
        usable = bool(self._planned) and all(0 < weight < math.inf for weight in self._planned)
        given = np.asarray(self._planned if usable else [1.0], dtype=np.float64)
        self._largest = float(given.max())  # First, because the sum of huge weights would overflow.
        self._whole = float((given / given.max()).sum())
        self._weights: list[float] = []
        self._share = 0.0
        self._first = old
        self._change: Tensor | None = None
        self._sent: tuple[Tensor, Tensor] | None = None
        """Once an answer had a mask: for each coordinate the shares of those who sent it, and whether anybody did."""

    def add(self, answers: Sequence[Answer], weights: Sequence[float]) -> None:
        """Further answers, in the order of clients, with their weights.

        Raises ``ValueError`` for weights that are not positive and finite.
        """
        check_weights(weights)
        shares = [float(weight) / self._largest / self._whole for weight in weights]
        if any(mask is not None for _, mask in answers) and self._sent is None:
            total = torch.full(self._old.shape, self._share, dtype=torch.float64)
            self._sent = total, torch.full(self._old.shape, bool(self._weights))
            self._first = self._first.clone()
        if not self._weights and self._sent is None:
            self._first = answers[0][0]
        self._weights += [float(weight) for weight in weights]
        if self._change is None and (len(self._weights) > 1 or self._sent is not None):
            self._change = torch.zeros(self._old.shape, dtype=torch.float64)
        if self._change is not None:
            self._add(self._change, answers, shares)
        for share in shares:
            self._share += share

    def _add(self, change: Tensor, answers: Sequence[Answer], shares: Sequence[float]) -> None:
        for begin in range(0, len(self._old), BLOCK):
            s = slice(begin, begin + BLOCK)
            if self._sent is None:
                add_changes(change[s], self._first[s].double(), [x[s] for x, _ in answers], shares)
                continue
            total, seen, first = self._sent[0][s], self._sent[1][s], self._first[s]
            for (x, mask), share in zip(answers, shares, strict=True):
                here = torch.ones_like(seen) if mask is None else mask[s]
                first.copy_(torch.where(here & ~seen, x[s], first))
                # Chosen, not multiplied: what stands at a coordinate that was not sent may be anything.
                change[s].add_(torch.where(here, x[s], first) - first.double(), alpha=share)
                total.add_(here.double(), alpha=share)
                seen.logical_or_(here)

    def mean(self) -> Tensor:
        """The mean, float32; what nobody sent keeps the old value."""
        if self._change is None:
            return self._first.clone()
        out = torch.empty_like(self._old)
        for begin in range(0, len(out), BLOCK):
            s = slice(begin, begin + BLOCK)
            change, first = self._change[s], self._first[s]
            moved = change
            if self._sent is not None:
                moved = change / self._sent[0][s]
            elif self._weights != self._planned:
                moved = change / self._share
            # Where nothing changes, the very bits of the first: -0.0 + 0.0 would be 0.0.
            out[s] = torch.where(change == 0, first, (first.double() + moved).to(out.dtype))
        return out


def add_changes(change: Tensor, start: Tensor, values: Sequence[Tensor], shares: Sequence[float]) -> None:
    """Adds ``share * (value - start)`` to ``change`` for each value, one after another; all but the values float64."""
    away = torch.empty_like(start)
    for x, share in zip(values, shares, strict=True):
        change.add_(away.copy_(x).sub_(start), alpha=share)
