"""`Tracker`: sends a run's numbers somewhere else while it goes on; `Guard` keeps its faults away from the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

from .. import registry
from ..config import Config
from ..errors import ConfigError
from ..metrics.base import Line


class Tracker:
    """Sends the lines of ``metrics.jsonl`` somewhere else. A kind is built as ``Kind(folder, config, **settings)``.

    ``folder`` is the run's folder, ``config`` its resolved configuration. Nothing that a tracker does reaches the
    run: lines are copies, and what it raises becomes a warning.
    """

    part: ClassVar[str] = "tracker"

    def __init__(self, folder: Path, config: Config) -> None:
        self.folder = folder
        self.config = config

    @classmethod
    def check(cls) -> None:
        """Raises `ConfigError` if a package is missing. Called before any training."""

    def begin(self, round: int, lines: Sequence[Line]) -> None:
        """The run begins, or goes on after ``round``; ``lines`` are those in ``metrics.jsonl`` already.

        What was written for later rounds is void: they are played again.
        """

    def write(self, round: int, lines: Sequence[Line]) -> None:
        """The lines of a finished round; each round once."""
        raise NotImplementedError

    def close(self) -> None:
        """The run ended, or was interrupted."""


def check_tracker(config: Config) -> None:
    """Raises `ConfigError` if the configuration's tracker is a class of another kind, or cannot work here.

    What a function gives is known when the run begins: anything but a tracker is then left out with a warning.
    """
    if config.track is not None:
        kind = config.track["kind"]
        target = registry.find("tracker", kind, "track.kind")
        if isinstance(target, type) and getattr(target, "part", None) != Tracker.part:
            raise ConfigError(
                f"track.kind: {kind} is no tracker; a kind of tracker is a class derived from "
                f"{registry.BASES[Tracker.part]}"
            )
        check = getattr(target, "check", None)
        if check is not None:
            check()


class Guard:
    """The tracker of a run, or nobody. Its first fault is told to ``say``, and it is not asked again."""

    def __init__(self, folder: Path, config: Config, say: Callable[[str], None]) -> None:
        self._say = say
        self._tracker: Tracker | None = None
        settings = config.track
        if settings is not None:
            self._tried(lambda: self._set(registry.build("tracker", settings, folder, config, where="track")))

    def _set(self, tracker: Any) -> None:
        self._tracker = cast("Tracker", tracker)

    def _tried(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # whatever it is, a run of hours must not be lost to it
            self._tracker = None
            self._say(f"warning: the tracker failed and is left out from here on: {type(error).__name__}: {error}")

    def begin(self, round: int, lines: Sequence[Line]) -> None:
        """See `Tracker.begin`."""
        tracker = self._tracker
        if tracker is not None:
            self._tried(lambda: tracker.begin(round, [dict(line) for line in lines]))

    def write(self, round: int, lines: Sequence[Line]) -> None:
        """See `Tracker.write`."""
        tracker = self._tracker
        if tracker is not None:
            self._tried(lambda: tracker.write(round, [dict(line) for line in lines]))

    def close(self) -> None:
        """See `Tracker.close`."""
        tracker = self._tracker
        if tracker is not None:
            self._tried(tracker.close)
