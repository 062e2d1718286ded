"""The calibrations against numpy in float64, and their limits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from shoal.server.base import Calibration
from shoal.server.calibrations import Epsilon, Power, Softplus

V = torch.tensor([0.0, 1e-12, 6e-8, 1e-4, 0.01, 1.0, 400.0, 1e30])
ROOT = np.sqrt(V.numpy().astype(np.float64))


@pytest.mark.parametrize("epsilon", [1e-8, 1e-4, 1e-2])
def test_epsilon(epsilon: float) -> None:
    np.testing.assert_allclose(Epsilon(epsilon=epsilon).denominator(V), ROOT + epsilon, rtol=1e-6)


@pytest.mark.parametrize("p", [1 / 2, 1 / 4, 1 / 8, 1 / 16, 0.0])
@pytest.mark.parametrize("epsilon", [1e-8, 1e-2])
def test_power(p: float, epsilon: float) -> None:
    np.testing.assert_allclose(Power(p=p, epsilon=epsilon).denominator(V), (ROOT + epsilon) ** (2 * p), rtol=1e-6)


def test_power_by_hand() -> None:
    # v = .0001: sqrt .01; with p = 1/4 the square root of that; p = 1/2 is Adam's own, p = 0 is 1
    v = torch.tensor([1e-4])
    assert float(Power(p=0.25).denominator(v)) == pytest.approx(0.1, rel=1e-5)
    assert float(Power(p=0.5).denominator(v)) == float(Epsilon().denominator(v))
    assert Power(p=0.0).denominator(V).tolist() == [1.0] * len(V)


@pytest.mark.parametrize("beta", [10.0, 50.0, 200.0, 5000.0])
def test_softplus_is_of_the_root(beta: float) -> None:
    expected = np.logaddexp(0.0, beta * ROOT) / beta
    np.testing.assert_allclose(Softplus(beta=beta).denominator(V), expected, rtol=1e-6)


def test_softplus_limits() -> None:
    assert float(Softplus(beta=50.0).denominator(torch.zeros(1))) == pytest.approx(math.log(2) / 50)
    # beta to infinity: the root itself, which is far from v
    np.testing.assert_allclose(Softplus(beta=1e9).denominator(V[1:]), ROOT[1:], rtol=1e-3)
    np.testing.assert_allclose(Softplus(beta=1e9).denominator(V[3:]), ROOT[3:], rtol=1e-6)


@pytest.mark.parametrize("calibration", [Epsilon(), Power(), Power(p=1.0), Softplus()])
def test_positive_growing_and_without_side_effect(calibration: Calibration) -> None:
    before = V.clone()
    found = calibration.denominator(V)
    assert torch.equal(V, before)
    assert found.shape == V.shape
    assert (found > 0).all()
    assert (found.diff() >= 0).all()


def test_constants_that_make_no_sense_are_refused() -> None:
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="epsilon must be positive"):
            Epsilon(epsilon=wrong)
        with pytest.raises(ValueError, match="epsilon must be positive"):
            Power(epsilon=wrong)
        with pytest.raises(ValueError, match="beta must be positive"):
            Softplus(beta=wrong)
    for p in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="0 <= p <= 1"):
            Power(p=p)
