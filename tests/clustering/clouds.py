"""Mixtures of vectors for the tests of clustering."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def mixture(seed: int, sizes: list[int], dimensions: int = 300, apart: float = 3.0) -> tuple[Tensor, np.ndarray]:
    """Vectors ``[n, P]`` in float32 around a common model, shuffled, and which group each belongs to."""
    rng = np.random.default_rng(seed)
    truth = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    centres = rng.standard_normal((len(sizes), dimensions)) * apart
    common = rng.standard_normal(dimensions) * 20
    points = common + centres[truth] + rng.standard_normal((len(truth), dimensions))
    return torch.tensor(points, dtype=torch.float32), truth


def by_appearance(labels: np.ndarray) -> list[int]:
    """The same groups, numbered by first appearance."""
    names: dict[int, int] = {}
    return [names.setdefault(int(label), len(names)) for label in labels]
