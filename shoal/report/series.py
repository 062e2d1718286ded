"""Curves over rounds: of one run, and over the seeds of a variant."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .load import Line, Run

Curve = Mapping[int, float]
"""Round -> value; rounds without a number are left out."""

Target = tuple[tuple[str, int | str], ...]
"""What an accuracy is of, such as ``(("task", 3),)``; empty for all rows together."""

RESERVED = frozenset({"round", "metric", "record", "value", "rows", "entry", "entries", "keys", "over", "weighting"})


class Spread(NamedTuple):
    """Mean and sample standard deviation over seeds, by round; ``sd`` is 0 where a round has one value only."""

    rounds: list[int]
    mean: list[float]
    sd: list[float]
    seeds: int


def number(value: Any) -> float | None:
    """The value as a finite float, or ``None``."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def curve(lines: Iterable[Line], **where: Any) -> dict[int, float]:
    """The values of these lines by round, of those that have the labels in ``where``; the mean of several."""
    found: dict[int, list[float]] = {}
    for line in lines:
        round, value = line.get("round"), number(line.get("value"))
        if isinstance(round, int) and value is not None and all(line.get(k) == v for k, v in where.items()):
            found.setdefault(round, []).append(value)
    return {round: math.fsum(values) / len(values) for round, values in sorted(found.items())}


def target_of(line: Line) -> Target:
    """What an accuracy is of: all labels of the line that are neither its value nor who answered."""
    labels = ((name, value) for name, value in line.items() if name not in RESERVED)
    return tuple(sorted((name, value) for name, value in labels if isinstance(value, int | str)))


def by_target(run: Run, metric: str = "accuracy") -> dict[Target, dict[int, float]]:
    """The curve of every target."""
    lines: dict[Target, list[Line]] = {}
    for line in run.metrics.get(metric, []):
        lines.setdefault(target_of(line), []).append(line)
    order = sorted(lines, key=lambda target: [(name, isinstance(v, str), v) for name, v in target])
    return {target: curve(lines[target]) for target in order}


def title_of(target: Target, names: Sequence[str] = ()) -> str:
    """The name of a target for people: a task's own name where the stream gives one."""
    parts = []
    for label, value in target:
        if label == "task" and isinstance(value, int) and 0 <= value < len(names):
            parts.append(str(names[value]))
        else:
            parts.append(f"{label} {value}")
    return ", ".join(parts) or "all test rows"


def mean_curve(run: Run) -> dict[int, float]:
    """The mean accuracy over the targets as the run logged it, else the plain mean of the targets' accuracies."""
    logged = curve(run.metrics.get("mean_accuracy", []), weighting="targets")
    if logged:
        return logged
    return curve(run.metrics.get("accuracy", []))


def over_seeds(curves: Iterable[Curve]) -> Spread:
    """Mean and sample standard deviation of several curves, round by round, over those that have the round."""
    known = [one for one in curves if one]
    rounds = sorted({round for one in known for round in one})
    columns = [[one[round] for one in known if round in one] for round in rounds]
    means = [math.fsum(values) / len(values) for values in columns]
    return Spread(rounds, means, [_sd(v, m) for v, m in zip(columns, means, strict=True)], len(known))


def _sd(values: Sequence[float], mean: float) -> float:
    # statistics.stdev works in exact fractions, forty times slower.
    if len(values) < 2:
        return 0.0
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def quantile(values: Sequence[float], share: float) -> float:
    """The linearly interpolated quantile of some numbers."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def thinned(rounds: Sequence[int], boundaries: Collection[int] = (), most: int = 500) -> list[int]:
    """The places of at most about ``most`` rounds: every k-th, the last, and those around a boundary."""
    step = max(1, math.ceil(len(rounds) / most))
    near = {b + h for b in boundaries for h in range(6)} if len(boundaries) * 6 <= most else set()
    return [i for i, round in enumerate(rounds) if i % step == 0 or i == len(rounds) - 1 or round in near]
