"""Need: a client that chooses among several models by its own loss. Here: one model per concept."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from example_lab import config, on_digits, play, prove

from shoal.bank import Bank
from shoal.data.dataset import inputs
from shoal.messages import Assignment, Update
from shoal.methods.base import Method
from shoal.requests import Evaluate, Served


class Concepts(Method):
    """Everyone receives all ``count`` models and trains the one with the lowest loss on its rows."""

    def __init__(self, world, learner, mean, server, *, count: int = 2):
        super().__init__(world, learner, mean, server)
        self.keys = tuple(f"concept/{k}" for k in range(count))

    def start(self):
        return Bank().put({key: self.initial(key) for key in self.keys})

    def assign(self, bank, when, clients):
        return [Assignment(seat.id, self.keys, times=seat.times) for seat in clients]

    def train(self, given, client):
        scores = yield Evaluate(tuple(Served.of(entry) for entry in given.entries.values()), client.train)
        key = self.keys[int(np.argmin([score.loss for score in scores]))]
        entry = given.entries[key]
        part, state = yield from self.learner.fit(key, Served.of(entry), entry, client)
        return Update({key: part}, weight=len(client.train), state=state)

    def candidates(self, bank, target):
        return [(key,) for key in self.keys]


CONCEPTS = {"kind": "test_example_concepts:Concepts"}
WORLD = {"sizes": [40, 40, 40, 40], "concepts": ["identity", "invert"]}


def test_the_laws():
    prove(config(stream=WORLD, method=CONCEPTS))


def test_everyone_trains_the_model_with_the_lowest_loss_and_only_that():
    run = play(config(stream={**WORLD, "lasting": 1}, method={**CONCEPTS, "count": 3}, rounds=4))
    seen = set()
    for number, (old, lines) in enumerate(zip(run.states, run.lines, strict=False), start=1):
        (record,) = [line for line in lines if line.get("record") == "round"]
        who = {client: key for key, clients in record["trained"].items() for client in clients}
        assert sorted(who) == [0, 1, 2, 3]
        for client, key in who.items():
            rows = run.setup.stream.holding(client, number).train
            x, y = (f(rows) for f in (run.setup.stream.dataset.batch, run.setup.stream.dataset.wanted))
            losses = {}
            for other, entry in old.bank.entries.items():
                module = run.setup.world.models["main"].build()
                torch.nn.utils.vector_to_parameters(entry.vector, module.parameters())
                losses[other] = float(F.cross_entropy(module(inputs(x)), y).detach())
            assert key == min(losses, key=losses.get)
            seen.add(key)
        for key, entry in run.states[number].bank.entries.items():
            assert (entry is old.bank[key]) == (key not in who.values())
    assert len(seen) > 1


def test_the_measure_takes_the_candidate_with_the_lowest_validation_loss():
    run = play(config(stream=WORLD, method=CONCEPTS, rounds=6))
    chosen = {line["concept"]: line["entry"] for line in run.all(metric="accuracy", round=6)}
    assert len(chosen) == 2
    stream, data = run.setup.stream, run.setup.stream.dataset
    for target in stream.targets(6):
        losses = {}
        for key, entry in run.bank.entries.items():
            module = run.setup.world.models["main"].build()
            torch.nn.utils.vector_to_parameters(entry.vector, module.parameters())
            outputs = module(inputs(data.batch(target.validation)))
            losses[key] = float(F.cross_entropy(outputs, data.wanted(target.validation)).detach())
        assert chosen[target.labels["concept"]] == min(losses, key=losses.get)


def test_with_a_server_optimiser_and_a_learner_per_concept():
    scaffold = {"learner": {"kind": "test_example_scaffold:Scaffold"}}
    run = play(config(stream=WORLD, method={**CONCEPTS, "server": {"kind": "amsgrad"}}, local=scaffold))
    trained = {key for record in run.all(record="round") for key in record["trained"]}
    for key in trained:
        assert "control/c" in run.bank[key].extra
        assert {"m", "v"} <= set(run.bank[key].server)


def test_on_digits(tmp_path):
    stream = {"kind": "tasks", "tasks": 2, "by": "transform", "transforms": ["identity", "invert"]}
    stream |= {"order": "synchronous", "clients": 4, "head": "shared"}
    result = on_digits(tmp_path / "run", method=CONCEPTS, stream=stream, rounds=20)
    assert result.summary["acc"] > 0.5
