"""Need: entries that are born and retired during the run. Here: a new model where the loss jumps, as in FedDrift."""

from __future__ import annotations

import numpy as np
from example_lab import config, on_digits, play, prove

from shoal.bank import Bank
from shoal.messages import Assignment, Update, grouped
from shoal.methods.base import Method
from shoal.requests import Evaluate, Served


class Births(Method):
    """Everyone trains the model with the lowest loss, or a new one where that is ``delta`` above its last loss; a
    model that nobody trained for ``patience`` rounds is retired."""

    births = True

    def __init__(self, world, learner, mean, server, *, delta: float = 1.0, patience: int = 2):
        super().__init__(world, learner, mean, server)
        self.delta, self.patience = delta, patience
        self.fresh = self.initial("cluster")  # here and not in train: initialising belongs in the main thread

    def start(self):
        return Bank().put({"cluster/0": self.fresh}, idle={"cluster/0": 0})

    def assign(self, bank, when, clients):
        return [Assignment(seat.id, tuple(bank.entries), times=seat.times) for seat in clients]

    def train(self, given, client):
        scores = yield Evaluate(tuple(Served.of(entry) for entry in given.entries.values()), client.train)
        best = int(np.argmin([score.loss for score in scores]))
        key, entry = list(given.entries.items())[best]
        if scores[best].loss > client.state.get("births/loss", np.inf) + self.delta:
            key, entry = f"cluster/{client.when.round}-{client.id}", self.fresh
        part, state = yield from self.learner.fit(key, Served.of(entry), entry, client)
        (after,) = yield Evaluate((Served(entry.model, part.vector, part.buffers),), client.train)
        return Update({key: part}, weight=len(client.train), state={**state, "births/loss": after.loss})

    def merge(self, bank, updates, when):
        groups = grouped(updates)
        changes = {k: self.merge_entry(k, bank.entries.get(k, self.fresh), g, when) for k, g in groups.items()}
        idle = {k: 0 if k in groups else bank.memory["idle"].get(k, 0) + 1 for k in {**bank.entries, **changes}}
        changes |= {k: None for k, rounds in idle.items() if rounds >= self.patience}
        return bank.put(changes, idle={k: rounds for k, rounds in idle.items() if rounds < self.patience})

    def candidates(self, bank, target):
        return [(key,) for key in bank.entries]


BIRTHS = {"kind": "test_example_births:Births", "delta": 0.4}
LOCAL = {"lr": 0.3, "epochs": 3}
# After round 4 clients 0 and 2 see negatives, and clients 1 and 3 do not any more.
WORLD = {"sizes": [60, 60, 60, 60], "concepts": ["identity", "invert"], "lasting": 4}


def test_the_laws():
    run = prove(config(stream={**WORLD, "lasting": 2}, method={**BIRTHS, "delta": 0.1}, local=LOCAL, rounds=4))
    assert len({key for state in run.states for key in state.bank.entries}) > 1


def test_births_and_retirements():
    run = play(config(stream={**WORLD, "concepts": ["identity"]}, method=BIRTHS, local=LOCAL, rounds=4))
    assert list(run.bank.entries) == ["cluster/0"]  # nothing changes, so nothing is born
    run = play(config(stream=WORLD, method={**BIRTHS, "delta": 0.1}, local=LOCAL, rounds=8))
    born = {key for state in run.states for key in state.bank.entries} - {"cluster/0"}
    assert born
    assert born & set(run.bank.entries) < born | {"cluster/0"}
    trained = [set(record["trained"]) for record in run.all(record="round")]
    for number in range(2, 9):  # what is left was trained in this round or the one before, and all of that is left
        assert set(run.states[number].bank.entries) == trained[number - 2] | trained[number - 1]
    versions = [entry.version for state in run.states for entry in state.bank.entries.values()]
    assert len(set(versions)) == len({id(e) for state in run.states for e in state.bank.entries.values()})


def test_a_learner_and_a_server_optimiser_start_afresh_with_a_new_entry():
    scaffold = {"learner": {"kind": "test_example_scaffold:Scaffold"}, **LOCAL}
    method = {**BIRTHS, "delta": 0.1, "server": {"kind": "momentum"}}
    run = play(config(stream=WORLD, method=method, local=scaffold, rounds=8))
    for before, after in zip(run.states, run.states[1:], strict=False):
        for key in set(after.bank.entries) - set(before.bank.entries):
            (client,) = [int(key.rsplit("-", 1)[1])]
            assert f"control/{key}" in after.clients[client]
            assert set(after.bank[key].server) == {"m", "step/change"}


def test_on_digits(tmp_path):
    stream = {"kind": "tasks", "tasks": 2, "by": "transform", "transforms": ["identity", "invert"], "clients": 4}
    stream |= {"order": "synchronous", "head": "shared"}
    result = on_digits(tmp_path / "run", method=BIRTHS, stream=stream, rounds=12)
    assert result.frame()["entry"].nunique() > 1
