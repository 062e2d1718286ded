"""Adaptive-FedAvg's server and clients, against the equations in exact fractions, and in runs."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from server_steps import bits, walk

from shoal.bank import Entry
from shoal.checks.case import Case
from shoal.checks.laws_server import the_first_step_goes_the_clients_way
from shoal.config import Local
from shoal.randomness import Moment
from shoal.server.adaptive_rate import AdaptiveFedAvg

PAIR = {"kind": "adaptive-fedavg"}


def factors(server: AdaptiveFedAvg, start: list[float], changes: list[list[float]]) -> list[float]:
    return walk(server, start, changes).number("adaptive-rate/factor")


def by_hand(xs: list[list[Fraction]], betas: tuple[Fraction, Fraction, Fraction], over_t: bool) -> list[float]:
    """The factor after each step; ``xs[0]`` is the entry before the first."""
    b1, b2, b3 = betas
    mu, s, g, centre, last = [Fraction(0)] * len(xs[0]), Fraction(0), Fraction(0), xs[0], None
    found = []
    for t, x in enumerate(xs[1:], 1):
        s = b2 * s + (1 - b2) * sum((a - c) ** 2 for a, c in zip(x, centre, strict=True)) / len(x)
        mu = [b1 * m + (1 - b1) * a for m, a in zip(mu, x, strict=True)]
        centre = [m / (1 - b1**t) for m in mu]
        now = s / (1 - b2**t)
        g = b3 * g + (1 - b3) * (now / last if last else Fraction(1))
        last = now
        found.append(float(min(Fraction(1), g / (1 - b3**t) / (t if over_t else 1))))
    return found


@pytest.mark.parametrize("over_t", [False, True])
@pytest.mark.parametrize("betas", [(0.5, 0.5, 0.5), (0.75, 0.25, 0.5), (0.0, 0.0, 0.0)])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_equations(betas: tuple[float, float, float], over_t: bool, sign: int) -> None:
    changes = [[1.0, -2.0], [0.5, -0.5], [0.25, 0.0], [0.0, 0.125], [3.0, -4.0], [0.5, 0.5]]
    changes = [[sign * c for c in change] for change in changes]
    xs = [[Fraction(1), Fraction(-3)]]
    for change in changes:
        xs.append([x + Fraction(c) for x, c in zip(xs[-1], change, strict=True)])
    b1, b2, b3 = betas
    server = AdaptiveFedAvg(beta1=b1, beta2=b2, beta3=b3, over_t=over_t)
    expected = by_hand(xs, (Fraction(b1), Fraction(b2), Fraction(b3)), over_t)
    assert factors(server, [1.0, -3.0], changes) == pytest.approx(expected, rel=1e-6)
    assert min(expected) < 1


def test_a_model_that_stands_still_is_its_own_average() -> None:
    last = walk(AdaptiveFedAvg(), [2.0], [[0.0]] * 4).last
    # mu is 2 (1 - 1/16), so corrected it is 2; no ratio over nothing.
    assert float(last.server["adaptive-rate/mu"]) == 1.875
    assert float(last.server["adaptive-rate/factor"]) == 1.0


def test_it_falls_while_the_model_settles_and_a_jump_raises_it_to_one_at_most() -> None:
    settling = [[0.5**i, -(0.5**i)] for i in range(12)]
    found = factors(AdaptiveFedAvg(), [0.0, 0.0], [*settling, [5.0, 5.0]])
    assert found[0] == 1.0
    assert found[1:-1] == sorted(found[1:-1], reverse=True)
    assert found[-2] < 0.52
    assert found[-1] == 1.0
    late = factors(AdaptiveFedAvg(over_t=True), [0.0, 0.0], settling)
    assert late == pytest.approx([factor / t for t, factor in enumerate(found[:-1], 1)])


def test_the_step_is_the_mean_and_a_grown_entry_starts_anew() -> None:
    server, old = AdaptiveFedAvg(), walk(AdaptiveFedAvg(), [0.0], [[1.0], [3.0]]).last
    mean = torch.tensor([0.1, -7.0])
    vector, numbers = server.step(old.new(vector=torch.zeros(2)), mean, Moment(0, 3), math.nan)
    assert bits(vector) == bits(mean)
    fresh = server.step(Entry(torch.zeros(2)), mean, Moment(0, 3), math.nan)[1]
    assert {name: tensor.tolist() for name, tensor in numbers.items()} == {n: t.tolist() for n, t in fresh.items()}
    the_first_step_goes_the_clients_way(server)


@pytest.mark.parametrize("name", ["beta1", "beta2", "beta3"])
def test_betas_are_decay_rates(name: str) -> None:
    settings: dict[str, Any] = {name: 1.0}
    with pytest.raises(ValueError, match=f"0 <= {name} < 1; got 1"):
        AdaptiveFedAvg(**settings)


def test_it_says_whether_the_rate_travels() -> None:
    assert AdaptiveFedAvg(Local(learner={"kind": "adaptive-rate"})).describe()["travels"] is True
    assert AdaptiveFedAvg(Local()).describe()["travels"] is False


def played(server: Any, learner: str, rounds: int = 4) -> Any:
    case = Case(method={"kind": "fedavg", "server": server}, learner={"kind": learner}, local={"lr": 0.3})
    return case.play(case.setup(rounds=rounds))


def test_the_clients_train_at_the_rate_that_came() -> None:
    run = played({**PAIR, "over_t": True}, "adaptive-rate")
    for state in run.states[1:]:
        entry = state.bank["global"]
        assert set(entry.extra) == {"adaptive-rate/lr"}
        assert float(entry.extra["adaptive-rate/lr"]) == pytest.approx(
            0.3 * float(entry.server["adaptive-rate/factor"])
        )
    plain = played("sgd", "plain")
    rates = [float(state.bank["global"].extra["adaptive-rate/lr"]) for state in run.states[1:]]
    falls = next(i for i, rate in enumerate(rates, 1) if rate < 0.3)
    # The first fall is felt in the round after it, and from there the two runs differ.
    assert run.models[: falls + 1] == plain.models[: falls + 1]
    assert run.models[falls + 1] != plain.models[falls + 1]
    slower = Case(learner={"kind": "plain"}, local={"lr": rates[falls - 1]})
    again = slower.play(slower.setup(rounds=4), state=run.states[falls], rounds=1)
    torch.testing.assert_close(
        run.states[falls + 1].bank["global"].vector, again.last.bank["global"].vector, rtol=1e-6, atol=1e-7
    )


def test_either_half_alone_is_federated_averaging() -> None:
    plain = played("sgd", "plain")
    assert played(PAIR, "plain").models == plain.models
    assert played("sgd", "adaptive-rate").models == plain.models


def test_four_bytes_more_are_sent() -> None:
    run = played(PAIR, "adaptive-rate", rounds=2)
    before, after = run.states[0].bank["global"], run.last.bank["global"]
    assert after.bytes == before.bytes + 4
