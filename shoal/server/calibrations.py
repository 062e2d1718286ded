"""Calibrations: the denominator of an adaptive server, from its second moment ``v``.

Paper: "Effective Federated Adaptive Gradient Methods with Non-IID Decentralized Data" (arXiv 2009.06557), the
section on calibrating the adaptive step size. They bound how far the steps of different coordinates may
differ. Which constant matters depends on the size of ``sqrt(v)``: the run logs its median
(``median_sqrt_v``).
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor
from torch.nn import functional

from .base import Calibration


def _positive(name: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, else v = 0 gives no usable step; got {value}")
    return value


class Epsilon(Calibration):
    """``sqrt(v) + epsilon``: Adam's own denominator. The paper tunes ``epsilon`` over 1e-6, 1e-4 and 1e-2."""

    def __init__(self, *, epsilon: float = 1e-8) -> None:
        self.epsilon = _positive("epsilon", epsilon)

    def denominator(self, v: Tensor) -> Tensor:
        """``sqrt(v) + epsilon``."""
        return v.sqrt().add_(self.epsilon)

    def describe(self) -> dict[str, Any]:
        """The class and ``epsilon``."""
        return {**super().describe(), "epsilon": self.epsilon}


class Power(Calibration):
    """``(sqrt(v) + epsilon) ** (2 p)``: ``v ** p`` up to epsilon; ``p = 1/2`` is `Epsilon`, ``p = 0`` is 1.

    The paper tunes ``p`` over 1/4, 1/8 and 1/16; the place of ``epsilon`` is that of its authors' earlier
    code.
    """

    def __init__(self, *, p: float = 0.25, epsilon: float = 1e-8) -> None:
        if not 0 <= p <= 1:
            raise ValueError(f"p is the power of v and needs 0 <= p <= 1 (0.5 is Adam's); got {p}")
        self.p = p
        self.epsilon = _positive("epsilon", epsilon)

    def denominator(self, v: Tensor) -> Tensor:
        """``(sqrt(v) + epsilon) ** (2 p)``."""
        return v.sqrt().add_(self.epsilon).pow_(2 * self.p)

    def describe(self) -> dict[str, Any]:
        """The class, ``p`` and ``epsilon``."""
        return {**super().describe(), "p": self.p, "epsilon": self.epsilon}


class Softplus(Calibration):
    """``log(1 + exp(beta sqrt(v))) / beta``: the softplus of ``sqrt(v)``, not of ``v``; there is no epsilon.

    Its smallest value is ``log(2) / beta``, so no coordinate steps further than ``lr beta / log 2`` times its
    momentum; where ``beta sqrt(v)`` is large it is ``sqrt(v)``. The paper tunes ``beta`` over 10, 50, 100,
    200.
    """

    def __init__(self, *, beta: float = 50.0) -> None:
        self.beta = _positive("beta", beta)

    def denominator(self, v: Tensor) -> Tensor:
        """The softplus of ``sqrt(v)``."""
        # Above beta sqrt(v) = 20 torch returns sqrt(v) itself: the same float32 number, without an overflow.
        return functional.softplus(v.sqrt(), beta=self.beta, threshold=20)

    def describe(self) -> dict[str, Any]:
        """The class and ``beta``."""
        return {**super().describe(), "beta": self.beta}
