"""Which rows each step of a stacked fit takes: the reference kernel's order, with every batch padded to one size."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import numpy as np

from ..messages import Client
from ..requests import Fit
from .plan import steps_per_epoch, total_steps

ROW_STEP = 8
"""A batch of fewer rows than asked for is padded to a multiple of this, so that fewer sizes need a stack."""


def padded(rows: int, batch: int, step: int = 1) -> int:
    """How many rows a step of this fit has in a stack, padding included; a multiple of ``step`` (`Chain.row_step`)."""
    size = batch if rows >= batch else min(batch, -(-rows // ROW_STEP) * ROW_STEP)
    return -(-size // step) * step


class Order(NamedTuple):
    """The rows of each step: positions among the fit's rows, ``[steps, size]``, of which the first ``counts`` count."""

    positions: np.ndarray
    counts: np.ndarray
    per_epoch: int


Orders = dict[Hashable, Order]
"""The orders that are known already: runs of a sweep draw the same ones."""


def order_of(fit: Fit, client: Client, size: int, known: Orders, coupled: bool = False) -> Order:
    """The order of the reference kernel (`plan`). Padding repeats the first row of its own batch: other numbers, even
    of the same client, could be infinite where those of the batch are not."""
    client.claim(fit.purpose)
    rows, batch = len(fit.rows), fit.batch
    key = (client.when, client.id, fit.purpose, rows, batch, fit.epochs, fit.steps, size, coupled)
    if key not in known:
        per_epoch = steps_per_epoch(rows, batch, coupled)
        total = total_steps(rows, batch, fit.epochs, fit.steps, coupled)
        rng = client.when.random(fit.purpose, client.id)
        full = rows // batch
        rest = rows % batch if per_epoch > full else 0
        positions = np.empty((-(-total // per_epoch), per_epoch, size), dtype=np.int64)
        for epoch in positions:
            order = rng.permutation(rows)
            if full:
                epoch[:full, :batch] = order[: full * batch].reshape(full, batch)
                epoch[:full, batch:] = epoch[:full, :1]
            if rest:
                epoch[full, :rest] = order[full * batch :]
                epoch[full, rest:] = epoch[full, 0]
        counts = np.full((len(positions), per_epoch), batch, dtype=np.int64)
        if rest:
            counts[:, full] = rest
        known[key] = Order(positions.reshape(-1, size)[:total], counts.reshape(-1)[:total], per_epoch)
    return known[key]
