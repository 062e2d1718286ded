"""What a phase boundary does to the tasks trained before it: BWT_f in all its readings, and the rounds after it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..metrics.history import history
from ..metrics.transfer import HORIZON, Change, changes
from .charts import Chart, Key, figure, group, lines
from .load import Run, Runs
from .numbers import NUMBERS, describe, written
from .parts import Section, note, paragraph, table
from .series import number, over_seeds

READINGS = (
    "worst@1", "worst@5", "seen", "seen_per_event", "negative", "negative_per_event", "literal",
    "literal_t_t_minus_1", "events", "missing",
)  # fmt: skip


def section(runs: Runs, comparison: Mapping[str, Any]) -> Section:
    """The table of readings, one row per variant, and two charts of the rounds after a boundary."""
    title = "Forgetting and transfer"
    body = _charts(runs) + _table(runs, comparison) + _forgetting(runs, comparison)
    if not body:
        if runs.runs and not any(run.stream.get("tasks") for run in runs.runs) and any(run.lines for run in runs.runs):
            return Section("transfer", title, "")
        why = "BWT_f needs a stream with tasks and at least two phases, and accuracies of the tasks; not so here."
        if any(run.boundaries and not run.finished for run in runs.runs):
            why = "No phase boundary is passed yet."
        return Section("transfer", title, paragraph(why))
    return Section("transfer", title, body)


def _table(runs: Runs, comparison: Mapping[str, Any]) -> str:
    variants = comparison["variants"]
    shown = [r for r in READINGS if any(f"bwt_f.{r}" in v["numbers"] for v in variants.values())]
    if not any(v["numbers"].get("bwt_f.missing", {}).get("mean") for v in variants.values()):
        shown = [r for r in shown if r != "missing"]
    if runs.single:
        numbers = next(iter(variants.values()))["numbers"]
        rows: list[list[str]] = [
            [NUMBERS[f"bwt_f.{r}"].label, written(f"bwt_f.{r}", numbers[f"bwt_f.{r}"]["mean"], unit=False)]
            for r in shown
        ]
        head = ["Reading", "Points"]
    else:
        rows = [[name, *(_cell(f"bwt_f.{r}", variant["numbers"]) for r in shown)] for name, variant in variants.items()]
        head = ["Variant", *(_short(r) for r in shown)]
    if not shown:
        return ""
    return table("BWT_f in all its readings, in points (events are counts)", head, rows) + note(
        "Negative: the tasks lost accuracy. “Worst” looks at losses alone, “seen” lets gains cancel losses, “literal” "
        "is the published formula, in which a task's first training counts as a gain. See the definitions."
    )


FURTHER = ("forgetting.first", "forgetting.best", "forgetting.tasks", "forgetting.new", "forgetting.missing")


def _forgetting(runs: Runs, comparison: Mapping[str, Any]) -> str:
    """Forgetting and forward transfer, as far as the summaries have them."""
    variants = comparison["variants"]
    transfer = [key for v in variants.values() for key in v["numbers"] if key.partition(".")[0] == "forward_transfer"]
    keys = [key for key in (*FURTHER, *dict.fromkeys(transfer)) if any(key in v["numbers"] for v in variants.values())]
    keys = [
        key
        for key in keys
        if "missing" not in key or any(v["numbers"].get(key, {}).get("mean") for v in variants.values())
    ]
    if not keys:
        return ""
    if runs.single:
        numbers = next(iter(variants.values()))["numbers"]
        rows = [[describe(key).label, written(key, numbers[key]["mean"])] for key in keys if key in numbers]
        head = ["Number", "Value"]
    else:
        rows = [[name, *(_cell(key, v["numbers"]) for key in keys)] for name, v in variants.items()]
        head = ["Variant", *(describe(key).label for key in keys)]
    said = "Forgetting: positive means that accuracy was lost by the end, negative that the task went on improving. "
    said += "Forward transfer: positive means that what was learned of other tasks helped before the task's own start."
    own = any(
        isinstance(found := run.summary.get("forward_transfer"), Mapping) and found.get("own_entries") is True
        for run in runs.runs
    )
    if transfer and own:
        said += " Where every task has an entry of its own, forward transfer is 0 by construction, which is no result."
    unit = "" if runs.single else ", in points (tasks are counts)"
    return table(f"Forgetting and forward transfer{unit}", head, rows) + note(said)


def _cell(key: str, numbers: Mapping[str, Any]) -> str:
    found = numbers.get(key, {})
    return written(key, found.get("mean"), found.get("sd"), unit=False)


def _short(reading: str) -> str:
    return {"literal_t_t_minus_1": "literal, T(T-1)"}.get(reading, reading.replace("_", " "))


def _charts(runs: Runs) -> str:
    mean_traces, worst_traces, legend = [], [], []
    for place, (variant, members) in enumerate(runs.variants.items()):
        events = [found for run in members if (found := events_of(run))]
        if not events:
            continue
        mean = over_seeds(mean_change(found) for found in events)
        worst = over_seeds(worst_change(found) for found in events)
        mean_traces += lines(mean, variant, variant, place, 100, digits="+.1f")
        worst_traces += lines(worst, variant, variant, place, 100, digits="+.1f")
        legend.append(Key(variant, variant, place))
    if not legend:
        return ""
    x = "rounds into the new phase"
    charts = [
        Chart("Mean change of a task since the boundary", figure(mean_traces, "points", x)),
        Chart("Largest loss so far (worst@h)", figure(worst_traces, "points", x, from_zero=True)),
    ]
    return group(charts, [] if runs.single else legend) + note(
        "Mean over the events: tasks that were trained before a boundary and again after it. 0 is the last round "
        "before the boundary. A drop at the boundary shows at 1, a delayed one further to the right."
    )


def events_of(run: Run) -> list[Change]:
    """The events of a run as far as it has come, by the definition of `shoal.metrics.transfer`."""
    sound = [line for line in run.lines if line.get("metric") != "accuracy" or number(line.get("value")) is not None]
    known = history(sound)
    found = changes(known.accuracy, known.boundaries, known.trained, known.tasks, known.rounds)
    return [change for change in found if change.event and change.values and change.values[0] is not None]


def mean_change(events: list[Change]) -> dict[int, float]:
    """Rounds into the new phase -> mean over the events of the change; 0 at the boundary itself."""
    curve = {0: 0.0}
    for h in range(1, HORIZON + 1):
        values = [e.values[h - 1] for e in events if len(e.values) >= h]
        known = [value for value in values if value is not None]
        if known:
            curve[h] = math.fsum(known) / len(known)
    return curve


def worst_change(events: list[Change]) -> dict[int, float]:
    """Rounds into the new phase -> ``worst@h``: mean over the events of ``min(0, min over j <= h of change_j)``."""
    curve = {0: 0.0}
    for h in range(1, HORIZON + 1):
        worst = [min(0.0, *(v for v in e.values[:h] if v is not None)) for e in events]
        curve[h] = math.fsum(worst) / len(worst)
    return curve
