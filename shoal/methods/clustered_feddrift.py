"""FedDrift: clients that find every model worse than before get a new one, and models that are alike are joined.

Paper: Jothimurugesan, Hsieh, Wang, Joshi and Gibbons, "Federated Learning under Distributed Concept Drift" (AISTATS
2023), FedDrift and FedDrift-Eager, and the authors' code where the paper is silent.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from ..bank import Bank, Entry, Key, Value
from ..clustering.births import LARGEST
from ..learners.base import Learner
from ..messages import Assignment, Client, Group, Part, Participant, Update, World
from ..randomness import Moment
from ..requests import Evaluate, Request, Score, Served
from ..server.base import Mean, ServerOptimizer
from .base import Program
from .clustered import DECIDED, Clustered, Count
from .clustered_owners import OWNERS, Cells, cells_of, join_alike, owned_keys

SCORES = "feddrift/scores"
"""In ``Part.extra``: what the client's data of each model score under all models."""
BORN = "feddrift/born"
"""In ``Bank.memory``: the time step in which each model was born."""


class FedDrift(Clustered):
    """Time steps of ``step`` rounds, at whose beginning clients may go over to other models, or to new ones.

    At its first round of a time step a client receives all models but isolated ones, and scores them on its rows (by
    ``score``: ``loss`` or ``accuracy``). If the best one is worse by more than ``delta`` than the client's own was on its
    rows of the step before, there is a drift, and the client trains a new model, from a ``copy`` of the best one or a
    ``fresh`` one (``born``); else it goes on with the best. ``eager``: all that drift in the same step share one new
    model. Otherwise each gets its own, ``isolated`` for so many steps, and after this round models that are alike are
    joined: complete linkage, cut at ``join`` (default ``delta``), of the distances ``max(L_ij - L_ii, L_ji - L_jj, 0)``,
    with the score ``L_ij`` of model i on the clients' rows that belong to model j.

    ``keep_rows``: clients keep the rows of earlier steps, and in every round each model is trained on all rows that belong
    to it. Without it clients train the model of the present step alone, on its rows. ``first``: all clients begin with
    ``one`` model, or ``each`` with its own (the authors' setting for several concepts at the start). ``most``: when there
    are so many models, a drift is recorded as refused, and the client's answer goes to the best model.
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
        self.join = delta if join is None else join
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
        return Bank().put({"concept/0": self.new}, **{OWNERS: {}, BORN: {"concept/0": -1}})

    def assign(self, bank: Bank, when: Moment, clients: Sequence[Participant]) -> Iterable[Assignment]:
        """The models of the client's own rows; at its first round of a time step all that are not isolated, too."""
        now = self.step_of(when)
        birth: Any = bank.memory[BORN]
        # Every client may use a model from the step on in which it is no longer isolated.
        usable = [key for key in bank.entries if now - birth[key] >= self.isolated or birth[key] < 0]
        for seat in clients:
            cells = cells_of(bank, seat.id)
            begins = not cells or cells[-1].step < now
            mine = [cell.key for cell in (cells if self.keep_rows else cells[-1:])]
            sent = dict.fromkeys([*usable, *mine] if begins else mine)
            note = {"step": now, "begins": begins, "owned": [[cell.step, cell.key] for cell in cells], "usable": usable}
            yield Assignment(seat.id, tuple(sent), times=seat.times, note=note)

    # ---- the client's side -----------------------------------------------------------------------------------

    def train(self, given: Assignment, client: Client) -> Program:
        """At the start of a time step scores and a decision; then a local fit of each model that owns rows."""
        now = given.note["step"]
        owned = [(int(step), str(key)) for step, key in given.note["owned"]]
        rows = {step: _kept(client, step) for step, _ in owned}
        note: dict[str, Any] = {"step": now, "begins": given.note["begins"]}
        extra: dict[str, Tensor] = {}
        if given.note["begins"]:
            key, start, told = yield from self._begin(given, client, owned, rows)
            note.update(told)
            owned.append((now, key))
            rows[now] = client.train
        else:
            key = owned[-1][1]
            start = given.entries[key]
            rows[now] = _united(rows[now], client.train) if self.keep_rows else client.train
        note["choice"] = key
        note.update((yield from self.report(Served.of(start), client)))
        if "scored" in note and not self.eager:
            scored, matrix = yield from self._matrix(given, owned, rows)
            extra[SCORES] = matrix
            note["scored"] = scored
        parts: dict[Key, Part] = {}
        state: dict[str, Value] = {f"feddrift/rows/{now}": rows[now]}
        counts: dict[str, int] = {}
        for model in [key, *dict.fromkeys(other for _, other in owned if self.keep_rows and other != key)]:
            own = [rows[step] for step, of in reversed(owned) if of == model and (self.keep_rows or step == now)]
            entry = start if model == key else given.entries[model]
            # The rows of the present step first, so that a client that never drifts trains as in FedAvg.
            data = _united(*own)
            purpose = "fit" if model == key else f"fit/{model}"
            part, learnt = yield from self.learner.fit(
                model, Served.of(entry), entry, client, rows=data, purpose=purpose
            )
            parts[model], counts[model] = part, len(data)
            state.update(learnt)
        parts[key] = replace(parts[key], extra={**parts[key].extra, **extra})
        note["rows"] = counts
        if not self.keep_rows and given.note["begins"]:
            state.update({f"feddrift/rows/{step}": None for step, _ in owned if step < now})
        return Update(parts, weight=float(max(1, counts[key])), state=state, note=note)

    def _begin(
        self, given: Assignment, client: Client, owned: Sequence[tuple[int, Key]], rows: Mapping[int, Tensor]
    ) -> Generator[Request, Any, tuple[Key, Entry, dict[str, Any]]]:
        """The model of the new step, what it is trained from, and what the server is told."""
        usable = [key for key in given.note["usable"] if key in given.entries]
        scores = yield from self._scores([given.entries[key] for key in usable], client.train)
        best = usable[int(np.argmin(scores))]
        now = given.note["step"]
        told: dict[str, Any] = {"best": best, "drift": False, "scored": []}
        if owned:
            before, mine = owned[-1]
            (past,) = yield from self._scores([given.entries[mine]], rows[before]) if mine in given.entries else [(0.0,)]
            told["drift"] = bool(scores.min() > past + self.delta)
        else:
            told["drift"] = self.first == "each"
        if not told["drift"]:
            return best, given.entries[best], told
        key = f"concept/{now}" if self.eager and owned else f"concept/{now}-{client.id}"
        start = given.entries[best] if self.born == "copy" else self.new
        return key, start.new(extra={}, server={}, weight=0.0), told
