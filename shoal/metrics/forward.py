"""Forward transfer: what earlier tasks give to a task before it is trained for the first time.

Lopez-Paz & Ranzato 2017, "Gradient Episodic Memory" (arXiv:1706.08840): ``FWT = mean over t = 2..T of
a[t-1, t] - b[t]``, with ``b`` the accuracies of the untrained model.

Deviations: "before task t" is the moment before the round in which some client trains it first, so tasks that are
trained in the very first round have no such moment and are left out, whichever they are. ``b`` is measured on the
run's own initial model (one draw, not a mean over several); after a warm-up, on the bank that round 1 starts from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ..streams.base import Target
from .base import Line, Measure, Seen
from .history import history, trained_tasks
from .serving import Group, choose, composer, name_of, servings
from .values import finite, mean

UNTRAINED, BEFORE = "accuracy_untrained", "accuracy_before_training"


class ForwardTransfer(Measure):
    """Accuracies of the bank that a round starts from, on the test rows of tasks that nobody has trained yet.

    ``accuracy_untrained``: in round 1, of every task, by the initial models. ``accuracy_before_training``: of a
    task in the round in which it is trained for the first time, by the model that served it right before; with
    ``unchanged``: whether that is still the initial model. Both with the ``entry`` and the target's labels; null
    where there is no model or no test row. No lines without tasks, or with ``evaluate.every: 0``.
    """

    lines: ClassVar[tuple[str, ...]] = (UNTRAINED, BEFORE)
    from_test_rows: ClassVar[tuple[str, ...]] = ("forward_transfer",)

    def observe(self, seen: Seen, memory: Mapping[str, Any]) -> tuple[list[Line], Mapping[str, Any]]:
        """Memory: ``trained``, the tasks so far; ``start``, what served each target in the beginning."""
        stream, round = self.context.stream, seen.when.round
        if not (stream.tasks and self.context.evaluate.every):
            return [], memory
        before = set(memory.get("trained", []))
        fresh = set(trained_tasks(seen)) - before
        start = dict(memory.get("start", {}))
        lines: list[Line] = []
        if round == 1 or (round > 1 and fresh):
            known = [t for t in stream.targets(round) if isinstance(t.labels.get("task"), int)]
            wanted = known if round == 1 else [t for t in known if t.labels["task"] in fresh]
            for target, group, accuracy in self._measured(seen, wanted):
                name, about = name_of(target), {"rows": len(target.test), **target.labels}
                serves = None if group is None else [list(group.keys), list(group.versions)]
                entry = None if group is None else group.entry
                if round == 1:
                    start[name] = serves
                    lines.append({"metric": UNTRAINED, "value": accuracy, "entry": entry, **about})
                else:
                    same = serves is not None and start.get(name) == serves
                    lines.append({"metric": BEFORE, "value": accuracy, "entry": entry, "unchanged": same, **about})
        return lines, {"trained": sorted(before | fresh), "start": start}

    def _measured(self, seen: Seen, targets: Sequence[Target]) -> list[tuple[Target, Group | None, float | None]]:
        """Each target with the group that serves it in the bank before the round, and that group's accuracy."""
        found = servings(self.context, seen, targets, before=True)
        choose(self.context, seen, [serving for serving in found if len(serving.target.test)], before=True)
        model = composer(self.context.method, seen.before)
        groups = [(serving.target, serving.chosen) for serving in found]
        pairs = [([model(group)], target.test) for target, group in groups if group is not None and len(target.test)]
        scores = iter(seen.score(pairs) if pairs else [])
        return [
            (
                target,
                group,
                None if group is None or not len(target.test) else finite(next(scores)[0].accuracy),
            )
            for target, group in groups
        ]

    @staticmethod
    def summarise(lines: Sequence[Line]) -> dict[str, Any]:
        """``forward_transfer``, in fractions of 1. Nothing if no task's untrained accuracy was measured.

        - ``mean``: over tasks, accuracy right before the first training minus the untrained one;
        - ``tasks``: how many tasks are in the mean; ``excluded``: how many were trained in the very first round
          (or the warm-up); ``missing``: how many were trained later, but lack one of the two accuracies;
        - ``own_entries``: true where every task was still served by its initial model, so that the mean is 0 by
          construction (an entry per task) and no result.
        """
        values: dict[str, dict[int, list[float | None]]] = {UNTRAINED: {}, BEFORE: {}}
        unchanged = []
        for line in lines:
            if line.get("metric") in values:
                values[line["metric"]].setdefault(line["task"], []).append(line["value"])
                unchanged += [line["unchanged"]] if line["metric"] == BEFORE else []
        if not values[UNTRAINED]:
            return {}
        changes = []
        for task, found in values[BEFORE].items():
            old, new = mean(values[UNTRAINED].get(task, [])), mean(found)
            changes.append(None if old is None or new is None else new - old)
        known = [change for change in changes if change is not None]
        return {
            "forward_transfer": {
                "mean": mean(known),
                "tasks": len(known),
                "excluded": sum(1 for rounds in history(lines).trained.values() if min(rounds) <= 1),
                "missing": len(changes) - len(known),
                "own_entries": bool(unchanged) and all(unchanged),
            }
        }
