"""What a round costs: bytes down and up, local steps; and the training loss. Never a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ..messages import Update
from .base import Line, Measure, Seen
from .values import finite, mean


class Costs(Measure):
    """Bytes, local steps and training loss of a round, all its exchanges together.

    - ``total_bytes_down``: what was sent to the clients (`Assignment.bytes`: vectors, buffers and extra),
      whether they answered or not; ``total_bytes_up``: what those that answered sent (`Assignment.bytes_up`),
      accepted or not. Entries that are a client's own already, and its answers for them, cost nothing;
    - ``bytes_down`` and ``bytes_up``: the same per participating client (their number is on the line, as
      ``clients``); null where nobody took part. A client that is drawn several times in a round trains and
      sends once;
    - ``client_steps``: local steps of all fits that ended, also of clients that failed afterwards;
    - ``training_loss``: mean loss of these fits, weighted by the rows seen; fits whose loss is not finite are
      left out. ``rows`` says how many rows are behind it.
    """

    lines: ClassVar[tuple[str, ...]] = (
        "bytes_down",
        "total_bytes_down",
        "bytes_up",
        "total_bytes_up",
        "client_steps",
        "training_loss",
    )

    def observe(self, seen: Seen, memory: Mapping[str, Any]) -> tuple[list[Line], Mapping[str, Any]]:
        """Six lines."""
        clients = len({given.client for given in seen.assignments})
        down = sum(given.bytes for given in seen.assignments)
        up = sum(
            given.bytes_up(outcome.answer)
            for given, outcome in zip(seen.assignments, seen.outcomes, strict=True)
            if isinstance(outcome.answer, Update)
        )
        lines: list[Line] = []
        for way, total in (("down", down), ("up", up)):
            each = total / clients if clients else None
            lines.append({"metric": f"bytes_{way}", "value": each, "clients": clients})
            lines.append({"metric": f"total_bytes_{way}", "value": total})
        fits = [fit for outcome in seen.outcomes for fit in outcome.fits]
        lines.append({"metric": "client_steps", "value": sum(fit.steps for fit in fits)})
        known = [fit for fit in fits if finite(fit.loss) is not None]
        loss = mean([fit.loss for fit in known], [float(fit.rows) for fit in known])
        lines.append({"metric": "training_loss", "value": loss, "rows": sum(fit.rows for fit in known)})
        return lines, memory

    @staticmethod
    def summarise(lines: Sequence[Line]) -> dict[str, Any]:
        """Totals of the run (warm-up included), and means per participating client and round (without it).

        ``bytes_down_per_round`` and ``bytes_up_per_round`` are means over all pairs of a round and a client
        that took part in it; null where there is none.
        """
        summary: dict[str, Any] = {}
        for way in ("down", "up"):
            each = [line for line in lines if line.get("metric") == f"bytes_{way}" and line["round"] > 0]
            weights = [float(line["clients"]) for line in each]
            summary[f"bytes_{way}_per_round"] = mean([line["value"] for line in each], weights)
        for metric in ("total_bytes_down", "total_bytes_up", "client_steps"):
            summary[metric] = sum(line["value"] for line in lines if line.get("metric") == metric)
        return summary
