"""Means, server optimisers and calibrations with one fault each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from shoal.bank import Entry
from shoal.messages import Group
from shoal.randomness import Moment
from shoal.server.base import Calibration, ServerOptimizer
from shoal.server.means import Weighted, average, sent
from shoal.server.plain import SGD, Momentum

Stepped = tuple[Tensor, Mapping[str, Tensor]]


def vectors(group: Group) -> list[Tensor]:
    return [part.vector for part in group.parts if part.vector is not None]


class Rounding(Weighted):
    """Adds up in float32: equal answers do not come back."""

    def combine(self, old: Entry, group: Group) -> Tensor:
        if any(part.mask is not None for part in group.parts):
            return super().combine(old, group)
        total = sum(group.weights)
        return torch.stack([v * (w / total) for v, w in zip(vectors(group), group.weights, strict=True)]).sum(0)


class Running(Weighted):
    """Half of what was, half of the next: the last answer counts most."""

    def combine(self, old: Entry, group: Group) -> Tensor:
        if any(part.mask is not None for part in group.parts):
            return super().combine(old, group)
        found, *others = vectors(group)
        for vector in others:
            found = (found + vector) / 2
        return found


class Greedy(Weighted):
    """Leaves the mean in the first answer."""

    def combine(self, old: Entry, group: Group) -> Tensor:
        found = super().combine(old, group)
        vectors(group)[0].copy_(found)
        return found


class Squaring(Weighted):
    """Squares the weights in float32, which overflow."""

    def combine(self, old: Entry, group: Group) -> Tensor:
        squares = torch.tensor(group.weights) ** 2
        shares = squares / squares.sum()
        first, *others = vectors(group)
        if any(part.mask is not None for part in group.parts):
            return super().combine(old, group)
        for vector, share in zip(others, shares[1:], strict=True):
            first = first + share * (vector - vectors(group)[0])
        return first


class Beyond(Weighted):
    """Goes on in the direction in which the mean lies from the median."""

    def combine(self, old: Entry, group: Group) -> Tensor:
        mean = super().combine(old, group)
        if any(part.mask is not None for part in group.parts):
            return mean
        middle = torch.stack(vectors(group)).quantile(0.5, dim=0)
        return mean + 8 * (mean - middle)


class Maskless(Weighted):
    """Takes what stands at coordinates that were not sent for an answer."""

    def combine(self, old: Entry, group: Group) -> Tensor:
        plain = [(vector, None) for vector, _ in sent(old, group)]
        parts = tuple(type(p)(v, p.buffers, client=p.client) for p, (v, _) in zip(group.parts, plain, strict=True))
        return average(old, Group(parts, group.weights), group.weights)


class Subtracting(SGD):
    """Leaves the change in the clients' mean."""

    def step(self, old: Entry, mean: Tensor, when: Moment, reported: float) -> Stepped:
        change = mean.sub_(old.vector)
        return old.vector + change, old.server


class InPlace(SGD):
    """Takes the step in the old entry itself."""

    def step(self, old: Entry, mean: Tensor, when: Moment, reported: float) -> Stepped:
        return old.vector.add_(mean - old.vector), old.server


class Remembering(ServerOptimizer):
    """A momentum in an attribute."""

    def __init__(self) -> None:
        self.m: Tensor | None = None

    def step(self, old: Entry, mean: Tensor, when: Moment, reported: float) -> Stepped:
        change = mean - old.vector
        known = self.m is not None and self.m.shape == change.shape
        self.m = 0.5 * self.m + change if known and self.m is not None else change
        return old.vector + self.m, old.server


class Backwards(SGD):
    """Takes the change for a gradient, and descends."""

    def step(self, old: Entry, mean: Tensor, when: Moment, reported: float) -> Stepped:
        return old.vector - 0.1 * (mean - old.vector), old.server


class Shrinking(SGD):
    """Weight decay on the server."""

    def step(self, old: Entry, mean: Tensor, when: Moment, reported: float) -> Stepped:
        return mean - 1e-3 * old.vector, old.server


class Dropping(Momentum):
    """Keeps its own numbers only."""

    def step(self, old: Entry, mean: Tensor, when: Moment, reported: float) -> Stepped:
        vector, server = super().step(old, mean, when, reported)
        return vector, {"m": server["m"]}


class Exploding(SGD):
    """Divides by a power of the change that overflows."""

    def step(self, old: Entry, mean: Tensor, when: Moment, reported: float) -> Stepped:
        change = mean - old.vector
        return old.vector + change * (change**8 + 1) / (change**8 + 1), old.server


class Tongue(SGD):
    """Describes itself with a number that JSON does not know."""

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "bound": float("inf")}


class Ceilingless(Calibration):
    """Squares on the way, and overflows."""

    def denominator(self, v: Tensor) -> Tensor:
        return (v.square() + 1e-12).pow(0.25)


class Falling(Calibration):
    """Large moments step further."""

    def denominator(self, v: Tensor) -> Tensor:
        return 0.1 + 1 / (1 + v)
