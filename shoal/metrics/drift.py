"""Client drift: how far local models go from the model that they received."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar

from ..messages import Update
from ..requests import Drift
from .base import Line, Measure, Seen
from .values import mean

_METRICS = {"squared": "client_drift", "distance": "client_drift_distance", "cosine": "client_drift_cosine"}
_OVER = ("all", "head")


def _of_client(drifts: Sequence[Drift], over: str) -> list[float | None]:
    """One client's numbers in the order of `_METRICS`: the mean over its epochs (``squared``) or its fits (the others)
    in the round. ``None`` if it took no step or one of them is not finite.
    """
    if over == "all":
        numbers = [(d.squared, d.distance, d.cosine) for d in drifts if d.squared]
    else:
        numbers = [(d.squared_head, d.distance_head, d.cosine_head) for d in drifts if d.squared_head]
    if not numbers:
        return [None] * len(_METRICS)
    epochs, *ends = zip(*numbers, strict=True)
    return [_mean(tuple(chain.from_iterable(epochs))), *(_mean(values) for values in ends)]


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else None


class ClientDrift(Measure):
    """Client drift of a round, each ``over`` all parameters and over the ``head`` (the last linear layer).

    - ``client_drift``: squared Euclidean distance of the local model to the model received, after each local
      epoch, averaged over epochs and clients (arXiv 2203.13321, equation 2);
    - ``client_drift_distance``: the Euclidean distance at the end of the fit;
    - ``client_drift_cosine``: 1 - cos between the two parameter vectors at the end of the fit.

    All clients that answered count, accepted or not, and each counts once: a client with several fits in a
    round first gives its own mean over them. A client whose number is not finite is left out; ``clients``
    says how many are in the mean. No line where nobody trained.
    """

    lines: ClassVar[tuple[str, ...]] = tuple(_METRICS.values())

    def observe(self, seen: Seen, memory: Mapping[str, Any]) -> tuple[list[Line], Mapping[str, Any]]:
        """Up to six lines."""
        drifts: dict[int, list[Drift]] = {}
        for outcome in seen.outcomes:
            if isinstance(outcome.answer, Update):
                drifts.setdefault(outcome.client, []).extend([fit.drift for fit in outcome.fits])
        found = {over: [_of_client(own, over) for own in drifts.values()] for over in _OVER}
        lines: list[Line] = []
        for place, metric in enumerate(_METRICS.values()):
            for over, clients in found.items():
                known = [numbers[place] for numbers in clients if numbers[place] is not None]
                if known:
                    lines.append({"metric": metric, "value": mean(known), "over": over, "clients": len(known)})
        return lines, memory

    @staticmethod
    def summarise(lines: Sequence[Line]) -> dict[str, Any]:
        """``client_drift``: the mean over rounds (warm-up left out), over all parameters.

        ``client_drift_by`` has the mean over rounds of every kind: ``{"distance": {"all": .., "head": ..},
        ..}``.
        """
        found: dict[tuple[str, str], list[float | None]] = {}
        for line in lines:
            if line.get("metric") in _METRICS.values() and line["round"] > 0:
                found.setdefault((line["metric"], line["over"]), []).append(line["value"])
        by = {what: {over: mean(found.get((metric, over), [])) for over in _OVER} for what, metric in _METRICS.items()}
        return {"client_drift": by["squared"]["all"], "client_drift_by": by}
