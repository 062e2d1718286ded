"""Accuracies per task over the rounds of a run, and when each task was trained."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from .base import Seen
from .values import mean

Table = Mapping[int, Mapping[int, float | None]]
"""Accuracies: task -> round -> value; a cell may be ``None`` or missing."""


class History(NamedTuple):
    """What the lines of a run say about its tasks."""

    accuracy: Table
    """Where a task has several accuracies in a round (one per client, say), their plain mean."""
    boundaries: tuple[int, ...]
    """The last round of every phase but the last one."""
    trained: Mapping[int, Collection[int]]
    """Task -> the rounds in which it was trained: an update of it was accepted."""
    tasks: int
    rounds: int
    """The last round that was played."""


def history(lines: Sequence[Mapping[str, Any]]) -> History:
    """Reads it from the lines of ``metrics.jsonl``."""
    stream = next((line for line in lines if line.get("record") == "stream"), {})
    cells: dict[int, dict[int, list[float | None]]] = {}
    trained: dict[int, set[int]] = {}
    rounds = 0
    for line in lines:
        if line.get("metric") == "accuracy" and isinstance(line.get("task"), int):
            cells.setdefault(line["task"], {}).setdefault(line["round"], []).append(line["value"])
        elif line.get("record") == "round":
            rounds = max(rounds, line["round"])
            for task, clients in line.get("trained_tasks", {}).items():
                if clients:
                    trained.setdefault(int(task), set()).add(line["round"])
    table = {task: {round: mean(values) for round, values in row.items()} for task, row in cells.items()}
    return History(table, tuple(stream.get("boundaries") or ()), trained, int(stream.get("tasks") or 0), rounds)


def trained_tasks(seen: Seen) -> list[int]:
    """The tasks of which an update was accepted in this round, in order."""
    found = set()
    for client in {client for clients in seen.trained.values() for client in clients}:
        holding = seen.holdings[client]
        task = holding.truth.get("task") if holding.task is None else holding.task
        if isinstance(task, int):
            found.add(task)
    return sorted(found)
