"""Concept Matching: clients choose a model by its loss, the server clusters what comes back and matches the clusters.

Paper: "Concept Matching: Clustering-based Federated Continual Learning" (arXiv 2311.06921), equations 1 to 6 and
algorithm 1. The server's half is in `shoal.clustering`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from ..bank import Bank, Entry, Key, Value
from ..clustering.base import Clusterer
from ..clustering.births import LARGEST, Births
from ..clustering.distances import Distance, DistanceName
from ..clustering.geometry import Array, coordinates, project
from ..clustering.matching import Matched, Matching
from ..clustering.number import LEAST_SILHOUETTE, Clusters, NumberRule, clustered
from ..clustering.own import clusterer_of
from ..learners.base import Learner
from ..messages import Assignment, Group, Part, Participant, Update, World
from ..randomness import Moment
from ..server.base import Mean, ServerOptimizer
from .clustered import DECIDED, Clustered, Count, by_choice, choice_of, decided, keys_of, routed
from .clustered_births import LOSSES, Growth, plain
from .clustered_memory import TASKS, TRUTHS, learnt, placed, remembered_task

KMEANS: Any = {"kind": "kmeans"}
GATED: Any = {"kind": "gated"}

# YAML reads a bare off as false.
ClientMatching = Annotated[
    Literal["loss", "remembered", "off", "oracle"], BeforeValidator(lambda given: "off" if given is False else given)
]
TRUE_LABELS = ("concept", "cluster", "domain", "task")


@dataclass(frozen=True)
class RoundClusters:
    """What the server makes of a round's answers: their clusters, and the mean of each as its model."""

    clusters: Clusters
    means: tuple[Tensor, ...]
    leaders: tuple[Key, ...]
    """The entry from which most of each cluster (by rows) was trained."""


class ConceptMatching(Clustered):
    """``concepts`` models, one for each concept hidden in the clients' rows; neither clients nor server know them.

    **Client.** Everyone receives all models and trains the one with the lowest loss on its rows (``client_matching:
    loss``, on the first ``rows`` of them if that is given). ``remembered``: clients know their task; once a task's
    answers updated the same entry in ``learn`` rounds in a row, its clients receive that entry alone and measure
    nothing. For comparison: ``off`` sends an entry at random, ``oracle`` the one of the client's true concept (the
    stream's ``concept``, ``cluster``, ``domain`` or ``task``).

    **Server.** The answers are clustered (``clusterer``, on exact coordinates, or on ``projection`` to ``dimensions``),
    into as many clusters as ``number`` says: ``fixed`` (as many as models) or ``silhouette`` (at most as many; one
    below ``least``); without it the matching decides. ``method.mean`` makes a mean of each cluster, ``matching`` says
    which model it updates, by ``distance`` (``p`` of ``minkowski``). What a client chose is no matter then. With
    ``server_matching: choices`` each model is the mean of those who chose it, without clusters.

    **Number unknown.** With ``births``, and with ``concepts: auto``, which starts from one model, models are born,
    joined and retired, see `shoal.methods.clustered_births`; ``most``, ``gap``, ``agree`` and ``unused`` are its
    settings.

    A learner's numbers stay with the entry that a client trained, also where its answer updates another one.
    """

    def __init__(
        self,
        world: World,
        learner: Learner,
        mean: Mean,
        server: ServerOptimizer,
        *,
        concepts: Count | Literal["auto"],
        client_matching: ClientMatching = "loss",
        rows: Count | None = None,
        learn: Count = 3,
        server_matching: Literal["clusters", "choices"] = "clusters",
        clusterer: Clusterer = KMEANS,
        number: NumberRule | None = None,
        least: Annotated[float, Field(ge=-1, le=1)] = LEAST_SILHOUETTE,
        projection: Literal["pca", "random"] | None = None,
        dimensions: Count = 10,
        distance: DistanceName = "manhattan",
        p: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 3.0,
        matching: Matching = GATED,
        births: bool = False,
        most: Count = 10,
        gap: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1,
        agree: Count = 3,
        unused: Count | None = None,
    ) -> None:
        super().__init__(world, learner, mean, server, rows=rows, start=matching.start)
        self.client_matching = client_matching
        self.learn = learn
        self.server_matching = server_matching
        self.clusterer = clusterer_of(clusterer)
        self.least = least
        self.projection: Literal["pca", "random"] | None = projection
        self.dimensions = dimensions
        self.distance = Distance(distance, p)
        self.matching = matching
        births = births or concepts == "auto"
        self.concepts = 1 if concepts == "auto" else concepts
        self.growth = Growth(Births(most, gap, agree, unused)) if births else None
        self.number: NumberRule = number or ("silhouette" if births else matching.number)
        if number is not None and not self.clusterer.needs_number:
            raise ValueError(
                f"number: {number}, but this clusterer finds the number by itself; leave number out, or use one that "
                f"is told it (kmeans, agglomerative, birch, spectral)"
            )
        if not births and (most, gap, agree, unused) != (10, 0.1, 3, None):
            raise ValueError(
                "most, gap, agree and unused say when models are born, joined and retired, and here none is; leave "
                "them out, or set concepts: auto or births: true"
            )
        self._check(births, most)
        if client_matching == "oracle":
            self.needs_truth = TRUE_LABELS
        self.needs_task = client_matching == "remembered"
        self.averages = not births  # a model that is born untrained is nobody's answer

    def _check(self, births: bool, most: int) -> None:
        if self.client_matching == "remembered" and not self.world.tasks:
            raise ValueError(
                "client_matching: remembered needs clients that know their task; this stream has no tasks. "
                "Use client_matching: loss"
            )
        if not births:
            return
        if self.client_matching != "loss" or self.server_matching != "clusters":
            raise ValueError(
                f"births (and concepts: auto) need the losses of all models and the clusters of the answers: "
                f"client_matching: loss and server_matching: clusters; got {self.client_matching} and "
                f"{self.server_matching}"
            )
        if self.number == "fixed" and self.clusterer.needs_number:
            raise ValueError(
                "number: fixed makes as many clusters as there are models, so that none could be born; use "
                "number: silhouette, or a clusterer that finds the number (hdbscan)"
            )
        if most < self.concepts:
            raise ValueError(f"most is the largest number of models, at least concepts = {self.concepts}; got {most}")

    # ---- before training -------------------------------------------------------------------------------------

    def start(self) -> Bank:
        """The models; without births their number never changes."""
        return Bank().put({f"concept/{k}": self.fresh(k) for k in range(self.concepts)})

    def assign(self, bank: Bank, when: Moment, clients: Sequence[Participant]) -> Iterable[Assignment]:
        """All models, or the one that the client's task, its true concept or chance says."""
        keys = keys_of(bank)
        places = placed(bank.memory, [seat.truth for seat in clients]) if self.client_matching == "oracle" else {}
        for seat in clients:
            sent, note = tuple(keys), dict[str, Any]()
            if self.client_matching == "off":
                # Not of the exchange: a learner that begins with the first one goes on with the same model.
                rng = Moment(when.seed, when.round).random("choice", seat.id)
                sent = (keys[int(rng.integers(len(keys)))],)
            elif self.client_matching == "oracle":
                sent, note = (keys[places[str(seat.truth)] % len(keys)],), {"truths": list(places)}
            elif self.client_matching == "remembered":
                note = {"task": remembered_task(seat)}
                known = _table(bank, TASKS).get(note["task"], {})
                sent = (known["entry"],) if known.get("entry") else sent
            yield Assignment(seat.id, sent, times=seat.times, note=note)

    def told(self, losses: Array | None) -> Mapping[str, Tensor]:
        """All losses where models are born: four bytes for each model."""
        if self.growth is None or losses is None:
            return {}
        return {LOSSES: torch.from_numpy(losses.clip(max=LARGEST)).to(torch.float32)}

    # ---- after training --------------------------------------------------------------------------------------

    def merge(self, bank: Bank, updates: Sequence[Update], when: Moment) -> Bank:
        """Clusters, their match, and the entries that they update."""
        sent = [update for update in updates if choice_of(update)[1].vector is not None]
        if not sent:  # the first of two exchanges: numbers of the entries that were chosen
            return bank.put(self.merged(bank, [plain(update) for update in updates], when))
        if self.server_matching == "choices":
            changes = self.merged(bank, updates, when)
            told = by_choice(when, sent, **self._spared(bank, sent))
            return bank.put(changes, **{DECIDED: told}, **self._learnt(bank, sent, [choice_of(u)[0] for u in sent]))
        found = self.clusters_of(bank, sent, when)
        if self.growth is not None:
            return self.growth.merge(self, bank, updates, sent, found, when)
        keys = keys_of(bank)
        matched = self.matched(found, [bank[key].vector for key in keys], bank.memory)
        homes = homes_of(found, matched, keys)
        changes = self.merged(bank, self.sent_home(updates, sent, homes), when)
        matched = self.settled(found, matched, sent, keys, {**bank.entries, **changes}, bank)
        told = self.decision(when, sent, found, matched, keys, **self._spared(bank, sent))
        return bank.put(changes, **matched.numbers, **{DECIDED: told}, **self._learnt(bank, sent, homes))

    def clusters_of(self, bank: Bank, sent: Sequence[Update], when: Moment) -> RoundClusters:
        """The clusters of the answers' vectors, with their means."""
        parts = [choice_of(update)[1] for update in sent]
        points = coordinates([part.vector for part in parts if part.vector is not None])
        if self.projection is not None:
            points = project(points, self.projection, self.dimensions, when.random("projection"))
        most = len(bank.entries) if self.growth is None else self.growth.rules.most
        clusters = clustered(points, self.clusterer, self.number, most, when.random("clusters"), self.least)
        means, leaders = [], []
        for cluster in range(clusters.number):
            members = [sent[i] for i in range(len(sent)) if clusters.labels[i] == cluster]
            rows = dict.fromkeys(keys_of(bank), 0.0)
            for update in members:
                rows[choice_of(update)[0]] += update.weight * update.times
            leader = max(rows, key=rows.__getitem__)
            means.append(self.mean.combine(bank[leader], _group(members, [choice_of(u)[1] for u in members])))
            leaders.append(leader)
        return RoundClusters(clusters, tuple(means), tuple(leaders))

    def matched(self, found: RoundClusters, models: Sequence[Tensor], past: Mapping[str, Value]) -> Matched:
        """Which model each cluster updates."""
        return self.matching.match(found.means, models, found.clusters.sizes, past, self.distance)

    def settled(
        self,
        found: RoundClusters,
        matched: Matched,
        sent: Sequence[Update],
        keys: Sequence[Key],
        after: Mapping[Key, Entry | None],
        before: Bank,
    ) -> Matched:
        """The match after the server's steps, by which the entries ``keys`` became those of ``after``.

        The next update of a model that was claimed will likely lie as far from it as this one lies from where its
        clients began (the mean of the models that they trained from), and further by what the server's step left over.
        """
        likely = {}
        for cluster, model in matched.claims.items():
            members = [u for u, label in zip(sent, found.clusters.labels.tolist(), strict=True) if label == cluster]
            starts = [replace(part, vector=before[key].vector) for key, part in map(choice_of, members)]
            begun = self.mean.combine(before[found.leaders[cluster]], _group(members, starts))
            entry = after[keys[model]]
            assert entry is not None
            if not torch.isfinite(entry.vector).all():  # the round will be undone
                likely[cluster] = math.inf
                continue
            moved, left = self.distance([found.means[cluster]], [begun, entry.vector])[0]
            likely[cluster] = float(moved + left)
        return self.matching.settled(matched, likely)

    def sent_home(self, updates: Sequence[Update], sent: Sequence[Update], homes: Sequence[Key | None]) -> list[Update]:
        """All updates, each model at its home; those without a model stay where they are."""
        home = {update.client: key for update, key in zip(sent, homes, strict=True)}
        stay = [choice_of(update)[0] for update in updates]
        return routed(
            [plain(update) for update in updates],
            [home.get(update.client, key) for update, key in zip(updates, stay, strict=True)],
        )

    def decision(
        self,
        when: Moment,
        sent: Sequence[Update],
        found: RoundClusters,
        matched: Matched,
        keys: Sequence[Key],
        **more: Any,
    ) -> dict[str, Any]:
        """What was decided, for the record: with the ``distances`` of each cluster from the ``entries``, and what the
        matching remembers of these (``kept``)."""
        models = [None if model is None else keys[model] for model in matched.models]
        kept = {
            name.removeprefix("matching/"): values.tolist()
            for name, values in matched.numbers.items()
            if name != "matching/claimed"
        }
        return decided(
            when,
            sent,
            found.clusters.labels.tolist(),
            models,
            matched.fates,
            entries=list(keys),
            distances=matched.distances.tolist(),
            kept=kept,
            **more,
        )

    def _spared(self, bank: Bank, sent: Sequence[Update]) -> dict[str, int]:
        """Of ``remembered``: to how many of these clients the model of their task alone was sent."""
        if self.client_matching != "remembered":
            return {}
        known = _table(bank, TASKS)
        return {"remembered": sum(bool(known.get(str(u.note["task"]), {}).get("entry")) for u in sent)}

    def _learnt(self, bank: Bank, sent: Sequence[Update], homes: Sequence[Key | None]) -> dict[str, Value]:
        if self.client_matching == "remembered":
            tasks = [str(update.note["task"]) for update in sent]
            return {TASKS: learnt(_table(bank, TASKS), tasks, homes, self.learn)}
        if self.client_matching == "oracle":
            return {TRUTHS: sent[0].note["truths"]}  # of all participants, also where an answer did not come
        return {}

    def candidates(self, bank: Bank, target: Mapping[str, Any]) -> Sequence[tuple[Key, ...]]:
        """Every model that was ever updated; all of them before the first update."""
        keys = keys_of(bank)
        claimed = bank.memory.get("matching/claimed")  # none with server_matching: choices
        used = claimed.tolist() if isinstance(claimed, Tensor) else [bank[key].weight > 0 for key in keys]
        return [(key,) for key, one in zip(keys, used, strict=True) if one or not any(used)]


def homes_of(found: RoundClusters, matched: Matched, keys: Sequence[Key]) -> list[Key | None]:
    """The entry that each answer updates, ``None`` where its cluster was rejected."""
    homes: list[Key | None] = [None] * len(found.clusters.labels)
    for model, members in matched.members(found.clusters.labels).items():
        for member in members:
            homes[member] = keys[model]
    return homes


def _group(updates: Sequence[Update], parts: Sequence[Part]) -> Group:
    """These answers of the clients with the weights of their updates."""
    return Group(tuple(parts), tuple(update.weight * update.times for update in updates))


def _table(bank: Bank, name: str) -> dict[str, Any]:
    table = bank.memory.get(name, {})
    assert isinstance(table, dict)
    return table
