"""Changes rounded at random to a few levels: unbiased quantisation.

Paper: Alistarh, Grubic, Li, Tomioka and Vojnovic, "QSGD: Communication-Efficient SGD via Gradient Quantization and
Encoding" (NeurIPS 2017), section 3 (there of gradients, here of the change of a client's model in a round).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from ..randomness import Moment
from .base import Compression, Shapes
from .packing import Reader, pack

Doubles = NDArray[np.float64]


class Qsgd(Compression):
    """Sends every coordinate of the change as a level of its bucket, rounded at random so that its mean is the change.

    A bucket is ``bucket`` coordinates in a row (``null``: all of them), and has a scale c: its Euclidean norm (``norm:
    l2``) or its largest magnitude (``max``, whose levels lie closer). The levels are the points of an even grid from -c
    to c. With ``bits`` from 2 on these are ``l c / s`` for l from -s to s, with ``s = 2 ** (bits - 1) - 1``: 0 is one
    of them. With one bit they are -c and c, and a change of 0 becomes one of them unless all of its bucket is 0. A
    coordinate between two levels goes to the upper one with the share of the way that it has come from the lower one.

    Sent are the scales (float32, rounded up, so that none is left outside the grid) and the levels, ``bits`` each. The
    mean error is zero; for l2 and s levels the squared error is at most ``min(n / s ** 2, sqrt(n) / s)`` times the
    squared norm of a bucket of n. Nothing is kept.
    """

    def __init__(
        self,
        *,
        bits: Annotated[int, Field(ge=1, le=16)] = 8,
        bucket: Annotated[int, Field(ge=1)] | None = 512,
        norm: Literal["l2", "max"] = "l2",
    ) -> None:
        self.bits = bits
        self.bucket = bucket
        self.norm = norm
        self.steps = 2**bits - 2 if bits > 1 else 1
        """From the lowest level to the highest one: 2 s, or 1."""
        if bits == 1 and norm == "l2" and bucket != 1:
            share = "the coordinates of the model" if bucket is None else f"{bucket}"
            self.notes = (
                f"local.compression: one bit with norm: l2 makes the squared error of a change n - 1 times its squared "
                f"length, n = {share}: little is learnt; norm: max is far closer",
            )

    def _width(self, size: int) -> int:
        return max(1, size if self.bucket is None else self.bucket)

    def encode(
        self,
        start: Tensor,
        vector: Tensor,
        shapes: Shapes,
        kept: Mapping[str, Tensor],
        when: Moment,
        rng: np.random.Generator,
    ) -> tuple[bytes, Mapping[str, Tensor]]:
        """All scales, then all levels, counted from the lowest one."""
        size = vector.numel()
        width = self._width(size)
        buckets = np.zeros((-(-size // width), width))
        buckets.reshape(-1)[:size] = (vector - start).numpy()
        scales = self._scales(buckets)
        # In steps from the lowest level; a bucket of zeros is at 0, whatever its scale.
        at = (buckets / np.where(scales > 0, scales, 1)[:, None] + 1) * (self.steps / 2)
        at = at.reshape(-1)[:size]
        low = np.floor(at)
        levels = (low + (rng.random(size) < at - low)).astype(np.int64)
        return scales.astype("<f4").tobytes() + pack(levels, self.bits), {}

    def _scales(self, buckets: Doubles) -> Doubles:
        exact = np.abs(buckets).max(axis=1) if self.norm == "max" else np.sqrt(np.square(buckets).sum(axis=1))
        near: NDArray[np.float32] = exact.astype(np.float32)
        np.nextafter(near, np.float32(np.inf), out=near, where=near < exact)
        return near.astype(np.float64)

    def decode(self, start: Tensor, message: bytes, shapes: Shapes, when: Moment) -> Tensor:
        """The vector that was sent to the client, and the levels' changes."""
        reader, size = Reader(message), start.numel()
        width = self._width(size)
        scales = reader.floats(-(-size // width)).astype(np.float64)
        levels = reader.numbers(size, self.bits)
        reader.end()
        change = (2 * levels - self.steps) / self.steps * np.repeat(scales, width)[:size]
        return (start.double() + torch.from_numpy(change)).to(torch.float32)
