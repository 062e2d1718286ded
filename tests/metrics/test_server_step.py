"""The measure of the server's step: which entries get a line, and the medians by hand."""

from __future__ import annotations

import json
from math import sqrt
from typing import Any

import pytest
import torch

from shoal.bank import Bank, Entry
from shoal.config import Evaluation, Local
from shoal.learners.base import Learner
from shoal.messages import World
from shoal.methods.base import Method
from shoal.metrics.base import Context, Line, Seen
from shoal.metrics.server import ServerStep
from shoal.randomness import Moment
from shoal.registry import find
from shoal.server.adaptive import Adam, AMSGrad
from shoal.server.base import ServerOptimizer
from shoal.server.means import Weighted
from shoal.server.plain import SGD, Momentum
from shoal.streams.base import Stream


def measure(server: ServerOptimizer) -> ServerStep:
    world = World(seed=0, clients=2, rounds=3, models={})
    method = Method(world, Learner(world, Local()), Weighted(), server)
    return ServerStep(Context(world, Stream(), method, Evaluation()))


def seen(before: Bank, after: Bank, round: int = 1) -> Seen:
    return Seen(Moment(0, round), before, after, (), (), (), {}, {}, lambda pairs: [], False)


def stepped(server: ServerOptimizer, entry: Entry, change: list[float], round: int = 1) -> Entry:
    vector, numbers = server.step(entry, entry.vector + torch.tensor(change), Moment(0, round), float("nan"))
    return entry.new(vector=vector, server=numbers)


def lines_of(server: ServerOptimizer, before: Bank, after: Bank, round: int = 1) -> list[Line]:
    lines, memory = measure(server).observe(seen(before, after, round), {})
    assert memory == {}
    json.dumps(lines, allow_nan=False)
    return lines


def test_only_entries_that_took_a_step_have_lines() -> None:
    server = Adam(lr=0.1, tau=0.1)
    before = Bank().put({"task/0": Entry(torch.zeros(3)), "task/1": Entry(torch.zeros(3))})
    after = before.put({"task/1": stepped(server, before["task/1"], [1.0, 0.0, -2.0])})
    # v = .0099 + .01 Delta^2 = .0199, .0099, .0499: the median is .0199
    assert lines_of(server, before, after) == [
        {"metric": "median_sqrt_v", "value": pytest.approx(sqrt(0.0199)), "entry": "task/1"},
        {"metric": "effective_step", "value": pytest.approx(0.1 / (sqrt(0.0199) + 0.1)), "entry": "task/1"},
    ]
    # The next round changes the entry without a step of the server (only its weight): nothing to tell.
    later = after.put({"task/1": after["task/1"].new(weight=5.0)})
    assert lines_of(server, after, later) == []
    assert lines_of(server, after, after) == []


def test_an_entry_born_in_the_round_counts_and_a_retired_one_does_not() -> None:
    server = Adam(lr=0.1, tau=0.1)
    old = Bank().put({"concept/0": stepped(server, Entry(torch.zeros(1)), [1.0])})
    new = old.put({"concept/0": None, "concept/1": stepped(server, Entry(torch.zeros(1)), [0.0])})
    assert [line["entry"] for line in lines_of(server, old, new)] == ["concept/1", "concept/1"]


def test_the_median_of_an_even_number_lies_between() -> None:
    server = Adam(lr=1.0, tau=0.5, beta2=0.0)
    before = Bank().put({"global": Entry(torch.zeros(4))})
    after = before.put({"global": stepped(server, before["global"], [0.0, 0.5, -1.5, 9.0])})
    root, step = lines_of(server, before, after)  # v = Delta^2
    assert root["value"] == pytest.approx(1.0)
    assert step["value"] == pytest.approx((1 / (0.5 + 0.5) + 1 / (1.5 + 0.5)) / 2)


def test_reddis_maximum_is_what_counts() -> None:
    server = AMSGrad(lr=0.1, tau=0.1, form="reddi")
    first = Bank().put({"global": stepped(server, Entry(torch.zeros(1)), [1.0])})
    second = first.put({"global": stepped(server, first["global"], [0.0], round=2)})
    root, step = lines_of(server, first, second, round=2)
    assert root["value"] == pytest.approx(sqrt(0.0199))  # not sqrt(.019701)
    assert step["value"] == pytest.approx(0.1 / (sqrt(0.0199) + 0.1))


def test_the_rate_of_the_round_is_used() -> None:
    class Falling(Adam):
        def rate(self, when: Moment) -> float:
            return self.lr / when.round

    server = Falling(lr=0.1, tau=0.1)
    before = Bank().put({"global": Entry(torch.zeros(1))})
    after = before.put({"global": stepped(server, before["global"], [1.0], round=4)})
    step = lines_of(server, before, after, round=4)[1]
    assert step["value"] == pytest.approx(0.025 / (sqrt(0.0199) + 0.1))


@pytest.mark.parametrize("server", [SGD(), Momentum()])
def test_servers_without_a_second_moment_have_no_lines(server: ServerOptimizer) -> None:
    before = Bank().put({"global": Entry(torch.zeros(2))})
    after = before.put({"global": stepped(server, before["global"], [1.0, 2.0])})
    assert lines_of(server, before, after) == []


def test_an_entry_without_numbers_has_no_lines() -> None:
    server = Adam()
    before = Bank().put({"pool": Entry(torch.zeros(0))})
    after = before.put({"pool": stepped(server, before["pool"], [])})
    assert lines_of(server, before, after) == []


def test_summary() -> None:
    def line(metric: str, value: float | None, entry: str) -> dict[str, Any]:
        return {"round": 1, "metric": metric, "value": value, "entry": entry}

    lines = [
        line("median_sqrt_v", 9.0, "task/0"),
        {"round": 1, "metric": "accuracy", "value": 0.5, "task": 0},
        {"round": 1, "record": "round"},
        line("median_sqrt_v", 1.0, "task/0"),
        line("median_sqrt_v", 2.0, "task/1"),
        line("median_sqrt_v", 6.0, "task/2"),
        line("effective_step", 0.5, "task/2"),
        line("effective_step", None, "task/2"),
    ]
    assert ServerStep.summarise(lines) == {"median_sqrt_v": 2.0, "effective_step": 0.5}
    assert ServerStep.summarise([]) == {}
    assert find("measure", "server") is ServerStep
