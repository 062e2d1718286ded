"""Need: entries that cover only some segments. Here: features for all, a classifier for each client."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from example_lab import changed, config, on_digits, play, prove

from shoal.bank import Bank
from shoal.messages import Assignment, Part, Update
from shoal.methods.base import Method


class OwnHeads(Method):
    """The features are averaged, every client keeps its own classifier (as FedPer, or FedWeIT's base and own part)."""

    def start(self):
        whole, space = self.initial("whole"), self.world.models["main"].space
        parts = {s: whole.new(vector=space.part(whole, s).clone(), segments=(s,)) for s in space.segments}
        own = parts["classifier"].new(buffers=replace(whole.buffers, floats=None, counters=None))
        heads = {f"own/{i}": own for i in range(self.world.clients)}
        return Bank().put({"features": parts["features"], **heads})

    def assign(self, bank, when, clients):
        return [Assignment(s.id, ("features",), own=(f"own/{s.id}",), times=s.times) for s in clients]

    def train(self, given, client):
        key, (own,) = "features", given.own
        start, base = self.join([given.entries[key], given.entries[own]]), given.entries[key]
        part, state = yield from self.learner.fit(key, start, base, client)
        cut = self.world.models[start.model].space.segments
        parts = {key: replace(part, vector=part.vector[cut["features"]]), own: Part(part.vector[cut["classifier"]])}
        return Update(parts, weight=len(client.train), state=state)

    def candidates(self, bank, target):
        clients = [target["client"]] if "client" in target else range(self.world.clients)
        return [("features", f"own/{i}") for i in clients]


OWN = {"kind": "test_example_own_heads:OwnHeads"}


class Normed(torch.nn.Sequential):
    """A model with float and integer buffers."""

    def __init__(self, shape, outputs):
        super().__init__()
        self.features = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.BatchNorm1d(8))
        self.classifier = torch.nn.Linear(8, outputs)


def test_the_laws():
    run = prove(config(method=OWN))
    assert changed(run.states[0].bank, run.bank) == ["features", "own/0", "own/1", "own/2", "own/3"]


def test_the_laws_with_buffers():
    run = prove(config(method=OWN, model={"kind": "test_example_own_heads:Normed"}))
    assert run.bank["features"].buffers.floats is not None
    assert run.bank["own/0"].buffers.empty


def test_features_are_averaged_and_classifiers_kept():
    run = play(config(method=OWN, rounds=2))
    single = [play(config(method=OWN, rounds=2, participation=only(i)), state=run.states[1]) for i in range(4)]
    weights = [len(run.setup.stream.holding(i, 1).train) for i in range(4)]
    features = np.stack([one.bank["features"].vector.double().numpy() for one in single])
    expected = np.average(features, axis=0, weights=weights)
    np.testing.assert_allclose(run.bank["features"].vector.numpy(), expected, rtol=1e-5, atol=1e-7)
    for i, one in enumerate(single):
        assert torch.equal(run.bank[f"own/{i}"].vector, one.bank[f"own/{i}"].vector)
        assert changed(run.states[1].bank, one.bank) == ["features", f"own/{i}"]


def only(client):
    return {"count": 1, "probabilities": [float(i == client) for i in range(4)]}


def test_the_served_model_is_both_parts_joined():
    run = play(config(method=OWN, rounds=1))
    served = run.setup.method.compose(run.bank, ("features", "own/2"))
    space = run.setup.world.models["main"].space
    assert torch.equal(served.vector[space.segments["features"]], run.bank["features"].vector)
    assert torch.equal(served.vector[space.segments["classifier"]], run.bank["own/2"].vector)
    entries = {line["client"]: line["entry"] for line in run.all(metric="accuracy")}
    assert entries == {i: f"features+own/{i}" for i in range(4)}


def test_only_the_shared_part_costs_bytes():
    run = play(config(method=OWN, rounds=1))
    size = 4 * run.bank["features"].vector.numel()
    assert size == 4 * (64 * 8 + 8)
    assert [line["value"] for way in ("down", "up") for line in run.all(metric=f"bytes_{way}")] == [size, size]


@pytest.mark.parametrize("server", ["momentum", "adam"])
def test_with_a_server_optimiser_and_a_learner_whose_numbers_cover_the_whole_model(server):
    scaffold = {"learner": {"kind": "test_example_scaffold:Scaffold"}}
    run = prove(config(method={**OWN, "server": {"kind": server}}, local=scaffold))
    whole = run.setup.world.models["main"].space.size
    assert run.bank["features"].extra["control/c"].numel() == whole
    assert run.bank["features"].server["m"].shape == run.bank["features"].vector.shape


def test_on_digits(tmp_path):
    assert on_digits(tmp_path / "run", method=OWN, rounds=10).summary["acc"] > 0.5
