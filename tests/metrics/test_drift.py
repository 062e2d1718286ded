"""Client drift against hand-computed means."""

from __future__ import annotations

import math

import pytest
import torch
from measure_fakes import context, seen

from shoal.bank import Buffers
from shoal.messages import Failure, Outcome, Update
from shoal.metrics.drift import ClientDrift
from shoal.requests import Drift, FitResult

ANSWER = Update({}, 1.0)


def fit(squared, head=(), distance=0.0, distance_head=0.0, cosine=0.0, cosine_head=0.0):
    drift = Drift(squared, head, distance, distance_head, cosine, cosine_head)
    return FitResult(torch.empty(0), Buffers(), 1, 1, 0.0, drift)


def numbers(*outcomes):
    lines, memory = ClientDrift(context()).observe(seen(1, outcomes=outcomes), {})
    assert memory == {}
    return {(line["metric"], line["over"]): (line["value"], line["clients"]) for line in lines}


def test_the_mean_over_epochs_and_clients():
    found = numbers(
        Outcome(0, ANSWER, (fit((1.0, 3.0), (0.5, 1.5), 2.0, 1.0, 0.25, 0.75),)),
        Outcome(4, ANSWER, (fit((4.0, 8.0), (1.0, 2.0), 4.0, 2.0, 0.75, 0.25),)),
    )
    assert found == {
        ("client_drift", "all"): (4.0, 2),  # (1 + 3 + 4 + 8) / 4
        ("client_drift", "head"): (1.25, 2),
        ("client_drift_distance", "all"): (3.0, 2),
        ("client_drift_distance", "head"): (1.5, 2),
        ("client_drift_cosine", "all"): (0.5, 2),
        ("client_drift_cosine", "head"): (0.5, 2),
    }


def test_every_client_counts_once_however_many_epochs_fits_and_exchanges_it_has():
    found = numbers(
        Outcome(0, ANSWER, (fit((0.0,), distance=1.0), fit((2.0, 4.0), distance=2.0))),
        Outcome(0, ANSWER, (fit((6.0,), distance=6.0),)),
        Outcome(1, ANSWER, (fit((9.0,), distance=9.0),)),
    )
    assert found["client_drift", "all"] == (6.0, 2)  # client 0: (0 + 2 + 4 + 6) / 4 = 3
    assert found["client_drift_distance", "all"] == (6.0, 2)  # client 0: (1 + 2 + 6) / 3 = 3


def test_without_a_head_there_are_no_lines_about_it():
    assert {over for _, over in numbers(Outcome(0, ANSWER, (fit((1.0,)),)))} == {"all"}


def test_failures_idle_clients_and_infinities_are_left_out():
    found = numbers(
        Outcome(0, Failure("crash"), (fit((100.0,)),)),
        Outcome(1, ANSWER, ()),
        Outcome(2, ANSWER, (fit(()),)),
        Outcome(3, ANSWER, (fit((1.0, math.inf), distance=math.nan),)),
        Outcome(4, ANSWER, (fit((2.0,), distance=1.5),)),
    )
    assert found["client_drift", "all"] == (2.0, 1)
    assert found["client_drift_distance", "all"] == (1.5, 1)


def test_no_lines_where_nobody_trained():
    assert numbers() == {}
    assert numbers(Outcome(0, ANSWER, (fit((math.nan,), distance=math.nan, cosine=math.nan),))) == {}


def test_summary_is_the_mean_over_rounds_without_the_warm_up():
    lines = [
        {"round": r, "metric": metric, "over": over, "value": value * r}
        for r in (0, 1, 3)
        for metric, over, value in [
            ("client_drift", "all", 1.0),
            ("client_drift", "head", 0.5),
            ("client_drift_cosine", "all", 0.1),
        ]
    ]
    summary = ClientDrift.summarise(lines)
    assert summary["client_drift"] == 2.0
    assert summary["client_drift_by"] == {
        "squared": {"all": 2.0, "head": 1.0},
        "distance": {"all": None, "head": None},
        "cosine": {"all": pytest.approx(0.2), "head": None},
    }


def test_summary_of_nothing():
    assert ClientDrift.summarise([{"round": 1, "record": "round"}])["client_drift"] is None
