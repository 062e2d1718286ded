"""Partial work: who does how much of it, that it counts, and that every engine and learner does the same."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from shoal.checks.case import Case
from shoal.config import Execution, Participation
from shoal.engine.plan import total_steps
from shoal.errors import ConfigError
from shoal.messages import Client
from shoal.participation import Selected, Selection
from shoal.randomness import Moment
from shoal.requests import Served

PARTIAL = {"partial_probability": 0.7}


def drawn(clients: int = 100, rounds: int = 40, **settings: Any) -> list[Selected]:
    selection = Selection(Participation(**settings), clients, lambda c: 1)
    return [s for r in range(rounds) for s in selection.draw(Moment(0, r + 1))]


def test_the_share_is_uniform_and_the_probability_is_kept() -> None:
    works = np.array([s.work for s in drawn(partial_probability=0.4, partial_least=0.2)])
    partial = works[works < 1]
    # 4,000 draws: standard errors 0.008 and, of the mean of a uniform share, 0.006.
    assert len(partial) / len(works) == pytest.approx(0.4, abs=0.03)
    assert 0.2 <= partial.min() < 0.21
    assert partial.mean() == pytest.approx(0.6, abs=0.025)
    quarters = np.histogram(partial, np.linspace(0.2, 1, 5))[0] / len(partial)
    np.testing.assert_allclose(quarters, 0.25, atol=0.04)


def test_it_changes_no_other_fate() -> None:
    fates = {"straggler_probability": 0.3, "crash_probability": 0.1, "fraction": 0.5}
    without, within = drawn(rounds=5, **fates), drawn(rounds=5, **fates, partial_probability=0.5)
    assert [replace(s, work=1.0) for s in within] == without
    assert {s.work for s in without} == {1.0}
    assert len({s.work for s in within}) > 100


def test_the_ends() -> None:
    assert {s.work for s in drawn(rounds=1, partial_probability=1.0, partial_least=1.0)} == {1.0}
    assert all(s.work < 1 for s in drawn(rounds=1, partial_probability=1.0))
    for bad in ({"partial_probability": 1.1}, {"partial_least": -0.1}, {"partial_least": True}):
        with pytest.raises(ValueError, match="partial"):
            Participation(**bad)
    with pytest.raises(ConfigError, match="partial_probability"):
        Case().setup(participation={"partial_probability": 2})


@pytest.mark.parametrize(
    ("local", "work", "given", "expected"),
    [
        # 7 rows in batches of 2 are 4 steps an epoch.
        ({"epochs": 2}, 0.5, {}, 4),
        ({"epochs": 2}, 0.3, {}, 2),  # 2.4
        ({"epochs": 2}, 0.32, {}, 3),  # 2.56
        ({"epochs": 2}, 0.01, {}, 1),
        ({"epochs": 2}, 1.0, {}, 8),
        ({"epochs": 1.5}, 0.5, {}, 3),
        ({"steps": 10}, 0.25, {}, 3),  # 2.5
        ({"steps": 10}, 0.0001, {}, 1),
        ({"steps": 10}, 1.0, {}, 10),
        ({"epochs": 2}, 0.5, {"epochs": 4}, 8),
        ({"epochs": 2}, 0.5, {"steps": 6}, 3),
    ],
)
def test_whole_steps_and_at_least_one(local: Any, work: float, given: dict[str, Any], expected: int) -> None:
    setup = Case(local=local).setup()
    rows = torch.arange(7)
    client = Client(0, Moment(0, 1), rows, rows[:0], work=work)
    entry = setup.method.start()["global"]
    fit = setup.method.learner.request(Served.of(entry), client, **given)
    assert total_steps(7, 2, fit.epochs, fit.steps, False) == expected


LEARNERS: list[Any] = [
    "plain",
    "proximal",
    "scaffold",
    {"kind": "svrg", "anchor": "global"},
    {"kind": "early-stopping", "gamma": 0.0},
]


@pytest.mark.parametrize("learner", LEARNERS, ids=str)
@pytest.mark.parametrize("mean", ["weighted", "fednova"])
def test_all_engines_agree_and_count_the_steps_taken(learner: Any, mean: str) -> None:
    made = {"kind": learner} if isinstance(learner, str) else learner
    case = Case(method={"kind": "fedavg", "mean": mean}, learner=made, local={"epochs": 3})
    setups = [case.setup(participation=PARTIAL) for _ in range(3)]
    serial, workers, stacked = (
        case.play(setup, engine=Execution(kind=kind, workers=2 if kind == "workers" else None), rounds=2)  # type: ignore[arg-type]
        for setup, kind in zip(setups, ("serial", "workers", "stacked"), strict=True)
    )
    assert serial.prints == workers.prints
    assert serial.lines == workers.lines
    a, b = (run.last.bank["global"].vector for run in (serial, stacked))
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    for number, (lines, selected) in enumerate(zip(serial.lines, _selected(setups[0]), strict=True), start=1):
        (record,) = [line for line in serial.records[number - 1] if line["record"] == "round"]
        assert record["partial"] == sum(s.work < 1 for s in selected)
        assert len(record["trained"]["global"]) == 4  # the updates count
        if made["kind"] == "early-stopping":
            continue
        expected = 0
        for s in selected:
            batches = -(-len(setups[0].stream.holding(s.client, number).train) // 2)
            expected += max(1, math.floor(3 * s.work * batches + 0.5))
        (told,) = [line for line in map(json.loads, lines) if line.get("metric") == "client_steps"]
        assert told["value"] == expected


def _selected(setup: Any) -> list[list[Selected]]:
    found = [setup.selection.draw(Moment(0, r)) for r in (1, 2)]
    assert any(s.work < 1 for s in found[0])
    assert any(s.work == 1 for some in found for s in some)
    return found


def test_a_client_with_a_single_step_is_drawn_for_partial_work_and_takes_it() -> None:
    case = Case(local={"epochs": 1, "batch_size": 100})
    run = case.play(case.setup(participation={"partial_probability": 1.0}), rounds=1)
    (record,) = run.told("round")
    (steps,) = [line["value"] for line in map(json.loads, run.lines[0]) if line.get("metric") == "client_steps"]
    assert (record["partial"], steps) == (4, 4)


def test_a_resumed_run_is_the_uninterrupted_one() -> None:
    case = Case(learner={"kind": "scaffold"}, local={"epochs": 4})
    whole = case.play(case.setup(participation=PARTIAL))
    rest = case.play(case.setup(participation=PARTIAL), state=whole.states[1])
    assert rest.prints[-1] == whole.prints[-1]
    full = case.play(case.setup())
    assert full.models[-1] != whole.models[-1]
    assert [line["partial"] for line in full.told("round")] == [0, 0, 0]


def test_a_late_client_with_partial_work_is_still_late() -> None:
    case = Case()
    settings = {"partial_probability": 1.0, "straggler_probability": 1.0}
    run = case.play(case.setup(participation=settings), rounds=1)
    (record,) = run.told("round")
    assert (record["stragglers"], record["partial"]) == (4, 4)
    assert run.models[0] == run.models[-1]
