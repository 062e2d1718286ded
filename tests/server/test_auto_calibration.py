"""A constant that follows sqrt(v): two steps by hand, frozen coordinates, the window, and runs that are resumed."""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp, log, log1p, sqrt
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from server_steps import NAN, walk
from torch import Tensor

from shoal import registry
from shoal.bank import Entry
from shoal.checks.case import Case
from shoal.errors import ConfigError
from shoal.randomness import Moment
from shoal.server.adaptive import Adagrad, Adam, Adaptive, AMSGrad, Yogi
from shoal.server.base import Calibration
from shoal.server.calibrations import WINDOW, Epsilon, Power, Softplus

AUTO: list[Calibration] = [Epsilon(epsilon="auto"), Softplus(beta="auto")]
CHANGES = [[2.0, -4.0, 0.0], [0.0, 0.0, 2.0]]
"""With beta2 = .5: v = [2, 8, 0], then [1, 4, 2]. Medians of the roots that are not 0: 3 / sqrt 2, then sqrt 2."""
FIRST = 3 / sqrt(2)
SECOND = (3 / sqrt(2) + sqrt(2)) / 2


def server_of(calibration: Calibration, **more: Any) -> Adaptive:
    return Adam(**{"lr": 1.0, "beta1": 0.0, "beta2": 0.5, "calibration": calibration, **more})


def constants(server: Adaptive, changes: list[Any], size: int = 1) -> list[float | None]:
    return [server.constant_of(entry) for entry in walk(server, [0.0] * size, changes).entries]


# ---- by hand ----------------------------------------------------------------------------------------------------


def test_two_steps_of_epsilon() -> None:
    found = walk(server_of(Epsilon(epsilon="auto")), [0.0, 0.0, 0.0], CHANGES)
    one = [2 / (sqrt(2) + FIRST), -4 / (sqrt(8) + FIRST), 0.0]
    assert found.entries[0].vector.tolist() == pytest.approx(one, rel=1e-6)
    assert found.last.vector.tolist() == pytest.approx([*one[:2], 2 / (sqrt(2) + SECOND)], rel=1e-6)
    assert found.last.server[WINDOW].tolist() == pytest.approx([FIRST, sqrt(2)], rel=1e-6)
    assert found.last.server[WINDOW].dtype == torch.float64


def test_two_steps_of_softplus_whose_floor_is_the_constant() -> None:
    def denominator(s: float, floor: float) -> float:
        beta = log(2) / floor
        return log1p(exp(beta * s)) / beta

    server = server_of(Softplus(beta="auto"))
    found = walk(server, [0.0, 0.0, 0.0], CHANGES)
    one = [2 / denominator(sqrt(2), FIRST), -4 / denominator(sqrt(8), FIRST), 0.0]
    assert found.entries[0].vector.tolist() == pytest.approx(one, rel=1e-6)
    assert found.last.vector.tolist() == pytest.approx([*one[:2], 2 / denominator(sqrt(2), SECOND)], rel=1e-6)
    # The third coordinate had not moved in the first step: its denominator was the floor itself.
    step = server.effective_step(found.entries[0])
    assert step is not None
    assert float(step[2]) == pytest.approx(1 / FIRST, rel=1e-6)


@pytest.mark.parametrize("calibration", AUTO, ids=lambda c: type(c).__name__)
def test_the_constant_of_a_step_is_that_of_its_effective_step(calibration: Calibration) -> None:
    server = server_of(calibration)
    first, second = walk(server, [0.0, 0.0, 0.0], CHANGES).entries
    assert (server.constant_of(first), server.constant_of(second)) == pytest.approx((FIRST, SECOND), rel=1e-6)
    step = server.effective_step(second)
    assert step is not None
    moved = second.vector - first.vector
    assert float(moved[2] / 2) == pytest.approx(float(step[2]), rel=1e-6)


def test_another_quantile() -> None:
    v = np.array([2.0, 8.0])
    for share in (0.0, 0.25, 1.0):
        server = server_of(Epsilon(epsilon="auto", quantile=share))
        assert constants(server, CHANGES[:1], 3) == pytest.approx([np.quantile(np.sqrt(v), share)], rel=1e-6)


# ---- which second moment ----------------------------------------------------------------------------------------


def test_it_is_the_second_moment_that_the_denominator_takes() -> None:
    # Bias correction makes v / (1 - beta2) of the first step, which is the squared change.
    corrected = server_of(Epsilon(epsilon="auto"), beta2=0.99, bias_correction=True)
    assert constants(corrected, [-3.0]) == pytest.approx([3.0], rel=1e-5)
    # Reddi's maximum stays at sqrt(.5) where the average falls to sqrt(.25).
    reddi = AMSGrad(beta2=0.5, calibration=Epsilon(epsilon="auto", window=1), form="reddi")
    assert constants(reddi, [1.0, 0.0]) == pytest.approx([sqrt(0.5), sqrt(0.5)], rel=1e-6)
    plain = Adam(beta2=0.5, calibration=Epsilon(epsilon="auto", window=1))
    assert constants(plain, [1.0, 0.0]) == pytest.approx([sqrt(0.5), 0.5], rel=1e-6)


@pytest.mark.parametrize("make", [Adam, AMSGrad, Yogi, Adagrad])
def test_every_member_takes_it(make: type[Adaptive]) -> None:
    server = make(calibration=Softplus(beta="auto"))
    found = walk(server, [0.0, 1.0], [[0.1, -0.2], [0.1, 0.0], [0.0, -0.3]])
    assert len(found.last.server[WINDOW]) == 3
    expected = [float(np.median(e.server["v"].sqrt())) for e in found.entries]
    assert server.constant_of(found.last) == pytest.approx(float(np.median(expected)), rel=1e-6)


# ---- the window -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "expected"),
    [(10, [1, 1.5, 2, 3, 4]), (3, [1, 1.5, 2, 4, 8]), (2, [1, 1.5, 3, 6, 12]), (1, [1, 2, 4, 8, 16])],
)
def test_the_window_slides(window: int, expected: list[float]) -> None:
    server = server_of(Epsilon(epsilon="auto", window=window), beta2=0.0)  # sqrt(v) is |Delta|
    found = walk(server, [0.0], [1.0, -2.0, 4.0, -8.0, 16.0])
    assert [server.constant_of(e) for e in found.entries] == expected
    assert found.last.server[WINDOW].tolist() == [1, 2, 4, 8, 16][-window:]


def test_every_entry_has_a_window_of_its_own() -> None:
    server = server_of(Epsilon(epsilon="auto"), beta2=0.0)
    one, other = walk(server, [0.0], [1.0]).last, walk(server, [0.0], [100.0]).last
    _, numbers = server.step(one, one.vector + 3.0, Moment(0, 2), NAN)
    assert numbers[WINDOW].tolist() == [1.0, pytest.approx(3.0)]
    assert one.server[WINDOW].tolist() == [1.0]
    assert other.server[WINDOW].tolist() == [100.0]


@pytest.mark.parametrize("calibration", AUTO, ids=lambda c: type(c).__name__)
def test_an_entry_that_grew_starts_again(calibration: Calibration) -> None:
    server = server_of(calibration)
    old = walk(server, [0.0], [50.0, 50.0]).last
    grown = old.new(vector=torch.zeros(2), server={**old.server, "record": torch.tensor(7.0)})
    assert server.constant_of(grown) is None
    _, numbers = server.step(grown, torch.tensor([1.0, 2.0]), Moment(0, 3), NAN)
    assert numbers[WINDOW].tolist() == pytest.approx([1.5 / sqrt(2)], rel=1e-6)
    assert float(numbers["record"]) == 7.0


# ---- what did not move ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("calibration", AUTO, ids=lambda c: type(c).__name__)
def test_frozen_coordinates_do_not_count(calibration: Calibration) -> None:
    # Of a thousand coordinates three train; the median over all of them would be 0.
    change = torch.zeros(1000)
    change[:3] = torch.tensor([0.1, -0.2, 0.4])
    server = server_of(calibration, beta2=0.0)
    found = walk(server, torch.zeros(1000), [change])
    assert server.constant_of(found.last) == pytest.approx(0.2)
    assert not found.last.vector[3:].any()
    assert found.last.vector[:3].abs().min() > 0


@pytest.mark.parametrize("calibration", AUTO, ids=lambda c: type(c).__name__)
def test_an_entry_that_never_moved_has_no_note_and_stays(calibration: Calibration) -> None:
    server = server_of(calibration)
    found = walk(server, [1.0, -1.0], [[0.0, 0.0], [0.0, 0.0]])
    assert found.last.vector.tolist() == [1.0, -1.0]
    assert WINDOW not in found.last.server
    assert server.constant_of(found.last) == 1e-8
    step = server.effective_step(found.last)
    assert step is not None
    assert step.isfinite().all()
    # A change so small that its square is 0 in float32 must not become a huge step.
    tiny = walk(server, [0.0], [1e-30])
    assert float(tiny.last.vector) == pytest.approx(1e-22, rel=1e-3)


def test_a_still_round_in_between_notes_nothing() -> None:
    server = server_of(Epsilon(epsilon="auto"), beta2=0.0)
    found = walk(server, [0.0], [2.0, 0.0, 6.0])
    assert [server.constant_of(e) for e in found.entries] == [2.0, 2.0, pytest.approx(4.0)]
    assert len(found.last.server[WINDOW]) == 2


@pytest.mark.parametrize("calibration", AUTO, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("size", [1e-18, 1e-3, 1e18])
def test_the_first_step_is_of_one_size_at_every_scale(calibration: Calibration, size: float) -> None:
    found = walk(server_of(calibration, beta2=0.0), [0.0], [size])
    # sqrt(v) = Delta = the constant: epsilon halves the step, and softplus(1) is log2(3) times the floor.
    expected = 0.5 if isinstance(calibration, Epsilon) else 1 / (log(3) / log(2))
    assert float(found.last.vector) == pytest.approx(expected, rel=1e-3)


# ---- in runs, and what it says of itself ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "calibration", [{"kind": "epsilon", "epsilon": "auto", "window": 2}, {"kind": "softplus", "beta": "auto"}]
)
def test_a_run_that_is_resumed_after_any_round_goes_on_with_the_window(calibration: dict[str, Any]) -> None:
    server = {"kind": "adam", "lr": 0.01, "calibration": calibration}
    case = Case(method={"kind": "fedavg", "server": server})
    whole = case.play(case.setup(rounds=4))
    window = whole.last.bank["global"].server[WINDOW]
    assert len(window) == (2 if "window" in calibration else 4)
    assert len(set(window.tolist())) == len(window)
    for round in range(1, 4):
        resumed = case.play(case.setup(rounds=4), state=replace(whole.states[round]))
        assert resumed.prints[-1] == whole.prints[-1]


def made(given: Any) -> Adaptive:
    resolved = yaml.safe_load(yaml.safe_dump(registry.resolve("server", given)))
    server = registry.build("server", resolved)
    assert isinstance(server, Adaptive)
    return server


def test_it_says_auto() -> None:
    server = made({"kind": "adam", "calibration": {"kind": "softplus", "beta": "auto", "quantile": 0.25}})
    told = json.loads(json.dumps(server.describe(), allow_nan=False))
    assert told["calibration"] == {"class": "Softplus", "beta": "auto", "quantile": 0.25, "window": 10}
    assert told["first_effective_step"] is None
    epsilon = made({"kind": "yogi", "calibration": {"kind": "epsilon", "epsilon": "auto", "window": 3}}).describe()
    assert epsilon["calibration"] == {"class": "Epsilon", "epsilon": "auto", "quantile": 0.5, "window": 3}


@pytest.mark.parametrize(
    ("calibration", "expected"),
    [(Epsilon(epsilon=0.25), 0.25), (Softplus(beta=10.0), log(2) / 10), (Power(), None), (None, 0.01)],
)
def test_constants_that_are_given_are_told_and_keep_nothing(calibration: Any, expected: float | None) -> None:
    server = Adam(calibration=calibration)
    found = walk(server, [0.0], [1.0, 2.0])
    assert server.constant_of(found.last) == (None if expected is None else pytest.approx(expected))
    assert set(found.last.server) == {"m", "v", "steps"}
    assert server.constant_of(Entry(torch.zeros(1))) is None


def test_a_calibration_of_ones_own_needs_nothing_more() -> None:
    class Own(Calibration):
        def denominator(self, v: Tensor) -> Tensor:
            return v.sqrt() + 0.5

    own, epsilon = server_of(Own()), server_of(Epsilon(epsilon=0.5))
    found, expected = walk(own, [0.0, 0.0, 0.0], CHANGES), walk(epsilon, [0.0, 0.0, 0.0], CHANGES)
    assert torch.equal(found.last.vector, expected.last.vector)
    assert own.constant_of(found.last) is None
    assert own.describe()["first_effective_step"] == 2.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"calibration": {"kind": "p", "p": "auto"}}, r"calibration\.p: there is no auto here: .*use kind: epsilon"),
        ({"calibration": {"kind": "p", "epsilon": "auto"}}, "no constant that competes"),
        ({"tau": "auto"}, r"server\.tau: there is no auto here: .*calibration: \{kind: epsilon, epsilon: auto\}"),
        ({"calibration": {"kind": "epsilon", "epsilon": "Auto"}}, "epsilon: a number, or 'auto'; got 'Auto'"),
        ({"calibration": {"kind": "softplus", "beta": True}}, "not true or false"),
        ({"calibration": {"kind": "softplus", "beta": "auto", "quantile": 1.5}}, "less than or equal to 1"),
        ({"calibration": {"kind": "epsilon", "epsilon": "auto", "window": 0}}, "greater than or equal to 1"),
        ({"calibration": {"kind": "p", "window": 3}}, r"window: no such setting"),
    ],
)
def test_what_makes_no_sense_is_refused_before_any_training(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made({"kind": "adam", **given})


def test_it_is_refused_in_python_too() -> None:
    with pytest.raises(ValueError, match="no auto here"):
        Power(p="auto")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no auto here"):
        Adam(tau="auto")  # type: ignore[arg-type]
    for share in (-0.1, 1.1, NAN):
        with pytest.raises(ValueError, match="0 <= quantile <= 1"):
            Epsilon(epsilon="auto", quantile=share)
    with pytest.raises(ValueError, match="window >= 1"):
        Softplus(beta="auto", window=0)
