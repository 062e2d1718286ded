"""The command line: ``shoal run``, ``sweep``, ``predict``, ``compare`` and the others; see docs/commands.md."""

from __future__ import annotations

from .main import main

__all__ = ["main"]
