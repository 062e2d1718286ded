"""Memory stays flat over many rounds: nothing is kept per round, per client that took part, or per failure."""

from __future__ import annotations

import gc
import itertools
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from shoal.bank import Entry, Key
from shoal.checks.standin import world
from shoal.config import Execution
from shoal.engine import make_engine, one_torch_thread
from shoal.experiment import Experiment
from shoal.learners.base import Learner
from shoal.messages import Client
from shoal.requests import Served

CLIENTS = 2000
WARM, ROUNDS = 40, 200
"""Measured is from round 40, by when every cache is full, to round 120, and from there to round 200."""
PYTHON_BYTES = 12_000
"""What Python objects may grow by in 80 rounds: 150 bytes a round, less than one line of ``metrics.jsonl``."""


class Keeping(Learner):
    """Every client that ever took part keeps 1000 numbers."""

    def fit(self, key: Key, start: Served, entry: Entry, client: Client, **request: Any) -> Any:
        part, _ = yield from super().fit(key, start, entry, client, **request)
        return part, {"kept": torch.full((1000,), float(client.id))}


class Breaking(Learner):
    """One fit in ten raises, with much in its hands."""

    def fit(self, key: Key, start: Served, entry: Entry, client: Client, **request: Any) -> Any:
        part, state = yield from super().fit(key, start, entry, client, **request)
        burden = torch.zeros(100_000)
        if client.random("break").random() < 0.1:
            raise RuntimeError(f"client {client.id} breaks with {burden.numel()} numbers")
        return part, state


def held() -> tuple[int, int, int]:
    """The pieces of memory that tensors hold, their bytes, and the bytes of all Python containers and objects."""
    gc.collect()
    found, python = {}, 0
    for thing in gc.get_objects():
        if type(thing) is not torch.UntypedStorage:  # asking a tensor for its storage makes one
            python += sys.getsizeof(thing)
        if type(thing) in (torch.Tensor, torch.nn.Parameter):
            storage = thing.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return len(found), sum(found.values()), python


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Hoarding(Learner):
    """Every result is kept for ever."""

    def fit(self, key: Key, start: Served, entry: Entry, client: Client, **request: Any) -> Any:
        part, state = yield from super().fit(key, start, entry, client, **request)
        HOARD.append(part)
        return part, state


HOARD: list[Any] = []


class Growth(NamedTuple):
    """Tensors, their bytes, bytes of Python objects and of the process; clients with a private state."""

    tensors: int
    tensor_bytes: int
    python_bytes: int
    process_bytes: int
    states: int


def growth(learner: str, execution: Execution, warm: int = WARM, rounds: int = ROUNDS) -> tuple[Growth, Growth]:
    """What each half of the rounds from ``warm`` on adds."""
    setup = world(
        0,
        rounds,
        learner={"kind": learner},
        stream={"clients": CLIENTS},
        participation={"count": 10},
        evaluate={"every": 20},
    )
    failed = 0
    found: list[Growth] = []
    with one_torch_thread():
        engine = make_engine(execution, setup.world.models, setup.stream.dataset, "cross_entropy")
        try:
            experiment = Experiment(setup, engine)
            state = experiment.start()
            while state.round < rounds:
                played = experiment.play(state)
                state = played.state
                failed += sum(line.get("failed", 0) for line in played.lines if line.get("record") == "round")
                del played
                if state.round in (warm, (warm + rounds) // 2, rounds):
                    found.append(Growth(*held(), resident(), len(state.clients)))
        finally:
            engine.close()
    assert 120 < failed < 280 if learner.endswith("Breaking") else not failed
    first, second = (Growth(*(x - y for x, y in zip(b, a, strict=True))) for a, b in itertools.pairwise(found))
    return first, second


SERIAL, WORKERS = Execution(kind="serial"), Execution(kind="workers", workers=2)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's view of a process")
@pytest.mark.parametrize(
    ("learner", "execution"),
    [("plain", SERIAL), ("test_memory:Breaking", WORKERS)],
    ids=["serial", "workers-one-client-in-ten-fails"],
)
def test_nothing_is_kept(learner: str, execution: Execution) -> None:
    halves = growth(learner, execution)
    assert [(half.tensors, half.tensor_bytes, half.states) for half in halves] == [(0, 0, 0)] * 2
    # The smaller half: a table somewhere in the process may have doubled once.
    assert min(half.python_bytes for half in halves) < PYTHON_BYTES
    assert min(half.process_bytes for half in halves) < 8 * 2**20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's view of a process")
def test_private_state_is_all_that_grows() -> None:
    halves = growth("test_memory:Keeping", SERIAL)
    # Draws of 10 among 2000 clients reach 2000 (e^-0.2 - e^-0.6) = 540 new ones, then 2000 (e^-0.6 - e^-1) = 362.
    assert 500 < halves[0].states < 580
    assert 320 < halves[1].states < 400
    for half in halves:
        assert half.tensors == half.states
        assert half.tensor_bytes == 4000 * half.states
    assert min(half.python_bytes - 2000 * half.states for half in halves) < PYTHON_BYTES
    assert min(half.process_bytes - half.tensor_bytes for half in halves) < 8 * 2**20


def test_what_is_kept_is_seen() -> None:
    halves = growth("test_memory:Hoarding", SERIAL, 10, 30)
    HOARD.clear()
    for half in halves:  # one vector of 49 numbers for each of 10 clients in each of 10 rounds
        assert half.tensors == 100
        assert half.tensor_bytes == 100 * 4 * 49
        assert half.python_bytes > 10 * 1000
