"""What a law is: a short function that tries one part and raises `Broken` where the law does not hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ..engine.program import describe_error
from ..errors import ShoalError

Check = Callable[[Any], None]
C = TypeVar("C", bound=Check)


class Broken(Exception):
    """A law that does not hold; the message says what was found."""


@dataclass(frozen=True)
class LawResult:
    """Whether one law holds for one part. ``detail`` is empty where it holds."""

    law: str
    passed: bool
    detail: str = ""


@dataclass(frozen=True)
class Law:
    """One law: its name, the sentence that states it, and the check."""

    name: str
    statement: str
    check: Check

    def on(self, subject: Any) -> LawResult:
        """Tries the law on a subject; any exception breaks it."""
        try:
            self.check(subject)
        except Broken as error:
            return LawResult(self.name, False, str(error))
        except ShoalError as error:
            return LawResult(self.name, False, f"{type(error).__name__}: {error}")
        except Exception as error:
            return LawResult(self.name, False, describe_error(error))
        return LawResult(self.name, True)


LAWS: dict[str, list[Law]] = {}
"""The laws by what they are about: ``run`` (a whole run), ``paired`` (those of ``run`` that depend on a mean or
a server optimiser), and ``mean``, ``server``, ``calibration``, ``stream``, ``partition`` (the part alone)."""


def law(*subjects: str) -> Callable[[C], C]:
    """A decorator that makes a function a law of these subjects; its name and first sentence are the law's."""

    def remember(check: C) -> C:
        name = check.__name__.replace("_", " ")
        statement = " ".join((check.__doc__ or "").split("\n\n")[0].split())
        for subject in subjects:
            LAWS.setdefault(subject, []).append(Law(name, statement, check))
        return check

    return remember


def require(holds: object, message: str) -> None:
    """Raises `Broken` with this message unless it holds."""
    if not holds:
        raise Broken(message)
