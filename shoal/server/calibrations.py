"""Calibrations: the denominator of an adaptive server, from its second moment ``v``.

Paper: "Effective Federated Adaptive Gradient Methods with Non-IID Decentralized Data" (arXiv 2009.06557), the
section on calibrating the adaptive step size. They bound how far the steps of different coordinates may
differ. Which constant matters depends on the size of ``sqrt(v)``: the run logs its quantiles and the constant
(``median_sqrt_v``, ``calibration_constant``), and ``auto`` lets the constant follow it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
import torch
from torch import Tensor
from torch.nn import functional

from .base import Calibration
from .quantiles import root

Auto = Literal["auto"]
Share = Annotated[float, pydantic.Field(ge=0, le=1)]
Count = Annotated[int, pydantic.Field(ge=1)]

WINDOW = "calibration/window"
"""Where ``Entry.server`` has the quantiles of the entry's last steps, float64, the newest last."""
_UNMOVED = 1e-8
"""The constant of an entry of which no coordinate has ever moved; any would do, its momentum is zero."""


def _positive(name: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, else v = 0 gives no usable step; got {value}")
    return value


def without_auto(reason: str) -> Callable[[Any], Any]:
    """A check that refuses ``auto``, with the reason, and lets everything else through."""

    def check(value: Any) -> Any:
        if value == "auto":
            raise ValueError(f"there is no auto here: {reason}")
        return value

    return check


class Following(Calibration):
    """A calibration with one constant of the size of ``sqrt(v)``, which is given, or follows ``sqrt(v)``.

    ``fixed`` is the constant, ``None`` to follow: in every step of an entry the ``quantile`` of ``sqrt(v)`` over the
    coordinates that moved (``v > 0``) is noted, and the constant is the median of the entry's last ``window`` notes,
    this step's included. A step after which no coordinate of ``v`` is positive notes nothing; until the first note the
    constant is 1e-8. No paper has this rule. Large entries are sampled, see `shoal.server.quantiles`.

    Raises ``ValueError`` unless ``0 <= quantile <= 1`` and ``window >= 1``.
    """

    def __init__(self, fixed: float | None, quantile: float, window: int) -> None:
        if not 0 <= quantile <= 1:
            raise ValueError(f"quantile is a share of the coordinates and needs 0 <= quantile <= 1; got {quantile}")
        if window < 1:
            raise ValueError(f"window is a number of rounds and needs window >= 1; got {window}")
        self.fixed = fixed
        self.quantile = quantile
        self.window = window
        self.automatic = fixed is None

    def denominator(self, v: Tensor) -> Tensor:
        """The denominator of an entry whose first step this is."""
        return self.calibrated(v, self.watch({}, v))

    def watch(self, kept: Mapping[str, Tensor], v: Tensor) -> Mapping[str, Tensor]:
        """``kept`` with this step's quantile at the end of the window."""
        now = root(v, self.quantile) if self.automatic else None
        if now is None:
            return kept
        past = kept.get(WINDOW)
        notes = torch.tensor([now], dtype=torch.float64)
        return {**kept, WINDOW: notes if past is None else torch.cat([past.to(notes), notes])[-self.window :]}

    def constant_of(self, kept: Mapping[str, Tensor]) -> float:
        """The constant that was given, or the median of the window."""
        if self.fixed is not None:
            return self.fixed
        notes = kept.get(WINDOW)
        return _UNMOVED if notes is None else float(np.median(notes.numpy(force=True)))

    def _told(self, name: str, value: float | str) -> dict[str, Any]:
        rule = {"quantile": self.quantile, "window": self.window} if self.automatic else {}
        return {"class": type(self).__name__, name: value, **rule}


class Epsilon(Following):
    """``sqrt(v) + epsilon``: Adam's own denominator. The paper tunes ``epsilon`` over 1e-6, 1e-4 and 1e-2.

    ``auto`` lets epsilon follow ``sqrt(v)``, by ``quantile`` and ``window``: see `Following`. Both are read with
    ``auto`` alone.
    """

    def __init__(self, *, epsilon: float | Auto = 1e-8, quantile: Share = 0.5, window: Count = 10) -> None:
        super().__init__(None if epsilon == "auto" else _positive("epsilon", epsilon), quantile, window)
        self.epsilon = epsilon

    def calibrated(self, v: Tensor, kept: Mapping[str, Tensor]) -> Tensor:
        """``sqrt(v) + epsilon``."""
        return v.sqrt().add_(self.constant_of(kept))

    def describe(self) -> dict[str, Any]:
        """The class and ``epsilon``; with ``auto`` its rule."""
        return self._told("epsilon", self.epsilon)


_plain = without_auto("v ** p has no constant that competes with sqrt(v); use kind: epsilon with epsilon: auto")
Plain = Annotated[float, pydantic.BeforeValidator(_plain)]


class Power(Calibration):
    """``(sqrt(v) + epsilon) ** (2 p)``: ``v ** p`` up to epsilon; ``p = 1/2`` is `Epsilon`, ``p = 0`` is 1.

    The paper tunes ``p`` over 1/4, 1/8 and 1/16; the place of ``epsilon`` is that of its authors' earlier
    code. It only keeps the denominator from 0, so there is no ``auto``.
    """

    def __init__(self, *, p: Plain = 0.25, epsilon: Plain = 1e-8) -> None:
        if not 0 <= _plain(p) <= 1:
            raise ValueError(f"p is the power of v and needs 0 <= p <= 1 (0.5 is Adam's); got {p}")
        self.p = p
        self.epsilon = _positive("epsilon", _plain(epsilon))

    def denominator(self, v: Tensor) -> Tensor:
        """``(sqrt(v) + epsilon) ** (2 p)``."""
        return v.sqrt().add_(self.epsilon).pow_(2 * self.p)

    def describe(self) -> dict[str, Any]:
        """The class, ``p`` and ``epsilon``."""
        return {**super().describe(), "p": self.p, "epsilon": self.epsilon}


class Softplus(Following):
    """``log(1 + exp(beta sqrt(v))) / beta``: the softplus of ``sqrt(v)``, not of ``v``; there is no epsilon.

    Its smallest value is ``log(2) / beta``, so no coordinate steps further than ``lr beta / log 2`` times its
    momentum; where ``beta sqrt(v)`` is large it is ``sqrt(v)``. The paper tunes ``beta`` over 10, 50, 100,
    200.

    ``auto`` lets the smallest value follow ``sqrt(v)``, by ``quantile`` and ``window``: ``beta`` is ``log(2)`` over the
    constant of `Following`. Both are read with ``auto`` alone.
    """

    def __init__(self, *, beta: float | Auto = 50.0, quantile: Share = 0.5, window: Count = 10) -> None:
        super().__init__(None if beta == "auto" else math.log(2) / _positive("beta", beta), quantile, window)
        self.beta = beta

    def calibrated(self, v: Tensor, kept: Mapping[str, Tensor]) -> Tensor:
        """The softplus of ``sqrt(v)``."""
        beta = math.log(2) / self.constant_of(kept) if self.beta == "auto" else self.beta
        # Above beta sqrt(v) = 20 torch returns sqrt(v) itself: the same float32 number, without an overflow.
        return functional.softplus(v.sqrt(), beta=beta, threshold=20)

    def describe(self) -> dict[str, Any]:
        """The class and ``beta``; with ``auto`` its rule."""
        return self._told("beta", self.beta)
