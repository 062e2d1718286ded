"""One stack for several runs that are played at the same time, each in a thread of its own: the cells of a sweep.

A run's engine waits until every other run waits too (or has left); then one thread answers the requests of all of
them together. Rounds so stay in step by themselves, and cells that are cheap wait for those that are not. The threads
take turns: they are there to keep each run's place in its loop, and at the same time they would only hinder each other.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from typing import Any

from ..messages import Job, Outcome
from .base import Engine
from .features import Kept
from .program import Running, Stopped, Train
from .stacked import Stacked, answer_all


class Gathering:
    """Where the engines of ``runs`` runs meet.

    Each run holds the ``turn`` from its beginning to its end, but for the time in which it waits here for the others,
    and must `leave` at its end, whatever the end was.
    """

    def __init__(self, runs: int) -> None:
        self.turn = self._changed = threading.Condition()
        self.runs = runs
        self.kept = Kept()
        """What frozen layers make of rows, for all runs: they take turns."""
        self._present = runs
        self._waiting: dict[Companion, Sequence[Running]] = {}
        self._stopped = False

    def leave(self) -> None:
        """One run less to wait for."""
        with self._changed:
            self._present -= 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Makes every engine that waits, or will wait, give its round up."""
        # Before the lock is taken: a run that is the last one holds it to its end, and would never hear of it.
        self._stopped = True
        with self._changed:
            self._changed.notify_all()

    def answer(self, engine: Companion, programs: Sequence[Running]) -> None:
        """Returns when these programs have ended. Raises `Stopped` if the runs were stopped."""
        with self._changed:
            self._waiting[engine] = programs
            try:
                while engine in self._waiting:
                    if self._stopped:
                        raise Stopped
                    if len(self._waiting) >= self._present:
                        self._answer_everybody()
                    else:
                        self._changed.wait()
            finally:
                self._waiting.pop(engine, None)

    def _answer_everybody(self) -> None:
        """Done by the last one to come, with the lock held: nobody else has anything to do.

        If it fails the others stop, for they have no answer.
        """
        try:
            answer_all([(e, p) for e, programs in self._waiting.items() for p in programs], {})
        except BaseException:
            self.stop()
            raise
        self._waiting.clear()
        self._changed.notify_all()


class Companion(Stacked):
    """The stacked engine of one run among several."""

    def __init__(self, gathering: Gathering, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gathering = gathering
        self.companions = gathering.runs
        fronts = {name: (self.origin, chain.signature) for name, chain in self.chains.items()}
        self._kernel.fronts.share(gathering.kept, fronts)

    def run(self, train: Train, jobs: Sequence[Job]) -> list[Outcome]:
        programs = [Running(train, job) for job in jobs]
        try:
            self.gathering.answer(self, programs)
        except Stopped:
            raise KeyboardInterrupt from None
        return [program.outcome() for program in programs]

    def stream(self, train: Train, jobs: Sequence[Job], most: int) -> Generator[Outcome, None, None]:
        return Engine.stream(self, train, jobs, most)  # all of `run` at once: others wait for it

    def describe(self) -> str:
        others = self.companions - 1
        return super().describe() + (f", together with {others} other runs" if others else "")
