"""FedWeIT's entries: their keys, what the bank remembers of them, and collected parts in few bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..bank import Bank, Entry, Key

POOL, WHERE = "pool", "where"
"""Names in ``Entry.extra``: of an own entry the client and task of each part that it borrows from, int64 ``[k, 2]``; of
a part which of its numbers are sent, one bit each."""


def own_key(client: int, task: int | None) -> Key:
    """The key of a client's own numbers of a task."""
    return f"own/{client}/{task}"


def part_key(client: int, task: int) -> Key:
    """The key of the part that the server collected."""
    return f"part/{client}/{task}"


def numbers_of(key: Key) -> tuple[int, int]:
    """Client and task of a key."""
    _, client, task = key.split("/")
    return int(client), int(task)


def table(bank: Bank, name: str) -> Mapping[str, Any]:
    found = bank.memory[name]
    assert isinstance(found, Mapping)
    return found


def uncollected(bank: Bank, key: Key) -> bool:
    """Whether an own entry has changed since its part was collected."""
    part = bank.entries.get(part_key(*numbers_of(key)))
    return part is None or part.version < bank[key].version


def borrowed(bank: Bank, key: Key) -> list[Key]:
    """The parts that an own entry borrows from."""
    entry = bank.entries.get(key)
    return [] if entry is None else [part_key(*pair) for pair in entry.extra[POOL].tolist()]


def encoded(vector: Tensor, where: Tensor, weight: float) -> Entry:
    """A part as loose numbers: those at the places that the mask has, and a bit for each place."""
    bits = torch.from_numpy(np.packbits(where.numpy()))
    return Entry(vector[where], segments=(), extra={WHERE: bits}, weight=weight)


def decoded(entry: Entry, size: int) -> Tensor:
    """The part of so many numbers that was `encoded`."""
    where = torch.from_numpy(np.unpackbits(entry.extra[WHERE].numpy(), count=size)).bool()
    return torch.zeros(size).masked_scatter_(where, entry.vector)
