"""PENS: the selection by hand, the threshold in its three forms, and when it begins anew."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from gossip_lab import Run, built, data_of, forward, mean, play, weights_of

from shoal.bank import Entry
from shoal.checks.case import Case
from shoal.checks.tamper import PostedEngine
from shoal.errors import ConfigError
from shoal.messages import Participant
from shoal.methods.pens import Pens
from shoal.randomness import Moment

SIZES = [9, 17, 6, 13, 21]


def method(**more: Any) -> dict[str, Any]:
    return {"kind": "pens", "drawn_peers": 3, "best": 2, "selection_rounds": 2, "contacts": 2, **more}


def counts(run: Run, round: int, client: int) -> dict[int, int]:
    stored = run.state(round).bank[f"client/{client}"].server["kept/selected"].tolist()
    return {int(i): int(c) for i, c in zip(*stored, strict=True)}


def best(run: Run, round: int, client: int) -> list[int]:
    """The two peers, of those drawn, whose models of the round before lose least on the client's rows."""
    x, y = data_of(run, client)
    drawn = run.assigned(round)[client].note["random"]
    assert len(drawn) == 3
    return sorted(drawn, key=lambda j: forward(weights_of(run.vector(round - 1, j)), x, y)[0])[:2]


def test_the_best_are_mixed_and_counted() -> None:
    run = play(method=method(), rounds=2)
    frozen = play(method=method(), rounds=1, state=run.state(0), local={"lr": 1e-30})
    for i in range(5):
        models = {j: weights_of(run.vector(0, j)) for j in [i, *best(run, 1, i)]}
        expected = mean(models, SIZES)
        found = weights_of(frozen.states[-1].bank[f"client/{i}"].vector.double().numpy())
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6)
        chosen = [*best(run, 1, i), *best(run, 2, i)]
        assert counts(run, 2, i) == {j: chosen.count(j) for j in set(chosen)}


def test_gossip_is_among_those_that_were_best_more_often_than_expected() -> None:
    run = play(method=method(), rounds=4)
    for round in (3, 4):
        for i, given in run.assigned(round).items():
            # Four selections among four neighbours: expected once.
            above = [j for j, c in counts(run, 2, i).items() if c > Fraction(2 * 2, 4)]
            how = "similar" if above else "random"
            assert set(given.note[how]) <= set(above or range(5))
            assert len(given.note[how]) == min(2, len(above) or 4)
            assert counts(run, 4, i) == counts(run, 2, i)


@pytest.mark.parametrize(
    ("threshold", "expected"), [("expected", [5]), ("authors", [1, 5, 7]), ("all-clients", [1, 5, 7])]
)
def test_the_threshold(threshold: str, expected: list[int]) -> None:
    """12 selections, 6 neighbours: more than 2; more than 1; more than 12/7, which is 2 and above."""
    made = built(stream={"sizes": [6] * 7}, method=method(threshold=threshold)).method
    assert isinstance(made, Pens)
    table = torch.tensor([[1.0, 2.0, 5.0, 7.0, 9.0], [2.0, 1.0, 6.0, 2.0, 1.0]])
    assert made.chosen(Entry(torch.zeros(1), server={"kept/selected": table}), 6).tolist() == expected


def test_selection_begins_anew() -> None:
    run = play(method=method(reselect_every=3), rounds=4)
    for i in range(5):
        assert sum(counts(run, 2, i).values()) == 4
        assert sum(counts(run, 3, i).values()) == 4  # gossip
        assert counts(run, 4, i) == dict.fromkeys(best(run, 4, i), 1)


def test_who_misses_the_first_round_of_a_new_selection_begins_anew_all_the_same() -> None:
    """Four of five take part: rounds 1, 2, 4 and 5 select, with two of the best in each."""
    run = play(method=method(reselect_every=3), rounds=6, participation={"count": 4})
    there = {line["round"]: line["participants"] for line in run.all(record="round")}
    late = [i for i in there[5] if i not in there[4] and {1, 2} & {r for r in there if i in there[r]}]
    assert late
    for i in range(5):
        for first in (1, 4):
            chosen = 2 * sum(i in there[round] for round in (first, first + 1))
            found = run.state(first + 1).bank[f"client/{i}"].server
            if chosen:
                assert sum(counts(run, first + 1, i).values()) == chosen
            elif first == 1:
                assert "kept/selected" not in found
    # Nobody to speak of: a client that was in no round of the second selection has all neighbours.
    made, old = run.setup.method, run.state(2).bank["client/0"]
    assert isinstance(made, Pens)
    old = old.new(server={**old.server, "kept/selected": torch.tensor([[1.0], [9.0]])})
    seat = Participant(0)
    assert made.drawn(old, Moment(0, 3), seat, np.arange(1, 5), {})["similar"] == [1]
    assert len(made.drawn(old, Moment(0, 6), seat, np.arange(1, 5), {})["random"]) == 2


def test_counts_are_never_sent() -> None:
    run = play(method=method(), rounds=1)
    size = run.state(0).bank["client/0"].vector.numel() * 4
    assert [line["value"] for line in run.all(metric="bytes_down")] == [0, 3 * size]
    assert not run.state(1).bank["client/0"].extra


@pytest.mark.parametrize("more", [{}, {"selection_rounds": 3}, {"reselect_every": 3}])
def test_programs_in_other_processes_count_on(more: dict[str, Any]) -> None:
    # What the server keeps of an entry is not sent there, and the counts are of all rounds of a selection.
    case = Case(method=method(**more))
    here, there = case.play(case.setup(), rounds=5), case.play(case.setup(), rounds=5, engine=PostedEngine)
    assert here.prints == there.prints
    assert here.last.bank["client/0"].server["kept/selected"].numel()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"best": 4}, "best: at most as many as drawn_peers, 3; got 4"),
        ({"reselect_every": 2}, "must be above selection_rounds, 2; got 2"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        built(method=method(**settings))
