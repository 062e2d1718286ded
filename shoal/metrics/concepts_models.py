"""Which model is which concept's, and how often clients and server kept to that. Pure functions of a run's lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..bank import Key

RECORD = "concepts"
"""The record of a round that all of this is read from, see `shoal.metrics.concepts.Concepts`."""

Concept = int | str


class Pair(NamedTuple):
    """So many clients chose this model, and their cluster updated that one (``None``: it was dropped)."""

    choice: Key
    model: Key | None
    clients: int


class Met(NamedTuple):
    """A concept in a round: the stand-in cluster, which has most of its clients, what became of it, and the clients."""

    round: int
    concept: Concept
    cluster: int
    model: Key | None
    fate: str
    pairs: tuple[Pair, ...]

    @property
    def clients(self) -> int:
        """How many clients met the concept, of those whose answers reached the server."""
        return sum(pair.clients for pair in self.pairs)


class Share(NamedTuple):
    """How many of so many clients' rounds are right, by the four ways of counting."""

    strict: int
    accepted: int
    strict_own: int
    accepted_own: int
    all: int


@dataclass(frozen=True)
class Models:
    """A whole run: every concept in every round, and whose the models are.

    - ``label``: what concepts are called in the stream's truth (``concept``, ``cluster``, ...);
    - ``of``: the model of each concept that was met: the one with most votes of its clients. A client's answer gives
      one vote to the model that it trained, and one to the model that its cluster updated. Of equal ones that of the
      latest vote counts, then the first;
    - ``owners``: the concept that each of these models is of: of several the one with most votes for it, or the first
      of equal ones;
    - ``lost``: the concepts that have no model of their own: they share that of another one, or their clusters never
      updated the one that their clients choose;
    - ``duplicated``: models that were updated and are no concept's, and the concept that most of their votes are of.
      Models that were retired do not count; of joined ones the votes are those of the model that they went into.
    """

    label: str
    met: tuple[Met, ...]
    of: Mapping[Concept, Key]
    owners: Mapping[Key, Concept]
    lost: tuple[Concept, ...]
    duplicated: Mapping[Key, Concept]

    def accuracy(self, met: Iterable[Met] | None = None) -> Share:
        """How many clients' rounds are right, of all or of these.

        Right is who trained the model of its concept while its cluster updated that model, too. ``strict`` and
        ``accepted`` look at the concept's stand-in cluster in the place of the client's own (``_own``), so that errors
        of the clustering do not count. For ``accepted`` the choice alone must be right where the cluster was dropped.
        """
        found = [0] * 5
        for one in self.met if met is None else met:
            model = self.of[one.concept]
            for pair in one.pairs:
                right = pair.choice == model
                ways = (
                    one.model == model,
                    one.model in (model, None),
                    pair.model == model,
                    pair.model in (model, None),
                )
                for place, way in enumerate(ways):
                    found[place] += pair.clients * (right and way)
                found[4] += pair.clients
        return Share(*found)


def models_of(lines: Iterable[Mapping[str, Any]]) -> Models | None:
    """Whose the models are, from the lines of a run; ``None`` where no concept was met. Broken records are left out."""
    records = [line for line in lines if line.get("record") == RECORD and isinstance(line.get("round"), int)]
    became = _survivors(records)
    met = tuple(one for record in records for one in _met(record, became))
    if not met:
        return None
    votes: Counter[tuple[Concept, Key]] = Counter()
    latest: dict[tuple[Concept, Key], int] = {}
    updated: set[tuple[Concept, Key]] = set()
    for one in met:
        for pair in one.pairs:
            for model in (pair.choice, pair.model):
                if model is not None:
                    votes[one.concept, model] += pair.clients
                    latest[one.concept, model] = max(one.round, latest.get((one.concept, model), 0))
            updated |= set() if pair.model is None else {(one.concept, pair.model)}
    concepts = sorted({one.concept for one in met}, key=order)
    keys = sorted({model for _, model in votes}, key=entry_order)
    of = {
        concept: max(keys, key=lambda key: (votes[concept, key], latest.get((concept, key), 0), -keys.index(key)))
        for concept in concepts
    }
    owners = {key: max((c for c in concepts if of[c] == key), key=lambda c: votes[c, key]) for key in of.values()}
    retired = {became.get(str(key), str(key)) for record in records for key in record.get("retired") or ()}
    touched = {model for _, model in updated}
    spare = [key for key in keys if key in touched and key not in owners and key not in retired]
    return Models(
        label=str(records[0].get("label", "concept")),
        met=met,
        of=of,
        owners=owners,
        lost=tuple(c for c in concepts if owners[of[c]] != c or (c, of[c]) not in updated),
        duplicated={key: max(concepts, key=lambda c: votes[c, key]) for key in spare},
    )


def order(concept: Concept) -> tuple[bool, Concept]:
    """Sorts numbers by size and names behind them."""
    return isinstance(concept, str), concept


def entry_order(key: Key) -> tuple[int, Key]:
    """Sorts ``concept/2`` before ``concept/10``."""
    return len(key), key


def _survivors(records: Sequence[Mapping[str, Any]]) -> dict[Key, Key]:
    """What became of the models that were joined with others, in the end."""
    found: dict[Key, Key] = {}
    for record in records:
        for key, into in (record.get("joined") or {}).items():
            found = {old: into if now == key else now for old, now in found.items()} | {key: into}
    return found


def _met(record: Mapping[str, Any], became: Mapping[Key, Key]) -> Iterable[Met]:
    def now(key: Any) -> Any:
        return became.get(key, key) if isinstance(key, str) else None

    for one in record.get("met") or ():
        try:
            pairs = tuple(Pair(now(choice), now(model), int(count)) for choice, model, count in one["pairs"])
            found = Met(
                record["round"], one["concept"], int(one["cluster"]), now(one["model"]), str(one["fate"]), pairs
            )
        except (KeyError, TypeError, ValueError):
            continue
        if found.pairs and isinstance(found.concept, int | str) and all(pair.choice is not None for pair in pairs):
            yield found
