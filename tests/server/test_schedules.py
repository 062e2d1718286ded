"""Schedules, against torch's schedulers and by hand, in every server optimiser, and in a run that is resumed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import yaml
from server_steps import NAN, bits, walk

from shoal import registry
from shoal.bank import Entry
from shoal.checks.case import Case
from shoal.errors import ConfigError
from shoal.messages import World
from shoal.randomness import Moment
from shoal.schedules import Cosine, Exponential, Plateau, Schedule, Stages
from shoal.server.base import RatedServer
from shoal.server.plain import SGD

SCHEDULERS = torch.optim.lr_scheduler
RATED = ["sgd", "momentum", "adam", "amsgrad", "yogi", "adagrad"]


def world(rounds: int) -> World:
    return World(seed=0, clients=3, rounds=rounds, models={})


def made(given: Any, rounds: int = 10) -> RatedServer:
    resolved = yaml.safe_load(yaml.safe_dump(registry.resolve("server", given)))
    server = registry.build("server", resolved, world=world(rounds))
    assert isinstance(server, RatedServer)
    return server


def of_torch(make: Callable[[torch.optim.Optimizer], Any], rounds: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.8)
    scheduler, rates = make(optimizer), []
    for _ in range(rounds):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("rounds", [1, 2, 7, 40])
@pytest.mark.parametrize(
    ("schedule", "make"),
    [
        (Exponential(gamma=0.9), lambda r: lambda o: SCHEDULERS.ExponentialLR(o, 0.9)),
        (Cosine(), lambda r: lambda o: SCHEDULERS.CosineAnnealingLR(o, r)),
        (Cosine(floor=0.25), lambda r: lambda o: SCHEDULERS.CosineAnnealingLR(o, r, eta_min=0.2)),
        (Stages(at=[3, 5, 30], gamma=0.5), lambda r: lambda o: SCHEDULERS.MultiStepLR(o, [3, 5, 30], 0.5)),
    ],
    ids=["exponential", "cosine", "cosine-floor", "stages"],
)
def test_the_rates_of_all_rounds_are_those_of_torch(schedule: Schedule, make: Any, rounds: int) -> None:
    server = SGD(world(rounds), lr=0.8, lr_schedule=schedule)
    rates = [server.scheduled_rate(Moment(0, r), {}) for r in range(1, rounds + 1)]
    assert rates == pytest.approx(of_torch(make(rounds), rounds), rel=1e-9)
    x = [0.0, *walk(server, [0.0], [[1.0]] * rounds).x]
    assert [after - before for before, after in itertools.pairwise(x)] == pytest.approx(rates, abs=1e-5)


@pytest.mark.parametrize(
    ("at", "rounds", "falls"),
    [
        ([0.5, 0.75], 8, [5, 7]),
        ([0.5, 0.75], 10, [6, 9]),
        ([0.07], 100, [8]),
        ([0.57], 100, [58]),
        ([0.5, 9], 10, [6, 10]),
        ([0.01], 10, [2]),  # the first round has the whole rate
    ],
)
def test_stages_by_shares_of_the_rounds(at: list[float], rounds: int, falls: list[int]) -> None:
    # 0.07 * 100 is a hair above 7 in binary, 0.57 * 100 one below 57.
    factors = [Stages(at=at).factor(r, rounds, {}) for r in range(1, rounds + 1)]
    assert [r for r in range(2, rounds + 1) if factors[r - 1] < factors[r - 2]] == falls
    assert factors[-1] == pytest.approx(0.1 ** len(falls))


def test_exponential_stops_at_its_floor() -> None:
    factors = [Exponential(gamma=0.5, floor=0.2).factor(r, 0, {}) for r in range(1, 6)]
    assert factors == [1.0, 0.5, 0.25, 0.2, 0.2]


@pytest.mark.parametrize("schedule", [Exponential(gamma=0.5), Cosine(), Stages(at=[1])])
def test_a_warm_up_has_the_rate_of_the_first_round(schedule: Schedule) -> None:
    assert schedule.factor(0, 5, {}) == schedule.factor(1, 5, {}) == 1.0
    assert schedule.factor(2, 5, {}) < 1.0


def test_after_the_last_round_a_cosine_stays_where_it_ended() -> None:
    assert Cosine(floor=0.1).factor(9, 4, {}) == pytest.approx(0.1)


LOSSES = [3.0, 2.0, 2.5, 2.0, 1.99999, 2.1, 1.0, 1.0, 1.0, 1.5, 0.9, 0.9, 0.95, 5.0, 0.9, 0.9, 0.9, 0.9]


@pytest.mark.parametrize("patience", [0, 1, 3])
@pytest.mark.parametrize(("threshold", "floor"), [(1e-4, 0.0), (0.0, 0.1), (0.3, 0.0)])
@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam"])
def test_the_rates_on_a_plateau_are_those_of_torch(patience: int, threshold: float, floor: float, kind: str) -> None:
    settings = {"kind": "plateau", "gamma": 0.3, "patience": patience, "threshold": threshold, "floor": floor}
    server, entry = made({"kind": kind, "lr": 0.8, "lr_schedule": settings}), Entry(torch.zeros(1))
    assert server.reads_reported
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.8)
    scheduler = SCHEDULERS.ReduceLROnPlateau(
        optimizer, factor=0.3, patience=patience, threshold=threshold, min_lr=0.8 * floor, eps=0
    )
    rates = []
    for round, loss in enumerate(LOSSES, 1):
        scheduler.step(loss)
        vector, numbers = server.step(entry, entry.vector + 1, Moment(0, round), loss)
        entry = entry.new(vector=vector, server=numbers)
        rates.append(server.scheduled_rate(Moment(0, round), entry.server))
        assert rates[-1] == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
    assert rates[-1] < 0.8


def test_a_round_without_a_report_is_no_round_of_waiting() -> None:
    server, entry = SGD(lr_schedule=Plateau(patience=0, gamma=0.5)), Entry(torch.zeros(1))
    for loss, expected in [(NAN, 1.0), (2.0, 1.0), (NAN, 1.0), (math.inf, 1.0), (2.0, 0.5), (NAN, 0.5), (1.0, 0.5)]:
        vector, numbers = server.step(entry, entry.vector + 1, Moment(0, 1), loss)
        assert float(vector - entry.vector) == expected
        assert all(torch.isfinite(number).all() for number in numbers.values())
        entry = entry.new(vector=vector, server=numbers)


@pytest.mark.parametrize("kind", RATED)
def test_every_server_steps_at_the_scheduled_rate(kind: str) -> None:
    # The first fall comes with round 2: by hand, from where round 1 ended, at half the rate.
    plain, halved = made({"kind": kind, "lr": 0.2}), made({"kind": kind, "lr": 0.1})
    falling = made({"kind": kind, "lr": 0.2, "lr_schedule": {"kind": "exponential", "gamma": 0.5}})
    first = walk(plain, [1.0, -2.0], [[0.5, -0.25]])
    assert bits(walk(falling, [1.0, -2.0], [[0.5, -0.25]]).last.vector) == bits(first.last.vector)
    mean = first.last.vector + torch.tensor([-0.5, 1.0])
    expected, numbers = halved.step(first.last, mean, Moment(0, 2), NAN)
    found, kept = falling.step(first.last, mean, Moment(0, 2), NAN)
    assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-6)
    assert set(kept) == set(numbers)
    step = falling.effective_step(first.last.new(vector=found, server=kept), Moment(0, 2))
    other = halved.effective_step(first.last.new(vector=found, server=kept), Moment(0, 2))
    assert (step is None) == (other is None)
    if step is not None and other is not None:
        assert step.tolist() == pytest.approx(other.tolist())


@pytest.mark.parametrize("kind", RATED)
def test_without_a_fall_a_schedule_changes_no_bit(kind: str) -> None:
    changes = [[0.5, -0.1], [0.0, 0.3], [-0.7, 0.2]]
    still = {"kind": "stages", "at": [1000]}
    found = walk(made({"kind": kind, "lr_schedule": still}), [1.0, 2.0], changes).last
    plain = walk(made(kind), [1.0, 2.0], changes).last
    assert bits(found.vector) == bits(plain.vector)
    assert not made(kind).reads_reported
    assert made(kind).lr_schedule is None


def test_what_is_told() -> None:
    told = made({"kind": "adam", "lr_schedule": {"kind": "stages", "at": [0.5, 8]}}).describe()
    assert told["lr_schedule"] == {"class": "Stages", "at": [0.5, 8.0], "gamma": 0.1}
    assert made({"kind": "sgd", "lr_schedule": "plateau"}).describe()["lr_schedule"] == {
        "class": "Plateau",
        "gamma": 0.1,
        "patience": 10,
        "threshold": 1e-4,
        "floor": 0.0,
    }
    assert "lr_schedule" not in made("sgd").describe()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("cosin", "did you mean 'cosine'"),
        ({"kind": "exponential", "gamma": 0}, "0 < gamma <= 1; got 0"),
        ({"kind": "exponential", "gamma": 1.1}, "got 1.1"),
        ({"kind": "cosine", "floor": -0.1}, "0 <= floor <= 1"),
        ({"kind": "stages", "at": []}, "in rising order"),
        ({"kind": "stages", "at": [0.5, 0.25]}, "in rising order"),
        ({"kind": "stages", "at": [2.5]}, r"got \[2.5\]"),
        ({"kind": "stages", "at": [0]}, r"got \[0.0\]"),
        ({"kind": "plateau", "gamma": 1}, "0 < gamma < 1"),
        ({"kind": "plateau", "patience": -1}, "patience"),
        ({"kind": "plateau", "threshold": 1}, "0 <= threshold < 1"),
    ],
)
def test_a_wrong_schedule_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made({"kind": "sgd", "lr_schedule": given})


def test_a_schedule_over_the_rounds_needs_them() -> None:
    for schedule in (Cosine(), Stages()):
        with pytest.raises(ValueError, match="needs the number of rounds"):
            SGD(lr_schedule=schedule)
    assert SGD(lr_schedule=Stages(at=[2, 4])).scheduled_rate(Moment(0, 3), {}) == pytest.approx(0.1)


def test_a_resumed_run_goes_on_at_the_fallen_rate() -> None:
    # At this local rate the loss rises at once.
    schedule = {"kind": "plateau", "patience": 0, "gamma": 0.25}
    method = {"kind": "fedavg", "server": {"kind": "sgd", "lr_schedule": schedule}}
    case = Case(method=method, local={"lr": 30.0})
    whole = case.play(case.setup(rounds=5))
    server = whole.last.bank["global"].server
    assert float(server["schedule/factor"]) < 1
    resumed = case.play(case.setup(rounds=5), state=replace(whole.states[3]))
    assert resumed.prints[-1] == whole.prints[-1]
