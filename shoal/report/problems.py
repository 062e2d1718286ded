"""What went wrong: clients that were rejected, failed, came too late or were skipped, by name and with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .clients import called
from .load import Run, Runs
from .parts import Section, bullets, folded, note, paragraph, table

COUNTS = {"rejected": "Rejected", "failed": "Failed", "stragglers": "Stragglers", "skipped": "Skipped"}
"""The counts of a round's record."""
KINDS = {
    "rejected": "rejected",
    "failed": "failed",
    "straggler": "straggler",
    "skipped": "skipped",
    "warning": "warning",
    "unchanged": "round changed nothing",
    "diverged": "merge not finite",
    "metric_failed": "metric failed",
}
NAMED = 12
"""How many clients a sentence names."""
LISTED = 200
"""How many events are listed one by one."""


def section(runs: Runs, comparison: Mapping[str, Any]) -> Section:
    """Counts by run, then the events one by one."""
    body = _faults(runs) + _counts(runs) + _by_name(runs) + _listed(runs)
    if not body:
        body = paragraph("Nothing: no client was rejected, failed, came too late or was skipped.")
    return Section("problems", "What went wrong", body)


def _faults(runs: Runs) -> str:
    faults = [f"{_name(runs, run)}: {fault}" for run in runs.runs for fault in run.faults]
    faults += [f"{name} is in the configuration and was not started." for name in runs.missing]
    for run in runs.runs:
        if not run.finished:
            of = f" of {run.planned}" if run.planned is not None else ""
            faults.append(f"{_name(runs, run)} is unfinished: {run.done}{of} rounds are done.")
    return bullets(faults) if faults else ""


def _counts(runs: Runs) -> str:
    rows = []
    for members in runs.variants.values():
        for run in members:
            records = run.records.get("round", [])
            counts = [sum(int(record.get(kind) or 0) for record in records) for kind in COUNTS]
            warnings = len(run.records.get("warning", []))
            if any(counts) or warnings:
                rows.append([_name(runs, run), *map(str, (*counts, warnings))])
    if not rows:
        return ""
    return table("How often, over all rounds", ["Run", *COUNTS.values(), "Warnings"], rows) + note(
        "Rejected: the update was not finite, or of a wrong size or weight. Failed: the client's program raised. "
        "Straggler: trained, but its update came too late. Skipped: it held no training rows. The round went on "
        "with the others."
    )


def _by_name(runs: Runs) -> str:
    """The clients that were rejected or failed, by name, with how often: what to look at first."""
    said = []
    for members in runs.variants.values():
        for run in members:
            for record in ("rejected", "failed"):
                times: dict[str, int] = {}
                for line in run.records.get(record, []):
                    who = _who(run, line)
                    times[who] = times.get(who, 0) + 1
                if times:
                    order = sorted(times.items(), key=lambda item: -item[1])
                    named = [f"{who}" + (f" ({count} times)" if count > 1 else "") for who, count in order[:NAMED]]
                    more = f" and {len(order) - NAMED} others" if len(order) > NAMED else ""
                    whose = "" if runs.single else f"{_name(runs, run)}: "
                    said.append(f"{whose}{KINDS[record]}: {', '.join(named)}{more}.")
    return bullets(said[:LISTED]) if said else ""


def _listed(runs: Runs) -> str:
    rows = []
    for members in runs.variants.values():
        for run in members:
            rows += [
                [
                    _name(runs, run),
                    str(line.get("round", "")),
                    ": ".join(filter(None, (_who(run, line), words))),
                    _reason(line),
                ]
                for line in run.lines
                if (words := KINDS.get(str(line.get("record"))))
            ]
    if not rows:
        return ""
    caption = "One by one" if len(rows) <= LISTED else f"One by one: the first {LISTED} of {len(rows)}"
    head = ["Run", "Round", "What", "Reason"]
    if runs.single:  # the name of the only run would be the same in every row, and take the room of the reason
        head, rows = head[1:], [row[1:] for row in rows]
    text_columns = tuple(place for place, name in enumerate(head) if name != "Round" or place == 0)
    found = table(caption, head, rows[:LISTED], text_columns)
    return found if len(rows) <= 10 else folded(f"The {len(rows)} events one by one", found)


def _who(run: Run, line: Mapping[str, Any]) -> str:
    if isinstance(line.get("client"), int):
        return called(run, line["client"])
    return f"client {line['client']}" if "client" in line else ""


def _reason(line: Mapping[str, Any]) -> str:
    if line.get("record") == "metric_failed":
        return f"{line.get('kind')}, on {line.get('targets', 1)} targets: {line.get('reason')}"
    if "reason" in line:
        return str(line["reason"])
    if line.get("record") == "unchanged":
        return f"{line.get('updates', 0)} updates accepted, {line.get('needed', 1)} needed"
    return ""


def _name(runs: Runs, run: Run) -> str:
    return run.variant if runs.single else f"{run.variant}, seed {run.seed}"
