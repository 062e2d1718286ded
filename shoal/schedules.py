"""Schedules of a learning rate: in stages, exponential, along a cosine, or on a plateau of the validation loss.

The server's rate has one (``method.server.lr_schedule``), and so has the clients' (``local.lr_schedule``). Each has the
factors of the ``torch.optim.lr_scheduler`` of the same idea, with one step per round. Without a schedule a rate is
constant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor


class Schedule:
    """How a learning rate changes over the rounds: a factor that the rate is multiplied by, at most 1."""

    part: ClassVar[str] = "schedule"
    reads_reported: bool = False
    """Whether it reads the participants' validation loss."""
    needs_rounds: bool = False
    """Whether the factor depends on how many rounds the run has."""

    def factor(self, round: int, rounds: int, kept: Mapping[str, Tensor]) -> float:
        """The factor of a round (counted from 1; a warm-up, round 0, has that of round 1), not negative.

        ``kept`` are the numbers that `watch` gave last: on the server in this round, at a client in the round before.
        """
        raise NotImplementedError

    def watch(self, kept: Mapping[str, Tensor], reported: float) -> Mapping[str, Tensor]:
        """``kept`` with the schedule's own numbers (``schedule/...``) moved on, once a round; all finite.

        ``reported`` is the participants' mean validation loss, NaN if nobody reported one. Others' numbers stay. A
        schedule that depends on the round alone gives back what it was given.
        """
        return kept

    def describe(self) -> dict[str, Any]:
        """The name of the class and its settings, for ``summary.json``; JSON values only."""
        return {"class": type(self).__name__}


def _before(round: int) -> int:
    """How many rounds were over when this one began."""
    return max(round - 1, 0)


def _share(name: str, value: float, positive: bool = False) -> float:
    if not 0 <= value <= 1 or (positive and not value):
        raise ValueError(
            f"{name} is a factor of the rate and needs 0 {'<' if positive else '<='} {name} <= 1; got {value}"
        )
    return value


class Stages(Schedule):
    """The rate is multiplied by ``gamma`` after each of the points ``at``.

    A point below 1 is a share of the run's rounds (to the nearest whole number from 1 on), one from 1 on a round: the
    rate of round 10 is the last one before the point 10. The default is a tenth after one half and after three
    quarters of the rounds (arXiv 2009.06557). Raises ``ValueError`` for points that are no such thing or not in rising
    order, and unless ``0 < gamma <= 1``.
    """

    def __init__(self, *, at: list[float] = [0.5, 0.75], gamma: float = 0.1) -> None:  # noqa: B006 (never changed)
        wrong = [point for point in at if not 0 < point < math.inf or (point > 1 and point != int(point))]
        if wrong or not at or list(at) != sorted(set(at)):
            raise ValueError(
                f"at lists when the rate falls, in rising order: shares of the rounds between 0 and 1, or whole rounds "
                f"from 1 on; got {wrong or at}"
            )
        self.at = tuple(float(point) for point in at)
        self.gamma = _share("gamma", gamma, positive=True)
        self.needs_rounds = self.at[0] < 1

    def factor(self, round: int, rounds: int, kept: Mapping[str, Tensor]) -> float:
        """``gamma`` to the number of points that are passed."""
        points = (max(1, math.floor(point * rounds + 0.5)) if point < 1 else point for point in self.at)
        return self.gamma ** sum(_before(round) >= point for point in points)

    def describe(self) -> dict[str, Any]:
        """The class, ``at`` and ``gamma``."""
        return {**super().describe(), "at": list(self.at), "gamma": self.gamma}


class Exponential(Schedule):
    """The rate is multiplied by ``gamma`` after every round, and never falls below ``floor`` times its start.

    Raises ``ValueError`` unless ``0 < gamma <= 1`` and ``0 <= floor <= 1``.
    """

    def __init__(self, *, gamma: float = 0.99, floor: float = 0.0) -> None:
        self.gamma = _share("gamma", gamma, positive=True)
        self.floor = _share("floor", floor)

    def factor(self, round: int, rounds: int, kept: Mapping[str, Tensor]) -> float:
        """``gamma ** (round - 1)``, at least ``floor``."""
        return max(self.gamma ** _before(round), self.floor)

    def describe(self) -> dict[str, Any]:
        """The class, ``gamma`` and ``floor``."""
        return {**super().describe(), "gamma": self.gamma, "floor": self.floor}


class Cosine(Schedule):
    """The rate falls along half a cosine, down to ``floor`` times its start, due one round after the last.

    Loshchilov and Hutter (2017), equation 5, without restarts. Raises ``ValueError`` unless ``0 <= floor <= 1``.
    """

    needs_rounds = True

    def __init__(self, *, floor: float = 0.0) -> None:
        self.floor = _share("floor", floor)

    def factor(self, round: int, rounds: int, kept: Mapping[str, Tensor]) -> float:
        """``floor + (1 - floor) (1 + cos(pi (round - 1) / rounds)) / 2``."""
        done = min(_before(round) / max(rounds, 1), 1.0)
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * done))

    def describe(self) -> dict[str, Any]:
        """The class and ``floor``."""
        return {**super().describe(), "floor": self.floor}


class Plateau(Schedule):
    """The rate is multiplied by ``gamma`` after more than ``patience`` rounds in a row without a better loss.

    The loss is the participants' mean on their validation rows, of the entry as they received it; a round without one
    changes nothing, so a stream without validation rows has a constant rate. Better means below the best one so far
    times ``1 - threshold``. After a fall the waiting starts anew. The factor never goes below ``floor``. As
    ``torch.optim.lr_scheduler.ReduceLROnPlateau``, with a step before each round's update.

    Each entry has a plateau of its own: ``schedule/best``, ``schedule/waited`` and ``schedule/factor``, of the server's
    rate in ``Entry.server``, of the clients' in ``Entry.extra``. Raises ``ValueError`` unless ``0 < gamma < 1``,
    ``0 <= floor <= 1``, ``patience >= 0`` and ``0 <= threshold < 1``.
    """

    reads_reported = True

    def __init__(self, *, gamma: float = 0.1, patience: int = 10, threshold: float = 1e-4, floor: float = 0.0) -> None:
        if not 0 < gamma < 1:
            raise ValueError(f"gamma multiplies the rate on a plateau and needs 0 < gamma < 1; got {gamma}")
        if patience < 0:
            raise ValueError(f"patience is a number of rounds, 0 or more; got {patience}")
        if not 0 <= threshold < 1:
            raise ValueError(f"threshold is a share of the loss and needs 0 <= threshold < 1; got {threshold}")
        self.gamma = gamma
        self.patience = patience
        self.threshold = threshold
        self.floor = _share("floor", floor)

    def factor(self, round: int, rounds: int, kept: Mapping[str, Tensor]) -> float:
        """What is left of the rate."""
        return float(kept["schedule/factor"]) if "schedule/factor" in kept else 1.0

    def watch(self, kept: Mapping[str, Tensor], reported: float) -> Mapping[str, Tensor]:
        """The best loss so far, the rounds waited since, and the factor."""
        if not math.isfinite(reported):
            return kept
        left, waited = self.factor(0, 0, kept), 0
        best = float(kept["schedule/best"]) if "schedule/best" in kept else math.inf
        if reported < best * (1 - self.threshold):
            best = reported
        else:
            waited = int(kept["schedule/waited"]) + 1
            if waited > self.patience:
                left, waited = max(left * self.gamma, self.floor), 0
        numbers = {"best": torch.tensor(best, dtype=torch.float64), "waited": torch.tensor(waited)}
        numbers["factor"] = torch.tensor(left, dtype=torch.float64)
        return {**kept, **{f"schedule/{name}": number for name, number in numbers.items()}}

    def describe(self) -> dict[str, Any]:
        """The class and its settings."""
        settings = {"gamma": self.gamma, "patience": self.patience, "threshold": self.threshold, "floor": self.floor}
        return {**super().describe(), **settings}
