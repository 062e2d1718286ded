"""The rows of a request as batches, in memory that a kernel keeps.

Fresh memory for every batch costs more than filling it: the system hands it out page by page.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ..data.dataset import Dataset

GATHER_BYTES = 32 * 2**20
"""A request's rows are normalised once, before its first step, if they take no more than this."""


class Scratch:
    """Memory for one thread, by name. What `take` gave is overwritten when the name is asked for again."""

    def __init__(self) -> None:
        self._flat: dict[str, Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """A float32 tensor of this shape, with anything in it."""
        size = math.prod(shape)
        flat = self._flat.get(name)
        if flat is None or flat.numel() < size:
            flat = self._flat[name] = torch.empty(size, device=device)
        return flat[:size].view(shape)


class Batches:
    """The rows of one request. Few enough are normalised once; the values are the same either way.

    A batch is good until the next one is asked for.
    """

    def __init__(self, dataset: Dataset, rows: Tensor, scratch: Scratch) -> None:
        self.dataset = dataset
        self.rows = rows
        self.scratch = scratch
        self.row = tuple(int(extent) for extent in dataset.features.shape[1:])
        self.kept: tuple[Tensor, Tensor] | None = None
        if 0 < 4 * len(rows) * math.prod(self.row) <= GATHER_BYTES:
            self.kept = self._gathered("rows", rows)

    def _gathered(self, name: str, rows: Tensor) -> tuple[Tensor, Tensor]:
        space = self.scratch.take(name, (len(rows), *self.row), self.dataset.features.device)
        return self.dataset.batch(rows, space), self.dataset.wanted(rows)

    def take(self, positions: np.ndarray) -> tuple[Tensor, Tensor]:
        """The inputs and targets at these positions among the rows."""
        chosen = torch.from_numpy(positions)
        if self.kept is None:
            return self._gathered("batch", self.rows.index_select(0, chosen))
        x, y = self.kept
        chosen = chosen.to(x.device)
        space = self.scratch.take("batch", (len(chosen), *self.row), x.device)
        return torch.index_select(x, 0, chosen, out=space), y.index_select(0, chosen)

    def range(self, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """The inputs and targets of a stretch of the rows."""
        if self.kept is None:
            return self._gathered("batch", self.rows[begin:end])
        return self.kept[0][begin:end], self.kept[1][begin:end]
