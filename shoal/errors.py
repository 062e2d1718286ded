"""Errors that a user can mend. Their messages say the rule, what came, and the likely fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class ShoalError(Exception):
    """A fault that the user can mend; shown without a traceback on the command line."""


class ConfigError(ShoalError):
    """A configuration that cannot be run."""


class DataError(ShoalError):
    """Data that cannot be read or do not fit the configuration."""


class RunError(ShoalError):
    """A run's folder that cannot be used as asked."""


class Stopped(RunError):
    """A run that had begun and cannot go on, such as on a full disk; ``folder`` is what can be resumed later."""

    def __init__(self, reason: str, folder: Path) -> None:
        super().__init__(f"{reason}; when that is mended go on with: shoal resume {folder}")
        self.reason = reason


def in_words(error: OSError) -> str:
    """What the system refused, without its numbers: ``'/x/y' cannot be used: Permission denied``."""
    reason = error.strerror or str(error) or type(error).__name__
    names = [str(name) for name in (error.filename, error.filename2) if name is not None]
    return f"{' -> '.join(map(repr, names))} cannot be used: {reason}" if names else reason


def nearest(name: str, known: Iterable[str]) -> str:
    """``"did you mean 'adam' or 'adagrad'?"`` or, when nothing is near, the list of what is known."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(repr(c) for c in close) + "?"
    return "known: " + ", ".join(names)
