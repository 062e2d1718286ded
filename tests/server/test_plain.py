"""The plain server step and momentum: by hand, and against torch.optim.SGD."""

from __future__ import annotations

import pytest
import torch
from server_steps import NAN, bits, group, sent, walk

from shoal.bank import Entry
from shoal.randomness import Moment
from shoal.server.means import Weighted
from shoal.server.plain import SGD, Momentum

NOW = Moment(0, 1)


def test_rate_one_is_the_mean_to_the_bit() -> None:
    # 0.1 + (1e-9 - 0.1) is not 1e-9 in float32.
    old = Entry(torch.tensor([0.1, 1.0, -3.0, 0.0]), server={"record": torch.tensor(5.0)})
    mean = Weighted().combine(old, group(sent([1e-9, 0.3, -0.0, 7.0]), sent([1e-9, 0.1, -0.0, 9.0])))
    vector, server = SGD().step(old, mean, NOW, NAN)
    assert bits(vector) == bits(mean)
    assert server is old.server  # records of a method survive


def test_other_rates_by_hand() -> None:
    assert walk(SGD(lr=0.5), [2.0], [1, 0, -3]).x == [2.5, 2.5, 1.0]
    assert walk(SGD(lr=2.0), [2.0], [1, 0, -3]).x == [4.0, 4.0, -2.0]


def test_ema_momentum_by_hand() -> None:
    found = walk(Momentum(lr=2.0, beta=0.75), [1.0], [1, 0, -1])
    # m = .75 * 0 + .25 * 1 = .25;  .75 * .25 = .1875;  .75 * .1875 - .25 = -.109375
    assert found.number("m") == [0.25, 0.1875, -0.109375]
    assert found.x == [1.5, 1.875, 1.65625]


def test_heavy_ball_by_hand() -> None:
    found = walk(Momentum(lr=0.5, beta=0.75, form="heavy-ball"), [1.0], [1, 0, -1])
    # m = 1;  .75;  .75 * .75 - 1 = -.4375
    assert found.number("m") == [1.0, 0.75, -0.4375]
    assert found.x == [1.5, 1.875, 1.65625]


def test_nesterov_by_hand() -> None:
    ball = walk(Momentum(lr=0.5, beta=0.75, form="heavy-ball", nesterov=True), [1.0], [1, 0, -1])
    # m as above; direction .75 m + Delta = 1.75;  .5625;  -1.328125
    assert ball.number("m") == [1.0, 0.75, -0.4375]
    assert ball.x == [1.875, 2.15625, 1.4921875]
    ema = walk(Momentum(lr=2.0, beta=0.75, nesterov=True), [1.0], [1, 0, -1])
    # direction .75 m + .25 Delta: a quarter of the above, at four times the rate
    assert ema.number("m") == [0.25, 0.1875, -0.109375]
    assert ema.x == ball.x


@pytest.mark.parametrize("nesterov", [False, True])
def test_heavy_ball_is_torchs_sgd(nesterov: bool) -> None:
    rng = torch.Generator().manual_seed(0)
    start = torch.randn(20, generator=rng)
    changes = torch.randn(25, 20, generator=rng) * torch.tensor([1.0, 1e-3] * 10)
    found = walk(Momentum(lr=0.3, beta=0.9, form="heavy-ball", nesterov=nesterov), start, changes)
    weights = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.SGD([weights], lr=0.3, momentum=0.9, nesterov=nesterov)
    for delta in found.deltas:
        weights.grad = -delta
        optimizer.step()
    torch.testing.assert_close(found.last.vector, weights.detach(), rtol=1e-5, atol=1e-6)


def test_without_momentum_and_at_rate_one_both_forms_are_federated_averaging() -> None:
    for form in ("ema", "heavy-ball"):
        found = walk(Momentum(lr=1.0, beta=0.0, form=form), [2.0, -1.0], [[1, -2], [0, 0], [-1, 0.5]])
        assert found.last.vector.tolist() == [2.0, -2.5]


def test_forms_agree_when_the_rates_do() -> None:
    changes = [[0.3, -0.1], [0.0, 2.0], [-0.7, 0.4], [0.1, 0.1]]
    ema = walk(Momentum(lr=3.0, beta=0.9), [1.0, 1.0], changes)
    ball = walk(Momentum(lr=0.3, beta=0.9, form="heavy-ball"), [1.0, 1.0], changes)
    torch.testing.assert_close(ema.last.vector, ball.last.vector)


def test_a_grown_entry_starts_again_and_other_numbers_stay() -> None:
    old = Entry(torch.zeros(3), server={"m": torch.ones(2), "record": torch.tensor(4.0)})
    vector, server = Momentum(beta=0.5).step(old, torch.full((3,), 2.0), NOW, NAN)
    assert server["m"].tolist() == [1.0, 1.0, 1.0]
    assert vector.tolist() == [1.0, 1.0, 1.0]
    assert float(server["record"]) == 4.0
    assert old.server["m"].tolist() == [1.0, 1.0]


def test_inputs_are_left_alone() -> None:
    for server in (SGD(lr=0.5), Momentum(nesterov=True)):
        old = Entry(torch.tensor([1.0]), server={"m": torch.tensor([2.0])})
        mean = torch.tensor([3.0])
        server.step(old, mean, NOW, NAN)
        assert (old.vector.tolist(), old.server["m"].tolist(), mean.tolist()) == ([1.0], [2.0], [3.0])


def test_a_schedule_overrides_the_rate() -> None:
    class Halving(Momentum):
        def rate(self, when: Moment) -> float:
            return self.lr * 0.5 ** (when.round - 1)

    # ema, beta 0: the changes themselves, at rates 1, 1/2, 1/4
    assert walk(Halving(beta=0.0), [0.0], [4, 4, 4]).x == [4.0, 6.0, 7.0]


def test_settings_that_make_no_sense_are_refused() -> None:
    for lr in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="lr must be positive"):
            SGD(lr=lr)
    with pytest.raises(ValueError, match="0 <= beta < 1; got 1"):
        Momentum(beta=1.0)
    with pytest.raises(ValueError, match="heavy-ball"):
        Momentum(form="nesterov")  # type: ignore[arg-type]


def test_what_they_say_of_themselves() -> None:
    assert SGD(lr=0.5).describe() == {"class": "SGD", "lr": 0.5}
    assert Momentum().describe() == {"class": "Momentum", "lr": 1.0, "beta": 0.9, "form": "ema", "nesterov": False}
    assert SGD().effective_step(Entry(torch.zeros(2))) is None
