"""Server matching: which of the server's models each cluster of clients updates. Pure functions of their arguments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..bank import Value
from .base import Labels
from .distances import Distance
from .geometry import Array, Rows
from .number import NumberRule

Fate = Literal["claimed", "accepted", "merged", "overwritten", "rejected"]
"""What became of a cluster: the first update of a model; a further one; joined with another cluster's; replaced by
that of a later cluster in the same round; dropped."""
Start = Literal["identical", "independent"]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Matched:
    """What became of each of J clusters, and the numbers that the next round begins with."""

    models: tuple[int | None, ...]
    """The model that each cluster updates; ``None`` for those that were rejected or overwritten."""
    fates: tuple[Fate, ...]
    distances: Array
    """Distances ``[J, K]`` of the clusters' means from the models as they were at the start of the round."""
    numbers: Mapping[str, Tensor]
    """For the method to keep (``Bank.memory`` or ``Entry.server``) and to hand in again; all finite."""

    @property
    def updates(self) -> dict[int, tuple[int, ...]]:
        """The clusters that update each model; several are merged. Models that nobody updates are left out."""
        found: dict[int, tuple[int, ...]] = {}
        for cluster, model in enumerate(self.models):
            if model is not None:
                found[model] = (*found.get(model, ()), cluster)
        return dict(sorted(found.items()))

    def members(self, labels: Labels) -> dict[int, tuple[int, ...]]:
        """The clients, by position in ``labels [n]``, whose answers update each model.

        The mean over all of them merges clusters of one model by their clients (or rows: whatever the mean counts).
        """
        return {
            model: tuple(np.flatnonzero(np.isin(labels, clusters)).tolist()) for model, clusters in self.updates.items()
        }

    @property
    def claims(self) -> dict[int, int]:
        """The clusters whose update was the first one of a model, with that model."""
        pairs = enumerate(zip(self.models, self.fates, strict=True))
        return {cluster: model for cluster, (model, fate) in pairs if fate == "claimed" and model is not None}

    @property
    def counts(self) -> dict[str, int]:
        """How many clusters had each fate."""
        found = Counter(self.fates)
        return {fate: found[fate] for fate in ("claimed", "accepted", "merged", "overwritten", "rejected")}


@dataclass
class Round:
    """One round of matching while it is decided: what a rule sees, and what it says."""

    scores: Array
    """``[J, K]``: the distances that are compared, corrected for sizes if that is asked for."""
    between: Callable[[], Array]
    """The same between clusters, ``[J, J]``: the distance of each from the mean of each."""
    claimed: Flags
    """``[K]``: which models had an update before, those of this round included as they come."""
    models: list[int | None] = field(init=False)
    fates: list[Fate] = field(init=False)

    def __post_init__(self) -> None:
        self.models = [None] * len(self.scores)
        self.fates = ["rejected"] * len(self.scores)

    def give(self, cluster: int, model: int) -> None:
        """The cluster updates the model; one that already did in this round is overwritten."""
        for other in [c for c, given in enumerate(self.models) if given == model]:
            self.models[other], self.fates[other] = None, "overwritten"
        self.models[cluster] = model
        self.fates[cluster] = "accepted" if self.claimed[model] else "claimed"
        self.claimed[model] = True

    def join(self, cluster: int, model: int) -> None:
        """The cluster updates the model together with those that already do."""
        if model not in self.models:
            return self.give(cluster, model)
        self.models[cluster], self.fates[cluster] = model, "merged"
        return None


class Matching:
    """A rule for which model each cluster updates. A member says in `decide` what it does with the distances.

    Settings are keyword-only parameters of ``__init__``; attributes never change afterwards, and all that is
    remembered from round to round is in the numbers. ``size_corrected`` multiplies a cluster's distances by the root
    of its number of clients: a mean over m clients lies about ``1 / sqrt(m)`` as far away, which says nothing of its
    concept. ``start`` is for the method: whether all models start ``identical`` or ``independent``.
    """

    part: ClassVar[str] = "matching"
    number: ClassVar[NumberRule] = "fixed"
    """How the number of clusters is chosen where the configuration does not say."""

    def __init__(self, *, size_corrected: bool = False, start: Start = "identical") -> None:
        self.size_corrected = size_corrected
        self.start = start

    def match(
        self, means: Rows, models: Rows, sizes: Sequence[int], past: Mapping[str, Value], distance: Distance
    ) -> Matched:
        """Matches the clusters' means ``[J, P]`` with the models ``[K, P]``.

        ``sizes`` are the numbers of clients ``[J]``. ``past`` has the last round's `Matched.numbers`, and may have
        others'; without them it is the first round. No two clusters update one model unless they are merged. Raises
        ``ValueError`` without a model, for sizes that do not fit, and for numbers of another number of models.
        """
        distances = distance(means, models)
        clusters, count = distances.shape
        if count == 0:
            raise ValueError("matching needs at least one model; got none")
        if len(sizes) != clusters or any(size < 1 for size in sizes):
            raise ValueError(f"every cluster has one client or more: {clusters} clusters, but sizes {list(sizes)}")
        factor = (
            np.sqrt(np.asarray(sizes, dtype=np.float64))[:, None] if self.size_corrected else np.ones((clusters, 1))
        )
        claimed = remembered(past, "claimed", count) > 0
        now = Round(distances * factor, lambda: distance(means, means) * factor, claimed)
        numbers = self.decide(now, past)
        kept = {name: torch.from_numpy(np.asarray(values, dtype=np.float64)) for name, values in numbers.items()}
        kept["claimed"] = torch.from_numpy(now.claimed)
        return Matched(
            tuple(now.models), tuple(now.fates), distances, {f"matching/{name}": kept[name] for name in sorted(kept)}
        )

    def settled(self, matched: Matched, likely: Mapping[int, float]) -> Matched:
        """The match with what the server's steps say of the numbers to remember.

        ``likely`` has, of each of `Matched.claims`, how far the next update of its model will lie from it, as far as
        this round can tell: the first one says nothing of that where its clients trained from another model. In the
        units of `Matched.distances`. Default: nothing changes.
        """
        return matched

    def decide(self, now: Round, past: Mapping[str, Value]) -> Mapping[str, Array]:
        """Gives clusters to models (`Round.give`, `Round.join`); those that are given to none are rejected.

        Returns the numbers to remember by name, one for each model ``[K]``, all finite; see `remembered`.
        """
        raise NotImplementedError


def remembered(past: Mapping[str, Value], name: str, models: int) -> Array:
    """The numbers of this name in ``past``, a copy; zeros if there are none. ``ValueError`` unless one per model."""
    given = past.get(f"matching/{name}")
    if given is None:
        return np.zeros(models)
    found: Array = torch.as_tensor(given).detach().cpu().to(torch.float64, copy=True).numpy()
    if found.shape != (models,):
        raise ValueError(f"matching/{name} has shape {found.shape}, but there are {models} models")
    return found


def assigned(costs: Array, allowed: Flags | None = None) -> list[tuple[int, int]]:
    """The one-to-one assignment of rows to columns: as many allowed pairs as can be, then the smallest sum."""
    from scipy.optimize import linear_sum_assignment

    if allowed is None:
        allowed = np.ones(costs.shape, dtype=np.bool_)
    if not allowed.any():
        return []
    # In units of the largest cost: one forbidden pair is worse than all allowed ones together.
    unit = costs[allowed].max() or 1.0
    forbidden = 2.0 * min(costs.shape) + 2.0
    rows, columns = linear_sum_assignment(np.where(allowed, costs / unit, forbidden))
    return [(int(r), int(c)) for r, c in zip(rows, columns, strict=True) if allowed[r, c]]


class Nearest(Matching):
    """Each cluster updates the model that is nearest; of several the last one, in the order of labels.

    Models that start identical are all equally near, and the first one gets every cluster: so they start independent.
    """

    def __init__(self, *, size_corrected: bool = False, start: Start = "independent") -> None:
        super().__init__(size_corrected=size_corrected, start=start)

    def decide(self, now: Round, past: Mapping[str, Value]) -> Mapping[str, Array]:
        """By the smallest distance."""
        for cluster, row in enumerate(now.scores):
            now.give(cluster, int(row.argmin()))
        return {}


class NearestMerged(Matching):
    """Each cluster updates the model that is nearest; several are merged.

    Models that start identical are all equally near, and the first one gets every cluster: so they start independent.
    """

    def __init__(self, *, size_corrected: bool = False, start: Start = "independent") -> None:
        super().__init__(size_corrected=size_corrected, start=start)

    def decide(self, now: Round, past: Mapping[str, Value]) -> Mapping[str, Array]:
        """By the smallest distance."""
        for cluster, row in enumerate(now.scores):
            now.join(cluster, int(row.argmin()))
        return {}


class OneToOne(Matching):
    """Clusters and models one to one, with the smallest sum of distances; clusters that are left over are rejected."""

    def decide(self, now: Round, past: Mapping[str, Value]) -> Mapping[str, Array]:
        """By linear sum assignment."""
        for cluster, model in assigned(now.scores):
            now.give(cluster, model)
        return {}
