"""The size of the server's adaptive step: is the second moment in range of ``tau`` or the calibration?

If the median of ``sqrt(v)`` is far below the constant, the optimiser is momentum with another name; if it is
far above, the constant does nothing. Both medians are over the coordinates of an entry, after its step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from ..bank import Bank, Key
from .base import Line, Measure, Seen
from .values import finite

_NAMES = ("median_sqrt_v", "effective_step")


class ServerStep(Measure):
    """Two lines for each entry that took an adaptive step in the round; none for other server optimisers.

    ``median_sqrt_v``: the median of ``sqrt(v)``, of the second moment that the denominator is made of
    (``vhat`` in Reddi's AMSGrad), before bias correction. ``effective_step``: the median of rate over
    denominator, the factor that scales the momentum. Both have the ``entry``'s key.
    """

    lines: ClassVar[tuple[str, ...]] = _NAMES

    def observe(self, seen: Seen, memory: Mapping[str, Any]) -> tuple[list[Line], Mapping[str, Any]]:
        """The lines of this round; it remembers nothing."""
        lines: list[Line] = []
        for key in seen.after.entries:
            entry = seen.after[key]
            if not _stepped(seen.before, seen.after, key):
                continue
            v = entry.server.get("vhat", entry.server["v"])
            lines.append({"metric": "median_sqrt_v", "value": _median(v.sqrt()), "entry": key})
            step = self.context.method.server.effective_step(entry, seen.when)
            if step is not None:
                lines.append({"metric": "effective_step", "value": _median(step), "entry": key})
        return lines, memory

    @staticmethod
    def summarise(lines: Sequence[Line]) -> dict[str, Any]:
        """The last value of each number; with several entries the median of their last values."""
        last: dict[str, dict[Key, float]] = {}
        for line in lines:
            if line.get("metric") in _NAMES and line["value"] is not None:
                last.setdefault(line["metric"], {})[line["entry"]] = line["value"]
        return {name: float(np.median([*values.values()])) for name, values in last.items()}


def _stepped(before: Bank, after: Bank, key: Key) -> bool:
    v = after[key].server.get("v")
    if v is None or not v.numel():
        return False
    # A step makes a new tensor; a change of the entry without one carries the old tensor over.
    return key not in before.entries or before[key].server.get("v") is not v


def _median(values: Tensor) -> float | None:
    return finite(float(np.median(values.numpy(force=True))))
