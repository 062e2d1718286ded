"""Models that are born, joined and retired where their number is unknown: the rules, as pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..bank import Value
from .base import renumbered
from .geometry import Array

LARGEST = 1e30
"""In the place of a loss that is infinite: what is sent and kept is finite."""


@dataclass(frozen=True)
class Births:
    """The rules. ``most``: at most so many models, those that nobody trained included.

    ``gap``: losses that differ by less count as equal. ``agree``: in so many rounds in a row two models must be
    equally good before they are joined. ``unused``: a model that was not updated for so many rounds is retired; never
    without.
    """

    most: int
    gap: float
    agree: int
    unused: int | None = None


def columns(numbers: Mapping[str, Value], places: Sequence[int | None]) -> dict[str, Tensor]:
    """A matching's numbers for other models: those at these places, zeros (no past) for ``None``."""
    found = {}
    for name, values in numbers.items():
        if name.startswith("matching/") and isinstance(values, Tensor):
            zero = torch.zeros((), dtype=values.dtype)
            picked = [zero if place is None or place >= len(values) else values[place] for place in places]
            found[name] = torch.stack(picked) if picked else values[:0]
    return found


def cross_losses(losses: Sequence[Tensor], homes: Sequence[int | None], weights: Sequence[float]) -> Array:
    """``[K, K]``: the mean loss of model i on the rows of the clients whose home is model j; NaN where j has none.

    ``losses`` are each client's losses of all K models, ``homes`` the model that each client's answer went to.
    """
    table = np.stack([row.double().numpy() for row in losses])
    found = np.full((table.shape[1], table.shape[1]), np.nan)
    for j in range(table.shape[1]):
        own = [c for c, home in enumerate(homes) if home == j]
        if own:
            found[:, j] = np.average(table[own], axis=0, weights=np.asarray(weights, dtype=np.float64)[own])
    return found


def distances(losses: Array) -> Array:
    """FedDrift's distance of models from their cross losses: ``max(L_ij - L_ii, L_ji - L_jj, 0)``; NaN if unknown."""
    own = np.diagonal(losses)
    rise = losses - own[:, None]  # L_ij - L_ii
    fall = losses.T - own[None, :]  # L_ji - L_jj
    # `losses[i, j]` is model i on the data of j: what i loses elsewhere is compared with what it loses at home.
    found = np.maximum(np.maximum(rise, fall), 0.0)
    np.fill_diagonal(found, np.where(np.isnan(own), np.nan, 0.0))
    return np.asarray(found, dtype=np.float64)


def alike(apart: Array, within: float) -> list[int]:
    """A label for each of the points with these distances ``[K, K]``: complete linkage, cut at ``within``.

    Inside a group no two are further apart than ``within``; an unknown distance (NaN) is further than any. Labels are
    numbered by first appearance.
    """
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    if len(apart) < 2:
        return [0] * len(apart)
    known = apart[np.isfinite(apart)]
    unknown = 2 * float(known.max(initial=0.0)) + 1
    filled = np.where(np.isfinite(apart), apart, unknown)
    np.fill_diagonal(filled, 0.0)
    cut = min(within, unknown / 2)
    joins = linkage(squareform(filled, checks=False), "complete")
    return renumbered(fcluster(joins, cut, "distance")).tolist()  # type: ignore[no-any-return]
