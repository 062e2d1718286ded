"""What methods with several models for all clients share: clients choose one, and answers go where they belong.

The entries are ``concept/0``, ``concept/1`` and so on. A client that is given several measures them on its rows and
trains the one with the lowest loss.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from torch import Tensor

from ..bank import Bank, Buffers, Entry, Key
from ..clustering.base import renumbered
from ..clustering.geometry import Array
from ..clustering.matching import Start
from ..learners.base import Learner
from ..messages import Assignment, Client, Group, Part, Participant, Update, World, grouped
from ..randomness import Moment
from ..requests import Evaluate, Request, Score, Served
from ..server.base import Mean, ServerOptimizer
from ..server.means import average
from .base import Method, Program, merge_buffers

Count = Annotated[int, Field(ge=1)]

DECIDED = "decided"
"""Where ``Bank.memory`` has what the last merge decided, see `Clustered.records`."""


def number(key: Key) -> int:
    """The number of an entry: 3 of ``concept/3``."""
    return int(key.rpartition("/")[2])


def keys_of(bank: Bank) -> list[Key]:
    """The entries in the order of their numbers."""
    return sorted(bank.entries, key=number)


class Clustered(Method):
    """Several models for everyone, of which each client trains the one with the lowest loss on its rows.

    ``rows``: the models are compared on so many of the client's rows, the first ones; on all without. ``start``: all
    models start ``identical`` or ``independent``. A model whose loss is not finite is never chosen while another's is;
    of equal ones the first is. A client that is given a single model measures nothing.
    """

    def __init__(
        self,
        world: World,
        learner: Learner,
        mean: Mean,
        server: ServerOptimizer,
        *,
        rows: Count | None = None,
        start: Start = "independent",
    ) -> None:
        super().__init__(world, learner, mean, server)
        self.rows = rows
        self.starts = start

    # ---- the server's side before training -------------------------------------------------------------------

    def fresh(self, index: int, draw: int = 0) -> Entry:
        """A model that nobody has trained. The first one is that of every other method with the same seed."""
        name = "global" if self.starts == "identical" or index == 0 else f"concept/{index}"
        return self.initial(f"concept/{index}", name=f"{name}/draw/{draw}" if draw else name)

    def assign(self, bank: Bank, when: Moment, clients: Sequence[Participant]) -> Iterable[Assignment]:
        """All models to everyone."""
        keys = tuple(keys_of(bank))
        return [Assignment(seat.id, keys, times=seat.times) for seat in clients]

    # ---- the client's side -----------------------------------------------------------------------------------

    def measured(self, entries: Sequence[Entry], rows: Tensor) -> Generator[Request, Any, Array]:
        """The loss of each of these models on the rows; infinite where it is not finite."""
        scores: list[Score] = yield Evaluate(tuple(Served.of(entry) for entry in entries), rows)
        found = np.array([score.loss for score in scores], dtype=np.float64)
        return np.where(np.isfinite(found), found, np.inf)

    def choose(self, given: Assignment, client: Client) -> Generator[Request, Any, tuple[Key, Array | None]]:
        """The entry that the client trains, and the losses of all that it was given if they were measured."""
        keys = list(given.entries)
        if len(keys) == 1:
            return keys[0], None
        rows = client.train if self.rows is None else client.train[: self.rows]
        losses = yield from self.measured(list(given.entries.values()), rows)
        return keys[int(losses.argmin())], losses

    def train(self, given: Assignment, client: Client) -> Program:
        """The choice, and one local fit of the model chosen."""
        key, losses = yield from self.choose(given, client)
        entry = given.entries[key]
        start = Served.of(entry)
        note: dict[str, Any] = {**given.note, **(yield from self.report(start, client))}
        part, state = yield from self.learner.fit(key, start, entry, client)
        part = replace(part, extra={**part.extra, **self.told(losses)})
        return Update({key: part}, weight=len(client.train), state=state, note=note)

    def told(self, losses: Array | None) -> Mapping[str, Tensor]:
        """What of the losses is sent to the server, beside the model."""
        return {}

    # ---- the server's side after training --------------------------------------------------------------------

    def merged(self, bank: Bank, updates: Sequence[Update], when: Moment) -> dict[Key, Entry | None]:
        """The next entry of every key that the updates answer for; entries for which nothing came stay as they are."""
        changes: dict[Key, Entry | None] = {}
        for key, group in grouped(updates).items():
            old = bank.entries[key]
            new = self.merge_entry(key, old, group, when)
            # Of an entry whose models all went elsewhere only a learner's numbers may have changed.
            numbers = old.extra.keys() == new.extra.keys() and all(new.extra[n] is old.extra[n] for n in old.extra)
            if not numbers or any(part.vector is not None for part in group.parts):
                changes[key] = new
        return changes

    def records(self, before: Bank, after: Bank, updates: Sequence[Update], when: Moment) -> Iterable[dict[str, Any]]:
        """One record ``clusters`` with what was decided, if this merge decided anything.

        ``clients`` and, in the same order, the entry that each trained (``choices``) and its cluster (``labels``). For
        each cluster the entry that it updated (``models``, null if none) and its ``fates``.
        """
        found = after.memory.get(DECIDED)
        if not isinstance(found, Mapping) or [found["round"], found["exchange"]] != [when.round, when.exchange]:
            return ()
        about = {name: value for name, value in found.items() if name != "round"}
        return ({"record": "clusters", **about},)

    def candidates(self, bank: Bank, target: Mapping[str, Any]) -> Sequence[tuple[Key, ...]]:
        """Every model."""
        return [(key,) for key in keys_of(bank)]


def choice_of(update: Update) -> tuple[Key, Part]:
    """The entry that the client trained, and its answer."""
    ((key, part),) = update.parts.items()
    return key, part


def routed(updates: Sequence[Update], homes: Sequence[Key | None]) -> list[Update]:
    """The updates as `merge_entry` shall see them: the model of each goes to its home, or nowhere (``None``).

    A learner's numbers (a control variate's change) and the reported loss belong to the entry that was trained,
    whatever becomes of the model: the client keeps its half of them under that entry's name.
    """
    found: list[Update] = []
    for update, home in zip(updates, homes, strict=True):
        key, part = choice_of(update)
        if home == key:
            found.append(update)
            continue
        found.append(replace(update, parts={key: replace(part, vector=None, buffers=Buffers())}))
        if home is not None and part.vector is not None:
            silent = {name: value for name, value in update.note.items() if name != "validation_loss"}
            found.append(replace(update, parts={home: replace(part, extra={})}, note=silent))
    return found


def decided(
    when: Moment,
    updates: Sequence[Update],
    labels: Sequence[int],
    models: Sequence[Key | None],
    fates: Sequence[str],
    **more: Any,
) -> dict[str, Any]:
    """What `Clustered.records` tells of a merge, as it is kept in ``Bank.memory``; ``more`` is a method's own."""
    return {
        "round": when.round,
        "exchange": when.exchange,
        "clients": [update.client for update in updates],
        "choices": [choice_of(update)[0] for update in updates],
        "labels": list(labels),
        "models": list(models),
        "fates": list(fates),
        **more,
    }


def by_choice(when: Moment, updates: Sequence[Update], **more: Any) -> dict[str, Any]:
    """What was decided where every model is made of the answers of the clients that chose it."""
    choices = [choice_of(update)[0] for update in updates]
    labels = renumbered([number(key) for key in choices]).tolist() if choices else []
    models = list(dict.fromkeys(choices))
    return decided(when, updates, labels, models, ["accepted"] * len(models), **more)


def joined(survivor: Entry, entries: Sequence[Entry]) -> Entry:
    """The survivor with the mean of these models (itself among them), weighted by the rows behind them.

    Its moments and extras stay its own: they are about its key, under which clients keep their halves.
    """
    weights = [max(entry.weight, 1e-9) for entry in entries]
    group = Group(tuple(Part(entry.vector, entry.buffers) for entry in entries), tuple(weights))
    vector = average(survivor, group, weights)
    return survivor.new(
        vector=vector, buffers=merge_buffers(survivor.buffers, group), weight=float(sum(e.weight for e in entries))
    )
