"""Laws of whole runs: little data, few clients, and clients that fail or answer nonsense."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ..bank import Buffers, State
from ..errors import ConfigError
from ..messages import Job, Part, Update
from .case import Case, Run, require_clean, require_same_numbers
from .fingerprint import fingerprint
from .law import law, require
from .standin import CLIENTS
from .tamper import Answering, DrawsKept, Raising, Signing, each_part, fated, first_broken

NAN = float("nan")
VICTIM = 1
"""The client that goes wrong."""


@law("run")
def one_client(case: Case) -> None:
    """A world of one client trains."""
    case.clean()
    require_clean(case.play(case.setup(stream={"clients": 1})))


@law("run")
def a_sample_of_the_clients(case: Case) -> None:
    """Two of four clients a round train; one that is drawn twice is given, and counts, twice."""
    case.clean()
    for participation in ({"count": 2}, {"count": 3, "probabilities": [0.7, 0.1, 0.1, 0.1]}):
        require_clean(case.play(case.setup(participation=participation), method=DrawsKept.put()))


@law("run")
def private_states_stay_with_their_client(case: Case) -> None:
    """A client finds the private state that it returned itself, and nobody else's, whoever took part in between."""
    case.clean()
    setup = case.setup(rounds=6, participation={"count": 2})
    run = case.play(setup, method=Signing.put())
    require_clean(run)
    for client, values in run.last.clients.items():
        require(values["planted/id"] == client, f"client {client} has the private state of {values['planted/id']}")


@law("run")
def tasks_unknown_or_none(case: Case) -> None:
    """Clients that do not know their task, and streams without tasks, train or are refused in words.

    A method that cannot do without says so: ``needs_task = True``.
    """
    case.clean()
    for stream in ({"knows_task": False}, {"tasks": 0}):
        try:
            setup = case.setup(stream=stream)
        except ConfigError as error:
            require(len(str(error)) > 20, f"refused without a reason: {error}")
            continue
        needs_task = getattr(setup.method, "needs_task", bool(setup.world.task_models))
        if stream.get("knows_task") is False and needs_task:
            continue
        require_clean(case.play(setup))


@law("run")
def no_rows(case: Case) -> None:
    """A client without rows is skipped by name; where nobody has rows nothing changes."""
    for own in (case, case.normed):
        own.clean()
        run = own.play(own.setup(stream={"empty": [3]}))
        require_clean(run, allowed=("skipped",))
        require(run.clients_of("skipped") == {3}, f"skipped: {run.told('skipped')}")
        nobody = own.play(own.setup(stream={"empty": list(range(CLIENTS))}))
        _require_unchanged(nobody, "nobody has rows")
        require(nobody.clients_of("skipped") == set(range(CLIENTS)), f"skipped: {nobody.told('skipped')}")


@law("run")
def one_row(case: Case) -> None:
    """Clients with a single row each train; with BatchNorm, which cannot train on one row, they do not fail."""
    case.clean()
    if not any(model.batch_coupled for model in case.setup().world.models.values()):
        require_clean(case.play(case.setup(stream={"rows": "one"})))
    normed = case.normed.play(case.normed.setup(stream={"rows": "one"}))
    for record in ("failed", "rejected", "diverged"):
        require(not normed.told(record), f"with BatchNorm: {normed.told(record)[:1]}")


@law("run")
def a_single_class(case: Case) -> None:
    """Clients that hold rows of a single class train."""
    case.clean()
    require_clean(case.play(case.setup(stream={"rows": "one-class"})))


@law("run")
def a_raising_client(case: Case) -> None:
    """A client whose program raises is recorded with its error, and the others count."""
    clean = case.clean()
    run = case.play(case.setup(), method=Raising.put(VICTIM))
    require_clean(run, allowed=("failed",))
    require(run.clients_of("failed") == {VICTIM}, f"failed: {run.told('failed')}")
    require(
        "a planted fault" in run.told("failed")[0]["reason"], f"the record hides the error: {run.told('failed')[0]}"
    )
    for line in run.told("round"):
        reached = {client for who in line["trained"].values() for client in who}
        require(VICTIM not in reached, f"round {line['round']} says that the client that failed trained an entry")
        require(line["failed"] >= 1, f"round {line['round']} counts no failure")
    require(fingerprint(clean.last.bank) != fingerprint(run.last.bank), "a missing client makes no difference")


@law("run")
def nobody_left(case: Case) -> None:
    """A round in which everyone fails, is late or is rejected is recorded and changes nothing; the next one trains."""
    case.clean()
    setup = case.setup()
    everyone = range(CLIENTS)
    spoiled = partial(Answering, change=lambda job, update: replace(update, weight=NAN))
    ways: list[tuple[str, dict[str, Any]]] = [
        ("everyone raises", {"method": Raising.put(*everyone)}),
        ("everyone is late", {"selection": fated(-1, straggler=True)}),
        ("everyone is rejected", {"engine": spoiled}),
    ]
    first = case.play(setup, rounds=1)
    for why, how in ways:
        run = case.play(setup, state=first.last, rounds=1, **how)
        _require_unchanged(run, why)
        after = case.play(setup, state=run.last, rounds=1)
        require_clean(after)


def _require_unchanged(run: Run, why: str) -> None:
    before, after = run.states[0], run.last
    for name in ("bank", "clients"):
        same = fingerprint(getattr(before, name)) == fingerprint(getattr(after, name))
        require(same, f"{why}, but {'the bank' if name == 'bank' else 'private states'} changed")
    require(run.told("unchanged"), f"{why}, but no record says that the round changed nothing")
    require(after.round > before.round, f"{why}, and the run does not go on")


@law("run", "paired")
def late_and_crashed_clients(case: Case) -> None:
    """A straggler's or a crashed client's private state stays as it was, and the others count."""
    clean = case.clean()
    setup = case.setup()
    state = clean.states[-2]
    # Both are late, or gone, in every exchange of the round.
    ways: list[tuple[str, dict[str, bool]]] = [("straggler", {"straggler": True}), ("failed", {"crash": True})]
    expected = case.play(setup, state=state, rounds=1, method=Raising.put(VICTIM))
    for record, fate in ways:
        run = case.play(setup, state=state, rounds=1, selection=fated(VICTIM, **fate))
        require(run.clients_of(record) == {VICTIM}, f"expected client {VICTIM} as {record}: {run.records[-1]}")
        require_same_numbers(expected.last, run.last, f"client {VICTIM} raises, and is recorded as {record}")
        _require_private_state(state, run.last, f"client {VICTIM} is recorded as {record}")


def _require_private_state(before: State, after: State, why: str) -> None:
    same = fingerprint(before.clients.get(VICTIM)) == fingerprint(after.clients.get(VICTIM))
    require(same, f"{why}, but its private state changed")


def _extra(value: float) -> Callable[[Part], Part]:
    def change(part: Part) -> Part:
        floats = {name: t for name, t in part.extra.items() if t.is_floating_point()}
        if any(t.numel() for t in floats.values()):
            broken = {name: first_broken(t, value) for name, t in floats.items()}
            return replace(part, extra={**part.extra, **broken})
        return replace(part, extra={"planted": torch.tensor([value])})

    return change


def _vector(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Part], Part]:
    return lambda part: part if part.vector is None else replace(part, vector=change(part.vector))


def _floats(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Part], Part]:
    def changed_buffers(part: Part) -> Part:
        floats = part.buffers.floats
        return part if floats is None else replace(part, buffers=Buffers(change(floats), part.buffers.counters))

    return changed_buffers


def _parts(change: Callable[[Part], Part]) -> Callable[[Update], Update]:
    return lambda update: each_part(update, change)


BAD: dict[str, Callable[[Update], Update]] = {
    "a NaN in the vector": _parts(_vector(lambda t: first_broken(t, NAN))),
    "an infinity in the vector": _parts(_vector(lambda t: first_broken(t, float("inf")))),
    "a vector of the wrong size": _parts(_vector(lambda t: t[:-1])),
    "a vector of another type": _parts(_vector(lambda t: t.double())),
    "a NaN in a buffer": _parts(_floats(lambda t: first_broken(t, NAN))),
    "buffers of the wrong size": _parts(_floats(lambda t: torch.cat([t, t]))),
    "a NaN in extra": _parts(_extra(NAN)),
    "an infinity in extra": _parts(_extra(float("-inf"))),
    "a NaN in the private state": lambda u: replace(u, state={**u.state, "planted": torch.tensor([0.0, NAN])}),
    "an infinity in the private state": lambda u: replace(u, state={**u.state, "planted": {"deep": [float("inf")]}}),
    "an answer for an entry that it was not given": lambda u: replace(
        u, parts={**u.parts, "nowhere": next(iter(u.parts.values()))}
    ),
    "no weight": lambda u: replace(u, weight=0.0),
    "a negative weight": lambda u: replace(u, weight=-1.0),
    "a weight that is NaN": lambda u: replace(u, weight=NAN),
}
"""Updates that must be rejected."""


@law("run")
def bad_updates_are_rejected(case: Case) -> None:
    """An update that is not finite, of a wrong size or without weight is rejected by name; the others count."""
    own = case.normed
    clean = own.clean()
    setup = own.setup()
    state = clean.states[-2]
    reference = own.play(setup, state=state, rounds=1, method=Raising.put(VICTIM))
    for what, spoil in BAD.items():
        if "not given" in what and setup.method.births:
            continue
        touched: list[bool] = []

        def change(job: Job, update: Update, spoil: Any = spoil, touched: list[bool] = touched) -> Update:
            if job.client.id != VICTIM:
                return update
            bad = spoil(update)
            touched.append(fingerprint(bad) != fingerprint(update))
            # An exchange without such a part is given no weight instead: the client counts in none of them.
            return bad if touched[-1] else replace(update, weight=NAN)

        run = own.play(setup, state=state, rounds=1, engine=partial(Answering, change=change))
        require(touched, f"client {VICTIM} was never asked for an update")
        if not any(touched):  # a method that sends no vectors, or no buffers
            continue
        require(run.clients_of("rejected") == {VICTIM}, f"{what} was not rejected by name: {run.records[-1]}")
        require(run.told("rejected")[0]["reason"], f"{what} was rejected without a reason")
        require_same_numbers(reference.last, run.last, f"client {VICTIM} raises, and sends {what}")
        _require_private_state(state, run.last, what)
