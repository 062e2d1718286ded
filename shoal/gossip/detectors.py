"""Detectors: whether a client's data have just shifted, from the losses that its own model had round by round."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

Rows = Literal["validation", "training"]
Window = Annotated[int, Field(ge=2)]


class Detector:
    """Says whether a loss is a jump. A function of the numbers that it is given: a detector remembers nothing.

    The loss is that of the client's own model on its own rows at the start of a round, before any contact. ``rows``
    says on which: the ``validation`` rows (the training rows of a client that has none), or the ``training`` rows. A
    model has seen its training rows, so new ones of the very same kind are a jump, too.

    ``window`` is how many losses a client keeps for it, those since its last alarm; attributes never change after
    ``__init__``.
    """

    part: ClassVar[str] = "detector"
    rows: Rows = "validation"
    window: int = 10

    def alarm(self, past: Sequence[float], now: float) -> bool:
        """Whether ``now`` is a jump after the losses of the ``past``, oldest first, at most ``window`` of them.

        All are finite. After an alarm the past begins anew, with the round after it.
        """
        raise NotImplementedError


class Jump(Detector):
    """A loss that lies above the mean of the last ones by more than ``threshold`` spreads, and by the share ``rise``.

    With n losses of mean m and standard deviation s (n - 1 in its denominator) the limit is
    ``m + max(threshold s sqrt(1 + 1 / n), rise |m|)``. Only rises count. There is no alarm before ``warmup`` losses are
    known, at the start and after each alarm.

    False alarms. Of independent normal losses without a shift a round alarms with the probability that a t-distributed
    number of n - 1 degrees of freedom is above ``threshold``, or less because of ``rise``: for the threshold 4 that is
    0.8 % with 5 losses and 0.16 % with 10. A trend widens the spread: while losses fall fast only large jumps are
    noticed. A single outlier that is no jump does so for ``window`` rounds.
    """

    def __init__(
        self,
        *,
        threshold: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 4.0,
        rise: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.25,
        warmup: Annotated[int, Field(ge=2)] = 5,
        window: Window = 10,
        rows: Rows = "validation",
    ) -> None:
        if warmup > window:
            raise ValueError(f"warmup: at most as many losses as are kept, window: {window}; got {warmup}")
        self.threshold = threshold
        self.rise = rise
        self.warmup = warmup
        self.window = window
        self.rows = rows

    def alarm(self, past: Sequence[float], now: float) -> bool:
        """Whether the loss is above the limit."""
        n = len(past)
        if n < self.warmup:
            return False
        mean = statistics.fmean(past)
        spread = statistics.stdev(past, mean) * math.sqrt(1 + 1 / n)
        return now - mean > max(self.threshold * spread, self.rise * abs(mean))
