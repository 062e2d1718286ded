"""The entry point: ``shoal`` and ``python -m shoal``. Light, so that an interrupt finds it ready."""

from __future__ import annotations

import signal
import sys
from types import FrameType


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """Runs the command line; SIGTERM saves a run as Ctrl-C does."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        from .cli import main as run

        code = run()
    except KeyboardInterrupt:
        print("interrupted before anything had begun", file=sys.stderr)
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
