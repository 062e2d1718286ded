"""What the runs cost: bytes, time, steps, memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .charts import Chart, Key, figure, group, lines
from .load import Run, Runs
from .numbers import describe, written
from .parts import Section, note, paragraph, table
from .series import number, over_seeds

KEYS = (
    "bytes_down_per_round", "bytes_up_per_round", "total_bytes_down", "total_bytes_up", "seconds",
    "evaluation_seconds", "client_steps", "client_steps_per_second", "peak_memory_mb", "trainable_parameters",
    "model_bytes",
)  # fmt: skip


def section(runs: Runs, comparison: Mapping[str, Any]) -> Section:
    """A table of the costs, and the seconds of every round."""
    body = _table(runs, comparison) + _seconds(runs)
    return Section("cost", "Cost", body or paragraph("No costs are recorded (yet)."))


def _table(runs: Runs, comparison: Mapping[str, Any]) -> str:
    variants = comparison["variants"]
    shown = [key for key in KEYS if any(key in v["numbers"] for v in variants.values())]
    if not shown:
        return ""
    rows = [[describe(key).label, *(_cell(key, variant["numbers"]) for variant in variants.values())] for key in shown]
    engines = sorted({str(run.summary["engine"]) for run in runs.runs if run.summary.get("engine")})
    said = f"Engine: {', '.join(engines)}. " if engines else ""
    return table("What the run cost" if runs.single else "Costs, mean ± standard deviation over seeds",
                 ["Number", *(["Value"] if runs.single else variants)], rows) + note(
        said + "Seconds depend on the machine and on what else it did; bytes and steps do not."
    )  # fmt: skip


def _cell(key: str, numbers: Mapping[str, Any]) -> str:
    found = numbers.get(key, {})
    return written(key, found.get("mean"), found.get("sd") or None)


def _seconds(runs: Runs) -> str:
    traces, legend = [], []
    for place, (variant, members) in enumerate(runs.variants.items()):
        spread = over_seeds(_curve(run) for run in members)
        if spread.rounds:
            traces += lines(spread, variant, variant, place, 1, digits=".3g", floor=0)
            legend.append(Key(variant, variant, place))
    if not traces:
        return ""
    chart = figure(traces, "seconds", from_zero=True, height=240)
    return group([Chart("Seconds per round, measuring included", chart, wide=True)], [] if len(legend) == 1 else legend)


def _curve(run: Run) -> dict[int, float]:
    """Round -> seconds; of a round that was done twice, before and after a resume, the last time counts."""
    found = {}
    for line in run.timings:
        round, seconds = line.get("round"), number(line.get("seconds"))
        if isinstance(round, int) and round > 0 and seconds is not None:
            found[round] = seconds
    return found
