"""Which client meets which concept in which round, and which concepts exist when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from ..errors import ConfigError, nearest
from ..randomness import generator
from .cells import Array
from .dirichlet import dirichlet

Order = Literal["random", "cyclic", "listed"]
Weights = list[float] | list[list[float]] | dict[str, float]
Sequences = list[list[int | None]]

NONE = -1
"""In the place of a concept: none."""


class Schedule:
    """Which concepts exist in which rounds: bool ``[spans, concepts]``, and the first round of each span.

    Every concept exists in some round, if not in one of the run.
    """

    def __init__(self, given: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
        """``given``: mappings with ``concept``, and ``from`` (1) and ``until`` (the end), both inclusive.

        A concept of several mappings exists in all these rounds, one of none always. Raises `ConfigError`.
        """
        spans = [_span(item, place, names) for place, item in enumerate(given)]
        points = sorted({1} | {first for _, first, _ in spans} | {last + 1 for _, _, last in spans if last is not None})
        exists = np.ones((len(points), len(names)), dtype=bool)
        for concept in {concept for concept, _, _ in spans}:
            own = [(first, last) for number, first, last in spans if number == concept]
            exists[:, concept] = [any(a <= p and (b is None or p <= b) for a, b in own) for p in points]
        changes = [0, *(i for i in range(1, len(points)) if (exists[i] != exists[i - 1]).any())]
        self.starts = np.array(points, dtype=np.int64)[changes]
        self.exists = exists[changes]

    def first(self, concept: int) -> int:
        """The first round in which a concept exists."""
        return int(self.starts[self.exists[:, concept].argmax()])

    def spans(self, concept: int) -> list[tuple[int, int | None]]:
        """The first and last rounds (``None``: none is the last) of the times in which a concept exists."""
        ends = [*(int(start) - 1 for start in self.starts[1:]), None]
        found: list[tuple[int, int | None]] = []
        for start, end, there in zip(self.starts.tolist(), ends, self.exists[:, concept], strict=True):
            if there and found and found[-1][1] == start - 1:
                found[-1] = (found[-1][0], end)
            elif there:
                found.append((start, end))
        return found


def _span(item: Mapping[str, Any], place: int, names: Sequence[str]) -> tuple[int, int, int | None]:
    where = f"stream.schedule[{place}]"
    for key in item:
        if key not in ("concept", "from", "until"):
            raise ConfigError(f"{where}: no such setting {key!r}; {nearest(str(key), ['concept', 'from', 'until'])}")
    concept, first, last = item.get("concept"), item.get("from"), item.get("until")
    if isinstance(concept, str) and concept in names:
        concept = list(names).index(concept)
    if isinstance(concept, bool) or not isinstance(concept, int) or not 0 <= concept < len(names):
        raise ConfigError(
            f"{where}.concept: a number from 0 to {len(names) - 1} or one of {', '.join(names)}; got {concept!r}"
        )
    for key, value in (("from", first), ("until", last)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ConfigError(f"{where}.{key}: a round, from 1 on; got {value!r}")
    first = 1 if first is None else first
    if last is not None and last < first:
        raise ConfigError(f"{where}: the concept exists from round {first} until round {last}, which is no round")
    return concept, first, last


class Meetings:
    """Who meets what when: a pure function of (seed, client, round), of which nothing is stored per client and round.

    - ``random``: each client draws one of the concepts that exist, by its weights;
    - ``cyclic``: one after another: in round r client c meets, of the n concepts that exist and have a weight for it,
      number (c + r - 1) mod n;
    - ``listed``: ``sequence`` has one list per round with a concept (or nothing) for every client; after the last list
      it begins again. A listed concept that does not exist is none.
    """

    def __init__(
        self,
        order: Order,
        clients: int,
        schedule: Schedule,
        weights: Weights | None,
        sequence: Sequences | None,
        seed: int,
    ) -> None:
        self._order = order
        self._schedule = schedule
        self._seed = seed
        count = schedule.exists.shape[1]
        if (order == "listed") != (sequence is not None):
            raise ConfigError("stream.sequence: goes with order: listed, one list per round; give both or neither")
        if order == "listed" and weights is not None:
            raise ConfigError("stream.weights: nothing is drawn with order: listed; leave them out")
        self._sequence = None if sequence is None else _checked(sequence, clients, count)
        self._weights = weigh(weights, clients, count, seed)

    def may_meet(self, clients: int) -> Array:
        """Which clients may ever meet which concepts, bool ``[clients, concepts]``."""
        count = self._weights.shape[1]
        if self._sequence is None:
            return np.broadcast_to(self._weights > 0, (clients, count))
        return np.stack([(self._sequence == concept).any(axis=0) for concept in range(count)], axis=1)

    def until(self, client: int, round: int) -> Array:
        """The concept that a client meets in each round from 1 to this one, int64 ``[round]``; -1: none."""
        starts, exists = self._schedule.starts, self._schedule.exists
        found = np.full(round, NONE, dtype=np.int64)
        drawn = None
        if self._order == "random":
            drawn = generator(self._seed, "stream", "concept", client).random(round)
        for first, last, there in zip(starts, [*(starts[1:] - 1), round], exists, strict=True):
            span = slice(first - 1, min(last, round))
            rounds = np.arange(span.start, span.stop) + 1
            if not len(rounds):
                continue
            if self._sequence is not None:
                listed = self._sequence[(rounds - 1) % len(self._sequence), client]
                found[span] = np.where((listed >= 0) & there[listed], listed, NONE)
                continue
            weights = np.where(there, self._weights[client % len(self._weights)], 0.0)
            met = np.flatnonzero(weights > 0)
            if not len(met):
                continue
            if drawn is None:
                found[span] = met[(client + rounds - 1) % len(met)]
            else:
                edges = np.cumsum(weights[met] / weights[met].max())
                found[span] = met[np.searchsorted(edges[:-1], drawn[span] * edges[-1], side="right")]
        return found


def weigh(given: Weights | None, clients: int, count: int, seed: int) -> Array:
    """The weights of concepts: ``[clients, concepts]``, or ``[1, concepts]`` where all clients have the same.

    ``given``: one number per concept, such a list for each client, or ``{dirichlet: alpha}``: every client's are drawn
    from Dir(alpha, ..., alpha). Equal without. Raises `ConfigError`.
    """
    if given is None:
        return np.ones((1, count))
    if isinstance(given, dict):
        alpha = given.get("dirichlet", 0.0)
        if list(given) != ["dirichlet"] or not alpha > 0:
            raise ConfigError(f"stream.weights: {{dirichlet: alpha}}, with an alpha above 0, or numbers; got {given}")
        return dirichlet(np.ones(count), alpha, clients, generator(seed, "stream", "weights"))
    each = [line for line in given if isinstance(line, list)]
    lines: list[Any] = each or [given]
    if len(each) not in (0, clients) or any(len(line) != count for line in lines):
        raise ConfigError(
            f"stream.weights: a number for each of {count} concepts, or such a list for each of {clients} clients; got "
            f"{given if len(given) < 10 else f'{len(given)} items'}"
        )
    weights = np.array(lines, dtype=np.float64)
    bad = ~(np.isfinite(weights) & (weights >= 0)).all(axis=1) | ~(weights > 0).any(axis=1)
    if bad.any():
        who = int(np.flatnonzero(bad)[0])
        raise ConfigError(
            f"stream.weights: finite numbers, none below 0, and one above 0 at least; got {weights[who].tolist()}"
            + (f" for client {who}" if len(weights) > 1 else "")
        )
    return weights


def _checked(sequence: Sequences, clients: int, count: int) -> Array:
    for place, line in enumerate(sequence):
        wrong = [concept for concept in line if concept is not None and not 0 <= concept < count]
        if len(line) != clients or wrong:
            raise ConfigError(
                f"stream.sequence[{place}]: a concept from 0 to {count - 1}, or null, for each of {clients} clients; "
                f"got {wrong[0] if wrong else f'{len(line)} of them'}"
            )
    if not sequence:
        raise ConfigError("stream.sequence: needs one list at least")
    return np.array([[NONE if c is None else c for c in line] for line in sequence], dtype=np.int64)
