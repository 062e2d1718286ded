"""Which model is which concept's, and how often clients and server kept to that. Pure functions of a run's lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    - ``lost``: the concepts that have no model of their own: they share that of another one, their clusters never
      updated the one that their clients choose, or it was retired;
    - ``duplicated``: models that were updated and are no concept's, and the concept that most of their votes are of.
      Models that were retired do not count; of joined ones the votes are those of the model that they went into.
    """

    label: str
    met: tuple[Met, ...]
    of: Mapping[Concept, Key]
    owners: Mapping[Key, Concept]
    lost: tuple[Concept, ...]
    duplicated: Mapping[Key, Concept]
    retired: tuple[Key, ...] = ()

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


@dataclass(frozen=True)
class Tally:
    """The votes of the rounds so far, from which `Models` are found; it grows with concepts and models, not rounds."""

    votes: Mapping[tuple[Concept, Key], tuple[int, int, bool]]
    """Of each concept for a model: how many, the round of the latest one, and whether it ever updated the model."""
    became: Mapping[Key, Key]
    """The models that were joined with others, and where they are now."""
    retired: tuple[Key, ...]

    @classmethod
    def empty(cls) -> Tally:
        """Before the first round."""
        return cls({}, {}, ())

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> Tally:
        """From what `kept` gave; the empty one from nothing."""
        votes = {(concept, key): (n, last, bool(own)) for concept, key, n, last, own in kept.get("votes", ())}
        return cls(votes, dict(kept.get("became", {})), tuple(kept.get("retired", ())))

    def kept(self) -> dict[str, Any]:
        """As JSON values."""
        votes = [[*pair, *found] for pair, found in self.votes.items()]
        return {"votes": votes, "became": dict(self.became), "retired": list(self.retired)}

    def after(self, record: Mapping[str, Any]) -> Tally:
        """With the votes of one more record of a round; those for a joined model go to the one that it went into."""
        votes = dict(self.votes)

        def add(concept: Concept, key: Key, n: int, last: int, own: bool) -> None:
            old = votes.get((concept, key), (0, 0, False))
            votes[concept, key] = (old[0] + n, max(old[1], last), old[2] or own)

        for one in _met(record, self.became):
            for pair in one.pairs:
                add(one.concept, pair.choice, pair.clients, one.round, False)
                if pair.model is not None:
                    add(one.concept, pair.model, pair.clients, one.round, True)
        became = _survivors([record], self.became)
        for concept, key in [pair for pair in votes if pair[1] in became]:
            add(concept, became[key], *votes.pop((concept, key)))
        retired = dict.fromkeys([*self.retired, *map(str, record.get("retired") or ())])
        return Tally(votes, became, tuple(dict.fromkeys(became.get(key, key) for key in retired)))

    def owned(self) -> tuple[dict[Concept, Key], dict[Key, Concept], tuple[Concept, ...], dict[Key, Concept]]:
        """``of``, ``owners``, ``lost`` and ``duplicated`` of `Models`, as known by now."""
        votes = self.votes
        concepts = sorted({concept for concept, _ in votes}, key=order)
        keys = sorted({key for _, key in votes}, key=entry_order)

        def rank(concept: Concept, key: Key) -> tuple[int, int, int]:
            number, latest, _ = votes.get((concept, key), (0, 0, False))
            return number, latest, -keys.index(key)

        of = {concept: max(keys, key=lambda key: rank(concept, key)) for concept in concepts}
        owners = {key: max((c for c in concepts if of[c] == key), key=lambda c: rank(c, key)[0]) for key in of.values()}
        touched = {key for (_, key), found in votes.items() if found[2]}
        spare = [key for key in keys if key in touched and key not in owners and key not in self.retired]
        lost = tuple(c for c in concepts if owners[of[c]] != c or not votes[c, of[c]][2] or of[c] in self.retired)
        return of, owners, lost, {key: max(concepts, key=lambda c: rank(c, key)[0]) for key in spare}


def models_of(lines: Iterable[Mapping[str, Any]]) -> Models | None:
    """Whose the models are, from the lines of a run; ``None`` where no concept was met. Broken records are left out."""
    records = [line for line in lines if line.get("record") == RECORD and isinstance(line.get("round"), int)]
    became = _survivors(records)
    met = tuple(one for record in records for one in _met(record, became))
    if not met:
        return None
    tally = Tally.empty()
    for record in records:
        tally = tally.after(record)
    return Models(str(records[0].get("label", "concept")), met, *tally.owned(), tally.retired)


def order(concept: Concept) -> tuple[bool, Concept]:
    """Sorts numbers by size and names behind them."""
    return isinstance(concept, str), concept


def entry_order(key: Key) -> tuple[int, Key]:
    """Sorts ``concept/2`` before ``concept/10``."""
    return len(key), key


def _survivors(records: Iterable[Mapping[str, Any]], before: Mapping[Key, Key] | None = None) -> dict[Key, Key]:
    """What became of the models that were joined with others, in the end; ``before``: by the records before these."""
    found = dict(before or {})
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
