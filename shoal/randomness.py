"""Named randomness: every random number is drawn from a fresh generator that is keyed by what it is for.

Nothing reads a global generator, and no generator lives longer than its purpose. Therefore the number of workers,
the order of clients and extra evaluations change nothing, and a resumed run draws what an uninterrupted one draws.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.random.bit_generator import ISeedSequence

Name = str | int


class _Key(ISeedSequence):
    """A Philox key in the place of a seed: ``Philox(key=...)`` first asks the system for entropy that it then drops."""

    __slots__ = ("_words",)

    def __init__(self, words: np.ndarray) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: object = np.uint64) -> np.ndarray:
        return self._words


def generator(*names: Name) -> np.random.Generator:
    """A fresh numpy generator for these names: Philox keyed by a 128-bit hash of them (about 6 microseconds).

    The same names give the same numbers, different names give independent ones. Integers and strings are told
    apart (``1`` is not ``"1"``).
    """
    # int() so that a numpy integer and the equal Python integer name the same stream.
    plain = tuple(name if isinstance(name, str) else int(name) for name in names)
    key = hashlib.blake2b(repr(plain).encode(), digest_size=16).digest()
    words = np.frombuffer(key, "<u8").astype(np.uint64, copy=False)
    return np.random.Generator(np.random.Philox(_Key(words)))  # type: ignore[arg-type]  # any ISeedSequence will do


def torch_seed(rng: np.random.Generator) -> int:
    """A seed for torch's CPU generator, which uses only the low 32 bits of what it is given."""
    return int(rng.integers(0, 2**32, dtype=np.uint64))


@dataclass(frozen=True)
class Moment:
    """When something happens: rounds count from 1 (0 is the warm-up), exchanges from 0 inside a round."""

    seed: int
    round: int
    exchange: int = 0

    def random(self, purpose: str, client: int | None = None) -> np.random.Generator:
        """The generator for one purpose at this moment, of one client or (``None``) of the server."""
        who: tuple[Name, ...] = ("server",) if client is None else ("client", client)
        return generator(self.seed, self.round, self.exchange, *who, purpose)
