"""Which rows each local step takes, and in which order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np


class Step(NamedTuple):
    """One local step: a stretch of the epoch's ``order`` of the fit's rows, and whether the step ends the epoch."""

    order: np.ndarray
    begin: int
    end: int
    ends_epoch: bool

    @property
    def positions(self) -> np.ndarray:
        """Positions into the fit's rows."""
        return self.order[self.begin : self.end]


def steps_per_epoch(rows: int, batch: int, coupled: bool) -> int:
    """How many batches an epoch has. A last batch of one row is dropped where rows of a batch are coupled
    (BatchNorm cannot normalise a single row)."""
    full, rest = divmod(rows, batch)
    keeps_rest = rest > (1 if coupled else 0)
    if coupled and batch == 1:
        return 0
    return full + int(keeps_rest)


def total_steps(rows: int, batch: int, epochs: float, steps: int | None, coupled: bool) -> int:
    """How many steps a fit takes: ``steps`` if given, else whole epochs; a fraction is rounded, at least one."""
    per_epoch = steps_per_epoch(rows, batch, coupled)
    if per_epoch == 0:
        return 0
    if steps is not None:
        return steps
    return max(1, math.floor(epochs * per_epoch + 0.5))


def plan(
    rows: int, batch: int, epochs: float, steps: int | None, coupled: bool, rng: np.random.Generator
) -> Iterator[Step]:
    """The steps of a fit: a fresh permutation of the rows in every epoch, cut into batches."""
    per_epoch = steps_per_epoch(rows, batch, coupled)
    left = total_steps(rows, batch, epochs, steps, coupled)
    while left > 0:
        order = rng.permutation(rows)
        for i in range(min(per_epoch, left)):
            yield Step(order, i * batch, min((i + 1) * batch, rows), i == per_epoch - 1)
        left -= per_epoch
