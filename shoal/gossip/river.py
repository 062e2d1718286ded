"""Detectors of the package river, replayed over the losses that a client keeps."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from .detectors import Detector, Rows, Window

Setting = bool | int | float | str | None
OURS: Mapping[str, Mapping[str, Setting]] = {
    "ADWIN": {"delta": 0.3, "clock": 1, "min_window_length": 3, "grace_period": 6},
    "KSWIN": {"alpha": 0.01, "window_size": 20, "stat_size": 5, "seed": 0},
    "PageHinkley": {"min_instances": 5, "delta": 0.05, "threshold": 0.5, "mode": "up"},
}
"""Settings for one number per round; river's own are made for streams of thousands."""


class River(Detector):
    """A drift detector of river (``pip install 'shoal[detect]'``), by its name in ``river.drift``.

    ``settings`` are the detector's own; those that are not named are `OURS`, then river's. In every round a fresh
    detector is shown the kept losses, at most ``window``, and then the present one: its state is never stored, and the
    same losses always give the same answer. Where losses were left out at the window's start it is as if the run had
    begun there. Only an alarm at the present loss counts, and with ``rising`` only where this lies above the mean of
    the kept ones: the falling losses of plain training alarm such detectors, too.

    ADWIN's bounds are made for numbers from 0 to 1, and Page-Hinkley's ``threshold`` has the unit of the loss. Raises
    ``ValueError`` without the package, and for settings that the detector does not take.
    """

    def __init__(
        self,
        *,
        detector: Literal["ADWIN", "KSWIN", "PageHinkley"] = "PageHinkley",
        settings: dict[str, bool | int | float | str | None] | None = None,
        rising: bool = True,
        window: Window = 100,
        rows: Rows = "validation",
    ) -> None:
        self.detector = detector
        self.settings: dict[str, Setting] = {**OURS[detector], **(settings or {})}
        self.rising = rising
        self.window = window
        self.rows = rows
        if detector == "KSWIN":
            size, part = self.settings["window_size"], self.settings["stat_size"]
            if not (isinstance(size, int) and isinstance(part, int) and size >= 2 * part):
                raise ValueError(f"settings: KSWIN needs a window_size of twice its stat_size; got {size} and {part}")
            if not isinstance(self.settings["seed"], int):
                raise ValueError("settings: KSWIN draws, so it needs a seed, or a run could not be repeated")
        self._fresh()  # a setting that it does not take is refused before any training

    def _fresh(self) -> Any:
        try:
            from river import drift
        except ImportError as error:
            raise ValueError(
                "detector.kind: river needs the package river; install it with: pip install 'shoal[detect]', or use "
                "kind: jump"
            ) from error
        try:
            return getattr(drift, self.detector)(**self.settings)
        except TypeError as error:
            raise ValueError(f"settings: river's {self.detector} does not take these: {error}") from error

    def alarm(self, past: Sequence[float], now: float) -> bool:
        """Whether the detector alarms at ``now``."""
        if not past or (self.rising and now <= statistics.fmean(past)):
            return False
        found = self._fresh()
        for loss in (*past, now):
            found.update(loss)
        return bool(found.drift_detected)
