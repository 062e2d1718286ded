"""Who gets which entry, and where updates go: what an author of a method writes."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..bank import Bank, Buffers, Entry, Key
from ..learners.base import Learner
from ..messages import Assignment, Client, Group, Part, Participant, Update, World, grouped
from ..randomness import Moment, generator
from ..requests import Evaluate, Request, Served
from ..server.base import Mean, ServerOptimizer, shares
from ..server.quantiles import change

Program = Generator[Request, Any, Update]


class Method:
    """A system of federated learning. Attributes never change after ``__init__``; all numbers live in the bank.

    Settings are keyword-only parameters of ``__init__``. A method never sees the stream, the data or the truth
    about a client's rows (its concept, its domain).
    """

    part: ClassVar[str] = "method"
    warmup: int = 0
    """1 adds a round 0 before the first, in which the stream gives the rows of round 1."""
    exchanges: int = 1
    """Rounds of communication in one round."""
    serverless: ClassVar[bool] = False
    """Whether clients only meet each other (gossip); learners that need a server are then refused."""
    reads_validation: bool = False
    """Whether clients judge something on their validation rows, and leave it out where they have none."""
    needs_truth: tuple[str, ...] = ()
    """Labels of the stream's truth; each `Participant` tells the first that the stream has. For oracles alone."""

    births: ClassVar[bool] = False
    """Whether a client may answer for an entry that it was not given (a new cluster); else that is rejected."""

    @classmethod
    def keeps_task_models(cls, settings: Mapping[str, Any]) -> bool:
        """Whether these settings keep a model per task, so that every task may have a head of its own."""
        return False

    def __init__(self, world: World, learner: Learner, mean: Mean, server: ServerOptimizer) -> None:
        self.world = world
        self.learner = learner
        self.mean = mean
        self.server = server

    # ---- what a method says ---------------------------------------------------------------------------------

    def start(self) -> Bank:
        """The bank before the first round."""
        raise NotImplementedError

    def assign(self, bank: Bank, when: Moment, clients: Sequence[Participant]) -> Iterable[Assignment]:
        """Which entries each client receives; at most one assignment per client. Runs on the server."""
        raise NotImplementedError

    def train(self, given: Assignment, client: Client) -> Program | Update:
        """What the client does with them: a generator that yields requests, or the update itself."""
        raise NotImplementedError

    def merge(self, bank: Bank, updates: Sequence[Update], when: Moment) -> Bank:
        """The bank after these updates, which are sorted by client. Default: every entry by `merge_entry`."""
        changes = {
            key: self.merge_entry(key, bank.entries[key], group, when) for key, group in grouped(updates).items()
        }
        return bank.put(changes)

    def records(self, before: Bank, after: Bank, updates: Sequence[Update], when: Moment) -> Iterable[dict[str, Any]]:
        """What the method decided in a merge that was kept, as lines of ``metrics.jsonl``: JSON values, and ``record``.

        Asked once after each merge, with the bank before and after it and the updates that it was given. Nothing that
        it says enters the run: what it needs to know of the merge lies in ``after.memory``. Default: nothing.
        """
        return ()

    def newborn(self, key: Key) -> Entry | None:
        """What a client's answer for an entry that it was not given is like (see `births`); other sizes are rejected.

        Default ``None``: any size will do, and `merge` must cope with it.
        """
        return None

    def candidates(self, bank: Bank, target: Mapping[str, Any]) -> Sequence[tuple[Key, ...]]:
        """The groups of keys that could answer for a target such as ``{"task": 3}`` or ``{"client": 17}``.

        The measure takes the group with the lowest loss on the target's validation rows, and logs which.
        """
        raise NotImplementedError

    def compose(self, bank: Bank, keys: tuple[Key, ...]) -> Served:
        """The model that a group of keys makes together. Default: their segments joined."""
        return self.join([bank.entries[key] for key in keys])

    # ---- what helps in saying it ----------------------------------------------------------------------------

    def initial(self, key: Key, model: str = "main", name: str | None = None) -> Entry:
        """A newly initialised entry. Entries with the same ``name`` (default: the key) start identical."""
        return self.world.models[model].initial(generator(self.world.seed, "initial", model, name or key))

    def join(self, entries: Sequence[Entry]) -> Served:
        """One model from entries that cover its segments between them."""
        if len(entries) == 1 and entries[0].segments is None:
            return Served.of(entries[0])
        space = self.world.models[entries[0].model].space
        parts: dict[str, Tensor] = {}
        for entry in entries:
            for segment in entry.segments or ():
                parts[segment] = space.part(entry, segment)
        buffers = next((e.buffers for e in entries if not e.buffers.empty), Buffers())
        return Served(entries[0].model, space.join(parts), buffers)

    def report(self, served: Served, client: Client) -> Generator[Request, Any, dict[str, float]]:
        """The note with this model's loss on the client's validation rows, where a schedule or the server reads it.

        For every `train`, once, with the model that training starts from: a plateau of the server's rate or of
        ``local.lr`` hears of nothing else.
        """
        if not (self.server.reads_reported or self.learner.reads_reported) or not len(client.validation):
            return {}
        scores = yield Evaluate((served,), client.validation, self.learner.local.loss)
        return {"validation_loss": scores[0].loss}

    def merge_entry(
        self, key: Key, old: Entry, group: Group, when: Moment, extra: Mapping[str, Tensor | None] | None = None
    ) -> Entry:
        """The next entry from all answers for it: mean, server step, buffers, and both kinds of extra.

        Every method builds its entries through this, so that a learner's numbers are never lost: ``extra`` adds
        the method's own to the old ones and the learner's. ``None`` takes a number away. ``Entry.server`` also gets
        the quantiles of the step's pseudo-gradient, see `shoal.server.quantiles.change`.

        Of a single answer with a ``base`` (`Part.base`) the pseudo-gradient is the answer minus that, and the step
        begins there. Raises ``ValueError`` for one of several answers that has a base.
        """
        new = old
        trained = [(p, w) for p, w in zip(group.parts, group.weights, strict=True) if p.trained]
        if trained:
            parts, weights = tuple(p for p, _ in trained), tuple(w for _, w in trained)
            sent = replace(group, parts=parts, weights=weights)
            origin = _origin(key, old, parts)
            total = parts[0].total
            mean = self.mean.combine(origin, sent) if total is None else total.mean()
            vector, server = self.server.step(origin, mean, when, sent.reported)
            new = old.new(
                vector=vector,
                server={**server, **change(origin.vector, mean)},
                buffers=merge_buffers(old.buffers, sent, self.mean.weights(sent)),
                weight=float(np.sum(weights)),
            )
        learned = {**self.learner.watched(old, group), **self.learner.extra(key, old, new, group, when)}
        extras = {**old.extra, **learned, **(extra or {})}
        return new.new(extra={name: value for name, value in extras.items() if value is not None})


def _origin(key: Key, old: Entry, parts: Sequence[Part]) -> Entry:
    """The entry where the server's step begins: the old one, or with the base of the one answer for it."""
    if all(part.base is None for part in parts):
        return old
    if len(parts) > 1:
        raise ValueError(
            f"entry {key!r} has {len(parts)} answers, and those of clients "
            f"{[part.client for part in parts if part.base is not None]} have a base; a step can begin at the base of "
            f"an answer only where that is the one answer"
        )
    return old.new(vector=parts[0].base)


def merge_buffers(old: Buffers, group: Group, weights: Sequence[float] | None = None) -> Buffers:
    """The mean of the float buffers with these weights (the group's), and the maximum of the counters.

    Buffers never pass through a server optimiser: a momentum step can drive a variance below zero.
    """
    floats = counters = None
    if old.floats is not None:
        known = [(p.buffers.floats, w) for p, w in zip(group.parts, shares(weights or group.weights), strict=True)]
        total = torch.zeros_like(old.floats, dtype=torch.float64)
        share = 0.0
        for values, weight in known:
            if values is not None:
                total.add_(values, alpha=float(weight))
                share += float(weight)
        floats = (total / share).to(torch.float32) if share else old.floats
    if old.counters is not None:
        counters = old.counters
        for part in group.parts:
            if part.buffers.counters is not None:
                counters = torch.maximum(counters, part.buffers.counters)
    return Buffers(floats, counters)
