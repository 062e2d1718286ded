"""Laws of means, each tried alone on a few clients' answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..bank import Entry
from ..messages import Group, Part
from ..server.base import Mean
from .fingerprint import difference, fingerprint
from .law import law, require

SIZE = 12
CLIENTS = 4
WEIGHTS = (3.0, 50.0, 7.0, 1.0)
TOLERANCE = 1e-5


def _tensor(seed: int) -> Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))


def _group(vectors: Sequence[Tensor], weights: Sequence[float] = WEIGHTS) -> Group:
    parts = tuple(Part(vector, steps=3, client=i) for i, vector in enumerate(vectors))
    return Group(parts, tuple(weights[: len(parts)]))


def _several() -> Group:
    return _group([_tensor(i) for i in range(CLIENTS)])


@law("mean")
def equal_answers_come_back(mean: Mean) -> None:
    """Answers that are equal come back bit for bit, whatever their number and weights.

    Where weights do not sum to one (`Mean.averages` false) only those that are the entry itself.
    """
    old = Entry(_tensor(20))
    vector = _tensor(0) if mean.averages else old.vector
    for count in range(1, CLIENTS + 1):
        for weights in (WEIGHTS, (1e-9, 1e9, 1 / 3, 0.1)):
            found = difference(vector, mean.combine(old, _group([vector.clone() for _ in range(count)], weights)))
            require(found is None, f"{count} equal answers: what was sent and what came back, {found}")


@law("mean")
def the_order_of_answers_is_no_matter(mean: Mean) -> None:
    """The mean of the same answers in another order is the same, to rounding."""
    old, group = Entry(_tensor(20)), _several()
    straight = mean.combine(old, group)
    for order in ((3, 2, 1, 0), (1, 3, 0, 2)):
        turned = Group(tuple(group.parts[i] for i in order), tuple(group.weights[i] for i in order))
        away = float((straight - mean.combine(old, turned)).abs().max())
        require(away <= TOLERANCE, f"in the order {order} the mean differs by {away:.3g}")


@law("mean")
def answers_stay_as_they_are(mean: Mean) -> None:
    """The mean changes neither the entry nor an answer in place, nor anything of its own."""
    old, group = Entry(_tensor(20)), _several()
    before, own = fingerprint(old, group), fingerprint(vars(mean))
    first = mean.combine(old, group)
    require(fingerprint(old, group) == before, "the mean changed what it was given, in place")
    mean.combine(old, _group([_tensor(8), _tensor(9)]))
    found = difference(first, mean.combine(old, group))
    require(found is None, f"the mean of the same answers twice: {found}")
    require(fingerprint(vars(mean)) == own, "attributes of the mean changed")


@law("mean")
def only_ratios_of_weights_count(mean: Mean) -> None:
    """Weights are normalised over those who answered: scaled all alike, from 1e-30 to 1e30, they change nothing."""
    old, group = Entry(_tensor(20)), _several()
    straight = mean.combine(old, group)
    for scale in (1e-30, 3.0, 2.0**31, 1e30):
        scaled = replace(group, weights=tuple(w * scale for w in WEIGHTS))
        away = float((straight - mean.combine(old, scaled)).abs().max())
        require(away <= TOLERANCE, f"weights times {scale:g} move the mean by {away:.3g}")


@law("mean")
def a_mean_lies_among_the_answers(mean: Mean) -> None:
    """The mean is a float32 vector of the entry's size, no coordinate outside the entry and the answers.

    The last not where weights do not sum to one (`Mean.averages` false).
    """
    old, group = Entry(_tensor(20)), _several()
    found = mean.combine(old, group)
    require(found.shape == (SIZE,) and found.dtype == torch.float32, f"{found.dtype} of shape {tuple(found.shape)}")
    if not mean.averages:
        return
    every = torch.stack([part.vector for part in group.parts if part.vector is not None] + [old.vector])
    outside = (found < every.min(0).values - TOLERANCE) | (found > every.max(0).values + TOLERANCE)
    require(not bool(outside.any()), f"{int(outside.sum())} coordinates lie outside of all answers and the entry")


@law("mean")
def unsent_coordinates_stay(mean: Mean) -> None:
    """A coordinate that nobody sent keeps the entry's bits; one that a single client sent gets that client's.

    The last not where weights do not sum to one (`Mean.averages` false).
    """
    old, group = Entry(_tensor(20)), _several()
    masks = torch.zeros(CLIENTS, SIZE, dtype=torch.bool)
    masks[0, 2:5] = True
    masks[1, 4:8] = True
    parts = tuple(replace(part, mask=mask) for part, mask in zip(group.parts, masks, strict=True))
    found = mean.combine(old, replace(group, parts=parts))
    nobody = ~masks.any(0)
    where = difference(old.vector[nobody], found[nobody])
    require(where is None, f"coordinates that nobody sent, before and after: {where}")
    if not mean.averages:
        return
    first = group.parts[0].vector
    assert first is not None
    away = float((found[2:4] - first[2:4]).abs().max())
    require(away <= TOLERANCE, f"coordinates that one client sent differ from what it sent by {away:.3g}")
