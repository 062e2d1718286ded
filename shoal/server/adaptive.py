"""Adaptive server optimisers: FedAdagrad, FedAdam, FedAMSGrad, FedYogi.

Papers: Reddi et al., "Adaptive Federated Optimization" (ICLR 2021), algorithm 2, for the update and ``tau``;
"Effective Federated Adaptive Gradient Methods with Non-IID Decentralized Data" (arXiv 2009.06557), algorithm
1, for the calibrations and the paper's AMSGrad. With ``Delta = mean - x`` and ``g`` the quantity that is
squared::

    m = beta1 m + (1 - beta1) Delta        v = (one line per member)        x = x + lr m / (sqrt(v) + tau)

or, with a calibration, ``x + lr m / calibrate(v)``. A coordinate that nobody sent has Delta = 0; its numbers
move on. Buffers such as BatchNorm's variance never come here: a momentum step could make them negative.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import pydantic
import torch
from torch import Tensor

from ..bank import Entry
from ..messages import World
from ..randomness import Moment
from ..schedules import Schedule
from .base import Calibration, RatedServer, decay
from .calibrations import Epsilon, without_auto

Squared = Literal["raw", "momentum"]
Start = Literal["tau-squared", "zero"]
_check_tau = without_auto(
    "v starts at tau ** 2, so tau cannot wait for the first step; use calibration: {kind: epsilon, epsilon: auto}"
)
Tau = Annotated[float | None, pydantic.BeforeValidator(_check_tau)]

_LARGEST = torch.finfo(torch.float32).max


class Adaptive(RatedServer):
    """What the adaptive servers share; a member says in `second` how ``v`` moves on.

    ``lr``, ``beta1``, ``beta2``: server learning rate and decay rates of ``m`` and ``v``.

    ``tau`` is the adaptivity: small takes steps of like size in every coordinate, large approaches momentum.
    It excludes ``calibration``, which puts another denominator in the place of ``sqrt(v) + tau``. When
    neither is given ``tau`` is 0.01 (Adagrad: 0.1). Reason: as ``v`` starts at ``tau ** 2``, a new entry's
    effective step is ``lr / (2 tau)``, and only this ratio matters while Delta is small beside ``tau``. The
    mean Delta of federated training is about 1e-3 per coordinate, so ``tau`` of 1 leaves momentum with a rate
    of ``lr / 2``, 0.01 is where the second moment starts to matter, and 1e-3 (Reddi et al.'s general advice)
    is unstable at an ``lr`` near 1, for which 0.1 does well. Adagrad has no momentum to soften its first
    steps and needs ten times as much. `describe` tells the effective step.

    ``second_moment``: ``g`` is the ``raw`` mean Delta (Reddi et al.) or the new ``momentum`` (the text of
    arXiv 2203.13321, which copies a misprint of an early version of Reddi et al.).

    ``v_init``: ``v`` starts at ``tau-squared`` (the default with ``tau``; Reddi et al. ask for at least that)
    or at ``zero`` (the default with a calibration or with bias correction).

    ``bias_correction``: divides ``m`` by ``1 - beta1 ** t`` and ``v`` by ``1 - beta2 ** t`` before use, as in
    torch and Keras, ``t`` counting the entry's own steps. It makes up for a start at zero and cannot be had
    with another one. Neither paper has it; Reddi et al.'s published code (Keras) does.

    An entry keeps ``m``, ``v`` and ``steps`` (int64) in ``Entry.server``. They advance only when the entry is
    updated; when one is missing or not of the entry's size (a new entry, a grown head) all start again.
    """

    tau_default: ClassVar[float] = 0.01

    def __init__(
        self,
        world: World | None = None,
        *,
        lr: float = 0.1,
        beta1: float = 0.9,
        beta2: float = 0.99,
        tau: Tau = None,
        calibration: Calibration | None = None,
        second_moment: Squared = "raw",
        v_init: Start | None = None,
        bias_correction: bool = False,
        lr_schedule: Schedule | None = None,
    ) -> None:
        super().__init__(lr, lr_schedule, world)
        self.beta1 = decay("beta1", beta1)
        self.beta2 = decay("beta2", beta2)
        if tau is not None and calibration is not None:
            raise ValueError(
                f"tau and calibration exclude each other, both make the denominator; got tau = {tau} and the "
                f"calibration {type(calibration).__name__}. Leave one of them out"
            )
        _check_tau(tau)
        if tau is not None and not 0 < tau < float("inf"):
            raise ValueError(f"tau must be positive and finite; got {tau}")
        self.calibration = calibration
        self.tau = tau
        if calibration is None:
            self.tau = self.tau_default if tau is None else tau
            calibration = Epsilon(epsilon=self.tau)
        self._denominator = calibration
        if not self._denominator.denominator(torch.zeros(())) > 0:
            raise ValueError("at v = 0 the denominator is not positive in float32; raise tau or epsilon")
        if second_moment not in ("raw", "momentum"):
            raise ValueError(f"second_moment must be 'raw' or 'momentum'; got {second_moment!r}")
        self.second_moment = second_moment
        self.bias_correction = bias_correction
        if v_init not in (None, "tau-squared", "zero"):
            raise ValueError(f"v_init must be 'tau-squared' or 'zero'; got {v_init!r}")
        zero = self.tau is None or bias_correction
        if v_init == "tau-squared" and zero:
            raise ValueError(
                "v_init: v starts at zero with a calibration (there is no tau) and with bias_correction; "
                "got 'tau-squared'. Leave v_init out"
            )
        self.v_init: Start = v_init or ("zero" if zero else "tau-squared")
        self.v0 = self.tau**2 if self.tau is not None and self.v_init == "tau-squared" else 0.0
        self.moments: tuple[str, ...] = ("v",)
        """The second moments that an entry keeps; the denominator is made of the last one."""

    def second(self, kept: Mapping[str, Tensor], squared: Tensor) -> dict[str, Tensor]:
        """The next second moments, as new tensors, from the old ones and ``g ** 2``."""
        raise NotImplementedError

    def step(self, old: Entry, mean: Tensor, when: Moment, reported: float) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The next vector, and ``m``, the second moments and ``steps``."""
        continues = self._continues(old)
        kept = old.server if continues else self._start(old.vector)
        delta = mean - old.vector
        m = kept["m"].mul(self.beta1).add_(delta, alpha=1 - self.beta1)
        squared = (delta if self.second_moment == "raw" else m).square()
        # A square above float32's range would leave v infinite, and the coordinate frozen, for ever.
        second = {name: v.clamp(max=_LARGEST) for name, v in self.second(kept, squared).items()}
        steps = kept["steps"] + 1
        watched = self.watched(old, reported)
        if not continues:  # then the calibration starts again too
            watched = {name: number for name, number in watched.items() if not name.startswith("calibration/")}
        server: Mapping[str, Tensor] = {**watched, "m": m, **second, "steps": steps}
        server = self._denominator.watch(server, self._corrected_second(server))
        rate = self._corrected(self.scheduled_rate(when, watched), int(steps))
        return old.vector.addcdiv(m, self.denominator(server), value=rate), server

    def _corrected(self, rate: float, steps: int) -> float:
        """The rate that the momentum is multiplied by in the entry's step of this number."""
        return rate / (1 - self.beta1**steps) if self.bias_correction else rate

    def denominator(self, server: Mapping[str, Tensor]) -> Tensor:
        """The denominator, from an entry's server numbers after a step."""
        return self._denominator.calibrated(self._corrected_second(server), server)

    def _corrected_second(self, server: Mapping[str, Tensor]) -> Tensor:
        """The second moment as the denominator takes it."""
        v = server[self.moments[-1]]
        return (v / (1 - self.beta2 ** int(server["steps"]))).clamp(max=_LARGEST) if self.bias_correction else v

    def second_moment_of(self, entry: Entry) -> Tensor | None:
        """``v`` (``vhat`` in Reddi's AMSGrad) as the denominator takes it: after bias correction, where that is on."""
        return self._corrected_second(entry.server) if self._continues(entry) else None

    def constant_of(self, entry: Entry) -> float | None:
        """``tau``, or the constant of the calibration."""
        return self._denominator.constant_of(entry.server) if self._continues(entry) else None

    def effective_step(self, entry: Entry, when: Moment | None = None) -> Tensor | None:
        """The rate over the denominator, of the entry's shape; ``None`` before the entry's first step."""
        if not self._continues(entry):
            return None
        rate = self.lr if when is None else self.scheduled_rate(when, entry.server)
        rate = self._corrected(rate, int(entry.server["steps"]))
        return rate / self.denominator(entry.server)

    def _continues(self, entry: Entry) -> bool:
        sized = (entry.server.get(name) for name in ("m", *self.moments))
        return "steps" in entry.server and all(t is not None and t.shape == entry.vector.shape for t in sized)

    def _start(self, vector: Tensor) -> dict[str, Tensor]:
        second = {name: torch.full_like(vector, self.v0) for name in self.moments}
        return {"m": torch.zeros_like(vector), **second, "steps": torch.tensor(0)}

    def describe(self) -> dict[str, Any]:
        """Every option as it is used, ``v0``, and the effective step there (the largest one, if it is 0).

        With an automatic calibration nobody knows that step beforehand: ``None``.
        """
        automatic = self._denominator.automatic
        first = self._denominator.denominator(torch.tensor(self.v0, dtype=torch.float64))
        return {
            **super().describe(),
            "beta1": self.beta1,
            "beta2": self.beta2,
            "tau": self.tau,
            "calibration": None if self.calibration is None else self.calibration.describe(),
            "second_moment": self.second_moment,
            "v_init": self.v_init,
            "v0": self.v0,
            "bias_correction": self.bias_correction,
            "first_effective_step": None if automatic else self._corrected(self.lr, 1) / float(first),
        }


class Adam(Adaptive):
    """FedAdam: ``v = beta2 v + (1 - beta2) g ** 2``. Settings: `Adaptive`."""

    def second(self, kept: Mapping[str, Tensor], squared: Tensor) -> dict[str, Tensor]:
        """The moving average of the squares."""
        return {"v": kept["v"].mul(self.beta2).add_(squared, alpha=1 - self.beta2)}


class Yogi(Adaptive):
    """FedYogi: ``v = v - (1 - beta2) g ** 2 sign(v - g ** 2)``. Settings: `Adaptive`.

    ``v`` moves by ``(1 - beta2) g ** 2`` either way, and not at all where it equals ``g ** 2``; it stays >=
    0, because what is subtracted is less than ``v``.
    """

    def second(self, kept: Mapping[str, Tensor], squared: Tensor) -> dict[str, Tensor]:
        """The additive move towards the squares."""
        v = kept["v"]
        return {"v": v.addcmul(squared, (v - squared).sign_(), value=self.beta2 - 1)}


class AMSGrad(Adaptive):
    """FedAMSGrad: Adam whose second moment never falls. Settings: `Adaptive`, and ``form``.

    ``form: paper`` (arXiv 2009.06557) has the maximum inside the moving average,
    ``v = max(v, beta2 v + (1 - beta2) g ** 2)``, so ``v`` creeps up by ``(1 - beta2) max(0, g ** 2 - v)``.
    ``form: reddi`` (Reddi, Kale and Kumar 2018; torch, Keras) keeps Adam's ``v`` beside ``vhat``, its running
    maximum, which goes into the denominator; bias correction divides ``vhat``, as torch does.
    """

    def __init__(
        self,
        world: World | None = None,
        *,
        lr: float = 0.1,
        beta1: float = 0.9,
        beta2: float = 0.99,
        tau: Tau = None,
        calibration: Calibration | None = None,
        second_moment: Squared = "raw",
        v_init: Start | None = None,
        bias_correction: bool = False,
        form: Literal["paper", "reddi"] = "paper",
        lr_schedule: Schedule | None = None,
    ) -> None:
        super().__init__(
            world,
            lr=lr,
            beta1=beta1,
            beta2=beta2,
            tau=tau,
            calibration=calibration,
            second_moment=second_moment,
            v_init=v_init,
            bias_correction=bias_correction,
            lr_schedule=lr_schedule,
        )
        if form not in ("paper", "reddi"):
            raise ValueError(f"form must be 'paper' or 'reddi'; got {form!r}")
        self.form = form
        self.moments = ("v",) if form == "paper" else ("v", "vhat")

    def second(self, kept: Mapping[str, Tensor], squared: Tensor) -> dict[str, Tensor]:
        """``v``, and ``vhat`` in Reddi's form."""
        average = kept["v"].mul(self.beta2).add_(squared, alpha=1 - self.beta2)
        if self.form == "paper":
            return {"v": torch.maximum(kept["v"], average)}
        return {"v": average, "vhat": torch.maximum(kept["vhat"], average)}

    def describe(self) -> dict[str, Any]:
        """Adam's options, and ``form``."""
        return {**super().describe(), "form": self.form}


class Adagrad(Adaptive):
    """FedAdagrad: ``v = v + g ** 2``. Settings: `Adaptive` without ``beta2``; ``beta1`` is 0 by default.

    ``v`` is a sum, not an average, so there is nothing to correct: ``bias_correction: true`` is an error.
    """

    tau_default = 0.1

    def __init__(
        self,
        world: World | None = None,
        *,
        lr: float = 0.1,
        beta1: float = 0.0,
        tau: Tau = None,
        calibration: Calibration | None = None,
        second_moment: Squared = "raw",
        v_init: Start | None = None,
        bias_correction: bool = False,
        lr_schedule: Schedule | None = None,
    ) -> None:
        if bias_correction:
            raise ValueError(
                "bias_correction makes up for a moving average that starts at zero, and adagrad's v is a "
                "sum; got true. Leave it out, or use kind: adam"
            )
        super().__init__(
            world,
            lr=lr,
            beta1=beta1,
            tau=tau,
            calibration=calibration,
            second_moment=second_moment,
            v_init=v_init,
            lr_schedule=lr_schedule,
        )

    def second(self, kept: Mapping[str, Tensor], squared: Tensor) -> dict[str, Tensor]:
        """The sum of the squares."""
        return {"v": kept["v"] + squared}

    def describe(self) -> dict[str, Any]:
        """The options of `Adaptive` but ``beta2``."""
        return {name: value for name, value in super().describe().items() if name != "beta2"}
