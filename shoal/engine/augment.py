"""Augmentations of a training batch: functions of ``[rows, height, width, channels]`` and the fit's own stream."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .. import registry
from ..placing import placed

Augmentation = Callable[[Tensor, np.random.Generator], Tensor]


def flip(x: Tensor, rng: np.random.Generator) -> Tensor:
    """Mirrors each image ``[rows, height, width, channels]`` with probability 1/2."""
    chosen = placed(torch.from_numpy(rng.random(len(x)) < 0.5), x.device)
    return torch.where(chosen[:, None, None, None], x.flip(2), x)


def crop(x: Tensor, rng: np.random.Generator) -> Tensor:
    """Pads each image by an eighth of its size with its edge values and cuts the original size out at random."""
    rows, height, width, _ = x.shape
    pad = max(1, height // 8), max(1, width // 8)
    padded = F.pad(x.permute(0, 3, 1, 2), (pad[1], pad[1], pad[0], pad[0]), mode="replicate").permute(0, 2, 3, 1)
    top = placed(torch.from_numpy(rng.integers(0, 2 * pad[0] + 1, rows)), x.device)
    left = placed(torch.from_numpy(rng.integers(0, 2 * pad[1] + 1, rows)), x.device)
    r = (top[:, None] + torch.arange(height, device=x.device))[:, :, None]
    c = (left[:, None] + torch.arange(width, device=x.device))[:, None, :]
    return padded[torch.arange(rows, device=x.device)[:, None, None], r, c]


def augmentation(kind: str) -> Augmentation:
    """The augmentation of this kind; raises `ConfigError` for an unknown one."""
    found: Augmentation = registry.find("augmentation", kind)
    return found
