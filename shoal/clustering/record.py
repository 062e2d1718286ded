"""Concept Matching's own rule: a model takes only updates that are nearer than every one before."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from ..bank import Value
from .geometry import Array
from .matching import Matching, Round, Start, remembered

Factor = Annotated[float, Field(ge=1, allow_inf_nan=False)]


def factor(name: str, value: float) -> float:
    """The value, checked: at least one and finite; else ``ValueError``."""
    if not 1 <= value < math.inf:
        raise ValueError(f"{name} is a factor and needs 1 <= {name}, finite (1: none); got {value}")
    return value


class Paper(Matching):
    """The distance record of algorithm 1 of Concept Matching (arXiv 2311.06921).

    Every model remembers the distance of its last update, none at first. A cluster goes to the nearest of the models
    whose record it beats, ``d < slack * record``, and its distance is the new record at once, so that the next cluster
    of the same round must beat it; without such a model it is dropped. With ``slack: 1`` (the paper) a record never
    rises, and a concept whose distances rise is never updated again; with ``leak > 1`` each dropped cluster
    multiplies the record of its nearest model by that.

    ``order`` of the clusters: ``label`` (the paper's loop); ``ascending``, by the distance from the nearest model;
    ``pairs``, all pairs of cluster and model by distance, each used once. ``distances`` are those from the models at
    the start of the round (``snapshot``), or follow the updates within it (``in_place``: an updated model is the mean
    of its cluster).
    """

    def __init__(
        self,
        *,
        slack: Factor = 1.0,
        leak: Factor = 1.0,
        order: Literal["label", "ascending", "pairs"] = "label",
        distances: Literal["snapshot", "in_place"] = "snapshot",
        size_corrected: bool = False,
        start: Start = "identical",
    ) -> None:
        super().__init__(size_corrected=size_corrected, start=start)
        self.slack = factor("slack", slack)
        self.leak = factor("leak", leak)
        self.order = order
        self.distances = distances

    def decide(self, now: Round, past: Mapping[str, Value]) -> Mapping[str, Array]:
        """By the record."""
        record = remembered(past, "record", now.scores.shape[1])
        if self.order == "pairs":
            self._pairs(now, record)
        else:
            self._loop(now, record)
        return {"record": record}

    def _limit(self, now: Round, record: Array) -> Array:
        return np.where(now.claimed, self.slack * record, np.inf)

    def _loop(self, now: Round, record: Array) -> None:
        scores = now.scores.copy()
        order = np.arange(len(scores))
        if self.order == "ascending":
            order = np.argsort(scores.min(axis=1), kind="stable")
        between = now.between() if self.distances == "in_place" else None
        for cluster in order.tolist():
            row = scores[cluster]
            beaten = row < self._limit(now, record)
            if not beaten.any():
                record[row.argmin()] *= self.leak
                continue
            model = int(np.where(beaten, row, np.inf).argmin())
            record[model] = row[model]
            now.give(cluster, model)
            if between is not None:
                scores[:, model] = between[:, cluster]

    def _pairs(self, now: Round, record: Array) -> None:
        limit = self._limit(now, record)  # each model is decided once, so no record changes before it is asked
        for place in np.argsort(now.scores, axis=None, kind="stable").tolist():
            cluster, model = divmod(place, now.scores.shape[1])
            free = now.models[cluster] is None and model not in now.models
            if free and now.scores[cluster, model] < limit[model]:
                record[model] = now.scores[cluster, model]
                now.give(cluster, model)
        for cluster, model_of in enumerate(now.models):
            if model_of is None:
                record[now.scores[cluster].argmin()] *= self.leak
