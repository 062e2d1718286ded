"""DAC: contacts drawn by how well a peer's model does on the client's own rows.

Paper: Listo Zec et al., "Decentralized adaptive clustering of deep nets is beneficial for client collaboration" (2022);
the authors' code, and that of HAST (arXiv 2306.12768), in which DAC is the baseline.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from ..bank import Entry, Key
from ..gossip.awareness import Aging, OnShift
from ..gossip.base import Contacts, Finetune, Initial, LossMean, Meeting, Met, Offline, Per, Segment
from ..gossip.detectors import Detector
from ..gossip.learned import Clip, Kept, Learned, Temperature, Unknown
from ..gossip.topologies import Topology
from ..learners.base import Learner
from ..messages import Assignment, Client, Participant, World
from ..randomness import Moment
from ..server.base import Mean, ServerOptimizer


class Dac(Learned):
    """Every client mixes its model with those of ``contacts`` neighbours, drawn by similarity, and trains it.

    Client i's similarity to j is one over the loss of j's model on i's training rows. All layers are mixed, weighted by
    rows, the client itself among them; the similarities are those to this round's contacts, and estimates by two hops.

    ``first_contact``: what was measured of a peer that is met for the first time is ``kept``, or ``overwritten`` by a
    neighbour's estimate, as in the code released with HAST, where new contacts are still taken for unknown.

    Deviation: the authors' first code updates clients one after another within a round; here all read the models of the
    round's start, as in the later code.
    """

    def __init__(
        self,
        world: World,
        learner: Learner,
        mean: Mean,
        server: ServerOptimizer,
        *,
        contacts: Contacts = 6,
        first_contact: Literal["kept", "overwritten"] = "kept",
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
        finetune: Finetune = "off",
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
        self.first_contact = first_contact

    def drawn(
        self, own: Entry, when: Moment, seat: Participant, eligible: np.ndarray, seats: Mapping[int, Participant]
    ) -> dict[str, list[int]]:
        """Contacts by similarity."""
        return {"random": [], "similar": self.alike(own, when, seat.id, eligible, self.contacts)}

    def meet(self, key: Key, mine: Entry, given: Assignment, client: Client) -> Meeting:
        """The mix of all layers, and the similarities to the contacts and their contacts."""
        contacts = given.note["similar"]
        peers = self.peers(given, contacts)
        measured = yield from self.scored(client, mine, peers)
        noticed = yield from self.noticed(client, key, mine, peers)
        before = self.remembered(self.contacted(client, key), noticed)
        settled = before[0] if self.first_contact == "overwritten" else np.union1d(before[0], contacts)
        similarities, aged = self.learnt(client, mine, peers, measured, settled, noticed)
        start = self.mixed(client, mine, peers)
        state = {**self.counted(key, before, contacts), **(noticed.state if noticed else {})}
        return Met(start, self.published(similarities, noticed, aged), state, self.said(noticed))
