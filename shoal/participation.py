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
    """Draws the participants of each round; a draw costs what those that are drawn cost, however many there are.

    ``rows`` gives how many training rows a client has in round 1, ``sizes`` those of all clients at once, or ``None``
    where they are not known without asking for each.
    """

    def __init__(
        self,
        settings: Participation,
        clients: int,
        rows: Callable[[int], int],
        sizes: Callable[[], np.ndarray | None] = lambda: None,
    ) -> None:
        self.settings = settings
        self.clients = clients
        self.rows = rows
        self.sizes = sizes
        self.count = count_of(settings, clients)
        self.probabilities = self._probabilities()
        p = self.probabilities
        self._weighted = None if p is None else (p, _cumulated(p))
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

    def held(self) -> np.ndarray:
        """The training rows of every client in round 1, float64 ``[clients]``."""
        sizes = self.sizes()
        if sizes is None:
            sizes = np.fromiter((self.rows(client) for client in range(self.clients)), np.float64, self.clients)
        return sizes.astype(np.float64)

    def _probabilities(self) -> np.ndarray | None:
        given = self.settings.probabilities
        if given is None:
            return None
        values = self.held() if given == "rows" else given
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
            if self._weighted is None:
                drawn = rng.choice(self.clients, self.count, self.replacement)
            else:
                drawn = self._by_weight(rng, *self._weighted)
        ids, times = np.unique(drawn, return_counts=True)
        return [self._fate(when, int(c), int(t)) for c, t in zip(ids, times, strict=True)]

    def _by_weight(self, rng: np.random.Generator, probabilities: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """What ``rng.choice(clients, count, replacement, probabilities)`` gives, which sums them anew in every draw."""
        if self.replacement:
            return np.searchsorted(ends, rng.random(self.count), side="right")
        drawn = np.empty(0, dtype=np.int64)
        while len(drawn) < self.count:
            if len(drawn):  # in place of those that were drawn twice, others of what is left
                left = probabilities.copy()
                left[drawn] = 0
                ends = _cumulated(left)
            found = np.searchsorted(ends, rng.random(self.count - len(drawn)), side="right")
            drawn = np.append(drawn, found[np.sort(np.unique(found, return_index=True)[1])])
        return drawn

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


def _cumulated(probabilities: np.ndarray) -> np.ndarray:
    ends = np.cumsum(probabilities)
    return np.asarray(ends / ends[-1])
