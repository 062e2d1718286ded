"""Curves over rounds: of one run, and over the seeds of a variant."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .lead import lead_metric
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


Names = Mapping[str, Sequence[str]]
"""Label -> the names that its values have in the data, by number."""


def title_of(target: Target, names: Names | None = None) -> str:
    """The name of a target for people: a task's or client's own name where the stream gives one."""
    parts = []
    for label, value in target:
        known = (names or {}).get(label, ())
        if isinstance(value, int) and 0 <= value < len(known):
            # Clients may have the same name, or a number for one.
            named = f"client {value}" + (f" ({known[value]})" if known[value] != str(value) else "")
            parts.append(named if label == "client" else known[value])
        else:
            parts.append(f"{label} {value}")
    return ", ".join(parts) or "all test rows"


def mean_curve(run: Run, metric: str = "accuracy") -> dict[int, float]:
    """The mean over the targets as the run logged it, else the plain mean of the targets' values."""
    logged = curve(run.metrics.get(f"mean_{metric}", []), weighting="targets")
    return logged or curve(run.metrics.get(metric, []))


def further_metrics(runs: Sequence[Run]) -> list[str]:
    """The other metrics that were measured on every target, in the order of the configuration."""
    wanted: dict[str, None] = {} if lead_metric(runs) == "loss" else {"loss": None}
    for run in runs:
        evaluate = run.config.get("evaluate")
        listed = evaluate.get("metrics") if isinstance(evaluate, Mapping) else None
        for name in listed if isinstance(listed, list) else ():
            wanted.setdefault(str(name).rpartition(":")[2])
    wanted |= dict.fromkeys(("validation_accuracy", "validation_loss"))
    return [name for name in wanted if any(run.metrics.get(name) for run in runs)]


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
