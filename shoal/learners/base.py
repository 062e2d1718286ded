"""How a client trains one entry: the learner's interface, which is the plain learner."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Generator, Mapping
from typing import Any, ClassVar

from torch import Tensor

from .. import registry
from ..bank import Entry, Key, Value
from ..compression.base import Compression, try_compression
from ..config import Local
from ..messages import Client, Group, Part, World
from ..randomness import Moment
from ..records import changed
from ..requests import Fit, FitResult, Optimizer, Request, Served
from ..schedules import Schedule

OPTIMIZER = "optimizer/"
"""The beginning of names in a client's state that hold the moments of a kept local optimiser, before an entry's key."""

Fitting = Callable[..., Generator[Request, Any, tuple[Part, dict[str, Value]]]]


def _served(fit: Fitting) -> Fitting:
    """A learner's `fit` with what holds for every learner: its client knows the schedule's numbers that came with the
    entry, and with ``local.keep`` its moments of this entry, which go back into the private state."""

    @functools.wraps(fit)
    def told(
        self: Learner, key: Key, start: Served, entry: Entry, client: Client, **request: Any
    ) -> Generator[Request, Any, tuple[Part, dict[str, Value]]]:
        if self.lr_schedule is not None:
            client = changed(client, schedule=entry.extra)
        # Who asks for moments keeps them, too; and of a fit inside a fit the outer one does.
        if not self.local.keep or "slots" in request or client.slots is not None:
            return fit(self, key, start, entry, client, **request)
        name = f"{OPTIMIZER}{key}"
        client = changed(client, slots=_fitting(client.state.get(name), start.vector))
        return _keeping(name, client.slots, fit(self, key, start, entry, client, **request))

    return told


def _fitting(stored: Value, vector: Tensor) -> Mapping[str, Tensor]:
    """The stored moments; none where the model has another size by now."""
    slots = stored if isinstance(stored, Mapping) else {}
    found = {name: slot for name, slot in slots.items() if isinstance(slot, Tensor)}
    return found if all(name == "steps" or slot.shape == vector.shape for name, slot in found.items()) else {}


def _keeping(
    name: str, first: Mapping[str, Tensor] | None, fit: Generator[Request, Any, tuple[Part, dict[str, Value]]]
) -> Generator[Request, Any, tuple[Part, dict[str, Value]]]:
    """The program ``fit``, with the moments after its last `Fit` in the private state under ``name``.

    A further `Fit` that asks for the ``first`` moments again gets those that the one before it left.
    """
    slots, result = first, None
    while True:
        try:
            request = fit.send(result)
        except StopIteration as stop:
            part, state = stop.value
            return part, state if slots is first else {**state, name: slots}
        if isinstance(request, Fit) and request.slots is first and slots is not first:
            request = changed(request, slots=slots)
        result = yield request
        if isinstance(result, FitResult) and result.slots is not None:
            slots = result.slots


class Learner:
    """Plain local training: ``local.epochs`` (or ``local.steps``) of the local optimiser, fresh every round unless
    ``local.keep`` says otherwise.

    A learner that corrects the local steps overrides `fit`, and `extra` where the server has a half of it.
    Numbers in ``Entry.extra`` and the client's state are named with the learner's prefix (``control/...``).
    Attributes never change after ``__init__``.

    Three things hold for every learner that makes its fits by `request`. ``local.lr_schedule`` multiplies the rate,
    whichever one the learner or the method asked for. A client with partial work (``Client.work``) takes that share of
    the steps. With ``local.keep`` a fit begins with the moments that the client's last fit of the entry left, which lie
    in its private state as ``optimizer/KEY`` and are never sent; a fit that is asked for with ``slots`` of its own does
    not touch them.
    """

    part: ClassVar[str] = "learner"
    exchanges: int = 1
    """Rounds of communication in one round; the loop takes the larger of the learner's and the method's."""
    needs_server: bool = False
    """Whether it joins numbers of all clients on a server, which no method without one can do."""
    reads_validation: ClassVar[bool] = False
    """Whether a fit looks at the client's validation rows."""
    reads_reported: bool = False
    """Whether the schedule reads the participants' validation loss; methods then have clients report it."""
    reads_answers: ClassVar[bool] = False
    """Whether `extra` looks at the vectors of the answers, which must then be kept. A class that defines ``extra`` says
    so itself, or it is taken to."""
    lr_schedule: Schedule | None = None
    """``local.lr_schedule``; the same one for all entries, whose numbers (``schedule/...``) are in ``Entry.extra``."""
    compression: Compression | None = None
    """``local.compression``: how a client's model is sent after training, see `shoal.compression.base`."""

    def __init__(self, world: World, local: Local) -> None:
        self.world = world
        self.local = local
        if local.lr_schedule is not None:
            self.lr_schedule = registry.build("schedule", local.lr_schedule, where="local.lr_schedule")
            self.reads_reported = self.lr_schedule.reads_reported
        if local.compression is not None:
            self.compression = registry.build("compression", local.compression, where="local.compression")
            try_compression(self.compression, str(local.compression["kind"]))

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        if "extra" in cls.__dict__ and "reads_answers" not in cls.__dict__:
            cls.reads_answers = True
        if "fit" in cls.__dict__:  # so that no learner needs to know of the schedule and of kept moments
            cls.fit = _served(cls.fit)  # type: ignore[method-assign]

    def optimizer(self, when: Moment) -> Optimizer:
        """The local optimiser of this round, at the rate that `request` multiplies by the schedule's factor."""
        return self.local.request()

    def request(self, start: Served, client: Client, *, entry: Entry | None = None, **changes: Any) -> Fit:
        """The `Fit` that the configuration asks for; keywords replace its fields.

        Its rate is that of the schedule in this round, and its steps are those that the client has time for: whole
        steps, at least one. Both hold for an ``optimizer``, ``epochs`` or ``steps`` given by keyword, too.

        ``entry`` is the entry whose plateau counts, for a method that asks for a fit of its own: inside of `fit` it is
        known.
        """
        fields: dict[str, Any] = {
            "start": start,
            "rows": client.train,
            "optimizer": self.optimizer(client.when),
            "epochs": self.local.epochs,
            "steps": self.local.steps,
            "batch": self.local.batch_size,
            "loss": self.local.loss,
            "loss_args": self.local.loss_args,
            "augment": tuple(self.local.augment),
            "slots": client.slots,
        }
        fields |= changes
        factor = self.rate_factor(client.when, client.schedule if entry is None else entry.extra)
        if factor != 1:
            fields["optimizer"] = changed(fields["optimizer"], lr=fields["optimizer"].lr * factor)
        if client.work < 1:
            fields["epochs"] *= client.work  # of which a fit takes whole steps, at least one
            if fields["steps"] is not None:
                fields["steps"] = max(1, math.floor(fields["steps"] * client.work + 0.5))
        return Fit(**fields)

    def rate_factor(self, when: Moment, kept: Mapping[str, Tensor]) -> float:
        """What ``local.lr_schedule`` multiplies rates by, 1 without one; ``kept`` is the extra of the entry."""
        return 1.0 if self.lr_schedule is None else self.lr_schedule.factor(when.round, self.world.rounds, kept)

    @_served
    def fit(
        self, key: Key, start: Served, entry: Entry, client: Client, **request: Any
    ) -> Generator[Request, Any, tuple[Part, dict[str, Value]]]:
        """Trains ``start``, the model composed of what was received; gives the answer and the new private state.

        ``entry`` is the entry behind ``key``, whose ``extra`` holds what the server half sent along.
        """
        result = yield self.request(start, client, **request)
        return Part(result.vector, result.buffers, steps=result.steps, loss=result.loss), {}

    def watched(self, old: Entry, group: Group) -> Mapping[str, Tensor]:
        """The numbers of ``local.lr_schedule`` that travel with the entry from now on, after this round's report.

        The server half of the schedule, for the method to call beside `extra`. Nothing where nobody trained: of two
        exchanges the first may only send numbers.
        """
        if self.lr_schedule is None or not any(part.trained for part in group.parts):
            return {}
        kept = self.lr_schedule.watch(old.extra, group.reported)
        return {name: number for name, number in kept.items() if number is not old.extra.get(name)}

    def extra(self, key: Key, old: Entry, new: Entry, group: Group, when: Moment) -> Mapping[str, Tensor | None]:
        """The server half: which numbers of ``Entry.extra`` change, from those that the parts brought.

        ``new`` is the entry after the mean and the server step; ``None`` takes a number away, so that it is not
        sent any more. Parts without the learner's numbers must be left alone: a method may have answers, or
        whole entries, that it made itself.
        """
        return {}
