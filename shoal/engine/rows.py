"""The rows of the clients of a stack, gathered where the data set is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..placing import placed
from .batches import gather_bytes

if TYPE_CHECKING:
    from .kernel import Kernel


class Rows:
    """A `Source` of rows as `Dataset.batch` gives them. Those that are taken ``again`` are normalised once."""

    def __init__(self, kernel: Kernel, rows: Sequence[Tensor], again: bool) -> None:
        self.data, self.rows = kernel.dataset, torch.cat(list(rows))
        size = 4 * len(self.rows) * math.prod(self.data.row_shape(self.rows))
        few = again and size <= gather_bytes(self.data.device)
        self.pool = (self.inputs(self.rows), self.data.wanted(self.rows)) if few else None

    def inputs(self, rows: Tensor) -> Tensor:
        """The inputs of rows of the data set."""
        return self.data.batch(rows)

    def ready(self, at: Tensor) -> Tensor:
        """See `Source`. Without a pool the data set is asked for rows by the host."""
        return at if self.pool is None else placed(at, self.data.device)

    def take(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """See `Source`: ``[clients, rows, ...]``."""
        flat = at.reshape(-1)
        if self.pool is None:
            rows = self.rows.index_select(0, flat)
            x, y = self.inputs(rows), self.data.wanted(rows)
        else:
            x, y = self.pool[0].index_select(0, flat), self.pool[1].index_select(0, flat)
        return x.view(*at.shape, *x.shape[1:]), y.view(*at.shape, *y.shape[1:])
