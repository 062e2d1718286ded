"""Metrics beside the accuracy: their lines, what is measured once, what fails, and their spread over targets."""

from __future__ import annotations

import json
import math
import statistics

import pytest
from measure_fakes import EMPTY, FakeMethod, FakeScore, FakeStream, bank, context, entry, rows, seen, target

from shoal.metrics.accuracy import Accuracy
from shoal.metrics.functions import NAN, Failed
from shoal.metrics.spread import spread

OWN = "my_module:gain"


def two_clients(metrics):
    stream = FakeStream([target(rows(10, 5), client=0), target(rows(20, 7), client=1), target(EMPTY, client=2)])
    method = FakeMethod({c: [(f"client/{c}",)] for c in range(3)})
    return Accuracy(context(stream, method, metrics=metrics))


def play(measure, *rounds):
    memory, lines = {}, []
    for one in rounds:
        found, memory = measure.observe(one, memory)
        memory = json.loads(json.dumps(memory, allow_nan=False))
        lines += [{"round": one.when.round, **line} for line in found]
    return json.loads(json.dumps(lines, allow_nan=False))


FULL = bank(client_0=1, client_1=2, client_2=9)
ONE, TWO, THREE = ((1.0,), 10), ((2.0,), 20), ((3.0,), 20)
TABLE = {ONE: (0.5, 0.7), TWO: (0.9, 0.3), THREE: (0.8, 0.4)}


def test_lines_have_the_functions_name_and_come_from_one_pass():
    score = FakeScore(TABLE, {ONE: {"f1": 0.25, OWN: -1.0}, TWO: {"f1": 0.75, OWN: 3.0}})
    lines = play(two_clients(["f1", OWN]), seen(1, FULL, score))
    about = {"round": 1, "rows": 7, "entry": "client/1", "client": 1}
    assert [line for line in lines if line.get("client") == 1] == [
        {"metric": "accuracy", "value": 0.9, **about},
        {"metric": "loss", "value": 0.3, **about},
        {"metric": "f1", "value": 0.75, **about},
        {"metric": "gain", "value": 3.0, **about},
    ]
    assert [line["value"] for line in lines if line["metric"] == "gain"] == [-1.0, 3.0, None]
    assert score.metrics == [("f1", OWN)]


def test_what_did_not_change_keeps_its_metrics():
    score = FakeScore(TABLE, {ONE: {"f1": 0.25}, TWO: {"f1": 0.75}, THREE: {"f1": None}})
    second = FULL.put({"client/1": entry(3)})
    lines = play(two_clients(["f1"]), seen(1, FULL, score), seen(2, FULL, score), seen(3, second, score))
    assert score.calls == [[ONE, TWO], [THREE]]
    assert [x["value"] for x in lines if x["metric"] == "f1"] == [0.25, 0.75, None, 0.25, 0.75, None, 0.25, None, None]


def test_a_failure_is_null_and_told_once():
    bad = {"f1": Failed(NAN), OWN: Failed("KeyError: 1")}
    score = FakeScore(TABLE, {ONE: bad, TWO: bad, THREE: {"f1": 0.5, OWN: Failed("KeyError: 2")}})
    second = FULL.put({"client/1": entry(3)})
    lines = play(two_clients(["f1", OWN]), seen(1, FULL, score), seen(2, second, score), seen(3, second, score))
    records = [line for line in lines if line.get("record") == "metric_failed"]
    first = {"round": 1, "record": "metric_failed", "targets": 2, "entry": "client/0", "client": 0}
    assert records == [
        {**first, "kind": "f1", "reason": NAN},
        {**first, "kind": OWN, "reason": "KeyError: 1"},
        {**first, "round": 2, "kind": OWN, "reason": "KeyError: 2", "targets": 1, "entry": "client/1", "client": 1},
    ]
    assert [x["value"] for x in lines if x.get("metric") == "f1"] == [
        None,
        None,
        None,
        None,
        0.5,
        None,
        None,
        0.5,
        None,
    ]
    # The accuracy of a client whose metrics failed stays.
    assert [x["value"] for x in lines if x.get("metric") == "accuracy"][:2] == [0.5, 0.9]
    assert Accuracy.summarise(lines)["over_targets"]["f1"]["excluded"] == 2


def test_reasons_that_are_always_new_are_not_told_for_ever():
    score = FakeScore({((float(n),), 10): (0.5, 0.7) for n in range(9)})
    score.more = {((float(n),), 10): {OWN: Failed(f"ValueError: {n}")} for n in range(9)}
    stream, method = FakeStream([target(rows(10, 5), client=0)]), FakeMethod({0: [("a",)]})
    measure = Accuracy(context(stream, method, metrics=[OWN]))
    states = [bank(a=0)]
    for n in range(1, 9):
        states.append(states[-1].put({"a": entry(n)}))
    lines = play(measure, *(seen(r, b, score) for r, b in enumerate(states, start=1)))
    assert sum(1 for line in lines if line.get("record") == "metric_failed") == 5


def test_a_list_is_no_number():
    score = FakeScore(TABLE, {ONE: {OWN: [1, 2]}, TWO: {OWN: 1.0}})
    lines = play(two_clients([OWN]), seen(1, FULL, score))
    assert [line["value"] for line in lines if line.get("metric") == "gain"] == [None, 1.0, None]
    (record,) = (line for line in lines if "record" in line)
    assert "gave a list" in record["reason"]


# ---- over targets -----------------------------------------------------------------------------------------------


def test_both_means_of_clients_with_1_and_99_rows():
    stream = FakeStream([target(rows(0, 1), client=0), target(rows(1, 99), client=1)])
    method = FakeMethod({0: [("a",)], 1: [("a",)]})
    score = FakeScore({((1.0,), 0): (0.0, 9.0), ((1.0,), 1): (1.0, 1.0)})
    lines = play(Accuracy(context(stream, method)), seen(1, bank(a=1), score))
    found = Accuracy.summarise(lines)["over_targets"]
    common = {"sd": pytest.approx(math.sqrt(0.5)), "n": 2, "excluded": 0}
    assert found["accuracy"] == {"mean": 0.5, "by_rows": 0.99, "worst_decile": 0, "worst": 0, "best": 1, **common}
    assert found["loss"]["mean"] == 5.0
    assert found["loss"]["by_rows"] == pytest.approx((9 + 99) / 100)
    assert (found["loss"]["worst_decile"], found["loss"]["worst"], found["loss"]["best"]) == (9.0, 9.0, 1.0)


def test_only_the_last_measured_round_and_only_what_was_measured_on_test_rows():
    about = {"rows": 3, "entry": "a", "client": 0}
    lines = [
        {"round": 1, "metric": "accuracy", "value": 0.1, **about},
        {"round": 1, "metric": "mean_accuracy", "value": 0.1, "weighting": "targets", "targets": 1},
        {"round": 2, "metric": "accuracy", "value": 0.4, **about},
        {"round": 2, "metric": "loss", "value": 0.6, **about},
        {"round": 2, "metric": "mae", "value": 2.0, **about},
        {"round": 2, "metric": "accuracy", "value": 0.6, **about, "client": 1},
        {"round": 2, "metric": "loss", "value": 0.5, **about, "client": 1},
        {"round": 2, "metric": "mae", "value": 3.0, **about, "client": 1},
        {"round": 2, "metric": "mean_accuracy", "value": 0.5, "weighting": "targets", "targets": 2},
        {"round": 2, "metric": "validation_accuracy", "value": 0.9, "rows": 2, "entry": "a", "client": 0},
    ]
    found = Accuracy.summarise(lines)["over_targets"]
    assert set(found) == {"accuracy", "loss", "mae"}
    assert found["accuracy"]["mean"] == 0.5
    assert (found["mae"]["worst"], found["mae"]["best"]) == (3.0, 2.0)


@pytest.mark.parametrize(("n", "tenth"), [(1, 1), (2, 1), (10, 1), (11, 2), (20, 2), (21, 3)])
def test_the_worst_tenth(n, tenth):
    values = [(7 * i) % 23 / 23 for i in range(n)]
    found = spread(values, [1.0] * n)
    assert found["worst_decile"] == pytest.approx(statistics.fmean(sorted(values)[:tenth]))
    assert found["sd"] == (pytest.approx(statistics.stdev(values)) if n > 1 else None)
    high = spread(values, [1.0] * n, lower_is_better=True)
    assert high["worst_decile"] == pytest.approx(statistics.fmean(sorted(values)[-tenth:]))
    assert (high["worst"], high["best"]) == (max(values), min(values))


def test_targets_without_a_value_are_counted():
    found = spread([None, -1.0, float("nan"), 3.0], [50, 1, 50, 3])
    assert (found["mean"], found["by_rows"], found["n"], found["excluded"]) == (1.0, 2.0, 2, 2)
    nothing = spread([None, None], [1, 1])
    assert nothing.pop("excluded") == 2
    assert nothing.pop("n") == 0
    assert set(nothing.values()) == {None}
