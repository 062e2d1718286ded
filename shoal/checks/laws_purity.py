"""Laws of whole runs: what must stay as it is, and what must come back as it was sent."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..bank import Bank, Buffers, Entry, Key
from ..messages import Job, Part, Update
from ..setup import Setup
from .case import Case, Run
from .fingerprint import difference, fingerprint
from .law import law, require
from .standin import CLIENTS
from .tamper import Answering, Raising, Watched, WatchedEngine


@law("run", "paired")
def inputs_stay_as_they_are(case: Case) -> None:
    """Nothing changes in place: the state before a round, assignments, private states, updates, the data."""
    clean = case.clean()
    for state, mark in zip(clean.states, clean.prints, strict=True):
        require(fingerprint(state) == mark, f"the state of round {state.round} was changed in place afterwards")
    case.play(case.setup(), engine=WatchedEngine, method=Watched.put())


@law("run", "paired")
def attributes_never_change(case: Case) -> None:
    """Method, learner, mean and server optimiser are after a run what they were before it."""
    clean = case.clean()
    setup = case.setup()
    before = _attributes(setup)
    run = case.play(setup)
    for keys in setup.method.candidates(run.last.bank, {"task": 0}):
        if all(key in run.last.bank.entries for key in keys):
            setup.method.compose(run.last.bank, tuple(keys))
    for name, mark in _attributes(setup).items():
        part, _, attribute = name.partition(".")
        require(
            name in before,
            f"attribute `{attribute}` of the {part} appeared during the run; attributes never change after __init__: "
            f"numbers live in the bank or the client's state",
        )
        require(mark == before[name], f"{name} changed during the run; numbers live in the bank or the client's state")
    require(clean.prints == run.prints, "the run is not the one that it was before")


def _attributes(setup: Setup) -> dict[str, str]:
    method = setup.method
    owners = {"method": method, "learner": method.learner, "mean": method.mean, "server": method.server}
    found = {}
    for what, owner in owners.items():
        for name, value in vars(owner).items():
            if name not in owners:  # a part of its own
                found[f"{what}.{name}"] = fingerprint(value)
        for cls in type(owner).__mro__[:-1]:
            for name, value in vars(cls).items():
                if not name.startswith("__") and not callable(value):
                    found[f"{what}.{name} (of class {cls.__name__})"] = fingerprint(value)
        found[f"{what}: its attributes"] = fingerprint(sorted(vars(owner)))
    return found


@law("run", "paired")
def sizes_stay(case: Case) -> None:
    """Every entry has the size of its model's segments, of the right types, in every round."""
    clean = case.clean()
    models = case.setup().world.models
    for old, new in zip(clean.states, clean.states[1:], strict=False):
        for key, entry in new.bank.entries.items():
            where = f"entry {key!r} after round {new.round}"
            require(entry.model in models, f"{where} is of model {entry.model!r}; the world has {sorted(models)}")
            space = models[entry.model].space
            require(entry.vector.dtype == torch.float32 and entry.vector.dim() == 1, f"{where} is not flat float32")
            if entry.segments == ():  # loose numbers, of any size
                continue
            size = space.size_of(entry.segments)
            require(entry.vector.numel() == size, f"{where} has {entry.vector.numel()} numbers for {size}")
            before = old.bank.entries.get(key)
            if before is not None and (before.model, before.segments) == (entry.model, entry.segments):
                require(_sizes(before) == _sizes(entry), f"{where}: sizes {_sizes(before)} became {_sizes(entry)}")


def _sizes(entry: Entry) -> list[Any]:
    tensors = (entry.vector, entry.buffers.floats, entry.buffers.counters)
    return [None if t is None else (t.dtype, tuple(t.shape)) for t in tensors]


@law("run")
def the_configured_server_is_used(case: Case) -> None:
    """Half the server's step gives other models: a method merges through `merge_entry`, and so through its parts."""
    case.clean()
    mean = {"kind": "weighted"}
    runs = [
        case.play(case.setup(method={"mean": mean, "server": {"kind": "sgd", "lr": lr}}), rounds=1) for lr in (1.0, 0.5)
    ]
    require(runs[0].models[-1] != runs[1].models[-1], "a server with half the rate gave the same models")


@law("run")
def reported_losses_are_heard(case: Case) -> None:
    """The loss that a client reports of its validation rows reaches the plateau of an entry that it answers for.

    A method that makes a `Group` of its own passes ``reported`` on, or no schedule that waits for a loss ever moves.
    """
    case.clean()
    plateau = {"lr_schedule": {"kind": "plateau"}}
    setup = case.setup(method={"server": {"kind": "sgd", **plateau}}, local={**case.local, **plateau})
    told = [_told(case, setup, client) for client in (None, *range(CLIENTS))]
    for client, heard in enumerate(told[1:]):
        require(
            heard != told[0],
            f"client {client} reports another loss, and no entry's schedule knows it; pass Group.reported on "
            f"(`grouped` makes it, `dataclasses.replace` keeps it)",
        )


def _told(case: Case, setup: Setup, odd: int | None) -> str:
    """What schedules know after one exchange of models in which all clients report 1, and an odd one reports 2."""

    def report(job: Job, update: Update) -> Update:
        return replace(update, note={**update.note, "validation_loss": 2.0 if job.client.id == odd else 1.0})

    bank = case.play(setup, engine=partial(Answering, change=report), rounds=1).last.bank
    return fingerprint(
        {
            key: {name: t for name, t in {**entry.server, **entry.extra}.items() if name.startswith("schedule/")}
            for key, entry in bank.entries.items()
        }
    )


@law("run")
def equal_updates_come_back(case: Case) -> None:
    """Where the server is a mean, a model that all clients send comes back bit for bit, whoever is missing.

    A method that does something else with equal models says so: ``averages = False``.
    """
    for own in (case, case.normed):
        own.clean()
        mean = {"mean": {"kind": "weighted"}, "server": {"kind": "sgd"}}
        setup = own.setup(method=mean, evaluate={"every": 0})
        if not getattr(setup.method, "averages", True):
            return
        for missing in ((), (1,)):
            _come_back(own, setup, missing)


def _come_back(case: Case, setup: Setup, missing: tuple[int, ...]) -> None:
    sent: dict[Key, list[Part]] = {}
    old: dict[tuple[str, int], tuple[Tensor, Buffers]] = {}

    def equal(job: Job, update: Update) -> Update:
        for key, part in update.parts.items():
            if part.vector is not None:
                sent.setdefault(key, []).append(part)
        return replace(
            update,
            parts={
                key: _common(part, job.given.entries.get(key) or setup.method.newborn(key), old)
                for key, part in update.parts.items()
            },
        )

    run = case.play(
        setup,
        engine=lambda engine: Answering(engine, equal),
        method=Raising.put(*missing) if missing else None,
        rounds=1,
    )
    require(run.clients_of("failed") == set(missing), f"clients failed: {run.told('failed')}")
    before, after = run.states[0].bank, run.last.bank
    new = [key for key, entry in after.entries.items() if key not in before.entries or before[key] is not entry]
    moved = [key for key in new if after[key].segments != ()]  # not loose numbers, of which there is no mean
    moved = [key for key in moved if key in sent or key not in before.entries or not _equal(before[key], after[key])]
    require(moved, "no entry changed when all clients sent the same model")
    who = f"with client {missing[0]} missing" if missing else "with everyone"
    for key in moved:
        _check_came_back(key, before, after, sent.get(key, []), old, who)


def _common(part: Part, entry: Entry | None, made: dict[tuple[str, int], tuple[Tensor, Buffers]]) -> Part:
    """The part with the one model that everyone sends for this architecture and size."""
    if part.vector is None:
        return part
    name = (entry.model if entry is not None else "main", part.vector.numel())
    if name not in made:
        buffers = Buffers(
            None if part.buffers.floats is None else part.buffers.floats * 1.1 + 0.3,
            None if part.buffers.counters is None else part.buffers.counters + 4,
        )
        made[name] = (part.vector * 0.7 + 0.1, buffers)
    vector, buffers = made[name]
    return replace(part, vector=vector, buffers=buffers)


def _equal(a: Entry, b: Entry) -> bool:
    return fingerprint(a.vector) == fingerprint(b.vector)


def _check_came_back(
    key: Key,
    before: Bank,
    after: Bank,
    sent: list[Part],
    made: dict[tuple[str, int], tuple[Tensor, Buffers]],
    who: str,
) -> None:
    entry = after[key]
    name = (entry.model, entry.vector.numel())
    require(name in made, f"entry {key!r} changed {who}, but no client sent a model of its size")
    vector, buffers = made[name]
    masks = [part.mask for part in sent]
    if sent and all(mask is not None for mask in masks) and key in before.entries:
        somebody = torch.stack([mask for mask in masks if mask is not None]).any(0)
        vector = torch.where(somebody, vector, before[key].vector)
    found = difference(vector, entry.vector)
    require(found is None, f"entry {key!r}, {who}: the model that all sent and the one that came back, {found}")
    if not entry.buffers.empty and not buffers.empty:
        # Counters too: what all sent is the largest.
        found = difference(buffers, entry.buffers)
        require(found is None, f"buffers of entry {key!r}, {who}: sent by all, and what came back, {found}")


@law("run")
def buffers_never_pass_the_server(case: Case) -> None:
    """BatchNorm statistics are those of plain averaging, whatever the server optimiser does to the models."""
    own = case.normed
    own.clean()
    plain = own.play(own.setup(method={"server": {"kind": "sgd"}}), rounds=1)
    for server in ({"kind": "adam", "lr": 1.0}, {"kind": "momentum", "lr": 5.0}):
        other = own.play(own.setup(method={"server": server}), rounds=1)
        for key, entry in other.last.bank.entries.items():
            found = difference(plain.last.bank[key].buffers, entry.buffers)
            require(found is None, f"buffers of entry {key!r} under sgd and {server['kind']}: {found}")


@law("run", "paired")
def batch_norm_stays_sound(case: Case) -> None:
    """With BatchNorm all numbers stay finite, variances at least 0, and counters are integers that never fall."""
    own = case.normed
    clean = own.clean()
    setup = own.setup()
    models = setup.world.models
    run = own.play(setup, state=clean.last, rounds=3)
    for old, new in zip(run.states, run.states[1:], strict=False):
        for key, entry in new.bank.entries.items():
            where = f"entry {key!r} after round {new.round}"
            for tensor in (entry.vector, entry.buffers.floats, *entry.server.values(), *entry.extra.values()):
                require(tensor is None or bool(torch.isfinite(tensor).all()), f"{where} is not finite")
            if entry.buffers.floats is not None:
                _check_variances(models[entry.model].build(), models[entry.model].buffers, entry, where)
            before, counters = old.bank.entries.get(key), entry.buffers.counters
            if counters is not None and before is not None and before.buffers.counters is not None:
                require(counters.dtype == torch.int64, f"{where}: counters became {counters.dtype}")
                require(bool((counters >= before.buffers.counters).all()), f"{where}: a counter fell")
    _require_played(run)


def _check_variances(module: torch.nn.Module, space: Any, entry: Entry, where: str) -> None:
    space.write(module, entry.buffers)
    for name, value in module.named_buffers():
        if name.endswith("running_var"):
            require(bool((value >= 0).all()), f"{where}: {name} has a variance below zero, {float(value.min()):.3g}")


def _require_played(run: Run) -> None:
    for record in ("diverged", "rejected", "failed"):
        require(not run.told(record), f"{run.told(record)[:1]}")
    require(run.models[0] != run.models[-1], "the later rounds changed no model")
