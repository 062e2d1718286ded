"""What client programs had measured on their own test rows, by yielding a `Probe`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from .base import Line, Measure, Seen
from .values import finite


class Probes(Measure):
    """One ``probe`` line per `Probe` of a client: ``label``, accuracy as ``value``, ``loss`` and ``rows``.

    Null where the client has no test rows or the number is not finite. Probes of clients that failed later
    are logged too: they may show why.
    """

    lines: ClassVar[tuple[str, ...]] = ("probe",)

    def observe(self, seen: Seen, memory: Mapping[str, Any]) -> tuple[list[Line], Mapping[str, Any]]:
        """The lines, by client and in the order in which its program asked."""
        lines: list[Line] = [
            {
                "metric": "probe",
                "label": label,
                "value": finite(score.accuracy),
                "loss": finite(score.loss),
                "rows": score.rows,
                "client": outcome.client,
            }
            for outcome in sorted(seen.outcomes, key=lambda outcome: outcome.client)
            for label, score in outcome.probes
        ]
        return lines, memory
