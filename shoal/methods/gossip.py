"""Gossip without similarities: no contact at all, contacts at random, and contacts inside the true cluster."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..bank import Entry
from ..gossip.base import (
    Contacts,
    Finetune,
    Gossip,
    Initial,
    LossMean,
    Offline,
    Per,
    Segment,
    some,
)
from ..gossip.topologies import Topology
from ..learners.base import Learner
from ..messages import Participant, World
from ..randomness import Moment
from ..server.base import Mean, ServerOptimizer


class Local(Gossip):
    """Every client trains a model of its own and meets nobody: what communication has to beat.

    It has the warm-up of the other methods without a server, so that rounds are comparable.
    """

    def __init__(
        self,
        world: World,
        learner: Learner,
        mean: Mean,
        server: ServerOptimizer,
        *,
        per: Per = "all",
        initial: Initial = "same",
        finetune: Finetune = "off",
        segment: Segment = "classifier",
        loss_mean: LossMean = "rows",
        probes: bool = False,
    ) -> None:
        super().__init__(
            world,
            learner,
            mean,
            server,
            per=per,
            initial=initial,
            topology=None,
            offline="unreachable",
            finetune=finetune,
            segment=segment,
            loss_mean=loss_mean,
            probes=probes,
        )


class Random(Gossip):
    """Every client mixes its model with those of ``contacts`` neighbours, drawn uniformly, and trains it.

    Gossip learning, as the baseline of HAST (arXiv 2306.12768), which has 2n = 6 contacts: all layers, weighted by
    rows, the client itself among them; no fine-tuning.
    """

    def __init__(
        self,
        world: World,
        learner: Learner,
        mean: Mean,
        server: ServerOptimizer,
        *,
        contacts: Contacts = 6,
        per: Per = "all",
        initial: Initial = "same",
        topology: Topology | None = None,
        offline: Offline = "unreachable",
        finetune: Finetune = "off",
        segment: Segment = "classifier",
        loss_mean: LossMean = "rows",
        probes: bool = False,
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
        self.contacts = contacts

    def drawn(
        self, own: Entry, when: Moment, seat: Participant, eligible: np.ndarray, seats: Mapping[int, Participant]
    ) -> dict[str, list[int]]:
        """Uniform contacts."""
        rng = when.random("contacts/random", seat.id)
        return {"random": some(rng, eligible, self.contacts), "similar": []}


class Oracle(Random):
    """Gossip among clients whose data are alike in truth: an upper bound that is told what no method can know.

    Contacts are drawn uniformly among the neighbours that take part in the round and have the same true label: the
    stream's ``cluster``, else its ``concept``, ``domain`` or ``task``; ``by`` names another one. The run says that
    the method saw the truth. The baseline of DAC (Listo Zec et al. 2022).

    Deviation: in the authors' code all clients have the neighbours of the last one, by a left-over index; here each
    has its own.
    """

    needs_truth: tuple[str, ...] = ("cluster", "concept", "domain", "task")

    def __init__(
        self,
        world: World,
        learner: Learner,
        mean: Mean,
        server: ServerOptimizer,
        *,
        by: str | None = None,
        contacts: Contacts = 6,
        per: Per = "all",
        initial: Initial = "same",
        topology: Topology | None = None,
        finetune: Finetune = "off",
        segment: Segment = "classifier",
        loss_mean: LossMean = "rows",
        probes: bool = False,
    ) -> None:
        super().__init__(
            world,
            learner,
            mean,
            server,
            contacts=contacts,
            per=per,
            initial=initial,
            topology=topology,
            finetune=finetune,
            segment=segment,
            loss_mean=loss_mean,
            probes=probes,
        )
        if by is not None:
            self.needs_truth = (by,)

    def drawn(
        self, own: Entry, when: Moment, seat: Participant, eligible: np.ndarray, seats: Mapping[int, Participant]
    ) -> dict[str, list[int]]:
        """Uniform contacts inside the cluster of this round."""
        alike = np.array([j for j in eligible.tolist() if seats[j].truth == seat.truth], dtype=np.int64)
        rng = when.random("contacts/random", seat.id)
        return {"random": [], "similar": [], "truth": some(rng, alike, self.contacts)}
