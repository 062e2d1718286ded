"""FedDrift: clients that find every model worse than before get a new one, and models that are alike are joined.

Paper: Jothimurugesan, Hsieh, Wang, Joshi and Gibbons, "Federated Learning under Distributed Concept Drift" (AISTATS
2023), FedDrift and FedDrift-Eager, and the authors' code where the paper is silent.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from ..bank import Bank, Entry, Key, Value
from ..clustering.births import LARGEST, alike, cross_losses, distances
from ..clustering.geometry import Array
from ..learners.base import Learner
from ..messages import Assignment, Client, Part, Participant, Update, World
from ..randomness import Moment
from ..requests import Evaluate, Request, Score, Served
from ..server.base import Mean, ServerOptimizer
from .base import Program
from .clustered import DECIDED, Clustered, Count, by_choice, joined, keys_of, number

SCORES = "feddrift/scores"
"""In ``Part.extra``: what the client's rows of each model score under all models."""
ROWS = "feddrift/rows"
"""In a client's state: its rows of a time step, ``feddrift/rows/3``."""
BORN, OWNED = "feddrift/born", "feddrift/owned"
"""In ``Bank.memory``: the time step in which each model was born (-1: the first one), and each client's cells."""


@dataclass(frozen=True)
class Cell:
    """A client's rows of one time step: the model that they belong to, and how many there are."""

    step: int
    key: Key
    rows: int


@dataclass(frozen=True)
class Begun:
    """What a client found at the start of a time step: the best model, whether all are worse than its own was, the
    model that its new rows belong to, and what that is trained from."""

    best: Key
    drift: bool
    key: Key
    start: Entry


class FedDrift(Clustered):
    """Clients whose rows all models are worse at than before get a new one; models that are alike are joined.

    Time goes in steps of ``step`` rounds, at whose beginning clients may go over to other models, or to new ones.
    At its first round of a time step a client receives all models but isolated ones, and scores them on its rows (by
    ``score``: ``loss`` or ``accuracy``). If the best one is worse by more than ``delta`` than the client's own model on
    its rows of the step before, there is a drift, and the client trains a new model, from a ``copy`` of the best one or
    a ``fresh`` one (``born``); else it goes on with the best. ``eager``: all that drift in the same step share one new
    model. Otherwise each gets its own, ``isolated`` for so many steps, and after this round models that are alike are
    joined: complete linkage, cut at ``join`` (default ``delta``), of the distances
    ``max(L_ij - L_ii, L_ji - L_jj, 0)``, with the score ``L_ij`` of model i on the rows that belong to model j.

    ``keep_rows``: clients keep the rows of earlier steps, and in every round each model is trained on all rows that
    belong to it. Without it clients train the model of the present step alone, on its rows. ``first``: all clients
    begin with ``one`` model, or ``each`` with its own (the authors' setting for several concepts at the start).
    ``most``: when there are so many models, a drift is recorded as refused, and the client's answer goes to the best.
    """

    births: ClassVar[bool] = True

    def __init__(
        self,
        world: World,
        learner: Learner,
        mean: Mean,
        server: ServerOptimizer,
        *,
        step: Count,
        delta: Annotated[float, Field(ge=0)],
        eager: bool = False,
        score: Literal["loss", "accuracy"] = "loss",
        join: Annotated[float, Field(ge=0)] | None = None,
        isolated: Annotated[int, Field(ge=0)] = 1,
        born: Literal["copy", "fresh"] = "copy",
        first: Literal["one", "each"] = "one",
        keep_rows: bool = True,
        most: Annotated[int, Field(ge=1)] = 20,
    ) -> None:
        super().__init__(world, learner, mean, server, start="identical")
        if eager and join is not None:
            raise ValueError("join belongs to FedDrift; FedDrift-Eager joins no models. Leave it out, or eager: false")
        if learner.exchanges > 1:
            raise ValueError(
                f"feddrift decides once at the start of a time step, and learner {type(learner).__name__} trains in "
                f"{learner.exchanges} exchanges; use another one (svrg: anchor local or scaffold)"
            )
        self.step = step
        self.delta = delta
        self.eager = eager
        self.score = score
        self.within = delta if join is None else join
        self.isolated = 0 if eager else isolated
        self.born = born
        self.first = first
        self.keep_rows = keep_rows
        self.most = most
        self.new = self.fresh(0)  # here and not in train: initialising belongs in the main thread

    # ---- the server's side before training -------------------------------------------------------------------

    def step_of(self, when: Moment) -> int:
        """The time step of a round, from 0."""
        return (when.round - 1) // self.step

    def start(self) -> Bank:
        """One model."""
        return Bank().put({"concept/0": self.new}, **{OWNED: {}, BORN: {"concept/0": -1}})

    def usable(self, bank: Bank, step: int) -> list[Key]:
        """The models that are not isolated in this time step, and own rows; the first one while no other is usable."""
        born: Any = bank.memory[BORN]
        free = [key for key in keys_of(bank) if born[key] < 0 or step - born[key] >= self.isolated]
        used = _used(bank)
        return [key for key in free if key in used] or free

    def assign(self, bank: Bank, when: Moment, clients: Sequence[Participant]) -> Iterable[Assignment]:
        """The models of the client's own rows; at its first round of a time step all that are not isolated, too."""
        now = self.step_of(when)
        usable = self.usable(bank, now)
        for seat in clients:
            cells = cells_of(bank, seat.id)
            begins = not cells or cells[-1].step < now
            mine = [cell.key for cell in (cells if self.keep_rows else cells[-1:])]
            sent = dict.fromkeys([*usable, *mine] if begins else mine)
            owned = [[cell.step, cell.key] for cell in cells]
            note: dict[str, Any] = {"step": now, "owned": owned, "usable": usable if begins else None}
            yield Assignment(seat.id, tuple(sent), times=seat.times, note=note)

    def newborn(self, key: Key) -> Entry:
        """A model like all others."""
        return self.new

    # ---- the client's side -----------------------------------------------------------------------------------

    def train(self, given: Assignment, client: Client) -> Program:
        """At the start of a time step scores and a decision; then a local fit of each model that owns rows."""
        now, usable = given.note["step"], given.note["usable"]
        owned = [(int(step), str(key)) for step, key in given.note["owned"]]
        rows = {step: _kept(client, step) for step, _ in (owned if self.keep_rows else owned[-1:])}
        note: dict[str, Any] = {"step": now}
        extra: dict[str, Tensor] = {}
        if usable is None:
            key = owned[-1][1]
            start = given.entries[key]
            rows[now] = _united(rows[now], client.train) if self.keep_rows else client.train
        else:
            begun = yield from self._begin(given, client, owned, rows)
            key, start = begun.key, begun.start
            owned.append((now, key))
            rows[now] = client.train
            note |= {"best": begun.best, "drift": begun.drift}
            if not self.eager:
                note["scored"], scores = yield from self._scored(given, usable, owned, rows)
                extra = {SCORES: scores} if len(scores) else {}
        note |= {"choice": key, "cell": len(rows[now]), "rows": {}}
        note |= yield from self.report(Served.of(start), client)
        parts: dict[Key, Part] = {}
        state: dict[str, Value] = {f"{ROWS}/{now}": rows[now]}
        for model, data in self._data(owned, rows).items():
            entry = start if model == key else given.entries[model]
            purpose = "fit" if model == key else f"fit/{model}"
            part, learnt = yield from self.learner.fit(
                model, Served.of(entry), entry, client, rows=data, purpose=purpose
            )
            parts[model] = replace(part, extra={**part.extra, **extra}) if model == key else part
            note["rows"][model] = len(data)
            state.update(learnt)
        if not self.keep_rows:
            state.update({f"{ROWS}/{step}": None for step, _ in owned if step < now})
        return Update(parts, weight=len(client.train), state=state, note=note)

    def _begin(
        self, given: Assignment, client: Client, owned: Sequence[tuple[int, Key]], rows: Mapping[int, Tensor]
    ) -> Generator[Request, Any, Begun]:
        """The decision of the client: a known model, or a new one."""
        usable: list[Key] = given.note["usable"]
        scores = yield from self._scores([given.entries[key] for key in usable], client.train)
        best = usable[int(np.argmin(scores))]
        drift = self.first == "each"
        if owned:
            # The model as it is now, at the end of the step before, on the rows of that step.
            step, mine = owned[-1]
            (before,) = yield from self._scores([given.entries[mine]], rows[step])
            drift = bool(scores.min() > before + self.delta)
        if not drift:
            return Begun(best, False, best, given.entries[best])
        now = given.note["step"]
        key = f"concept/{1 + now}" if self.eager else f"concept/{1 + now * self.world.clients + client.id}"
        if key in given.entries:  # born in this step already, by a client that took part earlier
            return Begun(best, True, key, given.entries[key])
        source = given.entries[best] if self.born == "copy" else self.new
        return Begun(best, True, key, source.new(extra={}, server={}, weight=0.0))

    def _scored(
        self,
        given: Assignment,
        usable: Sequence[Key],
        owned: Sequence[tuple[int, Key]],
        rows: Mapping[int, Tensor],
    ) -> Generator[Request, Any, tuple[list[list[Any]], Tensor]]:
        """What the client's rows of each usable model score under all usable ones: names and numbers of rows, and
        ``[models with rows, usable]``."""
        about: list[list[Any]] = []
        table = []
        for key, data in self._data(owned, rows).items():
            if key in usable:
                about.append([key, len(data)])
                table.append((yield from self._scores([given.entries[name] for name in usable], data)))
        numbers = np.array(table).reshape(len(about), len(usable)).clip(max=LARGEST)
        return about, torch.from_numpy(numbers).to(torch.float32)

    def _data(self, owned: Sequence[tuple[int, Key]], rows: Mapping[int, Tensor]) -> dict[Key, Tensor]:
        """The rows of each model, those of the latest time step first."""
        found: dict[Key, Tensor] = {}
        for step, key in reversed(owned if self.keep_rows else owned[-1:]):
            found[key] = _united(found[key], rows[step]) if key in found else rows[step]
        return found

    def _scores(self, entries: Sequence[Entry], rows: Tensor) -> Generator[Request, Any, Array]:
        """The loss, or the share of wrong rows, of each model; infinite where it is not finite."""
        if self.score == "loss":
            return (yield from self.measured(entries, rows))
        scores: list[Score] = yield Evaluate(tuple(Served.of(entry) for entry in entries), rows)
        found = np.array([1 - score.accuracy for score in scores], dtype=np.float64)
        return np.where(np.isfinite(found), found, np.inf)

    # ---- the server's side after training --------------------------------------------------------------------

    def merge(self, bank: Bank, updates: Sequence[Update], when: Moment) -> Bank:
        """All models by those who own rows of theirs; births, joins, and models that nobody owns any more."""
        now = self.step_of(when)
        wanted = list(dict.fromkeys(u.note["choice"] for u in updates if u.note["choice"] not in bank.entries))
        born = wanted[: max(0, self.most - len(bank.entries))]
        refused = [u.client for u in updates if u.note["choice"] in wanted and u.note["choice"] not in born]
        homes = {u.client: u.note["best"] if u.client in refused else u.note["choice"] for u in updates}
        starts = {key: self._origin(bank, [u for u in updates if homes[u.client] == key]) for key in born}
        answers = [answer for update in updates for answer in self._answers(update, homes[update.client])]
        entries = {**bank.entries, **starts}
        changes = self.merged(bank.put(starts), answers, when)
        entries |= {key: entry for key, entry in changes.items() if entry is not None}
        known: Any = bank.memory[BORN]
        birth = {**known, **dict.fromkeys(born, now)}
        owned = self._owned(bank, updates, homes)
        gone = {} if self.eager else self._alike(bank, updates, self.usable(bank, now))
        rows = {key: sum(c.rows for cells in owned.values() for c in cells if c.key == key) for key in entries}
        for survivor in dict.fromkeys(gone.values()):
            group = [survivor, *(key for key, other in gone.items() if other == survivor)]
            weighed = [entries[key].new(weight=float(rows[key])) for key in group]
            entries[survivor] = joined(entries[survivor], weighed)
        owned = {
            client: [replace(cell, key=gone.get(cell.key, cell.key)) for cell in cells]
            for client, cells in owned.items()
        }
        left = {key: entry for key, entry in entries.items() if key not in gone}
        retired = self._unowned(left, owned, birth, now)
        after = {key: entry for key, entry in left.items() if key not in retired}
        stay = [replace(u, parts={homes[u.client]: Part(None)}) for u in updates]
        drifted = [u.client for u in updates if u.note.get("drift")]
        told = by_choice(
            when, stay, drifted=drifted, born=born, joined=gone, retired=retired, refused=refused, step=now
        )
        memory: dict[str, Value] = {
            DECIDED: told,
            BORN: {key: birth[key] for key in after},
            OWNED: {client: [[c.step, c.key, c.rows] for c in cells] for client, cells in owned.items()},
        }
        removed: dict[Key, Entry | None] = {key: None for key in bank.entries if key not in after}
        return bank.put({**removed, **after}, **memory)

    def _origin(self, bank: Bank, updates: Sequence[Update]) -> Entry:
        """What a new model was trained from: the best one of most of its clients' rows, or the first model of all."""
        if self.born == "fresh":
            return self.new
        rows = dict.fromkeys(keys_of(bank), 0.0)
        for update in updates:
            rows[update.note["best"]] += update.weight * update.times
        return bank[max(rows, key=rows.__getitem__)].new(extra={}, server={}, weight=0.0)

    def _answers(self, update: Update, home: Key) -> Iterable[Update]:
        """An update for each model that the client trained, weighed by the rows behind it."""
        for key, part in update.parts.items():
            own = replace(part, extra={name: value for name, value in part.extra.items() if name != SCORES})
            main = key == update.note["choice"]
            if main and home != key:  # refused: trained from a copy of the best model it is an answer for that one
                if self.born == "fresh":
                    continue
                key, own = home, replace(own, extra={})
            note = update.note if main else {n: v for n, v in update.note.items() if n != "validation_loss"}
            name = update.note["choice"] if main else key
            yield replace(update, parts={key: own}, weight=float(update.note["rows"][name]), note=note)

    def _owned(self, bank: Bank, updates: Sequence[Update], homes: Mapping[int, Key]) -> dict[str, list[Cell]]:
        """The cells of every client after this round."""
        table: Any = bank.memory[OWNED]
        owned = {client: [Cell(*cell) for cell in cells] for client, cells in table.items()}
        for update in updates:
            cell = Cell(update.note["step"], homes[update.client], update.note["cell"])
            mine = owned.get(str(update.client), [])
            owned[str(update.client)] = [*(old for old in mine if old.step != cell.step), cell]
        return owned

    def _alike(self, bank: Bank, updates: Sequence[Update], usable: Sequence[Key]) -> dict[Key, Key]:
        """Which model goes into which other one, by the scores that came in this round."""
        rows: list[Tensor] = []
        homes: list[int | None] = []
        weights: list[float] = []
        for update in updates:
            scores = update.parts[update.note["choice"]].extra.get(SCORES)
            if scores is not None:
                for (key, count), row in zip(update.note["scored"], scores, strict=True):
                    rows.append(row)
                    homes.append(usable.index(key))
                    weights.append(float(count))
        if len(usable) < 2 or not rows:
            return {}
        labels = alike(distances(cross_losses(rows, homes, weights)), self.within)
        first = {label: usable[labels.index(label)] for label in labels}
        return {key: first[label] for key, label in zip(usable, labels, strict=True) if first[label] != key}

    def _unowned(
        self, entries: Mapping[Key, Entry], owned: Mapping[str, Sequence[Cell]], birth: Mapping[Key, int], now: int
    ) -> list[Key]:
        """The models that no rows belong to; not if every other one is isolated, for a client that comes later."""
        used = {cell.key for cells in owned.values() for cell in cells}
        idle = [key for key in entries if key not in used]
        others = any(key in used and (birth[key] < 0 or now - birth[key] >= self.isolated) for key in entries)
        return sorted(idle, key=number) if others else []

    def candidates(self, bank: Bank, target: Mapping[str, Any]) -> Sequence[tuple[Key, ...]]:
        """The model of the client's latest rows; of a target that names no client, every model that owns rows."""
        cells = cells_of(bank, target["client"]) if target.get("client") is not None else []
        if cells:
            return [(cells[-1].key,)]
        used = _used(bank)
        return [(key,) for key in keys_of(bank) if key in used or not used]


def cells_of(bank: Bank, client: int) -> list[Cell]:
    """The time steps of which the server knows whose the client's rows are, in order."""
    table: Any = bank.memory[OWNED]
    return [Cell(*cell) for cell in table.get(str(client), [])]


def _used(bank: Bank) -> set[Key]:
    table: Any = bank.memory[OWNED]
    return {cell[1] for cells in table.values() for cell in cells}


def _kept(client: Client, step: int) -> Tensor:
    """The client's rows of a time step; ``ValueError`` without them: a loss on no rows would hide every drift."""
    rows = client.state.get(f"{ROWS}/{step}")
    if not isinstance(rows, Tensor) or not len(rows):
        raise ValueError(
            f"feddrift compares with the rows of earlier time steps, but client {client.id} has kept none of time step "
            f"{step}, of which the server knows some; its private state was lost or is of another run"
        )
    return rows


def _united(*rows: Tensor) -> Tensor:
    """All rows, each once, at the place of its first appearance."""
    every = torch.cat(rows)
    _, first = np.unique(every.numpy(), return_index=True)
    return every[torch.from_numpy(np.sort(first))]
