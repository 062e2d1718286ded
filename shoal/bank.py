"""The bank of models: the one idea that carries every method, and the state of a run.

Tensors are float32 and flat unless said otherwise. Everything here is frozen and never changed in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

Key = str
"""The key of an entry: ``"global"``, ``"task/3"``, ``"concept/0"``, ``"client/17"``, ``"own/17/3"``."""

Value = Tensor | float | int | str | bool | None | list[Any] | dict[str, Any]
"""What a state may hold: tensors and what JSON can say, nothing else (nothing is ever pickled)."""


@dataclass(frozen=True)
class Buffers:
    """The buffers of a model, such as BatchNorm statistics: neither trained nor seen by a server optimiser."""

    floats: Tensor | None = None
    """All float buffers, one flat float32 vector; averaged together with the model."""
    counters: Tensor | None = None
    """All integer buffers, one flat int64 vector; merged by the maximum, never averaged."""

    @property
    def empty(self) -> bool:
        """Whether there are none."""
        return self.floats is None and self.counters is None


@dataclass(frozen=True)
class Entry:
    """One model (or part of one) in the bank.

    ``vector`` covers the segments named in ``segments`` (``None``: the whole space of ``model``; ``()``: loose
    numbers that belong to no model). ``extra`` travels with the entry and is counted in bytes; ``server`` stays
    on the server (moments, records). ``weight`` is the number of training rows behind the entry.
    ``version`` is set by `Bank.put`; two entries of one run have the same version only if they are the same.
    """

    vector: Tensor
    model: str = "main"
    segments: tuple[str, ...] | None = None
    buffers: Buffers = Buffers()
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    server: Mapping[str, Tensor] = field(default_factory=dict)
    weight: float = 0.0
    version: int = 0

    def new(self, **changes: Any) -> Entry:
        """A copy with these fields changed."""
        return replace(self, **changes)

    @property
    def bytes(self) -> int:
        """What sending this entry costs, in bytes: vector, buffers and extra; never ``server``."""
        tensors = (self.vector, self.buffers.floats, self.buffers.counters, *self.extra.values())
        return sum(t.numel() * t.element_size() for t in tensors if t is not None)


@dataclass(frozen=True)
class Bank:
    """All entries by key, and ``memory``: numbers of the method that belong to no single entry."""

    entries: Mapping[Key, Entry] = field(default_factory=dict)
    memory: Mapping[str, Value] = field(default_factory=dict)
    clock: int = 0
    """How many changes this bank has seen; the version of the entry that was put last."""

    def __getitem__(self, key: Key) -> Entry:
        return self.entries[key]

    def put(self, changes: Mapping[Key, Entry | None], **memory: Value) -> Bank:
        """The bank after these changes; ``None`` retires a key, and keywords replace numbers in ``memory``.

        A changed entry gets a version that no entry of this bank ever had, so a key that is retired and born
        again is never taken for the old one. An entry that is put back as it was keeps its version.
        """
        entries, clock = dict(self.entries), self.clock
        for key, entry in changes.items():
            if entry is None:
                entries.pop(key, None)
            elif entries.get(key) is not entry:
                clock += 1
                entries[key] = replace(entry, version=clock)
        return Bank(entries, {**self.memory, **memory}, clock)

    def followed_by(self, after: Bank) -> Bank:
        """``after`` as the next state of this bank, with versions that tell changed entries from the old ones even
        if it was not made by `put`."""
        if after.clock >= self.clock and all(
            self.entries.get(key) is entry or entry.version > self.clock for key, entry in after.entries.items()
        ):
            return after
        changes: dict[Key, Entry | None] = {key: None for key in self.entries if key not in after.entries}
        bank = self.put({**changes, **after.entries})
        return Bank({key: bank.entries[key] for key in after.entries}, after.memory, bank.clock)


@dataclass(frozen=True)
class State:
    """Everything that decides the future of a run, and nothing else. A checkpoint is this."""

    round: int
    """The last round that is finished; 0 before the first (and after the warm-up)."""
    bank: Bank
    clients: Mapping[int, Mapping[str, Value]] = field(default_factory=dict)
    """Private numbers of the clients that have any; written by the loop, from accepted updates only."""
    measured: Mapping[str, Any] = field(default_factory=dict)
    """The memory of each measure by its name: what need not be measured again, what must be measured next."""
    metrics_bytes: int = 0
    """The length of ``metrics.jsonl`` at this state; a resumed run cuts the file to it."""
