"""`Gossip`: the round of one client in a method without a server, whom it contacts and what it keeps left open."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from ..bank import Bank, Entry, Key, Value
from ..learners.base import Learner
from ..messages import Assignment, Client, Group, Part, Participant, Update, World, grouped
from ..methods.base import Method, Program, merge_buffers
from ..randomness import Moment
from ..requests import Evaluate, Probe, Request, Score, Served
from ..server.base import Mean, ServerOptimizer
from ..server.fednova import FedNova
from ..server.means import Weighted
from .graphs import Graph
from .topologies import Rounds, Topology

Contacts = Annotated[int, Field(ge=1)]
Per = Literal["all", "task"]
Initial = Literal["same", "own"]
Offline = Literal["unreachable", "reachable"]
Segment = str | Annotated[list[str], Field(min_length=1)]
Mixed = Literal["all", "segment", "others"]
LossMean = Literal["rows", "batches"]
# YAML reads a bare off as false.
Finetune = Annotated[
    Literal["if_better", "always", "off"], BeforeValidator(lambda given: "off" if given is False else given)
]

PUBLISHED, KEPT = "gossip/", "kept/"
"""Beginnings of names in ``Part.extra``: what goes into ``Entry.extra``, for peers to read, and what into
``Entry.server``, for the client's own draws alone."""


@dataclass(frozen=True)
class Met:
    """What a client has after its contacts: the model that it trains from, and what it notes.

    ``extra`` goes into the entry (see `PUBLISHED`, `KEPT`), ``state`` into the private state, ``note`` into the update.
    """

    start: Served
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    state: Mapping[str, Value] = field(default_factory=dict)
    note: Mapping[str, Any] = field(default_factory=dict)


Meeting = Generator[Request, Any, Met]


class Gossip(Method):
    """Each client has a model of its own, ``client/i``; it mixes it with those of the peers it contacts, and trains it.

    Everyone reads the models as they were at the start of the round. A warm-up of local training comes first (round 0,
    without contacts and fine-tuning). What stands for a client is its ``Entry.weight``, the rows behind the model; one
    that never trained has none and is left out of every mix. Of equal models the mix is that model, bit for bit.

    ``per: task`` keeps a model per client and task, ``client/i/task/t``, mixed with peers' models of the same task.
    ``initial``: all models start the ``same`` (for each task) or each on its ``own``. ``topology`` says who can be
    contacted at all. ``offline``: a client that does not take part in a round is ``unreachable``, or its last model is
    still ``reachable``; who will be late or crash in the round cannot be known, and is contacted. ``finetune`` trains
    the ``segment`` alone once more after the local training, with the same learner and a new optimiser: ``always``, or
    kept ``if_better`` on the validation rows (without any it is not tried). ``loss_mean``: losses that are compared
    are means over ``rows``, or over ``batches`` of ``local.batch_size`` (the mean of their means). ``probes``: models
    are measured on the client's test rows ``before`` the contacts, once ``mixed``, and ``trained``.

    ``mean`` is how models are mixed. ``server`` is each client's own: its step begins at the mixed model, and its
    pseudo-gradient is the trained model minus the mixed one (`Part.base`), so that the mix itself enters no moments.
    """

    serverless: ClassVar[bool] = True
    warmup = 1
    mixes_segment: ClassVar[bool] = False
    """Whether the segment is mixed by itself; else it is needed for the fine-tuning alone."""

    def __init__(
        self,
        world: World,
        learner: Learner,
        mean: Mean,
        server: ServerOptimizer,
        *,
        per: Per = "all",
        initial: Initial = "same",
        topology: Topology | None = None,
        offline: Offline = "unreachable",
        finetune: Finetune = "off",
        segment: Segment = "classifier",
        loss_mean: LossMean = "rows",
        probes: bool = False,
    ) -> None:
        # The one answer for an entry is its own client's: the configured mean is for mixing.
        super().__init__(world, learner, Weighted(), server)
        if isinstance(mean, FedNova):
            raise ValueError("mean fednova divides by local steps, and peers mix models; use weighted or another mean")
        if getattr(mean, "needs_server", False):
            raise ValueError(f"mean {type(mean).__name__} needs a server, and peers have none; use weighted or uniform")
        if per == "task" and not world.tasks:
            raise ValueError("per: 'task' needs a stream with tasks; this stream has none. Use per: all")
        self.mixing = mean
        self.per = per
        self.initial_models = initial
        self.graphs = None if topology is None else Rounds(topology, world.clients, world.seed)
        self.offline = offline
        self.finetune = finetune
        self.reads_validation = finetune == "if_better"
        self.segments = (segment,) if isinstance(segment, str) else tuple(segment)
        self.loss_mean = loss_mean
        self.probes = probes
        if self.mixes_segment or finetune != "off":
            for name in dict.fromkeys(self._models()):
                _check_segments(self.segments, name, world)

    @classmethod
    def keeps_task_models(cls, settings: Mapping[str, Any]) -> bool:
        """With ``per: task``."""
        return settings.get("per") == "task"

    # ---- what a kind says -----------------------------------------------------------------------------------

    def drawn(
        self, own: Entry, when: Moment, seat: Participant, eligible: np.ndarray, seats: Mapping[int, Participant]
    ) -> dict[str, list[int]]:
        """The contacts of one client among ``eligible``, by the way in which they are drawn: ``random``, ``similar``
        and, by an oracle, ``truth``.

        ``own`` is its entry, ``eligible`` sorted ids; ``when`` does not tell exchanges apart. Runs before any training.
        """
        return {"random": [], "similar": []}

    def meet(self, key: Key, mine: Entry, given: Assignment, client: Client) -> Meeting:
        """The mix of the client's own model with those of all contacts."""
        peers = dict.fromkeys(j for drawn in given.note.values() for j in drawn)
        yield from ()  # a generator, as others ask for losses
        return Met(self.mixed(client, mine, self.peers(given, peers)))

    # ---- the rounds -----------------------------------------------------------------------------------------

    def key(self, client: int, task: int | None) -> Key:
        """The key of a client's model."""
        if self.per == "all":
            return f"client/{client}"
        if task is None:
            raise ValueError("per: 'task' needs clients that know their task; this stream does not tell them")
        return f"client/{client}/task/{task}"

    def _models(self) -> tuple[str, ...]:
        """The architecture of each of a client's entries."""
        if self.per == "all":
            return ("main",)
        return self.world.task_models or ("main",) * self.world.tasks

    def start(self) -> Bank:
        """One entry per client, or per client and task."""
        entries: dict[Key, Entry | None] = {}
        for task, model in enumerate(self._models()):
            name = "client" if self.per == "all" else f"client/task/{task}"
            first = self.initial(name, model)
            for client in range(self.world.clients):
                key = self.key(client, task)
                entries[key] = first.new() if self.initial_models == "same" else self.initial(key, model)
        return Bank().put(entries)

    def assign(self, bank: Bank, when: Moment, clients: Sequence[Participant]) -> Iterable[Assignment]:
        """The models of the contacts, which are noted by the way in which they were drawn; none in the warm-up."""
        seats = {seat.id: seat for seat in clients}
        everyone = self.offline == "reachable"
        present = np.arange(self.world.clients) if everyone else np.array(sorted(seats), dtype=np.int64)
        graph = self.graph(max(1, when.round))
        # One round, one draw: a learner with two exchanges meets the same peers in both.
        moment = Moment(when.seed, when.round)
        for seat in clients:
            key = self.key(seat.id, seat.task)
            note: dict[str, list[int]] = {"random": [], "similar": []}
            if when.round > 0:
                note = self.drawn(bank.entries[key], moment, seat, graph.among(seat.id, present), seats)
            peers = dict.fromkeys(j for drawn in note.values() for j in drawn)
            yield Assignment(seat.id, tuple(self.key(j, seat.task) for j in peers), (key,), seat.times, note)

    def train(self, given: Assignment, client: Client) -> Program:
        """Contacts and mixing, local training, fine-tuning."""
        (key,) = given.own
        mine = given.entries[key]
        first = client.when.exchange == 0
        last = client.when.exchange == max(self.exchanges, self.learner.exchanges) - 1
        probing = self.probes and client.when.round > 0
        start, met = self.join([mine]), None
        if probing and first:
            yield Probe("before", start)
        if client.when.round > 0:
            met = yield from self.meet(key, mine, given, client)
            start = met.start
        if probing and first:
            yield Probe("mixed", start)
        note: dict[str, Any] = dict(given.note)
        note.update((yield from self.report(start, client)))
        part, state = yield from self.learner.fit(key, start, mine, client)
        if met is not None and last:
            note.update(met.note)
            part, more, tuned = yield from self._tuned(key, mine, start, part, client)
            note.update(tuned)
            part = replace(part, extra={**part.extra, **met.extra}, base=None if part.vector is None else start.vector)
            state = {**state, **more, **met.state}
            if probing and part.vector is not None:
                yield Probe("trained", Served(start.model, part.vector, part.buffers))
        return Update({key: part}, weight=len(client.train), state=state, note=note)

    def _tuned(
        self, key: Key, mine: Entry, start: Served, part: Part, client: Client
    ) -> Generator[Request, Any, tuple[Part, dict[str, Value], dict[str, Any]]]:
        """The part after the fine-tuning, the learner's private state where it was kept, and a note on it.

        ``start`` is the model that drift is measured from. The learner's terms (a proximal one) hold here, too.
        """
        judged = self.finetune == "if_better"
        if self.finetune == "off" or part.vector is None or (judged and not len(client.validation)):
            return part, {}, {}
        before = Served(start.model, part.vector, part.buffers)
        # The moments that are kept are those of the whole model's training.
        alone = {"segments": self.segments, "since": start.vector, "purpose": "finetune", "slots": None}
        tuned, state = yield from self.learner.fit(key, before, mine, client, **alone)
        if tuned.vector is None:
            return part, {}, {}
        after = Served(start.model, tuned.vector, tuned.buffers)
        note: dict[str, Any] = {"finetuned": True}
        if judged:
            old, new = yield from self.scores((before, after), client.validation)
            note = {"finetuned": new.loss < old.loss, "validation_losses": [old.loss, new.loss]}
        if not note["finetuned"]:
            return part, {}, note
        return replace(part, vector=tuned.vector, buffers=tuned.buffers), state, note

    def merge(self, bank: Bank, updates: Sequence[Update], when: Moment) -> Bank:
        """Every client's entry by its own server step, with what it publishes and keeps."""
        changes: dict[Key, Entry | None] = {}
        for key, group in grouped(updates).items():
            (part,) = group.parts
            old = bank.entries[key]
            # The rows behind a model are no more for a client that was drawn twice.
            once = replace(group, weights=(group.weights[0] / part.times,))
            published = {name: t for name, t in part.extra.items() if name.startswith(PUBLISHED)}
            kept = {name: t for name, t in part.extra.items() if name.startswith(KEPT)}
            entry = self.merge_entry(key, old, once, when, published)
            changes[key] = entry.new(server={**entry.server, **kept})
        return bank.put(changes)

    def candidates(self, bank: Bank, target: Mapping[str, Any]) -> Sequence[tuple[Key, ...]]:
        """The client's model, or the one for the task; of a target that names no client, everybody's."""
        clients = range(self.world.clients) if target.get("client") is None else [target["client"]]
        tasks = range(len(self._models())) if target.get("task") is None else [target["task"]]
        keys = dict.fromkeys(self.key(client, task) for client in clients for task in tasks)
        return [(key,) for key in keys]

    # ---- what helps in saying it ----------------------------------------------------------------------------

    def graph(self, round: int) -> Graph:
        """Who is whose neighbour in a round."""
        return Graph(self.world.clients) if self.graphs is None else self.graphs.at(round)

    def peers(self, given: Assignment, clients: Iterable[int]) -> dict[int, Entry]:
        """The entries of these contacts."""
        (own,) = given.own
        ending = own.removeprefix(f"client/{given.client}")
        return {j: given.entries[f"client/{j}{ending}"] for j in clients}

    def mixed(self, client: Client, mine: Entry, peers: Mapping[int, Entry], segments: Mixed = "all") -> Served:
        """The mean of the client's own model and the peers', weighted by rows.

        ``segments``: ``all`` mixes whole models with their buffers; ``segment`` the configured segment and ``others``
        everything else, with the buffers left as they are. The own model is in every mix but that of whole models
        before it was ever trained.
        """
        models = {j: peer for j, peer in peers.items() if peer.weight > 0}
        if not models:
            return Served.of(mine)
        if mine.weight > 0:
            models[client.id] = mine
        elif segments != "all":
            models[client.id] = mine.new(weight=float(len(client.train)))
        # By number, so that clients that mix the same models get the same bits.
        order = sorted(models)
        slices = self._slices(mine.model, segments)
        cut = [_cut(models[j].vector, slices) for j in order]
        parts = tuple(Part(vector, models[j].buffers, client=j) for j, vector in zip(order, cut, strict=True))
        group = Group(parts, tuple(models[j].weight for j in order))
        mean = self.mixing.combine(mine.new(vector=_cut(mine.vector, slices)), group)
        if segments == "all":
            return Served(mine.model, mean, merge_buffers(mine.buffers, group, self.mixing.weights(group)))
        vector, offset = mine.vector.clone(), 0
        for s in slices:
            vector[s] = mean[offset : offset + s.stop - s.start]
            offset += s.stop - s.start
        return Served(mine.model, vector, mine.buffers)

    def _slices(self, model: str, segments: Mixed) -> list[slice]:
        """The places in the vector that are mixed."""
        space = self.world.models[model].space
        found = space.slices(None if segments == "all" else self.segments)
        if segments != "others":
            return found
        ends = [0, *(end for s in found for end in (s.start, s.stop)), space.size]
        return [slice(a, b) for a, b in zip(ends[::2], ends[1::2], strict=True) if b > a]

    def scores(self, models: Sequence[Served], rows: Tensor) -> Generator[Request, Any, list[Score]]:
        """The models' losses on the rows, with the mean that is configured (`loss_mean`)."""
        if not models:
            return []
        size = self.learner.local.batch_size
        full = len(rows) // size
        if self.loss_mean == "rows" or not full or not len(rows) % size:
            found: list[Score] = yield Evaluate(tuple(models), rows)
            return found
        # The mean of full batches' means is the mean over their rows.
        most = yield Evaluate(tuple(models), rows[: full * size])
        rest = yield Evaluate(tuple(models), rows[full * size :])
        shares = full / (full + 1), 1 / (full + 1)
        return [
            Score(shares[0] * a.loss + shares[1] * b.loss, shares[0] * a.accuracy + shares[1] * b.accuracy, len(rows))
            for a, b in zip(most, rest, strict=True)
        ]


def _cut(vector: Tensor, slices: Sequence[slice]) -> Tensor:
    """The vector's coordinates in these places."""
    return vector[slices[0]] if len(slices) == 1 else torch.cat([vector[:0], *(vector[s] for s in slices)])


def some(rng: np.random.Generator, eligible: np.ndarray, count: int) -> list[int]:
    """``count`` of these clients, uniformly and without replacement, sorted; all where there are no more."""
    return sorted(int(j) for j in rng.choice(eligible, min(count, len(eligible)), replace=False))


def _check_segments(segments: Sequence[str], model: str, world: World) -> None:
    space = world.models[model].space
    known = [*space.segments, "head"]
    unknown = [name for name in segments if name not in known]
    if unknown:
        raise ValueError(
            f"segment: model {model!r} has no segment {unknown[0]!r}; it has {known}. Other depths are made with "
            f"model.segments"
        )
