"""What a user sees while a run goes on: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from .metrics.base import Line


class Quiet:
    """Shows nothing; the base of what does."""

    estimates: bool = False
    """Whether the user shall be told how long a run will take."""

    def begin(self, name: str, rounds: int, done: int) -> None:
        """A run begins (or goes on after ``done`` rounds)."""

    def played(self, round: int, lines: list[Line]) -> None:
        """A round is finished."""

    def say(self, text: str) -> None:
        """A message for the user."""

    def end(self) -> None:
        """The run is over, finished or not."""


class Bar(Quiet):
    """A live bar with the round, the accuracy and the time left. Only messages where the stream is no terminal."""

    estimates = True

    def __init__(self, stream: TextIO | None = None) -> None:
        self.console = Console(file=stream or sys.stderr, highlight=False)
        self._progress: Progress | None = None
        self._accuracy = ""

    def begin(self, name: str, rounds: int, done: int) -> None:
        if not self.console.is_terminal:
            return
        self._accuracy = ""
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[accuracy]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
        )
        self._task = self._progress.add_task(name, total=rounds, completed=done, accuracy="")
        self._progress.start()

    def played(self, round: int, lines: list[Line]) -> None:
        for line in lines:
            if line.get("metric") == "mean_accuracy" and line.get("weighting") == "targets":
                value = line.get("value")
                self._accuracy = "" if value is None else f"accuracy {100 * value:.1f}%"
        if self._progress is not None:
            self._progress.update(self._task, completed=round, accuracy=self._accuracy)

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, markup=False)

    def end(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
