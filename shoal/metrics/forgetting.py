"""Forgetting: how far the final accuracy of a task lies below what it once was.

``best``: Chaudhry et al. 2018, "Riemannian Walk for Incremental Learning" (arXiv:1801.10112), equation 3:
``f_j = max over l < k of a[l, j], minus a[k, j]``, as the mean over the tasks before the last one. ``first``: the
negative of the backward transfer of Lopez-Paz & Ranzato 2017, "Gradient Episodic Memory" (arXiv:1706.08840):
``a[j, j] - a[T, j]``.

Deviations, because rounds are finer than tasks and tasks may come at several clients at different times. A task
belongs to the phase in which some client trained it first; ``a[j, j]`` is its accuracy after the last round of
that phase. ``best`` looks at every round that was measured from the first training on, not only at ends of
phases, and so depends a little on ``evaluate.every``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from ..streams.base import phase_of
from .base import Line, Measure
from .history import Table, history
from .values import finite, mean


def forgetting(
    accuracy: Table, boundaries: Sequence[int], trained: Mapping[int, Collection[int]]
) -> dict[str, float | int | None]:
    """Both kinds of forgetting, in the unit of the accuracies; positive is worse.

    ``accuracy`` is task -> round -> value, ``trained`` task -> rounds in which it was trained. The final accuracy
    is that after the last round that was measured.

    - ``first``: the accuracy at the end of the phase of the first training minus the final one, mean over tasks.
      Negative where later phases improved the task;
    - ``best``: the largest accuracy in any measured round from the first training on and before the last one,
      minus the final one, mean over tasks. Never below ``first``; negative where a task ends with its best;
    - ``tasks``: how many tasks these means are about: first trained before the last phase. ``new``: how many were
      first trained in the last phase, so that nothing came after them. ``missing``: how many of ``tasks`` are
      left out of both means because the accuracy at the end of the phase, or the final one, is missing.

    ``None`` where there is no such task.
    """
    final = max((round for cells in accuracy.values() for round in cells), default=0)
    first: list[float] = []
    best: list[float] = []
    tasks = new = 0
    for task, rounds in trained.items():
        begun = min(rounds, default=final + 1)
        if begun > final:
            continue
        phase = phase_of(begun, boundaries)
        if phase == phase_of(final, boundaries):
            new += 1
            continue
        tasks += 1
        cells = accuracy.get(task, {})
        # As Python floats: differences of unsigned integers would wrap around.
        end, now = finite(cells.get(boundaries[phase])), finite(cells.get(final))
        if end is None or now is None:
            continue
        earlier = [value for r, cell in cells.items() if begun <= r < final and (value := finite(cell)) is not None]
        first.append(end - now)
        best.append(max(earlier) - now)
    return {"first": mean(first), "best": mean(best), "tasks": tasks, "new": new, "missing": tasks - len(first)}


class Forgetting(Measure):
    """Forgetting of the run, from its accuracies per task; the module says how. Adds no lines of its own."""

    from_test_rows: ClassVar[tuple[str, ...]] = ("forgetting",)

    @staticmethod
    def summarise(lines: Sequence[Line]) -> dict[str, Any]:
        """``forgetting``, a mapping with the numbers of `forgetting`, in fractions of 1.

        Nothing if the stream has no tasks or no second phase, or no task's accuracy was measured.
        """
        run = history(lines)
        if not (run.boundaries and run.tasks and run.accuracy):
            return {}
        return {"forgetting": forgetting(run.accuracy, run.boundaries, run.trained)}
