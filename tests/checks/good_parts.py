"""Methods and learners that use every corner of the core, and keep every law."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.bank import Bank, Entry, Key
from shoal.learners.base import Learner
from shoal.messages import Assignment, Client, Group, Part, Participant, Update, World, grouped
from shoal.methods.base import Method
from shoal.randomness import Moment
from shoal.requests import Evaluate, Gradient, Served
from shoal.terms import Shift


class Control(Learner):
    """Control variates, as in SCAFFOLD: numbers in the entry and in the client's private state."""

    def fit(self, key: Key, start: Served, entry: Entry, client: Client, **request: Any) -> Any:
        name = f"control/{key}"
        zeros = torch.zeros_like(start.vector)
        shared = entry.extra.get("control/c", zeros)
        known = client.state.get(name, {"c": zeros})
        assert isinstance(known, dict)
        result = yield self.request(start, client, terms=(Shift(shared - known["c"]),), **request)
        own = known["c"] - shared
        if result.steps:
            own = own + (start.vector - result.vector) / (result.steps * self.local.lr)
        part = Part(result.vector, result.buffers, {"control/delta": own - known["c"]}, steps=result.steps)
        # The very tensor that was received is kept, as many systems do (an anchor).
        return part, {name: {"c": own, "rounds": [client.when.round]}, "anchor": start.vector}

    def extra(self, key: Key, old: Entry, new: Entry, group: Group, when: Moment) -> Mapping[str, Tensor]:
        total = torch.zeros_like(old.vector)
        for part in group.parts:
            total += part.extra["control/delta"]
        return {"control/c": old.extra.get("control/c", torch.zeros_like(old.vector)) + total / self.world.clients}


class Anchored(Learner):
    """Variance reduction with a global anchor, as in SVRG: a first exchange collects the gradient."""

    exchanges = 2

    def fit(self, key: Key, start: Served, entry: Entry, client: Client, **request: Any) -> Any:
        if client.when.exchange == 0:
            gradient = yield Gradient(start, client.train)
            return Part(None, extra={"anchor/gradient": gradient}), {"anchor/seen": client.when.round}
        shift = Shift(entry.extra["anchor/gradient"])
        result = yield self.request(start, client, terms=(shift,), anchor=start.vector, **request)
        return Part(result.vector, result.buffers, steps=result.steps), {}

    def extra(self, key: Key, old: Entry, new: Entry, group: Group, when: Moment) -> Mapping[str, Tensor]:
        if when.exchange:
            return {}
        shares = np.asarray(group.weights) / np.sum(group.weights)
        pairs = zip(group.parts, shares, strict=True)
        return {"anchor/gradient": torch.stack([p.extra["anchor/gradient"] * float(w) for p, w in pairs]).sum(0)}


class Gossip(Method):
    """Every client keeps a model of its own, mixes it with those of drawn peers, and trains; a warm-up comes first."""

    warmup = 1

    def start(self) -> Bank:
        keys = [f"client/{c}" for c in range(self.world.clients)]
        return Bank().put({key: self.initial(key, name="same") for key in keys}, meetings=[], last={"round": 0})

    def assign(self, bank: Bank, when: Moment, clients: Sequence[Participant]) -> Iterable[Assignment]:
        for client in clients:
            others = [c for c in range(self.world.clients) if c != client.id]
            count = 0 if when.round == 0 else min(2, len(others))
            peers = when.random("contacts", client.id).choice(others, count, replace=False) if count else []
            keys = tuple(f"client/{int(peer)}" for peer in peers)
            yield Assignment(client.id, keys, (f"client/{client.id}",), times=client.times, note={"peers": len(keys)})

    def train(self, given: Assignment, client: Client) -> Any:
        own = f"client/{client.id}"
        entries = [given.entries[own], *(given.entries[key] for key in given.keys)]
        vector = torch.stack([entry.vector for entry in entries]).mean(0)
        mixed = Served(entries[0].model, vector, entries[0].buffers)
        scores = yield Evaluate((mixed, Served.of(entries[0])), client.validation)
        start = mixed if scores[0].loss <= scores[1].loss else Served.of(entries[0])
        part, state = yield from self.learner.fit(own, start, given.entries[own], client)
        part = replace(part, extra={**part.extra, "prior": torch.tensor([float(len(given.keys))])})
        return Update({own: part}, len(client.train), {**state, "met": given.note["peers"]}, {"met": len(given.keys)})

    def merge(self, bank: Bank, updates: Sequence[Update], when: Moment) -> Bank:
        changes: dict[Key, Entry | None] = {}
        for key, group in grouped(updates).items():
            prior = {"prior": group.parts[0].extra["prior"]}
            changes[key] = self.merge_entry(key, bank[key], group, when, prior)
        meetings = bank.memory["meetings"]
        assert isinstance(meetings, list)
        now = [*meetings, sum(update.note["met"] for update in updates)]
        return bank.put(changes, meetings=now, last={"round": when.round, "ones": torch.ones(2)})

    def candidates(self, bank: Bank, target: Mapping[str, Any]) -> Sequence[tuple[Key, ...]]:
        if "client" in target:
            return [(f"client/{target['client']}",)]
        return [(key,) for key in bank.entries]


class Parted(Method):
    """The features are shared, each client has a head of its own that is born when it first trains; half is sent."""

    births = True

    def __init__(self, world: World, learner: Any, mean: Any, server: Any, *, keep: float = 0.5) -> None:
        super().__init__(world, learner, mean, server)
        self.keep = keep

    def _cut(self, entry: Entry, *segments: str) -> Entry:
        space = self.world.models[entry.model].space
        vector = torch.cat([space.part(entry, segment) for segment in segments])
        return entry.new(vector=vector, segments=segments)

    def _names(self) -> tuple[str, str]:
        features, head = self.world.models["main"].space.segments
        return features, head

    def start(self) -> Bank:
        return Bank().put({"base": self._cut(self.initial("base"), self._names()[0])})

    def _head(self, client: int) -> Entry:
        return self._cut(self.initial("head"), self._names()[1])

    def assign(self, bank: Bank, when: Moment, clients: Sequence[Participant]) -> Iterable[Assignment]:
        for client in clients:
            own = f"own/{client.id}"
            yield Assignment(client.id, ("base",), (own,) if own in bank.entries else (), times=client.times)

    def train(self, given: Assignment, client: Client) -> Any:
        base, own = given.entries["base"], given.entries.get(f"own/{client.id}")
        if own is None:
            own = Entry(
                torch.zeros(self.world.models["main"].space.size_of(self._names()[1:])), segments=self._names()[1:]
            )
        start = self.join([base, replace(own, buffers=base.buffers)])
        result = yield self.learner.request(start, client)
        space = self.world.models["main"].space
        whole = Entry(result.vector)
        features, head = (space.part(whole, name) for name in self._names())
        mask = client.random("mask").random(features.numel()) < self.keep
        parts = {
            "base": Part(features, result.buffers, mask=torch.from_numpy(mask)),
            f"own/{client.id}": Part(head),
        }
        return Update(parts, len(client.train), {"sent": int(mask.sum())})

    def merge(self, bank: Bank, updates: Sequence[Update], when: Moment) -> Bank:
        changes: dict[Key, Entry | None] = {}
        for key, group in grouped(updates).items():
            old = bank.entries.get(key) or self._head(0).new(buffers=bank["base"].buffers.__class__())
            changes[key] = self.merge_entry(key, old, group, when)
        return bank.put(changes)

    def candidates(self, bank: Bank, target: Mapping[str, Any]) -> Sequence[tuple[Key, ...]]:
        if "client" in target:
            return [("base", f"own/{target['client']}")]
        return [("base", key) for key in bank.entries if key.startswith("own/")]


class Fresh(Method):
    """Every round's model is born under a new key and the old one retired; the update is given without a generator
    where nothing is to be trained."""

    def start(self) -> Bank:
        return Bank().put({"model/0": self.initial("model")})

    def _key(self, bank: Bank) -> Key:
        (key,) = bank.entries
        return key

    def assign(self, bank: Bank, when: Moment, clients: Sequence[Participant]) -> Iterable[Assignment]:
        return [Assignment(c.id, (self._key(bank),), times=c.times) for c in reversed(clients)]

    def train(self, given: Assignment, client: Client) -> Any:
        ((key, entry),) = given.entries.items()
        part, state = yield from self.learner.fit(key, Served.of(entry), entry, client)
        return Update({key: part}, len(client.train), state)

    def merge(self, bank: Bank, updates: Sequence[Update], when: Moment) -> Bank:
        ((key, group),) = grouped(updates).items()
        return bank.put({key: None, f"model/{when.round}": self.merge_entry(key, bank[key], group, when)})

    def candidates(self, bank: Bank, target: Mapping[str, Any]) -> Sequence[tuple[Key, ...]]:
        return [(self._key(bank),)]
