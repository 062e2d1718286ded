"""What a shift does to the clients: the drop at a boundary, and the rounds until it is made good.

At a shift a client comes to another time step: its rows are new, and it may be in another cluster. All accuracies are
those of the client's model on the test rows of its *current* cluster. Source of (a) to (c): the analysis script of
HAST (Listo Zec et al. 2023, arXiv:2306.12768): accuracy at the end of each step, rounds to regain 90% of the gain
within the step, and the lowest accuracy in it.

Deviations. The script takes the drop from the end of the *same* step; here it is taken from the end of the step
before. It looks at validation rows, here are test rows. Its recovery is relative to what the new step ends with, so
that a method that never comes back up to its old level "recovers" too; that number is kept (``within_step``), and
beside it stands recovery of what was lost since the end of the step before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from .base import Line, Measure, Seen
from .rounds import due
from .serving import choose, composer, servings
from .values import finite, mean

AFTER = "after"
"""The stage that every run has: the model that serves the client after the round."""
GROUPS = ("all", "changed", "stayed")
SHARE = 0.9
"""How much of a loss must be regained."""
LEAST = 0.01
"""Less than one point is no loss and no gain: there is nothing to regain."""

Curve = Sequence[tuple[int, float]]
"""Rounds into the step, and the mean accuracy after that round; ascending."""


def regained(curve: Curve, reference: float) -> int | None:
    """The first round of the curve with 90% of the way from its first value up to ``reference``; ``None`` if there
    is none. The curve's first round counts too: it is the answer where the reference is not above it."""
    first = curve[0][1]
    goal = first + SHARE * (reference - first)
    return next((h for h, value in curve if value >= goal - 1e-12), None)


def outcome(curve: Curve, end: float, cut: bool = False) -> dict[str, Any]:
    """What became of a step that began from the accuracy ``end``: its lowest and last value, and the recovery.

    ``cut``: the run ended before the step was over.

    - ``lowest``, ``lowest_round``; ``last``, ``last_round``: values of the curve, and rounds into the step;
    - ``within_step``: the first round with 90% of the gain from the first to the last measured round; ``None`` where
      that gain is less than one point, and in a step that was cut, whose gain is not known;
    - ``recovery``: ``recovered``, ``never`` (``not known yet`` in a step that was cut), or ``nothing lost`` (less than
      one point below ``end`` in the first measured round); ``recovery_round``: the first round with 90% of that loss
      regained, only if ``recovered``.
    """
    never = "not known yet" if cut else "never"
    first, last = curve[0][1], curve[-1][1]
    lowest = min(curve, key=lambda point: (point[1], point[0]))
    back = regained(curve, end)
    lost = end - first >= LEAST - 1e-12
    return {
        "lowest": lowest[1],
        "lowest_round": lowest[0],
        "last": last,
        "last_round": curve[-1][0],
        "within_step": regained(curve, last) if last - first >= LEAST - 1e-12 and not cut else None,
        "recovery": "nothing lost" if not lost else never if back is None else "recovered",
        "recovery_round": back if lost else None,
    }


class Shift(Measure):
    """Records ``shift``, one per boundary and group of clients, when the step after the boundary is over.

    ``boundary`` is the last round before the shift. Groups: clients that ``changed`` their cluster, those that
    ``stayed`` (and have new rows, or the same), and ``all`` of both. Where clients shift at different rounds each
    counts at its own, and a boundary has the clients that shifted there. A step is over when the first of them comes
    to its next one, and at the end of the run. The run *cuts* the steps that are on at its end short where it ends
    sooner after its last common boundary than any two of them lie apart (the first: from the start).

    - ``clients``: how many there are: those measured both before the boundary and in the step;
    - ``end``: their mean accuracy after the last measured round before the shift; ``first``: after the first one
      in the step, which is its round ``first_round``;
    - ``drops``: mean over clients of the accuracy in that round minus ``end``, by stage: ``after`` the round, and what
      the programs had measured on the way (the labels of their probes, ``before`` and ``mixed``). Negative: lost;
    - ``lowest``, ``last``, ``within_step``, ``recovery`` and the others of `outcome`, of the mean over the clients.

    Accuracies are those of targets of single clients, in the rounds that are due (`shoal.metrics.rounds.due`). No
    records without boundaries, without a ``cluster`` in the truth about clients' rows, or with ``evaluate.every: 0``.
    """

    from_test_rows: ClassVar[tuple[str, ...]] = ("drop_after_shift", "recovery_rounds", "step_end_accuracy")

    def observe(self, seen: Seen, memory: Mapping[str, Any]) -> tuple[list[Line], Mapping[str, Any]]:
        """Memory: ``clients`` (client -> where it is, the round and the accuracy when it was measured last), and
        ``open``, the steps that go on (boundary -> group -> its numbers so far)."""
        round, stream = seen.when.round, self.context.stream
        if not stream.boundaries:
            return [], memory
        if not due(round, self.context.evaluate.every, self.context.world.rounds, stream.boundaries):
            return [], memory
        known: dict[str, Any] = dict(memory.get("clients", {}))
        steps: dict[str, Any] = dict(memory.get("open", {}))
        begun: dict[str, dict[int, tuple[bool, float, Mapping[str, float]]]] = {}
        left: set[int] = set()
        for client, stages in self._accuracies(seen).items():
            place = self._place(seen, client, round)
            if place is None:
                continue
            old = known.get(str(client))
            if old is not None and old[0] != place:
                left.add(client)
                moved = self._moved_after(seen, client, place, old[1], round)
                begun.setdefault(str(moved), {})[client] = (old[0][1] != place[1], old[2], stages)
            known[str(client)] = [place, round, stages[AFTER]]
        lines: list[Line] = []
        for boundary in list(steps):
            if left & set(steps[boundary]["all"]["clients"]):
                lines += _records(boundary, steps.pop(boundary))
        now = {int(client): value for client, (_, _, value) in known.items()}
        for boundary, members in begun.items():
            steps.setdefault(boundary, _begun(members, round - int(boundary)))  # a latecomer changes no group
        for boundary, groups in steps.items():
            steps[boundary] = {name: _longer(group, round - int(boundary), now) for name, group in groups.items()}
        if seen.last:
            cut = _cut(stream.boundaries, round)
            lines += [line for boundary, groups in steps.items() for line in _records(boundary, groups, cut)]
            steps = {}
        return lines, {"clients": known, "open": steps} if known else memory

    def _place(self, seen: Seen, client: int, round: int) -> list[Any] | None:
        """The client's time step and cluster in a round; ``None`` where the stream does not say.

        A stream whose clients have time steps of their own has ``step(client, round)``; else the phases are the steps.
        """
        stream = self.context.stream
        held = seen.holdings.get(client) if round == seen.when.round else None
        truth = (stream.holding(client, round) if held is None else held).truth
        if "cluster" not in truth:
            return None
        own = getattr(stream, "step", None)
        return [stream.phase(round) if own is None else own(client, round), truth["cluster"]]

    def _moved_after(self, seen: Seen, client: int, place: list[Any], last: int, round: int) -> int:
        """The last round in which the client was not yet where it is now."""
        while round - 1 > last and self._place(seen, client, round - 1) == place:
            round -= 1
        return round - 1

    def _accuracies(self, seen: Seen) -> dict[int, dict[str, float]]:
        """Client -> stage -> accuracy, of every client that is a target and has an accuracy after the round."""
        targets = [t for t in self.context.stream.targets(seen.when.round) if isinstance(t.labels.get("client"), int)]
        found = [s for s in servings(self.context, seen, targets) if len(s.target.test)]
        choose(self.context, seen, found)
        served = [(s.target, s.chosen) for s in found if s.chosen is not None]
        # Mostly the accuracy's measure has been here before.
        missing = [(target, group) for target, group in served if not group.test]
        model = composer(self.context.method, seen.after)
        scores = seen.score([([model(group)], target.test) for target, group in missing]) if missing else []
        values = {target.labels["client"]: group.test[0] for target, group in served if group.test}
        values |= {t.labels["client"]: score.accuracy for (t, _), (score,) in zip(missing, scores, strict=True)}
        stages: dict[int, dict[str, float]] = {}
        for client, value in sorted(values.items()):
            if (number := finite(value)) is not None:
                stages[client] = {AFTER: number}
        for result in seen.outcomes:
            for label, score in result.probes:
                if result.client in stages and label != AFTER and (number := finite(score.accuracy)) is not None:
                    stages[result.client][label] = number
        return stages

    @staticmethod
    def summarise(lines: Sequence[Line]) -> dict[str, Any]:
        """Means over all records, in fractions of 1; nothing without a record.

        - ``drop_after_shift``: for each group the drop by stage, and ``lowest``: the lowest value in the step minus
          the end of the step before. Means over boundaries, weighted by their clients. Negative: lost;
        - ``recovery_rounds``: for each group the ``mean`` over the boundaries that ``recovered``, weighted by their
          clients; how many these are, how many ``never`` recovered within their step, at how many that is ``not_known``
          because the run cut the step short, and at how many there was ``nothing_lost``; and ``within_step``, the mean
          over boundaries, weighted likewise, of the rounds to 90% of the step's own gain;
        - ``step_end_accuracy``: mean over the steps of the mean accuracy after their last round.
        """
        records = [line for line in lines if line.get("record") == "shift"]
        if not records:
            return {}
        drops: dict[str, Any] = {}
        rounds: dict[str, Any] = {}
        for group in GROUPS:
            own = [record for record in records if record["group"] == group]
            if not own:
                continue
            weights = [float(record["clients"]) for record in own]
            stages = list(dict.fromkeys(stage for record in own for stage in record["drops"]))
            drops[group] = {stage: mean([r["drops"].get(stage) for r in own], weights) for stage in stages}
            drops[group]["lowest"] = mean([r["lowest"] - r["end"] for r in own], weights)
            rounds[group] = {
                "mean": mean([r["recovery_round"] for r in own], weights),
                "recovered": sum(r["recovery"] == "recovered" for r in own),
                "never": sum(r["recovery"] == "never" for r in own),
                "not_known": sum(r["recovery"] == "not known yet" for r in own),
                "nothing_lost": sum(r["recovery"] == "nothing lost" for r in own),
                "within_step": mean([r["within_step"] for r in own], weights),
            }
        return {"drop_after_shift": drops, "recovery_rounds": rounds, "step_end_accuracy": _step_ends(lines)}


def _begun(members: Mapping[int, tuple[bool, float, Mapping[str, float]]], first_round: int) -> dict[str, Any]:
    """The groups of a step that begins: each client with whether it changed, its old end, and its accuracies now."""
    groups: dict[str, Any] = {}
    for name in GROUPS:
        own = {c: m for c, m in members.items() if name == "all" or m[0] == (name == "changed")}
        if own:
            stages = dict.fromkeys(stage for _, _, accuracies in own.values() for stage in accuracies)
            groups[name] = {
                "clients": list(own),
                "end": mean(end for _, end, _ in own.values()),
                "first_round": first_round,
                "drops": {s: mean(now[s] - end for _, end, now in own.values() if s in now) for s in stages},
                "curve": [],
            }
    return groups


def _longer(group: Mapping[str, Any], h: int, now: Mapping[int, float]) -> dict[str, Any]:
    """The group with one point more. A client that was not measured now counts with its last accuracy."""
    return {**group, "curve": [*group["curve"], [h, mean(now[client] for client in group["clients"])]]}


def _cut(boundaries: Sequence[int], last: int) -> bool:
    """Whether the run's end, after round ``last``, comes before the step after the last boundary can be over."""
    shortest = min(b - a for a, b in zip((0, *boundaries), boundaries, strict=False))
    return last < boundaries[-1] + shortest


def _records(boundary: str, groups: Mapping[str, Any], cut: bool = False) -> list[Line]:
    return [
        {
            "record": "shift",
            "boundary": int(boundary),
            "group": name,
            "clients": len(group["clients"]),
            "end": group["end"],
            "first": group["curve"][0][1],
            "first_round": group["first_round"],
            "drops": group["drops"],
            **outcome([(h, value) for h, value in group["curve"]], group["end"], cut),
        }
        for name, group in groups.items()
    ]


def _step_ends(lines: Sequence[Line]) -> float | None:
    """The mean of ``mean_accuracy`` over the boundaries and the last round."""
    stream = next((line for line in lines if line.get("record") == "stream"), {})
    last = max((line["round"] for line in lines if line.get("record") == "round"), default=0)
    ends = {*(stream.get("boundaries") or ()), last}
    return mean(
        line["value"]
        for line in lines
        if line.get("metric") == "mean_accuracy" and line.get("weighting") == "targets" and line["round"] in ends
    )
