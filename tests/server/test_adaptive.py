"""The adaptive servers by hand: three rounds with the changes 1, 0, -1 from x = 2, and every option."""

from __future__ import annotations

from math import sqrt

import pytest
import torch
from server_steps import NAN, walk

from shoal.bank import Entry
from shoal.randomness import Moment
from shoal.server.adaptive import Adagrad, Adam, Adaptive, AMSGrad, Yogi
from shoal.server.calibrations import Epsilon, Power, Softplus

ROUNDS = [1, 0, -1]
# beta1 .9:  .1 * 1 = .1;  .9 * .1 = .09;  .9 * .09 - .1 * 1 = -.019
M = (0.1, 0.09, -0.019)


def check(server: Adaptive, m: tuple[float, ...], v: tuple[float, ...], steps: tuple[float, ...]) -> None:
    """The walk has these moments and takes these steps; mirrored changes take mirrored steps."""
    found = walk(server, [2.0], ROUNDS)
    assert found.number("m") == pytest.approx(m, rel=1e-6)
    assert found.number("v") == pytest.approx(v, rel=1e-6)
    x, expected = 2.0, []
    for step in steps:
        x += step
        expected.append(x)
    assert found.x == pytest.approx(expected, rel=3e-7)
    assert found.number("steps") == [1, 2, 3]
    mirrored = walk(server, [-2.0], [-change for change in ROUNDS])
    assert mirrored.x == [-value for value in found.x]
    assert mirrored.number("v") == found.number("v")


def test_adam() -> None:
    # v0 = tau^2 = .01:  .0099 + .01 = .0199;  .99 * .0199 = .019701;  .99 * .019701 + .01 = .02950399
    v = (0.0199, 0.019701, 0.02950399)
    steps = (
        0.1 * 0.1 / (sqrt(0.0199) + 0.1),
        0.1 * 0.09 / (sqrt(0.019701) + 0.1),
        0.1 * -0.019 / (sqrt(0.02950399) + 0.1),
    )
    check(Adam(lr=0.1, tau=0.1), M, v, steps)


def test_adam_with_the_defaults() -> None:
    # tau = .01, v0 = 1e-4:  .000099 + .01 = .010099;  .00999801;  .0098980299 + .01 = .0198980299
    v = (0.010099, 0.00999801, 0.0198980299)
    steps = (
        0.1 * 0.1 / (sqrt(0.010099) + 0.01),
        0.1 * 0.09 / (sqrt(0.00999801) + 0.01),
        0.1 * -0.019 / (sqrt(0.0198980299) + 0.01),
    )
    check(Adam(), M, v, steps)


def test_adam_with_other_decay_rates() -> None:
    # beta1 .5: .5, .25, -.375;  beta2 .75, v0 = 1: .75 + .25 = 1;  .75;  .5625 + .25 = .8125
    steps = (0.5 / (1 + 1), 0.25 / (sqrt(0.75) + 1), -0.375 / (sqrt(0.8125) + 1))
    check(Adam(lr=1.0, beta1=0.5, beta2=0.75, tau=1.0), (0.5, 0.25, -0.375), (1.0, 0.75, 0.8125), steps)


def test_yogi_below_its_target() -> None:
    # v0 = .01 < 1: .01 + .01 = .02;  target 0 moves nothing: .02;  .02 + .01 = .03
    steps = (0.1 * 0.1 / (sqrt(0.02) + 0.1), 0.1 * 0.09 / (sqrt(0.02) + 0.1), 0.1 * -0.019 / (sqrt(0.03) + 0.1))
    check(Yogi(lr=0.1, tau=0.1), M, (0.02, 0.02, 0.03), steps)


def test_yogi_above_its_target() -> None:
    # v0 = 4 > 1: 4 - .01 = 3.99;  3.99;  3.98
    steps = (0.1 / (sqrt(3.99) + 2), 0.09 / (sqrt(3.99) + 2), -0.019 / (sqrt(3.98) + 2))
    check(Yogi(lr=1.0, tau=2.0), M, (3.99, 3.99, 3.98), steps)


def test_yogi_at_its_target() -> None:
    # v0 = 1 = g^2 stays
    check(Yogi(lr=1.0, tau=1.0), M, (1.0, 1.0, 1.0), (0.1 / 2, 0.09 / 2, -0.019 / 2))


def test_adagrad_with_the_defaults() -> None:
    # no momentum; v0 = tau^2 = .01: 1.01; 1.01; 2.01
    steps = (0.1 * 1 / (sqrt(1.01) + 0.1), 0.0, 0.1 * -1 / (sqrt(2.01) + 0.1))
    check(Adagrad(), (1.0, 0.0, -1.0), (1.01, 1.01, 2.01), steps)


def test_adagrad_with_momentum() -> None:
    steps = (0.1 / (sqrt(1.25) + 0.5), 0.09 / (sqrt(1.25) + 0.5), -0.019 / (sqrt(2.25) + 0.5))
    check(Adagrad(lr=1.0, beta1=0.9, tau=0.5), M, (1.25, 1.25, 2.25), steps)


def test_amsgrad_as_the_paper_writes_it() -> None:
    # max(.01, .0199) = .0199;  max(.0199, .019701) = .0199;  .99 * .0199 + .01 = .029701
    steps = (
        0.1 * 0.1 / (sqrt(0.0199) + 0.1),
        0.1 * 0.09 / (sqrt(0.0199) + 0.1),
        0.1 * -0.019 / (sqrt(0.029701) + 0.1),
    )
    check(AMSGrad(lr=0.1, tau=0.1), M, (0.0199, 0.0199, 0.029701), steps)


def test_amsgrad_as_reddi_writes_it() -> None:
    server = AMSGrad(lr=0.1, tau=0.1, form="reddi")
    # v is Adam's; vhat its maximum: .0199, .0199, .02950399 (the paper's form has .029701 here)
    steps = (
        0.1 * 0.1 / (sqrt(0.0199) + 0.1),
        0.1 * 0.09 / (sqrt(0.0199) + 0.1),
        0.1 * -0.019 / (sqrt(0.02950399) + 0.1),
    )
    check(server, M, (0.0199, 0.019701, 0.02950399), steps)
    assert walk(server, [2.0], ROUNDS).number("vhat") == pytest.approx((0.0199, 0.0199, 0.02950399), rel=1e-6)


def test_the_momentum_may_be_what_is_squared() -> None:
    # m^2 = .01, .0081, .000361;  v: .0099 + .0001 = .01;  .0099 + .000081;  .99 * .009981 + .00000361
    v = (0.01, 0.009981, 0.0098848)
    steps = (0.1 * 0.1 / 0.2, 0.1 * 0.09 / (sqrt(0.009981) + 0.1), 0.1 * -0.019 / (sqrt(0.0098848) + 0.1))
    check(Adam(lr=0.1, tau=0.1, second_moment="momentum"), M, v, steps)
    # the sum of the same squares
    found = walk(Adagrad(beta1=0.9, tau=0.1, second_moment="momentum"), [2.0], ROUNDS)
    assert found.number("v") == pytest.approx((0.02, 0.0281, 0.028461), rel=1e-6)


def test_v_may_start_at_zero() -> None:
    steps = (
        0.1 * 0.1 / (sqrt(0.01) + 0.1),
        0.1 * 0.09 / (sqrt(0.0099) + 0.1),
        0.1 * -0.019 / (sqrt(0.019801) + 0.1),
    )
    check(Adam(lr=0.1, tau=0.1, v_init="zero"), M, (0.01, 0.0099, 0.019801), steps)


def test_bias_correction() -> None:
    # m / (1 - .9^t): .1/.1, .09/.19, -.019/.271;  v / (1 - .99^t): .01/.01, .0099/.0199, .019801/.029701
    steps = (
        0.1 * 1 / (1 + 0.1),
        0.1 * (0.09 / 0.19) / (sqrt(0.0099 / 0.0199) + 0.1),
        0.1 * (-0.019 / 0.271) / (sqrt(0.019801 / 0.029701) + 0.1),
    )
    check(Adam(lr=0.1, tau=0.1, bias_correction=True), M, (0.01, 0.0099, 0.019801), steps)


def test_bias_correction_of_yogi() -> None:
    # from zero: .01, .01, .02;  over .01, .0199, .029701
    steps = (
        0.1 * 1 / (1 + 0.1),
        0.1 * (0.09 / 0.19) / (sqrt(0.01 / 0.0199) + 0.1),
        0.1 * (-0.019 / 0.271) / (sqrt(0.02 / 0.029701) + 0.1),
    )
    check(Yogi(lr=0.1, tau=0.1, bias_correction=True), M, (0.01, 0.01, 0.02), steps)


def test_calibrations_start_at_zero() -> None:
    v = (0.01, 0.0099, 0.019801)
    check(Adam(lr=0.1, calibration=Power(p=0.5, epsilon=0.1)), M, v, (0.05, *_rest(0.1)))
    check(Adam(lr=0.1, calibration=Epsilon(epsilon=0.1)), M, v, (0.05, *_rest(0.1)))
    # v^(1/4), the square root of (sqrt(v) + eps)
    quarter = (0.1 / sqrt(0.1), 0.09 / sqrt(sqrt(0.0099)), -0.019 / sqrt(sqrt(0.019801)))
    check(Adam(lr=1.0, calibration=Power()), M, v, quarter)


def _rest(epsilon: float) -> tuple[float, float]:
    return (0.1 * 0.09 / (sqrt(0.0099) + epsilon), 0.1 * -0.019 / (sqrt(0.019801) + epsilon))


def test_coordinates_do_not_mix_and_both_signs_occur() -> None:
    server = Adam(lr=0.1, tau=0.1)
    together = walk(server, [2.0, 2.0, -5.0, 0.0], [[1, -0.5, 0, 0], [0, 2, 0, -1], [-1, 0.25, 0, 1]])
    assert float(together.last.vector[0]) == walk(server, [2.0], [1, 0, -1]).x[-1]
    assert float(together.last.vector[1]) == walk(server, [2.0], [-0.5, 2, 0.25]).x[-1]
    assert float(together.last.vector[2]) == -5.0  # never changed: never moved
    assert float(together.last.vector[3]) == walk(server, [0.0], [0, -1, 1]).x[-1]


ALL = [
    Adam(),
    Adam(bias_correction=True),
    Adam(calibration=Softplus()),
    Yogi(second_moment="momentum"),
    AMSGrad(),
    AMSGrad(form="reddi"),
    Adagrad(beta1=0.5),
]


@pytest.mark.parametrize("server", ALL, ids=lambda s: type(s).__name__)
def test_inputs_and_options_are_left_alone(server: Adaptive) -> None:
    before = walk(server, [1.0, -1.0], [[0.5, 0.0]]).last
    options = dict(vars(server))
    kept = {name: value.clone() for name, value in before.server.items()}
    vector, mean = before.vector.clone(), torch.tensor([2.0, -3.0])
    after, numbers = server.step(before, mean, Moment(0, 2), NAN)
    again, same = server.step(before, mean, Moment(0, 2), NAN)
    assert torch.equal(before.vector, vector)
    assert mean.tolist() == [2.0, -3.0]
    assert set(kept) == set(before.server)
    assert all(torch.equal(before.server[name], value) for name, value in kept.items())
    assert torch.equal(after, again)
    assert all(torch.equal(numbers[name], same[name]) for name in numbers)
    assert vars(server) == options
    assert not torch.equal(after, vector)


@pytest.mark.parametrize("server", ALL, ids=lambda s: type(s).__name__)
def test_an_entry_of_another_size_starts_again(server: Adaptive) -> None:
    old = walk(server, [1.0, -1.0], [[0.5, 0.1], [0.2, 0.3]]).last
    assert int(old.server["steps"]) == 2
    grown = old.new(vector=torch.zeros(3), server={**old.server, "record": torch.tensor(7.0)})
    vector, numbers = server.step(grown, torch.tensor([1.0, 0.5, -2.0]), Moment(0, 3), NAN)
    fresh = walk(server, [0.0, 0.0, 0.0], [[1.0, 0.5, -2.0]]).last
    assert torch.equal(vector, fresh.vector)
    assert int(numbers["steps"]) == 1
    assert numbers["steps"].dtype == torch.int64
    assert all(torch.equal(numbers[name], value) for name, value in fresh.server.items())
    assert float(numbers["record"]) == 7.0  # not the optimiser's own


@pytest.mark.parametrize("lost", ["m", "v", "vhat", "steps"])
def test_an_entry_that_lost_a_number_starts_again(lost: str) -> None:
    server = AMSGrad(form="reddi")
    old = walk(server, [1.0], [0.5, 0.5]).last
    broken = old.new(server={name: value for name, value in old.server.items() if name != lost})
    _, numbers = server.step(broken, torch.tensor([3.0]), Moment(0, 3), NAN)
    assert int(numbers["steps"]) == 1
    assert server.effective_step(broken) is None


def test_the_effective_step() -> None:
    entry = walk(Adam(lr=0.1, tau=0.1), [2.0, 0.0], [[1, 0]]).last
    found = Adam(lr=0.1, tau=0.1).effective_step(entry)
    assert found is not None
    # v = .0199 where Delta was 1, .0099 where it was 0
    assert found.tolist() == pytest.approx([0.1 / (sqrt(0.0199) + 0.1), 0.1 / (sqrt(0.0099) + 0.1)], rel=1e-6)
    reddi = AMSGrad(lr=0.1, tau=0.1, form="reddi")
    after_two = walk(reddi, [2.0], [1, 0]).last
    step = reddi.effective_step(after_two)
    assert step is not None
    assert float(step) == pytest.approx(0.1 / (sqrt(0.0199) + 0.1), rel=1e-6)  # of vhat, not of v = .019701
    assert Adam().effective_step(Entry(torch.zeros(2))) is None


def test_a_schedule_moves_the_step_and_the_effective_step() -> None:
    class Falling(Adam):
        def rate(self, when: Moment) -> float:
            return self.lr / when.round

    server = Falling(lr=0.1, tau=0.1)
    found = walk(server, [2.0], [1, 0])
    assert found.x[1] - found.x[0] == pytest.approx(0.05 * 0.09 / (sqrt(0.019701) + 0.1), rel=1e-4)
    step = server.effective_step(found.last, Moment(0, 2))
    assert step is not None
    assert float(step) == pytest.approx(0.05 / (sqrt(0.019701) + 0.1), rel=1e-6)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="tau and calibration exclude each other"):
        Adam(tau=0.1, calibration=Power())
    with pytest.raises(ValueError, match="adagrad's v is a sum"):
        Adagrad(bias_correction=True)
    for bad in ({"lr": 0.0}, {"beta1": 1.0}, {"beta2": -0.1}, {"tau": 0.0}, {"tau": float("nan")}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            Adam(**bad)  # type: ignore[arg-type]
    for odd in ({"second_moment": "mean"}, {"v_init": "one"}, {"form": "keras"}):
        with pytest.raises(ValueError, match=next(iter(odd))):
            AMSGrad(**odd)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="v starts at zero"):
        Adam(calibration=Power(), v_init="tau-squared")
    with pytest.raises(ValueError, match="v starts at zero"):
        Adam(tau=0.1, bias_correction=True, v_init="tau-squared")
    with pytest.raises(ValueError, match="not positive in float32"):
        Adam(calibration=Power(p=1.0, epsilon=1e-30))
