"""Memory stays flat over many rounds: nothing is kept per round, per client that took part, or per failure."""

from __future__ import annotations

import gc
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
"""Measured is from round 40 to round 200: by then every cache is full."""
PYTHON_BYTES = 24_000
"""What Python objects may grow by: 150 bytes a round, less than one line of ``metrics.jsonl``."""


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
    """What 160 rounds add: tensors, their bytes, bytes of Python objects and of the process; clients with a state."""

    tensors: int
    tensor_bytes: int
    python_bytes: int
    process_bytes: int
    states: int


def growth(learner: str, execution: Execution, warm: int = WARM, rounds: int = ROUNDS) -> Growth:
    setup = world(
        0,
        rounds,
        learner={"kind": learner},
        stream={"clients": CLIENTS},
        participation={"count": 10},
        evaluate={"every": 20},
    )
    failed = 0
    with one_torch_thread():
        engine = make_engine(execution, setup.world.models, setup.stream.dataset, "cross_entropy")
        try:
            experiment = Experiment(setup, engine)
            state = experiment.start()
            before = Growth(0, 0, 0, 0, 0)
            while state.round < rounds:
                if state.round == warm:
                    before = Growth(*held(), resident(), len(state.clients))
                played = experiment.play(state)
                state = played.state
                failed += sum(line.get("failed", 0) for line in played.lines if line.get("record") == "round")
                del played
            after = Growth(*held(), resident(), len(state.clients))
        finally:
            engine.close()
    assert 120 < failed < 280 if learner.endswith("Breaking") else not failed
    return Growth(*(new - old for new, old in zip(after, before, strict=True)))


SERIAL, WORKERS = Execution(kind="serial"), Execution(kind="workers", workers=2)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's view of a process")
@pytest.mark.parametrize(
    ("learner", "execution"),
    [("plain", SERIAL), ("test_memory:Breaking", WORKERS)],
    ids=["serial", "workers-one-client-in-ten-fails"],
)
def test_nothing_is_kept(learner: str, execution: Execution) -> None:
    added = growth(learner, execution)
    assert (added.tensors, added.tensor_bytes, added.states) == (0, 0, 0)
    assert added.python_bytes < PYTHON_BYTES
    assert added.process_bytes < 16 * 2**20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's view of a process")
def test_private_state_is_all_that_grows() -> None:
    added = growth("test_memory:Keeping", SERIAL)
    # 1600 draws of 10 among 2000 clients reach 2000 (e^-0.2 - e^-1) = 902 new ones.
    assert 850 < added.states < 950
    assert added.tensors == added.states
    assert added.tensor_bytes == 4000 * added.states
    assert added.python_bytes < PYTHON_BYTES + 2000 * added.states
    assert added.process_bytes < added.tensor_bytes + 16 * 2**20


def test_what_is_kept_is_seen() -> None:
    added = growth("test_memory:Hoarding", SERIAL, 10, 30)
    HOARD.clear()
    # One vector for each of 10 clients in each of 20 rounds.
    assert added.tensors == 200
    assert added.tensor_bytes == 200 * 4 * 49
    assert added.python_bytes > 20 * 1000
