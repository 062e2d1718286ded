"""PENS: first find out which peers are often the best on the client's own rows, then mix with those.

Paper: Onoszko et al., "Decentralized federated learning of deep neural networks on non-iid data" (2021), and the
authors' code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from ..bank import Entry, Key, Value
from ..gossip.awareness import judged, watched
from ..gossip.base import KEPT, Contacts, Finetune, Gossip, Initial, LossMean, Meeting, Met, Offline, Per, Segment, some
from ..gossip.detectors import Detector
from ..gossip.topologies import Topology
from ..learners.base import Learner
from ..messages import Assignment, Client, Participant, World
from ..randomness import Moment
from ..requests import Served
from ..server.base import Mean, ServerOptimizer

SELECTED = f"{KEPT}selected"
"""In ``Entry.server``: float32 ``[2, k]``, ids of peers in ascending order, and how often each was among the best."""
COUNTED = f"{KEPT}counted"
"""In ``Entry.server``: float32 ``[1]``, the last round in which the client counted: whoever misses the first round of a
new selection must not go on with the counts of the one before."""
BEGAN = f"{KEPT}began"
"""In ``Entry.server``: float32 ``[1]``, the last round before the client's present selection; not there: 0."""

OWN = "pens"
"""In the private state: the three for each of the client's entries. Its program counts on from these, for
``Entry.server`` does not go to another process; the draws are made from ``Entry.server``."""


class Pens(Gossip):
    """Two phases. Selection, for ``selection_rounds`` rounds: ``drawn_peers`` neighbours are drawn uniformly, and the
    client mixes its model with the ``best`` of them, whose models lose least on its training rows. Then gossip: it
    mixes with ``contacts`` peers, drawn uniformly among those that were among the best more often than expected.

    With c selections in all and K - 1 neighbours a peer is expected c / (K - 1) times. ``threshold``: ``expected``; one
    less than that, as in the ``authors`` code; or ``all-clients``, c / K, as in DAC's port of it. Nobody above it: all
    neighbours. ``reselect_every``: selection begins anew, with all counts at 0, every so many rounds (more than
    ``selection_rounds``); without it the choice is never made again, whatever becomes of the data. With ``awareness``,
    a detector that is shown the loss of the client's own model at the start of each round, a client selects anew after
    each alarm of its own: from that round on, if it was selecting anyway, else from the next one on.

    Deviations: the authors' code scores the client's own model on the peer's rows, by accuracy; here the peer's
    model is scored on the client's rows, by loss, so that no rows are needed elsewhere. It updates clients one
    after another within a round; here all read the models of the round's start. It trains longer in the selection
    phase, and starts every client from a model of its own (``initial: own``), without a warm-up.
    """

    def __init__(
        self,
        world: World,
        learner: Learner,
        mean: Mean,
        server: ServerOptimizer,
        *,
        drawn_peers: Contacts = 10,
        best: Contacts = 2,
        selection_rounds: Contacts = 20,
        contacts: Contacts = 20,
        threshold: Literal["expected", "authors", "all-clients"] = "expected",
        reselect_every: Annotated[int, Field(ge=2)] | None = None,
        per: Per = "all",
        initial: Initial = "same",
        topology: Topology | None = None,
        offline: Offline = "unreachable",
        finetune: Finetune = "off",
        segment: Segment = "classifier",
        loss_mean: LossMean = "rows",
        probes: bool = False,
        awareness: Detector | None = None,
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
        if best > drawn_peers:
            raise ValueError(f"best: at most as many as drawn_peers, {drawn_peers}; got {best}")
        if reselect_every is not None and reselect_every <= selection_rounds:
            raise ValueError(
                f"reselect_every counts the rounds of both phases and must be above selection_rounds, "
                f"{selection_rounds}; got {reselect_every}"
            )
        self.drawn_peers = drawn_peers
        self.best = best
        self.selection_rounds = selection_rounds
        self.contacts = contacts
        self.threshold = threshold
        self.reselect_every = reselect_every
        self.awareness = awareness

    def drawn(
        self, own: Entry, when: Moment, seat: Participant, eligible: np.ndarray, seats: Mapping[int, Participant]
    ) -> dict[str, list[int]]:
        """Peers to be scored, or contacts among those that were selected."""
        rng = when.random("contacts/random", seat.id)
        if self._at(own.server, when.round) < self.selection_rounds:
            return {"random": some(rng, eligible, self.drawn_peers), "similar": []}
        chosen = self.chosen(own, self.graph(when.round).degree(seat.id))
        if not len(chosen) or not self._counts(own.server, when.round):
            return {"random": some(rng, eligible, self.contacts), "similar": []}
        return {"random": [], "similar": some(rng, np.intersect1d(chosen, eligible), self.contacts)}

    def chosen(self, own: Entry, degree: int) -> np.ndarray:
        """The peers that were among the best more often than the threshold; ``degree`` is K - 1."""
        ids, counts = _selected(own.server)
        total = float(counts.sum())
        expected = total / (degree + 1 if self.threshold == "all-clients" else max(1, degree))
        chosen: np.ndarray = ids[counts > expected - (self.threshold == "authors")]
        return chosen

    def meet(self, key: Key, mine: Entry, given: Assignment, client: Client) -> Meeting:
        """The mix with the best of those that were drawn, or with all contacts."""
        counts_of = client.state.get(OWN, {})
        assert isinstance(counts_of, Mapping)
        held: Mapping[str, Any] = counts_of.get(key, {})
        at = self._at(held, client.when.round)
        alarm, state, said = False, dict[str, Value](), dict[str, Any]()
        if self.awareness is not None:
            (own,) = yield from self.scores((Served.of(mine),), watched(self.awareness, client))
            alarm, state = judged(self.awareness, client, key, mine, own.loss)
            said = {"alarm": alarm}
        if at >= self.selection_rounds:
            met = yield from super().meet(key, mine, given, client)
            anew = {BEGAN: torch.tensor([float(client.when.round)]), SELECTED: torch.zeros((2, 0))} if alarm else {}
            if anew:
                state = {**state, OWN: {**counts_of, key: {**held, **anew}}}
            return replace(met, extra={**met.extra, **anew}, state=state, note=said)
        peers = self.peers(given, given.note["random"])
        found = yield from self.scores([Served.of(peer) for peer in peers.values()], client.train)
        losses = {j: score.loss if np.isfinite(score.loss) else np.inf for j, score in zip(peers, found, strict=True)}
        best = sorted(sorted(peers, key=lambda j: (losses[j], j))[: self.best])
        # At an alarm the losses are those of the new rows already.
        going = self._counts(held, client.when.round) and not alarm
        ids, counts = _selected(held) if going else (np.zeros(0), np.zeros(0))
        every, places = np.unique(np.append(ids, best), return_inverse=True)
        sums = np.bincount(places, weights=np.append(counts, np.ones(len(best))), minlength=len(every))
        table: Tensor = torch.from_numpy(np.stack([every, sums]).astype(np.float32))
        extra = {SELECTED: table, COUNTED: torch.tensor([float(client.when.round)])}
        if alarm:
            extra[BEGAN] = torch.tensor([client.when.round - 1.0])
        state = {**state, OWN: {**counts_of, key: {**held, **extra}}}
        return Met(self.mixed(client, mine, {j: peers[j] for j in best}), extra, state, {"similar": best, **said})

    def _at(self, held: Mapping[str, Tensor], round: int) -> int:
        """How many rounds the client's present selection is old."""
        began = held.get(BEGAN)
        age = round - 1 - (0 if began is None else int(began))
        return age % self.reselect_every if self.reselect_every else age

    def _counts(self, held: Mapping[str, Tensor], round: int) -> bool:
        """Whether the client's counts are of its present selection."""
        counted = held.get(COUNTED)
        return counted is not None and int(counted) >= round - self._at(held, round)


def _selected(held: Mapping[str, Tensor]) -> tuple[np.ndarray, np.ndarray]:
    stored = held.get(SELECTED)
    if stored is None:
        return np.zeros(0, np.int64), np.zeros(0)
    return stored[0].numpy().astype(np.int64), stored[1].numpy().astype(np.float64)
