"""FedNova, against torch.optim, exact fractions and arithmetic by hand."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from server_steps import bits, group, sent

from shoal import registry
from shoal.bank import Entry
from shoal.config import Local
from shoal.errors import ConfigError
from shoal.server.fednova import FedNova, accumulated
from shoal.server.means import Weighted
from shoal.terms import Hold, Pull


def local(**settings: Any) -> Local:
    return Local(**settings)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("mu", [0.0, 0.3, 4.0])
@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 10, 40])
def test_a_is_the_sum_of_weights_with_which_torch_takes_the_gradients(
    momentum: float, mu: float, implicit: bool, steps: int
) -> None:
    # One coordinate per step, whose gradient is one in that step alone: its change over the rate is the weight.
    lr, start = 0.1, torch.zeros(steps, dtype=torch.float64)
    w = start.clone().requires_grad_()
    optimizer = torch.optim.SGD([w], lr=lr, momentum=momentum)
    everything = slice(0, steps)
    term = Hold(mu, start) if implicit else Pull(mu, start)
    for step in range(steps):
        w.grad = torch.zeros_like(start)
        w.grad[step] = 1.0
        with torch.no_grad():
            term.gradient(w.detach(), w.grad, everything)
            optimizer.step()
            term.after(w.detach(), everything, lr)
    weights = -w.detach() / lr
    assert accumulated(steps, momentum, lr * mu, implicit) == pytest.approx(float(weights.abs().sum()), rel=1e-9)


def test_the_papers_sums() -> None:
    assert accumulated(7) == 7
    assert accumulated(0) == accumulated(0, 0.9, 0.1) == 0
    rho, pull = Fraction(9, 10), Fraction(1, 100)
    assert accumulated(10, 0.9) == pytest.approx(float(sum((1 - rho**k) / (1 - rho) for k in range(1, 11))))
    assert accumulated(10, 0.0, 0.01) == pytest.approx(float((1 - (1 - pull) ** 10) / pull))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_unequal_steps_and_weights_by_hand(sign: float) -> None:
    # From 10: changes 6 in 2 steps, -4 in 1 step, 0 in 5; shares 1/2, 1/4, 1/4.
    # Per step: 3/2 - 1 + 0 = 1/2; steps 1 + 1/4 + 5/4 = 5/2; so 10 + 5/4.
    old = Entry(torch.tensor([10.0 * sign]))
    parts = [sent([16.0 * sign], 0, steps=2), sent([6.0 * sign], 1, steps=1), sent([10.0 * sign], 2, steps=5)]
    found = FedNova().combine(old, group(*parts, weights=(20.0, 10.0, 10.0)))
    assert float(found) == 11.25 * sign


def test_momentum_by_hand() -> None:
    # With momentum 1/2: a is 1 after one step, 1 + 3/2 = 5/2 after two. Changes 1 and -5, shares 1/2:
    # per step 1/2 - 1 = -1/2, steps 7/4, so -7/8.
    mean = FedNova(local(momentum=0.5))
    found = mean.combine(Entry(torch.zeros(1)), group(sent([1.0], 0, steps=1), sent([-5.0], 1, steps=2)))
    assert float(found) == -0.875


def test_the_proximal_term_of_the_learner_is_known() -> None:
    # lr mu = 1/2: a is 1 after one step, 3/2 after two. Changes 1 and 3: per step 1/2 + 1 = 3/2, steps 5/4.
    proximal = {"kind": "proximal", "mu": 5.0, "implicit": False}
    given = group(sent([1.0], 0, steps=1), sent([3.0], 1, steps=2))
    old = Entry(torch.zeros(1))
    assert float(FedNova(local(lr=0.1, learner=proximal)).combine(old, given)) == 1.875
    assert float(FedNova(local(lr=0.1), mu=5.0).combine(old, given)) == 1.875
    # Implicit, each weight is 2/3 of the one before: 2/3, and 2/3 + 4/9 = 10/9.
    hidden = FedNova(local(lr=0.1, learner={**proximal, "implicit": True}))
    assert float(hidden.combine(old, given)) == pytest.approx(0.5 * (3 / 2 + 27 / 10) * (2 / 3 + 10 / 9) / 2)


def test_equal_steps_are_federated_averaging_to_the_bit() -> None:
    torch.manual_seed(0)
    parts = [sent(torch.randn(50), i, steps=4) for i in range(3)]
    given = group(*parts, weights=(3.0, 50.0, 0.1))
    old = Entry(torch.randn(50))
    assert bits(FedNova(local(momentum=0.9)).combine(old, given)) == bits(Weighted().combine(old, given))
    one = group(sent(torch.randn(50), 0, steps=3))
    assert bits(FedNova().combine(old, one)) == bits(one.parts[0].vector)  # type: ignore[arg-type]


def test_a_quadratic_ends_where_it_should_whatever_the_steps() -> None:
    # Clients minimise (w - 1)^2 / 2 and (w + 1)^2 / 2; the minimum of their sum is 0. With one and nine steps the
    # weighted mean is drawn to the second.
    ends = {}
    for mean in (FedNova(), Weighted()):
        w = 0.5
        for _ in range(4000):
            parts = []
            for client, (goal, steps) in enumerate([(1.0, 1), (-1.0, 9)]):
                local_w = w
                for _ in range(steps):
                    local_w -= 0.001 * (local_w - goal)
                parts.append(sent([local_w], client, steps=steps))
            w = float(mean.combine(Entry(torch.tensor([w])), group(*parts)))
        ends[type(mean).__name__] = w
    assert abs(ends["FedNova"]) < 0.01
    assert ends["Weighted"] < -0.75


def test_masks_by_hand() -> None:
    # Coordinate 0 is sent by both, 1 by the first, 2 by the second, 3 by nobody.
    old = Entry(torch.tensor([0.0, 1.0, 2.0, 3.0]))
    first = sent([2.0, 5.0, float("nan"), 0.0], 0, steps=1, mask=torch.tensor([True, True, False, False]))
    second = sent([8.0, 0.0, -6.0, 9.0], 1, steps=4, mask=torch.tensor([True, False, True, False]))
    found = FedNova().combine(old, group(first, second, weights=(3.0, 1.0)))
    # 0: per step 3/4 * 2 + 1/4 * 2 = 2, steps 3/4 + 1 = 7/4.
    assert found.tolist() == [3.5, 5.0, -6.0, 3.0]


def test_a_client_without_steps() -> None:
    old = Entry(torch.zeros(1))
    idle, busy = sent([0.0], 0, steps=0), sent([6.0], 1, steps=3)
    assert float(FedNova().combine(old, group(idle, busy))) == 1.5  # per step 1, mean steps 3/2
    with pytest.raises(ValueError, match="client 4 changed the entry and says that it took 0 steps"):
        FedNova().combine(old, group(sent([1.0], 4, steps=0), busy))


@pytest.mark.parametrize(
    ("settings", "mu", "message"),
    [
        ({"optimizer": "adam"}, None, "adam has none"),
        ({}, -1.0, "finite and >= 0"),
        ({"learner": {"kind": "proximal", "mu": 0.1, "implicit": False}}, 0.1, "leave out the mean's mu"),
    ],
)
def test_what_has_no_a_is_refused(settings: dict[str, Any], mu: float | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        registry.build("mean", registry.resolve("mean", {"kind": "fednova", "mu": mu}), local=local(**settings))
