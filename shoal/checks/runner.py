"""Runs the laws on registered parts and on a user's own."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from .. import registry
from ..errors import ConfigError
from ..streams.base import Stream
from . import (  # noqa: F401  (imported for the laws that they hold)
    laws_bits,
    laws_failure,
    laws_mean,
    laws_memory,
    laws_purity,
    laws_server,
    laws_stacked,
    laws_stream,
)
from .case import Case, Run
from .examples import Example, examples_of
from .law import LAWS, Law, LawResult
from .laws_partition import CLIENTS, PartitionCase
from .laws_stream import ROUNDS, StreamCase
from .standin import pictures

CHECKED = ("method", "learner", "compression", "mean", "server", "calibration", "stream", "partition")
"""The kinds of part that have laws."""
PLAIN = {"kind": "plain"}


def subjects(part: str, kind: str, example: Example, learner: Mapping[str, Any] = PLAIN) -> Iterator[tuple[str, Any]]:
    """What the laws look at: pairs of a subject of `law.LAWS` and the thing itself.

    ``learner`` is the one that a method is tried with. Raises `ConfigError` for settings that the part does not take.
    """
    settings = {"kind": kind, **example.settings}
    resolved = registry.resolve(part, settings)
    if part in ("method", "learner"):
        case = Case(method=settings, learner=learner) if part == "method" else Case(learner=settings)
        case = replace(case, local=example.local)
        yield "run", case if example.model is None else replace(case, model=example.model, needs_model=True)
    elif part == "compression":
        yield "run", Case(local={"compression": settings, **example.local})
    elif part == "mean":
        yield "mean", registry.build("mean", resolved, **_offered("mean", kind))
        yield "paired", Case(method={"kind": "fedavg", "mean": settings})
    elif part == "server":
        yield "server", registry.build("server", resolved, **_offered("server", kind))
        yield "paired", Case(method={"kind": "fedavg", "server": settings})
    elif part == "calibration":
        yield "calibration", registry.build("calibration", resolved)
        server = {"kind": "adam", "calibration": settings}
        yield "server", registry.build("server", registry.resolve("server", server))
        yield "paired", Case(method={"kind": "fedavg", "server": server})
    elif part == "stream":
        yield "stream", _stream_case(settings, example)
    elif part == "partition":
        clients = example.clients or CLIENTS
        make = partial(registry.build, "partition", resolved)
        yield "partition", PartitionCase(make, example.shares_rows, example.leaves_rows, clients)
        yield "stream", _stream_case({"kind": "static", "clients": clients, "partition": settings}, example)


def _offered(part: str, kind: str) -> dict[str, Any]:
    """What a mean or a server optimiser is given where it asks for it: a long run, so that the few steps that the laws
    take are in the middle of a schedule."""
    setup = Case().setup()
    world = replace(setup.world, rounds=100)
    return registry.accepted(part, kind, world=world, local=setup.config.local, selection=setup.selection)


def _stream_case(settings: dict[str, Any], example: Example) -> StreamCase:
    resolved = registry.resolve("stream", settings)

    def make(seed: int) -> Stream:
        stream = registry.build("stream", resolved, pictures(), seed, ROUNDS, False)
        assert isinstance(stream, Stream)
        return stream

    return StreamCase(make, example.shares_rows, example.leaves_rows)


def laws_of(part: str, kind: str) -> Iterator[tuple[Law, Any, Example]]:
    """Every law of a part with the subject that it is tried on, for every example."""
    for laws, subject, example in _tried(part, kind, PLAIN):
        for law in laws:
            yield law, subject, example


def _tried(part: str, kind: str, learner: Mapping[str, Any]) -> Iterator[tuple[list[Law], Any, Example]]:
    for example in examples_of(part, kind):
        for name, subject in subjects(part, kind, example, learner):
            yield LAWS[name], subject, example


def check_target(
    target: str, learner: str | Mapping[str, Any] | None = None, say: Callable[[str], None] = lambda line: None
) -> list[LawResult]:
    """Runs the laws on a part by import path, ``module:Class``, with the settings that its ``examples`` list.

    A method is tried with ``learner``, a kind or a mapping with ``kind`` (default: the plain one). ``say`` is given
    lines on what was played: rounds, clients, rows, and the entries that were born and retired. A part that cannot
    even run cleanly gives one broken result in place of all its laws, which would only repeat the cause.

    Raises `ConfigError` if it cannot be imported, has no laws, or needs settings and lists none, and for a learner
    that does not exist or is given to something else than a method.
    """
    part = _part_of(target)
    with_learner: Mapping[str, Any] = PLAIN
    if learner is not None:
        if part != "method":
            raise ConfigError(f"a learner is given to the check of a method; {target} is a {part}")
        with_learner = {"kind": learner} if isinstance(learner, str) else learner
        registry.resolve("learner", with_learner)
    listed = examples_of(part, target)
    try:
        tried = list(_tried(part, target, with_learner))
        _try_to_build([subject for _, subject, _ in tried])
    except ConfigError as error:
        raise ConfigError(f"{target} cannot be built: {error}{_hint(part, error)}") from error
    results: list[LawResult] = []
    runs: list[Run] = []
    for laws, subject, example in tried:
        shown = "" if len(listed) == 1 else f" ({example})"
        first = _FIRST.on(subject)
        found = [law.on(subject) for law in laws] if first.passed else [first]
        results += [LawResult(result.law + shown, result.passed, result.detail) for result in found]
        if not first.passed:
            say(f"no other law was tried{shown}: all of them need a first try that succeeds")
        elif isinstance(subject, Case):
            runs.append(subject.clean())
            say(f"played{shown}: {_played(subject, runs[-1])}")
    unborn = runs and not any(_came_and_went(run)[0] for run in runs)
    if unborn and getattr(registry.find(part, target), "births", False):
        say(
            "warning: the class has births = True, but no entry was born, so the laws say nothing of births; list "
            "settings with which one is born in a class attribute, examples = [{...}]"
        )
    return results


def _first_try(subject: Any) -> None:
    """A clean run, or the first answers of a stream: what every law needs before it can say anything."""
    if isinstance(subject, Case):
        subject.clean()
    elif isinstance(subject, StreamCase):
        subject.stream.holding(0, 1)
        subject.stream.targets(1)


_FIRST = Law("a first try", "The part runs, and does something.", _first_try)


def _played(case: Case, run: Run) -> str:
    """What a run was, in words: nothing that happens later, or to more clients, was seen by a law."""
    setup = case.setup()
    rounds = len(run.states) - 1
    length = f"{rounds} rounds{' with the warm-up' if setup.method.warmup else ''}"
    born, retired = (
        f"{what} {_few(keys)}" for what, keys in zip(("born", "retired"), _came_and_went(run), strict=True)
    )
    entries = f"entries at the start {_few(list(run.states[0].bank.entries))}, {born}, {retired}"
    return f"{length}, {setup.world.clients} clients, {len(setup.stream.dataset)} rows; {entries}"


def _came_and_went(run: Run) -> tuple[list[str], list[str]]:
    """The keys that were born during a run, and those that were retired."""
    keys = [set(state.bank.entries) for state in run.states]
    pairs = list(itertools.pairwise(keys))
    return (
        sorted(set().union(*(new - old for old, new in pairs))),
        sorted(set().union(*(old - new for old, new in pairs))),
    )


def _few(keys: list[str]) -> str:
    shown = ", ".join(keys[:4])
    return f"{shown} and {len(keys) - 4} more" if len(keys) > 4 else shown or "none"


def _try_to_build(found: list[Any]) -> None:
    for subject in found:
        if isinstance(subject, Case):
            subject.setup()
        elif isinstance(subject, StreamCase):
            subject.make(0)


def _hint(part: str, error: ConfigError) -> str:
    if str(error).startswith(f"{part}.kind:"):  # the class itself is at fault: no settings help
        return ""
    return ". Settings for the laws are listed in a class attribute, examples = [{...}]"


def _part_of(target: str) -> str:
    module, colon, name = target.partition(":")
    if not colon or not name:
        raise ConfigError(f"check needs an import path, such as my_methods:MyMethod; got {target!r}")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"cannot import {target!r}: {error}") from error
    part = getattr(found, "part", None)
    if part not in CHECKED:
        raise ConfigError(
            f"{target} is {'a ' + part if isinstance(part, str) else 'no part of a run'}; laws exist for "
            f"{', '.join(CHECKED)}: derive it from one of these base classes, such as shoal.methods.base:Method"
        )
    return str(part)
