"""The largest changes alone: sparsification with error feedback, momentum correction and warm-up.

Paper: Lin, Han, Mao, Wang and Dally, "Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed
Training" (ICLR 2018), algorithms 1 to 4 (there of gradients, here of the change of a client's model in a round).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from ..randomness import Moment
from .base import Compression, Shapes
from .packing import Reader, pack, packed_size

Share = Annotated[float, Field(gt=0, le=1)]
Floats = NDArray[np.float32]

MOMENTUM, RESIDUAL = "u", "v"


class TopK(Compression):
    """Sends the coordinates that changed most, and keeps the rest for the next time.

    With the change g of a client's model in a round, for every coordinate::

        u <- momentum u + g        v <- v + u

    The k largest ``|v|`` are sent, ties by index; there u and v become 0. With ``momentum: 0`` this is error feedback:
    what was sent and what is kept sum to all that changed.

    ``share``: k is this share of the coordinates, rounded up. ``per``: ``tensor`` chooses among each parameter's
    coordinates and sends parameters of one dimension (biases, norms) whole; ``model`` chooses among all of them.
    ``warmup``: for so many rounds of the run W the share is ``share ** (t / (W + 1))`` in round t (never below
    ``share``), or a list of the shares of the first rounds.

    Sent are the coordinates' places, as a list or as one bit for each coordinate, whichever is shorter, and the model's
    new numbers there (float32). Where all coordinates of a choice are sent there are no places, so that ``share: 1`` is
    no compression, bit for bit.
    """

    def __init__(
        self,
        *,
        share: Share = 0.01,
        momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0,
        per: Literal["tensor", "model"] = "tensor",
        warmup: Annotated[int, Field(ge=0)] | list[Share] = 0,
    ) -> None:
        self.share = share
        self.momentum = momentum
        self.per = per
        self.warmup = warmup

    def share_of(self, round: int) -> float:
        """The share of a round, counted from 1."""
        t = max(1, round)
        if isinstance(self.warmup, int):
            return self.share if t > self.warmup else float(self.share ** (t / (self.warmup + 1)))
        return self.warmup[t - 1] if t <= len(self.warmup) else self.share

    def _choices(self, shapes: Shapes, round: int) -> Iterator[tuple[slice, int]]:
        """The slices among whose coordinates is chosen, and how many of each are sent."""
        share, begin = self.share_of(round), 0
        sizes = [(math.prod(shape), len(shape)) for shape in shapes]
        for size, dims in sizes if self.per == "tensor" else [(sum(size for size, _ in sizes), 2)]:
            # A hair less, so that a share of 0.07 of 100 is no 8.
            count = size if dims <= 1 else max(1, math.ceil(share * size * (1 - 1e-12)))
            yield slice(begin, begin + size), min(size, count)
            begin += size

    def encode(
        self,
        start: Tensor,
        vector: Tensor,
        shapes: Shapes,
        kept: Mapping[str, Tensor],
        when: Moment,
        rng: np.random.Generator,
    ) -> tuple[bytes, Mapping[str, Tensor]]:
        """For every choice the places (none where all are sent) and the numbers there; keeps u (if any) and v."""
        change = vector - start
        u = change.clone()
        if self.momentum and MOMENTUM in kept:
            u = self.momentum * kept[MOMENTUM] + change
        v = kept[RESIDUAL] + u if RESIDUAL in kept else u.clone()
        # start + (vector - start) may differ from the vector in its last bit.
        numbers = torch.where(v == change, vector, start + v).numpy()
        sizes = v.abs().numpy()
        message = []
        for where, count in self._choices(shapes, when.round):
            places = largest(sizes[where], count)
            message += [_places(places, where.stop - where.start), numbers[where][places].astype("<f4").tobytes()]
            for memory in (u, v):
                memory[where][torch.from_numpy(places)] = 0.0
        return b"".join(message), {MOMENTUM: u, RESIDUAL: v} if self.momentum else {RESIDUAL: v}

    def decode(self, start: Tensor, message: bytes, shapes: Shapes, when: Moment) -> Tensor:
        """The vector that was sent to the client, with the numbers that came."""
        made, reader = start.numpy().copy(), Reader(message)
        for where, count in self._choices(shapes, when.round):
            size = where.stop - where.start
            if count == size:
                places = np.arange(size)
            elif _listed(count, size):
                places = reader.numbers(count, _width(size))
            else:
                places = np.flatnonzero(reader.numbers(size, 1))
            made[where][places] = reader.floats(len(places))
        reader.end()
        return torch.from_numpy(made)


def largest(sizes: Floats, count: int) -> NDArray[np.int64]:
    """The places of exactly so many of the largest numbers, in order; of equal ones the first."""
    if count >= len(sizes):
        return np.arange(len(sizes))
    last = np.partition(sizes, len(sizes) - count)[len(sizes) - count]
    above = sizes > last
    ties = np.flatnonzero(sizes == last)[: count - int(above.sum())]
    above[ties] = True
    return np.flatnonzero(above)


def _width(size: int) -> int:
    """The bits of a place."""
    return max(1, (size - 1).bit_length())


def _listed(count: int, size: int) -> bool:
    """Whether a list of places is no longer than one bit for each coordinate."""
    return packed_size(count, _width(size)) <= packed_size(size, 1)


def _places(places: NDArray[np.int64], size: int) -> bytes:
    if len(places) == size:
        return b""
    if _listed(len(places), size):
        return pack(places, _width(size))
    chosen = np.zeros(size, dtype=np.int64)
    chosen[places] = 1
    return pack(chosen, 1)
