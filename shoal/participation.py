"""Who takes part in a round, and who fails."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .config import Participation
from .errors import ConfigError
from .randomness import Moment


@dataclass(frozen=True)
class Selected:
    """A client that takes part, drawn ``times`` times; as a straggler its update is lost, as a crash it raises.

    ``work`` is the share of its local steps that it takes.
    """

    client: int
    times: int = 1
    straggler: bool = False
    crash: bool = False
    work: float = 1.0


def count_of(settings: Participation, clients: int) -> int:
    """How many are drawn each round: ``count``, or the nearest whole number to ``fraction * clients``, at least one."""
    if settings.count is not None:
        return settings.count
    return max(1, math.floor(settings.fraction * clients + 0.5))


class Selection:
    """Draws the participants of each round. ``rows`` gives how many training rows a client has in round 1."""

    def __init__(self, settings: Participation, clients: int, rows: Callable[[int], int]) -> None:
        self.settings = settings
        self.clients = clients
        self.rows = rows
        self.count = count_of(settings, clients)
        self.probabilities = self._probabilities(rows)
        replacement = settings.replacement
        self.replacement = self.probabilities is not None if replacement is None else replacement
        available = clients if self.probabilities is None else int(np.count_nonzero(self.probabilities))
        if not self.replacement and self.count > available:
            raise ConfigError(
                f"participation: {self.count} different clients a round, but only {available} can be drawn; "
                f"lower count, or set replacement: true"
            )
        if settings.minimum > (1 if self.replacement else self.count):
            raise ConfigError(
                f"participation.minimum: a round needs {settings.minimum} updates, but may have only "
                f"{1 if self.replacement else self.count} different participants; lower minimum or raise count"
            )

    def _probabilities(self, rows: Callable[[int], int]) -> np.ndarray | None:
        given = self.settings.probabilities
        if given is None:
            return None
        values = [rows(c) for c in range(self.clients)] if given == "rows" else given
        p = np.asarray(values, dtype=np.float64)
        if p.shape != (self.clients,):
            raise ConfigError(
                f"participation.probabilities: one number per client; got {p.size} for {self.clients} clients"
            )
        if not np.isfinite(p).all() or (p < 0).any() or not p.any():
            raise ConfigError("participation.probabilities: finite numbers >= 0, not all zero")
        p = p / p.max()  # first, because the sum of huge numbers overflows
        return np.asarray(p / p.sum())

    def draw(self, when: Moment) -> list[Selected]:
        """The participants of a round, sorted by client. Never empty."""
        if self.probabilities is None and not self.replacement and self.count == self.clients:
            drawn = np.arange(self.clients)
        else:
            rng = when.random("participation")
            drawn = rng.choice(self.clients, self.count, self.replacement, self.probabilities)
        ids, times = np.unique(drawn, return_counts=True)
        return [self._fate(when, int(c), int(t)) for c, t in zip(ids, times, strict=True)]

    def _fate(self, when: Moment, client: int, times: int) -> Selected:
        late, broken = self.settings.straggler_probability, self.settings.crash_probability
        work = self._work(when, client)
        if not late and not broken:
            return Selected(client, times, work=work)
        rng = when.random("fate", client)
        a, b = rng.random(2)
        return Selected(client, times, straggler=bool(a < late), crash=bool(b < broken), work=work)

    def _work(self, when: Moment, client: int) -> float:
        if not self.settings.partial_probability:
            return 1.0
        # Apart from the other fates, so that partial work changes nobody else's.
        a, b = when.random("partial work", client).random(2)
        least = self.settings.partial_least
        return float(least + (1 - least) * b) if a < self.settings.partial_probability else 1.0
