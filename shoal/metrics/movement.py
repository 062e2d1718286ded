"""How far an entry of the bank moves in a round: the cosine distance between two versions of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..bank import Bank, Entry, Key
from ..engine.drift import cosine_distance
from ..parameters import ParameterSpace
from .base import Line, Measure, Seen
from .values import finite, mean

LISTED = 32
"""With more entries than this in a round only their mean is logged."""
_OVER = ("all", "head")


class Movement(Measure):
    """``entry_cosine``: 1 - cos between an entry's parameters before and after a round, for every entry it trained.

    ``over`` is ``all`` parameters of the entry, or its ``head`` (the last linear layer), where it covers that. The
    drift plots of Venkatesha et al. (arXiv:2203.13321) show it over the head, between consecutive rounds of a task.
    Between 0 and 2; 0 says that the direction is the same, whatever the length.

    A line per entry (``entry``); with more than 32 trained entries one line with the mean over ``entries`` of them.
    An entry that the round left as it was has no line, and neither has one that was born in it.
    """

    lines: ClassVar[tuple[str, ...]] = ("entry_cosine",)

    def observe(self, seen: Seen, memory: Mapping[str, Any]) -> tuple[list[Line], Mapping[str, Any]]:
        """The lines of this round; it remembers nothing."""
        lines: list[Line] = []
        moved = [key for key in seen.after.entries if _moved(seen, key)]
        found = {key: self._distances(seen.before, seen.after, key) for key in moved}
        for over in _OVER:
            values = {key: finite(by[over]) for key, by in found.items() if over in by}
            if len(moved) > LISTED and values:
                known = [value for value in values.values() if value is not None]
                lines.append({"metric": "entry_cosine", "value": mean(known), "over": over, "entries": len(known)})
            else:
                lines += [{"metric": "entry_cosine", "value": v, "over": over, "entry": k} for k, v in values.items()]
        return lines, memory

    def _distances(self, before: Bank, after: Bank, key: Key) -> dict[str, float]:
        old, new = before[key], after[key]
        if old.segments == ():  # loose numbers, no model
            return {}
        if (old.model, old.segments, old.vector.shape) != (new.model, new.segments, new.vector.shape):
            return {}
        found = {"all": _distance(old.vector, new.vector)}
        space = self.context.world.models[old.model].space
        heads = _head(space, old), _head(space, new)
        if heads[0] is not None and heads[1] is not None:
            found["head"] = _distance(heads[0], heads[1])
        return found

    @staticmethod
    def summarise(lines: Sequence[Line]) -> dict[str, Any]:
        """``entry_cosine``: ``{"all": .., "head": ..}``, the mean over all lines (warm-up left out)."""
        found: dict[str, list[float | None]] = {over: [] for over in _OVER}
        for line in lines:
            if line.get("metric") == "entry_cosine" and line["round"] > 0:
                found[line["over"]].append(line["value"])
        return {"entry_cosine": {over: mean(values) for over, values in found.items()}}


def _moved(seen: Seen, key: Key) -> bool:
    """Whether the round trained this entry, or changed it in another way (clients train one, the server matches it
    with another)."""
    if key not in seen.before.entries:
        return False
    old, new = seen.before[key].vector, seen.after[key].vector
    return old is not new and (key in seen.trained or not torch.equal(old, new))


def _head(space: ParameterSpace, entry: Entry) -> Tensor | None:
    """The head's part of the entry; ``None`` if it does not cover it or the model has none."""
    try:
        part = space.part(entry, "head")
    except KeyError:
        return None
    return part if part.numel() else None


def _distance(old: Tensor, new: Tensor) -> float:
    away = new - old
    return cosine_distance(old, away, float(torch.dot(away, away)))
