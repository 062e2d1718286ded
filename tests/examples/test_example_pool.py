"""Need: numbers that a model uses and does not train. Here: a pool of other models' weights, as in FedWeIT."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from example_lab import config, digits, on_digits, play, prove
from torch import nn

from shoal.bank import Bank, Entry
from shoal.data.dataset import inputs
from shoal.messages import Assignment, Update
from shoal.methods.base import Method
from shoal.requests import Served


class Attentive(nn.Module):
    """Softmax regression with the weights ``classifier + sum_j alpha_j pool_j``; the pool's size may change."""

    def __init__(self, shape, outputs, most: int = 4):
        super().__init__()
        self.classifier = nn.Linear(int(np.prod(shape)), outputs)
        self.alpha = nn.Parameter(torch.zeros(most))
        self.register_buffer("pool", torch.zeros(1, outputs, int(np.prod(shape))), persistent=False)

    def forward(self, x):
        mixed = torch.einsum("j,joi->oi", self.alpha[: len(self.pool)], self.pool)
        return F.linear(x.flatten(1), self.classifier.weight + mixed, self.classifier.bias)


class Pooled(Method):
    """FedAvg beside a pool of loose numbers: every ``every`` rounds the model's own weights join it, up to 4."""

    def __init__(self, world, learner, mean, server, *, every: int = 1):
        super().__init__(world, learner, mean, server)
        self.every = every

    def start(self):
        return Bank().put({"global": self.initial("global"), "pool": Entry(torch.empty(0), segments=())})

    def served(self, entries):
        shape = (-1, *self.world.models["main"].build().pool.shape[1:])
        return replace(Served.of(entries["global"]), constants={"pool": entries["pool"].vector.view(shape)})

    def assign(self, bank, when, clients):
        return [Assignment(seat.id, ("global", "pool"), times=seat.times) for seat in clients]

    def train(self, given, client):
        entry = given.entries["global"]
        part, state = yield from self.learner.fit("global", self.served(given.entries), entry, client)
        return Update({"global": part}, weight=len(client.train), state=state)

    def merge(self, bank, updates, when):
        bank, space = super().merge(bank, updates, when), self.world.models["main"].space
        room = 4 * space.slots["classifier.weight"].size
        if when.round % self.every or len(bank["pool"].vector) >= room:
            return bank
        weights = space.view(bank["global"].vector, "classifier.weight").reshape(-1)
        return bank.put({"pool": bank["pool"].new(vector=torch.cat([bank["pool"].vector, weights]))})

    def candidates(self, bank, target):
        return [("global", "pool")]

    def compose(self, bank, keys):
        return self.served({key: bank[key] for key in keys})


POOLED = {"model": {"kind": "test_example_pool:Attentive"}, "method": {"kind": "test_example_pool:Pooled"}}


def test_the_laws():
    run = prove(config(**POOLED, rounds=5))
    assert [len(state.bank["pool"].vector) // 640 for state in run.states] == [0, 1, 2, 3, 4, 4]


def test_the_constants_are_used_and_never_trained():
    run = play(config(**POOLED, rounds=2, local={"batch_size": 64}))
    old, new = run.states[1].bank, run.states[2].bank
    assert torch.equal(new["pool"].vector[:640], old["pool"].vector)
    # One full-batch step per client from a pool of one, with gradients by autograd.
    pool, ends, weights = old["pool"].vector.view(10, 64), [], []
    slots = run.setup.world.models["main"].space.slots
    for client in range(4):
        rows = run.setup.stream.holding(client, 2).train
        x, y = inputs(digits().batch(rows)).flatten(1), digits().wanted(rows)
        v = old["global"].vector.clone().requires_grad_()
        w, b, alpha = (
            v[slots[n].offset : slots[n].offset + slots[n].size]
            for n in ("classifier.weight", "classifier.bias", "alpha")
        )
        F.cross_entropy(F.linear(x, w.view(10, 64) + alpha[0] * pool, b), y).backward()
        ends.append((v - 0.1 * v.grad).detach().double().numpy())
        weights.append(len(rows))
    expected = np.average(ends, axis=0, weights=weights)
    np.testing.assert_allclose(new["global"].vector.numpy(), expected, rtol=1e-4, atol=1e-6)
    slot = slots["alpha"]
    assert new["global"].vector[slot.offset] != old["global"].vector[slot.offset]


def test_the_measure_uses_them_too():
    run = play(config(**POOLED, rounds=3))
    (line, *_) = run.all(metric="loss", round=3)
    served = run.setup.method.compose(run.bank, ("global", "pool"))
    module = run.setup.world.models["main"].build()
    torch.nn.utils.vector_to_parameters(reordered(run, served.vector), module.parameters())
    module.pool = served.constants["pool"]
    rows = digits().test
    loss = F.cross_entropy(module(inputs(digits().batch(rows))), digits().wanted(rows))
    np.testing.assert_allclose(line["value"], float(loss.detach()), rtol=1e-4)
    assert len(module.pool) == 3


def reordered(run, vector):
    """The vector in the order of ``module.parameters()``: the head lies last in ours."""
    space, module = run.setup.world.models["main"].space, run.setup.world.models["main"].build()
    return torch.cat([space.view(vector, name).reshape(-1) for name, _ in module.named_parameters()])


def test_the_pool_costs_bytes_down_only():
    run = play(config(**POOLED, rounds=2))
    size = 4 * run.bank["global"].vector.numel()
    assert [line["value"] for line in run.all(metric="bytes_down")] == [size, size + 4 * 640]
    assert [line["value"] for line in run.all(metric="bytes_up")] == [size, size]


def test_on_digits(tmp_path):
    assert on_digits(tmp_path / "run", **POOLED).summary["acc"] > 0.5
