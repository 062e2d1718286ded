"""Need: local training in several fits that go on from each other. Here: early stopping, the client half of Flash."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from example_lab import config, on_digits, play, prove

from shoal.learners.base import Learner
from shoal.messages import Part
from shoal.requests import Evaluate, Served


class Stopping(Learner):
    """At most ``local.epochs`` epochs; stops when the loss on the validation rows falls by less than ``least``."""

    def __init__(self, world, local, *, least: float = 0.0):
        super().__init__(world, local)
        self.least = least

    def fit(self, key, start, entry, client, **request):
        fit, at, slots, best, steps = self.request(start, client, **request), start, {}, math.inf, 0
        for epoch in range(int(fit.epochs)):
            more = replace(fit, start=at, epochs=1, slots=slots, since=start.vector, purpose=f"{fit.purpose}/{epoch}")
            result = yield more
            at, slots, steps = Served(start.model, result.vector, result.buffers), result.slots, steps + result.steps
            (score,) = yield Evaluate((at,), client.validation)
            if not score.loss < best - self.least:
                break
            best = score.loss
        return Part(at.vector, at.buffers, steps=steps, loss=result.loss), {}


STOPPING = {"learner": {"kind": "test_example_stopping:Stopping"}, "epochs": 4}


def test_the_laws():
    prove(config(local={**STOPPING, "momentum": 0.9}))


@pytest.mark.parametrize("optimizer", [{"momentum": 0.9}, {"optimizer": "adam", "lr": 0.01}])
def test_fits_that_go_on_equal_one_fit_of_as_many_epochs(optimizer):
    # Full batches, so that the order of the rows does not matter; it never stops early.
    local = {**optimizer, "batch_size": 64, "epochs": 4}
    never = {"learner": {"kind": "test_example_stopping:Stopping", "least": -1e9}}
    chain, whole = (play(config(local={**local, **more}, rounds=2)) for more in (never, {}))
    torch.testing.assert_close(chain.bank["global"].vector, whole.bank["global"].vector, rtol=1e-4, atol=1e-5)
    drifts = [[line["value"] for line in run.all(metric="client_drift", over="all")] for run in (chain, whole)]
    assert drifts[0] == pytest.approx(drifts[1], rel=1e-3)
    assert all(value > 0 for value in drifts[0])


def test_it_stops():
    run = play(config(local={**STOPPING, "learner": {**STOPPING["learner"], "least": 1e9}}, rounds=1))
    # An epoch, then a second one that gains less than asked for: rows / 16 steps each.
    rows = [len(run.setup.stream.holding(i, 1).train) for i in range(4)]
    (line,) = run.all(metric="client_steps")
    assert line["value"] == 2 * sum(-(-n // 16) for n in rows)


def test_on_digits(tmp_path):
    assert on_digits(tmp_path / "run", local=STOPPING).summary["acc"] > 0.5
