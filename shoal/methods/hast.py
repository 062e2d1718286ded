"""HAST: all layers from peers drawn at random, the classifier from peers with similar data.

Paper: "Concept-aware clustering for decentralized deep learning under temporal shift" (arXiv 2306.12768), and the
authors' code where the paper is silent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from ..bank import Entry, Key
from ..gossip.awareness import Aging, OnShift
from ..gossip.base import Contacts, Finetune, Initial, LossMean, Meeting, Met, Offline, Per, Segment, some
from ..gossip.detectors import Detector
from ..gossip.learned import Clip, Kept, Learned, Temperature, Unknown
from ..gossip.similarities import Similarities
from ..gossip.topologies import Topology
from ..learners.base import Learner
from ..messages import Assignment, Client, Participant, World
from ..randomness import Moment
from ..server.base import Mean, ServerOptimizer


class Hast(Learned):
    """Two sets of ``contacts`` neighbours each: R drawn uniformly, S by similarity (they may overlap).

    First all layers are mixed with those of R, weighted by rows, and the similarities to R are measured, with estimates
    by two hops; then the ``segment`` of this mix with that of S. After the local training the segment is fine-tuned,
    which is kept if the loss on the validation rows falls.

    ``similar_losses``: what the models of S lose on the client's rows is ``discarded``, as in the authors' code, or
    ``used`` to refresh the similarities (a second look at the rows for those that are not in R). ``random_phase``: the
    mix with R is of ``all`` layers, or of the ``others`` than the segment, an option of the authors' code.

    S is drawn from the similarities of the round's start. Its clients count as contacted once the round's estimates by
    two hops are made: one that was never in R keeps the number that it has then, perhaps a new one, and gets no other,
    as in the authors' code (unless it was drawn by a number that this round's alarms take away).
    """

    mixes_segment: ClassVar[bool] = True

    def __init__(
        self,
        world: World,
        learner: Learner,
        mean: Mean,
        server: ServerOptimizer,
        *,
        contacts: Contacts = 3,
        similar_losses: Literal["discarded", "used"] = "discarded",
        random_phase: Literal["all", "others"] = "all",
        temperature: Temperature = 30.0,
        clip: Clip = 20.0,
        initial_similarity: Unknown = "uniform",
        two_hop: bool = True,
        score: str = "inverse-loss",
        kept: Kept = 512,
        per: Per = "all",
        initial: Initial = "same",
        topology: Topology | None = None,
        offline: Offline = "unreachable",
        finetune: Finetune = "if_better",
        segment: Segment = "classifier",
        loss_mean: LossMean = "rows",
        probes: bool = False,
        awareness: Detector | None = None,
        on_shift: OnShift = "forget",
        aging: Aging = 0.5,
    ) -> None:
        super().__init__(
            world,
            learner,
            mean,
            server,
            temperature=temperature,
            clip=clip,
            initial_similarity=initial_similarity,
            two_hop=two_hop,
            score=score,
            kept=kept,
            per=per,
            initial=initial,
            topology=topology,
            offline=offline,
            finetune=finetune,
            segment=segment,
            loss_mean=loss_mean,
            probes=probes,
            awareness=awareness,
            on_shift=on_shift,
            aging=aging,
        )
        self.contacts = contacts
        self.similar_losses = similar_losses
        self.random_phase: Literal["all", "others"] = random_phase

    def drawn(
        self, own: Entry, when: Moment, seat: Participant, eligible: np.ndarray, seats: Mapping[int, Participant]
    ) -> dict[str, list[int]]:
        """R and S."""
        rng = when.random("contacts/random", seat.id)
        return {
            "random": some(rng, eligible, self.contacts),
            "similar": self.alike(own, when, seat.id, eligible, self.contacts),
        }

    def meet(self, key: Key, mine: Entry, given: Assignment, client: Client) -> Meeting:
        """Both mixes, and the similarities."""
        met, near = given.note["random"], given.note["similar"]
        random, similar = self.peers(given, met), self.peers(given, near)
        measured = yield from self.scored(client, mine, random)
        noticed = yield from self.noticed(client, key, mine, {**random, **similar})
        before = self.remembered(self.contacted(client, key), noticed)
        similarities, aged = self.learnt(client, mine, random, measured, np.union1d(before[0], met), noticed)
        if self.similar_losses == "used":
            more = yield from self.scored(client, mine, {j: peer for j, peer in similar.items() if j not in random})
            similarities = similarities.joined(Similarities.of(more))
            aged = np.setdiff1d(aged, list(more)).astype(np.int64)
        start = self.mixed(client, mine, random, self.random_phase)
        mixed = mine.new(vector=start.vector, buffers=start.buffers)
        start = self.mixed(client, mixed, similar, "segment")
        if noticed is not None and self.on_shift == "forget" and self.similar_losses == "discarded":
            near = noticed.after(near)  # nothing is known of the others any more, so they are open to estimates
        state = {**self.counted(key, before, [*met, *near]), **(noticed.state if noticed else {})}
        return Met(start, self.published(similarities, noticed, aged), state, self.said(noticed))
