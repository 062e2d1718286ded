"""Alarms of clients that notice shifts, beside what really changed: detections, delays, false alarms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from .base import Line, Measure, Seen
from .contacts import cluster_of
from .values import mean

WITHIN = 5
"""An alarm this many rounds after a change, its own round included, is still an alarm at the change."""


class Alarms(Measure):
    """``alarms``: how many of the ``clients`` that watch their loss alarmed in a round; and what became of it.

    A client *changes* in the first round of its own in which its true cluster (``cluster``, ``concept`` or ``task``) is
    another one than when it last took part. ``detected``: alarms that are the first one within `WITHIN` rounds after a
    change, with ``delays``, each one's rounds since (0: in the round itself). ``false``: all others; ``new_rows`` of
    these came in the round in which a client got new rows of the same cluster (where the stream has time steps).
    ``changed``: how many clients change in this round; ``missed``: how many changes came to nothing by this round, by
    the time that is over or by the next change. In the run's last line those count that nobody could notice in time any
    more, whether or not their clients took part again; what remains is not known.

    Read from ``Update.note["alarm"]`` of the updates that were accepted, from round 1 on; no lines of methods without
    it, and ``alarms`` alone where the truth has no cluster, concept or task.
    """

    lines: ClassVar[tuple[str, ...]] = ("alarms",)

    def observe(self, seen: Seen, memory: Mapping[str, Any]) -> tuple[list[Line], Mapping[str, Any]]:
        """Up to one line. Memory: client -> its cluster, time step, and the round of a change not yet noticed."""
        round = seen.when.round
        told = {u.client: bool(u.note["alarm"]) for u in seen.accepted if isinstance(u.note.get("alarm"), bool)}
        if round < 1 or not told:
            return [], memory
        known: dict[str, Any] = dict(memory)
        counts = dict.fromkeys(("changed", "detected", "missed", "false", "new_rows"), 0)
        delays: list[int] = []
        truth = True
        for client, alarm in sorted(told.items()):
            cluster, step = cluster_of(self.context, seen, client), self._step(client, round)
            if cluster is None:
                truth = False
                continue
            old = known.get(str(client))
            waiting = None if old is None else old[2]
            if waiting is not None and round - waiting >= WITHIN:
                counts["missed"] += 1
                waiting = None
            if old is not None and old[0] != cluster:
                counts["changed"] += 1
                counts["missed"] += waiting is not None
                waiting = round
            if alarm and waiting is not None:
                counts["detected"] += 1
                delays.append(round - waiting)
                waiting = None
            elif alarm:
                counts["false"] += 1
                counts["new_rows"] += old is not None and old[1] != step
            known[str(client)] = [cluster, step, waiting]
        if seen.last:
            for name, (cluster, step, waiting) in list(known.items()):
                if waiting is not None and round + 1 - waiting >= WITHIN:
                    counts["missed"] += 1
                    known[name] = [cluster, step, None]
        line: Line = {"metric": "alarms", "value": sum(told.values()), "clients": len(told)}
        return [{**line, **counts, "delays": delays} if truth else line], known

    def _step(self, client: int, round: int) -> int:
        step = getattr(self.context.stream, "step", None)
        return int(step(client, round)) if callable(step) else self.context.stream.phase(round)

    @staticmethod
    def summarise(lines: Sequence[Line]) -> dict[str, Any]:
        """``alarms``: ``all`` of the run and, where the truth is known, ``changes``, ``detected`` (with their
        ``mean_delay`` in rounds), ``missed``, ``open`` (neither: their time was not over) and ``false`` ones, of which
        at ``new_rows``; ``false_rate``, false ones per client and round without a change. Nothing where nobody watches.
        """
        own = [line for line in lines if line.get("metric") == "alarms"]
        if not own:
            return {}
        found: dict[str, Any] = {"all": sum(line["value"] for line in own)}
        true = [line for line in own if "changed" in line]
        if true:
            found |= {
                name: sum(line[key] for line in true)
                for name, key in (
                    ("changes", "changed"),
                    ("detected", "detected"),
                    ("missed", "missed"),
                    ("false", "false"),
                    ("new_rows", "new_rows"),
                )
            }
            found["open"] = found["changes"] - found["detected"] - found["missed"]
            found["mean_delay"] = mean(delay for line in true for delay in line["delays"])
            calm = sum(line["clients"] - line["changed"] for line in true)
            found["false_rate"] = found["false"] / calm if calm else None
        return {"alarms": found}
