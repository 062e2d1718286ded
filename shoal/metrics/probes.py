"""What client programs had measured on their own test rows, by yielding a `Probe`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from .base import Line, Measure, Seen
from .rounds import due
from .spread import spread
from .values import finite, mean


class Probes(Measure):
    """One ``probe`` line per `Probe` of a client: ``label``, accuracy as ``value``, ``loss`` and ``rows``.

    Null where the client has no test rows or the number is not finite. Probes of clients that failed later
    are logged too: they may show why.

    ``mean_probe`` is the plain mean over the clients for each ``label`` (with the mean ``loss``), with the `spread`
    over them: ``sd``, ``worst_decile``, and ``clients``, how many have the number. A client that was measured twice
    under one label counts with the last one.

    Probes are measured in the rounds that are due (`shoal.metrics.rounds.due`); in the others, and with
    ``evaluate.every: 0``, the round loop leaves them out, and there are no lines.
    """

    lines: ClassVar[tuple[str, ...]] = ("probe", "mean_probe")

    def observe(self, seen: Seen, memory: Mapping[str, Any]) -> tuple[list[Line], Mapping[str, Any]]:
        """The lines, by client and in the order in which its program asked; then the means by label."""
        if not due(
            seen.when.round, self.context.evaluate.every, self.context.world.rounds, self.context.stream.boundaries
        ):
            return [], memory
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
        by_label: dict[str, dict[int, Line]] = {}
        for line in lines:
            by_label.setdefault(line["label"], {})[line["client"]] = line
        return lines + [_mean(label, list(found.values())) for label, found in by_label.items()], memory


def _mean(label: str, lines: list[Line]) -> Line:
    over = spread([line["value"] for line in lines], [float(line["rows"]) for line in lines])
    return {
        "metric": "mean_probe",
        "label": label,
        "value": over["mean"],
        "loss": mean(line["loss"] for line in lines),
        "sd": over["sd"],
        "worst_decile": over["worst_decile"],
        "clients": over["n"],
    }
