"""BWT_f against numbers that were worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.metrics.transfer import BackwardTransfer, backward_transfer, first_trained, needed

# Four phases of three rounds, four tasks. | marks the boundaries 3, 6 and 9.
BOUNDARIES = (3, 6, 9)
MATRIX = {
    #   round  1    2    3  |  4    5    6  |  7    8    9  | 10   11   12
    0: dict(enumerate([0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.4, 0.3, 0.6, 0.6, 0.6, 0.6], start=1)),
    1: dict(enumerate([0.1, 0.2, 0.4, 0.4, 0.4, 0.4, 0.4, 0.3, 0.2, 0.2, 0.2, 0.2], start=1)),
    2: dict(enumerate([0.1, 0.1, 0.1, 0.1, 0.5, 0.6, 0.6, 0.6, 0.6, 0.7, 0.5, 0.8], start=1)),
    3: dict(enumerate([0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.6, 0.7, 0.8], start=1)),
}
TRAINED = {
    0: range(1, 10),  # phases 0, 1, 2: improves (b = 3), then falls (b = 6)
    1: (2, 3, 8, 9),  # phase 0, and phase 2 from its second round on
    2: (5, 6, 10, 11, 12),  # first touched late in phase 1, again in phase 3
    3: (10, 11, 12),  # first touched in phase 3
}
# Changes by task and boundary; * is an event. Behind it the change_j up to j = 5 or the end of the run.
#   task 0: b=3 *  .6-.5 = +.1   (.1 .2 .3 -.1 -.2; the last two lie in the next phase)
#           b=6 *  .4-.8 = -.4   (-.4 -.5 -.2 -.2 -.2)
#           b=9    .6-.6 =   0   (not trained in phase 3)
#   task 1: b=3    .4-.4 =   0
#           b=6 *  A[8]-A[6] = .3-.4 = -.1   (counted from round 8: -.1 -.2 -.2 -.2 -.2)
#           b=9    .2-.2 =   0
#   task 2: b=3    A[5]-A[3] = .5-.1 = +.4   (first touch, so no event)
#           b=6    .6-.6 =   0
#           b=9 *  .7-.6 = +.1   (.1 -.1 .2)
#   task 3: b=3 0, b=6 0, b=9 .6-.1 = +.5   (first touch)
EXPECTED = {
    "literal": 0.6 / 16,  # (.1-.4) + (-.1) + (.4+.1) + .5 = .6
    "literal_t_t_minus_1": 0.6 / 12,
    "seen": -0.3 / 16,  # .1 - .4 - .1 + .1
    "seen_per_event": -0.3 / 4,
    "negative": -0.5 / 16,  # -.4 - .1
    "negative_per_event": -0.5 / 4,
    "worst@1": -0.5 / 4,
    "worst@5": -1.0 / 4,  # -.2 - .5 - .2 - .1
    "events": 4,
    "missing": 0,
}


def same(found, expected):
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name] == (None if value is None else pytest.approx(value, abs=1e-12)), name


def without(*cells):
    """The matrix without these cells: null in odd rounds, not there at all in even ones."""
    return {
        t: {r: (None if (t, r) in cells and r % 2 else v) for r, v in row.items() if (t, r) not in cells or r % 2}
        for t, row in MATRIX.items()
    }


def test_every_number_of_a_hand_made_matrix():
    same(backward_transfer(MATRIX, BOUNDARIES, TRAINED, 4, 12), EXPECTED)


def test_points_instead_of_fractions_scale_everything():
    points = {t: {r: 100 * v for r, v in row.items()} for t, row in MATRIX.items()}
    scaled = {n: v if n in ("events", "missing") else 100 * v for n, v in EXPECTED.items()}
    same(backward_transfer(points, BOUNDARIES, TRAINED, 4, 12), scaled)


def test_a_drop_that_a_servers_momentum_postpones_is_seen_by_worst_at_5_alone():
    # In points. After round 1 a plain server falls at once and recovers, one with momentum falls two rounds later.
    plain, momentum = [76, 57, 71, 82, 78, 80], [76, 78, 69, 65, 67, 70]
    found = [
        backward_transfer({0: dict(enumerate(row, start=1))}, (1,), {0: range(1, 7)}, 1, 6) for row in (plain, momentum)
    ]
    assert [f["seen"] for f in found] == [57 - 76, 78 - 76]
    assert [f["negative"] for f in found] == [57 - 76, 0]
    assert [f["worst@1"] for f in found] == [57 - 76, 0]
    assert [f["worst@5"] for f in found] == [57 - 76, 65 - 76]


def test_first_touches_lift_the_literal_reading_and_no_other():
    # Five tasks. At the first of four boundaries task 4 is trained for the first time, from 50 to 80 points, and task
    # 0, trained before, falls from 80 to 70: 20 / 25 = 0.8 points literally, -10 / 25 = -0.4 of events.
    rounds = range(1, 11)
    matrix = {t: dict.fromkeys(rounds, 80) for t in range(5)}
    matrix[0] |= dict.fromkeys(rounds[2:], 70)
    matrix[4] |= dict.fromkeys(rounds[:2], 50)
    trained = {0: rounds, 1: (1, 2), 2: (1, 2), 3: (1, 2), 4: (3, 4)}
    found = backward_transfer(matrix, (2, 4, 6, 8), trained, 5, 10)
    assert found["literal"] == pytest.approx(20 / 25)
    assert found["seen"] == found["negative"] == pytest.approx(-10 / 25)
    assert found["events"] == 4


def test_sync_order_has_no_events():
    # Task t is trained in phase t alone and jumps from .1 to .6 there: literal counts two jumps of .5.
    matrix = {t: {r: 0.6 if r > 2 * t else 0.1 for r in range(1, 7)} for t in range(3)}
    trained = {t: (2 * t + 1, 2 * t + 2) for t in range(3)}
    found = backward_transfer(matrix, (2, 4), trained, 3, 6)
    same(
        found,
        {
            "literal": 1.0 / 9,
            "literal_t_t_minus_1": 1.0 / 6,
            "seen": 0.0,
            "seen_per_event": None,
            "negative": 0.0,
            "negative_per_event": None,
            "worst@1": None,
            "worst@5": None,
            "events": 0,
            "missing": 0,
        },
    )


def test_literal_counts_an_untrained_task_that_shares_its_model():
    # Nobody trains task 1 in the second phase, but the shared model forgets it: .5 -> .2.
    matrix = {0: {2: 0.5, 3: 0.5}, 1: {2: 0.5, 3: 0.2}}
    found = backward_transfer(matrix, (2,), {0: (1, 3), 1: (2,)}, 2, 3)
    assert found["literal"] == pytest.approx(-0.3 / 4)
    assert found["seen"] == 0.0
    assert found["events"] == 1


def test_one_task():
    found = backward_transfer({0: {1: 0.5, 2: 0.3, 3: 0.1}}, (1,), {0: (1, 2, 3)}, 1, 3)
    assert found["literal"] == pytest.approx(-0.2)
    assert found["literal_t_t_minus_1"] is None
    assert found["seen"] == pytest.approx(-0.2)
    assert found["worst@5"] == pytest.approx(-0.4)


def test_two_tasks_of_small_unsigned_integers_neither_truncate_nor_wrap():
    # -20 and -1 points: by T^2 = 4 is -5.25, by T(T-1) = 2 is -10.5.
    matrix = {t: dict(enumerate(np.array(row, dtype=np.uint8), start=1)) for t, row in enumerate([[50, 30], [7, 6]])}
    found = backward_transfer(matrix, (1,), {0: (1, 2), 1: (1, 2)}, 2, 2)
    assert found["literal"] == -5.25
    assert found["literal_t_t_minus_1"] == -10.5
    assert found["seen_per_event"] == -10.5


def test_a_missing_reference_leaves_the_pair_out():
    # Without A[0, 6] the -.4 goes: literal .6+.4 = 1, seen -.3+.4, negative -.1; worst@5 (-.2-.2-.1) over 3 events.
    found = backward_transfer(without((0, 6)), BOUNDARIES, TRAINED, 4, 12)
    expected = {
        "literal": 1.0 / 16,
        "literal_t_t_minus_1": 1.0 / 12,
        "seen": 0.1 / 16,
        "seen_per_event": 0.1 / 3,
        "negative": -0.1 / 16,
        "negative_per_event": -0.1 / 3,
        "worst@1": -0.1 / 3,
        "worst@5": -0.5 / 3,
        "events": 4,
        "missing": 1,
    }
    same(found, expected)


def test_a_null_at_the_first_change_leaves_the_pair_out_and_a_later_one_is_skipped():
    # A[0, 7] is the first change after b = 6, and the fourth (-.1, not the worst) after b = 3.
    found = backward_transfer(without((0, 7)), BOUNDARIES, TRAINED, 4, 12)
    assert found["missing"] == 1
    assert found["seen"] == pytest.approx(0.1 / 16)
    # A[2, 11] is the only drop of task 2 after b = 9: worst@5 is (-.2 - .5 - .2 - 0) / 4.
    found = backward_transfer(without((2, 11)), BOUNDARIES, TRAINED, 4, 12)
    assert found["missing"] == 0
    assert found["worst@5"] == pytest.approx(-0.9 / 4)


def test_not_a_number_is_a_missing_cell():
    table = {0: {1: 0.5, 2: float("nan")}, 1: {1: 0.5, 2: 0.4}}
    found = backward_transfer(table, (1,), {0: (1, 2), 1: (1, 2)}, 2, 2)
    assert found["missing"] == 1
    assert found["seen"] == pytest.approx(-0.1 / 4)


def test_nothing_measured_is_null_and_not_zero():
    found = backward_transfer({}, BOUNDARIES, TRAINED, 4, 12)
    assert found["missing"] == 12
    assert [found[n] for n in ("literal", "literal_t_t_minus_1", "seen", "negative", "worst@5")] == [None] * 5


def test_an_unfinished_run_counts_the_boundaries_that_it_passed():
    # After round 7: b = 3 and b = 6 with one round; task 1 has not come again yet.
    found = backward_transfer(MATRIX, BOUNDARIES, {t: [r for r in x if r <= 7] for t, x in TRAINED.items()}, 4, 7)
    assert found["events"] == 2
    assert found["literal"] == pytest.approx((0.1 - 0.4 + 0.4) / 16)
    # b = 3 sees .1 .2 .3 -.1 (round 8 is not there yet), b = 6 sees -.4.
    assert found["worst@5"] == pytest.approx((-0.1 - 0.4) / 2)
    assert backward_transfer(MATRIX, BOUNDARIES, TRAINED, 4, 3)["literal"] == 0.0


def test_no_tasks_is_an_error():
    with pytest.raises(ValueError, match="at least one"):
        backward_transfer({}, (1,), {}, 0, 2)


@pytest.mark.parametrize("seed", range(20))
def test_the_needed_rounds_are_enough(seed):
    # The same numbers from the needed cells alone, decided round by round without looking ahead.
    rng = np.random.default_rng(seed)
    rounds, tasks = 40, 4
    boundaries = sorted(int(b) for b in rng.choice(np.arange(1, rounds), size=3, replace=False))
    trained = {t: np.flatnonzero(rng.random(rounds) < 0.08).tolist() for t in range(tasks)}
    trained = {t: [r + 1 for r in found] for t, found in trained.items()}
    full = {t: {r: float(rng.random()) for r in range(1, rounds + 1)} for t in range(tasks)}
    due = [
        r
        for r in range(1, rounds + 1)
        if needed(r, boundaries, first_trained({t: [x for x in v if x <= r] for t, v in trained.items()}, boundaries))
    ]
    assert len(due) < rounds
    sparse = {t: {r: row[r] for r in due} for t, row in full.items()}
    found = backward_transfer(sparse, boundaries, trained, tasks, rounds)
    assert found["missing"] == 0
    assert found == backward_transfer(full, boundaries, trained, tasks, rounds)


def lines_of(matrix, trained, boundaries, tasks, rounds):
    lines = [{"round": 0, "record": "stream", "boundaries": list(boundaries), "tasks": tasks, "rounds": rounds}]
    for r in range(1, rounds + 1):
        lines += [
            {"round": r, "metric": "accuracy", "value": row[r], "rows": 10, "task": t} for t, row in matrix.items()
        ]
        told = {str(t): [0] if r in trained[t] else [] for t in matrix}
        lines.append({"round": r, "record": "round", "trained_tasks": told})
    return lines


def test_from_the_lines_of_a_run():
    found = BackwardTransfer.summarise(lines_of(MATRIX, TRAINED, BOUNDARIES, 4, 12))
    same(found["bwt_f"], EXPECTED)


def test_several_accuracies_of_a_task_are_averaged():
    lines = [{"round": 0, "record": "stream", "boundaries": [1], "tasks": 1}]
    for r, values in ((1, (0.5, 0.7)), (2, (0.3, 0.2))):
        lines += [{"round": r, "metric": "accuracy", "value": v, "task": 0, "client": c} for c, v in enumerate(values)]
        lines.append({"round": r, "record": "round", "trained_tasks": {"0": [0]}})
    # .6 -> .25
    assert BackwardTransfer.summarise(lines)["bwt_f"]["literal"] == pytest.approx(-0.35)


@pytest.mark.parametrize(
    "lines",
    [
        [],
        lines_of(MATRIX, TRAINED, (), 4, 12),
        lines_of(MATRIX, TRAINED, BOUNDARIES, 0, 12),
        lines_of({}, {}, BOUNDARIES, 4, 12),
        [
            {"round": 0, "record": "stream", "boundaries": [1], "tasks": 0},
            {"round": 1, "metric": "accuracy", "value": 1},
        ],
    ],
    ids=["nothing", "one phase", "no tasks", "no accuracies", "no task labels"],
)
def test_nothing_to_say(lines):
    assert BackwardTransfer.summarise(lines) == {}
