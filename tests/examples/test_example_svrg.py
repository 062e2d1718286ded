"""Need: two exchanges in one round, the first without training. Here: SVRG with a global anchor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from example_lab import QUADRATICS, config, digits, on_digits, play, prove, quadratics

from shoal.data.dataset import inputs
from shoal.learners.base import Learner
from shoal.messages import Part
from shoal.requests import Gradient
from shoal.terms import Shift


class Svrg(Learner):
    """Exchange 0: everyone sends its gradient. Exchange 1: steps along ``g(y) - g(x) + mean gradient``."""

    exchanges = 2

    def fit(self, key, start, entry, client, **request):
        if client.when.exchange == 0:
            gradient = yield Gradient(start, client.train)
            return Part(None, extra={"svrg/gradient": gradient}), {}
        fit = self.request(start, client, **request)
        terms = (*fit.terms, Shift(entry.extra["svrg/gradient"]))
        result = yield replace(fit, anchor=start.vector, terms=terms)
        return Part(result.vector, result.buffers, steps=result.steps, loss=result.loss), {}

    def extra(self, key, old, new, group, when):
        sent = [part.extra.get("svrg/gradient") for part in group.parts]
        known = [(g, w) for g, w in zip(sent, group.weights, strict=True) if g is not None]
        total = sum(w for _, w in known)
        return {"svrg/gradient": sum(g * (w / total) for g, w in known) if known else None}


SVRG = {"learner": {"kind": "test_example_svrg:Svrg"}}


def test_the_laws():
    run = prove(config(local=SVRG, participation={"count": 3}))
    # The mean gradient is taken away after the second exchange, so that it is not sent again.
    assert all(not state.bank["global"].extra for state in run.states)
    assert len(run.all(record="round")) == 3


def gradient(run, vector, client=None):
    """Of the mean loss over the training rows of one client, or of all, by autograd in float64."""
    stream = run.setup.stream
    clients = range(stream.clients) if client is None else [client]
    rows = torch.cat([stream.holding(i, 1).train for i in clients])
    module = run.setup.world.models["main"].build().double()
    torch.nn.utils.vector_to_parameters(vector.double(), module.parameters())
    F.cross_entropy(module(inputs(digits().batch(rows)).double()), digits().wanted(rows)).backward()
    return torch.cat([p.grad.reshape(-1) for p in module.parameters()])


def test_one_full_batch_step_is_gradient_descent_on_the_mean_objective():
    run = play(config(local={**SVRG, "batch_size": 64}))
    x = run.states[0].bank["global"].vector.double()
    for state in run.states[1:]:
        x = x - 0.1 * gradient(run, x)
        np.testing.assert_allclose(state.bank["global"].vector.numpy(), x.numpy(), rtol=1e-4, atol=1e-6)


def test_two_full_batch_steps_use_the_own_curvature_and_the_common_gradient():
    run = play(config(local={**SVRG, "batch_size": 64, "epochs": 2}, rounds=1))
    x, weights, ends = run.states[0].bank["global"].vector.double(), [], []
    for client in range(4):
        y = x - 0.1 * gradient(run, x)
        y = y - 0.1 * (gradient(run, y, client) - gradient(run, x, client) + gradient(run, x))
        ends.append(y.numpy())
        weights.append(len(run.setup.stream.holding(client, 1).train))
    expected = np.average(ends, axis=0, weights=weights)
    np.testing.assert_allclose(run.bank["global"].vector.numpy(), expected, rtol=1e-4, atol=1e-6)
    apart = [np.linalg.norm(end - expected) for end in ends]
    assert max(apart) > 1e-4


def test_hand_numbers():
    # From 0: gradients -2 (2 rows) and 4 (4 rows), mean 2. Client 0: one step of 1/2, to -1. Client 1: to -1, then
    # g(-1) - g(0) + 2 = 3 - 4 + 2 = 1, to -3/2. Mean by rows: (2 * -1 + 4 * -3/2) / 6 = -4/3.
    run = play(quadratics(rounds=1, local=SVRG), QUADRATICS, zero=True)
    assert float(run.bank["global"].vector[1]) == pytest.approx(-4 / 3, rel=1e-6)


def test_the_server_optimiser_steps_once_in_a_round():
    run = play(config(local={**SVRG, "batch_size": 64}, method={"kind": "fedavg", "server": MOMENTUM}, rounds=2))
    x, m = run.states[0].bank["global"].vector.double(), 0
    for state in run.states[1:]:
        m = 0.5 * m - 0.1 * gradient(run, x)
        x = x + m
        np.testing.assert_allclose(state.bank["global"].vector.numpy(), x.numpy(), rtol=1e-4, atol=1e-6)


MOMENTUM = {"kind": "momentum", "beta": 0.5, "form": "heavy-ball"}


def test_bytes_of_both_exchanges():
    run = play(config(local=SVRG, rounds=2))
    size = 4 * run.bank["global"].vector.numel()
    # Down: the model, then the model with the mean gradient. Up: the gradient, then the model.
    assert [line["value"] for line in run.all(metric="bytes_down")] == [3 * size] * 2
    assert [line["value"] for line in run.all(metric="bytes_up")] == [2 * size] * 2


class Halted(Svrg):
    """Nobody gets through the second exchange."""

    def fit(self, key, start, entry, client, **request):
        if client.when.exchange:
            raise RuntimeError("halted")
        return (yield from super().fit(key, start, entry, client, **request))


def test_an_entry_counts_as_trained_only_if_a_model_came_back():
    run = play(config(local={"learner": {"kind": "test_example_svrg:Halted"}}, rounds=1), clean=False)
    assert torch.equal(run.bank["global"].vector, run.states[0].bank["global"].vector)
    assert run.bank["global"].extra["svrg/gradient"].any()
    assert run.all(record="round")[0]["trained"] == {}


def test_on_digits(tmp_path):
    assert on_digits(tmp_path / "run", local=SVRG).summary["acc"] > 0.5
