"""Need: a local rate that changes by the round, or that the server sends along. Here: decay, and Adaptive-FedAvg."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from example_lab import QUADRATICS, config, on_digits, play, prove, quadratics

from shoal.learners.base import Learner
from shoal.server.base import ServerOptimizer


class Decaying(Learner):
    """The local rate is multiplied by ``factor`` after every round."""

    def __init__(self, world, local, *, factor: float = 0.5):
        super().__init__(world, local)
        self.factor = factor

    def optimizer(self, when):
        plain = super().optimizer(when)
        return replace(plain, lr=plain.lr * self.factor ** (when.round - 1))


class Watching(ServerOptimizer):
    """Federated averaging that follows the mean and the variance of the model; both stay on the server."""

    def step(self, old, mean, when, reported):
        centre = old.server.get("watch/mean", old.vector)
        centre = centre if centre.shape == mean.shape else old.vector
        variance = old.server.get("watch/variance", torch.tensor(0.0))
        away = mean - centre
        spread = 0.5 * variance + 0.5 * away.square().mean()
        ratio = spread / variance if variance > 0 else torch.tensor(1.0)
        return mean, {**old.server, "watch/mean": centre + away / 2, "watch/variance": spread, "watch/ratio": ratio}


class Travelling(Learner):
    """Local training at the rate that came with the entry: ``lr * min(1, ratio)``. (As in Canonaco et al., 2021)"""

    def fit(self, key, start, entry, client, **request):
        optimizer = self.optimizer(client.when)
        rate = entry.extra.get("travel/lr", torch.tensor(optimizer.lr))
        request = {"optimizer": replace(optimizer, lr=float(rate)), **request}
        return (yield from super().fit(key, start, entry, client, **request))

    def extra(self, key, old, new, group, when):
        return {"travel/lr": self.local.lr * new.server.get("watch/ratio", torch.tensor(1.0)).clamp(max=1.0)}


DECAYING = {"learner": {"kind": "test_example_rates:Decaying"}}
TRAVELLING = {"learner": {"kind": "test_example_rates:Travelling"}}
WATCHING = {"kind": "fedavg", "server": {"kind": "test_example_rates:Watching"}}


def test_the_laws():
    prove(config(local=DECAYING))
    run = prove(config(method=WATCHING, local=TRAVELLING))
    assert set(run.bank["global"].extra) == {"travel/lr"}
    assert run.bank["global"].server["watch/mean"].shape == run.bank["global"].vector.shape


def test_decay_by_hand():
    # One client, one step a round: b moves by lr * (2 - b) with lr 1/2, 1/4, 1/8: 1, 1.25, 1.34375.
    raw = quadratics(stream={"sizes": [2]}, local=DECAYING)
    run = play(raw, QUADRATICS, zero=True)
    assert [float(state.bank["global"].vector[1]) for state in run.states] == [0, 1, 1.25, 1.34375]


def test_the_rate_that_is_sent_is_the_one_of_the_entry_as_it_is_sent():
    # From 0 to 1 at rate 1/2: mean 1/2, variance (1/2)(1 / 2 numbers); no ratio yet. To 1.5 at 1/2: away 1,
    # variance 1/8 + 1/4 = 3/8, ratio 3/2, so 1/2 again. To 1.75: mean 1, away 3/4, 3/16 + 9/64 = 21/64, ratio 7/8.
    raw = quadratics(stream={"sizes": [2]}, method=WATCHING, local=TRAVELLING, rounds=4)
    run = play(raw, QUADRATICS, zero=True)
    assert [float(s.bank["global"].vector[1]) for s in run.states[:4]] == [0, 1, 1.5, 1.75]
    rates = [float(s.bank["global"].extra["travel/lr"]) for s in run.states[1:4]]
    assert rates == pytest.approx([0.5, 0.5, 7 / 16])
    assert float(run.bank["global"].vector[1]) == pytest.approx(1.75 + 7 / 16 * 0.25)


def test_only_the_rate_travels():
    run = play(config(method=WATCHING, local=TRAVELLING, rounds=2))
    size = 4 * run.bank["global"].vector.numel()
    assert [line["value"] for line in run.all(metric="bytes_down")] == [size, size + 4]


def test_on_digits(tmp_path):
    assert on_digits(tmp_path / "run", method=WATCHING, local=TRAVELLING).summary["acc"] > 0.5
