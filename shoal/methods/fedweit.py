"""FedWeIT: tasks share a base, have sparse parts of their own, and borrow from the parts of other clients.

Paper: Yoon, Jeong, Lee, Yang and Hwang, "Federated Continual Learning with Weighted Inter-client Transfer" (ICML 2021),
equations 2 and 3 and algorithm 1; numbers and times that the paper leaves open are those of the authors' code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import pydantic
import torch
from torch import Tensor

from ..bank import Bank, Buffers, Entry, Key
from ..learners.base import Learner
from ..messages import Assignment, Client, Part, Participant, Update, World, grouped
from ..models.decomposed import ADAPTIVE, ATTENTION, BASE, MASK, PRIVATE, Layout
from ..randomness import Moment
from ..requests import Served, Term
from ..server.base import Mean, ServerOptimizer
from ..terms import Capped, Hold, Lasso, Pull
from .base import Method, Program
from .fedweit_parts import POOL, borrowed, decoded, encoded, numbers_of, own_key, part_key, table, uncollected

OWN = (MASK, ADAPTIVE, ATTENTION, PRIVATE)
"""The segments of an entry ``own/CLIENT/TASK``."""
UNITS = "units"
"""In the extra of the base: which units somebody sent, uint8 ``[U]``."""
KEPT = "fedweit"
"""In a client's state: the task, its base before the task, or with ``retroactive`` the weights of earlier tasks."""

Weight = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]


class FedWeit(Method):
    """Every client has a model of its own for every task, of a shared base and sparse parts; ``model: decomposed``.

    Entries: ``base``, the one that is averaged; ``base/CLIENT``, the client's own copy of it; ``own/CLIENT/TASK``, its
    mask, its part, its attention and what else is trained there; ``part/CLIENT/TASK``, a part as the server collected
    it, its numbers that are not zero. Own entries never leave their client. Exchange 0 asks clients whose task has
    changed for the part of the last one; in exchange 1 everybody trains. When a client begins with a task it is given
    as many parts of others as ``model.parts`` leaves room for, and keeps to them.

    The local loss is that of the learner, and for all earlier tasks j of the client

        l1 |A|_1 + l1_mask |m|_1 + decay / 2 (|A|^2 + |m|^2) + past / 2 sum_j |B sigmoid(m_j) + A_j - theta_j|^2

    with theta_j as it was when the task began (in the first task also decay / 2 |B|^2). The squares are solved after
    each step or, without ``implicit``, a part of its gradient, which explodes in SGD where the rate times ``past`` is
    too large. With ``retroactive`` the earlier A_j are free, each at its price ``l1``: they follow B in closed form,
    and the penalty is a part of the gradient, no number of it above ``l1``.

    Raises ``ValueError`` for a model that is not decomposed, a stream without tasks, a learner that joins numbers of
    all clients on the server, ``retroactive`` with ``past: 0``, and an explosive ``past``.
    """

    exchanges = 2
    births = True
    needs_task = True
    """Clients that do not know their task are refused."""

    def __init__(
        self,
        world: World,
        learner: Learner,
        mean: Mean,
        server: ServerOptimizer,
        *,
        l1: Weight = 1e-3,
        l1_mask: Weight = 0.0,
        decay: Weight = 1e-4,
        past: Weight = 100.0,
        implicit: bool = True,
        retroactive: bool = False,
        sparsity: Annotated[float, pydantic.Field(ge=0, lt=1)] = 0.3,
        threshold: Weight = 1e-3,
        pool: Literal["latest", "all"] = "latest",
    ) -> None:
        super().__init__(world, learner, mean, server)
        if not world.tasks:
            raise ValueError(
                "fedweit keeps a model for each task, and this stream has none; use stream.kind: tasks, or concepts "
                "with known: true"
            )
        if learner.needs_server or learner.exchanges > 1:
            raise ValueError(
                f"{type(learner).__name__} with these settings joins numbers of all clients on the server, and most "
                f"numbers of fedweit are a client's own; use another local.learner"
            )
        if learner.compression is not None:
            raise ValueError(
                "fedweit sends the masked part of a base alone, and its parts sparse: local.compression would change "
                "nothing; leave it out, and set sparsity or threshold instead"
            )
        if retroactive and not past:
            raise ValueError("retroactive: earlier parts follow the penalty on them; set past above 0")
        names = world.task_models or ("main",) * world.tasks
        try:
            self.layout = Layout.of(world.models["main"].space)
        except ValueError as error:
            raise ValueError(f"{error}; use model: {{kind: decomposed, network: {{kind: lenet}}}}") from None
        limit = 2 * (1 + learner.local.momentum)
        explicit = past and not (implicit or retroactive)
        if explicit and learner.local.optimizer == "sgd" and past * learner.local.lr >= limit:
            raise ValueError(
                f"past times local.lr must be below {limit:g} in explicit steps of sgd, or they grow without end; got "
                f"{past:g} * {learner.local.lr:g}. Set implicit: true, which is stable, or local.optimizer: adam"
            )
        self.size = world.models["main"].space.size_of((BASE,))
        self.l1, self.l1_mask, self.decay, self.past = l1, l1_mask, decay, past
        self.implicit, self.retroactive = implicit, retroactive
        self.sparsity, self.threshold, self.pool = sparsity, threshold, pool
        self.fresh = tuple(self._fresh(t, name) for t, name in enumerate(names))
        """What is new in each task but for the part, the same for all clients: mask, attention and the rest."""

    @classmethod
    def keeps_task_models(cls, settings: Mapping[str, Any]) -> bool:
        """Always."""
        return True

    def _fresh(self, task: int, name: str) -> Entry:
        whole, space = self.initial(f"task/{task}", name), self.world.models[name].space
        pieces = [space.part(whole, segment) for segment in OWN if segment != ADAPTIVE]
        return Entry(torch.cat(pieces), name, (MASK, ATTENTION, PRIVATE), whole.buffers)

    def _piece(self, entry: Entry, segment: str) -> Tensor:
        return self.world.models[entry.model].space.part(entry, segment)

    # ---- the server -----------------------------------------------------------------------------------------

    def start(self) -> Bank:
        """The base; everything else is born at the clients."""
        base = self._piece(self.initial(BASE), BASE).clone()
        units = torch.ones(sum(self.layout.units), dtype=torch.uint8)
        entry = Entry(base, segments=(BASE,), extra={UNITS: units})
        return Bank().put({BASE: entry}, tasks={}, held={})

    def newborn(self, key: Key) -> Entry | None:
        """The sizes of an own entry and of a part before it is encoded."""
        kind, *numbers = key.split("/")
        if kind != "own":
            return Entry(torch.empty(self.size), segments=(BASE if kind == BASE else ADAPTIVE,))
        fresh = self.fresh[int(numbers[1])]
        return Entry(torch.empty(self.size + fresh.vector.numel()), fresh.model, OWN, fresh.buffers)

    def assign(self, bank: Bank, when: Moment, clients: Sequence[Participant]) -> Iterable[Assignment]:
        """The base and the parts to borrow from; in exchange 0, of the clients with a new task, their last part."""
        unsure = [c.id for c in clients if c.task is None]
        if unsure:
            raise ValueError(f"fedweit's clients must know their task; clients {unsure[:5]} do not, by the stream")
        last = {c.id: table(bank, "tasks").get(str(c.id)) for c in clients}
        if when.exchange == 0:
            changed = [(c, own_key(c.id, last[c.id])) for c in clients if last[c.id] not in (None, c.task)]
            return [Assignment(c.id, own=(key,), times=c.times) for c, key in changed if uncollected(bank, key)]
        return [self._given(bank, when, c, begins=last[c.id] != c.task) for c in clients]

    def _given(self, bank: Bank, when: Moment, seat: Participant, begins: bool) -> Assignment:
        pool = borrowed(bank, own_key(seat.id, seat.task))
        if begins:
            pool = pool + self._drawn(bank, when, seat.id, pool)
        held = table(bank, "held").get(str(seat.id), {})
        there = [key for key in pool if held.get(key) == bank[key].version]
        others = [own_key(seat.id, t) for t in range(self.world.tasks) if t != seat.task]
        own = (f"{BASE}/{seat.id}", own_key(seat.id, seat.task), *(k for k in others if k in bank.entries), *there)
        keys = (BASE, *(key for key in pool if key not in there))
        return Assignment(seat.id, keys, own, seat.times, note={"pool": pool})

    def _drawn(self, bank: Bank, when: Moment, client: int, pool: Sequence[Key]) -> list[Key]:
        """More parts of others, as many as there is room for."""
        offered = {key: entry.version for key, entry in bank.entries.items() if key.startswith("part/")}
        found = [key for key in offered if numbers_of(key)[0] != client and key not in pool]
        if self.pool == "latest":
            known = {numbers_of(key)[0] for key in pool}
            newest: dict[int, Key] = {}
            for key in sorted(found, key=offered.__getitem__):
                newest[numbers_of(key)[0]] = key
            found = [key for other, key in newest.items() if other not in known]
        found, room = sorted(found, key=numbers_of), self.layout.parts - len(pool)
        if len(found) <= room:
            return found
        chosen = when.random("parts", client).choice(len(found), room, replace=False)
        return [found[i] for i in sorted(chosen.tolist())]

    def merge(self, bank: Bank, updates: Sequence[Update], when: Moment) -> Bank:
        """The mean of the bases, of each unit over those who sent it; own entries as they came; parts encoded."""
        changes: dict[Key, Entry] = {}
        for key, group in grouped(updates).items():
            if key == BASE:
                sent = torch.stack([part.mask for part in group.parts if part.mask is not None]).any(0)
                units = self.layout.under(sent).to(torch.uint8)
                changes[key] = self.merge_entry(key, bank[key], group, when, {UNITS: units})
                continue
            (part,), (weight,) = group.parts, group.weights
            like = self.newborn(key)
            assert part.vector is not None
            assert like is not None
            if part.mask is not None:
                changes[key] = encoded(part.vector, part.mask, weight)
            else:
                extra = {name: part.extra[name] for name in (POOL,) if name in part.extra}
                changes[key] = like.new(vector=part.vector, buffers=part.buffers, extra=extra, weight=weight)
        told = {str(update.client): update.note for update in updates if BASE in update.parts}
        tasks, held = dict(table(bank, "tasks")), dict(table(bank, "held"))
        for client, note in told.items():
            tasks[client] = note["task"]
            held[client] = {**held.get(client, {}), **{key: bank[key].version for key in note["pool"]}}
        return bank.put(changes, tasks=tasks, held=held)

    # ---- the client -----------------------------------------------------------------------------------------

    def train(self, given: Assignment, client: Client) -> Program | Update:
        """In exchange 0 the last task's part, without its small numbers; in exchange 1 a fit of the task's model."""
        if client.when.exchange:
            return self._trained(given, client)
        ((key, entry),) = given.entries.items()
        part = self._piece(entry, ADAPTIVE)
        where = part.abs() > self.threshold
        return Update({part_key(*numbers_of(key)): Part(part * where, mask=where)}, weight=len(client.train))

    def _trained(self, given: Assignment, client: Client) -> Program:
        assert client.task is not None
        key, base = own_key(client.id, client.task), given.entries[BASE]
        mine, own = given.entries.get(f"{BASE}/{client.id}"), given.entries.get(key)
        earlier = {k: e for k, e in given.entries.items() if k.startswith("own/") and k != key}
        kept = self._remembered(client, mine, earlier)
        start, pool = base.vector, given.note["pool"]
        if mine is not None:  # what nobody sent stays the client's own
            start = torch.where(self.layout.over(base.extra[UNITS]).bool(), start, mine.vector)
        model, buffers, pieces = self._begun(client.task, start) if own is None else self._gone_on(own)
        space = self.world.models[model].space
        parts = self._parts(given.entries, pool)
        vector = space.join({BASE: start, **pieces})
        served = Served(model, vector, buffers, self.layout.pools(parts))
        note = yield from self.report(served, client)
        terms = self._terms(model, kept, earlier)
        part, state = yield from self.learner.fit(key, served, base, client, terms=terms)
        assert part.vector is not None
        after = {segment: part.vector[where] for segment, where in space.segments.items()}
        sent = self.layout.over(self.layout.kept(after[MASK], self.sparsity))
        listed = torch.tensor([numbers_of(k) for k in pool], dtype=torch.int64).view(-1, 2)
        numbers = torch.cat([after[segment] for segment in OWN])
        answers = {
            BASE: Part(after[BASE], extra=part.extra, mask=sent, steps=part.steps, loss=part.loss),
            f"{BASE}/{client.id}": Part(after[BASE].clone(), steps=part.steps, loss=part.loss),
            key: Part(numbers, part.buffers, {POOL: listed}, steps=part.steps, loss=part.loss),
            **self._followed(after[BASE], kept, earlier),
        }
        told: dict[str, Any] = {**note, "task": client.task, "pool": list(pool)}
        return Update(answers, weight=len(client.train), state={**state, KEPT: kept}, note=told)

    def _begun(self, task: int, start: Tensor) -> tuple[str, Buffers, dict[str, Tensor]]:
        """The numbers of a task that the client has never trained; its part is a third of the base."""
        fresh = self.fresh[task]
        pieces = {segment: self._piece(fresh, segment) for segment in (MASK, ATTENTION, PRIVATE)}
        return fresh.model, fresh.buffers, {**pieces, ADAPTIVE: start / 3}

    def _gone_on(self, own: Entry) -> tuple[str, Buffers, dict[str, Tensor]]:
        return own.model, own.buffers, {segment: self._piece(own, segment) for segment in OWN}

    def _parts(self, entries: Mapping[Key, Entry], pool: Sequence[Key]) -> Tensor:
        """Collected parts, ``[k, B]``."""
        found = [decoded(entries[key], self.size) for key in pool]
        return torch.stack(found) if found else torch.empty(0, self.size)

    def _remembered(self, client: Client, mine: Entry | None, earlier: Mapping[Key, Entry]) -> dict[str, Any]:
        """What the penalty on earlier tasks is about: the same as long as the task lasts."""
        kept = client.state.get(KEPT)
        if isinstance(kept, dict) and kept["task"] == client.task:
            return dict(kept)
        if mine is None or not earlier or not self.past:
            return {"task": client.task}
        if not self.retroactive:  # B sigmoid(m_j) + A_j - theta_j is sigmoid(m_j) (B - the base before): A_j stays
            return {"task": client.task, "anchor": mine.vector}
        past = {key: mine.vector * self._scale(entry) + self._piece(entry, ADAPTIVE) for key, entry in earlier.items()}
        return {"task": client.task, "past": past}

    def _scale(self, entry: Entry) -> Tensor:
        """``sigmoid(m)`` at all weights."""
        return self.layout.over(torch.sigmoid(self._piece(entry, MASK)))

    def _terms(self, model: str, kept: Mapping[str, Any], earlier: Mapping[Key, Entry]) -> tuple[Term, ...]:
        """The penalties as corrections of a step, over the whole vector of the model."""
        space = self.world.models[model].space
        prices, strength, anchor = (torch.zeros(space.size) for _ in range(3))
        prices[space.segments[ADAPTIVE]], prices[space.segments[MASK]] = self.l1, self.l1_mask
        strength[space.segments[ADAPTIVE]] = strength[space.segments[MASK]] = self.decay
        if not earlier:
            strength[space.segments[BASE]] = self.decay
        elif "anchor" in kept:
            squares = sum((torch.sigmoid(self._piece(e, MASK)) ** 2 for e in earlier.values()), torch.zeros(()))
            strength[space.segments[BASE]] = self.past * self.layout.over(squares)
            anchor[space.segments[BASE]] = kept["anchor"]
        terms: list[Term] = [Hold(strength, anchor) if self.implicit else Pull(strength, anchor), Lasso(prices)]
        for key, theta in kept.get("past", {}).items():
            rows = [torch.zeros(space.size) for _ in range(2)]
            rows[0][space.segments[BASE]] = self._scale(earlier[key])
            rows[1][space.segments[BASE]] = theta
            terms.append(Capped(self.past, self.l1, *rows))
        return tuple(terms)

    def _followed(self, base: Tensor, kept: Mapping[str, Any], earlier: Mapping[Key, Entry]) -> dict[Key, Part]:
        """With ``retroactive`` the earlier tasks' entries with the best parts for this base: the remainders of theta_j,
        less by ``l1 / past`` and no further than 0."""
        found = {}
        for key, theta in kept.get("past", {}).items():
            entry = earlier[key]
            part = torch.nn.functional.softshrink(theta - base * self._scale(entry), self.l1 / self.past)
            pieces = [part if segment == ADAPTIVE else self._piece(entry, segment) for segment in OWN]
            found[key] = Part(torch.cat(pieces), entry.buffers, entry.extra)
        return found

    # ---- what serves ----------------------------------------------------------------------------------------

    def candidates(self, bank: Bank, target: Mapping[str, Any]) -> Sequence[tuple[Key, ...]]:
        """The models of all clients that learnt a task (on a stream of concepts: a concept), or of one client."""
        task, client = target.get("task", target.get("concept")), target.get("client")
        found = []
        for key in bank.entries:
            if key.startswith("own/"):
                i, t = numbers_of(key)
                if task in (None, t) and client in (None, i):
                    found.append((f"{BASE}/{i}", key, *borrowed(bank, key)))
        return found

    def compose(self, bank: Bank, keys: tuple[Key, ...]) -> Served:
        """The client's base with its part, its small numbers left out, and all that it borrows added to that."""
        base, own, *pool = keys
        entry = bank[own]
        pieces = {segment: self._piece(entry, segment) for segment in OWN}
        part = pieces[ADAPTIVE]
        part = torch.where(part.abs() > self.threshold, part, 0.0)
        if pool:
            part = part + self.layout.mixed(pieces[ATTENTION], self._parts(bank.entries, pool))
        vector = self.world.models[entry.model].space.join({**pieces, BASE: bank[base].vector, ADAPTIVE: part})
        return Served(entry.model, vector, entry.buffers)
