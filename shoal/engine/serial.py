"""The serial engine: one job after another. The readable reference that every other engine is tested against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..messages import Job, Outcome
from ..requests import Score
from .base import Engine, Pair
from .program import Train, run_job


class Serial(Engine):
    """One resident kernel, in the caller's thread."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._kernel = self.kernel()

    def run(self, train: Train, jobs: Sequence[Job]) -> list[Outcome]:
        return [run_job(self._kernel, train, job) for job in jobs]

    def score(self, pairs: Sequence[Pair], metrics: Sequence[str] = ()) -> list[list[Score]]:
        return [self._kernel.evaluate(models, rows, metrics=metrics) for models, rows in pairs]

    def forget(self) -> None:
        self._kernel.forget()

    def describe(self) -> str:
        return f"serial on {self.device}, {self.precision}"
