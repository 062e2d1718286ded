"""The measure of the server's step: which entries get a line, and the numbers by hand and by numpy."""

from __future__ import annotations

import json
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch

from shoal.bank import Bank, Entry
from shoal.config import Evaluation, Local
from shoal.learners.base import Learner
from shoal.messages import Group, Part, World
from shoal.methods.base import Method
from shoal.metrics.base import Context, Line, Seen
from shoal.metrics.server import ServerStep
from shoal.randomness import Moment
from shoal.registry import find
from shoal.server.adaptive import Adam, AMSGrad
from shoal.server.base import ServerOptimizer
from shoal.server.calibrations import Epsilon, Power, Softplus
from shoal.server.flash import Flash
from shoal.server.means import Weighted
from shoal.server.plain import SGD, Momentum
from shoal.server.quantiles import LIMIT
from shoal.streams.base import Stream


def measure(server: ServerOptimizer) -> ServerStep:
    world = World(seed=0, clients=2, rounds=3, models={})
    method = Method(world, Learner(world, Local()), Weighted(), server)
    return ServerStep(Context(world, Stream(), method, Evaluation()))


SHARES = [0.05, 0.25, 0.5, 0.75, 0.95]


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
    # v = .0099 + .01 Delta^2 = .0199, .0099, .0499: the median is .0199, and one root is below tau
    roots = np.sqrt([0.0199, 0.0099, 0.0499])
    assert lines_of(server, before, after) == [
        {
            "metric": "median_sqrt_v",
            "value": pytest.approx(sqrt(0.0199)),
            "quantiles": pytest.approx(np.quantile(roots, SHARES).tolist()),
            "entry": "task/1",
        },
        {
            "metric": "effective_step",
            "value": pytest.approx(0.1 / (sqrt(0.0199) + 0.1)),
            "quantiles": pytest.approx(np.quantile(0.1 / (roots + 0.1), SHARES).tolist()),
            "entry": "task/1",
        },
        {"metric": "calibration_constant", "value": 0.1, "entry": "task/1"},
        {"metric": "below_constant", "value": pytest.approx(1 / 3), "entry": "task/1"},
    ]
    # The next round changes the entry without a step of the server (only its weight): nothing to tell.
    later = after.put({"task/1": after["task/1"].new(weight=5.0)})
    assert lines_of(server, after, later) == []
    assert lines_of(server, after, after) == []


def test_a_server_that_cuts_says_in_which_share() -> None:
    server = Flash(v_init="zero")
    before = Bank().put({"global": Entry(torch.zeros(4))})
    after = before.put({"global": stepped(server, before["global"], [0.0, 0.5, -1.5, 1e-3])})
    # With nothing before, d = .99 Delta^2 against sqrt(v) = .1 |Delta|.
    (line,) = [line for line in lines_of(server, before, after) if line["metric"] == "clamped"]
    assert line == {"metric": "clamped", "value": 0.5, "entry": "global"}
    assert ServerStep.summarise([line])["clamped"] == 0.5
    assert "clamped" not in {x["metric"] for x in lines_of(Adam(), before, after)}
    many = Bank().put({f"client/{i}": Entry(torch.zeros(1)) for i in range(40)})
    moved = many.put({k: stepped(server, e, [float(i < 10)]) for i, (k, e) in enumerate(many.entries.items())})
    (line,) = [line for line in lines_of(server, many, moved) if line["metric"] == "clamped"]
    assert line == {"metric": "clamped", "value": 0.25, "entries": 40}


def test_an_entry_born_in_the_round_counts_and_a_retired_one_does_not() -> None:
    server = Adam(lr=0.1, tau=0.1)
    old = Bank().put({"concept/0": stepped(server, Entry(torch.zeros(1)), [1.0])})
    new = old.put({"concept/0": None, "concept/1": stepped(server, Entry(torch.zeros(1)), [0.0])})
    assert {line["entry"] for line in lines_of(server, old, new)} == {"concept/1"}


def test_the_median_of_an_even_number_lies_between() -> None:
    server = Adam(lr=1.0, tau=0.5, beta2=0.0)
    before = Bank().put({"global": Entry(torch.zeros(4))})
    after = before.put({"global": stepped(server, before["global"], [0.0, 0.5, -1.5, 9.0])})
    root, step, *_ = lines_of(server, before, after)  # v = Delta^2
    assert root["value"] == pytest.approx(1.0)
    assert step["value"] == pytest.approx((1 / (0.5 + 0.5) + 1 / (1.5 + 0.5)) / 2)


def test_reddis_maximum_is_what_counts() -> None:
    server = AMSGrad(lr=0.1, tau=0.1, form="reddi")
    first = Bank().put({"global": stepped(server, Entry(torch.zeros(1)), [1.0])})
    second = first.put({"global": stepped(server, first["global"], [0.0], round=2)})
    root, step, *_ = lines_of(server, first, second, round=2)
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


def test_bias_correction_is_in_what_is_compared_with_the_constant() -> None:
    server = Adam(lr=0.1, beta2=0.99, tau=0.5, bias_correction=True)
    before = Bank().put({"global": Entry(torch.zeros(2))})
    after = before.put({"global": stepped(server, before["global"], [0.4, -0.6])})
    root, _, _, below = lines_of(server, before, after)
    assert root["value"] == pytest.approx(0.5)  # v is .0016 and .0036, and v / (1 - .99) the squared change
    assert below["value"] == 0.5


@pytest.mark.parametrize(
    ("server", "constant", "share"),
    [
        (Adam(beta2=0.0, calibration=Epsilon(epsilon=1.0)), 1.0, 0.5),  # 1 is not below 1
        (Adam(beta2=0.0, calibration=Softplus(beta=50.0)), np.log(2) / 50, 0.25),
        (Adam(beta2=0.0, calibration=Epsilon(epsilon="auto")), 1.0, 0.5),  # the median of .5, 1 and 9; 0 did not move
        (Flash(beta2=0.0, tau=20.0), 20.0, 1.0),
        (Adam(beta2=0.0, calibration=Power()), None, None),
    ],
)
def test_the_constant_and_the_share_below_it(
    server: ServerOptimizer, constant: float | None, share: float | None
) -> None:
    before = Bank().put({"global": Entry(torch.zeros(4))})
    after = before.put({"global": stepped(server, before["global"], [0.0, 0.5, -1.0, 9.0])})
    found = {line["metric"]: line["value"] for line in lines_of(server, before, after)}
    if constant is None:
        assert set(found) == {"median_sqrt_v", "effective_step"}
    else:
        assert found["calibration_constant"] == pytest.approx(constant)
        assert found["below_constant"] == share


def merged(server: ServerOptimizer, entry: Entry, *answers: list[float]) -> Entry:
    world = World(seed=0, clients=2, rounds=3, models={})
    method = Method(world, Learner(world, Local()), Weighted(), server)
    parts = tuple(Part(torch.tensor(answer), client=i) for i, answer in enumerate(answers))
    return method.merge_entry("x", entry, Group(parts, (1.0,) * len(parts)), Moment(0, 1))


@pytest.mark.parametrize("server", [SGD(), SGD(lr=0.1), Momentum(form="heavy-ball", nesterov=True), Adam()])
def test_the_change_is_there_for_every_server(server: ServerOptimizer) -> None:
    before = Bank().put({"a": Entry(torch.ones(3)), "b": Entry(torch.zeros(3))})
    after = before.put({"a": merged(server, before["a"], [3.0, 1.0, 1.0], [5.0, 1.0, -1.0])})
    (line,) = [line for line in lines_of(server, before, after) if line["metric"] == "median_abs_delta"]
    expected = np.quantile([3.0, 0.0, 1.0], SHARES)
    assert line == {
        "metric": "median_abs_delta",
        "value": 1.0,
        "quantiles": pytest.approx(expected.tolist()),
        "entry": "a",
    }
    # The next round leaves the entry, or only changes its weight.
    assert lines_of(server, after, after.put({"a": after["a"].new(weight=9.0)})) == []


def test_of_many_entries_there_is_the_mean() -> None:
    server = SGD()
    before = Bank().put({f"client/{i}": Entry(torch.zeros(2)) for i in range(34)})
    few = before.put({key: merged(server, before[key], [1.0, 3.0]) for key in list(before.entries)[:32]})
    assert len(lines_of(server, before, few)) == 32
    many = before.put(
        {key: merged(server, before[key], [i + 1.0, i + 3.0]) for i, key in enumerate(before.entries) if i < 33}
    )
    (line,) = lines_of(server, before, many)
    assert (line["metric"], line["value"], line["entries"]) == ("median_abs_delta", pytest.approx(18.0), 33)
    assert line["quantiles"] == pytest.approx([17.1, 17.5, 18.0, 18.5, 18.9])
    assert "entry" not in line
    assert ServerStep.summarise([{"round": 1, **line}]) == {"median_abs_delta": pytest.approx(18.0)}


def test_of_a_large_entry_every_seventh_coordinate_is_looked_at() -> None:
    server = Adam(beta2=0.0, calibration=Epsilon(epsilon=1.0))
    size = LIMIT + 1
    change = torch.full((size,), 5.0)
    change[::7] = torch.arange(len(change[::7])) / 1000.0
    before = Bank().put({"global": Entry(torch.zeros(size))})
    after = before.put({"global": stepped(server, before["global"], change.tolist())})
    found = {line["metric"]: line for line in lines_of(server, before, after)}
    taken = change[::7].double().numpy()
    assert found["median_sqrt_v"]["quantiles"] == pytest.approx(np.quantile(taken, SHARES).tolist(), rel=1e-6)
    assert found["below_constant"]["value"] == pytest.approx(float((taken < 1).mean()))


def test_an_optimiser_of_ones_own_says_what_its_second_moment_is() -> None:
    class Own(SGD):
        def second_moment_of(self, entry: Entry) -> torch.Tensor:
            return torch.tensor([4.0, 16.0])

        def constant_of(self, entry: Entry) -> float:
            return 3.0

    before = Bank().put({"global": Entry(torch.zeros(2))})
    after = before.put({"global": merged(Own(), before["global"], [1.0, 1.0])})
    found = {line["metric"]: line["value"] for line in lines_of(Own(), before, after)}
    assert found == {"median_sqrt_v": 3.0, "calibration_constant": 3.0, "below_constant": 0.5, "median_abs_delta": 1.0}


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
