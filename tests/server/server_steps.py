"""Helpers of the server tests: a server optimiser walked through given mean changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.bank import Entry
from shoal.messages import Group, Part
from shoal.randomness import Moment
from shoal.server.base import ServerOptimizer

NAN = float("nan")


class Walk(NamedTuple):
    """What a walk gave after each round."""

    entries: list[Entry]
    deltas: list[Tensor]

    @property
    def x(self) -> list[float]:
        """The first coordinate after each round."""
        return [float(e.vector[0]) for e in self.entries]

    def number(self, name: str) -> list[float]:
        """The first coordinate of a server number after each round."""
        return [float(e.server[name].reshape(-1)[0]) for e in self.entries]

    @property
    def last(self) -> Entry:
        """The entry at the end."""
        return self.entries[-1]


def walk(server: ServerOptimizer, start: Sequence[float] | Tensor, changes: Sequence[object]) -> Walk:
    """Rounds 1, 2, ... in which the clients' mean is the entry plus the change; from an entry without numbers."""
    entry = Entry(torch.as_tensor(start, dtype=torch.float32))
    entries, deltas = [], []
    for round, change in enumerate(changes, start=1):
        mean = entry.vector + torch.as_tensor(change, dtype=torch.float32)
        deltas.append(mean - entry.vector)
        vector, numbers = server.step(entry, mean, Moment(0, round), NAN)
        entry = entry.new(vector=vector, server=numbers)
        entries.append(entry)
    return Walk(entries, deltas)


def bits(tensor: Tensor) -> bytes:
    """The bytes of a tensor: -0.0 differs from 0.0 here."""
    return tensor.numpy().tobytes()


def group(*parts: Part, weights: Sequence[float] | None = None) -> Group:
    """A group; weights default to one per draw."""
    return Group(parts, tuple(float(p.times) for p in parts) if weights is None else tuple(weights))


def sent(values: object, client: int = 0, **fields: object) -> Part:
    """A part with these numbers."""
    return Part(torch.as_tensor(values, dtype=torch.float32), client=client, **fields)  # type: ignore[arg-type]
