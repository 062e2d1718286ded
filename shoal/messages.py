"""What passes between the round loop, a method, and its client programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from .bank import Buffers, Entry, Key, Value
from .randomness import Moment
from .requests import Score

if TYPE_CHECKING:
    from .models.base import Model
    from .server.sums import Sum


@dataclass(frozen=True)
class World:
    """Public knowledge, bound once: ``Method(world, ...)``. No stream, no data, no truth."""

    seed: int
    clients: int
    rounds: int
    models: Mapping[str, Model]
    """Architectures by name; ``"main"`` always exists."""
    tasks: int = 0
    classes: int = 0
    task_models: tuple[str, ...] = ()
    """The architecture of each task's model; all ``"main"`` unless tasks have heads of different sizes."""


@dataclass(frozen=True)
class Participant:
    """A client that takes part, as the server sees it. ``times`` counts draws with replacement."""

    id: int
    task: int | None = None
    """The client's current task, only if the stream says that clients know it; never its concept or domain."""
    times: int = 1
    truth: int | str | None = None
    """The true label of its rows, only for a method that says so (`Method.needs_truth`): an oracle."""


@dataclass(frozen=True)
class Client:
    """A client as its own program sees it: its rows (indices into the data set) and its private state."""

    id: int
    when: Moment
    train: Tensor
    validation: Tensor
    state: Mapping[str, Value] = field(default_factory=dict)
    task: int | None = None
    work: float = 1.0
    """The share of the local steps that it takes in this round, above 0; see ``participation.partial_probability``."""
    schedule: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    """Where ``local.lr_schedule`` finds its numbers: the extra of the entry being trained; set by the learner."""
    slots: Mapping[str, Tensor] | None = field(default=None, repr=False)
    """The moments with which a fit of the entry being trained begins, ``None`` for new ones; set by the learner."""
    used: set[str] = field(default_factory=set, repr=False, compare=False)

    def random(self, purpose: str) -> np.random.Generator:
        """The generator for this purpose in this round; asking twice for one purpose is an error."""
        self.claim(purpose)
        return self.when.random(purpose, self.id)

    def claim(self, purpose: str) -> None:
        """Marks a purpose as used, without drawing; raises ``ValueError`` if it was already."""
        if purpose in self.used:
            raise ValueError(
                f"purpose {purpose!r} used twice by client {self.id}: both uses would get the same random "
                f"numbers; give the second one a name of its own, such as purpose={purpose + '-2'!r}"
            )
        self.used.add(purpose)


@dataclass(frozen=True)
class Assignment:
    """Which entries one client receives; at most one per client and exchange.

    ``keys`` are sent to it and counted in bytes; ``own`` are already there, or will be born there (`Method.births`),
    and answers for them stay there. ``entries`` is filled in by the loop, from the bank as it was at the start of the
    exchange. ``times`` counts draws with replacement: the client trains once and counts that often.
    """

    client: int
    keys: tuple[Key, ...] = ()
    own: tuple[Key, ...] = ()
    times: int = 1
    note: Mapping[str, Any] = field(default_factory=dict)
    entries: Mapping[Key, Entry] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Bytes sent to the client."""
        return sum(self.entries[key].bytes for key in dict.fromkeys(self.keys) if key not in self.own)

    def bytes_up(self, update: Update) -> int:
        """Bytes that the client's answer sends; its answers for ``own`` entries stay with it."""
        return sum(part.bytes for key, part in update.parts.items() if key not in self.own)


@dataclass(frozen=True)
class Part:
    """A client's answer for one entry.

    ``vector`` is the new model, or ``None`` when only ``extra`` is sent (no server step is taken then).
    ``mask`` (bool, of the vector's size) says which coordinates are sent; ``None`` is all. ``base`` (of the vector's
    size) is what this answer's change is measured from and stepped from, where that is not the entry itself: the mix
    that a peer trained from. Only the one answer for an entry may have one. ``encoded`` is the number of bytes
    that the vector took, where it was not sent as float32 numbers (``local.compression``). ``client`` and ``times`` are
    filled in by the loop; ``total`` too, where the vector was added to those of the other answers and let go.
    """

    vector: Tensor | None
    buffers: Buffers = Buffers()
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    mask: Tensor | None = None
    steps: int = 0
    loss: float = float("nan")
    client: int = -1
    times: int = 1
    base: Tensor | None = None
    encoded: int | None = None
    total: Sum | None = None

    @property
    def trained(self) -> bool:
        """Whether a model came, which may be part of a ``total`` by now."""
        return self.vector is not None or self.total is not None

    @property
    def bytes(self) -> int:
        """Bytes sent to the server; with a mask its sent coordinates and one bit for each coordinate."""
        vector = self.vector if self.encoded is None else None
        tensors = (vector, self.base, self.buffers.floats, self.buffers.counters, *self.extra.values())
        total = (self.encoded or 0) + sum(t.numel() * t.element_size() for t in tensors if t is not None)
        if self.mask is not None and vector is not None:
            unsent = self.mask.numel() - int(self.mask.sum())
            total += (self.mask.numel() + 7) // 8 - unsent * vector.element_size()
        return total


@dataclass(frozen=True)
class Update:
    """What a client sends back. Rejected as a whole, ``state`` too, if it is not finite, of a wrong size, or
    if ``weight`` is not positive.

    ``state`` is merged into the client's private state by the loop, and only when the update is accepted.
    ``note`` holds plain values for the method (``"validation_loss"`` reaches the server optimiser as
    ``reported``).
    """

    parts: Mapping[Key, Part]
    weight: float
    state: Mapping[str, Value] = field(default_factory=dict)
    note: Mapping[str, Any] = field(default_factory=dict)
    client: int = -1
    times: int = 1


@dataclass(frozen=True)
class Group:
    """All answers for one entry: ``parts`` and their ``weights`` (rows times draws), in the order of clients.

    ``reported`` is the participants' mean validation loss, weighted like the parts; NaN if nobody reported.
    """

    parts: tuple[Part, ...]
    weights: tuple[float, ...]
    reported: float = float("nan")


def grouped(updates: Sequence[Update]) -> dict[Key, Group]:
    """The updates by the entry that they answer for; keys in the order of their first appearance."""
    found: dict[Key, list[tuple[Part, float, float]]] = {}
    for update in updates:
        reported = float(update.note.get("validation_loss", float("nan")))
        for key, part in update.parts.items():
            found.setdefault(key, []).append((part, update.weight * update.times, reported))
    groups = {}
    for key, rows in found.items():
        told = [(weight, loss) for _, weight, loss in rows if np.isfinite(loss)]
        total = float(np.sum([weight for weight, _ in told]))
        mean = float(np.sum([weight * loss for weight, loss in told])) / total if told else float("nan")
        groups[key] = Group(tuple(r[0] for r in rows), tuple(r[1] for r in rows), mean)
    return groups


@dataclass(frozen=True)
class Failure:
    """A client program that raised; ``error`` names the exception."""

    error: str


@dataclass(frozen=True)
class Job:
    """One client program to run. Can be sent to another machine, which a started generator cannot.

    ``test`` rows are for `Probe` alone: the program never sees them. With ``crash`` the client fails half-way
    through its first fit (a simulated crash).
    """

    given: Assignment
    client: Client
    test: Tensor
    crash: bool = False


@dataclass(frozen=True)
class Outcome:
    """What running a job gave: the answer, and what the engine saw on the way (for measuring, not for methods)."""

    client: int
    answer: Update | Failure
    fits: tuple[Any, ...] = ()
    """One `FitResult` per `Fit`, without vectors, buffers and slots."""
    probes: tuple[tuple[str, Score], ...] = ()
    seconds: float = 0.0
