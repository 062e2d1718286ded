"""A law of the stacked engine: it does what the serial one does, for every method and learner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from torch import Tensor

from ..bank import State
from ..config import Execution
from ..engine.base import Engine
from ..engine.general import general_of
from ..engine.stacked import Stacked
from .case import Case, require_clean, require_same_numbers
from .fingerprint import fingerprint
from .law import law, require

TOLERANCE = {"sgd": 1e-5, "adam": 1e-3, "adamw": 1e-3}
"""Adam divides a gradient near zero by its own size, so that its rounding becomes large."""
SMALL = 1e-2
"""Numbers below this are compared by their difference."""


@law("run")
def stacked_agrees_with_serial(case: Case) -> None:
    """A round of the stacked engine is the serial one's to rounding, and the company in a stack changes no bit."""
    clean = case.clean()
    gap = TOLERANCE[case.setup().config.local.optimizer]
    for before in clean.states[:-1]:
        # From the same state each time: over a run a choice may flip, and then the runs are simply different.
        serial = case.play(case.setup(), state=before, rounds=1)
        run = case.play(case.setup(), engine=Execution(kind="stacked"), state=before, rounds=1)
        require_clean(run, what=f"round {run.last.round} stacked")
        _require_near(serial.last, run.last, gap, f"serial and stacked, round {run.last.round}")
        if case.device != "cpu":  # which kernel a GPU takes may depend on how many clients there are
            continue
        alone = case.play(case.setup(), engine=partial(_restacked, bytes=1), state=before, rounds=1)
        require_same_numbers(run.last, alone.last, f"stacked together and one by one, round {run.last.round}")


@law("run")
def any_model_can_be_stacked(case: Case) -> None:
    """A round in which the models go through `torch.func.vmap` is the serial one's to rounding, with BatchNorm too."""
    near = TOLERANCE[case.setup().config.local.optimizer]
    # BatchNorm divides by deviations of two rows, and SCAFFOLD its rounding by the rate.
    for own, gap in ((case, near), (_calm(case.normed), 10 * near)):
        states = own.clean().states
        # The last round that changed a model: a rule of matching may reject all of them.
        before = next((a for a, b in reversed(list(pairwise(states))) if _vectors(a) != _vectors(b)), states[-2])
        serial = own.play(own.setup(), state=before, rounds=1)
        run = own.play(own.setup(), engine=_generally, state=before, rounds=1)
        require_clean(run, what=f"round {run.last.round} under vmap")
        _require_near(serial.last, run.last, gap, f"serial and under vmap, round {run.last.round}")


def _calm(case: Case) -> Case:
    """The same with a constant of Adam that rounding is small beside: behind a bias that BatchNorm takes away the
    gradient is rounding alone, which Adam would make as large as any."""
    if case.setup().config.local.optimizer == "sgd":
        return case
    return replace(case, local={**case.local, "eps": 1e-3}, kept={})


def _vectors(state: State) -> dict[str, str]:
    return {key: fingerprint(entry.vector) for key, entry in state.bank.entries.items()}


def _generally(made: Engine) -> Stacked:
    """The stacked engine for the same run, which takes every model by the form that any has."""
    kinds = (partial(general_of, device=made.device),)
    return Stacked(made.models, made.dataset, made.device, made.precision, made.loss, made.loss_args, kinds=kinds)


def _restacked(made: Engine, bytes: int) -> Stacked:
    """The stacked engine for the same run, with stacks of about this size."""
    engine = Stacked(made.models, made.dataset, made.device, made.precision, made.loss, made.loss_args)
    engine.stack_bytes = bytes
    return engine


def _require_near(a: State, b: State, gap: float, what: str) -> None:
    ours, theirs = dict(_numbers(a)), dict(_numbers(b))
    require(ours.keys() == theirs.keys(), f"{what}: other numbers, {sorted(ours.keys() ^ theirs.keys())[:3]}")
    for place, mine in ours.items():
        found = theirs[place]
        if not isinstance(mine, Tensor):
            near = abs(mine - found) <= gap * max(SMALL, abs(mine)) if isinstance(mine, float) else mine == found
            require(near, f"{what}: {place}: {mine} and {found}")
        elif not mine.is_floating_point():
            require(mine.equal(found), f"{what}: {place} differs")
        elif mine.numel():
            away, size = float((mine - found).abs().max()), max(SMALL, float(mine.abs().max()))
            require(away <= gap * size, f"{what}: {place} differs by {away:.1e}, the numbers are up to {size:.1e}")


def _numbers(state: State) -> Iterator[tuple[str, Any]]:
    """Everything in the bank and in the private states, by place."""
    for key, entry in state.bank.entries.items():
        parts: Mapping[str, Any] = {"vector": entry.vector, "floats": entry.buffers.floats, "weight": entry.weight}
        yield from _flat(f"{key}", [parts, entry.extra, entry.server])
    yield from _flat("memory", state.bank.memory)
    for client, own in state.clients.items():
        yield from _flat(f"client {client}", own)


def _flat(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    inner = (
        value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else None
    )
    if inner is None:
        yield place, value
        return
    for name, item in inner:
        yield from _flat(f"{place}/{name}", item)
