"""Means that a few bad answers cannot carry away: the median, the trimmed mean, and clipped changes.

Papers: Yin et al., "Byzantine-Robust Distributed Learning" (ICML 2018), definitions 1 and 2, for the median and the
trimmed mean; Sun et al., "Can You Really Backdoor Federated Learning?" (2019), for the norm bound. All
three work on each entry by itself. BatchNorm statistics are averaged as ever (`Mean.weights`): nothing here protects
them, so use ``norm: group`` where clients may be hostile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..bank import Entry
from ..messages import Group
from .base import Mean
from .means import Weighted, average, sent

CELLS = 1 << 22
"""Numbers that are sorted at a time: answers times coordinates."""


class Ranked(Mean):
    """A mean made of the sorted values of every coordinate; a member says in `ranked` which of them count.

    Every draw of a client is an answer of its own, training rows count for nothing: whoever could name its own
    weight could outvote the others. A coordinate is ranked among those who sent it.
    """

    def weights(self, group: Group) -> Sequence[float]:
        """How often each client was drawn."""
        return [part.times for part in group.parts]

    def combine(self, old: Entry, group: Group) -> Tensor:
        """The mean of the parts' vectors, float32; a coordinate that nobody sent keeps the old value.

        Raises ``ValueError`` for no parts, and for parts of another size.
        """
        answers = [pair for pair, part in zip(sent(old, group), group.parts, strict=True) for _ in range(part.times)]
        if not answers:
            raise ValueError("a mean needs at least one answer; got none")
        out = torch.empty_like(old.vector)
        width = max(1, CELLS // len(answers))
        for begin in range(0, old.vector.numel(), width):
            s = slice(begin, begin + width)
            # What was not sent is sorted behind all that was, whatever stands there.
            rows = [x[s] if mask is None else torch.where(mask[s], x[s], math.inf) for x, mask in answers]
            count = torch.full_like(old.vector[s], sum(mask is None for _, mask in answers), dtype=torch.int64)
            for _, mask in answers:
                if mask is not None:
                    count += mask[s]
            # numpy sorts along the answers five times as fast as torch does.
            values = torch.from_numpy(np.sort(torch.stack(rows).numpy(force=True), axis=0)).to(old.vector.device)
            out[s] = torch.where(count > 0, self.ranked(values, count), old.vector[s])
        return out

    def ranked(self, values: Tensor, count: Tensor) -> Tensor:
        """One number per column of ``values`` ``[answers, P]``, smallest first; only the first ``count`` count.

        What is given for a column without answers is not used.
        """
        raise NotImplementedError


class Median(Ranked):
    """The median of every coordinate; of an even number of answers the midpoint of the middle two.

    It bears with any values from fewer than half of the answers. Of two answers it is the plain mean.
    """

    def ranked(self, values: Tensor, count: Tensor) -> Tensor:
        """The middle value, or the midpoint of the middle two."""
        low = values.gather(0, ((count - 1).clamp(min=0) // 2)[None])[0]
        high = values.gather(0, (count // 2).clamp(max=len(values) - 1)[None])[0]
        middle = (low.double() + high.double()) / 2
        return torch.where(low == high, low, middle.to(low.dtype))


class Trimmed(Ranked):
    """The mean of every coordinate without its ``floor(beta n)`` smallest and as many largest of n values.

    ``beta`` is a share, 0 <= beta < 1/2; it bears with that share of bad answers. With fewer than ``1 / beta``
    answers nothing is cut. Deviation: the paper leaves a fractional ``beta n`` open; here it is rounded down, as
    ``scipy.stats.trim_mean`` does. Raises ``ValueError`` for another ``beta``.
    """

    def __init__(self, *, beta: float = 0.1) -> None:
        if not 0 <= beta < 0.5:
            raise ValueError(
                f"beta is the share that is cut from each end and needs 0 <= beta < 0.5; got {beta}. Where half of the "
                f"answers may be bad use mean: median"
            )
        self.beta = beta

    def ranked(self, values: Tensor, count: Tensor) -> Tensor:
        """The mean of the values between the two tails."""
        # 0.29 * 100 is a hair below 29 in binary: what is whole but for rounding is taken as whole.
        cut = (count.double() * self.beta + 1e-9).floor().long()
        rank = torch.arange(len(values), device=values.device)[:, None]
        kept = (rank >= cut) & (rank < count - cut)
        first = values.gather(0, cut[None])[0]
        start = first.double()
        change = torch.zeros_like(start)
        for row, inside in zip(values, kept, strict=True):
            change.add_(torch.where(inside, row.double() - start, 0.0))
        # Where nothing changes, the very bits of the first: -0.0 + 0.0 would be 0.0.
        return torch.where(change == 0, first, (start + change / (count - 2 * cut).clamp(min=1)).to(values.dtype))


class Clipped(Weighted):
    """The weighted mean of changes whose Euclidean norm is at most ``bound``.

    Each answer ``x_i`` counts as ``x + d min(1, bound / ||d||)`` with its change ``d = x_i - x`` from the entry ``x``,
    so no client moves the entry further than its share of ``bound``; weights are training rows times draws. With a
    mask only the sent coordinates are measured. No noise is added. Raises ``ValueError`` unless ``bound`` is
    positive and finite.
    """

    def __init__(self, *, bound: float) -> None:
        if not 0 < bound < math.inf:
            raise ValueError(f"bound is the largest norm of a change, positive and finite; got {bound}")
        self.bound = bound

    def combine(self, old: Entry, group: Group) -> Tensor:
        """The weighted mean; an answer within the bound is taken as it is, to the bit."""
        parts = []
        for (vector, mask), part in zip(sent(old, group), group.parts, strict=True):
            change = vector.double() - old.vector.double()
            if mask is not None:
                change = torch.where(mask, change, 0.0)
            norm = float(torch.linalg.vector_norm(change))
            if norm > self.bound:
                near = (old.vector.double() + change * (self.bound / norm)).to(old.vector.dtype)
                part = replace(part, vector=near)
            parts.append(part)
        return average(old, replace(group, parts=tuple(parts)), self.weights(group))
