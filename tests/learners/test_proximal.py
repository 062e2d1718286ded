"""FedProx: the penalty by hand, by torch.optim with the penalty in the loss, and at both ends of its strength."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from learner_lab import CURVED, TWO, drawn, gradient, play, same, setup_of

from shoal.errors import ConfigError
from shoal.messages import Client
from shoal.randomness import Moment
from shoal.requests import Served
from shoal.terms import Hold, Pull

HALF = Fraction(1, 2)


def prox(**settings: Any) -> dict[str, Any]:
    return {"kind": "proximal", **settings}


@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_mu_zero_is_the_plain_learner_to_the_bit(implicit, optimizer):
    local = {"optimizer": optimizer, "lr": 0.1, "epochs": 3}
    with_zero = play(CURVED, prox(mu=0.0, implicit=implicit), local=local, rounds=3)
    plain = play(CURVED, "plain", local=local, rounds=3)
    assert all(same(a, b) for a, b in zip(with_zero.states, plain.states, strict=True))


@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize("mu", [Fraction(1, 2), Fraction(1), Fraction(2)])
def test_two_rounds_in_exact_fractions(mu, implicit):
    run = play(TWO, prox(mu=float(mu), implicit=implicit), local={"epochs": 2})
    x = Fraction(0)
    for round in (1, 2):
        ends = []
        for goal, steps in ((2, 2), (-4, 4)):
            y = x
            for _ in range(steps):
                if implicit:
                    y -= HALF * (y - goal)
                    y = (y + HALF * mu * x) / (1 + HALF * mu)
                else:
                    y -= HALF * (y - goal + mu * (y - x))
            ends.append(y)
        x = (2 * ends[0] + 4 * ends[1]) / 6
        assert run.bias(round) == pytest.approx(float(x), rel=1e-6)


@pytest.mark.parametrize(("client", "goal"), [(0, 2.0), (1, -4.0)])
@pytest.mark.parametrize("implicit", [False, True])
def test_many_steps_reach_the_minimum_of_the_penalised_loss(client, goal, implicit):
    # (b - goal)^2 / 2 + mu/2 (b - x)^2 is least at (goal + mu x) / (1 + mu); the second round starts from the first.
    probabilities = [1.0 - client, float(client)]
    parts = {"participation": {"count": 1, "probabilities": probabilities}, "local": {"steps": 200}}
    run = play(TWO, prox(mu=1.5, implicit=implicit), **parts)
    first = goal / 2.5
    assert run.bias(1) == pytest.approx(first, rel=1e-5)
    assert run.bias(2) == pytest.approx((goal + 1.5 * first) / 2.5, rel=1e-5)


def test_a_huge_mu_does_not_move():
    run = play(TWO, prox(mu=1e9, implicit=True), local={"epochs": 5})
    assert 0 < abs(run.bias(2)) < 1e-7


@pytest.mark.parametrize("settings", [{"momentum": 0.9}, {"optimizer": "adam"}, {"optimizer": "adamw"}])
def test_torch_optim_with_the_penalty_in_the_loss(settings):
    # The penalty goes through momentum and Adam as any gradient does.
    local = {"lr": 0.05, "batch_size": 8, "steps": 7, "weight_decay": 0.1, **settings}
    run = play(CURVED[:1], prox(mu=0.7), local=local, rounds=2)
    x = torch.zeros(3, dtype=torch.float64)
    rows = torch.tensor([[*row, 1.0] for row in CURVED[0][0]], dtype=torch.float64)
    values = torch.tensor(CURVED[0][1], dtype=torch.float64)
    for round in (1, 2):
        y = x.clone().requires_grad_()
        kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
        more = {"momentum": settings["momentum"]} if "momentum" in settings else {}
        optimizer = kind[settings.get("optimizer", "sgd")]([y], lr=0.05, weight_decay=0.1, **more)
        for _ in range(7):
            optimizer.zero_grad()
            loss = 0.5 * (rows @ y - values).square().mean() + 0.7 / 2 * (y - x).square().sum()
            loss.backward()
            optimizer.step()
        x = y.detach()
        np.testing.assert_allclose(run.vector(round), x.numpy(), rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("mu", "local", "fits"),
    [
        (4.0, {}, False),  # lr 1/2: exactly at the limit the penalty alone swings for ever
        (3.9, {}, True),
        (4.0, {"momentum": 0.9}, True),
        (7.6, {"momentum": 0.9}, False),
        (40.0, {"optimizer": "adam"}, True),
        (40.0, {"clip": 1.0}, True),
    ],
)
def test_an_explicit_penalty_that_sgd_cannot_follow_is_refused(mu, local, fits):
    if fits:
        setup_of(TWO, prox(mu=mu), local=local)
    else:
        with pytest.raises(ConfigError, match="implicit: true"):
            setup_of(TWO, prox(mu=mu), local=local)
    setup_of(TWO, prox(mu=mu, implicit=True), local=local)


@pytest.mark.parametrize("mu", [-0.1, float("inf"), True])
def test_mu_is_a_number_from_zero(mu):
    with pytest.raises(ConfigError, match="mu"):
        setup_of(TWO, prox(mu=mu))


@pytest.mark.parametrize(("implicit", "kind"), [(False, Pull), (True, Hold)])
def test_the_anchor_is_what_was_received_and_other_terms_stay(implicit, kind):
    setup = setup_of(TWO, prox(mu=2.0, implicit=implicit))
    entry = setup.method.start()["global"]
    client = Client(0, Moment(0, 1), torch.tensor([0, 1]), torch.tensor([], dtype=torch.int64))
    received, other = torch.tensor([3.0, -3.0]), Pull(1.0, torch.zeros(2))
    start = Served("main", torch.tensor([1.0, 1.0]))
    fit = next(setup.method.learner.fit("global", start, entry, client, since=received, terms=(other,)))
    assert fit.terms[0] is other
    assert isinstance(fit.terms[1], kind)
    assert (fit.terms[1].strength, fit.terms[1].anchor) == (2.0, received)
    fit = next(setup.method.learner.fit("global", start, entry, client))
    assert fit.terms[0].anchor is start.vector


def test_an_adaptive_server_and_an_entry_per_task():
    method = {"kind": "fedavg", "per": "task", "server": {"kind": "adam", "lr": 0.3, "tau": 0.1}}
    seed = drawn(3, 1, [[0, 1]], count=2)
    parts = {"stream": {"tasks": 2}, "method": method, "rounds": 1, "seed": seed, "participation": {"count": 2}}
    run = play(CURVED, prox(mu=0.4), local={"batch_size": 8, "steps": 2}, **parts)
    # In round 1 client 0 is at task 1 and client 1 at task 0, alone; v starts at tau^2.
    for client, key in ((0, "task/1"), (1, "task/0")):
        y = -0.5 * gradient(CURVED[client], np.zeros(3))
        delta = y - 0.5 * (gradient(CURVED[client], y) + 0.4 * y)
        v = 0.99 * 0.01 + 0.01 * delta**2
        np.testing.assert_allclose(run.vector(key=key), 0.3 * 0.1 * delta / (np.sqrt(v) + 0.1), rtol=1e-5)
