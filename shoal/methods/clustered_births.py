"""Concept Matching where the number of concepts is unknown: models are born, joined and retired.

There is always one model that nobody trained, sent along with the others while there are fewer than ``most``.

- **Born.** Untrained models are open to clusters in as many places as (a) there are more clusters than trained models,
  (b) clusters were trained from an untrained model, or (c) clusters were rejected though their clients lose more than
  ``gap`` over what the model that they chose usually loses: a concept that is new, not one that moved. A cluster that
  is matched with such a place makes it a model of its own, which starts from the model that most of it was trained
  from.
- **Joined.** Two models whose distance is below ``gap`` in ``agree`` rounds in a row in which both were updated become
  one, their mean by rows. Such rounds count only if both lose less on the rows of their own clients, by more than
  ``gap``, than each model there that nobody trained: models that know nothing yet are all equally good. The distance is
  FedDrift's, ``max(L_ij - L_ii, L_ji - L_jj, 0)`` with the loss ``L_ij`` of model i on the rows of the clients of model
  j, of which everyone sends all its losses.
- **Retired.** A model that was not updated for ``unused`` rounds, never the last trained one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from ..bank import Bank, Entry, Key, Value
from ..clustering.births import Births, columns, cross_losses, distances
from ..clustering.geometry import Array
from ..clustering.matching import Flags, Matched, remembered
from ..messages import Update
from ..randomness import Moment
from .clustered import DECIDED, choice_of, joined, keys_of, number

if TYPE_CHECKING:
    from .clustered_matching import ConceptMatching, RoundClusters

LOSSES = "concept/losses"
"""In ``Part.extra``: the client's losses of all models that it was given."""
LIVES = "births"
"""In ``Bank.memory``: what the rules remember, see `Lives`."""


@dataclass(frozen=True)
class Lives:
    """What is remembered of models: ``loss`` that their own clients had, the round of the last update (``used``), for
    how many rounds pairs were equally good (``close``), and the number of the next one that is born."""

    loss: Mapping[Key, float]
    used: Mapping[Key, int]
    close: Mapping[str, int]
    next: int

    @classmethod
    def of(cls, bank: Bank) -> Lives:
        """As the bank has it; nothing in the first round."""
        known: Any = bank.memory.get(LIVES) or {"loss": {}, "used": {}, "close": {}, "next": len(bank.entries)}
        return cls(known["loss"], known["used"], known["close"], known["next"])

    def kept(self, keys: Sequence[Key]) -> dict[str, Any]:
        """For the bank, of these models alone."""
        pairs = {pair: n for pair, n in self.close.items() if set(pair.split(" ")) <= set(keys)}
        return {
            "loss": {key: self.loss[key] for key in keys if key in self.loss},
            "used": {key: self.used[key] for key in keys if key in self.used},
            "close": pairs,
            "next": self.next,
        }


@dataclass(frozen=True)
class Open:
    """The models that a round's clusters are matched with: those trained before, and places for new ones."""

    keys: tuple[Key, ...]
    spares: tuple[Key, ...]
    refused: int
    matched: Matched


class Growth:
    """Births, joins and retirements by these rules, for `ConceptMatching`."""

    def __init__(self, rules: Births) -> None:
        self.rules = rules

    def merge(
        self,
        method: ConceptMatching,
        bank: Bank,
        updates: Sequence[Update],
        sent: Sequence[Update],
        found: RoundClusters,
        when: Moment,
    ) -> Bank:
        """The bank after the clusters' match, with the models that came and went."""
        keys = keys_of(bank)
        lives = Lives.of(bank)
        opened = self._opened(method, bank, sent, found, lives)
        columns_of, matched = [*opened.keys, *opened.spares], opened.matched
        models = [None if model is None else columns_of[model] for model in matched.models]
        homes = [models[label] for label in found.clusters.labels.tolist()]
        starts = {
            key: bank[leader].new(extra={}, server={}, weight=0.0)
            for key, leader in zip(models, found.leaders, strict=True)
            if key in opened.spares and key is not None
        }
        changes = method.merged(bank.put(starts), method.sent_home(updates, sent, homes), when)
        entries: dict[Key, Entry] = {**bank.entries, **{key: e for key, e in changes.items() if e is not None}}
        matched = method.settled(found, matched, sent, columns_of, entries, bank)
        lives = self._lived(lives, keys, opened.keys, sent, homes, when)
        alive = {*opened.keys, *starts}
        gone = self._joins(lives, alive)
        for survivor in sorted(set(gone.values()), key=number):
            group = [survivor, *sorted((key for key, other in gone.items() if other == survivor), key=number)]
            entries[survivor] = joined(entries[survivor], [entries[key] for key in group])
        retired = self._retired(lives, alive - set(gone), when)
        after = {key: entry for key, entry in entries.items() if key not in gone and key not in retired}
        following = lives.next + sum(key not in bank.entries for key in starts)
        if not set(after) - alive and len(after) < self.rules.most:
            after[f"concept/{following}"] = method.fresh(following)
            following += 1
        places = [columns_of.index(key) if key in columns_of else None for key in sorted(after, key=number)]
        told = method.decision(
            when,
            sent,
            found,
            matched,
            columns_of,
            born=list(starts),
            joined=gone,
            retired=retired,
            refused=opened.refused,
        )
        memory: dict[str, Value] = {
            **columns(matched.numbers, places),
            DECIDED: told,
            LIVES: replace(lives, next=following).kept([*after]),
        }
        removed: dict[Key, Entry | None] = {key: None for key in bank.entries if key not in after}
        return bank.put({**removed, **after}, **memory)

    # ---- born ------------------------------------------------------------------------------------------------

    def _opened(
        self, method: ConceptMatching, bank: Bank, sent: Sequence[Update], found: RoundClusters, lives: Lives
    ) -> Open:
        """The match, with as many places for new models as the rule allows."""
        keys = keys_of(bank)
        claimed = remembered(bank.memory, "claimed", len(keys)) > 0
        known = [key for key, one in zip(keys, claimed, strict=True) if one]
        untrained = [key for key in keys if key not in known]
        room = len(untrained) + max(0, self.rules.most - len(keys))
        names = [*untrained, *(f"concept/{lives.next + i}" for i in range(room - len(untrained)))]
        wanted = max(len(found.means) - len(known), sum(leader not in known for leader in found.leaders))

        def match(spares: int) -> Matched:
            places = [keys.index(key) if key in keys else None for key in [*known, *names[:spares]]]
            models = [*(bank[key].vector for key in known)]
            models += [bank[key].vector if key in keys else method.fresh(number(key)).vector for key in names[:spares]]
            return method.matched(found, models, columns(bank.memory, places))

        spares = min(wanted, room)
        matched = match(spares)
        new = sum(
            fate == "rejected" and self._is_new(cluster, sent, found, lives, keys)
            for cluster, fate in enumerate(matched.fates)
        )
        refused = max(0, wanted - room) + max(0, spares + new - room)
        if new and spares < room:
            spares = min(spares + new, room)
            matched = match(spares)
        return Open(tuple(known), tuple(names[:spares]), refused, matched)

    def _is_new(
        self, cluster: int, sent: Sequence[Update], found: RoundClusters, lives: Lives, keys: Sequence[Key]
    ) -> bool:
        """Whether the cluster's clients lose more than the gap over what the models that they chose usually lose."""
        rises, weights = [], []
        for update, label in zip(sent, found.clusters.labels.tolist(), strict=True):
            if label == cluster:
                key, part = choice_of(update)
                if LOSSES not in part.extra or key not in lives.loss:
                    return False
                rises.append(float(part.extra[LOSSES][keys.index(key)]) - lives.loss[key])
                weights.append(update.weight * update.times)
        return float(np.average(rises, weights=weights)) > self.rules.gap

    # ---- joined and retired ----------------------------------------------------------------------------------

    def _lived(
        self,
        lives: Lives,
        keys: Sequence[Key],
        known: Sequence[Key],
        sent: Sequence[Update],
        homes: Sequence[Key | None],
        when: Moment,
    ) -> Lives:
        """What is remembered after this round's losses."""
        used = {**lives.used, **{home: when.round for home in homes if home is not None}}
        rows: list[Tensor] = []
        places: list[int | None] = []
        weights: list[float] = []
        for update, home in zip(sent, homes, strict=True):
            extra = choice_of(update)[1].extra
            if LOSSES in extra:
                rows.append(extra[LOSSES])
                places.append(keys.index(home) if home in keys else None)
                weights.append(update.weight * update.times)
        if not rows:
            return replace(lives, used=used)
        cross = cross_losses(rows, places, weights)
        loss = {**lives.loss, **{key: float(cross[j, j]) for j, key in enumerate(keys) if np.isfinite(cross[j, j])}}
        untrained = cross[[place for place, key in enumerate(keys) if key not in known]]
        learnt = np.diagonal(cross) < untrained.min(axis=0, initial=np.inf) - self.rules.gap
        return replace(lives, used=used, loss=loss, close=self._close(lives, keys, distances(cross), learnt))

    def _close(self, lives: Lives, keys: Sequence[Key], apart: Array, learnt: Flags) -> dict[str, int]:
        close = dict(lives.close)
        for i, one in enumerate(keys):
            for j, other in enumerate(keys[:i]):
                if np.isfinite(apart[i, j]):  # both were updated
                    pair = f"{other} {one}"
                    alike = apart[i, j] < self.rules.gap and learnt[i] and learnt[j]
                    close[pair] = close.get(pair, 0) + 1 if alike else 0
        return {pair: rounds for pair, rounds in close.items() if rounds}

    def _joins(self, lives: Lives, alive: set[Key]) -> dict[Key, Key]:
        """Which model goes into which other one, that of the lowest number among all that are alike."""
        into = {key: key for key in alive}

        def root(key: Key) -> Key:
            return key if into[key] == key else root(into[key])

        for pair, rounds in sorted(lives.close.items()):
            one, other = pair.split(" ")
            if rounds >= self.rules.agree and one in alive and other in alive:
                low, high = sorted((root(one), root(other)), key=number)
                into[high] = low
        return {key: root(key) for key in sorted(alive, key=number) if root(key) != key}

    def _retired(self, lives: Lives, alive: set[Key], when: Moment) -> list[Key]:
        if self.rules.unused is None:
            return []
        idle = [key for key in alive if when.round - lives.used.get(key, when.round) >= self.rules.unused]
        kept = max(alive, key=lambda key: (lives.used.get(key, 0), -number(key)), default=None)
        return sorted((key for key in idle if key != kept), key=number)


def plain(update: Update) -> Update:
    """The update without the losses, which are no learner's numbers."""
    parts = {
        key: replace(part, extra={name: value for name, value in part.extra.items() if name != LOSSES})
        if LOSSES in part.extra
        else part
        for key, part in update.parts.items()
    }
    return replace(update, parts=parts)
