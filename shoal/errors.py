"""Errors that a user can mend. Their messages say the rule, what came, and the likely fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ShoalError(Exception):
    """A fault that the user can mend; shown without a traceback on the command line."""


class ConfigError(ShoalError):
    """A configuration that cannot be run."""


class DataError(ShoalError):
    """Data that cannot be read or do not fit the configuration."""


class RunError(ShoalError):
    """A run's folder that cannot be used as asked."""


def nearest(name: str, known: Iterable[str]) -> str:
    """``"did you mean 'adam' or 'adagrad'?"`` or, when nothing is near, the list of what is known."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(repr(c) for c in close) + "?"
    return "known: " + ", ".join(names)
