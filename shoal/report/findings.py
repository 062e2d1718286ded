"""The first lines of the report: what is seen in the numbers, and the numbers themselves in one table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .comparison import COLUMNS, rows
from .load import Run, Runs
from .numbers import describe, written
from .parts import Section, bullets, note, table
from .sentences import run_findings
from .series import mean_curve

_ONE = (*COLUMNS, "acc_weighted", "client_steps_per_second", "peak_memory_mb", "trainable_parameters", "model_bytes")


def section(runs: Runs, comparison: Mapping[str, Any]) -> Section:
    """Sentences, then the table of `comparison.rows` (of a single run: its numbers, one below the other)."""
    if runs.single:
        run = runs.runs[0]
        said = _state(run) + (run_findings(run.summary) if run.summary else [])
        body = bullets(said) + _numbers(run.variant, comparison)
        return Section("findings", "What is seen", body)
    said = list(comparison["findings"]) or ["No run has finished yet; the charts show how far they are."]
    found = rows(comparison, full=True)
    head = [heading.capitalize() if heading.islower() else heading for heading in found[0]]
    body = bullets(said) + table(
        "The variants in numbers, mean ± standard deviation over seeds", head, [list(row.values()) for row in found]
    )
    if any(len(v["seeds"]) > 1 for v in comparison["variants"].values()):
        body += note("Accuracy in percent; BWT_f, worst@1 and worst@5 in points. Definitions are at the end.")
    return Section("findings", "What is seen", body)


def _state(run: Run) -> list[str]:
    if run.finished:
        return []
    of = f" of {run.planned}" if run.planned is not None else ""
    said = f"This run is unfinished: {run.done}{of} rounds are done."
    curve = mean_curve(run)
    if curve:
        last = max(curve)
        said += f" Mean accuracy after round {last}: {written('acc', curve[last])}."
    return [said]


def _numbers(variant: str, comparison: Mapping[str, Any]) -> str:
    numbers = comparison["variants"][variant]["numbers"]
    shown = [(describe(key).label, written(key, numbers[key]["mean"])) for key in dict.fromkeys(_ONE) if key in numbers]
    return table("The run in numbers", ["Number", "Value"], shown) if shown else ""
