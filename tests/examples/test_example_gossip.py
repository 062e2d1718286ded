"""Need: entries that peers read, with numbers that they published. Here: gossip among similar clients, as in DAC."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from example_lab import changed, config, digits, on_digits, play, prove

from shoal.bank import Bank
from shoal.data.dataset import inputs
from shoal.messages import Assignment, Group, Part, Participant, Update, grouped
from shoal.methods.base import Method, merge_buffers
from shoal.randomness import Moment
from shoal.requests import Evaluate, Served


class Gossip(Method):
    """Everyone mixes with ``contacts`` peers, drawn by the similarity 1 / loss that it published, and then trains."""

    warmup = 1

    def __init__(self, world, learner, mean, server, *, contacts: int = 2, temperature: float = 3.0):
        super().__init__(world, learner, mean, server)
        self.contacts = contacts
        self.temperature = temperature

    def start(self):
        first = self.initial("client")
        prior = torch.zeros(self.world.clients)
        return Bank().put({f"client/{i}": first.new(extra={"gossip/prior": prior}) for i in range(self.world.clients)})

    def assign(self, bank, when, clients):
        for seat in clients:
            others = np.delete(np.arange(self.world.clients), seat.id)
            score = self.temperature * bank[f"client/{seat.id}"].extra["gossip/prior"].double().numpy()[others]
            p = np.exp(score - score.max(initial=0.0))
            count = min(self.contacts, len(others)) if when.round else 0
            drawn = when.random("contacts", seat.id).choice(others, count, False, p / p.sum()) if count else ()
            yield Assignment(
                seat.id, tuple(f"client/{j}" for j in sorted(drawn)), own=(f"client/{seat.id}",), times=seat.times
            )

    def train(self, given, client):
        (key,) = given.own
        mine = given.entries[key]
        prior = mine.extra["gossip/prior"].clone()
        scores = yield Evaluate(tuple(Served.of(given.entries[peer]) for peer in given.keys), client.train)
        for peer, score in zip(given.keys, scores, strict=True):
            prior[int(peer.split("/")[1])] = 1 / max(score.loss, 1e-10)
        models = tuple(Part(entry.vector, entry.buffers) for entry in given.entries.values())
        mixed = Group(models, tuple(max(1.0, entry.weight) for entry in given.entries.values()))
        start = Served(mine.model, self.mean.combine(mine, mixed), merge_buffers(mine.buffers, mixed))
        part, state = yield from self.learner.fit(key, start, mine, client)
        part = replace(part, extra={**part.extra, "gossip/prior": prior})
        return Update({key: part}, weight=len(client.train), state=state)

    def merge(self, bank, updates, when):
        changes = {}
        for update in updates:
            ((key, group),) = grouped([update]).items()
            extra = {"gossip/prior": group.parts[0].extra["gossip/prior"]}
            changes[key] = self.merge_entry(key, bank[key], group, when, extra)
        return bank.put(changes)

    def candidates(self, bank, target):
        return [(f"client/{target['client']}",)] if "client" in target else [(key,) for key in bank.entries]


GOSSIP = {"kind": "test_example_gossip:Gossip"}


def test_the_laws():
    run = prove(config(method=GOSSIP))
    assert [state.round for state in run.states] == [-1, 0, 1, 2, 3]  # the warm-up is round 0
    assert changed(run.states[0].bank, run.states[1].bank) == [f"client/{i}" for i in range(4)]


def test_the_warm_up_is_local_training_on_the_rows_of_round_1():
    run = play(config(method={**GOSSIP, "contacts": 3}, rounds=1))
    alone = play(config(stream={"sizes": [40]}, rounds=0, method={**GOSSIP, "contacts": 0}))
    assert torch.equal(run.states[1].bank["client/0"].vector, alone.states[1].bank["client/0"].vector)
    assert all(not entry.extra["gossip/prior"].any() for entry in run.states[1].bank.entries.values())


def test_the_published_prior_is_one_over_the_loss_of_the_peers_model_on_the_own_rows():
    run = play(config(method=GOSSIP, rounds=1))
    before, after = run.states[1].bank, run.bank
    for client in range(4):
        rows = run.setup.stream.holding(client, 1).train
        x, y = digits().batch(rows), digits().wanted(rows)
        prior = after[f"client/{client}"].extra["gossip/prior"]
        assert prior.count_nonzero() == 2
        assert prior[client] == 0
        for peer in prior.nonzero().flatten().tolist():
            module = run.setup.world.models["main"].build()
            torch.nn.utils.vector_to_parameters(before[f"client/{peer}"].vector, module.parameters())
            expected = 1 / F.cross_entropy(module(inputs(x)), y)
            assert float(prior[peer]) == pytest.approx(float(expected.detach()), rel=1e-4)


def test_clients_mix_by_rows_with_the_models_of_the_round_before():
    # A local rate of nearly 0: what is left is the mixing. With all 3 peers everyone gets the same model.
    run = play(config(method={**GOSSIP, "contacts": 3}, rounds=1))
    frozen = play(config(method={**GOSSIP, "contacts": 3}, rounds=1, local={"lr": 1e-30}), state=run.states[1])
    rows = [len(run.setup.stream.holding(i, 1).train) for i in range(4)]
    assert len(set(rows)) > 1
    vectors = np.stack([run.states[1].bank[f"client/{i}"].vector.double().numpy() for i in range(4)])
    expected = np.average(vectors, axis=0, weights=rows)
    for i in range(4):
        np.testing.assert_allclose(frozen.bank[f"client/{i}"].vector.numpy(), expected, rtol=1e-4, atol=1e-6)


def test_contacts_do_not_depend_on_the_order_of_clients_and_follow_the_prior():
    run = play(config(method=GOSSIP, rounds=1))
    method, when = run.setup.method, Moment(0, 2)
    seats = [Participant(i) for i in range(4)]
    forth = {a.client: a for a in method.assign(run.bank, when, seats)}
    back = {a.client: a for a in method.assign(run.bank, when, seats[::-1])}
    assert forth == back
    assert len({a.keys for a in forth.values()}) > 1
    prior = torch.tensor([0.0, 0.0, 40.0, 40.0])
    bank = run.bank.put({"client/0": run.bank["client/0"].new(extra={"gossip/prior": prior})})
    drawn = {next(iter(method.assign(bank, Moment(0, r), seats[:1]))).keys for r in range(1, 20)}
    assert drawn == {("client/2", "client/3")}


def test_peers_cost_bytes_and_the_own_entry_does_not():
    run = play(config(method=GOSSIP, rounds=2))
    size = 4 * (run.bank["client/0"].vector.numel() + 4)
    assert [line["value"] for line in run.all(metric="bytes_down")] == [0, 2 * size, 2 * size]
    assert [line["value"] for line in run.all(metric="bytes_up")] == [0, 0, 0]


def test_with_a_learner_that_has_numbers_of_its_own():
    run = play(config(method=GOSSIP, local={"learner": {"kind": "test_example_scaffold:Scaffold"}}))
    assert {"gossip/prior", "control/c"} == set(run.bank["client/0"].extra)
    assert set(run.states[-1].clients[0]) == {"control/client/0"}


def test_on_digits(tmp_path):
    assert on_digits(tmp_path / "run", method=GOSSIP).summary["acc"] > 0.5
