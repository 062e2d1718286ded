"""The cluster engine on one machine: two Ray actors, one of which is killed in the middle of a round."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shoal.bank import State
from shoal.checks.tamper import Around, Raising
from shoal.config import Execution
from shoal.data.arrays import from_arrays
from shoal.engine import Engine, make_engine, one_torch_thread
from shoal.engine.cluster import Cluster
from shoal.errors import ConfigError, RunError
from shoal.experiment import Experiment
from shoal.messages import Assignment, Client
from shoal.methods.base import Method
from shoal.setup import Setup, assemble, resolve_config

CONFIG: dict[str, Any] = {
    "rounds": 3,
    "data": "arrays",
    # An entry with an extra, private states, moments, and numbers that stay on the server.
    "stream": {"kind": "static", "clients": 7, "partition": {"kind": "dirichlet", "by": "client", "alpha": 0.5}},
    "model": "cnn",
    "method": {"kind": "fedavg", "server": "adam"},
    "local": {
        "momentum": 0.9,
        "batch_size": 8,
        "learner": {"kind": "scaffold", "option": "I"},
        "augment": ["flip", "crop"],
        "keep": True,
    },
}
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed (shoal[cluster])")


@pytest.fixture(scope="module")
def setup() -> Setup:
    rng = np.random.default_rng(0)
    # More than 64 KB of pixels, so that the data set is sent as the large ones are.
    data = from_arrays(rng.integers(0, 256, (160, 24, 24, 1), dtype=np.uint8), np.arange(160) % 4)
    return assemble(resolve_config(CONFIG), data)


def made(setup: Setup, **execution: Any) -> Engine:
    return make_engine(Execution(**execution), setup.world.models, setup.stream.dataset, "cross_entropy")


def play(engine: Engine, setup: Setup) -> tuple[State, list[Any]]:
    experiment = Experiment(setup, engine)
    with one_torch_thread():
        state, lines = experiment.start(), []
        for _ in range(setup.config.rounds):
            played = experiment.play(state)
            state, lines = played.state, lines + played.lines
    return state, lines


@pytest.fixture(scope="module")
def expected(setup: Setup) -> tuple[State, list[Any]]:
    return play(made(setup, kind="serial"), setup)


@pytest.fixture(scope="module")
def cluster(setup: Setup) -> Iterator[Cluster]:
    if os.getloadavg()[0] > 4 * (os.cpu_count() or 1):
        pytest.skip("this machine has so much to do that Ray would give up before it has started")
    engine = made(setup, kind="cluster", actors=2)
    assert isinstance(engine, Cluster)
    yield engine
    engine.close()


def assert_same(found: tuple[State, list[Any]], expected: tuple[State, list[Any]]) -> None:
    (state, lines), (wanted, known) = found, expected
    assert lines == known
    assert torch.equal(state.bank["global"].vector, wanted.bank["global"].vector)
    assert state.clients.keys() == wanted.clients.keys()
    assert not [line for line in known if line.get("record") in ("failed", "rejected")]


class Deadly(Around):
    """The process in which client 3 begins dies: ``times`` times, counted by files, for it cannot remember."""

    def __init__(self, inner: Method, folder: Path, times: int) -> None:
        super().__init__(inner)
        self.folder = folder
        self.times = times

    def train(self, given: Assignment, client: Client) -> Any:
        if client.id == 3:
            died = len(list(self.folder.iterdir()))
            if died < self.times:
                (self.folder / str(died)).touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return (yield from self.run_program(given, client))


class Locked(Around):
    """Holds what no other process can have."""

    def __init__(self, inner: Method) -> None:
        super().__init__(inner)
        self.lock = threading.Lock()

    def train(self, given: Assignment, client: Client) -> Any:
        return (yield from self.run_program(given, client))


@needs_ray
@pytest.mark.filterwarnings("default")  # what Ray leaves open when it ends is not ours
class TestTwoActors:
    """In this order: the actors are the same ones, until they die."""

    def test_the_bits_are_those_of_the_serial_engine(self, cluster: Cluster, setup: Setup, expected: Any) -> None:
        assert cluster.workers == 2
        assert cluster.describe() == "cluster on cpu, float32"
        assert_same(play(cluster, setup), expected)
        assert cluster.remarks() == []

    def test_a_client_that_raises_is_told_as_everywhere(self, cluster: Cluster, setup: Setup) -> None:
        faulty = replace(setup, method=Raising(setup.method, 2))  # type: ignore[arg-type]
        (_, lines), (_, known) = play(cluster, faulty), play(made(setup, kind="serial"), faulty)
        assert lines == known
        told = [line for line in lines if line.get("record") == "failed"]
        assert len(told) == setup.config.rounds
        assert "a planted fault (tamper.py:" in told[0]["reason"]

    def test_what_cannot_be_sent_is_refused_in_words(self, cluster: Cluster, setup: Setup) -> None:
        with pytest.raises(RunError, match=r"cluster sends the clients' program to other processes.*lock"):
            play(cluster, replace(setup, method=Locked(setup.method)))  # type: ignore[arg-type]

    def test_the_clients_of_a_killed_actor_run_again(
        self, cluster: Cluster, setup: Setup, expected: Any, tmp_path: Path
    ) -> None:
        deadly: Any = Deadly(setup.method, tmp_path, times=1)
        assert_same(play(cluster, replace(setup, method=deadly)), expected)
        assert len(list(tmp_path.iterdir())) == 1
        assert cluster.workers == 1
        (remark,) = cluster.remarks()
        # Chunks of one client; usually 3, another where Ray tells of the death before an answer that was on its way.
        assert re.search(r"was lost with clients \d; the other 1 run them again", remark)

    def test_without_any_actor_the_round_ends_in_words_and_the_next_one_has_new_actors(
        self, cluster: Cluster, setup: Setup, expected: Any, tmp_path: Path
    ) -> None:
        deadly: Any = Deadly(setup.method, tmp_path, times=9)  # for the actor that is left: four chunks of two
        with pytest.raises(RunError, match=r"all actors of the cluster were lost, the last .* with clients \d, \d"):
            play(cluster, replace(setup, method=deadly))
        assert_same(play(cluster, setup), expected)
        assert cluster.workers == 2


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"kind": "cluster", "workers": 2}, "threads of one machine.*set execution.actors"),
        ({"kind": "cluster", "device": "cuda"}, "train on processors alone"),
        ({"kind": "cluster", "address": "ray://head:10001"}, "no ray:// client"),
        ({"kind": "cluster", "actors": 0}, "actors"),
        ({"kind": "serial", "actors": 2}, "execution.actors: 2, but kind is serial"),
        ({"address": "auto"}, "execution.address: 'auto', but kind is workers"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        resolve_config({"stream": {"kind": "static", "clients": 2}, "execution": settings})


def test_without_ray_the_configuration_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'shoal\[cluster\]'"):
        resolve_config({"stream": {"kind": "static", "clients": 2}, "execution": {"kind": "cluster"}})
