"""Laws of streams: a pure function of seed, client and round, that never lets training see what it is judged on."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..streams.base import Holding, Stream, Target
from .fingerprint import difference, fingerprint
from .law import law, require

ROUNDS = 8


@dataclass
class StreamCase:
    """A stream to be tried: ``make(seed)`` builds it anew.

    ``shares_rows``: two clients may hold the same row. ``leaves_rows``: some training rows may be held by nobody.
    """

    make: Callable[[int], Stream]
    shares_rows: bool = False
    leaves_rows: bool = False

    @cached_property
    def stream(self) -> Stream:
        """The stream of seed 0."""
        return self.make(0)

    @cached_property
    def held(self) -> dict[tuple[int, int], Holding]:
        """What every client holds in every round, asked in order."""
        found = {(c, r): self.stream.holding(c, r) for r in range(1, ROUNDS + 1) for c in range(self.stream.clients)}
        require(any(len(held.train) for held in found.values()), "no client holds a training row in any round")
        return found


def _rows(tensor: Tensor) -> set[int]:
    return set(tensor.tolist())


@law("stream")
def asked_in_any_order(case: StreamCase) -> None:
    """A stream gives the same answer however often and in whatever order it is asked, and made anew."""
    marks = {place: fingerprint(held) for place, held in case.held.items()}
    fresh = case.make(0)
    for place in reversed(marks):
        again = fingerprint(fresh.holding(*place))
        require(again == marks[place], f"other rows for client and round {place}, made anew and asked backwards")
    for place in list(marks)[::3]:
        again = fingerprint(case.stream.holding(*place))
        require(again == marks[place], f"other rows for client and round {place}, asked again")
    for place in list(marks)[:: max(1, len(marks) // 4)]:
        alone = fingerprint(case.make(0).holding(*place))
        require(alone == marks[place], f"other rows for client and round {place}, asked alone")
    for round in (ROUNDS, 1):
        a, b = (fingerprint(list(stream.targets(round))) for stream in (case.stream, fresh))
        require(a == b, f"targets of round {round}, asked again and made anew")


@law("stream")
def it_survives_pickling(case: StreamCase) -> None:
    """A stream that was pickled gives the same rows, as engines on other machines need."""
    copy = pickle.loads(pickle.dumps(case.stream))
    for place in list(case.held)[::2]:
        found = difference(case.held[place], copy.holding(*place))
        require(found is None, f"client and round {place}, before and after pickling: {found}")


@law("stream")
def round_0_is_round_1(case: StreamCase) -> None:
    """The warm-up, round 0, has the rows of round 1."""
    for client in range(case.stream.clients):
        found = difference(case.held[client, 1], case.stream.holding(client, 0))
        require(found is None, f"client {client} in rounds 1 and 0: {found}")


@law("stream")
def rows_are_valid(case: StreamCase) -> None:
    """Rows are flat int64 indices into the data set, none twice; training never touches the data's test rows."""
    data = case.stream.dataset
    limit = len(data) * len(data.transforms)
    test = _rows(data.test)
    sets = [(f"client {c} in round {r}", h.train, h.validation, h.test) for (c, r), h in case.held.items()]
    for round in (1, ROUNDS):
        none = torch.empty(0, dtype=torch.int64)
        sets += [(f"target {t.labels}", none, t.validation, t.test) for t in case.stream.targets(round)]
    for who, *tensors in sets:
        for use, rows in zip(("training", "validation", "test"), tensors, strict=True):
            require(rows.dtype == torch.int64 and rows.dim() == 1, f"{use} rows of {who}: {rows.dtype} {rows.shape}")
            require(len(_rows(rows)) == len(rows), f"{who} has {use} rows twice")
            good = not len(rows) or 0 <= int(rows.min()) <= int(rows.max()) < limit
            require(good, f"{use} rows of {who}: out of range")
            base = {row % len(data) for row in rows.tolist()}
            if use == "test":
                require(base <= test, f"{who} is tested on rows {sorted(base - test)[:5]}, which are no test rows")
            else:
                require(not base & test, f"{who} has the data's test rows {sorted(base & test)[:5]} as {use} rows")


@law("stream")
def validation_rows_are_never_trained(case: StreamCase) -> None:
    """No validation row of a client or a target is a training row of anybody, in any round."""
    trained: set[int] = set().union(*(_rows(held.train) for held in case.held.values()))
    for (client, round), held in case.held.items():
        both = trained & _rows(held.validation)
        require(not both, f"validation rows {sorted(both)[:5]} of client {client} in round {round} are trained on")
    for target in case.stream.targets(ROUNDS):
        both = trained & _rows(target.validation)
        require(not both, f"validation rows {sorted(both)[:5]} of target {target.labels} are trained on")


def _pools(case: StreamCase) -> dict[Any, dict[int, set[int]]]:
    """The rows that each client ever held, by the truth about them."""
    pools: dict[Any, dict[int, set[int]]] = {}
    for (client, _), held in case.held.items():
        rows = _rows(held.train) | _rows(held.validation)
        pools.setdefault(held.truth.get("task"), {}).setdefault(client, set()).update(rows)
    return pools


@law("stream")
def no_row_is_held_twice(case: StreamCase) -> None:
    """Two clients never hold the same row of a task (where the stream does not say that they share)."""
    if case.shares_rows:
        return
    for task, clients in _pools(case).items():
        seen: dict[int, int] = {}
        for client, rows in clients.items():
            for row in rows:
                other = seen.setdefault(row, client)
                require(other == client, f"task {task}: row {row} is held by clients {other} and {client}")


@law("stream")
def no_row_is_lost(case: StreamCase) -> None:
    """Every training row of the data is held by somebody at some time (where nothing was asked to be left out)."""
    if case.shares_rows or case.leaves_rows:
        return
    data = case.stream.dataset
    shifts = [i * len(data) for i in range(len(data.transforms))]
    every = {row + shift for row in data.train.tolist() for shift in shifts}
    held: set[int] = set().union(*(rows for clients in _pools(case).values() for rows in clients.values()))
    lost = every - held
    require(not lost, f"{len(lost)} of {len(every)} training rows are held by nobody, such as {sorted(lost)[:5]}")


@law("stream")
def two_seeds_deal_differently(case: StreamCase) -> None:
    """Another seed deals the rows in another way."""
    other = case.make(1)
    same = all(fingerprint(held) == fingerprint(other.holding(*place)) for place, held in case.held.items())
    require(not same, "seeds 0 and 1 give every client the same rows")


@law("stream")
def targets_are_stamped(case: StreamCase) -> None:
    """Targets are named by JSON values, each once; the same stamp means the same rows, in all rounds."""
    known: dict[tuple[str, int], str] = {}
    for round in range(1, ROUNDS + 1):
        targets: list[Target] = list(case.stream.targets(round))
        names = [json.dumps(target.labels, sort_keys=True) for target in targets]
        require(any(len(target.test) for target in targets), f"nothing is to be measured after round {round}")
        require(len(set(names)) == len(names), f"two targets of round {round} have the same labels")
        for name, target in zip(names, targets, strict=True):
            rows = fingerprint(target.test, target.validation)
            before = known.setdefault((name, target.stamp), rows)
            require(before == rows, f"target {name}: its rows changed in round {round}, its stamp did not")


@law("stream")
def targets_of_clients_are_their_own(case: StreamCase) -> None:
    """A target that names a client alone has the test and validation rows that this client holds in that round."""
    for round in range(1, ROUNDS + 1):
        for target in case.stream.targets(round):
            if set(target.labels) != {"client"}:
                continue
            held = case.held[target.labels["client"], round]
            for use, measured, own in (
                ("test", target.test, held.test),
                ("validation", target.validation, held.validation),
            ):
                same = _rows(measured) == _rows(own)
                require(same, f"target {target.labels} in round {round}: its {use} rows are not those that it holds")


@law("stream")
def phases_and_tasks_fit(case: StreamCase) -> None:
    """Phases follow the boundaries; a task that a client knows is the true one, and is one of the stream's."""
    stream = case.stream
    require(list(stream.boundaries) == sorted(set(stream.boundaries)), f"boundaries {stream.boundaries} do not rise")
    for round in range(1, ROUNDS + 1):
        expected = sum(1 for last in stream.boundaries if round > last)
        require(stream.phase(round) == expected, f"round {round} is in phase {stream.phase(round)}, not {expected}")
    for (client, round), held in case.held.items():
        where = f"client {client} in round {round}"
        if held.task is not None:
            require(held.truth.get("task") == held.task, f"{where} knows task {held.task}; truth: {dict(held.truth)}")
            require(0 <= held.task < max(1, stream.tasks), f"{where}: task {held.task} of {stream.tasks}")
        require(held.truth.get("phase", stream.phase(round)) == stream.phase(round), f"{where}: {dict(held.truth)}")
    targets = stream.dataset.wanted(torch.cat([held.train for held in case.held.values()]))
    require(bool((targets >= 0).all()), "a training row has no label in its head")
    require(int(targets.max()) < stream.outputs, f"label {int(targets.max())} does not fit {stream.outputs} outputs")
    require(all(isinstance(note, str) for note in stream.notes()), "notes are sentences")


@law("stream")
def attributes_of_a_stream_never_change(case: StreamCase) -> None:
    """Being asked changes nothing in a stream, and nothing is stored per client and round."""
    stream = case.make(0)
    before = fingerprint(stream)
    for place in case.held:
        stream.holding(*place)
    for round in range(1, ROUNDS + 1):
        stream.targets(round)
    stream.notes()
    require(fingerprint(stream) == before, "attributes of the stream changed while it was asked")
