"""What laws put around a method, an engine or the selection to see what it does, or to make something go wrong."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from ..bank import Bank
from ..engine import Engine
from ..engine.wire import flat, for_the_client, owned, pack, unpack
from ..messages import Assignment, Client, Job, Outcome, Part, Participant, Update
from ..methods.base import Method
from ..participation import Selected, Selection
from ..randomness import Moment
from ..requests import Probe, Score, Served
from .fingerprint import fingerprint
from .law import require

Order = Callable[[int], list[int]]
"""From a number of things to the order in which they are taken."""


class Around:
    """A method with some of its hooks replaced; everything else is the method's own."""

    def __init__(self, inner: Method) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "inner" or name.startswith("__"):  # one that is being unpickled has no inner method yet
            raise AttributeError(name)
        return getattr(self.inner, name)

    @classmethod
    def put(cls, *args: Any, **kwargs: Any) -> Callable[[Method], Method]:
        """For `Case.play`: wraps the method."""
        return lambda inner: cast(Method, cls(inner, *args, **kwargs))

    def run_program(self, given: Assignment, client: Client) -> Generator[Any, Any, Any]:
        """The method's own program, whether it is a generator or not."""
        program = self.inner.train(given, client)
        if isinstance(program, Generator):
            return (yield from program)
        return program


class Reordered(Around):
    """Yields the assignments in another order."""

    def __init__(self, inner: Method, order: Order) -> None:
        super().__init__(inner)
        self.order = order

    def assign(self, bank: Bank, when: Moment, clients: Sequence[Participant]) -> Iterable[Assignment]:
        """The method's assignments."""
        found = list(self.inner.assign(bank, when, clients))
        return [found[i] for i in self.order(len(found))]


class Raising(Around):
    """These clients raise before they do anything."""

    def __init__(self, inner: Method, *clients: int) -> None:
        super().__init__(inner)
        self.clients = clients

    def train(self, given: Assignment, client: Client) -> Generator[Any, Any, Any]:
        """The method's program."""
        if client.id in self.clients:
            raise RuntimeError("a planted fault")
        return (yield from self.run_program(given, client))


class Signing(Around):
    """Every client signs its private state, and fails if it finds another signature or has lost its own."""

    def __init__(self, inner: Method) -> None:
        super().__init__(inner)
        self.signed: set[int] = set()

    def train(self, given: Assignment, client: Client) -> Generator[Any, Any, Any]:
        """The method's program."""
        found = client.state.get("planted/id")
        if found != (client.id if client.id in self.signed else None):
            raise RuntimeError(f"client {client.id} finds the private state of {found}")
        answer = yield from self.run_program(given, client)
        self.signed.add(client.id)
        return replace(answer, state={**answer.state, "planted/id": client.id})


class Probing(Around):
    """Every program has a fresh model of what it received probed before its first request and after its last."""

    def __init__(self, inner: Method, models: Mapping[str, Served]) -> None:
        super().__init__(inner)
        self.models = models

    def train(self, given: Assignment, client: Client) -> Generator[Any, Any, Any]:
        """The method's program between two probes."""
        name = next((entry.model for entry in given.entries.values()), "main")
        yield Probe("planted-first", self.models[name])
        answer = yield from self.run_program(given, client)
        yield Probe("planted-last", self.models[name])
        return answer


class DrawsKept(Around):
    """Breaks the law if an assignment loses how often its client was drawn."""

    def assign(self, bank: Bank, when: Moment, clients: Sequence[Participant]) -> Iterable[Assignment]:
        """The method's assignments."""
        drawn = {client.id: client.times for client in clients}
        for given in self.inner.assign(bank, when, clients):
            times = drawn.get(given.client)
            require(given.times == times, f"client {given.client} was drawn {times} times; assign says {given.times}")
            yield given


class Watched(Around):
    """Breaks the law if `merge` changes what it is given."""

    def merge(self, bank: Bank, updates: Sequence[Update], when: Moment) -> Bank:
        """The method's merge."""
        before, sent = fingerprint(bank), [fingerprint(update) for update in updates]
        merged = self.inner.merge(bank, updates, when)
        require(fingerprint(bank) == before, "merge changed the bank that it was given, in place")
        for update, mark in zip(updates, sent, strict=True):
            require(fingerprint(update) == mark, f"merge changed the update of client {update.client}, in place")
        return merged


class AroundEngine(Engine):
    """An engine around another one."""

    def __init__(self, inner: Engine) -> None:
        self.inner = inner

    def run(self, train: Any, jobs: Sequence[Job]) -> list[Outcome]:
        """The outcomes of the inner engine."""
        return self.inner.run(train, jobs)

    def score(self, pairs: Any, metrics: Sequence[str] = ()) -> list[list[Score]]:
        """The scores of the inner engine."""
        return self.inner.score(pairs, metrics)

    def describe(self) -> str:
        """The inner engine."""
        return self.inner.describe()


class PostedEngine(AroundEngine):
    """Sends the program, each job and each answer to itself, as an engine on other machines does."""

    def _posted(self, thing: Any) -> Any:
        parcel = pack(thing, self.inner.models)
        return unpack(parcel.data, [owned(flat(tensor).numpy()) for tensor in parcel.tensors], self.inner.models)

    def run(self, train: Any, jobs: Sequence[Job]) -> list[Outcome]:
        """The outcomes, as they arrive."""
        sent = [self._posted(for_the_client(job)) for job in jobs]
        return [self._posted(outcome) for outcome in self.inner.run(self._posted(train), sent)]


class ReorderedEngine(AroundEngine):
    """Runs the jobs in another order."""

    def __init__(self, inner: Engine, order: Order) -> None:
        super().__init__(inner)
        self.order = order

    def run(self, train: Any, jobs: Sequence[Job]) -> list[Outcome]:
        """The outcomes, in the order of the jobs."""
        order = self.order(len(jobs))
        outcomes = dict(zip(order, self.inner.run(train, [jobs[i] for i in order]), strict=True))
        return [outcomes[i] for i in range(len(jobs))]


class WatchedEngine(AroundEngine):
    """Breaks the law if a client program changes what it is given, or the data."""

    def run(self, train: Any, jobs: Sequence[Job]) -> list[Outcome]:
        """The outcomes."""
        marks = [fingerprint(job) for job in jobs]
        data = fingerprint(self.inner.dataset)
        outcomes = self.inner.run(train, jobs)
        for job, mark in zip(jobs, marks, strict=True):
            require(fingerprint(job) == mark, f"client {job.client.id}'s program changed what it was given, in place")
        require(fingerprint(self.inner.dataset) == data, "a client's program changed the data, in place")
        return outcomes


class Answering(AroundEngine):
    """Replaces the clients' updates: ``change(job, update)``."""

    def __init__(self, inner: Engine, change: Callable[[Job, Update], Update]) -> None:
        super().__init__(inner)
        self.change = change

    def run(self, train: Any, jobs: Sequence[Job]) -> list[Outcome]:
        """The outcomes with other updates."""
        return [
            replace(outcome, answer=self.change(job, outcome.answer)) if isinstance(outcome.answer, Update) else outcome
            for job, outcome in zip(jobs, self.inner.run(train, jobs), strict=True)
        ]


class Fated:
    """The selection with fates of our choice for one client."""

    def __init__(self, inner: Selection, client: int, *, straggler: bool = False, crash: bool = False) -> None:
        self.inner = inner
        self.client = client
        self.fate = {"straggler": straggler, "crash": crash}

    def draw(self, when: Moment) -> list[Selected]:
        """The selection's clients."""
        drawn = self.inner.draw(when)
        return [replace(s, **self.fate) if self.client in (s.client, -1) else s for s in drawn]


def fated(client: int, **fate: bool) -> Callable[[Selection], Selection]:
    """For `Case.play`: this client (-1: everyone) is a straggler or crashes."""
    return lambda inner: cast(Selection, Fated(inner, client, **fate))


def first_broken(tensor: Tensor, value: float) -> Tensor:
    """A copy whose first number, where it has one, is ``value``."""
    copy = tensor.clone()
    copy.reshape(-1)[:1] = value
    return copy


def each_part(update: Update, change: Callable[[Part], Part]) -> Update:
    """The update with every part changed."""
    return replace(update, parts={key: change(part) for key, part in update.parts.items()})


def reverse(count: int) -> list[int]:
    """The last first."""
    return list(range(count))[::-1]


def shuffled(count: int) -> list[int]:
    """An order that is neither the usual one nor its reverse."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(5)).tolist()
