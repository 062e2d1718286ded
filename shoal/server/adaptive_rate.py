"""Adaptive-FedAvg: federated averaging whose local rate follows how much the model moves.

Paper: Canonaco et al., "Adaptive Federated Learning in Presence of Concept Drift" (IJCNN 2021). After the t-th step of
an entry to ``x``, with ``mu^ = mu / (1 - beta1 ** t)`` and so on::

    mu = beta1 mu + (1 - beta1) x
    s  = beta2 s  + (1 - beta2) mean((x - mu^ of the step before) ** 2)
    g  = beta3 g  + (1 - beta3) s^ / (s^ of the step before)
    local rate = lr min(1, g^)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..bank import Entry
from ..config import Local
from ..randomness import Moment
from .base import ServerOptimizer, decay

FACTOR = "adaptive-rate/factor"
"""Where ``Entry.server`` has what the local rate of the next round is multiplied by."""
_STILL = 1e-12
"""A variance below this is that of a model that stands still: its ratio is taken as 1."""


class AdaptiveFedAvg(ServerOptimizer):
    """The clients' mean itself, and the factor of the local rate, which ``learner: adaptive-rate`` sends and uses.

    With any other learner it is federated averaging; `describe` says so (``travels``). The factor falls while the model
    settles and rises, to 1 at most, when it moves again. ``over_t`` divides it by the entry's number of steps, as the
    authors' published code does; after many rounds a drift can then hardly raise it again.

    Deviations: before the first step ``mu^`` is the entry itself, where the paper has none; a ratio over a variance
    below 1e-12 is 1. The moments are kept as they are and corrected where they are used; published code feeds the
    corrected ``mu`` back into the average.

    An entry keeps ``adaptive-rate/mu``, ``s``, ``g``, ``steps`` and ``factor`` in ``Entry.server``; all start again
    where ``mu`` is not of the entry's size. Raises ``ValueError`` unless every beta is in [0, 1).
    """

    def __init__(
        self,
        local: Local | None = None,
        *,
        beta1: float = 0.5,
        beta2: float = 0.5,
        beta3: float = 0.5,
        over_t: bool = False,
    ) -> None:
        self.beta1 = decay("beta1", beta1)
        self.beta2 = decay("beta2", beta2)
        self.beta3 = decay("beta3", beta3)
        self.over_t = over_t
        self.travels = local is not None and local.learner["kind"] == "adaptive-rate"

    def step(self, old: Entry, mean: Tensor, when: Moment, reported: float) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The mean, the three moving averages, and the factor."""
        zero = torch.zeros((), dtype=torch.float64)
        kept = {name: old.server.get(f"adaptive-rate/{name}") for name in ("mu", "s", "g", "steps")}
        mu, s, g, steps = kept.values()
        if mu is None or s is None or g is None or steps is None or mu.shape != mean.shape:
            mu, s, g, steps = torch.zeros_like(mean), zero, zero, torch.tensor(0)
        before, t = int(steps), int(steps) + 1
        centre = mu.double() / (1 - self.beta1**before) if before else old.vector.double()
        spread = (mean.double() - centre).square().mean()
        last = float(s) / (1 - self.beta2**before) if before else 0.0
        s = self.beta2 * s + (1 - self.beta2) * spread
        now = float(s) / (1 - self.beta2**t)
        g = self.beta3 * g + (1 - self.beta3) * (now / last if last > _STILL else 1.0)
        factor = float(g) / (1 - self.beta3**t) / (t if self.over_t else 1)
        numbers = {
            "mu": mu.mul(self.beta1).add_(mean, alpha=1 - self.beta1),
            "s": s,
            "g": g,
            "steps": torch.tensor(t),
            "factor": torch.tensor(min(factor, 1.0), dtype=torch.float64),
        }
        return mean, {**old.server, **{f"adaptive-rate/{name}": number for name, number in numbers.items()}}

    def describe(self) -> dict[str, Any]:
        """The class, its settings, and ``travels``: whether the clients use the rate."""
        betas = {"beta1": self.beta1, "beta2": self.beta2, "beta3": self.beta3}
        return {**super().describe(), **betas, "over_t": self.over_t, "travels": self.travels}
