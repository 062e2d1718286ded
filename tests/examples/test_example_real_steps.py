"""Need: a mean that knows how many steps each client took. Here: FedNova, for plain local steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from example_lab import QUADRATICS, config, on_digits, play, prove, quadratics

from shoal.server.base import Mean
from shoal.server.means import average, shares


class Nova(Mean):
    """Wang et al. (2020): the mean change per step, times the mean number of steps."""

    def combine(self, old, group):
        steps = [max(1, part.steps) for part in group.parts]
        mean = float(np.dot(shares(group.weights), steps))
        factors = [mean / s if len(set(steps)) > 1 else 1.0 for s in steps]
        moved = [torch.lerp(old.vector, p.vector, f) for p, f in zip(group.parts, factors, strict=True)]
        parts = tuple(replace(p, vector=vector) for p, vector in zip(group.parts, moved, strict=True))
        return average(old, replace(group, parts=parts), group.weights)


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
