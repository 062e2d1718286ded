"""Flash: an adaptive server whose steps lengthen when the clients' changes grow suddenly, as after a concept drift.

Paper: Panchal et al., "Flash: Concept Drift Adaptation in Federated Learning" (ICML 2023), the server's half. With
Delta = mean - x, for each coordinate, ``v'`` the second moment of the round before and ``d`` starting at 0::

    m = beta1 m + (1 - beta1) Delta           v = beta2 v' + (1 - beta2) Delta ** 2
    beta3 = v' / (|Delta ** 2 - v| + v')      d = beta3 d + (1 - beta3) (Delta ** 2 - v)
    x = x + lr m / (max(sqrt(v) - d, 0) + tau)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..bank import Entry
from ..messages import World
from ..schedules import Schedule
from .adaptive import _LARGEST, Adaptive, Start
from .quantiles import sample


class Flash(Adaptive):
    """Flash's server; without the drift term ``d`` it is FedAdam. Settings: those of `Adaptive` that it has.

    ``d`` compares a square with a root, so what it does depends on the size of Delta: where Delta is about 1e-3, as in
    most training, a tenfold jump takes a hundredth off the default denominator; where it is above about 0.1 the
    paper's ``sqrt(v) - d + tau`` turns negative, and the step away from the clients. Deviations: the denominator is
    cut at ``tau`` (the measure ``server`` logs in which share of the coordinates, ``clamped``); ``beta3`` is 1 where
    both of its terms are 0, where public code divides 0 by 0.

    An entry keeps ``m``, ``v``, ``d`` and ``steps`` in ``Entry.server``.
    """

    def __init__(
        self,
        world: World | None = None,
        *,
        lr: float = 0.1,
        beta1: float = 0.9,
        beta2: float = 0.99,
        tau: float | None = None,
        v_init: Start | None = None,
        lr_schedule: Schedule | None = None,
    ) -> None:
        super().__init__(world, lr=lr, beta1=beta1, beta2=beta2, tau=tau, v_init=v_init, lr_schedule=lr_schedule)
        self.moments = ("d", "v")

    def second(self, kept: Mapping[str, Tensor], squared: Tensor) -> dict[str, Tensor]:
        """The moving average of the squares, and the drift term."""
        squared = squared.clamp(max=_LARGEST)
        before = kept["v"]
        v = before.mul(self.beta2).add_(squared, alpha=1 - self.beta2)
        surprise = squared - v
        total = surprise.abs() + before
        beta3 = torch.where(total > 0, before / total, 1.0)
        return {"v": v, "d": beta3 * kept["d"] + (1 - beta3) * surprise}

    def denominator(self, server: Mapping[str, Tensor]) -> Tensor:
        """``max(sqrt(v) - d, 0) + tau``."""
        assert self.tau is not None
        return (server["v"].sqrt() - server["d"]).clamp_(min=0).add_(self.tau)

    def clamped_of(self, entry: Entry) -> float | None:
        """The share of the coordinates, of a large entry of a sample, with ``d > sqrt(v)``."""
        if not self._continues(entry) or not entry.vector.numel():
            return None
        v, d = sample(entry.server["v"]), sample(entry.server["d"])
        return float((d > v.sqrt()).double().mean())

    def _start(self, vector: Tensor) -> dict[str, Tensor]:
        return {**super()._start(vector), "d": torch.zeros_like(vector)}

    def describe(self) -> dict[str, Any]:
        """The options of `Adaptive` that it has."""
        unknown = ("calibration", "second_moment", "bias_correction")
        return {name: value for name, value in super().describe().items() if name not in unknown}
