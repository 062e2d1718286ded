"""What is stored and what is sent, variant by variant: table 4 of "Addressing Client Drift in Federated Continual
Learning with Adaptive Optimization" (arXiv 2203.13321), from measured numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .lead import lead_key
from .load import Runs
from .numbers import describe, written
from .parts import Section, note, table

BWT = "bwt_f.seen"
_HEADINGS = {"acc": "Accuracy %"}
Column = tuple[str, Callable[[str, Mapping[str, Any]], str]]
"""A heading, and the cell of a variant by its name and its numbers."""


def section(runs: Runs, comparison: Mapping[str, Any]) -> Section:
    """One row for each variant whose size was measured; empty without any."""
    variants = {name: v["numbers"] for name, v in comparison["variants"].items() if "bank_bytes" in v["numbers"]}
    if not variants:
        return Section("sizes", "Size and communication", "")
    lead = lead_key((run.stream.get("learns") for run in runs.runs), {key for one in variants.values() for key in one})
    tasks = {name: _tasks(runs, name) for name in variants}
    teachers = any(_mean(one, "teacher_bytes") for one in variants.values())
    columns = [_number(lead, _HEADINGS.get(lead, describe(lead).label), unit=lead not in _HEADINGS)]
    if any(BWT in one for one in variants.values()):
        columns.append(_number(BWT, "BWT_f seen", unit=False))
    columns.append(_number("constant_bytes", "Constants"))
    if teachers:
        columns.append(_number("teacher_bytes", "Teachers"))
    columns.append(_number("bank_entries", "Entries"))
    if not all(tasks.values()):
        columns.append(("An entry", lambda name, one: _share(one, _mean(one, "bank_entries"))))
    if any(tasks.values()):
        columns.append(("Tasks", lambda name, one: f"{tasks[name]:,}" if tasks[name] else "-"))
        columns.append(("Per task", lambda name, one: _share(one, tasks[name])))
    columns.append(("In all", _whole))
    held = any("client_bytes" in one for one in variants.values())
    if held:
        columns.append(_number("client_bytes", "At a client"))
    columns += [_number("bytes_up_per_round", "Up"), _number("bytes_down_per_round", "Down")]
    rows = [[name, *(cell(name, one) for _, cell in columns)] for name, one in variants.items()]
    body = table("What is stored, and what is sent", ["Variant", *(heading for heading, _ in columns)], rows)
    return Section("sizes", "Size and communication", body + note(_explain(teachers, held, runs.single)))


def _explain(teachers: bool, held: bool, single: bool) -> str:
    said = (
        "Measured numbers" + ("" if single else ", means over the seeds") + ". Constants are what is frozen, such as "
    )
    said += "a backbone: every client needs it once, and no round sends it. Entries are the models of the bank at the "
    said += "end of the run, with all that travels with them. In all is the sum of both"
    said += ", and of the teachers, which clients need for training" if teachers else ""
    if held:
        said += (
            ". At a client: the entries that a participant had in the last round, sent to it or its own already, where "
        )
        said += "in all counts those of all clients"
    return said + ". Up and down: what a participating client sends and receives in a round, as really encoded."


def _number(key: str, heading: str, unit: bool = True) -> Column:
    def cell(name: str, numbers: Mapping[str, Any]) -> str:
        found = numbers.get(key, {})
        return written(key, found.get("mean"), found.get("sd") or None, unit)

    return heading, cell


def _whole(name: str, numbers: Mapping[str, Any]) -> str:
    parts = ("constant_bytes", "teacher_bytes", "bank_bytes")
    return written("bank_bytes", sum(_mean(numbers, key) for key in parts))


def _share(numbers: Mapping[str, Any], parts: float) -> str:
    return written("bank_bytes", _mean(numbers, "bank_bytes") / parts) if parts else "-"


def _mean(numbers: Mapping[str, Any], key: str) -> float:
    return float(numbers.get(key, {}).get("mean") or 0.0)


def _tasks(runs: Runs, variant: str) -> int:
    found = {int(run.stream.get("tasks") or 0) for run in runs.variants[variant]}
    return found.pop() if len(found) == 1 else 0
