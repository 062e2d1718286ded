"""Settings of a model that differ by task: a file for each task, and the structure that follows from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ConfigError

TASK = "{task}"
"""Stands for the number of the task, from 0, in the name of a file or of an entry in it."""
FILES = ("weights", "teacher")
"""Settings that name a file, or one for each task; ``NAME_sha256`` is filled in beside them, then a list, too."""
FOLLOWING = {"weights": ("paths",)}
"""What follows from a file, and is a list where there is one for each task."""


def is_by_task(named: Any) -> bool:
    """Whether what is written for a file names one for each task: a list, or a text with ``{task}``."""
    return isinstance(named, list) or (isinstance(named, str) and TASK in named)


def differs(settings: Mapping[str, Any]) -> bool:
    """Whether each task has a model of its own, by complete settings."""
    return bool(_lists(settings))


def count(settings: Mapping[str, Any]) -> int:
    """How many tasks have one."""
    return max(len(settings[f"{name}_sha256"]) for name in _lists(settings))


def of_task(settings: Mapping[str, Any], task: int) -> dict[str, Any]:
    """The settings of one task's model, from complete ones."""
    found = dict(settings)
    for name in _lists(settings):
        found[name] = named(settings[name], task)
        for other in (f"{name}_sha256", *FOLLOWING.get(name, ())):
            if isinstance(settings.get(other), list):
                found[other] = settings[other][task]
    return found


def named(given: Any, task: int) -> str | None:
    """The file of one task, from what is written for those of all."""
    if isinstance(given, list):
        return named(given[task], task)
    return None if given is None else str(given).replace(TASK, str(task))


def check(settings: Mapping[str, Any], names: Sequence[str], tasks: int) -> None:
    """Raises `ConfigError` for files by task where ``tasks``, by stream and method, is another number (0: none)."""
    for name in names:
        given = settings.get(name)
        if is_by_task(given) and not tasks:
            raise ConfigError(
                f"model.{name}: {given!r} is a file for each task, but there is no model for each task; use "
                f"stream.kind: tasks and a method that keeps one for each, such as method.per: task, or name one file"
            )
        for key in (name, f"{name}_sha256", *FOLLOWING.get(name, ())):
            value = settings.get(key)
            if isinstance(value, list) and (not is_by_task(given) or len(value) != tasks):
                raise ConfigError(
                    f"model.{key}: a list has one for each task with a model of its own, of which there are {tasks}, "
                    f"and model.{name} names their files; got {len(value)}"
                )


def _lists(settings: Mapping[str, Any]) -> list[str]:
    return [name for name in FILES if isinstance(settings.get(f"{name}_sha256"), list)]
