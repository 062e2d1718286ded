"""Accuracy and loss of the bank on the test rows of every target: task, concept, client."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..bank import Bank, Key
from ..requests import Served
from ..streams.base import Target, phase_of
from .base import Line, Measure, Seen
from .transfer import needed
from .values import finite, mean

TAIL = 5
"""How many last rounds are measured whatever ``evaluate.every`` says, for the mean over them."""

_OWN = ("round", "metric", "value", "rows", "entry")


@dataclass
class _Group:
    """A group of keys that could answer for a target, and what is known of it at these versions."""

    keys: tuple[Key, ...]
    versions: tuple[int, ...]
    validation: list[float | None] = field(default_factory=list)
    """The loss on the target's validation rows; empty: not measured."""
    test: list[float | None] = field(default_factory=list)
    """Accuracy and loss on its test rows; empty: not measured."""

    def saved(self) -> list[Any]:
        return [list(self.keys), list(self.versions), self.validation, self.test]


class _Mark:
    """One target in one round: its groups, with what an earlier round already measured of them."""

    def __init__(self, target: Target, groups: Sequence[tuple[Key, ...]], bank: Bank, old: Mapping[str, Any]) -> None:
        self.target = target
        known: dict[tuple[Any, ...], _Group] = {}
        if old.get("stamp") == target.stamp:
            for keys, versions, validation, test in old["groups"]:
                known[tuple(keys), tuple(versions)] = _Group(tuple(keys), tuple(versions), validation, test)
        self.groups: list[_Group] = []
        for keys in groups:
            # A key may not be born yet: the part of a client that never trained.
            if keys and all(key in bank.entries for key in keys):
                versions = tuple(bank.entries[key].version for key in keys)
                self.groups.append(known.get((keys, versions)) or _Group(keys, versions))

    @property
    def choosing(self) -> list[_Group]:
        """The groups that must be measured on the validation rows first."""
        if len(self.groups) < 2 or not len(self.target.validation) or not len(self.target.test):
            return []
        return [group for group in self.groups if not group.validation]

    @property
    def chosen(self) -> _Group | None:
        """The group with the lowest validation loss, the first of equal ones or where no loss is known."""
        if not self.groups or not len(self.target.test):
            return None
        losses = [(group.validation[0] if group.validation else None) for group in self.groups]
        known = [(loss, index) for index, loss in enumerate(losses) if loss is not None]
        return self.groups[min(known)[1] if known else 0]

    def saved(self) -> dict[str, Any]:
        return {"stamp": self.target.stamp, "groups": [group.saved() for group in self.groups]}


class Accuracy(Measure):
    """Accuracy and loss of every target's model on the target's test rows, after the rounds that are due.

    A target's model is composed of the group of keys, among ``method.candidates``, with the lowest mean loss
    on the target's validation rows; its keys are logged as ``entry``. The choice never looks at test rows.

    Lines: ``accuracy`` (share of right rows, 0 to 1) and ``loss`` per target, with its labels;
    ``mean_accuracy`` over the targets, once plain (``weighting: targets``) and once by test rows
    (``weighting: rows``). A value is null where the target has no test rows or no entry yet, or the number is
    not finite; such targets are left out of the means, which say over how many ``targets`` they run.

    What did not change is not measured again: the memory keeps, for the targets of the last round that was
    due, what each group gave at the versions of its entries. ``compose`` must therefore depend on these
    alone.
    """

    def due(self, round: int, memory: Mapping[str, Any]) -> bool:
        """Whether the bank is measured after this round; ``memory`` already knows what was trained in it.

        Every ``evaluate.every``-th round, the last five, and on a stream with tasks those that BWT_f needs.
        Never with ``every: 0``, and never the warm-up.
        """
        every, stream = self.context.evaluate.every, self.context.stream
        if not every or round < 1:
            return False
        if round % every == 0 or round > self.context.world.rounds - TAIL:
            return True
        firsts = {
            int(phase): {int(task): first for task, first in tasks.items()}
            for phase, tasks in memory.get("first", {}).items()
        }
        return bool(stream.tasks) and needed(round, stream.boundaries, firsts)

    def observe(self, seen: Seen, memory: Mapping[str, Any]) -> tuple[list[Line], Mapping[str, Any]]:
        """The lines of a round that is due. Memory: ``first`` (phase -> task -> round) and ``targets``."""
        if not self.context.evaluate.every:
            return [], memory
        memory = {**memory, "first": self._first_trained(seen, memory.get("first", {}))}
        round = seen.when.round
        if not (self.due(round, memory) or (seen.last and round)):
            return [], memory
        old = memory.get("targets", {})
        marks = {}
        for target in self.context.stream.targets(round):
            name = json.dumps(target.labels, sort_keys=True)
            groups = [tuple(keys) for keys in self.context.method.candidates(seen.after, target.labels)]
            marks[name] = _Mark(target, groups, seen.after, old.get(name, {}))
        self._score(seen, list(marks.values()))
        return self._lines(list(marks.values())), {
            **memory,
            "targets": {n: mark.saved() for n, mark in marks.items()},
        }

    def _first_trained(self, seen: Seen, old: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
        first = {phase: dict(tasks) for phase, tasks in old.items()}
        if not (self.context.stream.tasks and self.context.stream.boundaries):
            return first
        phase = str(phase_of(seen.when.round, self.context.stream.boundaries))
        for client in sorted({client for clients in seen.trained.values() for client in clients}):
            holding = seen.holdings[client]
            task = holding.truth.get("task") if holding.task is None else holding.task
            if isinstance(task, int):
                first.setdefault(phase, {}).setdefault(str(task), seen.when.round)
        return first

    def _score(self, seen: Seen, marks: Sequence[_Mark]) -> None:
        """Measures what is not known yet, with one call for all choices and one for all test rows."""
        models: dict[tuple[Key, ...], Served] = {}

        def model(group: _Group) -> Served:
            if group.keys not in models:
                models[group.keys] = self.context.method.compose(seen.after, group.keys)
            return models[group.keys]

        open_choices = [(mark, mark.choosing) for mark in marks if mark.choosing]
        if open_choices:
            pairs = [([model(group) for group in groups], mark.target.validation) for mark, groups in open_choices]
            for (_, groups), scores in zip(open_choices, seen.score(pairs), strict=True):
                for group, score in zip(groups, scores, strict=True):
                    group.validation = [finite(score.loss)]
        open_tests = [(mark, mark.chosen) for mark in marks if mark.chosen is not None and not mark.chosen.test]
        tests = [(mark.target.test, group) for mark, group in open_tests if group is not None]
        if tests:
            results = seen.score([([model(group)], rows) for rows, group in tests])
            for (_, group), (score,) in zip(tests, results, strict=True):
                group.test = [finite(score.accuracy), finite(score.loss)]

    @staticmethod
    def _lines(marks: Sequence[_Mark]) -> list[Line]:
        lines: list[Line] = []
        accuracies: list[float | None] = []
        for mark in marks:
            chosen = mark.chosen
            accuracy, loss = (None, None) if chosen is None else chosen.test
            entry = None if chosen is None else "+".join(chosen.keys)
            about = {"rows": len(mark.target.test), "entry": entry, **mark.target.labels}
            lines.append({"metric": "accuracy", "value": accuracy, **about})
            lines.append({"metric": "loss", "value": loss, **about})
            accuracies.append(accuracy)
        rows = [float(len(mark.target.test)) for mark in marks]
        count = sum(1 for accuracy in accuracies if accuracy is not None)
        for weighting, value in (("targets", mean(accuracies)), ("rows", mean(accuracies, rows))):
            lines.append({"metric": "mean_accuracy", "value": value, "weighting": weighting, "targets": count})
        return lines

    @staticmethod
    def summarise(lines: Sequence[Line]) -> dict[str, Any]:
        """The state after the last round that was measured.

        ``acc`` is the plain mean over targets, ``acc_weighted`` the mean by test rows, ``acc_last5`` the mean
        of the plain means over those of the run's last five rounds that were measured, ``loss`` the plain
        mean over targets, ``accuracy_by_target`` one number per target (``"task=3"``). Null, or empty, where
        nothing was measured.
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
        }


def _name(line: Line) -> str:
    labels = [f"{key}={value}" for key, value in line.items() if key not in _OWN]
    return ", ".join(labels) or "all"
