"""Several runs at the same time, whose clients share the stacks of one engine: the cells of a sweep."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from .engine.base import one_torch_thread
from .engine.shared import Gathering
from .metrics.base import Line
from .progress import Quiet

MOST = 32
"""How many runs are played at the same time: each holds its own bank, and threads that wait cost little."""

Play = Callable[[Gathering, Quiet], object]
"""Plays one run, from where it stands to its end, with an engine of this gathering."""


def play_together(plays: Sequence[tuple[Play, int]], progress: Quiet, name: str) -> None:
    """Plays runs, each with its number of rounds, at most `MOST` at once.

    If one of them fails the others stop after the round they are in, and can be gone on with; then its exception is
    raised. So it is with an interrupt.
    """
    for begin in range(0, len(plays), MOST):
        chosen = plays[begin : begin + MOST]
        bar = _Bar(progress, f"{name}: {len(chosen)} runs together", sum(rounds for _, rounds in chosen))
        try:
            # Here too: the first run that ended would give the others, which still compute, the threads back.
            with one_torch_thread():
                _Party([play for play, _ in chosen], bar).play()
        finally:
            progress.end()


class _Party:
    """The runs that are played at the same time, each in a thread."""

    def __init__(self, plays: Sequence[Play], progress: Quiet) -> None:
        self.gathering = Gathering(len(plays))
        self.errors: list[BaseException] = []
        self.progress = progress
        self.threads = [threading.Thread(target=self._one, args=(play,), name="shoal-run") for play in plays]

    def _one(self, play: Play) -> None:
        with self.gathering.turn:
            try:
                play(self.gathering, self.progress)
            except BaseException as error:
                self.errors.append(error)
                self.gathering.stop()
            finally:
                self.gathering.leave()

    def play(self) -> None:
        """To the end of all; raises the first exception."""
        started: list[threading.Thread] = []
        try:
            for thread in self.threads:
                started.append(thread)
                thread.start()
            for thread in self.threads:
                thread.join()
        except BaseException:
            self.gathering.stop()
            for thread in started:
                if thread.ident is not None:  # the last one may not have begun
                    thread.join()
            raise
        if self.errors:
            raise self.errors[0]


class _Bar(Quiet):
    """One bar for all runs: their rounds together."""

    def __init__(self, shown: Quiet, name: str, rounds: int) -> None:
        self.inner = shown
        self._lock = threading.Lock()
        self._done = 0
        shown.begin(name, rounds, 0)

    def begin(self, name: str, rounds: int, done: int) -> None:
        """A run begins; what it has done already is done."""
        self._go_on(done, [])

    def played(self, round: int, lines: list[Line]) -> None:
        """One round more, of whatever run."""
        self._go_on(1, lines)

    def _go_on(self, rounds: int, lines: list[Line]) -> None:
        with self._lock:
            self._done += rounds
            self.inner.played(self._done, lines)

    def say(self, text: str) -> None:
        """Passes a message on."""
        with self._lock:
            self.inner.say(text)
