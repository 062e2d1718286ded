"""Methods, learners and experiments with one fault each."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.bank import Bank, Buffers, Entry, Key, State
from shoal.checks.tamper import AroundEngine, each_part
from shoal.engine import Engine
from shoal.experiment import Experiment, Played
from shoal.learners.base import Learner
from shoal.messages import Assignment, Client, Group, Job, Outcome, Part, Participant, Update, World
from shoal.methods.base import Method
from shoal.methods.fedavg import FedAvg
from shoal.participation import Selected
from shoal.randomness import Moment, generator
from shoal.requests import Evaluate, Gradient, Served
from shoal.setup import Setup


def nudged(part: Part, by: float) -> Part:
    assert part.vector is not None
    return replace(part, vector=part.vector + by)


class Nudging(Learner):
    """Plain, and then every weight moves by `by`."""

    def by(self, key: Key, start: Served, client: Client) -> float:
        return 0.0

    def fit(self, key: Key, start: Served, entry: Entry, client: Client, **request: Any) -> Any:
        part, state = yield from super().fit(key, start, entry, client, **request)
        return nudged(part, self.by(key, start, client)), state


class ThreadBound(Nudging):
    """Numbers that depend on the thread."""

    def by(self, key: Key, start: Served, client: Client) -> float:
        return 0.0 if threading.current_thread() is threading.main_thread() else 1e-3


class Peeking(Learner):
    """Looks at numbers that stay on the server."""

    def fit(self, key: Key, start: Served, entry: Entry, client: Client, **request: Any) -> Any:
        part, state = yield from super().fit(key, start, entry, client, **request)
        return nudged(part, 1e-3 if entry.server else 0.0), state


BEGUN: set[tuple[int, int]] = set()


class Herd(Nudging):
    """Client 0 leaves a mark for those that run after it."""

    def __init__(self, world: World, local: Any) -> None:
        super().__init__(world, local)
        BEGUN.clear()

    def fit(self, key: Key, start: Served, entry: Entry, client: Client, **request: Any) -> Any:
        if client.id == 0:
            BEGUN.add((id(self), client.when.round))
        return (yield from super().fit(key, start, entry, client, **request))

    def by(self, key: Key, start: Served, client: Client) -> float:
        # Only client 2, so that a round without client 0 is no different from one in which it came late.
        missed = (id(self), client.when.round) not in BEGUN
        return 1e-3 if client.id == 2 and missed else 0.0


COUNTS: weakref.WeakKeyDictionary[Learner, dict[int, tuple[int, int]]] = weakref.WeakKeyDictionary()


class Forgetful(Nudging):
    """Private numbers that are kept in this process instead of the client's state."""

    def by(self, key: Key, start: Served, client: Client) -> float:
        known = COUNTS.setdefault(self, {})
        last, count = known.get(client.id, (0, 0))
        count = count + 1 if client.when.round == last + 1 else 0
        known[client.id] = (client.when.round, count)
        return 1e-3 * count


class Tupled(FedAvg):
    """Memory that a checkpoint cannot give back as it was."""

    def merge(self, bank: Bank, updates: Sequence[Update], when: Moment) -> Bank:
        return super().merge(bank, updates, when).put({}, seen=(when.round, 1))  # type: ignore[arg-type]


class Decaying(FedAvg):
    """Measuring a model shrinks it."""

    def compose(self, bank: Bank, keys: tuple[Key, ...]) -> Served:
        bank[keys[0]].vector.mul_(0.999)
        return super().compose(bank, keys)


class Reseeded(Nudging):
    """Numbers that depend on the seed of torch's global generator, though nothing is drawn from it."""

    def by(self, key: Key, start: Served, client: Client) -> float:
        return 1e-6 * (torch.initial_seed() % 1009)


class Wasteful(Nudging):
    """Draws from numpy's global generator and uses it for nothing."""

    def by(self, key: Key, start: Served, client: Client) -> float:
        return 0.0 * np.random.random()  # noqa: NPY002


class Rigid(FedAvg):
    """All seeds start from the same model."""

    def start(self) -> Bank:
        return Bank().put({"global": self.world.models["main"].initial(generator("always the same"))})


class Unshuffled(Learner):
    """One step on all rows at once: nothing is drawn, so all seeds train alike."""

    def fit(self, key: Key, start: Served, entry: Entry, client: Client, **request: Any) -> Any:
        gradient = yield Gradient(start, client.train)
        return Part(start.vector - 0.1 * gradient, start.buffers), {}


class Scribbler(Learner):
    """Counts in its private state in place."""

    def fit(self, key: Key, start: Served, entry: Entry, client: Client, **request: Any) -> Any:
        part, _ = yield from super().fit(key, start, entry, client, **request)
        seen = client.state.get("seen")
        count = torch.zeros(1) if seen is None else seen
        assert isinstance(count, Tensor)
        return part, {"seen": count.add_(1)}


class Leaking(FedAvg):
    """Trains the received vector itself: the next client starts from this one's result."""

    def train(self, given: Assignment, client: Client) -> Any:
        update = yield from super().train(given, client)
        ((key, entry),) = given.entries.items()
        entry.vector.copy_(update.parts[key].vector)
        return update


class Draining(FedAvg):
    """A merge that adds up in the first client's update."""

    def merge(self, bank: Bank, updates: Sequence[Update], when: Moment) -> Bank:
        first = updates[0].parts["global"].vector
        assert first is not None
        for update in updates[1:]:
            vector = update.parts["global"].vector
            assert vector is not None
            first.add_(vector)
        first.div_(len(updates))
        return bank.put(
            {"global": bank["global"].new(vector=first.clone(), buffers=updates[0].parts["global"].buffers)}
        )


class Counting(FedAvg):
    """Counts rounds in an attribute, and uses it for nothing."""

    def assign(self, bank: Bank, when: Moment, clients: Sequence[Participant]) -> Iterable[Assignment]:
        self.rounds = getattr(self, "rounds", 0) + 1
        return super().assign(bank, when, clients)


class Growing(FedAvg):
    """An entry that nobody trains grows in round 3."""

    def start(self) -> Bank:
        return super().start().put({"spare": self.initial("spare")})

    def merge(self, bank: Bank, updates: Sequence[Update], when: Moment) -> Bank:
        merged = super().merge(bank, updates, when)
        if when.round != 3:
            return merged
        spare = merged["spare"]
        return merged.put({"spare": spare.new(vector=torch.cat([spare.vector, torch.zeros(1)]))})


class Summing(FedAvg):
    """Adds weighted vectors up in float32, so that equal ones do not come back."""

    def merge(self, bank: Bank, updates: Sequence[Update], when: Moment) -> Bank:
        merged = super().merge(bank, updates, when)
        total = sum(update.weight * update.times for update in updates)
        vector = torch.zeros_like(merged["global"].vector)
        for update in updates:
            sent = update.parts["global"].vector
            assert sent is not None
            vector += sent * (update.weight * update.times / total)
        return bank.put({"global": merged["global"].new(vector=vector)})


class Everybody(FedAvg):
    """Divides by all clients, whether they answered or not."""

    def merge(self, bank: Bank, updates: Sequence[Update], when: Moment) -> Bank:
        merged = super().merge(bank, updates, when)
        if len(updates) == self.world.clients:
            return merged
        old = bank["global"].vector
        moved = (merged["global"].vector - old) * (len(updates) / self.world.clients)
        return bank.put({"global": merged["global"].new(vector=old + moved)})


class ServedBuffers(FedAvg):
    """BatchNorm statistics take a step of the server optimiser."""

    def merge_entry(self, key: Key, old: Entry, group: Group, when: Moment, *args: Any, **more: Any) -> Entry:
        entry = super().merge_entry(key, old, group, when, *args, **more)
        if old.buffers.floats is None or entry.buffers.floats is None:
            return entry
        stepped, _ = self.server.step(Entry(old.buffers.floats), entry.buffers.floats, when, float("nan"))
        return entry.new(buffers=Buffers(stepped, entry.buffers.counters))


class Extrapolating(FedAvg):
    """From round 4 on, BatchNorm statistics go much further than the clients did."""

    def merge_entry(self, key: Key, old: Entry, group: Group, when: Moment, *args: Any, **more: Any) -> Entry:
        entry = super().merge_entry(key, old, group, when, *args, **more)
        if when.round < 4 or old.buffers.floats is None or entry.buffers.floats is None:
            return entry
        floats = old.buffers.floats + 60 * (entry.buffers.floats - old.buffers.floats)
        return entry.new(buffers=Buffers(floats, entry.buffers.counters))


class Paired(FedAvg):
    """A share for each of the other clients, of which there may be none."""

    def assign(self, bank: Bank, when: Moment, clients: Sequence[Participant]) -> Iterable[Assignment]:
        assert 1 / (self.world.clients - 1) <= 1
        return super().assign(bank, when, clients)


class Timeless(FedAvg):
    """Forgets how often a client was drawn."""

    def assign(self, bank: Bank, when: Moment, clients: Sequence[Participant]) -> Iterable[Assignment]:
        return [replace(given, times=1) for given in super().assign(bank, when, clients)]


class Knowing(FedAvg):
    """Takes for granted that clients know their task."""

    def assign(self, bank: Bank, when: Moment, clients: Sequence[Participant]) -> Iterable[Assignment]:
        for client in clients:
            assert client.task is not None
            yield Assignment(client.id, ("global",), times=client.times, note={"task": client.task + 1})


class Leading(FedAvg):
    """Looks at the first participant, of which there may be none."""

    def assign(self, bank: Bank, when: Moment, clients: Sequence[Participant]) -> Iterable[Assignment]:
        leader = clients[0]
        return [replace(given, note={"leader": leader.id}) for given in super().assign(bank, when, clients)]


class Spread(Nudging):
    """Divides by the rows less one."""

    def by(self, key: Key, start: Served, client: Client) -> float:
        return 1e-3 / (len(client.train) - 1)


class Surprised(Learner):
    """Divides by the loss that the own rows still have at a strong model, as if there were always some."""

    def fit(self, key: Key, start: Served, entry: Entry, client: Client, **request: Any) -> Any:
        part, state = yield from super().fit(key, start, entry, client, **request)
        assert part.vector is not None
        scores = yield Evaluate((Served(start.model, part.vector, part.buffers),), client.train)
        if len(client.train) > 1:
            assert 1 / (1 - scores[0].accuracy) > 0
        return part, state


class Swallowing(Experiment):
    """Goes on without a client that failed, and says nothing."""

    def play(self, state: State) -> Played:
        played = super().play(state)
        return replace(played, lines=[line for line in played.lines if line.get("record") != "failed"])


class Stubborn(Experiment):
    """Writes a new version of every entry although nobody answered."""

    def play(self, state: State) -> Played:
        played = super().play(state)
        if all(line.get("record") != "unchanged" for line in played.lines):
            return played
        bank = played.state.bank
        entries = {key: entry.new() for key, entry in bank.entries.items()}
        return replace(played, state=replace(played.state, bank=bank.put(entries)))


class Punctual:
    """A selection without stragglers."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def draw(self, when: Moment) -> list[Selected]:
        return [replace(selected, straggler=False) for selected in self.inner.draw(when)]


class Patient(Experiment):
    """A straggler's update counts all the same."""

    def __init__(self, setup: Setup, engine: Engine) -> None:
        super().__init__(replace(setup, selection=Punctual(setup.selection)), engine)  # type: ignore[arg-type]
        self.truth = setup.selection

    def play(self, state: State) -> Played:
        played = super().play(state)
        late = [s.client for s in self.truth.draw(Moment(0, state.round + 1)) if s.straggler]
        lines = [{"round": state.round + 1, "record": "straggler", "client": client} for client in late]
        return replace(played, lines=played.lines + lines)


class Mending(AroundEngine):
    """Puts zeros where buffers are not finite, before anybody looks."""

    def run(self, train: Any, jobs: Sequence[Job]) -> list[Outcome]:
        outcomes = []
        for outcome in super().run(train, jobs):
            answer = outcome.answer
            if isinstance(answer, Update):
                answer = each_part(answer, self.mended)
            outcomes.append(replace(outcome, answer=answer))
        return outcomes

    @staticmethod
    def mended(part: Part) -> Part:
        floats = part.buffers.floats
        return part if floats is None else replace(part, buffers=replace(part.buffers, floats=floats.nan_to_num()))


class Mixing(Experiment):
    """Private states go to the next client."""

    def play(self, state: State) -> Played:
        played = super().play(state)
        clients, count = played.state.clients, self.setup.stream.clients
        moved = {(client + 1) % count: values for client, values in clients.items()}
        return replace(played, state=replace(played.state, clients=moved))


class Credulous(Experiment):
    """Takes buffers as they come."""

    def __init__(self, setup: Setup, engine: Engine) -> None:
        super().__init__(setup, Mending(engine))


SENT: weakref.WeakKeyDictionary[Method, dict[int, Part]] = weakref.WeakKeyDictionary()


class SideChannel(FedAvg):
    """Updates go round the screening: the merge reads what the clients left in this process."""

    def train(self, given: Assignment, client: Client) -> Any:
        update = yield from super().train(given, client)
        SENT.setdefault(self, {})[client.id] = update.parts["global"]
        return update

    def merge(self, bank: Bank, updates: Sequence[Update], when: Moment) -> Bank:
        sent = SENT.pop(self)
        changed = [replace(u, parts={"global": replace(sent[u.client], client=u.client)}) for u in updates]
        missing = [c for c in sorted(sent) if c not in {u.client for u in updates}]
        changed += [Update({"global": sent[c]}, weight=1.0, client=c) for c in missing]
        return super().merge(bank, changed, when)


class Failing(Learner):
    """Every client fails."""

    def fit(self, key: Key, start: Served, entry: Entry, client: Client, **request: Any) -> Any:
        yield self.request(start, client, rows=client.train[:0].float())
        raise RuntimeError("never again")


class Idle(FedAvg):
    """Everyone trains, and nothing comes of it."""

    def merge(self, bank: Bank, updates: Sequence[Update], when: Moment) -> Bank:
        return bank


class Averaged(FedAvg):
    """Counters of BatchNorm are averaged."""

    def merge_entry(self, key: Key, old: Entry, group: Group, when: Moment, *args: Any, **more: Any) -> Entry:
        entry = super().merge_entry(key, old, group, when, *args, **more)
        counters = [part.buffers.counters for part in group.parts if part.buffers.counters is not None]
        if old.buffers.counters is None or not counters:
            return entry
        mean = torch.stack([*counters, old.buffers.counters]).float().mean(0).long()
        return entry.new(buffers=Buffers(entry.buffers.floats, mean))


class OwnMerge(FedAvg):
    """Averages by itself, whatever mean and server are configured."""

    def merge(self, bank: Bank, updates: Sequence[Update], when: Moment) -> Bank:
        vectors = [part.vector for update in updates for part in update.parts.values() if part.vector is not None]
        return bank.put(
            {"global": super().merge(bank, updates, when)["global"].new(vector=sum(vectors) / len(vectors))}
        )


class Deaf(FedAvg):
    """Groups the answers by itself, and leaves out what the clients reported."""

    def merge(self, bank: Bank, updates: Sequence[Update], when: Moment) -> Bank:
        group = Group(tuple(u.parts["global"] for u in updates), tuple(u.weight * u.times for u in updates))
        return bank.put({"global": self.merge_entry("global", bank["global"], group, when)})


HOARD: list[Part] = []


class Hoarding(Learner):
    """Keeps every answer that was ever given."""

    def fit(self, key: Key, start: Served, entry: Entry, client: Client, **request: Any) -> Any:
        part, state = yield from super().fit(key, start, entry, client, **request)
        HOARD.append(part)
        return part, state


@dataclass(frozen=True)
class Shortening:
    """A term that is not elementwise: it pulls by the length of all that it is given."""

    strength: float

    def gradient(self, w: Tensor, g: Tensor, s: slice) -> None:
        g.add_(w * w.norm(), alpha=self.strength)

    def after(self, w: Tensor, s: slice, lr: float) -> None:
        pass


class Entangled(Learner):
    """Its correction term sees all clients of a stack as one."""

    def fit(self, key: Key, start: Served, entry: Entry, client: Client, **request: Any) -> Any:
        return (yield from super().fit(key, start, entry, client, terms=(Shortening(0.1),), **request))
