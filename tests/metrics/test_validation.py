"""Numbers on validation rows, and that nothing is measured twice in a round."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from measure_fakes import EMPTY, FakeMethod, FakeScore, FakeStream, bank, context, rows, seen, target

from shoal.metrics.accuracy import Accuracy
from shoal.metrics.validation import Validation


def test_lines_and_means():
    targets = [
        target(rows(10, 5), rows(50, 1), task=0),
        target(EMPTY, rows(60, 3), task=1),
        target(rows(10, 5), task=2),
    ]
    stream, method = FakeStream(targets), FakeMethod({t: [("a",)] for t in range(3)})
    score = FakeScore({((1.0,), 50): (0.2, 0.9), ((1.0,), 60): (0.6, math.inf)})
    lines, memory = Validation(context(stream, method, rounds=5)).observe(seen(5, bank(a=1), score), {})
    assert memory == {}
    assert lines == [
        {"metric": "validation_accuracy", "value": 0.2, "rows": 1, "entry": "a", "task": 0},
        {"metric": "validation_loss", "value": 0.9, "rows": 1, "entry": "a", "task": 0},
        {"metric": "validation_accuracy", "value": 0.6, "rows": 3, "entry": "a", "task": 1},
        {"metric": "validation_loss", "value": None, "rows": 3, "entry": "a", "task": 1},
        {"metric": "validation_accuracy", "value": None, "rows": 0, "entry": None, "task": 2},
        {"metric": "validation_loss", "value": None, "rows": 0, "entry": None, "task": 2},
        {"metric": "mean_validation_accuracy", "value": pytest.approx(0.4), "weighting": "targets", "targets": 2},
        {"metric": "mean_validation_accuracy", "value": pytest.approx(0.5), "weighting": "rows", "targets": 2},
    ]


def test_of_a_regression_there_are_the_losses_alone():
    stream = FakeStream([target(EMPTY, rows(50, 2), task=0)])
    stream.dataset = SimpleNamespace(is_regression=True)
    score = FakeScore({((1.0,), 50): (math.nan, 0.9)})
    lines, _ = Validation(context(stream, FakeMethod({0: [("a",)]}), rounds=5)).observe(seen(5, bank(a=1), score), {})
    assert lines == [{"metric": "validation_loss", "value": 0.9, "rows": 2, "entry": "a", "task": 0}]
    assert Validation.summarise([{"round": 5, **line} for line in lines]) == {
        "validation_accuracy": None,
        "validation_loss": 0.9,
    }


@pytest.mark.parametrize(
    ("every", "rounds", "expected"), [(1, 3, [1, 2, 3]), (50, 12, [8, 9, 10, 11, 12]), (0, 12, []), (1, 0, [])]
)
def test_in_the_last_five_rounds(every, rounds, expected):
    measure = Validation(context(FakeStream([]), every=every, rounds=rounds))
    found = [r for r in range(rounds + 1) if measure.observe(seen(r, last=r == rounds), {})[0]]
    assert found == expected


def test_the_loss_of_the_choice_is_not_measured_again():
    stream = FakeStream([target(rows(10, 5), rows(50, 4), task=0)])
    method = FakeMethod({0: [("a",), ("b",)]})
    table = {((1.0,), 50): (0.3, 0.9), ((2.0,), 50): (0.8, 0.4), ((2.0,), 10): (0.7, 0.5)}
    score = FakeScore(table)
    about, full = context(stream, method, rounds=2), bank(a=1, b=2)
    round = seen(1, full, score)
    _, memory = Accuracy(about).observe(round, {})
    lines, _ = Validation(about).observe(round, {})
    assert [(x["value"], x.get("entry")) for x in lines[:2]] == [(0.8, "b"), (0.4, "b")]
    assert score.calls == [[((1.0,), 50), ((2.0,), 50)], [((2.0,), 10)]]
    # In the next round nothing has changed: the accuracy's memory serves both, whoever comes first.
    again = seen(2, full, score, last=True)
    assert Accuracy(about).observe(again, memory)[1]["targets"] == memory["targets"]
    assert Validation(about).observe(again, {})[0] == lines
    assert len(score.calls) == 2


def test_the_order_of_the_measures_changes_no_number():
    stream = FakeStream([target(rows(10, 5), rows(50, 4), task=0)])
    method = FakeMethod({0: [("a",), ("b",)]})
    table = {((1.0,), 50): (0.3, 0.9), ((2.0,), 50): (0.8, 0.4), ((2.0,), 10): (0.7, 0.5)}
    about, full = context(stream, method, rounds=1), bank(a=1, b=2)
    found = []
    for order in ((Accuracy, Validation), (Validation, Accuracy)):
        score = FakeScore(table)
        round = seen(1, full, score, last=True)
        found.append({kind: kind(about).observe(round, {}) for kind in order})
        assert sorted(key for call in score.calls for key in call) == [((1.0,), 50), ((2.0,), 10), ((2.0,), 50)]
    assert found[0] == found[1]


def test_the_summary_is_the_mean_over_rounds_of_the_plain_mean_over_targets():
    lines = [
        {"round": r, "metric": "validation_accuracy", "value": v, "rows": n, "task": t}
        for r, t, v, n in [(8, 0, 0.2, 1), (8, 1, 0.6, 9), (9, 0, 0.8, 1), (9, 1, None, 0)]
    ]
    assert Validation.summarise(lines) == {"validation_accuracy": pytest.approx(0.6), "validation_loss": None}
    assert Validation.summarise([]) == {"validation_accuracy": None, "validation_loss": None}
