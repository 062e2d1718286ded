"""`ShiftStream`: clients whose labels or inputs shift over time, from one cluster of rows to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import pydantic
import torch
from torch import Tensor

from ..data.dataset import Dataset
from ..errors import ConfigError
from ..randomness import generator
from .base import Holding, Stream, Target
from .cells import check_client
from .shifts_clusters import hold_back, make_clusters, tested_rows
from .shifts_patterns import Pattern, deal_clusters
from .shifts_plan import Fresh, Plan, Slices, Stagger, first_rounds
from .static import MOST_TARGETS, Clients

Positive = Annotated[int, pydantic.Field(ge=1)]
Clusters = list[list[int | str] | int | str]


class ShiftStream(Stream):
    """Time steps of ``rounds_per_step`` rounds; at their boundaries clients go over to other clusters of rows.

    A *cluster* is a part of the data, ``by`` says of what kind:

    - ``class``: a group of labels (label shift): ``clusters: [[0, 1, 8, 9], [3, 4, 5, 7]]``;
    - a column of the data, such as ``domain`` (covariate shift): groups of its values, or each value without
      ``clusters``;
    - ``transform``: all rows under a transform each (covariate shift): ``clusters: [identity, rotate180]``;
    - ``swap``: all rows, with labels swapped in pairs (a shift of p(y|x)): ``clusters: [[], [0, 1], [3, 4]]``. Rows are
      not copied: a table of classes by clusters says what a label is in each.

    ``pattern`` says who is in which cluster at which step, see `shoal.streams.shifts_patterns.deal_clusters`:
    ``random``, ``rotate``, ``keep``, FedDrift's (``A`` to ``F``, ``W`` to ``Z``, ``R``), or a list of one cluster per
    client for every step. ``weights`` are the clusters' shares of the clients (equal without). The last step goes on
    until the run ends.

    A client holds ``rows`` training and ``validation_rows`` validation rows at a time. The training rows of the data
    are split into both uses once, and each cluster's are shuffled and taken in consecutive slices; where they are used
    up they are shuffled again and used again, so two clients may then hold the same row (`notes` says so). ``fresh``:
    at every step new rows for ``all``, for clients that ``changed`` their cluster, or ``never`` (a client has one slice
    of each cluster, which it finds again).

    ``stagger: N`` delays the change of each client at each boundary by a random number of rounds from 0 to N; a list
    for each client says in which rounds it changes. ``gradual: N``: in the N rounds from a client's change on its rows
    are a mixture; in the j-th a share of j / (N + 1) is of the new cluster, at places drawn once, which keep their new
    rows; a row that both clusters have may then count once instead of twice. From the first of these rounds on the new
    cluster is the true one, on which it is tested.

    Each client is a target: the test rows of its current cluster (all, or ``test_rows``), with its own validation rows.
    ``truth`` has ``cluster`` and ``phase``, the time step by the common boundaries. No client is told anything.

    Source: "Concept-aware clustering for decentralized deep learning under temporal shift", arXiv:2306.12768, for
    ``random`` with new rows for all. Deviations: validation rows are never anybody's training rows; the test rows of a
    cluster are the same for all runs. Raises `ConfigError`.
    """

    def __init__(
        self,
        data: Dataset,
        seed: int,
        rounds: int,
        heads_by_task: bool = False,
        *,
        clients: Clients,
        clusters: Clusters | None = None,
        by: str = "class",
        steps: Positive,
        rounds_per_step: Positive,
        pattern: Pattern = "random",
        weights: list[float] | None = None,
        rows: Positive = 250,
        validation_rows: Annotated[int, pydantic.Field(ge=0)] = 75,
        test_rows: Positive | None = None,
        fresh: Fresh = "all",
        stagger: Stagger = 0,
        gradual: Annotated[int, pydantic.Field(ge=0)] = 0,
    ) -> None:
        for name, value in (("clients", clients), ("steps", steps), ("rounds_per_step", rounds_per_step)):
            if value < 1:
                raise ConfigError(f"stream.{name}: one at least; got {value}")
        if rows < 1:
            raise ConfigError(f"stream.rows: every client needs a training row at least; got {rows}")
        if validation_rows < 1:
            raise ConfigError(
                f"stream.validation_rows: every client needs a row at least, for models are chosen on them; got "
                f"{validation_rows}"
            )
        if gradual < 0:
            raise ConfigError(f"stream.gradual: a number of rounds, 0 or more; got {gradual}")
        if clients > MOST_TARGETS:
            raise ConfigError(
                f"stream.clients: every client is measured by itself, {MOST_TARGETS:,} at most; got {clients:,}"
            )
        self.dataset, self._clusters = make_clusters(data, by, clusters)
        self.cluster_names = tuple(cluster.name for cluster in self._clusters)
        self.clients = clients
        self.outputs = data.outputs
        self.seed = seed
        self.rounds = rounds
        self.steps = steps
        self.rounds_per_step = rounds_per_step
        self.gradual = gradual
        self.boundaries = tuple(range(rounds_per_step, min(steps * rounds_per_step, rounds), rounds_per_step))
        count = len(self._clusters)
        dealt = deal_clusters(pattern, steps, clients, count, weights, seed)
        starts = first_rounds(steps, rounds_per_step, clients, stagger, gradual, seed)
        self._plan = Plan(dealt, count, fresh, starts)
        self._pools = hold_back(data, self._clusters, rows, validation_rows, (seed, "stream"))
        self._slices = [
            (
                Slices(train, rows, (seed, "stream", "training rows", k)),
                Slices(validation, validation_rows, (seed, "stream", "validation rows", k)),
            )
            for k, (train, validation) in enumerate(self._pools)
        ]
        self._tests = tested_rows(data, self._clusters, test_rows)

    def step(self, client: int, round: int) -> int:
        """The time step of a client in a round, from 0: its own where changes are staggered."""
        check_client(client, self.clients)
        return self._plan.step(client, max(1, round))

    def cluster(self, client: int, round: int) -> int:
        """The cluster of a client in a round."""
        return int(self._plan.clusters[self.step(client, round), client])

    def start(self, client: int, step: int) -> int:
        """The first round of a client's time step; it may lie behind the run's end."""
        check_client(client, self.clients)
        return self._plan.start(client, step)

    def held_clusters(self) -> np.ndarray:
        """The cluster of each client at each of its time steps, int32 ``[steps, clients]``."""
        return self._plan.clusters.copy()

    def cluster_rows(self, cluster: int) -> tuple[Tensor, Tensor, Tensor]:
        """All training, validation and test rows that clients in a cluster may hold."""
        return (*self._pools[cluster], self._tests[cluster])

    def holding(self, client: int, round: int) -> Holding:
        """The client's rows; those of a mixture are of two clusters."""
        round = max(1, round)
        step = self.step(client, round)
        cluster = int(self._plan.clusters[step, client])
        train, validation = (self._rows(client, round, step, use) for use in (0, 1))
        return Holding(train, validation, self._tests[cluster], truth={"cluster": cluster, "phase": self.phase(round)})

    def _slice(self, client: int, step: int, use: int) -> Tensor:
        cluster, number = int(self._plan.clusters[step, client]), int(self._plan.slices[step, client])
        return self._slices[cluster][use].rows(number)

    def _mixed(self, client: int, round: int, step: int) -> int:
        """The how-manieth round of a mixture this is, from 1; 0 where nothing is mixed."""
        clusters = self._plan.clusters
        if not self.gradual or step == 0 or clusters[step, client] == clusters[step - 1, client]:
            return 0
        passed = round - self._plan.start(client, step) + 1
        return passed if passed <= self.gradual else 0

    def _rows(self, client: int, round: int, step: int, use: int) -> Tensor:
        """Training (``use`` 0) or validation rows (1), sorted."""
        found = self._slice(client, step, use)
        passed = self._mixed(client, round, step)
        if passed:
            order = generator(self.seed, "stream", "mixture", client, step, use).permutation(len(found))
            old = torch.from_numpy(order[round_half_up(len(found) * passed, self.gradual + 1) :])
            found = found.index_copy(0, old, self._slice(client, step - 1, use)[old])
        rows: Tensor = found.unique()  # type: ignore[no-untyped-call]
        return rows

    def targets(self, round: int) -> Sequence[Target]:
        """Every client on the test rows of its current cluster, which clients of one cluster share."""
        round = max(1, round)
        found = []
        for client in range(self.clients):
            step = self._plan.step(client, round)
            stamp = round if self._mixed(client, round, step) else self._settled(client, step)
            test = self._tests[self._plan.clusters[step, client]]
            found.append(Target({"client": client}, test, self._rows(client, round, step, 1), stamp))
        return found

    def _settled(self, client: int, step: int) -> int:
        """The first round since which the client's rows are what they are at a step, without a mixture."""
        taken = int(self._plan.since[step, client])
        first = self._plan.start(client, taken)
        return first + self.gradual if self._mixed(client, first, taken) else first

    def notes(self) -> list[str]:
        """Steps that the run does not reach or goes beyond, unused rows and clusters, rows that are used again."""
        notes = []
        planned = self.steps * self.rounds_per_step
        if self.rounds > planned:
            notes.append(f"{self.rounds} rounds, but {self.steps} time steps have {planned}: the last one goes on")
        reached = self.phase(max(1, self.rounds)) + 1
        if reached < self.steps:
            notes.append(f"time steps that the run does not reach: {self.steps - reached} of {self.steps}")
        used = np.unique(np.concatenate([cluster.train for cluster in self._clusters]))
        if len(used) < len(self.dataset.train):
            notes.append(f"training rows of no cluster: {len(self.dataset.train) - len(used)}")
        for number, cluster in enumerate(self._clusters):
            where = f"cluster {number} ({cluster.name}): "
            if not len(cluster.test):
                notes.append(f"{where}there is no test row")
            if not (self._plan.clusters == number).any():
                notes.append(f"{where}no client ever holds it")
            notes += [where + note for note in self._used_again(number)]
        return notes

    def _used_again(self, number: int) -> list[str]:
        taken = self._plan.taken[:, number]
        at_once = int(np.diff(taken, prepend=0).max())
        uses: dict[str, list[str]] = {}
        for slices, use in zip(self._slices[number], ("training", "validation"), strict=True):
            if taken[-1] > slices.passes:
                step = int(np.argmax(taken > slices.passes))
                note = f"rows suffice for {slices.passes} clients and are used again from time step {step} on"
                if at_once > slices.passes:
                    note += f"; {at_once} clients take some at once, so some hold the same rows at the same time"
                uses.setdefault(note, []).append(use)
        return [f"its {' and '.join(names)} {note}" for note, names in uses.items()]


def round_half_up(numerator: int, denominator: int) -> int:
    """The nearest whole number to a fraction, exactly."""
    return (2 * numerator + denominator) // (2 * denominator)
