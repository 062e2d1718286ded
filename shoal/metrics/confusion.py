"""Confusion counts: which classes are taken for which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .base import Line, Measure, Seen
from .functions import Failed
from .serving import Group, Serving, choose, composer, servings

LISTED = 20
"""With more targets than this they are summed."""
CLASSES = 1000
"""With more classes than this there are no counts."""
COUNTS = "shoal.metrics.confusion:counts"


def counts(outputs: Tensor, targets: Tensor) -> list[list[int]]:
    """``[true, predicted, rows]`` for each pair of classes that occurs."""
    pairs = torch.stack([targets, outputs.argmax(1)], dim=1)
    found, rows = torch.unique(pairs, dim=0, return_counts=True)
    return [[*pair, n] for pair, n in zip(found.tolist(), rows.tolist(), strict=True)]


class Confusion(Measure):
    """Records ``confusion`` after the last round of the run and of every phase, of the model that serves a target.

    ``classes`` are the original names of the model's outputs; ``counts`` are ``[true, predicted, rows]`` with
    places in that list, without pairs that did not occur. One record per target, with its labels and its
    ``entry``. With more than 20 targets one record for all that share the same classes, with the number of
    ``targets`` in it. ``excluded`` counts targets of it without a model, without test rows or with outputs that
    are NaN; of a single target such a record has no counts. No records with ``evaluate.every: 0``, for real
    values, or for more than 1,000 classes.
    """

    def observe(self, seen: Seen, memory: Mapping[str, Any]) -> tuple[list[Line], Mapping[str, Any]]:
        """The records of this round; it remembers nothing."""
        stream, round = self.context.stream, seen.when.round
        if not self.context.evaluate.every or round < 1 or not (seen.last or round in stream.boundaries):
            return [], memory
        if stream.dataset.is_regression:
            return [], memory
        found = servings(self.context, seen, stream.targets(round))
        scored = [serving for serving in found if len(serving.target.test)]
        choose(self.context, seen, scored)
        single = len(found) <= LISTED
        groups: dict[Any, list[Serving]] = {}
        for place, serving in enumerate(found):
            classes = tuple(stream.classes_of(serving.target.labels))
            if len(classes) <= CLASSES:
                groups.setdefault((classes, place if single else None), []).append(serving)
        measured = self._counts(seen, [serving for members in groups.values() for serving in members])
        lines: list[Line] = []
        for (classes, _), members in groups.items():
            known = [measured[s.name] for s in members if s.name in measured]
            total: dict[tuple[int, int], int] = {}
            for true, predicted, n in (cell for value in known for cell in value):
                total[true, predicted] = total.get((true, predicted), 0) + n
            about = _about(members[0]) if single else {"targets": len(known)}
            lines.append(
                {
                    "record": "confusion",
                    **about,
                    "excluded": len(members) - len(known),
                    "classes": list(classes),
                    "counts": [[*pair, n] for pair, n in sorted(total.items())],
                }
            )
        return lines, memory

    def _counts(self, seen: Seen, found: Sequence[Serving]) -> dict[str, list[list[int]]]:
        """The counts of each target that has a model, test rows and outputs that are numbers, by its name."""
        wanted: list[tuple[Serving, Group]] = []
        for serving in found:
            if serving.chosen is not None and len(serving.target.test):
                wanted.append((serving, serving.chosen))
        if not wanted:
            return {}
        model = composer(self.context.method, seen.after)
        pairs = [([model(group)], serving.target.test) for serving, group in wanted]
        scores = seen.score(pairs, (COUNTS,))
        values = {s.name: score.metrics[COUNTS] for (s, _), (score,) in zip(wanted, scores, strict=True)}
        return {name: value for name, value in values.items() if not isinstance(value, Failed)}


def _about(serving: Serving) -> dict[str, Any]:
    chosen = serving.chosen if len(serving.target.test) else None
    return {"entry": None if chosen is None else chosen.entry, **serving.target.labels}
