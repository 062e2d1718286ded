"""Runs the laws on registered parts and on a user's own."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
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
    laws_stream,
)
from .case import Case
from .examples import Example, examples_of
from .law import LAWS, Law, LawResult
from .laws_partition import CLIENTS, PartitionCase
from .laws_stream import ROUNDS, StreamCase
from .standin import pictures

CHECKED = ("method", "learner", "mean", "server", "calibration", "stream", "partition")
"""The kinds of part that have laws."""


def subjects(part: str, kind: str, example: Example) -> Iterator[tuple[str, Any]]:
    """What the laws look at: pairs of a subject of `law.LAWS` and the thing itself.

    Raises `ConfigError` for settings that the part does not take.
    """
    settings = {"kind": kind, **example.settings}
    resolved = registry.resolve(part, settings)
    if part in ("method", "learner"):
        case = Case(method=settings) if part == "method" else Case(learner=settings)
        yield "run", case if example.model is None else replace(case, model=example.model, needs_model=True)
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
    return registry.accepted(part, kind, world=replace(setup.world, rounds=100), local=setup.config.local)


def _stream_case(settings: dict[str, Any], example: Example) -> StreamCase:
    resolved = registry.resolve("stream", settings)

    def make(seed: int) -> Stream:
        stream = registry.build("stream", resolved, pictures(), seed, ROUNDS, False)
        assert isinstance(stream, Stream)
        return stream

    return StreamCase(make, example.shares_rows, example.leaves_rows)


def laws_of(part: str, kind: str) -> Iterator[tuple[Law, Any, Example]]:
    """Every law of a part with the subject that it is tried on, for every example."""
    for example in examples_of(part, kind):
        for name, subject in subjects(part, kind, example):
            for law in LAWS[name]:
                yield law, subject, example


def check_target(target: str) -> list[LawResult]:
    """Runs the laws on a part by import path, ``module:Class``, with the settings that its ``examples`` list.

    Raises `ConfigError` if it cannot be imported, has no laws, or needs settings and lists none.
    """
    part = _part_of(target)
    listed = examples_of(part, target)
    results = []
    try:
        found = list(laws_of(part, target))
        _try_to_build(found)
    except ConfigError as error:
        raise ConfigError(
            f"{target} cannot be built: {error}. Settings for the laws are listed in a class attribute, "
            f"examples = [{{...}}]"
        ) from error
    for law, subject, example in found:
        result = law.on(subject)
        name = result.law if len(listed) == 1 else f"{result.law} ({example})"
        results.append(LawResult(name, result.passed, result.detail))
    return results


def _try_to_build(found: list[tuple[Law, Any, Example]]) -> None:
    for subject in {id(subject): subject for _, subject, _ in found}.values():
        if isinstance(subject, Case):
            subject.setup()
        elif isinstance(subject, StreamCase):
            subject.make(0)


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
