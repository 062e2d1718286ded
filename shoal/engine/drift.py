"""How far a fit goes away from where it began: squared distances, and the angle between both models."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..placing import fetched
from ..requests import Drift

if TYPE_CHECKING:
    from .kernel import Workspace


class Origin:
    """The squared lengths of the vector that drift was last measured from: the clients of a round share it."""

    def __init__(self) -> None:
        self._known: tuple[weakref.ref[Tensor], int, slice, tuple[float, float]] | None = None

    def lengths(self, start: Tensor, head: slice) -> tuple[float, float]:
        """Over all and over the head; worked out anew when it is another tensor, or one that was written to."""
        version = -1 if start.is_inference() else start._version  # such a tensor counts no writes
        if self._known is not None and version >= 0:
            known, before, where, lengths = self._known
            if known() is start and before == version and where == head:
                return lengths
        inside = start[head]
        lengths = float(torch.dot(start, start)), float(torch.dot(inside, inside))
        self._known = weakref.ref(start), version, head, lengths
        return lengths


def squared(work: Workspace, start: Tensor) -> tuple[Tensor, Tensor]:
    """Squared distances to the start, over all and over the head; leaves the difference in ``work.gradient``.

    The gradient is zeroed before the next step anyway; a fresh tensor per epoch would cost more than the sum.
    """
    away = torch.sub(work.vector, start, out=work.gradient)
    head = work.gradient_head
    return torch.dot(away, away), torch.dot(head, head)


def drift(seen: Sequence[tuple[Tensor, Tensor]], work: Workspace, start: Tensor, lengths: tuple[float, float]) -> Drift:
    """The drift of a fit that just ended, so that ``work.gradient`` holds the difference to the start.

    ``lengths`` are the squared lengths of the start, over all and over the head.
    """
    if not seen:
        return Drift()
    dots = torch.dot(work.gradient, start), torch.dot(work.gradient_head, start[work.model.space.head])
    *found, dot, dot_head = fetched([number for pair in (*seen, dots) for number in pair])
    whole, inside = found[::2], found[1::2]
    return Drift(
        tuple(whole),
        tuple(inside),
        whole[-1] ** 0.5,
        inside[-1] ** 0.5,
        between(lengths[0], dot, whole[-1]),
        between(lengths[1], dot_head, inside[-1]),
    )


def cosine_distance(start: Tensor, away: Tensor, squared: float) -> float:
    """1 - cos between ``start`` and ``start + away``, accurate when they are close; ``squared`` is ``|away|^2``."""
    return between(float(torch.dot(start, start)), float(torch.dot(away, start)), squared)


def between(length: float, dot: float, squared: float) -> float:
    """1 - cos between ``a`` and ``a + d``, from ``length = a.a``, ``dot = d.a`` and ``squared = d.d``.

    From ``|a-b|^2 - (|a|-|b|)^2 = 2 |a||b| (1 - cos)``, with ``|a|-|b| = (|a|^2-|b|^2) / (|a|+|b|)``: nothing
    cancels. 0 if both vectors are zero, 1 if one is.
    """
    growth = 2 * dot + squared
    before, after = length**0.5, max(0.0, length + growth) ** 0.5
    if before == 0 or after == 0:
        return 0.0 if before == after else 1.0
    distance: float = (squared - (growth / (before + after)) ** 2) / (2 * before * after)
    return max(0.0, distance)
