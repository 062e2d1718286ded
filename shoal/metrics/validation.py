"""Accuracy and loss on validation rows, on which settings may be chosen without looking at test rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from .base import Line, Measure, Seen
from .rounds import TAIL
from .serving import choose, composer, servings
from .values import finite, mean


class Validation(Measure):
    """``validation_accuracy`` and ``validation_loss`` of every target's model in the last five rounds.

    On the target's validation rows (``rows``), with its labels and the ``entry``, and
    ``mean_validation_accuracy`` over the targets, once plain (``weighting: targets``) and once by validation rows
    (``weighting: rows``). Null where a target has no validation rows or no entry yet, or the number is not finite.
    Where the entry is chosen among several it is the best on these very rows, so its numbers are a little better
    than on rows that nobody has looked at. Of a regression there are the losses alone. No lines with
    ``evaluate.every: 0``.
    """

    lines: ClassVar[tuple[str, ...]] = ("validation_accuracy", "validation_loss", "mean_validation_accuracy")

    def observe(self, seen: Seen, memory: Mapping[str, Any]) -> tuple[list[Line], Mapping[str, Any]]:
        """The lines of one of the last five rounds; it remembers nothing."""
        round = seen.when.round
        if not self.context.evaluate.every or round < 1 or round <= self.context.world.rounds - TAIL:
            return [], memory
        found = servings(self.context, seen, self.context.stream.targets(round))
        choose(self.context, seen, found)
        groups = [serving.chosen if len(serving.target.validation) else None for serving in found]
        pending = [(s, g) for s, g in zip(found, groups, strict=True) if g is not None and not g.validation]
        if pending:
            model = composer(self.context.method, seen.after)
            scores = seen.score([([model(group)], serving.target.validation) for serving, group in pending])
            for (_, served), (score,) in zip(pending, scores, strict=True):
                served.validation = [finite(score.loss), finite(score.accuracy)]
        right = not self.context.stream.dataset.is_regression  # real values are neither right nor wrong
        lines: list[Line] = []
        values: list[float | None] = []
        rows = [float(len(serving.target.validation)) for serving in found]
        for serving, group, count in zip(found, groups, rows, strict=True):
            loss, accuracy = (None, None) if group is None else group.validation
            entry = None if group is None else group.entry
            about = {"rows": int(count), "entry": entry, **serving.target.labels}
            if right:
                lines.append({"metric": "validation_accuracy", "value": accuracy, **about})
            lines.append({"metric": "validation_loss", "value": loss, **about})
            values.append(accuracy)
        if not right:
            return lines, memory
        known = sum(1 for value in values if value is not None)
        for weighting, value in (("targets", mean(values)), ("rows", mean(values, rows))):
            about = {"weighting": weighting, "targets": known}
            lines.append({"metric": "mean_validation_accuracy", "value": value, **about})
        return lines, memory

    @staticmethod
    def summarise(lines: Sequence[Line]) -> dict[str, Any]:
        """``validation_accuracy`` and ``validation_loss``: the mean over the measured rounds of the plain mean over
        targets; null where nothing was measured."""
        summary: dict[str, Any] = {}
        for metric in ("validation_accuracy", "validation_loss"):
            rounds: dict[int, list[float | None]] = {}
            for line in lines:
                if line.get("metric") == metric:
                    rounds.setdefault(line["round"], []).append(line["value"])
            summary[metric] = mean(mean(values) for values in rounds.values())
        return summary
