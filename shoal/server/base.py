"""What an author of a mean, a server optimiser or a calibration writes.

A mean or a server optimiser whose ``__init__`` has a parameter ``world``, ``local`` or ``selection`` (not keyword-only)
is given the `World`, the local settings, or how clients are drawn (``None`` where nothing will be merged): FedNova
needs the clients' momentum, a schedule the number of rounds, an unbiased mean the chances to be drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from ..bank import Entry
from ..messages import Group, World
from ..randomness import Moment
from ..schedules import Schedule


def shares(weights: Sequence[float]) -> list[float]:
    """Weights as shares that sum to one, in float64; ``ValueError`` unless all are positive and finite."""
    given = check_weights(weights)
    scaled = given / given.max()  # First, because the sum of huge weights would overflow.
    return [float(w) for w in scaled / scaled.sum()]


def check_weights(weights: Sequence[float]) -> np.ndarray:
    """The weights as float64 ``[n]``; ``ValueError`` unless there are any, all positive and finite."""
    given = np.asarray(weights, dtype=np.float64)
    if not given.size or not np.isfinite(given).all() or given.min() <= 0:
        raise ValueError(f"a mean needs at least one weight, all positive and finite; got {list(weights)}")
    return given


class Mean:
    """How the clients' answers for one entry become one vector."""

    part: ClassVar[str] = "mean"
    averages: ClassVar[bool] = True
    """Whether answers that are all equal come back as they are; not so where weights do not sum to one."""
    needs_server: ClassVar[bool] = False
    """Whether it knows how clients are drawn by a server, which a method without one does not do."""
    streams: ClassVar[bool] = False
    """Whether it is the mean of `shoal.server.means.average` with its own `weights`, and each weight depends on its own
    part alone: then answers can be added up as they come, and need not be kept. A class that defines ``combine`` or
    ``weights`` says so itself, or it does not hold."""

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        if {"combine", "weights"} & set(cls.__dict__) and "streams" not in cls.__dict__:
            cls.streams = False

    def weights(self, group: Group) -> Sequence[float]:
        """One weight per part, before normalisation; float buffers are averaged with them, whatever the mean is."""
        return group.weights

    def combine(self, old: Entry, group: Group) -> Tensor:
        """The mean of the parts' vectors, float32, of the old vector's size. Parts that are equal come back
        unchanged, bit for bit (if it does not average, only those that are the old vector). Coordinates that nobody
        sent (``Part.mask``) keep the old value."""
        raise NotImplementedError


class ServerOptimizer:
    """What the mean change does to an entry. Its numbers live in ``Entry.server``, never in the object."""

    part: ClassVar[str] = "server"
    reads_reported: bool = False
    """Whether it reads the participants' validation loss; methods then have clients report it."""

    def step(self, old: Entry, mean: Tensor, when: Moment, reported: float) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The entry's next vector and its next ``Entry.server``, from its old self and the clients' mean.

        Every number must be finite: an infinity in ``Entry.server`` counts as divergence, and the round is undone.
        The pseudo-gradient is ``mean - old.vector`` (the direction in which the clients went). ``reported``
        is the participants' mean validation loss, NaN if nobody reported one. Names in ``Entry.server`` that
        are not the optimiser's own come back as they were.
        """
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """What this optimiser does, every option as it is used (defaults resolved); JSON values only.

        It goes into ``summary.json``. The default is the name of the class alone.
        """
        return {"class": type(self).__name__}

    def effective_step(self, entry: Entry, when: Moment | None = None) -> Tensor | None:
        """What each coordinate of the momentum is multiplied by, for logging; ``None`` if nothing is.

        ``entry`` is the entry after a step; ``when`` is the moment of that step (``None``: the rate ``lr``).
        """
        return None

    def second_moment_of(self, entry: Entry) -> Tensor | None:
        """The second moment that the last step's denominator was made of, for logging; ``None`` if there is none.

        ``entry`` is the entry after a step. The default is what it keeps as ``vhat``, else as ``v``.
        """
        return entry.server.get("vhat", entry.server.get("v"))

    def constant_of(self, entry: Entry) -> float | None:
        """What ``sqrt(v)`` competed with in the last step's denominator (``tau``, a calibration's constant), for
        logging; ``None`` if there is no such number. ``entry`` is the entry after a step."""
        return None

    def clamped_of(self, entry: Entry) -> float | None:
        """The share of the coordinates whose denominator the last step cut at a bound, where the formula has another,
        for logging; ``None`` for an optimiser that cuts none. ``entry`` is the entry after a step."""
        return None


class RatedServer(ServerOptimizer):
    """A server optimiser with a server learning rate: ``lr > 0`` times the factor of a schedule, if it has one.

    Raises ``ValueError`` for another ``lr``, and for a schedule over the run's rounds without a ``world`` to tell them.
    """

    def __init__(self, lr: float, lr_schedule: Schedule | None = None, world: World | None = None) -> None:
        if not 0 < lr < math.inf:
            raise ValueError(f"lr must be positive and finite; got {lr}. The clients' direction is already a descent")
        self.lr = lr
        self.lr_schedule = lr_schedule
        self.rounds = 0 if world is None else world.rounds
        if lr_schedule is not None:
            self.reads_reported = lr_schedule.reads_reported
            if lr_schedule.needs_rounds and world is None:
                raise ValueError(f"{type(lr_schedule).__name__} needs the number of rounds; give the server a world")

    def watched(self, old: Entry, reported: float) -> Mapping[str, Tensor]:
        """``Entry.server`` with the schedule's numbers after this round's report; what a step begins with."""
        return old.server if self.lr_schedule is None else self.lr_schedule.watch(old.server, reported)

    def rate(self, when: Moment) -> float:
        """The server learning rate of a round before the schedule's factor; a class of one's own may override this."""
        return self.lr

    def scheduled_rate(self, when: Moment, server: Mapping[str, Tensor]) -> float:
        """The server learning rate of a round; ``server`` has the schedule's numbers, see `watched`."""
        rate = self.rate(when)
        return rate if self.lr_schedule is None else rate * self.lr_schedule.factor(when.round, self.rounds, server)

    def describe(self) -> dict[str, Any]:
        """The name of the class, ``lr``, and the schedule if there is one."""
        schedule = {} if self.lr_schedule is None else {"lr_schedule": self.lr_schedule.describe()}
        return {**super().describe(), "lr": self.lr, **schedule}


class Calibration:
    """The denominator of an adaptive server, from its second moment.

    One without numbers of its own says `denominator`. One whose constant follows the moments of each entry says
    `watch` and `calibrated`, and sets ``automatic``.
    """

    part: ClassVar[str] = "calibration"
    automatic: bool = False
    """Whether its constant is found while the run goes on."""

    def denominator(self, v: Tensor) -> Tensor:
        """From the second moment ``v >= 0`` to a positive tensor of the same size, for an entry without a past."""
        raise NotImplementedError

    def watch(self, kept: Mapping[str, Tensor], v: Tensor) -> Mapping[str, Tensor]:
        """``kept`` with the calibration's own numbers moved on, once in every step of an entry, before `calibrated`.

        ``kept`` is the entry's next ``Entry.server``, ``v`` its new second moment. Own numbers are finite and have
        names that begin with ``calibration/``; they start again with the entry's moments. Others' numbers stay. A
        calibration with constants alone gives back what it was given.
        """
        return kept

    def calibrated(self, v: Tensor, kept: Mapping[str, Tensor]) -> Tensor:
        """The denominator of an entry with these numbers, see `watch`; the default is `denominator`."""
        return self.denominator(v)

    def constant_of(self, kept: Mapping[str, Tensor]) -> float | None:
        """Where ``sqrt(v)`` is far below this number the denominator hardly depends on it; ``None`` if there is no
        such number. For an entry with these numbers, see `watch`."""
        return None

    def describe(self) -> dict[str, Any]:
        """The name of the class and its constants, for ``summary.json``; JSON values only."""
        return {"class": type(self).__name__}


def decay(name: str, value: float) -> float:
    """A decay rate, checked: 0 <= value < 1, else ``ValueError``."""
    if not 0 <= value < 1:
        raise ValueError(f"{name} is a decay rate and needs 0 <= {name} < 1; got {value}")
    return value
