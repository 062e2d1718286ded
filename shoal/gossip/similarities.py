"""Published similarities: sparse, with draws and two-hop estimates.

Papers: Listo Zec et al., "Decentralized adaptive clustering of deep nets is beneficial for client collaboration" (2022,
DAC); "Concept-aware clustering for decentralized deep learning under temporal shift" (arXiv 2306.12768, HAST). With
``s_ij = 1 / loss(w_j; D_i)`` client i contacts j with probability ``exp(t s_ij) / sum_k exp(t s_ik)``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from ..bank import Entry
from ..registry import Strict
from ..requests import Score
from .graphs import belong

PUBLISHED = "gossip/similarities"
"""In ``Entry.extra``: float32 ``[2, k]``, the ids of k clients in ascending order, and the similarity to each."""
SMALLEST_LOSS = 1e-10
MOST_CLIENTS = 2**24
"""Ids are stored as float32, which counts no further."""


class Rising(Strict):
    """A temperature that rises from 1 to ``a + 1``: ``2a / (1 + exp(-b t)) - a + 1`` (DAC's second variant)."""

    a: float = Field(30.0, ge=0, allow_inf_nan=False)
    b: float = Field(0.2, ge=0, allow_inf_nan=False)

    def at(self, t: int) -> float:
        """The temperature at time ``t >= 0``."""
        return 2 * self.a / (1 + math.exp(-self.b * t)) - self.a + 1


@dataclass(frozen=True)
class Similarities:
    """What one client knows or estimates of others: ``ids`` (int64, ascending) and ``values``, both ``[k]``.

    Everyone else has the similarity ``unknown``.
    """

    ids: np.ndarray
    values: np.ndarray
    unknown: float = 0.0

    @classmethod
    def of(cls, known: Mapping[int, float], unknown: float = 0.0) -> Similarities:
        """From a mapping."""
        ids = np.array(sorted(known), dtype=np.int64)
        return cls(ids, np.array([known[int(i)] for i in ids], dtype=np.float64), unknown)

    @classmethod
    def read(cls, entry: Entry, unknown: float = 0.0, name: str = PUBLISHED) -> Similarities:
        """Those that an entry publishes, or another table by its ``name``; none where it publishes nothing."""
        stored = entry.extra.get(name)
        if stored is None:
            return cls.of({}, unknown)
        table = stored.numpy()
        return cls(table[0].astype(np.int64), table[1].astype(np.float64), unknown)

    def tensor(self) -> Tensor:
        """As they are published."""
        return torch.from_numpy(np.stack([self.ids, self.values]).astype(np.float32))

    def values_of(self, clients: np.ndarray) -> np.ndarray:
        """The similarity to each of these clients, known or not."""
        values = np.full(len(clients), self.unknown)
        here = belong(clients, self.ids)
        values[here] = self.values[np.searchsorted(self.ids, clients[here])]
        return values

    def within(self, others: np.ndarray) -> Similarities:
        """Those of clients in ``others`` (sorted)."""
        here = belong(self.ids, others)
        return Similarities(self.ids[here], self.values[here], self.unknown)

    def without(self, others: np.ndarray) -> Similarities:
        """Those of clients that are not in ``others`` (sorted)."""
        away = ~belong(self.ids, others)
        return Similarities(self.ids[away], self.values[away], self.unknown)

    def times(self, factor: float, others: np.ndarray) -> Similarities:
        """These, with the numbers of clients in ``others`` (sorted) multiplied."""
        return Similarities(
            self.ids, np.where(belong(self.ids, others), factor * self.values, self.values), self.unknown
        )

    def joined(self, more: Similarities) -> Similarities:
        """These and ``more``, which wins where both know a client."""
        old = self.without(more.ids)
        ids, values = np.concatenate([old.ids, more.ids]), np.concatenate([old.values, more.values])
        order = np.argsort(ids)
        return Similarities(ids[order], values[order], self.unknown)

    def largest(self, count: int | None) -> Similarities:
        """The ``count`` largest (of equal ones those of lower ids); ``None``: all."""
        if count is None or len(self.ids) <= count:
            return self
        kept = np.sort(np.lexsort((self.ids, -self.values))[:count])
        return Similarities(self.ids[kept], self.values[kept], self.unknown)


def similarities_of(entry: Entry) -> tuple[np.ndarray, np.ndarray]:
    """The ids and similarities that an entry publishes, for measures; empty where it publishes none."""
    found = Similarities.read(entry)
    return found.ids, found.values


def inverse_loss(own: Entry, peer: Entry, found: Score) -> float:
    """1 / loss of the peer's model on the client's training rows, the loss cut at 1e-10; 0 if it is not a number."""
    return 0.0 if math.isnan(found.loss) else 1 / max(found.loss, SMALLEST_LOSS)


def two_hop(
    own: Similarities,
    peers: Mapping[int, Similarities],
    measured: Mapping[int, float],
    settled: np.ndarray,
    mute: Mapping[int, np.ndarray] | None = None,
) -> Similarities:
    """``own`` with estimates of clients that were never contacted, from what the contacts of this round know.

    ``peers`` are the contacts' similarities at the round's start, ``measured`` the client's own to them. A client j
    outside ``settled`` (sorted ids: those that keep their number, and the client itself) gets the number of the most
    similar contact that has one above 0 for it; of equally similar contacts the one with the lower id. Where the number
    of the unknown is above 0 every contact has one of everybody but itself. Contact k says nothing of the clients in
    ``mute[k]``, whatever number it has.
    """
    found = own
    left: np.ndarray | None = None  # who still has no estimate; None: everybody outside `settled`
    for k in sorted(peers, key=lambda k: (-measured[k], k)):
        theirs = peers[k]
        silent = np.append(theirs.ids[theirs.values <= 0], k)
        if mute is not None and k in mute:
            silent = np.union1d(silent, mute[k])
        if left is not None:
            told = left[(theirs.values_of(left) > 0) & ~np.isin(left, silent)]
            found = found.without(told).joined(theirs.within(told))
            left = left[~belong(left, told)]
        elif theirs.unknown > 0:
            # It speaks of everybody but itself: who is unknown to it becomes unknown here.
            left = np.setdiff1d(silent, settled)
            kept = np.union1d(settled, left)
            found = found.within(kept).joined(theirs.without(kept))
        else:
            news = theirs.without(np.union1d(settled, silent))
            found = found.joined(news)
            settled = np.union1d(settled, news.ids)
    return found


def draw(
    rng: np.random.Generator,
    eligible: np.ndarray,
    known: Similarities,
    count: int,
    temperature: float,
    clip: float | None,
) -> list[int]:
    """``count`` of the ``eligible`` clients (sorted ids) one after another, without replacement, in proportion to
    ``exp(temperature * min(max(s, 0), clip))``; all of them where there are no more. Sorted.

    By the largest of ``temperature * s`` plus Gumbel noise: the same law, and nothing overflows or vanishes. Of those
    that are unknown, who are all alike, only the largest ``count`` noises are drawn.
    """
    count = min(count, len(eligible))
    near = known.within(eligible)
    strangers = len(eligible) - len(near.ids)
    most = min(count, strangers)
    # The smallest of n exponentials, the next one, ...: their gaps are exponentials divided by n, n - 1, ...
    waits = np.cumsum(rng.exponential(size=most) / (strangers - np.arange(most)))
    scores = np.append(near.values, known.unknown)
    logits = temperature * (scores if clip is None else np.clip(scores, 0, clip))
    noisy = np.concatenate([logits[:-1] + rng.gumbel(size=len(near.ids)), logits[-1] - np.log(waits)])
    chosen = np.argsort(-noisy, kind="stable")[:count]
    drawn = near.ids[chosen[chosen < len(near.ids)]]
    if len(drawn) < count:
        others = eligible[~belong(eligible, near.ids)]
        drawn = np.append(drawn, rng.choice(others, count - len(drawn), replace=False))
    return [int(i) for i in np.sort(drawn)]
