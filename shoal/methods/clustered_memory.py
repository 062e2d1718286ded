"""What Concept Matching remembers of clients that know their task, and of true concepts where it is told them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..bank import Key, Value
from ..messages import Participant

TASKS, TRUTHS = "matching-tasks", "matching-truths"
"""Names in ``Bank.memory``: what is known of each task, and the true labels in the order of their first appearance."""


def remembered_task(seat: Participant) -> str:
    """The client's task as a name; ``ValueError`` where the stream does not tell it."""
    if seat.task is None:
        raise ValueError(
            f"client_matching: remembered needs clients that know their task, and client {seat.id} does not know its; "
            f"use client_matching: loss"
        )
    return str(seat.task)


def learnt(
    known: Mapping[str, Mapping[str, Any]], tasks: Sequence[str], homes: Sequence[Key | None], learn: int
) -> dict[str, Any]:
    """What is known of each task after a round in which clients of these tasks updated these entries (``None``: none).

    Of each task: ``last``, the entry that most of its clients updated in the last round in which any did (the first of
    equal ones), ``rounds``, in how many such rounds in a row, and ``entry``, the one that was the last for ``learn``
    rounds in a row. A task that moves to another entry is learnt anew in the same way.
    """
    found = {task: dict(about) for task, about in known.items()}
    for task in sorted(set(tasks)):
        votes = Counter(home for of, home in zip(tasks, homes, strict=True) if of == task and home is not None)
        if not votes:
            continue
        most = min(votes, key=lambda key: (-votes[key], key))
        about = found.get(task, {"last": None, "rounds": 0, "entry": None})
        rounds = about["rounds"] + 1 if most == about["last"] else 1
        found[task] = {"last": most, "rounds": rounds, "entry": most if rounds >= learn else about["entry"]}
    return found


def placed(memory: Mapping[str, Value], labels: Iterable[Any]) -> dict[str, int]:
    """The place of every true label seen so far and of these: in the order of appearance, new ones sorted.

    Numbers are sorted by size, also where they are written out, and come before names.
    """
    seen = memory.get(TRUTHS, [])
    assert isinstance(seen, list)
    new = sorted({str(label) for label in labels} - set(seen), key=_size)
    return {str(label): place for place, label in enumerate([*seen, *new])}


def _size(label: str) -> tuple[bool, int, str]:
    """Sorts numbers by size and names behind them."""
    number = label.removeprefix("-").isdecimal()
    return not number, int(label) if number else 0, label
