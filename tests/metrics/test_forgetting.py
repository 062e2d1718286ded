"""Forgetting against matrices that were worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.metrics.forgetting import Forgetting, forgetting

# Four tasks, a phase of one round each; task t is trained in round t + 1.
MATRIX = {
    #            round 1    2    3    4
    0: dict(enumerate([0.5, 0.7, 0.8, 0.4], start=1)),  # improves twice, then falls
    1: dict(enumerate([0.1, 0.6, 0.3, 0.2], start=1)),  # falls
    2: dict(enumerate([0.1, 0.1, 0.5, 0.9], start=1)),  # improves
    3: dict(enumerate([0.2, 0.2, 0.2, 0.7], start=1)),  # trained last
}
BOUNDARIES = (1, 2, 3)
TRAINED = {t: [t + 1] for t in range(4)}


def same(found, **expected):
    assert found == {name: None if v is None else pytest.approx(v, abs=1e-12) for name, v in expected.items()}


def test_a_task_that_improves_and_then_falls():
    # first: .5-.4, .6-.2, .5-.9 = .1 .4 -.4. best: .8-.4, .6-.2, .5-.9 = .4 .4 -.4.
    found = forgetting(MATRIX, BOUNDARIES, TRAINED)
    same(found, first=0.1 / 3, best=0.4 / 3, tasks=3, new=1, missing=0)


def test_integers_neither_truncate_nor_wrap():
    # In whole percent, as bytes: -40 would wrap around to 216.
    whole = {t: {r: np.uint8(round(100 * v)) for r, v in row.items()} for t, row in MATRIX.items()}
    same(forgetting(whole, BOUNDARIES, TRAINED), first=10 / 3, best=40 / 3, tasks=3, new=1, missing=0)


def test_one_task_has_nothing_to_forget():
    same(forgetting({0: {1: 0.5, 2: 0.3}}, (), {0: [1, 2]}), first=None, best=None, tasks=0, new=1, missing=0)


def test_two_tasks_and_phases_of_two_rounds():
    # Task 0 is at its best in round 3, after the boundary; rounds before its first training do not count.
    matrix = {0: {1: 0.9, 2: 0.6, 3: 0.7, 4: 0.5}, 1: {1: 0.1, 2: 0.1, 3: 0.4, 4: 0.3}}
    found = forgetting(matrix, (2,), {0: [2], 1: [3, 4]})
    same(found, first=0.1, best=0.2, tasks=1, new=1, missing=0)


def test_a_task_that_ends_with_its_best_has_negative_forgetting():
    found = forgetting({0: {1: 0.5, 2: 0.6, 3: 0.8}, 1: {3: 0.5}}, (1, 2), {0: [1], 1: [3]})
    same(found, first=-0.3, best=-0.2, tasks=1, new=1, missing=0)


@pytest.mark.parametrize("value", [None, float("nan")])
@pytest.mark.parametrize("cell", [(0, 1), (0, 4)])
def test_without_the_end_of_the_phase_or_the_final_accuracy_a_task_is_missing(value, cell):
    task, round = cell
    matrix = {**MATRIX, task: {**MATRIX[task], round: value}}
    # Tasks 1 and 2 remain: .4 and -.4.
    same(forgetting(matrix, BOUNDARIES, TRAINED), first=0.0, best=0.0, tasks=3, new=1, missing=1)


def test_a_cell_that_is_not_there_is_missing_too():
    matrix = {**MATRIX, 0: {1: 0.5, 2: 0.7, 4: 0.4}, 1: {1: 0.1, 3: 0.3, 4: 0.2}}
    # Task 0 without its round 3: .5-.4 and .7-.4; task 1 without its boundary; task 2 -.4.
    same(forgetting(matrix, BOUNDARIES, TRAINED), first=-0.3 / 2, best=-0.1 / 2, tasks=3, new=1, missing=1)


def test_all_missing_is_null():
    same(forgetting({0: {1: 0.5, 2: None}}, (1,), {0: [1]}), first=None, best=None, tasks=1, new=0, missing=1)
    same(forgetting({}, (1,), {0: [1]}), first=None, best=None, tasks=0, new=0, missing=0)


def test_a_task_that_was_never_trained_is_not_counted():
    found = forgetting(MATRIX, BOUNDARIES, {0: [1], 1: []})
    same(found, first=0.1, best=0.4, tasks=1, new=0, missing=0)


def test_tasks_at_several_clients_belong_to_the_phase_of_their_first_training():
    # Everything is trained in the first phase by somebody, task 1 again later: .5-.4, and .1-.2; .8-.4, .6-.2.
    found = forgetting(MATRIX, (1, 2, 3), {0: [1, 2], 1: [1, 4]})
    same(found, first=(0.1 - 0.1) / 2, best=(0.4 + 0.4) / 2, tasks=2, new=0, missing=0)


def test_an_unfinished_run_ends_with_its_last_measured_round():
    early = {t: {r: v for r, v in row.items() if r <= 3} for t, row in MATRIX.items()}
    # .5-.8 and .6-.3; .7-.8 and .6-.3.
    found = forgetting(early, BOUNDARIES, TRAINED)
    same(found, first=0.0, best=0.1, tasks=2, new=1, missing=0)


def lines_of(tasks=4, boundaries=BOUNDARIES):
    lines = [{"round": 0, "record": "stream", "boundaries": list(boundaries), "tasks": tasks}]
    for r in range(1, 5):
        lines += [{"round": r, "metric": "accuracy", "value": row[r], "task": t} for t, row in MATRIX.items()]
        lines.append({"round": r, "record": "round", "trained_tasks": {str(r - 1): [0], "3": [0] if r == 4 else []}})
    return lines


def test_from_the_lines_of_a_run():
    same(Forgetting.summarise(lines_of())["forgetting"], first=0.1 / 3, best=0.4 / 3, tasks=3, new=1, missing=0)


@pytest.mark.parametrize("lines", [[], lines_of(tasks=0), lines_of(boundaries=()), lines_of()[:1]])
def test_nothing_to_say(lines):
    assert Forgetting.summarise(lines) == {}
