"""Accuracy, loss and further metrics of the bank on the test rows of every target: task, concept, client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ..streams.base import phase_of
from .base import Line, Measure, Seen
from .functions import Failed, lower_is_better, name_of
from .history import trained_tasks
from .rounds import TAIL, due
from .serving import Group, Serving, choose, composer, servings
from .spread import spread
from .transfer import needed
from .values import finite, mean

REASONS = 5
"""How many different reasons for a metric's failure are recorded."""

_OWN = ("round", "metric", "value", "rows", "entry")


class Accuracy(Measure):
    """Accuracy and loss of every target's model on the target's test rows, after the rounds that are due.

    A target's model is composed of the group of keys, among ``method.candidates``, with the lowest mean loss
    on the target's validation rows; its keys are logged as ``entry``. The choice never looks at test rows.

    Lines: ``accuracy`` (share of right rows, 0 to 1) and ``loss`` per target, with its labels, and one line more
    for each of ``evaluate.metrics``, called by its name;
    ``mean_accuracy`` over the targets, once plain (``weighting: targets``) and once by test rows
    (``weighting: rows``). A value is null where the target has no test rows or no entry yet, or the number is
    not finite; such targets are left out of the means, which say over how many ``targets`` they run.

    A metric that fails, or outputs that hold NaN, never end a run: the value is null, and a record
    ``metric_failed`` gives the ``reason``, once, with the labels of the first target and the number of ``targets``
    in that round.

    What did not change is not measured again: the memory keeps, for the targets of the last round that was
    due, what each group gave at the versions of its entries. ``compose`` must therefore depend on these
    alone.
    """

    lines: ClassVar[tuple[str, ...]] = ("accuracy", "loss", "mean_accuracy")
    from_test_rows: ClassVar[tuple[str, ...]] = (
        "acc",
        "acc_weighted",
        "acc_last5",
        "loss",
        "accuracy_by_target",
        "over_targets",
    )

    def due(self, round: int, memory: Mapping[str, Any]) -> bool:
        """Whether the bank is measured after this round; ``memory`` already knows what was trained in it.

        Every ``evaluate.every``-th round, the last five, every boundary and the five rounds after it, and on a stream
        with tasks the others that BWT_f needs. Never with ``every: 0``, and never the warm-up.
        """
        every, stream = self.context.evaluate.every, self.context.stream
        if due(round, every, self.context.world.rounds, stream.boundaries):
            return True
        if not every or round < 1:
            return False
        firsts = {
            int(phase): {int(task): first for task, first in tasks.items()}
            for phase, tasks in memory.get("first", {}).items()
        }
        return bool(stream.tasks) and needed(round, stream.boundaries, firsts)

    def observe(self, seen: Seen, memory: Mapping[str, Any]) -> tuple[list[Line], Mapping[str, Any]]:
        """The lines of a round that is due.

        Memory: ``first`` (phase -> task -> round), ``targets``, and ``failed`` (metric -> reasons).
        """
        if not self.context.evaluate.every:
            return [], memory
        memory = {**memory, "first": self._first_trained(seen, memory.get("first", {}))}
        round = seen.when.round
        if not self.due(round, memory):
            return [], memory
        targets = self.context.stream.targets(round)
        found = servings(self.context, seen, targets, memory=memory.get("targets", {}))
        tested = [serving for serving in found if len(serving.target.test)]
        choose(self.context, seen, tested)
        failures = self._score(seen, tested)
        records, failed = _records(failures, memory.get("failed", {}))
        after = {**memory, "targets": {serving.name: serving.saved() for serving in found}}
        if failed:
            after["failed"] = failed
        return records + self._lines(found), after

    def _first_trained(self, seen: Seen, old: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
        first = {phase: dict(tasks) for phase, tasks in old.items()}
        if not (self.context.stream.tasks and self.context.stream.boundaries):
            return first
        phase = str(phase_of(seen.when.round, self.context.stream.boundaries))
        for task in trained_tasks(seen):
            first.setdefault(phase, {}).setdefault(str(task), seen.when.round)
        return first

    def _score(self, seen: Seen, tested: Sequence[Serving]) -> list[tuple[str, str, Line]]:
        """Measures what is not known yet, in one call. Gives failures: the metric, the reason, about whom."""
        pending: list[tuple[Serving, Group]] = []
        for serving in tested:
            if serving.chosen is not None and not serving.chosen.test:
                pending.append((serving, serving.chosen))
        if not pending:
            return []
        model = composer(self.context.method, seen.after)
        kinds = tuple(self.context.evaluate.metrics)
        failures = []
        # Where one model serves many clients on the same rows, it is measured once.
        asked = [(group.entry, serving.target.test.data_ptr(), len(serving.target.test)) for serving, group in pending]
        once = {key: (group, serving.target.test) for key, (serving, group) in zip(asked, pending, strict=True)}
        answers = seen.score([([model(group)], rows) for group, rows in once.values()], kinds)
        scores = dict(zip(once, answers, strict=True))
        for (serving, group), key in zip(pending, asked, strict=True):
            (score,) = scores[key]
            values = {kind: score.metrics.get(kind) for kind in kinds}
            for kind, value in values.items():
                if isinstance(value, list):
                    values[kind] = value = Failed("gave a list; a metric gives a number or None")
                if isinstance(value, Failed):
                    failures.append((kind, value.reason, {"entry": group.entry, **serving.target.labels}))
            numbers = {kind: None if isinstance(value, Failed) else finite(value) for kind, value in values.items()}
            group.test = [finite(score.accuracy), finite(score.loss), numbers]
        return failures

    def _lines(self, found: Sequence[Serving]) -> list[Line]:
        lines: list[Line] = []
        accuracies: list[float | None] = []
        for serving in found:
            chosen = serving.chosen if len(serving.target.test) else None
            accuracy, loss, more = (None, None, {}) if chosen is None else chosen.test
            entry = None if chosen is None else chosen.entry
            about = {"rows": len(serving.target.test), "entry": entry, **serving.target.labels}
            lines.append({"metric": "accuracy", "value": accuracy, **about})
            lines.append({"metric": "loss", "value": loss, **about})
            for kind in self.context.evaluate.metrics:
                lines.append({"metric": name_of(kind), "value": more.get(kind), **about})
            accuracies.append(accuracy)
        rows = [float(len(serving.target.test)) for serving in found]
        count = sum(1 for accuracy in accuracies if accuracy is not None)
        for weighting, value in (("targets", mean(accuracies)), ("rows", mean(accuracies, rows))):
            lines.append({"metric": "mean_accuracy", "value": value, "weighting": weighting, "targets": count})
        return lines

    @staticmethod
    def summarise(lines: Sequence[Line]) -> dict[str, Any]:
        """The state after the last round that was measured.

        ``acc`` is the plain mean over targets, ``acc_weighted`` the mean by test rows, ``acc_last5`` the mean
        of the plain means over those of the run's last five rounds that were measured, ``loss`` the plain
        mean over targets, ``accuracy_by_target`` one number per target (``"task=3"``), ``over_targets`` the
        `spread` of each metric over the targets. Null, or empty, where nothing was measured.
        """
        plain = {
            line["round"]: line["value"]
            for line in lines
            if line.get("metric") == "mean_accuracy" and line.get("weighting") == "targets"
        }
        last = max(plain, default=None)
        end = max((line["round"] for line in lines if line.get("record") == "round"), default=last or 0)
        final = [line for line in lines if last is not None and line.get("round") == last]
        return {
            "acc": None if last is None else plain[last],
            "acc_weighted": next(
                (x["value"] for x in final if x.get("metric") == "mean_accuracy" and x.get("weighting") == "rows"),
                None,
            ),
            "acc_last5": mean(value for round, value in plain.items() if round > end - TAIL),
            "loss": mean(line["value"] for line in final if line.get("metric") == "loss"),
            "accuracy_by_target": {_name(line): line["value"] for line in final if line.get("metric") == "accuracy"},
            "over_targets": _over_targets(final),
        }


def _records(
    failures: Sequence[tuple[str, str, Line]], known: Mapping[str, Sequence[str]]
) -> tuple[list[Line], dict[str, list[str]]]:
    """A record for each reason that is new, with the number of targets; and all reasons so far."""
    reasons = {kind: list(old) for kind, old in known.items()}
    records: dict[tuple[str, str], Line] = {}
    for kind, reason, about in failures:
        if (kind, reason) in records:
            records[kind, reason]["targets"] += 1
        elif reason not in reasons.setdefault(kind, []) and len(reasons[kind]) < REASONS:
            reasons[kind].append(reason)
            records[kind, reason] = {"record": "metric_failed", "kind": kind, "reason": reason, "targets": 1, **about}
    return list(records.values()), reasons


def _over_targets(final: Sequence[Line]) -> dict[str, Any]:
    """The spread of the accuracy, and of all that was measured on the same rows with it: the lines that follow it."""
    found: dict[str, list[Line]] = {}
    about: Line = {}
    for line in final:
        own = {name: value for name, value in line.items() if name not in ("metric", "value")}
        if line.get("metric") == "accuracy":
            about = own
        if about and "value" in line and own == about:
            found.setdefault(line["metric"], []).append(line)
        else:
            about = {}
    return {
        name: spread([x["value"] for x in each], [float(x["rows"]) for x in each], lower_is_better(name))
        for name, each in found.items()
    }


def _name(line: Line) -> str:
    labels = [f"{key}={value}" for key, value in line.items() if key not in _OWN]
    return ", ".join(labels) or "all"
