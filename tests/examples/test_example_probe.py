"""Needs: a client program that has a model measured on the way; one that asks for nothing at all."""

from __future__ import annotations

import pytest
import torch
from example_lab import config, frozen, on_digits, play, prove

from shoal.bank import Bank
from shoal.messages import Assignment, Part, Update
from shoal.methods.base import Method
from shoal.methods.fedavg import FedAvg
from shoal.requests import Probe, Served


class Probing(FedAvg):
    """FedAvg that has the model measured before and after local training."""

    def train(self, given, client):
        ((_, entry),) = given.entries.items()
        answer = yield Probe("received", Served.of(entry))
        assert answer is None
        update = yield from super().train(given, client)
        ((_, part),) = update.parts.items()
        yield Probe("trained", Served(entry.model, part.vector, part.buffers))
        return update


class Counting(Method):
    """Adds the number of its training rows to every parameter; ``train`` is a plain function."""

    def start(self):
        return Bank().put({"global": self.initial("global")})

    def assign(self, bank, when, clients):
        return [Assignment(seat.id, ("global",)) for seat in clients]

    def train(self, given, client):
        return Update({"global": Part(given.entries["global"].vector + len(client.train))}, weight=1.0)

    def candidates(self, bank, target):
        return [("global",)]


PROBING = {"kind": "test_example_probe:Probing"}


def test_the_laws():
    prove(config(method=PROBING))
    prove(config(method={"kind": "test_example_probe:Counting"}, model={"kind": "mlp", "hidden": []}))


def test_a_probe_is_logged_and_changes_nothing():
    probed, plain = play(config(method=PROBING)), play(config())
    for a, b in zip(probed.states, plain.states, strict=True):
        assert frozen(a.bank) == frozen(b.bank)
    lines = probed.all(metric="probe")
    assert [line for line in probed.all() if line.get("metric") not in ("probe", "mean_probe")] == plain.all()
    assert [(line["client"], line["label"]) for line in lines[:4]] == [
        (0, "received"), (0, "trained"), (1, "received"), (1, "trained"),
    ]  # fmt: skip
    # In round 2 everyone receives the model that was measured on the same test rows after round 1.
    measured = {line["value"] for line in plain.all(metric="loss", round=1)}
    received = {line["loss"] for line in lines if line["round"] == 2 and line["label"] == "received"}
    assert received == measured


def test_a_program_without_a_request():
    run = play(config(method={"kind": "test_example_probe:Counting"}, rounds=1))
    rows = [len(run.setup.stream.holding(i, 1).train) for i in range(4)]
    moved = run.bank["global"].vector - run.states[0].bank["global"].vector
    torch.testing.assert_close(moved, torch.full_like(moved, sum(rows) / 4))
    assert [line["value"] for line in run.all(metric="client_steps")] == [0]


def test_a_probe_uses_the_loss_of_the_run():
    from example_lab import QUADRATICS, quadratics

    run = play(quadratics(rounds=1, method=PROBING), QUADRATICS, zero=True)
    losses = [line["loss"] for line in run.all(metric="probe", label="received")]
    # Two rows miss by 2 and four by 4: (2 * 2 + 4 * 8) / 6.
    assert losses == pytest.approx([6.0, 6.0])


def test_on_digits(tmp_path):
    result = on_digits(tmp_path / "run", method=PROBING)
    assert (result.frame()["metric"] == "probe").sum() == 2 * 4 * 6
