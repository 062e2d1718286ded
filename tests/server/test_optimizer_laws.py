"""What holds for every server optimiser: torch's counterparts, identities, descent, and second moments >= 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from server_steps import walk
from torch import Tensor

from shoal.bank import Entry
from shoal.randomness import Moment
from shoal.server.adaptive import Adagrad, Adam, Adaptive, AMSGrad, Yogi
from shoal.server.base import ServerOptimizer
from shoal.server.calibrations import Epsilon, Power, Softplus
from shoal.server.plain import SGD, Momentum


def _problem(size: int = 24, rounds: int = 30) -> tuple[Tensor, Tensor]:
    """A start and changes of both signs, of sizes 1 to 1e-4, among them coordinates that are often still."""
    rng = torch.Generator().manual_seed(1)
    scale = 10.0 ** -(torch.arange(size) % 5)
    changes = torch.randn(rounds, size, generator=rng) * scale
    changes[:, ::7] *= torch.rand(rounds, len(range(0, size, 7)), generator=rng) < 0.3
    return torch.randn(size, generator=rng), changes


def _torch_walk(make: Callable[[list[Tensor]], torch.optim.Optimizer], start: Tensor, deltas: list[Tensor]) -> Tensor:
    weights = torch.nn.Parameter(start.clone())
    optimizer = make([weights])
    for delta in deltas:
        weights.grad = -delta
        optimizer.step()
    return weights.detach()


@pytest.mark.parametrize(
    ("server", "make"),
    [
        (
            Adam(lr=0.05, beta1=0.8, beta2=0.95, tau=1e-8, v_init="zero", bias_correction=True),
            lambda w: torch.optim.Adam(w, lr=0.05, betas=(0.8, 0.95), eps=1e-8),
        ),
        (
            Adam(lr=0.05, beta2=0.999, calibration=Epsilon(epsilon=1e-3), bias_correction=True),
            lambda w: torch.optim.Adam(w, lr=0.05, betas=(0.9, 0.999), eps=1e-3),
        ),
        (
            AMSGrad(lr=0.05, tau=1e-8, v_init="zero", bias_correction=True, form="reddi"),
            lambda w: torch.optim.Adam(w, lr=0.05, betas=(0.9, 0.99), eps=1e-8, amsgrad=True),
        ),
        (
            Adagrad(lr=0.05, tau=0.1),
            lambda w: torch.optim.Adagrad(w, lr=0.05, eps=0.1, initial_accumulator_value=0.01),
        ),
        (
            Adagrad(lr=0.05, calibration=Epsilon(epsilon=1e-10)),
            lambda w: torch.optim.Adagrad(w, lr=0.05, eps=1e-10),
        ),
    ],
    ids=["adam", "adam-epsilon", "amsgrad", "adagrad", "adagrad-zero"],
)
def test_torch_takes_the_same_steps(server: Adaptive, make: Callable[..., Any]) -> None:
    start, changes = _problem()
    found = walk(server, start, list(changes))
    expected = _torch_walk(make, start, found.deltas)
    torch.testing.assert_close(found.last.vector, expected, rtol=2e-5, atol=2e-6)
    assert (expected - start).abs().max() > 0.1


def test_calibrate_one_without_momentum_is_federated_averaging() -> None:
    server = Adam(lr=1.0, beta1=0.0, calibration=Power(p=0.0))
    start, changes = _problem()
    adaptive, plain = walk(server, start, list(changes)), walk(SGD(), start, list(changes))
    torch.testing.assert_close(adaptive.last.vector, plain.last.vector, rtol=1e-6, atol=1e-6)


def test_calibrate_one_is_federated_momentum() -> None:
    start, changes = _problem()
    adaptive = walk(Yogi(lr=3.0, calibration=Power(p=0.0)), start, list(changes))
    momentum = walk(Momentum(lr=3.0), start, list(changes))
    torch.testing.assert_close(adaptive.last.vector, momentum.last.vector, rtol=1e-6, atol=1e-6)


def test_tau_is_an_epsilon_and_a_start() -> None:
    start, changes = _problem()
    tau = walk(Adam(tau=0.01, v_init="zero"), start, list(changes))
    epsilon = walk(Adam(calibration=Epsilon(epsilon=0.01)), start, list(changes))
    assert torch.equal(tau.last.vector, epsilon.last.vector)
    assert not torch.equal(tau.last.vector, walk(Adam(tau=0.01), start, list(changes)).last.vector)


def test_only_the_ratio_of_rate_and_tau_counts_while_changes_are_tiny() -> None:
    start, changes = _problem()
    tiny = list(1e-3 * changes.sign())
    low, high = walk(Adam(lr=0.1, tau=0.1), start, tiny), walk(Adam(lr=1.0, tau=1.0), start, tiny)
    moved = (high.last.vector - start).abs().max()
    assert (low.last.vector - high.last.vector).abs().max() < 2e-3 * moved
    # The second moment shows as soon as tau is small beside the changes.
    small = walk(Adam(lr=1e-4, tau=1e-4), start, tiny)
    assert (small.last.vector - high.last.vector).abs().max() > 0.1 * moved


def test_a_bias_free_start_takes_the_sign() -> None:
    # With bias correction and a tiny epsilon the first step is lr times the sign of the change.
    found = walk(Adam(lr=0.1, tau=1e-8, bias_correction=True), [0.0, 0.0, 0.0], [[5.0, -1e-3, 0.0]])
    np.testing.assert_allclose(found.last.vector.numpy(), [0.1, -0.1, 0.0], rtol=1e-4)


EVERY: list[ServerOptimizer] = [
    SGD(lr=0.5),
    Momentum(),
    Momentum(lr=0.3, form="heavy-ball", nesterov=True),
    Adam(),
    Adam(bias_correction=True),
    Adam(second_moment="momentum"),
    Adam(calibration=Softplus()),
    Adam(lr=0.01, calibration=Epsilon()),
    AMSGrad(),
    AMSGrad(form="reddi"),
    Yogi(),
    Yogi(calibration=Power()),
    Adagrad(),
    Adagrad(lr=0.3, beta1=0.9),
]


@pytest.mark.parametrize("server", EVERY, ids=lambda s: type(s).__name__)
def test_descent_on_a_quadratic_from_both_sides(server: ServerOptimizer) -> None:
    # Each client takes a gradient step on (x - goal)^2 / 2, so the mean lies between x and the goal.
    goal = torch.tensor([0.5, -0.25])
    entry = Entry(torch.tensor([1.5, -1.25]))
    worst = float((entry.vector - goal).abs().max())
    for round in range(1, 121):
        mean = entry.vector + 0.3 * (goal - entry.vector)
        vector, numbers = server.step(entry, mean, Moment(0, round), float("nan"))
        if round == 1:
            assert vector[0] < 1.5
            assert vector[1] > -1.25
        entry = entry.new(vector=vector, server=numbers)
    assert float((entry.vector - goal).abs().max()) < 0.4 * worst


@pytest.mark.parametrize("server", EVERY, ids=lambda s: type(s).__name__)
def test_no_change_from_a_fresh_start_moves_nothing(server: ServerOptimizer) -> None:
    found = walk(server, [1.5, -0.0, 0.0], [[0.0, 0.0, 0.0]] * 3)
    assert found.last.vector.tolist() == [1.5, 0.0, 0.0]


def test_the_second_moment_of_amsgrad_never_falls() -> None:
    start, changes = _problem()
    for form, name in (("paper", "v"), ("reddi", "vhat")):
        found = walk(AMSGrad(form=form), start, list(changes))
        values = torch.stack([e.server[name] for e in found.entries])
        assert (values.diff(dim=0) >= 0).all()
        assert (values[-1] > values[0]).any()
    adam = torch.stack([e.server["v"] for e in walk(Adam(), start, list(changes)).entries])
    assert (adam.diff(dim=0) < 0).any()  # the same changes make Adam's fall


SIZES = st.floats(-(2.0**100), 2.0**100, width=32)
MEMBERS: list[Callable[..., Adaptive]] = [Adam, Yogi, AMSGrad, lambda **k: AMSGrad(form="reddi", **k)]


@settings(deadline=None, derandomize=True)
@given(
    make=st.sampled_from(MEMBERS),
    rounds=st.lists(st.tuples(SIZES, st.floats(-1, 1, width=32)), min_size=1, max_size=8),
    beta1=st.sampled_from([0.0, 0.5, 0.9]),
    beta2=st.sampled_from([0.0, 0.1, 0.9, 0.99, 0.999]),
    squared=st.sampled_from(["raw", "momentum"]),
    start=st.sampled_from(["tau-squared", "zero"]),
    corrected=st.booleans(),
)
def test_second_moments_stay_finite_and_at_least_zero(
    make: Callable[..., Adaptive],
    rounds: list[tuple[float, float]],
    beta1: float,
    beta2: float,
    squared: str,
    start: str,
    corrected: bool,
) -> None:
    v_init = None if corrected else start
    server = make(beta1=beta1, beta2=beta2, second_moment=squared, v_init=v_init, bias_correction=corrected)
    for entry in walk(server, [0.0, 0.0], rounds).entries:
        for name in server.moments:
            assert (entry.server[name] >= 0).all()
            assert entry.server[name].isfinite().all()
        assert entry.vector.isfinite().all()
        step = server.effective_step(entry)
        assert step is not None
        assert (step > 0).all()


@settings(deadline=None, derandomize=True)
@given(rounds=st.lists(SIZES, min_size=1, max_size=8))
def test_adagrads_sum_never_falls(rounds: list[float]) -> None:
    v = walk(Adagrad(), [0.0], rounds).number("v")
    assert all(later >= earlier for earlier, later in zip([0.01 * (1 - 1e-6), *v], v, strict=False))
    assert np.isfinite(v).all()


def test_a_huge_change_does_not_freeze_a_coordinate_for_ever() -> None:
    # Its square overflows float32; beta2 .5 forgets it in time (x is 5e4 then, where 1 rounds by 0.4%).
    found = walk(Adam(beta1=0.0, beta2=0.5), [0.0], [1e25, *[0.0] * 160, 1.0])
    assert found.number("v")[0] == torch.finfo(torch.float32).max
    assert found.number("v")[-1] == pytest.approx(0.5, rel=0.01)
