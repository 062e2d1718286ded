"""Distances between two sets of long vectors, such as the means of clusters and the models of a bank."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .geometry import BLOCK, Array, Rows, block, sized

DistanceName = Literal["manhattan", "euclidean", "chebyshev", "minkowski", "cosine"]


@dataclass(frozen=True)
class Distance:
    """A distance by name, over all parameters; ``p >= 1`` is the power of ``minkowski`` and of no other.

    Sums are taken in float64, block by block, so no copy of the vectors is made. ``cosine`` is one minus the cosine;
    a vector of zeros has the distance 1 from all others, and 0 from another one of zeros.
    """

    kind: DistanceName = "manhattan"
    p: float = 3.0

    def __post_init__(self) -> None:
        if not 1 <= self.p < math.inf:
            raise ValueError(f"p is the power of a Minkowski distance and needs 1 <= p, finite; got {self.p}")

    def __call__(self, a: Rows, b: Rows) -> Array:
        """The distances ``[n, m]`` of the rows of ``a`` ``[n, P]`` from those of ``b`` ``[m, P]``, in float64.

        Raises ``ValueError`` for rows of several sizes, and for numbers that are not finite.
        """
        left, right = sized(a), sized(b)
        if left[0] and right[0] and left[1] != right[1]:
            raise ValueError(f"distances need vectors of one size; got {left[1]} and {right[1]} numbers")
        if not left[0] or not right[0]:
            return np.zeros((len(left[0]), len(right[0])))
        found = self._cosine(*left, right[0]) if self.kind == "cosine" else self._norm(*left, right[0])
        if not bool(torch.isfinite(found).all()):
            raise ValueError("distances need finite vectors; some number is infinite or not a number")
        return found.numpy()

    def _norm(self, left: list[npt.NDArray[Any]], size: int, right: list[npt.NDArray[Any]]) -> Tensor:
        power = {"manhattan": 1.0, "euclidean": 2.0, "chebyshev": math.inf, "minkowski": self.p}[self.kind]

        def between(x: Tensor, y: Tensor) -> Tensor:
            return torch.cdist(x, y, p=power, compute_mode="donot_use_mm_for_euclid_dist")

        if power == math.inf:
            return _over_blocks(left, right, size, between, torch.maximum)
        return _over_blocks(left, right, size, lambda x, y: between(x, y) ** power, torch.add) ** (1 / power)

    @staticmethod
    def _cosine(left: list[npt.NDArray[Any]], size: int, right: list[npt.NDArray[Any]]) -> Tensor:
        """Half the squared distance of the unit vectors: unlike one minus a product it is exactly 0 of equal ones."""
        zero = [np.zeros(size)]
        x, y = (Distance("euclidean")._norm(rows, size, zero) for rows in (left, right))
        units = (torch.where(norm > 0, norm, 1.0) for norm in (x, y))
        unit_x, unit_y = units

        def between(u: Tensor, v: Tensor) -> Tensor:
            return torch.cdist(u / unit_x, v / unit_y, compute_mode="donot_use_mm_for_euclid_dist") ** 2 / 2

        found = _over_blocks(left, right, size, between, torch.add).clamp(max=2.0)
        return torch.where((x == 0) != (y == 0).T, 1.0, found)


def _over_blocks(
    left: list[npt.NDArray[Any]],
    right: list[npt.NDArray[Any]],
    size: int,
    between: Callable[[Tensor, Tensor], Tensor],
    join: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """The values of all blocks of columns joined, ``[n, m]``."""
    total = torch.zeros(len(left), len(right), dtype=torch.float64)
    memories = [np.empty((len(rows), min(BLOCK, size))) for rows in (left, right)]
    for begin in range(0, size, BLOCK):
        end = min(begin + BLOCK, size)
        pairs = zip((left, right), memories, strict=True)
        parts = [torch.from_numpy(block(rows, begin, end, memory)) for rows, memory in pairs]
        total = join(total, between(*parts))
    return total
