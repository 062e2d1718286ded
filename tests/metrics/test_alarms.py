"""Alarms beside true changes, counted by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from measure_fakes import EMPTY, FakeStream, context, seen

from shoal.messages import Update
from shoal.metrics.alarms import Alarms
from shoal.streams.base import Holding


class Timed(FakeStream):
    """``clusters[client][round - 1]``; a client's step is how often its rows were new: in ``fresh`` rounds."""

    def __init__(self, clusters: Sequence[str], fresh: Sequence[int] = (), label: str = "cluster") -> None:
        super().__init__([])
        self.clusters, self.fresh, self.label, self.clients = clusters, fresh, label, len(clusters)

    def holding(self, client: int, round: int) -> Holding:
        return Holding(EMPTY, EMPTY, EMPTY, truth={self.label: self.clusters[client][round - 1]})

    def step(self, client: int, round: int) -> int:
        return sum(first <= round for first in self.fresh)


def play(stream: Timed, *alarms: str, ends: bool = True) -> list[dict[str, Any]]:
    """A line per round; ``alarms[client]`` has ``!`` for an alarm, ``.`` for none and a space for no update.

    ``ends``: the run is over with these rounds.
    """
    measure, memory, lines = Alarms(context(stream)), {}, []
    for round in range(1, len(alarms[0]) + 1):
        here = {c: marks[round - 1] for c, marks in enumerate(alarms) if marks[round - 1] != " "}
        told = [Update({}, 1.0, note={"alarm": mark == "!"}, client=c) for c, mark in here.items()]
        view = seen(round, truths={c: stream.holding(c, round).truth for c in here})
        view = replace(view, accepted=told, last=ends and round == len(alarms[0]))
        found, memory = measure.observe(view, memory)
        lines += [{"round": round, **line} for line in found]
    return lines


def totals(lines: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = Alarms.summarise(lines)["alarms"]
    return found


def test_detected_at_once_later_and_not_at_all() -> None:
    lines = play(Timed(["aaabbbbbbb", "aaabbbbbbb", "aaabbbbbbb"]), "...!......", "......!...", "..........")
    assert lines[3] == {
        "round": 4, "metric": "alarms", "value": 1, "clients": 3, "changed": 3, "detected": 1, "missed": 0,
        "false": 0, "new_rows": 0, "delays": [0],
    }  # fmt: skip
    assert (lines[6]["detected"], lines[6]["delays"]) == (1, [3])
    # Five rounds after the change the time is over.
    assert [line["missed"] for line in lines] == [0, 0, 0, 0, 0, 0, 0, 0, 1, 0]
    found = totals(lines)
    assert (found["changes"], found["detected"], found["missed"], found["false"]) == (3, 2, 1, 0)
    assert found["mean_delay"] == 1.5
    assert (found["all"], found["false_rate"]) == (2, 0)


def test_false_alarms() -> None:
    # Before the change, a second one after it, one too late, and one at new rows of the same cluster.
    lines = play(Timed(["aaabbbbbbb", "aaabbbbbbb", "aaaaaaaaaa"], fresh=[4]), ".!.!!.....", "........!.", "...!......")
    found = totals(lines)
    assert [line["false"] for line in lines] == [0, 1, 0, 1, 1, 0, 0, 0, 1, 0]
    assert (found["detected"], found["missed"], found["false"], found["new_rows"]) == (1, 1, 4, 1)
    assert found["false_rate"] == pytest.approx(4 / (30 - 2))


def test_changes_whose_five_rounds_are_not_over_are_neither_noticed_nor_missed() -> None:
    def counts(clusters: str, alarms: str, ends: bool = True) -> tuple[int, ...]:
        found = totals(play(Timed([clusters, "a" * len(clusters)]), alarms, "." * len(clusters), ends=ends))
        return tuple(found[name] for name in ("changes", "detected", "missed", "open"))

    assert counts("aabbbb", "......") == (1, 0, 0, 1)  # four rounds after the change, its own included
    assert counts("aabbbbb", ".......") == (1, 0, 1, 0)  # five
    assert counts("aabbbbb", ".......", ends=False) == (1, 0, 0, 1)  # the next round tells
    assert counts("aabbbbbb", "........", ends=False) == (1, 0, 1, 0)
    assert counts("aabbbbbb", "........") == (1, 0, 1, 0)  # not twice
    assert counts("aabbbbb", "......!") == (1, 1, 0, 0)
    assert counts("aabb", "..!.") == (1, 1, 0, 0)
    assert counts("aabbbbb", "...    ") == (1, 0, 1, 0)  # changed, and was not heard of again
    assert counts("aabcc", ".....") == (2, 0, 1, 1)
    assert counts("aaaa", "....") == (0, 0, 0, 0)


def test_a_change_that_follows_another_ends_the_wait_for_it() -> None:
    found = totals(play(Timed(["aabcc"]), "...!."))
    assert (found["changes"], found["detected"], found["missed"], found["mean_delay"]) == (2, 1, 1, 0)


def test_a_client_that_was_away_changes_when_it_comes_back() -> None:
    lines = play(Timed(["aabbbb", "aaaaaa"]), "..  !.", "......")
    assert [line["changed"] for line in lines] == [0, 0, 0, 0, 1, 0]
    assert lines[4]["delays"] == [0]


def test_no_truth_no_watching() -> None:
    assert play(Timed(["aa"], label="phase"), ".!") == [
        {"round": 1, "metric": "alarms", "value": 0, "clients": 1},
        {"round": 2, "metric": "alarms", "value": 1, "clients": 1},
    ]
    assert totals(play(Timed(["aa"], label="phase"), ".!")) == {"all": 1}
    measure = Alarms(context(Timed(["a"])))
    assert measure.observe(replace(seen(1), accepted=[Update({}, 1.0, client=0)]), {}) == ([], {})
    assert measure.observe(replace(seen(0), accepted=[Update({}, 1.0, note={"alarm": True})]), {}) == ([], {})
    assert Alarms.summarise([]) == {}
    calm = totals(play(Timed(["aa"]), ".."))
    assert (calm["mean_delay"], calm["changes"]) == (None, 0)
