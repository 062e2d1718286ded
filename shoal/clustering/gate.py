"""A relaxed rule: one-to-one, inside a gate around each model that follows the distances of its updates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from ..bank import Value
from .geometry import Array
from .matching import Matched, Matching, Round, Start, assigned, remembered
from .number import NumberRule
from .record import Factor, factor


class Gated(Matching):
    """Clusters and models one to one, as far as clusters lie inside the models' gates.

    A model remembers the usual distance of its updates, a moving average: ``decay`` times the old one plus
    ``1 - decay`` times the new distance. Its gate is ``gate`` times that; a model without a past is open to all. As
    many clusters as can be are given to models of their own, with the smallest sum of distances. Clusters that are
    left over join the nearest model if they lie inside its gate; that of a model which was updated for the first time
    in this round is ``gate`` times that update's distance. All others are rejected, and each multiplies the gate of
    its nearest model by ``widen``, so that no concept is shut out for ever. A cluster at distance 0 is accepted and
    moves no gate.

    The first update of a model that its clients did not train from lies far away, and would leave a gate that any
    concept fits through. So the memory begins with the distance that is likely from now on, where that is smaller, see
    `settled`.
    """

    number: ClassVar[NumberRule] = "silhouette"

    def __init__(
        self,
        *,
        gate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.5,
        decay: Annotated[float, Field(ge=0, lt=1)] = 0.7,
        widen: Factor = 1.2,
        size_corrected: bool = False,
        start: Start = "identical",
    ) -> None:
        super().__init__(size_corrected=size_corrected, start=start)
        if not 0 < gate < math.inf:
            raise ValueError(f"gate multiplies a model's usual distance; it must be positive and finite; got {gate}")
        if not 0 <= decay < 1:
            raise ValueError(f"decay is the share of the past in the usual distance, 0 <= decay < 1; got {decay}")
        self.gate = gate
        self.decay = decay
        self.widen = factor("widen", widen)

    def decide(self, now: Round, past: Mapping[str, Value]) -> Mapping[str, Array]:
        """By linear sum assignment inside the gates."""
        usual = remembered(past, "usual", now.scores.shape[1])
        gates = self._gates(usual)
        before = usual > 0
        for cluster, model in assigned(now.scores, now.scores < gates):
            now.give(cluster, model)
            new = now.scores[cluster, model]
            if new > 0:
                usual[model] = self.decay * usual[model] + (1 - self.decay) * new if before[model] else new
        gates = np.where(before, gates, self._gates(usual))
        for cluster, given in enumerate(now.models):
            if given is None:
                model = int(now.scores[cluster].argmin())
                if now.scores[cluster, model] < gates[model]:
                    now.join(cluster, model)
                else:
                    usual[model] *= self.widen
        return {"usual": usual}

    def settled(self, matched: Matched, likely: Mapping[int, float]) -> Matched:
        """What is remembered of a first update shrinks to the likely distance; no gate becomes wider."""
        usual = matched.numbers["matching/usual"].clone()
        for cluster, model in matched.claims.items():
            first = float(matched.distances[cluster, model])
            if 0 < likely[cluster] < first:
                usual[model] *= likely[cluster] / first  # a factor: sizes and what was widened are in it already
        return replace(matched, numbers={**matched.numbers, "matching/usual": usual})

    def _gates(self, usual: Array) -> Array:
        return np.where(usual > 0, self.gate * usual, np.inf)
