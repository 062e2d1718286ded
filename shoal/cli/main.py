"""`main`: runs a command; what it says when something goes wrong, and its exit code."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ..errors import ShoalError, Stopped, in_words
from ..running import Interrupted
from . import look, play, use  # noqa: F401  (each adds its commands)
from .app import app
from .tables import err

REFUSED, STOPPED, INTERRUPTED = 2, 3, 130
"""The exit codes of a command that was refused, of a run that had begun and cannot go on, and of an interrupt."""


def main() -> int:
    """Runs a command and gives its exit code; docs/commands.md says what they mean. Errors of ours are one message."""
    sys.path.insert(0, str(Path.cwd()))  # parts of one's own by import path, as with python -m
    try:
        code = app(standalone_mode=False)
        if code != INTERRUPTED:  # what typer makes of a KeyboardInterrupt
            return code if isinstance(code, int) else 0
        err.print("interrupted; if a run had begun, go on with: shoal resume DIR")
    except click.exceptions.ClickException as error:
        error.show()
        return error.exit_code
    except Interrupted as error:
        err.print(str(error), markup=False, soft_wrap=True)
    except Stopped as error:
        err.print(f"error: {error}", markup=False, soft_wrap=True)
        return STOPPED
    except (ShoalError, OSError) as error:
        said = in_words(error) if isinstance(error, OSError) else str(error)
        err.print(f"error: {said}", markup=False, soft_wrap=True)
        return REFUSED
    return INTERRUPTED
