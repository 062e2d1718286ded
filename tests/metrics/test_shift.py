"""Drop and recovery on hand-made accuracy series: common and staggered shifts, both signs, never recovered."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from measure_fakes import EMPTY, FakeStream, context, seen, target

from shoal.bank import Bank, Entry
from shoal.messages import Failure, Outcome
from shoal.methods.base import Method
from shoal.metrics.shift import Shift, outcome, regained
from shoal.requests import Score
from shoal.streams.base import Holding, Stream


class Moving(FakeStream):
    """Client ``c`` is in ``clusters[c][step]``; its steps after the first begin with the rounds ``starts[c]``."""

    def __init__(self, clusters: Sequence[Sequence[int]], starts: Sequence[Sequence[int]], boundaries=None) -> None:
        super().__init__([], boundaries=tuple(boundaries or (start - 1 for start in starts[0])))
        self.clusters, self.starts, self.clients = clusters, starts, len(clusters)
        self.given = [target(torch.tensor([c]), client=c) for c in range(self.clients)]

    def step(self, client: int, round: int) -> int:
        return sum(1 for start in self.starts[client] if round >= start)

    def holding(self, client: int, round: int) -> Holding:
        return Holding(EMPTY, EMPTY, EMPTY, truth={"cluster": self.clusters[client][self.step(client, round)]})


class Own(Method):
    """A model for each client."""

    def __init__(self) -> None:
        pass

    def candidates(self, bank: Bank, target: Mapping[str, Any]) -> list[tuple[str, ...]]:
        return [(f"client/{target['client']}",)]


def play(
    stream: Stream,
    series: Sequence[Sequence[float]],
    *,
    every: int = 1,
    probes: Mapping[tuple[int, int], Mapping[str, float]] | None = None,
) -> list[dict[str, Any]]:
    """The lines of a run in which client ``c`` has the accuracy ``series[c][r - 1]`` after round ``r``."""
    rounds = len(series[0])
    measure = Shift(context(stream, Own(), every=every, rounds=rounds))
    memory: Mapping[str, Any] = {}
    lines: list[dict[str, Any]] = []
    bank = Bank().put({f"client/{c}": Entry(torch.zeros(1)) for c in range(stream.clients)})
    for round in range(1, rounds + 1):

        def score(pairs: Any, metrics: Any = (), round: int = round) -> list[list[Score]]:
            return [[Score(0.0, series[int(rows[0])][round - 1], 1)] for _, rows in pairs]

        measured = [
            Outcome(c, Failure(""), probes=tuple((label, Score(0.0, v, 1)) for label, v in found.items()))
            for (c, r), found in (probes or {}).items()
            if r == round
        ]
        new, memory = measure.observe(seen(round, bank, score, outcomes=measured, last=round == rounds), memory)
        memory = json.loads(json.dumps(memory))  # as a checkpoint keeps it
        lines += [{"round": round, **line} for line in new]
    return lines


def record(lines: Sequence[Mapping[str, Any]], boundary: int, group: str) -> Mapping[str, Any]:
    (found,) = [line for line in lines if (line["boundary"], line["group"]) == (boundary, group)]
    return found


# Four clients, two steps of five rounds; clients 0 and 1 swap their clusters, 2 and 3 stay.
SWAP = Moving([[0, 1], [1, 0], [0, 0], [1, 1]], [[6]] * 4)
SERIES = [
    #  round 1    2    3    4    5  |  6    7    8    9   10
    [0.1, 0.2, 0.4, 0.6, 0.8, 0.2, 0.4, 0.6, 0.7, 0.8],  # -.6; its loss of .6 is made up to 90% at .74
    [0.1, 0.2, 0.4, 0.6, 0.6, 0.0, 0.2, 0.4, 0.5, 0.8],
    [0.1, 0.2, 0.4, 0.6, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7],
    [0.1, 0.2, 0.4, 0.6, 0.7, 0.8, 0.8, 0.8, 0.8, 0.8],
]


def test_drop_lowest_and_recovery_of_those_that_changed() -> None:
    found = record(play(SWAP, SERIES), 5, "changed")
    # Means of clients 0 and 1: .7 before; .1, .3, .5, .6, .8 after.
    assert found["clients"] == 2
    assert found["end"] == pytest.approx(0.7)
    assert (found["first"], found["first_round"]) == (pytest.approx(0.1), 1)
    assert found["drops"] == {"after": pytest.approx(-0.6)}
    assert (found["lowest"], found["lowest_round"]) == (pytest.approx(0.1), 1)
    assert (found["last"], found["last_round"]) == (pytest.approx(0.8), 5)
    # 90% of the way from .1 back to .7 is .64, up to the step's own end .8 it is .73: both in the fifth round.
    assert (found["recovery"], found["recovery_round"], found["within_step"]) == ("recovered", 5, 5)
    assert found["round"] == 10


def test_those_that_stayed_and_all_of_both() -> None:
    lines = play(SWAP, SERIES)
    stayed, every = record(lines, 5, "stayed"), record(lines, 5, "all")
    # .7 before, .75 in all five rounds: a gain is a positive "drop", and there is nothing to recover.
    assert stayed["drops"]["after"] == pytest.approx(0.05)
    assert (stayed["recovery"], stayed["recovery_round"], stayed["within_step"]) == ("nothing lost", None, None)
    # .7 before; .425, .525, .625, .675, .775: the goals are .6725 and .74.
    assert every["clients"] == 4
    assert every["drops"]["after"] == pytest.approx((-0.6 - 0.6 + 0.0 + 0.1) / 4)
    assert (every["recovery_round"], every["within_step"]) == (4, 5)
    assert len(lines) == 3


def test_never_recovered_is_said_and_no_number() -> None:
    series = [[0.9] * 5 + [0.3, 0.5, 0.5, 0.5, 0.5]] * 2 + [[0.5] * 10] * 2
    lines = play(SWAP, series)
    found = record(lines, 5, "changed")
    # Within the step it is at its own end in the second round; of the loss of .6 only a third comes back.
    assert (found["recovery"], found["recovery_round"], found["within_step"]) == ("never", None, 2)
    summary = Shift.summarise(lines)["recovery_rounds"]["changed"]
    assert summary == {"mean": None, "recovered": 0, "never": 1, "not_known": 0, "nothing_lost": 0, "within_step": 2}


def test_what_a_step_that_the_run_cuts_short_would_have_become_is_not_known() -> None:
    # Five rounds, then four: client 0 has not made up for its loss, client 1 has lost nothing.
    swap = Moving([[0, 1], [0, 0]], [[6]] * 2)
    series = [[0.9] * 5 + [0.3, 0.4, 0.5, 0.6], [0.5] * 9]
    lines = play(swap, series)
    found = record(lines, 5, "changed")
    assert (found["recovery"], found["recovery_round"], found["within_step"]) == ("not known yet", None, None)
    assert (found["drops"]["after"], found["last"]) == (pytest.approx(-0.6), 0.6)
    assert record(lines, 5, "stayed")["recovery"] == "nothing lost"
    told = Shift.summarise(lines)["recovery_rounds"]["changed"]
    assert told == {"mean": None, "recovered": 0, "never": 0, "not_known": 1, "nothing_lost": 0, "within_step": None}
    # A loss that is regained is, whenever the run ends; and with a fifth round the step is over.
    back = record(play(swap, [[0.9] * 5 + [0.3, 0.9], [0.5] * 7]), 5, "changed")
    assert (back["recovery"], back["recovery_round"]) == ("recovered", 2)
    over = record(play(swap, [[*series[0], 0.6], [0.5] * 10]), 5, "changed")
    assert (over["recovery"], over["within_step"]) == ("never", 4)


def test_steps_before_the_last_are_over_whenever_the_run_ends() -> None:
    stream = Moving([[0, 1, 0]], [[4, 7]])
    lines = play(stream, [[0.9] * 3 + [0.2] * 3 + [0.1]])
    assert [record(lines, boundary, "changed")["recovery"] for boundary in (3, 6)] == ["never", "not known yet"]
    # Staggered: the client that is late is still in the step before, which goes on to its own change.
    late = Moving([[0, 1, 0], [0, 1, 0]], [[4, 7], [6, 9]], boundaries=(3, 6))
    lines = play(late, [[0.9] * 3 + [0.2] * 5, [0.9] * 5 + [0.2] * 3])
    found = {line["boundary"]: line["recovery"] for line in lines if line["group"] == "changed"}
    assert found == {3: "never", 5: "not known yet", 6: "nothing lost"}


def test_stages_are_measured_from_the_end_of_the_step_before() -> None:
    probes = {(0, 6): {"before": 0.0, "mixed": 0.3, "trained": 0.2}, (1, 6): {"before": 0.0, "mixed": 0.2}}
    lines = play(SWAP, SERIES, probes=probes)
    # Ends are .8 and .6; client 1 has no probe after training.
    expected = {"after": -0.6, "before": (-0.8 - 0.6) / 2, "mixed": (-0.5 - 0.4) / 2, "trained": -0.6}
    assert record(lines, 5, "changed")["drops"] == pytest.approx(expected)
    assert record(lines, 5, "stayed")["drops"] == {"after": pytest.approx(0.05)}


def test_staggered_clients_count_at_their_own_rounds() -> None:
    # Client 0 changes with round 4, client 1 with round 6; the common boundary is round 3.
    stream = Moving([[0, 1], [0, 1]], [[4], [6]], boundaries=[3])
    series = [[0.5, 0.6, 0.8, 0.2, 0.8, 0.8, 0.8, 0.8], [0.5, 0.6, 0.8, 0.8, 0.9, 0.1, 0.1, 0.9]]
    lines = play(stream, series)
    first, second = record(lines, 3, "changed"), record(lines, 5, "changed")
    assert (first["drops"]["after"], first["recovery_round"]) == (pytest.approx(-0.6), 2)
    assert (second["drops"]["after"], second["recovery_round"]) == (pytest.approx(-0.8), 3)
    assert not [line for line in lines if line["group"] == "stayed"]
    summary = Shift.summarise(lines)
    assert summary["drop_after_shift"]["changed"]["after"] == pytest.approx(-0.7)
    assert summary["recovery_rounds"]["changed"]["mean"] == 2.5


def test_boundaries_count_by_their_clients() -> None:
    def told(clients: int, back: int | None, within: int | None, drop: float) -> dict[str, Any]:
        state = "never" if back is None else "recovered"
        return {"record": "shift", "group": "changed", "clients": clients, "end": 0.9, "drops": {"after": drop},
                "lowest": 0.5, "recovery": state, "recovery_round": back, "within_step": within}  # fmt: skip

    summary = Shift.summarise([told(1, 2, 1, -0.4), told(3, 6, None, -0.2), told(12, None, 3, -0.5)])
    # (1 * 2 + 3 * 6) / 4; (1 * 1 + 12 * 3) / 13; -(.4 + .6 + 6) / 16.
    assert summary["recovery_rounds"]["changed"] == {
        "mean": pytest.approx(5.0),
        "recovered": 2,
        "never": 1,
        "not_known": 0,
        "nothing_lost": 0,
        "within_step": pytest.approx(37 / 13),
    }
    assert summary["drop_after_shift"]["changed"]["after"] == pytest.approx(-7 / 16)


def test_a_step_is_over_at_the_next_shift() -> None:
    stream = Moving([[0, 1, 1], [0, 1, 0]], [[3, 5]] * 2)
    series = [[0.5, 0.9, 0.1, 0.2, 0.2, 0.9], [0.5, 0.7, 0.1, 0.4, 0.0, 0.9]]
    lines = play(stream, series)
    assert [(line["round"], line["boundary"], line["group"]) for line in lines] == [
        (5, 2, "all"), (5, 2, "changed"), (6, 4, "all"), (6, 4, "changed"), (6, 4, "stayed"),
    ]  # fmt: skip
    assert record(lines, 2, "changed")["last"] == pytest.approx(0.3)
    assert record(lines, 4, "changed")["drops"]["after"] == pytest.approx(0.0 - 0.4)
    assert record(lines, 4, "stayed")["drops"]["after"] == 0.0
    # Weighted by clients: two at boundary 2 (-.8 and -.6), one at boundary 4 (-.4).
    summary = Shift.summarise(lines)
    assert summary["drop_after_shift"]["changed"]["after"] == pytest.approx((-0.8 - 0.6 - 0.4) / 3)
    # Lowest: .1 against .8 (both clients), 0 against .4.
    assert summary["drop_after_shift"]["changed"]["lowest"] == pytest.approx((-0.7 * 2 - 0.4) / 3)


def test_between_measured_rounds_the_last_and_the_first_of_them_count() -> None:
    # Every third round, and around the common boundary 8; client 1 shifts with round 16, in between.
    stream = Moving([[0, 1], [0, 1]], [[9], [16]], boundaries=[8])
    rising = [r / 100 for r in range(1, 41)]
    lines = play(stream, [rising, rising], every=3)
    assert record(lines, 8, "changed")["first_round"] == 1
    late = record(lines, 15, "changed")
    assert late["end"] == pytest.approx(0.15)
    assert (late["first"], late["first_round"]) == (pytest.approx(0.18), 3)
    assert late["drops"]["after"] == pytest.approx(0.03)


def test_a_late_dip_is_in_the_lowest_value() -> None:
    found = outcome([(1, 0.8), (2, 0.5), (3, 0.5), (4, 0.9)], 0.8)
    assert (found["lowest"], found["lowest_round"], found["recovery"]) == (0.5, 2, "nothing lost")


@pytest.mark.parametrize(
    ("curve", "reference", "expected"),
    [
        ([(1, 0.0), (2, 0.89), (3, 0.9)], 1.0, 3),
        ([(1, 0.0), (2, 0.89)], 1.0, None),
        ([(1, 0.5)], 0.5, 1),
        ([(1, 0.5), (2, 0.3)], 0.2, 1),  # nothing was lost
        ([(3, 0.2), (7, 1.0)], 0.6, 7),
    ],
)
def test_ninety_percent(curve: list[tuple[int, float]], reference: float, expected: int | None) -> None:
    assert regained(curve, reference) == expected


@pytest.mark.parametrize(("end", "recovery"), [(0.509, "nothing lost"), (0.51, "recovered"), (0.49, "nothing lost")])
def test_less_than_a_point_is_no_loss(end: float, recovery: str) -> None:
    assert outcome([(1, 0.5), (2, 0.6)], end)["recovery"] == recovery


def test_nothing_without_boundaries_clusters_or_measuring() -> None:
    still = Moving([[0], [0]], [[], []])
    assert play(still, [[0.5] * 3] * 2) == []
    assert play(SWAP, SERIES, every=0) == []
    blind = Moving([[0, 1]], [[3]])
    blind.holding = lambda client, round: Holding(EMPTY, EMPTY, EMPTY, truth={"domain": "x"})  # type: ignore[method-assign]
    assert play(blind, [[0.5] * 4]) == []
    assert Shift.summarise([{"record": "round", "round": 3}]) == {}


def test_the_level_is_the_mean_over_the_ends_of_the_steps() -> None:
    header = {"round": 0, "record": "stream", "boundaries": [2, 4]}
    about = {"metric": "mean_accuracy", "weighting": "targets"}
    accuracies = [{"round": r, "value": v, **about} for r, v in enumerate([0.1, 0.6, 0.0, 0.7, 0.2, 0.8], start=1)]
    rows = [{**line, "weighting": "rows", "value": 1.0} for line in accuracies]
    ends = [{"round": r, "record": "round"} for r in range(1, 7)]
    lines = [header, *accuracies, *rows, *ends, *({"round": 6, **r} for r in play(SWAP, SERIES))]
    assert Shift.summarise(lines)["step_end_accuracy"] == pytest.approx((0.6 + 0.7 + 0.8) / 3)


def test_what_the_accuracy_has_measured_is_not_measured_again() -> None:
    from shoal.metrics.accuracy import Accuracy

    stream = Moving([[0, 1]], [[2]])
    bank = Bank().put({"client/0": Entry(torch.zeros(1))})
    asked: list[int] = []

    def score(pairs: Any, metrics: Any = ()) -> list[list[Score]]:
        asked.append(len(pairs))
        return [[Score(0.0, 0.5, 1)] for _ in pairs]

    about = context(stream, Own(), rounds=3)
    look = seen(1, bank, score)
    Accuracy(about).observe(look, {})
    _, memory = Shift(about).observe(look, {})
    assert asked == [1]
    assert memory["clients"] == {"0": [[0, 0], 1, 0.5]}
