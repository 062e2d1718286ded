"""The record of the paper and the gates, step by step; what they do when distances rise or a concept is missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from test_matching import made, on_a_line

from shoal.clustering.distances import Distance
from shoal.clustering.matching import Matched


def record(found: Matched) -> list[float]:
    return found.numbers["matching/record"].tolist()


def usual(found: Matched) -> list[float]:
    return found.numbers["matching/usual"].tolist()


def grown(distances: list[float], rule: Any, past: Any = None) -> list[str]:
    """The fates of one concept's clusters, whose distances from its one model are these, round by round."""
    fates = []
    for d in distances:
        found = on_a_line(rule, [d], [0.0], past)
        past = found.numbers
        fates += found.fates
    return fates


# ---- the paper's record ---------------------------------------------------------------------------------------


def test_algorithm_1_step_by_step() -> None:
    # Three models at 0, 100 and 200. Round 1: three clusters all lie nearest to the first.
    first = on_a_line("paper", [5.0, 8.0, 3.0], [0.0, 100.0, 200.0])
    # 5 claims model 0; 8 does not beat its record of 5, and goes on to the next, 92 away; 3 beats 5.
    assert first.models == (None, 1, 0)
    assert first.fates == ("overwritten", "claimed", "accepted")
    assert record(first) == [3, 92, 0]
    assert first.numbers["matching/claimed"].tolist() == [True, True, False]
    # Round 2, models at 3, 8 and 200. 7 is 1 from model 1 (record 92); 4.5 is 1.5 from model 0, and beats 3;
    # 6.5 is 1.5 from model 1, whose record is 1 by now, and 3.5 from model 0, whose record is 1.5: it claims the third.
    second = on_a_line("paper", [7.0, 4.5, 6.5], [3.0, 8.0, 200.0], first.numbers)
    assert second.models == (1, 0, 2)
    assert second.fates == ("accepted", "accepted", "claimed")
    assert record(second) == [1.5, 1, 193.5]
    # Round 3, models at 4.5, 7 and 6.5. 4 is 0.5 from model 0; 8 is 1 from model 1, which is no less than 1, but also
    # 1.5 from the third, whose record is large; 9 then beats none of them.
    third = on_a_line("paper", [4.0, 8.0, 9.0], [4.5, 7.0, 6.5], second.numbers)
    assert third.models == (0, 2, None)
    assert third.fates == ("accepted", "accepted", "rejected")
    assert record(third) == [0.5, 1, 1.5]
    np.testing.assert_array_equal(third.distances[2], [4.5, 2, 2.5])


def test_the_order_of_the_clusters() -> None:
    means, models = [5.0, 8.0, 3.0], [0.0, 100.0, 200.0]
    rule = {"kind": "paper", "order": "ascending"}
    # 3 comes first, and 5 does not beat it; it goes to the second, 95 away, where 8 then beats it by 92.
    assert on_a_line(rule, means, models).models == (None, 1, 0)
    # where nobody gives way nothing is overwritten: 3 keeps the model that 5 had first, by their labels
    assert on_a_line(rule, [5.0, 3.0], models).models == (1, 0)
    assert on_a_line("paper", [5.0, 3.0], models).models == (None, 0)
    assert on_a_line(rule, [5.0, 3.0], models).fates == ("claimed", "claimed")


def test_by_pairs_every_model_and_cluster_is_used_once() -> None:
    found = on_a_line({"kind": "paper", "order": "pairs"}, [5.0, 8.0, 3.0], [0.0, 100.0, 200.0])
    assert found.models == (2, 1, 0)  # 3-0, then 8-100 (92), then 5-200
    assert record(found) == [3, 92, 195]
    again = on_a_line({"kind": "paper", "order": "pairs"}, [1.0, 2.0, 90.0], [0.0, 100.0, 200.0], found.numbers)
    # 1-0; 90-100; 2 is 98 from the second, which is taken, and 198 from the third, more than 195
    assert again.models == (0, None, 1)
    assert again.fates == ("accepted", "rejected", "accepted")


def test_distances_follow_the_updates_in_place() -> None:
    # Model 0 becomes 40 by the first cluster; 42 then is 2 from it instead of 42, and 58 from model 1.
    rule = {"kind": "paper", "distances": "in_place"}
    found = on_a_line(rule, [40.0, 42.0], [0.0, 100.0])
    assert found.models == (None, 0)
    assert record(found) == [2, 0]
    assert on_a_line("paper", [40.0, 42.0], [0.0, 100.0]).models == (0, 1)
    corrected = on_a_line({**rule, "size_corrected": True}, [40.0, 42.0], [0.0, 100.0], sizes=[1, 9])
    assert record(corrected) == [6, 0]  # 2 sqrt(9)


def test_a_record_never_rises_without_slack_and_leak() -> None:
    rng = np.random.default_rng(0)
    for options in ({}, {"order": "ascending"}, {"order": "pairs"}, {"distances": "in_place"}):
        past: Any = {}
        before = np.full(3, np.inf)
        for _ in range(25):
            means = torch.tensor(rng.standard_normal((4, 2)), dtype=torch.float32)
            found = made({"kind": "paper", **options}).match(means, torch.zeros(3, 2), [1] * 4, past, Distance())
            past = found.numbers
            now = np.where(past["matching/claimed"], past["matching/record"], np.inf)
            assert (now <= before).all()
            for c, model in enumerate(found.models):
                if model is not None and options.get("distances") != "in_place":
                    assert found.distances[c, model] == now[model] < before[model]
            before = now


def test_slack_and_leak() -> None:
    assert grown([10, 10, 9.9, 9.95], "paper") == ["claimed", "rejected", "accepted", "rejected"]
    assert grown([10, 11.9, 14.0, 17.0], {"kind": "paper", "slack": 1.2}) == [
        "claimed",
        "accepted",
        "accepted",
        "rejected",
    ]
    # 10, 11, 12.1, then 12 beats 12.1 and is the record
    leak = {"kind": "paper", "leak": 1.1}
    assert grown([10, 12, 12, 12, 12], leak) == ["claimed", "rejected", "rejected", "accepted", "rejected"]
    # the nearest model leaks, and only it
    past = on_a_line(leak, [10.0, 60.0], [0.0, 50.0])
    assert record(past) == [10, 10]
    assert record(on_a_line(leak, [70.0], [0.0, 50.0], past.numbers)) == pytest.approx([10, 11])
    pairs = on_a_line({**leak, "order": "pairs"}, [70.0], [0.0, 50.0], past.numbers)
    assert record(pairs) == pytest.approx([10, 11])


# ---- gates ----------------------------------------------------------------------------------------------------


def test_gates_step_by_step() -> None:
    first = on_a_line("gated", [2.0, 96.0], [0.0, 100.0, 300.0])
    assert (first.models, first.fates) == ((0, 1), ("claimed", "claimed"))
    assert usual(first) == [2, 4, 0]
    # 2.5 < 1.5 * 2; 107 is 7 from the second, not less than 6, and goes to the third, which is open to all
    second = on_a_line("gated", [107.0, 2.5], [0.0, 100.0, 300.0], first.numbers)
    assert (second.models, second.fates) == ((2, 0), ("claimed", "accepted"))
    assert usual(second) == pytest.approx([0.7 * 2 + 0.3 * 2.5, 4, 193])
    # all gates are shut now: 1.5 * 2.15 = 3.225 and 6; the model that is nearest opens its own a little
    third = on_a_line("gated", [3.3, 106.0], [0.0, 100.0, 400.0], second.numbers)
    assert (third.models, third.fates) == ((None, None), ("rejected", "rejected"))
    assert usual(third) == pytest.approx([2.15 * 1.2, 4.8, 193])
    fourth = on_a_line("gated", [3.3, 106.0], [0.0, 100.0, 400.0], third.numbers)
    assert fourth.fates == ("accepted", "accepted")
    assert usual(fourth) == pytest.approx([0.7 * 2.58 + 0.3 * 3.3, 0.7 * 4.8 + 0.3 * 6, 193])


def test_a_late_concept_gets_no_gate_that_others_fit_through() -> None:
    rule = made("gated")
    # 1 is a new concept, whose clients trained from the model at 0: it claims the one at 81, which is 80 away.
    past = on_a_line("gated", [1.0], [0.0, 81.0])
    late = on_a_line("gated", [-1.0, 1.0], [0.0, 81.0], past.numbers)
    assert (late.models, late.fates, usual(late)) == ((0, 1), ("accepted", "claimed"), [1, 80])
    assert late.claims == {1: 1}
    settled = rule.settled(late, {1: 1.0})
    assert usual(settled) == [1, 1]
    assert (settled.models, settled.fates) == (late.models, late.fates)
    assert usual(late) == [1, 80]
    # The concept is missing, and another cluster lies 3 from its model: outside 1.5, inside 120.
    for before, fate in ((settled, "rejected"), (late, "accepted")):
        assert on_a_line("gated", [-1.5, 4.0], [-1.0, 1.0], before.numbers).fates == ("accepted", fate)
    # It is there again, 1.4 away.
    back = on_a_line("gated", [-1.5, 2.4], [-1.0, 1.0], settled.numbers)
    assert (back.models, usual(back)) == ((0, 1), pytest.approx([0.7 + 0.3 * 0.5, 0.7 + 0.3 * 1.4]))


def test_a_first_update_narrows_its_gate_and_never_widens_it() -> None:
    rule = made("gated")
    first = on_a_line("gated", [3.0, -2.0], [0.0, 0.0, 0.0])
    assert usual(first) == [3, 2, 0]
    for likely, expected in (
        ({0: 3.0, 1: 2.0}, [3, 2, 0]),
        ({0: 9.0, 1: 0.5}, [3, 0.5, 0]),
        ({0: 0.0, 1: np.inf}, [3, 2, 0]),
    ):
        assert usual(rule.settled(first, likely)) == expected
    # Only first updates are looked at; a distance of 0 says nothing as before.
    second = on_a_line("gated", [3.0, -2.0], [0.0, 0.0, 0.0], first.numbers)
    assert usual(rule.settled(second, {})) == usual(second)
    still = on_a_line("gated", [0.0], [0.0])
    assert usual(rule.settled(still, {0: 0.0})) == [0]
    # What a rejected cluster widened stays wider (4 * 1.2), and sizes stay corrected.
    widened = on_a_line("gated", [5.0, 4.0, 7.0], [0.0])
    assert usual(rule.settled(widened, {1: 1.0})) == pytest.approx([1.2])
    sized = {"kind": "gated", "size_corrected": True}
    assert usual(made(sized).settled(on_a_line(sized, [80.0], [0.0], sizes=[4]), {0: 1.0})) == [2]
    for other in ("paper", "nearest", "one-to-one"):
        found = on_a_line(other, [80.0], [0.0])
        assert made(other).settled(found, {0: 1.0}) is found


def test_clusters_that_are_left_over_join_the_nearest_model_inside_its_gate() -> None:
    past = on_a_line("gated", [10.0, 90.0], [0.0, 100.0]).numbers
    found = on_a_line("gated", [5.0, -12.0, 98.0, -20.0, 50.5], [0.0, 100.0], past)
    assert found.models == (0, 0, 1, None, None)
    assert found.fates == ("accepted", "merged", "accepted", "rejected", "rejected")
    assert found.members(np.array([0, 4, 1, 2, 0, 3])) == {0: (0, 2, 4), 1: (3,)}
    # the gate follows the cluster that came first, and was widened by -20 and 50.5 where each is nearest
    assert usual(found) == pytest.approx([(0.7 * 10 + 0.3 * 5) * 1.2, (0.7 * 10 + 0.3 * 2) * 1.2])


def test_more_clusters_than_models_in_the_first_round() -> None:
    # 4 claims the only model; its gate is 6 from now on
    found = on_a_line("gated", [5.0, 4.0, 7.0], [0.0])
    assert found.models == (0, 0, None)
    assert found.fates == ("merged", "claimed", "rejected")
    assert usual(found) == pytest.approx([4 * 1.2])


def test_a_missing_concept_is_left_alone() -> None:
    models = [0.0, 100.0, 200.0]
    past = on_a_line("gated", [5.0, 105.0, 205.0], models).numbers
    # Concept 2 is missing, and concept 1 is split: its halves share a model instead of taking the third.
    found = on_a_line("gated", [4.0, 104.0, 106.0], models, past)
    assert found.updates == {0: (0,), 1: (1, 2)}
    assert usual(found)[2] == 5
    # one to one without gates overwrites it
    assert on_a_line("one-to-one", [4.0, 104.0, 106.0], models).updates == {0: (0,), 1: (1,), 2: (2,)}


def test_rising_distances_stop_the_record_and_not_the_gates() -> None:
    rising = [100.0, 130.0, 180.0, 240.0, 300.0, 360.0]
    assert grown(rising, "paper") == ["claimed"] + ["rejected"] * 5
    assert grown([*rising, *[101.0] * 20], "paper")[-1] == "rejected"
    # usual 100, 109, 130.8 (rejected: 180 > 163.5), 157.0 (240 > 196.2), 188.4 (300 > 235.4), 226.0 (360 > 282.5)
    assert grown(rising, "gated") == ["claimed", "accepted", *["rejected"] * 4]
    recovered = grown([*rising, *[360.0] * 3], "gated")
    assert recovered[6:] == ["rejected", "accepted", "accepted"]
    gentle = [100.0, 120.0, 144.0, 172.8, 207.36, 248.8, 248.8]
    assert grown(gentle, "paper") == ["claimed"] + ["rejected"] * 6
    # usual 100, 106, 117.4, 134.0; 207.36 > 201.0, so 160.8; 248.8 > 241.2, so 193.0
    assert grown(gentle, "gated") == ["claimed", *["accepted"] * 3, "rejected", "rejected", "accepted"]


def test_a_distance_of_zero_is_accepted_and_shuts_no_gate() -> None:
    assert grown([0.0, 3.0, 0.0, 4.0], "gated") == ["claimed", "accepted", "accepted", "accepted"]
    found = on_a_line("gated", [0.0], [0.0])
    assert usual(found) == [0]
    assert usual(on_a_line("gated", [3.0], [0.0], found.numbers)) == [3]


def test_the_constants_of_the_gates_are_settings() -> None:
    rule = {"kind": "gated", "gate": 3.0, "decay": 0.5, "widen": 2.0}
    past = on_a_line(rule, [10.0], [0.0]).numbers
    inside = on_a_line(rule, [29.0], [0.0], past)
    assert (inside.fates, usual(inside)) == (("accepted",), [19.5])
    outside = on_a_line(rule, [31.0], [0.0], past)
    assert (outside.fates, usual(outside)) == (("rejected",), [20])
