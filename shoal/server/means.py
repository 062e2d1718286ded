"""Means: how the clients' answers for one entry become one vector.

The weighted mean is formed as ``first + sum_i w_i (x_i - first)`` in float64, block by block, and rounded to
float32 once. So answers that are equal come back bit for bit, whatever their weights, and the temporary
memory does not grow with the model or with the number of clients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..bank import Entry
from ..errors import ConfigError
from ..messages import Group, World
from .base import Mean, shares
from .sums import BLOCK, add_changes


def sent(old: Entry, group: Group) -> list[tuple[Tensor, Tensor | None]]:
    """The vector and the mask (``None``: all) of each part; ``ValueError`` if one does not fit the entry."""
    found = []
    for part in group.parts:
        vector, mask = part.vector, part.mask
        if vector is None or vector.shape != old.vector.shape:
            came = "no vector" if vector is None else f"a vector of shape {tuple(vector.shape)}"
            raise ValueError(
                f"client {part.client} sent {came} for an entry of shape {tuple(old.vector.shape)}; "
                f"every answer for an entry has the entry's own size"
            )
        if mask is not None and (mask.shape != vector.shape or mask.dtype != torch.bool):
            raise ValueError(
                f"client {part.client} sent a mask of shape {tuple(mask.shape)} and {mask.dtype}; "
                f"a mask is bool and of its vector's shape {tuple(vector.shape)}"
            )
        found.append((vector, mask))
    return found


def average(old: Entry, group: Group, weights: Sequence[float]) -> Tensor:
    """The weighted mean of the parts' vectors, float32.

    With masks it is taken coordinate by coordinate over those who sent the coordinate, and a coordinate that
    nobody sent keeps the old value. Raises ``ValueError`` for parts of another size and for weights that are
    not positive.
    """
    parts, share = sent(old, group), shares(weights)
    if len(parts) != len(share):
        raise ValueError(f"a mean needs one weight per part; got {len(share)} weights for {len(parts)} parts")
    masked = any(mask is not None for _, mask in parts)
    if not masked and old.vector.numel() <= BLOCK:  # a slice of everything costs as much as its arithmetic
        return _over_all([x for x, _ in parts], share)
    out = torch.empty_like(old.vector)
    for begin in range(0, old.vector.numel(), BLOCK):
        s = slice(begin, begin + BLOCK)
        if masked:
            block = [(x[s], None if mask is None else mask[s]) for x, mask in parts]
            out[s] = _over_senders(old.vector[s], block, share)
        else:
            out[s] = _over_all([x[s] for x, _ in parts], share)
    return out


def _over_all(values: Sequence[Tensor], share: Sequence[float]) -> Tensor:
    first = values[0].to(torch.float64)
    change = torch.zeros_like(first)
    add_changes(change, first, values[1:], share[1:])
    # Where nothing changes, the very bits of the first: -0.0 + 0.0 would be 0.0.
    return torch.where(change == 0, values[0], (first + change).to(values[0].dtype))


def _over_senders(old: Tensor, parts: Sequence[tuple[Tensor, Tensor | None]], share: Sequence[float]) -> Tensor:
    first = old
    for x, mask in reversed(parts):
        first = x if mask is None else torch.where(mask, x, first)
    start = first.to(torch.float64)
    change, total = torch.zeros_like(start), torch.zeros_like(start)
    for (x, mask), weight in zip(parts, share, strict=True):
        # Chosen, not multiplied: what stands at a coordinate that was not sent may be anything.
        change.add_((x if mask is None else torch.where(mask, x, first)) - start, alpha=weight)
        total.add_(torch.ones_like(start) if mask is None else mask.to(start.dtype), alpha=weight)
    return torch.where(change == 0, first, (start + change / total).to(old.dtype))


class Weighted(Mean):
    """The mean weighted by training rows times draws (``Group.weights``): federated averaging's own.

    Paper: McMahan et al. (2017), algorithm 1. The weights are normalised over those who answered.
    """

    streams = True

    def combine(self, old: Entry, group: Group) -> Tensor:
        """The weighted mean of the parts; see `average`."""
        return average(old, group, self.weights(group))


class Uniform(Weighted):
    """The plain mean over draws: every client counts once for each time that it was drawn, whatever its rows.

    It is unbiased where clients are drawn with replacement, in proportion to their rows (arXiv 2009.06557,
    algorithm 1).
    """

    streams = True

    def weights(self, group: Group) -> Sequence[float]:
        """How often each client was drawn."""
        return [part.times for part in group.parts]


class Listed(Weighted):
    """The mean by weights that the configuration lists, times draws.

    ``weights`` is a list with one weight per client, by id, or a mapping from id to weight; all positive.
    They need not sum to one: they are normalised over those who answered. Raises ``ValueError`` for other
    weights, and `ConfigError` when a client answers that has none.
    """

    streams = True

    def __init__(self, world: World | None = None, *, weights: list[float] | dict[int, float]) -> None:
        items = weights.items() if isinstance(weights, Mapping) else enumerate(weights)
        self.listed: dict[int, float] = {int(client): float(weight) for client, weight in items}
        wrong = {c: w for c, w in self.listed.items() if not 0 < w < math.inf}
        if not self.listed or wrong:
            raise ValueError(
                f"weights must list at least one client, with positive and finite numbers only; got "
                f"{wrong or weights}. To leave a client out, give it participation.probabilities 0"
            )

        unlisted = [c for c in range(0 if world is None else world.clients) if c not in self.listed]
        if unlisted:
            raise ValueError(f"weights: every client needs a weight; none for client {_brief(unlisted)}")

    def weights(self, group: Group) -> Sequence[float]:
        """The listed weight of each client, times its draws."""
        missing = [part.client for part in group.parts if part.client not in self.listed]
        if missing:
            raise ConfigError(
                f"mean.weights: every client that answers needs a listed weight; none for client "
                f"{', '.join(map(str, missing))}. Listed: {_brief(sorted(self.listed))}"
            )
        return [self.listed[part.client] * part.times for part in group.parts]


def _brief(ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, ids[:10]))
    return shown if len(ids) <= 10 else f"{shown}, ... {ids[-1]} ({len(ids)} clients)"
