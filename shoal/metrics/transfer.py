"""BWT_f: what a new phase does to the tasks that were trained before it.

Definition: "Addressing Client Drift in Federated Continual Learning with Adaptive Optimization" (arXiv
2203.13321), ``BWT_f = 1/T^2 sum_t sum_p (A[t, pQ] - A[t, pQ-1])`` with rounds from 0: the first round of a
new phase minus the last round of the old one. Here rounds count from 1 and phases may have any length: phase
``p`` (from 0) ends with round ``boundaries[p]``, and the paper's ``p = T`` (behind the last round) does not
exist.

For a task and a boundary ``b``, ``change_h = A[t, b + h] - A[t, b]``. If the task was not trained in round
``b + 1`` but later in the same phase, first in round ``s``, then ``change_h = A[t, s + h - 1] - A[t, b]``.
The pair is an *event* if the task was trained both in some round up to ``b`` and in the phase after ``b``.

Deviations from the paper, whose sum has three weaknesses. It counts the rise of a task that is trained for
the first time (``seen`` counts events alone). Rises cancel drops (``negative`` counts drops alone). It looks
at one round, while a server with momentum drops later (``worst@5`` looks at five, as far as the run goes,
even into the next phase).

All values have the unit of the accuracies that they are made of. In a run's lines and its summary these are
fractions (0 to 1): multiply by 100 for the paper's points.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from ..streams.base import phase_of
from .base import Line, Measure
from .history import Table, history
from .values import finite, mean

HORIZON = 5
"""How many rounds of a task in a new phase are looked at."""

Firsts = Mapping[int, Mapping[int, int]]
"""Phase (from 0) -> task -> the first round of that phase in which the task was trained."""


class Change(NamedTuple):
    """What happened to one task at one boundary."""

    task: int
    boundary: int
    """The last round before the new phase."""
    start: int
    """The round that ``change_1`` looks at."""
    event: bool
    """Whether the task was trained before the boundary and again in the phase after it."""
    values: tuple[float | None, ...]
    """``change_1`` to ``change_5``; shorter where the run ends, ``None`` where a cell is missing."""


def first_trained(trained: Mapping[int, Collection[int]], boundaries: Sequence[int]) -> dict[int, dict[int, int]]:
    """From the rounds in which each task was trained to the first one in each phase."""
    firsts: dict[int, dict[int, int]] = {}
    for task, rounds in trained.items():
        for round in sorted(rounds):
            firsts.setdefault(phase_of(round, boundaries), {}).setdefault(task, round)
    return firsts


def needed(round: int, boundaries: Sequence[int], firsts: Firsts) -> bool:
    """Whether BWT_f needs the accuracies after this round, given what was trained up to and in it.

    These are every boundary, the five rounds after it, and for a task that is first trained later in a phase
    the five rounds from there on (one, if it was never trained before: only ``literal`` looks at it).
    """
    before: set[int] = set(firsts.get(0, ()))
    for phase, last in enumerate(boundaries, start=1):
        if last <= round <= last + HORIZON:
            return True
        again = firsts.get(phase, {})
        for task, start in again.items():
            length = HORIZON if task in before else 1
            if start > last + 1 and start <= round < start + length:
                return True
        before.update(again)
    return False


def changes(
    accuracy: Table,
    boundaries: Sequence[int],
    trained: Mapping[int, Collection[int]],
    tasks: int,
    rounds: int,
) -> list[Change]:
    """The changes of every task at every boundary that the run has passed; ``rounds`` is how far it went."""
    firsts = first_trained(trained, boundaries)
    found = []
    before: set[int] = set(firsts.get(0, ()))
    for phase, last in enumerate(boundaries, start=1):
        if last + 1 > rounds:
            break
        again = firsts.get(phase, {})
        for task in range(tasks):
            cells = accuracy.get(task, {})
            old = finite(cells.get(last))
            start = again.get(task, last + 1)
            new = [finite(cells.get(r)) for r in range(start, min(start + HORIZON, rounds + 1))]
            # Python floats: a matrix of unsigned integers would wrap around, one of integers truncate.
            values = tuple(None if old is None or value is None else value - old for value in new)
            found.append(Change(task, last, start, task in before and task in again, values))
        before.update(again)
    return found


def backward_transfer(
    accuracy: Table,
    boundaries: Sequence[int],
    trained: Mapping[int, Collection[int]],
    tasks: int,
    rounds: int,
) -> dict[str, float | int | None]:
    """All numbers of BWT_f.

    ``accuracy`` is task -> round -> value, ``trained`` task -> rounds in which it was trained (an accepted
    update), ``tasks`` is T, ``rounds`` the last round of the run so far. T is the number of tasks; there may
    be more or fewer phases than tasks.

    - ``literal``: sum of ``change_1`` over all tasks and boundaries, by T^2; ``literal_t_t_minus_1``: by
      T(T-1), ``None`` for T = 1. A task that the new phase does not train counts with its change in the round
      after the boundary (0, unless tasks share parameters).
    - ``seen``: sum over events, by T^2; ``seen_per_event``: by the number of events.
    - ``negative``, ``negative_per_event``: the negative terms of that sum alone; the latter is ``worst@1``.
    - ``worst@h``: mean over events of ``min(0, min over j <= h of change_j)``.
    - ``events``: how many events there are. ``missing``: how many pairs of task and boundary could not be
      counted because ``A[t, b]`` or the accuracy behind ``change_1`` is missing.

    A pair with a missing cell is left out of every sum and mean; of ``change_2`` to ``change_5`` those that
    are missing are skipped. Without any event ``seen`` and ``negative`` are 0 and means over events ``None``;
    a sum is ``None`` if there was something to add and every cell of it is missing. Raises ``ValueError``
    without tasks.
    """
    if tasks < 1:
        raise ValueError(f"BWT_f is a mean over tasks and needs at least one; got tasks={tasks}")
    found = changes(accuracy, boundaries, trained, tasks, rounds)
    known = [(change, change.values[0]) for change in found if change.values[0] is not None]
    events = sum(1 for change in found if change.event)
    steps = [value for change, value in known if change.event]
    drops = [min(0.0, value) for value in steps]
    worst = [min(0.0, *(v for v in change.values if v is not None)) for change, _ in known if change.event]
    literal = None if found and not known else math.fsum(value for _, value in known)
    unseen = events > 0 and not steps
    square, ordered = tasks * tasks, tasks * (tasks - 1)
    return {
        "literal": None if literal is None else literal / square,
        "literal_t_t_minus_1": None if literal is None or not ordered else literal / ordered,
        "seen": None if unseen else math.fsum(steps) / square,
        "seen_per_event": mean(steps),
        "negative": None if unseen else math.fsum(drops) / square,
        "negative_per_event": mean(drops),
        "worst@1": mean(drops),
        "worst@5": mean(worst),
        "events": events,
        "missing": len(found) - len(known),
    }


class BackwardTransfer(Measure):
    """BWT_f of the run, from its accuracies per task; the module says how. Adds no lines of its own."""

    from_test_rows: ClassVar[tuple[str, ...]] = ("bwt_f",)

    @staticmethod
    def summarise(lines: Sequence[Line]) -> dict[str, Any]:
        """``bwt_f``, a mapping with the numbers of `backward_transfer`, in fractions of 1.

        Nothing if the stream has no tasks or no second phase, or no task's accuracy was measured. Where a
        task has several accuracies in a round (one per client, say), their plain mean is used.
        """
        run = history(lines)
        if not (run.boundaries and run.tasks and run.accuracy):
            return {}
        return {"bwt_f": backward_transfer(run.accuracy, run.boundaries, run.trained, run.tasks, run.rounds)}
