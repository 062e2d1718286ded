"""`Learned`: gossip whose contacts follow similarities that clients measure, estimate and publish."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Annotated, Any, Literal, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from .. import registry
from ..bank import Bank, Entry, Key, Value
from ..learners.base import Learner
from ..messages import Client, World
from ..randomness import Moment
from ..requests import Request, Score, Served
from ..server.base import Mean, ServerOptimizer
from .awareness import NOTHING, Noticed, OnShift, no_alarms, notice, read_alarms, told, watched
from .base import Finetune, Gossip, Initial, LossMean, Offline, Per, Segment
from .detectors import Detector
from .graphs import belong
from .similarities import MOST_CLIENTS, PUBLISHED, Rising, Similarities, draw, two_hop
from .topologies import Topology

Temperature = Annotated[float, Field(ge=0, allow_inf_nan=False)] | Rising
Clip = Annotated[float, Field(gt=0, allow_inf_nan=False)] | None
Unknown = Literal["uniform", "zero"]
Kept = Annotated[int, Field(ge=1)] | None
Rule = Callable[[Entry, Entry, Score], float]
LARGEST = float(torch.finfo(torch.float32).max)


class Learned(Gossip):
    """Clients keep a similarity to every other one and publish it with their model.

    ``temperature`` and ``clip``: contacts are drawn in proportion to ``exp(temperature * s)`` with s cut to [0, clip]
    (without a clip not at all: a negative score of one's own is then less likely than an unknown client);
    a rising temperature, ``{a: 30, b: 0.2}``, is 1 in the first two rounds, where nothing or little is known.
    ``initial_similarity``: that to a client of which nothing is known, 1 / (K - 1) or 0. ``two_hop``: similarities to
    clients that were never contacted are taken over from the most similar contact. ``score`` is the rule by which a
    peer is scored, ``inverse-loss`` or a function of one's own by import path, ``(own, peer, found)`` with both
    entries and the `Score` of the peer's model on the client's training rows. ``kept``: at most so many
    similarities are kept and published, the largest; the others count as unknown.

    Whom a client ever contacted is its private state, and stays there when data shift, unless clients are aware.

    ``awareness`` is a detector that is shown the loss of the client's own model at the start of each round; without one
    nobody notices a shift. After an alarm all similarities of the client are old, and its alarm travels with its model,
    and on with the models of those that hear of it: their numbers about this client are old, too. ``on_shift`` says
    what becomes of them: ``forget`` takes them away, and whom they are about counts as never contacted; ``age``
    multiplies them by ``aging``, and the next measurement or estimate takes their place. Nobody takes an old number for
    an estimate by two hops; from its first alarm on a client says nothing of those that it does not know.
    """

    def __init__(
        self,
        world: World,
        learner: Learner,
        mean: Mean,
        server: ServerOptimizer,
        *,
        temperature: Temperature,
        clip: Clip,
        initial_similarity: Unknown,
        two_hop: bool,
        score: str,
        kept: Kept,
        per: Per,
        initial: Initial,
        topology: Topology | None,
        offline: Offline,
        finetune: Finetune,
        segment: Segment,
        loss_mean: LossMean,
        probes: bool,
        awareness: Detector | None = None,
        on_shift: OnShift = "forget",
        aging: float = 0.5,
    ) -> None:
        super().__init__(
            world,
            learner,
            mean,
            server,
            per=per,
            initial=initial,
            topology=topology,
            offline=offline,
            finetune=finetune,
            segment=segment,
            loss_mean=loss_mean,
            probes=probes,
        )
        if world.clients > MOST_CLIENTS:
            raise ValueError(f"similarities are kept of at most {MOST_CLIENTS:,} clients; got {world.clients:,}")
        self.temperature = temperature
        self.clip = clip
        self.unknown = 1 / max(1, world.clients - 1) if initial_similarity == "uniform" else 0.0
        self.two_hop = two_hop
        self.rule = cast(Rule, registry.find("score", score, "score"))
        try:
            inspect.signature(self.rule).bind(None, None, None)
        except TypeError as error:
            raise ValueError(f"score: {score} is called with (own, peer, found): {error}") from None
        self.kept = kept
        self.awareness = awareness
        self.on_shift = on_shift
        self.aging = aging

    def start(self) -> Bank:
        """All entries, which publish that nothing is known yet."""
        bank = super().start()
        nothing = {PUBLISHED: Similarities.of({}).tensor(), **({} if self.awareness is None else no_alarms())}
        return bank.put({key: entry.new(extra=nothing) for key, entry in bank.entries.items()})

    def alike(self, own: Entry, when: Moment, client: int, eligible: np.ndarray, count: int) -> list[int]:
        """``count`` of the eligible clients by similarity, from what the client itself published last."""
        t = self.temperature
        # The papers count rounds from 0, and a round's draws use the temperature of the one before.
        now = t.at(max(0, when.round - 2)) if isinstance(t, Rising) else t
        rng = when.random("contacts/similar", client)
        return draw(rng, eligible, Similarities.read(own, self.unknown), count, now, self.clip)

    def scored(
        self, client: Client, mine: Entry, peers: Mapping[int, Entry]
    ) -> Generator[Request, Any, dict[int, float]]:
        """The score of each peer's model on the client's training rows."""
        found = yield from self.scores([Served.of(peer) for peer in peers.values()], client.train)
        scores = {j: float(self.rule(mine, peer, f)) for (j, peer), f in zip(peers.items(), found, strict=True)}
        # As they are stored, in float32.
        odd = {j: score for j, score in scores.items() if not abs(score) <= LARGEST}
        if odd:
            raise ValueError(f"a score is a finite number of at most {LARGEST:.1e}; got {odd} by client")
        return scores

    def noticed(
        self, client: Client, key: Key, mine: Entry, peers: Mapping[int, Entry]
    ) -> Generator[Request, Any, Noticed | None]:
        """What the client knows of shifts in this round, its own and those that its contacts tell; ``None`` if it is
        not aware of any."""
        if self.awareness is None:
            return None
        (found,) = yield from self.scores((Served.of(mine),), watched(self.awareness, client))
        return notice(self.awareness, client, key, mine, peers, found.loss, self.kept)

    def learnt(
        self,
        client: Client,
        mine: Entry,
        peers: Mapping[int, Entry],
        measured: Mapping[int, float],
        settled: np.ndarray,
        noticed: Noticed | None = None,
    ) -> tuple[Similarities, np.ndarray]:
        """The client's similarities after it measured these, with estimates for those outside ``settled``; and the ids
        of those that are aged."""
        own, aged = Similarities.read(mine, self.unknown), NOTHING
        if noticed is not None:
            stale = noticed.stale(own.ids)
            if self.on_shift == "forget":
                own = own.without(stale)
            else:
                own = own.times(self.aging, stale)
                aged = np.setdiff1d(np.union1d(noticed.aged, stale), list(measured)).astype(np.int64)
        known = own.joined(Similarities.of(measured))
        if self.two_hop:
            theirs, mute = {}, {}
            for j in measured:
                theirs[j] = Similarities.read(peers[j], self.unknown)
                if noticed is not None:
                    mute[j] = noticed.mute(peers[j], theirs[j])
                    if j in read_alarms(peers[j]).ids:
                        theirs[j] = Similarities.read(peers[j])
            fixed = np.union1d(np.setdiff1d(settled, aged), [client.id])
            found = two_hop(known, theirs, measured, fixed, mute)
            old = known.values_of(aged)
            aged = aged[belong(aged, found.ids) & (found.values_of(aged) == old)]
            known = found
        return known, aged

    def published(
        self, similarities: Similarities, noticed: Noticed | None = None, aged: np.ndarray = NOTHING
    ) -> dict[str, Tensor]:
        """What goes into the entry."""
        kept = similarities.largest(self.kept)
        alarms = {} if noticed is None else told(noticed.alarms, aged[belong(aged, kept.ids)])
        return {PUBLISHED: kept.tensor(), **alarms}

    def remembered(self, before: np.ndarray, noticed: Noticed | None) -> np.ndarray:
        """Whom the client ever contacted, without those that it forgets."""
        if noticed is None or self.on_shift == "age":
            return before
        kept: np.ndarray = before[:, ~belong(before[0], noticed.stale(before[0]))]
        return kept

    @staticmethod
    def said(noticed: Noticed | None) -> dict[str, Any]:
        """The note on a round: whether the client alarmed."""
        return {} if noticed is None else {"alarm": noticed.alarm}

    @staticmethod
    def contacted(client: Client, key: Key) -> np.ndarray:
        """Whom the client ever contacted, and how often: int64 ``[2, k]``, sorted by client."""
        stored = client.state.get(_state_name(key))
        return stored.numpy().astype(np.int64) if isinstance(stored, Tensor) else np.zeros((2, 0), np.int64)

    @staticmethod
    def counted(key: Key, before: np.ndarray, contacts: Sequence[int]) -> dict[str, Value]:
        """The private state after further contacts; one that was drawn in two ways counts twice."""
        ids, places = np.unique(np.append(before[0], np.array(contacts, np.int64)), return_inverse=True)
        counts = np.bincount(places, weights=np.append(before[1], np.ones(len(contacts))), minlength=len(ids))
        return {_state_name(key): torch.from_numpy(np.stack([ids, counts]).astype(np.int32))}


def _state_name(key: Key) -> str:
    return f"gossip/contacted/{key}"
