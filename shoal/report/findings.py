"""What is seen in the numbers: two sentences that open the page, further findings, and the numbers in one table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .comparison import COLUMNS, rows
from .lead import lead_metric
from .load import Run, Runs
from .numbers import describe, metric, written
from .parts import Section, bullets, note, paragraph, table
from .sentences import run_findings
from .series import mean_curve

_ONE = (
    "acc",
    "loss",
    *COLUMNS,
    "acc_weighted",
    "updates",
    "client_steps_per_second",
    "peak_memory_mb",
    "trainable_parameters",
    "model_bytes",
)


def lead(runs: Runs, comparison: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The two sentences that a report opens with, and what else is seen."""
    said = list(comparison["findings"])
    if runs.single:
        run = runs.runs[0]
        said = run_findings(run.summary or {"rounds": None}, {**comparison["about"], "names": run.names}, _state(run))
        if not run.summary:
            said = said[:2]
    return said[:2], said[2:]


def section(runs: Runs, comparison: Mapping[str, Any]) -> Section:
    """What is seen beside the first two sentences, then the table of `comparison.rows` (of one run: its numbers)."""
    _, more = lead(runs, comparison)
    body = bullets(more) if more else ""
    if runs.single:
        numbers = _numbers(runs.runs[0].variant, comparison)
        nothing = paragraph("No number is final yet; the charts show how far the run has come.")
        return Section("findings", "More findings" if more else "In numbers", body + numbers or nothing)
    found = rows(comparison, full=True)
    head = [heading.capitalize() if heading.islower() else heading for heading in found[0]]
    body += table(
        "The variants in numbers, mean ± standard deviation over seeds", head, [list(row.values()) for row in found]
    )
    bwt = any("bwt_f.seen" in v["numbers"] for v in comparison["variants"].values())
    if bwt and any(len(v["seeds"]) > 1 for v in comparison["variants"].values()):
        body += note("Accuracy in percent; BWT_f, worst@1 and worst@5 in points. Definitions are at the end.")
    return Section("findings", "More findings" if more else "In numbers", body)


def _state(run: Run) -> str | None:
    """How far an unfinished run has come."""
    if run.finished:
        return None
    of = f" of {run.planned}" if run.planned is not None else ""
    said = f"{run.done}{of} rounds are done"
    shown = lead_metric([run])
    curve = mean_curve(run, shown)
    if curve:
        last = max(curve)
        key = "acc" if shown == "accuracy" else "loss"
        said += f", and the mean {metric(shown).label.lower()} after round {last} is {written(key, curve[last])}"
    return said


def _numbers(variant: str, comparison: Mapping[str, Any]) -> str:
    numbers = comparison["variants"][variant]["numbers"]
    further = [key for key in numbers if key.startswith("over_targets.") and key.endswith(".mean")]
    keys = dict.fromkeys(_ONE if "acc" in numbers else ("loss", *_ONE))
    own = ("over_targets.accuracy.mean", "over_targets.loss.mean")
    keys = dict.fromkeys((*list(keys)[:3], *(key for key in further if key not in own), *keys))
    shown = [(describe(key).label, written(key, numbers[key]["mean"])) for key in keys if key in numbers]
    return table("The run in numbers", ["Number", "Value"], shown) if shown else ""
