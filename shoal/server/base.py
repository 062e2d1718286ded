"""What an author of a mean, a server optimiser or a calibration writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from ..bank import Entry
from ..messages import Group
from ..randomness import Moment


class Mean:
    """How the clients' answers for one entry become one vector."""

    part: ClassVar[str] = "mean"

    def combine(self, old: Entry, group: Group) -> Tensor:
        """The mean of the parts' vectors, float32, of the old vector's size. Parts that are equal come back
        unchanged, bit for bit. Coordinates that nobody sent (``Part.mask``) keep the old value."""
        raise NotImplementedError


class ServerOptimizer:
    """What the mean change does to an entry. Its own numbers live in ``Entry.server``, never in the object."""

    part: ClassVar[str] = "server"
    reads_reported: ClassVar[bool] = False
    """Whether it reads the participants' validation loss; methods then have clients report it."""

    def step(
        self, old: Entry, mean: Tensor, when: Moment, reported: float
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The entry's next vector and its next ``Entry.server``, from its old self and the clients' mean.

        The pseudo-gradient is ``mean - old.vector`` (the direction in which the clients went). ``reported`` is
        the participants' mean validation loss, NaN if nobody reported one.
        """
        raise NotImplementedError


class Calibration:
    """The denominator of an adaptive server, from its second moment."""

    part: ClassVar[str] = "calibration"

    def denominator(self, v: Tensor) -> Tensor:
        """From the second moment ``v >= 0`` to a positive tensor of the same size."""
        raise NotImplementedError
