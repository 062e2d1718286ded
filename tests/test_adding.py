"""Rounds whose answers are added up in blocks of clients: the same run, in the memory of a block."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
import torch

from shoal import adding
from shoal.checks.fingerprint import fingerprint
from shoal.config import Execution
from shoal.data.arrays import from_arrays
from shoal.engine import Serial, make_engine, one_torch_thread
from shoal.experiment import Experiment
from shoal.loading import merged
from shoal.messages import Update
from shoal.metrics.base import Measure
from shoal.setup import Setup, assemble, resolve_config

CLIENTS = 10
CONFIG: dict[str, Any] = {
    "rounds": 2,
    "data": "arrays",
    "stream": {"kind": "static", "clients": CLIENTS, "partition": {"kind": "sizes", "exponent": 0.5}},
    "model": {"kind": "mlp", "hidden": [7]},
    "local": {"lr": 0.2, "batch_size": 8},
}
TASKS = {"kind": "tasks", "tasks": 2, "order": "asynchronous", "clients": CLIENTS, "partition": "iid"}
LISTED = {"kind": "listed", "weights": [float(1 + c % 3) for c in range(CLIENTS)]}
RUNS: dict[str, dict[str, Any]] = {
    "weighted": {},
    "uniform, an adaptive server": {"method": {"kind": "fedadam", "mean": "uniform"}},
    "listed": {"method": {"kind": "fedavg", "mean": LISTED}},
    "an entry per task": {"stream": TASKS, "method": {"kind": "fedavg", "per": "task"}},
    "drawn several times": {"participation": {"count": 12, "probabilities": "rows"}},
    "late and crashed": {"participation": {"straggler_probability": 0.3, "crash_probability": 0.2}},
    "partial work": {"participation": {"partial_probability": 0.5}},
    "scaffold": {"local": {"learner": "scaffold"}},
    "two exchanges": {"local": {"learner": {"kind": "svrg", "anchor": "global"}}},
    "a schedule that hears losses": {"local": {"lr_schedule": {"kind": "plateau", "patience": 1}}},
    "compressed": {"local": {"compression": {"kind": "topk", "share": 0.3}}},
}


def set_up(parts: dict[str, Any], **more: Any) -> Setup:
    rng = np.random.default_rng(1)
    x = rng.integers(0, 256, (160, 16, 16, 1), dtype=np.uint8)
    stream = parts.get("stream", CONFIG["stream"])
    raw = merged({**CONFIG, "stream": stream}, {**{k: v for k, v in parts.items() if k != "stream"}, **more})
    return assemble(resolve_config(raw), from_arrays(x, np.arange(160) % 4, x[:20], np.arange(20) % 4))


def play(setup: Setup, engine: Any = None, **execution: Any) -> tuple[Any, list[Any]]:
    made = engine or make_engine(
        Execution(**(execution or {"kind": "serial"})),
        setup.world.models,
        setup.stream.dataset,
        setup.config.local.loss,
        setup.config.local.loss_args,
    )
    experiment = Experiment(setup, made)
    with one_torch_thread():
        state, lines = experiment.start(), []
        for _ in range(setup.config.rounds):
            played = experiment.play(state)
            state, lines = played.state, lines + played.lines
    made.close()
    return state, lines


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answers fit into memory: blocks are as small as can be."""
    monkeypatch.setattr(adding, "HELD_BYTES", 1)
    monkeypatch.setattr(adding, "LEAST_PER_WORKER", 3)


@pytest.mark.parametrize("name", RUNS)
def test_it_is_the_same_run(name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    setup = set_up(RUNS[name])
    kept, lines = play(setup)
    request.getfixturevalue("small")
    begun: list[object] = []
    before = adding.Adding.take
    monkeypatch.setattr(adding.Adding, "take", lambda *args: begun.append(args) or before(*args))
    added, same = play(setup)
    assert len(begun) >= CLIENTS
    assert not [line for line in lines if line.get("record") in ("rejected", "diverged")]
    assert fingerprint(added.bank) == fingerprint(kept.bank)
    assert fingerprint(dict(added.clients)) == fingerprint(dict(kept.clients))
    assert same == lines


def test_every_engine_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    dense = set_up({})
    kept = play(dense, kind="stacked")[0].bank
    monkeypatch.setattr(adding, "HELD_BYTES", 1)
    monkeypatch.setattr(adding, "LEAST_PER_WORKER", 3)
    assert fingerprint(play(dense, kind="stacked")[0].bank) == fingerprint(kept)
    convolutions = set_up({"model": {"kind": "cnn"}}, rounds=1)
    serial = fingerprint(play(convolutions)[0].bank)
    for workers in (1, 2):
        assert fingerprint(play(convolutions, kind="workers", workers=workers)[0].bank) == serial


class Watching(Serial):
    """Looks, before each block, for vectors of earlier ones that are still in memory."""

    seen: list[Any]
    alive: list[int]

    def run(self, train: Any, jobs: Any) -> Any:
        if not hasattr(self, "seen"):
            self.seen, self.alive = [], []
        self.alive.append(sum(vector() is not None for vector in self.seen))
        outcomes = super().run(train, jobs)
        for outcome in outcomes:
            assert isinstance(outcome.answer, Update)
            self.seen += [weakref.ref(part.vector) for part in outcome.answer.parts.values()]
        return outcomes


def watched(parts: dict[str, Any]) -> list[int]:
    setup = set_up(parts, rounds=1)
    engine = Watching(setup.world.models, setup.stream.dataset, torch.device("cpu"))
    play(setup, engine)
    return engine.alive


@pytest.mark.usefixtures("small")
def test_of_earlier_blocks_one_vector_is_left() -> None:
    assert watched({}) == [0, 1, 1, 1]  # the first answer, which the changes are measured from
    late = watched({"participation": {"straggler_probability": 1.0}})
    assert late == [0, 0, 0, 0]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "method",
    [
        {"kind": "fedavg", "mean": "median"},
        {"kind": "fedavg", "mean": {"kind": "clipped", "bound": 1.0}},
        {"kind": "ifca", "concepts": 2},
    ],
    ids=["median", "clipped", "a merge of its own"],
)
def test_what_needs_all_answers_gets_them_at_once(method: dict[str, Any]) -> None:
    assert watched({"method": method}) == [0]


def test_answers_that_fit_into_memory_are_kept() -> None:
    assert watched({}) == [0]
    assert adding.HELD_BYTES == 128 * 2**20


class Spoiling(Serial):
    """Client 4's model is not finite, client 7's program fails."""

    def run(self, train: Any, jobs: Any) -> Any:
        def spoiled(given: Any, client: Any) -> Any:
            update = yield from train(given, client)
            if client.id == 7:
                raise OSError("the battery is empty")
            if client.id == 4:
                update.parts["global"].vector[0] = float("nan")
            return update

        return super().run(spoiled, jobs)


def test_nobody_knew_that_they_would_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = set_up({}, rounds=1)
    runs = []
    for held in (2**30, 1):
        monkeypatch.setattr(adding, "HELD_BYTES", held)
        monkeypatch.setattr(adding, "LEAST_PER_WORKER", 3)
        runs.append(play(setup, Spoiling(setup.world.models, setup.stream.dataset, torch.device("cpu"))))
    (kept, lines), (added, same) = runs
    assert [line["client"] for line in same if line.get("record") in ("rejected", "failed")] == [4, 7]
    told = [[line for line in some if line.get("record")] for some in (lines, same)]
    assert told[0] == told[1]
    # The shares are those of the plan, over their sum: equal to rounding in float64.
    torch.testing.assert_close(added.bank["global"].vector, kept.bank["global"].vector, rtol=2e-7, atol=1e-9)


class Reading(Measure):
    """How many vectors it sees."""

    reads_vectors = True

    def observe(self, seen: Any, memory: Any) -> Any:
        vectors = [part.vector for update in seen.accepted for part in update.parts.values()]
        return [{"metric": "vectors", "value": sum(vector is not None for vector in vectors)}], memory


@pytest.mark.usefixtures("small")
def test_a_measure_that_looks_at_vectors_finds_them() -> None:
    plain = set_up({})
    more = set_up({"evaluate": {"measures": ["accuracy", f"{__name__}:Reading"]}})
    state, lines = play(more)
    assert [line["value"] for line in lines if line.get("metric") == "vectors"] == [CLIENTS] * 2
    assert fingerprint(state.bank) == fingerprint(play(plain)[0].bank)


def test_how_many_answers_may_be_there_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = set_up({})
    size = 4 * setup.world.models["main"].space.size
    jobs: list[Any] = []
    asked: list[int] = []

    class Taking(Serial):
        def stream(self, train: Any, given: Any, most: int) -> Any:
            jobs.extend(given)
            asked.append(most)
            return super().stream(train, given, most)

    def playing() -> list[int]:
        asked.clear()
        play(setup, Taking(setup.world.models, setup.stream.dataset, torch.device("cpu")))
        return asked

    assert playing() == [CLIENTS, CLIENTS]  # all of them, in each of two rounds
    assert {adding.size_of(job) for job in jobs} == {size}
    monkeypatch.setattr(adding, "HELD_BYTES", 6 * size)
    assert playing() == [6, 6]
    monkeypatch.setattr(adding, "HELD_BYTES", 2 * size)
    assert playing() == [4, 4]
    assert adding.held(jobs[:CLIENTS], 2) == 8
