"""The size of the server's step: is the second moment in range of ``tau`` or the calibration?

If ``sqrt(v)`` is far below the constant in most coordinates, the optimiser is momentum with another name; if it is far
above, the constant does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ..bank import Entry, Key
from ..server.quantiles import CHANGE, quantiles, sample
from .base import Line, Measure, Seen
from .movement import LISTED
from .values import finite, mean

_WITH_QUANTILES = ("median_sqrt_v", "median_abs_delta", "effective_step")
_ALONE = ("calibration_constant", "below_constant", "clamped")
_MIDDLE = 2
"""The place of the median among the quantiles."""

Numbers = Sequence[float | None]


class ServerStep(Measure):
    """Lines for each entry that took a step in the round, each with the ``entry``'s key.

    Three have the median over the entry's coordinates as their value, and beside it ``quantiles``: those of 5, 25, 50,
    75 and 95%, see `shoal.server.quantiles` for the coordinates that are looked at.

    - ``median_sqrt_v``: ``sqrt(v)`` of the second moment as the denominator takes it (``vhat`` in Reddi's AMSGrad,
      after bias correction where that is on);
    - ``median_abs_delta``: the size of the pseudo-gradient, ``|mean - x|``, for every server optimiser and mean;
    - ``effective_step``: rate over denominator, the factor that scales the momentum.

    ``calibration_constant``: what ``sqrt(v)`` competes with (``tau``, ``epsilon``, ``log(2) / beta``);
    ``below_constant``: the share of the coordinates whose ``sqrt(v)`` is below it. ``clamped``: the share of the
    coordinates whose denominator was cut at a bound, of servers that cut (`ServerOptimizer.clamped_of`). The lines on
    ``v``, the effective step, the constant and the cut are missing where the server optimiser has none. A round with
    several exchanges has the last step's. With more than 32 such entries in a round there is one line of each kind,
    with the means over ``entries``.
    """

    lines: ClassVar[tuple[str, ...]] = (*_WITH_QUANTILES, *_ALONE)

    def observe(self, seen: Seen, memory: Mapping[str, Any]) -> tuple[list[Line], Mapping[str, Any]]:
        """The lines of this round; it remembers nothing."""
        found = {key: self._numbers(seen, key) for key in seen.after.entries}
        found = {key: numbers for key, numbers in found.items() if numbers}
        if len(found) <= LISTED:
            each_entry = [(key, name, of) for key, numbers in found.items() for name, of in numbers.items()]
            return [_line(name, of, entry=key) for key, name, of in each_entry], memory
        lines = []
        for name in self.lines:
            each = [numbers[name] for numbers in found.values() if name in numbers]
            if each:
                lines.append(_line(name, [mean(column) for column in zip(*each, strict=True)], entries=len(each)))
        return lines, memory

    def _numbers(self, seen: Seen, key: Key) -> dict[str, Numbers]:
        """The quantiles, or the one number, of each kind of line."""
        entry, before = seen.after[key], seen.before.entries.get(key)
        server = self.context.method.server
        found: dict[str, Numbers] = {}
        changed = _new(CHANGE, before, entry)
        if (changed or _new("v", before, entry)) and entry.vector.numel():
            v, step = server.second_moment_of(entry), server.effective_step(entry, seen.when)
            constant = server.constant_of(entry)
            if v is not None:
                root = sample(v).sqrt()
                found["median_sqrt_v"] = quantiles(root).tolist()
            if step is not None:
                found["effective_step"] = quantiles(step).tolist()
            if constant is not None:
                found["calibration_constant"] = [constant]
            if v is not None and constant is not None:
                found["below_constant"] = [float((root < constant).double().mean())]
            if (clamped := server.clamped_of(entry)) is not None:
                found["clamped"] = [clamped]
        if changed:
            found["median_abs_delta"] = entry.server[CHANGE].tolist()
        return found

    @staticmethod
    def summarise(lines: Sequence[Line]) -> dict[str, Any]:
        """The last value of each number; with several entries the median of their last values."""
        last: dict[str, dict[Key | None, float]] = {}
        for line in lines:
            if line.get("metric") in ServerStep.lines and line["value"] is not None:
                last.setdefault(line["metric"], {})[line.get("entry")] = line["value"]
        return {name: float(np.median([*values.values()])) for name, values in last.items()}


def _new(name: str, before: Entry | None, after: Entry) -> bool:
    # A step makes a new tensor; a change of the entry without one carries the old tensor over.
    number = after.server.get(name)
    return number is not None and (before is None or before.server.get(name) is not number)


def _line(name: str, numbers: Numbers, **labels: Any) -> Line:
    if name in _ALONE:
        return {"metric": name, "value": finite(numbers[0]), **labels}
    known = [finite(number) for number in numbers]
    return {"metric": name, "value": known[_MIDDLE], "quantiles": known, **labels}
