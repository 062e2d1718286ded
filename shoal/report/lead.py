"""What runs are compared by: one rule, for numbers of summaries and for the lines of runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from .load import Run

METRICS = {"acc": "accuracy", "loss": "loss"}
"""The number of a summary, and the metric of ``metrics.jsonl`` that it is made from."""


def lead_key(learns: Iterable[Any], known: Collection[str]) -> str:
    """``loss`` where real values are learned, or where nobody says what is and there is a loss alone; else ``acc``.

    ``learns`` is what the streams say (``classes``, ``values``, ``None``), ``known`` the numbers that there are.
    """
    said = {one for one in learns if one is not None}
    if "values" in said:
        return "loss"
    return "loss" if not said and "acc" not in known and "loss" in known else "acc"


def lead_metric(runs: Sequence[Run]) -> str:
    """The metric that targets are shown by: ``accuracy``, or ``loss``; see `lead_key`."""
    known = {key for key, metric in METRICS.items() if any(run.metrics.get(metric) for run in runs)}
    return METRICS[lead_key((run.stream.get("learns") for run in runs), known)]
