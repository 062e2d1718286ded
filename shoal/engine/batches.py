"""The rows of a request as batches, in memory that a kernel keeps.

Fresh memory for every batch costs more than filling it: the system hands it out page by page.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ..data.dataset import Dataset
from ..placing import placed
from .plan import Step

GATHER_BYTES = 32 * 2**20
"""Rows are normalised before they are needed if they take no more than this: those of the data set once for the run,
else those of a request once before its first step."""
GATHER_BYTES_DEVICE = 2**29
"""The same on a GPU, which has no cache to fall out of, and for which a gather in every step is a few calls more."""
EPOCH_BYTES = 2**18
"""The batches of an epoch are gathered at once if together they take no more than this: they stay in the cache."""
ALIGNED = 64
"""Batches begin at a multiple of so many bytes, however they are gathered: products round by where memory begins."""


def gather_bytes(device: torch.device) -> int:
    """How many bytes of rows may be normalised beforehand; the values are the same either way."""
    return GATHER_BYTES if device.type == "cpu" else GATHER_BYTES_DEVICE


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
    """The rows of one request. Few enough are normalised beforehand; the values are the same either way.

    A batch is good until the next one is asked for.
    """

    def __init__(self, dataset: Dataset, rows: Tensor, scratch: Scratch) -> None:
        self.dataset = dataset
        self.rows = rows
        self.scratch = scratch
        self.part, self.inside = dataset.part(rows)
        self.device = dataset.device
        self.row = dataset.row_shape(rows)
        self.row_bytes = 4 * math.prod(self.row)
        self.most = gather_bytes(self.device)
        fits = self.row_bytes * len(self.part) <= self.most and dataset.transforms == ("identity",)
        self.pool = self.part.prepared if fits and self.part.members is None else None
        self.kept: tuple[Tensor, Tensor] | None = None
        self._order: np.ndarray | None = None

    @property
    def few(self) -> bool:
        """Whether the request's rows may be gathered all at once."""
        return 0 < self.row_bytes * len(self.rows) <= self.most

    def _inputs(self, name: str, rows: Tensor) -> Tensor:
        """The inputs of rows as they are called in the part that keeps them."""
        space = self.scratch.take(name, (len(rows), *self.row), self.device)
        if self.pool is None:
            return self.part.batch(rows, space)
        return torch.index_select(self.pool, 0, placed(rows, self.device), out=space)

    def _gathered(self, name: str, s: slice) -> tuple[Tensor, Tensor]:
        return self._inputs(name, self.inside[s]), self.dataset.wanted(self.rows[s])

    def _shuffle(self, step: Step) -> None:
        """Makes ready for the steps of an epoch, of which this is the first."""
        self._order = step.order
        self._source, self._epoch = self.pool, None
        chosen = torch.from_numpy(step.order)
        rows = self.rows.index_select(0, chosen)
        self._wanted = self.dataset.wanted(rows)
        if self.inside is not self.rows:
            rows = self.inside.index_select(0, chosen.to(self.inside.device))
        self._at = rows
        if self.pool is not None:
            size = self.row_bytes * (step.end - step.begin)
            if not size % ALIGNED and self.row_bytes * len(rows) <= EPOCH_BYTES:
                self._epoch = self._inputs("epoch", rows)
        elif self.few:
            if self.kept is None:
                self.kept = self._gathered("rows", slice(None))
            self._source, self._at = self.kept[0], chosen
        if self._source is not None:
            self._at = placed(self._at, self.device)

    def take(self, step: Step) -> tuple[Tensor, Tensor]:
        """The inputs and targets of a step. The steps of an epoch share its ``order``; each has as many rows as the
        first, the last may have fewer."""
        if step.order is not self._order:
            self._shuffle(step)
        s = slice(step.begin, step.end)
        y = self._wanted[s]
        if self._epoch is not None:
            return self._epoch[s], y
        at = self._at[s]
        if self._source is None:
            return self._inputs("batch", at), y
        space = self.scratch.take("batch", (len(at), *self.row), self.device)
        return torch.index_select(self._source, 0, at, out=space), y

    def range(self, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """The inputs and targets of a stretch of the rows."""
        if self.kept is None:
            if not self.few:
                return self._gathered("batch", slice(begin, end))
            self.kept = self._gathered("rows", slice(None))
        return self.kept[0][begin:end], self.kept[1][begin:end]
