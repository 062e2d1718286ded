"""Need: a mean that knows how many steps each client took. Here: FedNova, for plain local steps."""

from __future__ import annotations

import numpy as np
import pytest
from example_lab import QUADRATICS, config, on_digits, play, prove, quadratics

from shoal.server.base import Mean
from shoal.server.means import shares


class Nova(Mean):
    """Wang et al. (2020): the mean change per step, times the mean number of steps."""

    def combine(self, old, group):
        weights = shares(group.weights)
        steps = [max(1, part.steps) for part in group.parts]
        each = [w / s * (p.vector - old.vector) for w, s, p in zip(weights, steps, group.parts, strict=True)]
        return old.vector + sum(each) * float(np.dot(weights, steps))


NOVA = {"kind": "fedavg", "mean": {"kind": "test_example_real_steps:Nova"}}


def test_the_laws():
    prove(config(method=NOVA, participation={"count": 3}))


def test_hand_numbers():
    # From 0: client 0 goes to 1 in one step, client 1 to -2 and -3 in two. Shares 1/3 and 2/3.
    # Mean change per step: 1/3 * 1 - 2/3 * 3/2 = -2/3; mean steps 1/3 + 4/3 = 5/3.
    run = play(quadratics(method=NOVA, rounds=1), QUADRATICS, zero=True)
    assert float(run.bank["global"].vector[1]) == pytest.approx(-10 / 9)


def test_with_equal_steps_it_is_federated_averaging():
    raw = {"stream": {"sizes": [40, 40, 40]}}
    nova, plain = play(config(method=NOVA, **raw)), play(config(**raw))
    np.testing.assert_allclose(nova.bank["global"].vector, plain.bank["global"].vector, rtol=1e-4, atol=1e-6)


def test_on_digits(tmp_path):
    assert on_digits(tmp_path / "run", method=NOVA).summary["acc"] > 0.5
