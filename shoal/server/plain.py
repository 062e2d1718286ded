"""Server steps without a second moment: the plain step, and momentum.

Delta is the clients' mean change, ``mean - x``, so a step adds it (Reddi et al. 2021); papers that define it
as ``x - mean`` subtract.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from ..bank import Entry
from ..messages import World
from ..randomness import Moment
from ..schedules import Schedule
from .base import RatedServer, decay


class SGD(RatedServer):
    """``x + lr Delta``. With ``lr`` exactly 1 it returns the mean itself: federated averaging, to the bit."""

    def __init__(self, world: World | None = None, *, lr: float = 1.0, lr_schedule: Schedule | None = None) -> None:
        super().__init__(lr, lr_schedule, world)

    def step(self, old: Entry, mean: Tensor, when: Moment, reported: float) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The next vector; it keeps no numbers but a schedule's."""
        server = self.watched(old, reported)
        rate = self.scheduled_rate(when, server)
        vector = mean if rate == 1 else old.vector + (mean - old.vector) * rate
        return vector, server


class Momentum(RatedServer):
    """``x + lr m`` with a momentum ``m`` of the clients' mean changes; ``m`` starts at zero.

    ``form: ema`` is ``m = beta m + (1 - beta) Delta``, the momentum of the adaptive servers (FedMomentum of
    arXiv 2009.06557, whose exact form the paper does not print); a constant Delta is taken at rate ``lr``.
    ``form: heavy-ball`` is ``m = beta m + Delta`` (FedAvgM, Hsu et al. 2019; ``torch.optim.SGD``); a constant
    Delta is taken at rate ``lr / (1 - beta)``. The two are the same with ``lr`` of the second ``1 - beta``
    times that of the first. ``nesterov`` steps along ``beta m + (1 - beta) Delta`` or ``beta m + Delta``,
    with the new ``m``. With ``beta = 0`` and ``lr = 1`` it is federated averaging, up to rounding.

    An entry without an ``m`` of its own size (new, or grown) starts again.
    """

    def __init__(
        self,
        world: World | None = None,
        *,
        lr: float = 1.0,
        beta: float = 0.9,
        form: Literal["ema", "heavy-ball"] = "ema",
        nesterov: bool = False,
        lr_schedule: Schedule | None = None,
    ) -> None:
        super().__init__(lr, lr_schedule, world)
        if form not in ("ema", "heavy-ball"):
            raise ValueError(f"form must be 'ema' or 'heavy-ball'; got {form!r}")
        self.beta = decay("beta", beta)
        self.form = form
        self.nesterov = nesterov

    def step(self, old: Entry, mean: Tensor, when: Moment, reported: float) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The next vector, and ``m``."""
        share = 1 - self.beta if self.form == "ema" else 1.0
        delta = mean - old.vector
        m = old.server.get("m")
        if m is None or m.shape != old.vector.shape:
            m = torch.zeros_like(old.vector)
        m = m.mul(self.beta).add_(delta, alpha=share)
        direction = m.mul(self.beta).add_(delta, alpha=share) if self.nesterov else m
        server = self.watched(old, reported)
        return old.vector.add(direction, alpha=self.scheduled_rate(when, server)), {**server, "m": m}

    def describe(self) -> dict[str, Any]:
        """The class, ``lr``, ``beta``, ``form`` and ``nesterov``."""
        return {**super().describe(), "beta": self.beta, "form": self.form, "nesterov": self.nesterov}
