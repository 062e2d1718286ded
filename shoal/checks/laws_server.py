"""Laws of server optimisers and calibrations, each tried alone on one entry."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..bank import Entry
from ..checkpoint import read_file, write_file
from ..randomness import Moment
from ..server.base import Calibration, ServerOptimizer
from .fingerprint import difference, fingerprint
from .law import law, require

SIZE = 12
NAN = float("nan")


@dataclass(frozen=True)
class Step:
    """What a step gave."""

    vector: Tensor
    server: dict[str, Tensor]


def _tensor(seed: int, size: int = SIZE, scale: float = 1.0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * scale


def _step(server: ServerOptimizer, old: Entry, mean: Tensor, round: int = 1) -> Step:
    reported = 1.5 if server.reads_reported else NAN
    vector, numbers = server.step(old, mean, Moment(0, round), reported)
    return Step(vector, dict(numbers))


def _walk(server: ServerOptimizer, entry: Entry, rounds: int, scale: float = 0.1) -> Entry:
    for round in range(1, rounds + 1):
        step = _step(server, entry, entry.vector + _tensor(100 + round, entry.vector.numel(), scale), round)
        entry = entry.new(vector=step.vector, server=step.server)
    return entry


@law("server")
def inputs_of_a_step_stay(server: ServerOptimizer) -> None:
    """A step changes neither the entry nor the mean in place, also where the entry has moments already."""
    for old in (Entry(_tensor(0)), _walk(server, Entry(_tensor(0)), 2)):
        mean = old.vector + _tensor(1)
        before = fingerprint(old, mean)
        step = _step(server, old, mean, 3)
        require(difference(step.vector, old.vector) is not None, "a step towards another mean changed nothing")
        require(fingerprint(old, mean) == before, "the step changed what it was given, in place")


@law("server")
def all_numbers_live_in_the_entry(server: ServerOptimizer) -> None:
    """A step depends on the entry, the mean and the round alone, and the optimiser's attributes never change."""
    old = _walk(server, Entry(_tensor(0)), 2)
    mean = old.vector + _tensor(1)
    marks = {name: fingerprint(value) for name, value in vars(server).items()}
    first = _step(server, old, mean, 3)
    _walk(server, Entry(_tensor(7, 5)), 3)
    again = _step(server, old, mean, 3)
    found = difference((first.vector, first.server), (again.vector, again.server))
    require(found is None, f"the same step before and after steps of another entry: {found}")
    now = {name: fingerprint(value) for name, value in vars(server).items()}
    require(now == marks, "attributes changed; an optimiser's numbers live in Entry.server")


@law("server")
def the_first_step_goes_the_clients_way(server: ServerOptimizer) -> None:
    """The first step of an entry points into the half-space of the clients' mean change, at every size of it."""
    for scale in (1e-4, 1.0):
        old, change = Entry(_tensor(0)), _tensor(1, scale=scale)
        moved = _step(server, old, old.vector + change).vector.double() - old.vector.double()
        # Not at all is allowed: a schedule may warm up from zero.
        require(float(moved @ change.double()) >= 0, f"a change of size {scale:g} moved the entry the other way")


@law("server")
def no_change_moves_nothing(server: ServerOptimizer) -> None:
    """An entry without a past, whose clients all come back where they started, keeps every bit."""
    old = Entry(_tensor(0))
    step = _step(server, old, old.vector.clone())
    found = difference(old.vector, step.vector)
    require(found is None, f"the mean change was zero and there was no momentum, but the entry moved: {found}")


@law("server")
def numbers_of_others_come_back(server: ServerOptimizer) -> None:
    """What somebody else keeps in ``Entry.server`` comes back as it was, and every number can be stored."""
    theirs = {"somebody/else": _tensor(9, 3)}
    old = Entry(_tensor(0), server=theirs)
    with tempfile.TemporaryDirectory() as folder:
        for round in (1, 2):
            step = _step(server, old, old.vector + _tensor(round), round)
            kept = step.server.get("somebody/else")
            require(kept is not None and difference(theirs["somebody/else"], kept) is None, "others' numbers are lost")
            write_file(Path(folder) / "numbers", step.server)
            found = difference(step.server, read_file(Path(folder) / "numbers"))
            require(found is None, f"numbers before and after a checkpoint: {found}")
            old = old.new(vector=step.vector, server=step.server)


@law("server")
def steps_stay_finite(server: ServerOptimizer) -> None:
    """Steps give finite float32 vectors of the entry's size, from tiny changes to huge ones, also after a growth."""
    for scale in (0.0, 1e-12, 1.0, 1e6):
        old = _walk(server, Entry(_tensor(0)), 5, scale)
        _require_sound(old.vector, old.server, SIZE, f"changes of size {scale:g}")
    old = _walk(server, Entry(_tensor(0)), 2)
    grown = old.new(vector=torch.cat([old.vector, torch.zeros(3)]))
    step = _step(server, grown, grown.vector + _tensor(2, SIZE + 3), 3)
    _require_sound(step.vector, step.server, SIZE + 3, "an entry that grew by 3")


def _require_sound(vector: Tensor, server: Any, size: int, what: str) -> None:
    require(vector.shape == (size,) and vector.dtype == torch.float32, f"{what}: {vector.dtype} {tuple(vector.shape)}")
    require(bool(torch.isfinite(vector).all()), f"{what}: the entry is not finite")
    for name, tensor in server.items():
        require(isinstance(tensor, Tensor), f"{what}: {name!r} is a {type(tensor).__name__}, not a tensor")
        require(bool(torch.isfinite(tensor).all()), f"{what}: {name!r} is not finite")


@law("server")
def it_describes_itself(server: ServerOptimizer) -> None:
    """What it says of itself is strict JSON, and the effective step fits the entry."""
    try:
        json.dumps(server.describe(), allow_nan=False)
    except (TypeError, ValueError) as error:
        require(False, f"describe() is not strict JSON: {error}")
    entry = _walk(server, Entry(_tensor(0)), 1)
    effective = server.effective_step(entry, Moment(0, 1))
    if effective is not None:
        require(effective.numel() in (1, SIZE), f"the effective step has {effective.numel()} numbers for {SIZE}")
        require(bool((effective > 0).all()), "an effective step is not positive")


@law("calibration")
def denominators_are_positive(calibration: Calibration) -> None:
    """The denominator is positive and finite, of the second moment's size, from 0 to 1e30; ``v`` stays as it is."""
    v = torch.tensor([0.0, 1e-38, 1e-20, 1e-6, 1.0, 1e12, 1e30])
    before = fingerprint(v)
    found = calibration.denominator(v)
    require(fingerprint(v) == before, "the second moment was changed in place")
    require(found.shape == v.shape, f"a denominator of shape {tuple(found.shape)} for {tuple(v.shape)}")
    good = torch.isfinite(found) & (found > 0)
    require(bool(good.all()), f"at v = {v[~good].tolist()} the denominator is {found[~good].tolist()}")


@law("calibration")
def larger_moments_step_no_further(calibration: Calibration) -> None:
    """The denominator never falls while the second moment grows."""
    v = torch.logspace(-12, 4, 60)
    found = calibration.denominator(v)
    falls = found[1:] < found[:-1]
    require(not bool(falls.any()), f"the denominator falls near v = {float(v[1:][falls][0]) if falls.any() else 0:.3g}")
