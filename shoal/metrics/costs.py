"""What a run costs: bytes down and up, local steps, the models' size; and the training loss. Never a time."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from torch import Tensor

from ..bank import Key
from ..messages import Assignment, Update
from ..models.base import Model
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
      left out. ``rows`` says how many rows are behind it;
    - ``bank_bytes``: all entries of the bank after the round, as they would be sent, with their number, ``entries``;
      ``held``: the bytes of the entries that a participant had in this round, sent to it or its own already, mean over
      the participants (null without any); ``constants`` are the bytes of what is frozen in all models,
      ``teachers`` of those that models are compared with (tensors that are equal count once). In round 1, in the last
      one, and when entries are born or retired.
    """

    lines: ClassVar[tuple[str, ...]] = (
        "bytes_down",
        "total_bytes_down",
        "bytes_up",
        "total_bytes_up",
        "client_steps",
        "training_loss",
        "bank_bytes",
    )

    @cached_property
    def _once(self) -> dict[str, int]:
        """Bytes that every client needs once, and that no round sends."""
        models = self.context.world.models.values()
        return {
            "constants": _bytes(_constants(model) for model in models),
            "teachers": _bytes(m.teacher.state_dict().values() for m in models if m.teacher is not None),
        }

    def observe(self, seen: Seen, memory: Mapping[str, Any]) -> tuple[list[Line], Mapping[str, Any]]:
        """Six lines, in some rounds seven."""
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
        now, before = seen.after.entries, seen.before.entries
        if seen.when.round <= 1 or seen.last or now.keys() != before.keys():
            size = sum(entry.bytes for entry in now.values())
            about = {"entries": len(now), "held": mean(_held(seen.assignments)), **self._once}
            lines.append({"metric": "bank_bytes", "value": size, **about})
        return lines, memory

    @staticmethod
    def summarise(lines: Sequence[Line]) -> dict[str, Any]:
        """Totals of the run (warm-up included), and means per participating client and round (without it).

        ``bytes_down_per_round`` and ``bytes_up_per_round`` are means over all pairs of a round and a client
        that took part in it; null where there is none. ``bank_bytes``, ``bank_entries``, ``client_bytes``,
        ``constant_bytes`` and ``teacher_bytes`` are those of the last line that has them.
        """
        summary: dict[str, Any] = {}
        for way in ("down", "up"):
            each = [line for line in lines if line.get("metric") == f"bytes_{way}" and line["round"] > 0]
            weights = [float(line["clients"]) for line in each]
            summary[f"bytes_{way}_per_round"] = mean([line["value"] for line in each], weights)
        for metric in ("total_bytes_down", "total_bytes_up", "client_steps"):
            summary[metric] = sum(line["value"] for line in lines if line.get("metric") == metric)
        sizes: Line = next((line for line in reversed(lines) if line.get("metric") == "bank_bytes"), {})
        for name, key in _SIZES.items():
            summary[name] = sizes.get(key)
        return summary


_SIZES = {
    "bank_bytes": "value",
    "bank_entries": "entries",
    "client_bytes": "held",
    "constant_bytes": "constants",
    "teacher_bytes": "teachers",
}


def _held(assignments: Iterable[Assignment]) -> list[float]:
    """For each participant the bytes of all entries that it had in the round's exchanges, each key once."""
    found: dict[int, dict[Key, int]] = {}
    for given in assignments:
        found.setdefault(given.client, {}).update((key, entry.bytes) for key, entry in given.entries.items())
    return [float(sum(sizes.values())) for sizes in found.values()]


def _constants(model: Model) -> Iterable[Tensor]:
    """What is in no entry: frozen parameters, and the buffers of frozen layers."""
    travelling = {*model.buffers.floats, *model.buffers.counters}
    state = model.build().state_dict(keep_vars=True)
    return [value for name, value in state.items() if not value.requires_grad and name not in travelling]


def _bytes(parts: Iterable[Iterable[Tensor]]) -> int:
    """The bytes of the tensors of several models; what is equal in two of them counts once, as they share it."""
    every: Counter[tuple[str, int]] = Counter()
    for tensors in parts:
        found: Counter[tuple[str, int]] = Counter()
        for tensor in tensors:
            content = tensor.detach().cpu().contiguous().numpy().tobytes()
            about = f"{tensor.dtype} {tuple(tensor.shape)} {hashlib.blake2b(content).hexdigest()}"
            found[about, len(content)] += 1
        every |= found  # the larger number of each
    return sum(size * count for (_, size), count in every.items())
