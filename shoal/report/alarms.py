"""Alarms of clients that notice shifts: a sentence and a chart for the section on shifts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .charts import Chart, Key, figure, group, lines
from .load import Runs
from .numbers import written
from .parts import note
from .series import Spread, curve, over_seeds
from .words import LISTED, counted, number, values_of


def sentences(comparison: Mapping[str, Any]) -> list[str]:
    """What the alarms of each variant were worth: changes noticed, how late, and false alarms; over the seeds.

    Empty where nobody watches, or where the truth is not known.
    """
    known = {name: v["numbers"] for name, v in comparison["variants"].items() if "alarms.changes" in v["numbers"]}
    alone = len(comparison["variants"]) == 1
    parts = [_of(numbers, "" if alone else f"with {name} ") for name, numbers in list(known.items())[:LISTED]]
    if not parts:
        return []
    said = "; ".join(parts)
    more = f" The table has {counted(len(known) - LISTED, 'other')}, too." if len(known) > LISTED else ""
    return [f"{said[0].upper()}{said[1:]}.{more}"]


def _of(numbers: Mapping[str, Any], name: str) -> str:
    changes, detected, waiting, false = (_total(numbers, key) for key in ("changes", "detected", "open", "false"))
    known = changes - waiting
    if not changes:
        found = f"{name}no client changes its cluster"
    elif not known:
        what = "the one change of a cluster" if changes == 1 else f"any of {changes:,} changes of their cluster"
        found = f"{name}it is not known yet whether clients notice {what}, whose five rounds are not over"
    else:
        found = f"{name}clients notice {detected:,} of {known:,} changes of their cluster"
    if detected:
        late = numbers["alarms.mean_delay"]["mean"]
        found += f", {'in the same round' if late < 0.05 else f'{late:.1f} rounds late on average'}"
    if known and waiting:
        found += f" (not known yet of {number(waiting)} more, whose five rounds are not over)"
    if not false:
        return f"{found}, without a false alarm" if known else f"{found}, and there is no false alarm"
    rate = written("alarms.false_rate", numbers.get("alarms.false_rate", {}).get("mean"))
    return f"{found}, with {counted(false, 'false alarm')} ({rate} of the clients' other rounds)"


def _total(numbers: Mapping[str, Any], name: str) -> int:
    return int(sum(values_of(numbers, f"alarms.{name}").values()))


def chart(runs: Runs) -> str:
    """How many clients alarm in each round, beside how many change; of several variants a line each."""
    several = len(runs.variants) > 1
    traces: list[Any] = []
    legend: list[Key] = []
    for place, (variant, members) in enumerate(runs.variants.items()):
        own = [run.metrics.get("alarms", []) for run in members]
        found = over_seeds(curve(some) for some in own)
        if not found.rounds:
            continue
        edges = members[0].boundaries
        name, key = (variant, variant) if several else ("clients that alarm", "alarms")
        traces += lines(found, name, key, place, 1, edges, floor=0.0)
        legend.append(Key(key, name, place))
        true = over_seeds(curve({**line, "value": line.get("changed")} for line in some) for some in own)
        if any(true.mean) and not any(one.group == "changed" for one in legend):
            traces += _ticks(true, len(runs.variants), edges)
            legend.append(Key("changed", "clients that change", len(runs.variants)))
    if not traces:
        return ""
    drawn = figure(traces, "clients", boundaries=runs.boundaries, from_zero=True)
    return group([Chart("Alarms", drawn, wide=True)], legend) + note(
        "Clients whose own loss jumped at the start of the round, and those whose true cluster is another one since "
        "this round. An alarm up to five rounds after a change counts for it."
    )


def _ticks(true: Spread, place: int, edges: Any) -> list[Any]:
    return list(lines(true, "clients that change", "changed", place, 1, edges, dashed="dot", floor=0.0))
