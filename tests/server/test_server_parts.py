"""Means, server optimisers and calibrations through the registry, and inside a method's merge."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import yaml
from server_steps import NAN, group, sent, walk

from shoal import registry
from shoal.bank import Buffers, Entry
from shoal.config import Local
from shoal.errors import ConfigError
from shoal.learners.base import Learner
from shoal.messages import Part, World
from shoal.methods.fedavg import FedAvg
from shoal.randomness import Moment
from shoal.server.adaptive import AMSGrad
from shoal.server.base import Mean, ServerOptimizer
from shoal.server.calibrations import Power
from shoal.server.means import Uniform, Weighted
from shoal.server.plain import SGD

NOW = Moment(0, 1)


def made(part: str, given: Any) -> Any:
    """A part from what stands in config.yaml once resolved, written and read."""
    return registry.build(part, yaml.safe_load(yaml.safe_dump(registry.resolve(part, given))))


def test_defaults_of_every_adaptive_server() -> None:
    for kind in ("adam", "amsgrad", "yogi", "adagrad"):
        resolved = registry.resolve("server", kind)
        adagrad = kind == "adagrad"
        assert resolved["lr"] == 0.1
        assert resolved["beta1"] == (0.0 if adagrad else 0.9)
        assert resolved.get("beta2") == (None if adagrad else 0.99)
        assert (resolved["tau"], resolved["calibration"]) == (None, None)
        told = made("server", kind).describe()
        assert told["tau"] == (0.1 if adagrad else 0.01)
        assert told["v0"] == pytest.approx(0.01 if adagrad else 1e-4)
        assert told["first_effective_step"] == pytest.approx(0.5 if adagrad else 5.0)  # lr / (2 tau)
        assert (told["second_moment"], told["v_init"], told["bias_correction"]) == ("raw", "tau-squared", False)
        assert ("beta2" in told) != adagrad
        assert told.get("form") == ("paper" if kind == "amsgrad" else None)


def test_what_is_told_is_json_and_complete() -> None:
    server = made(
        "server",
        {"kind": "amsgrad", "lr": 0.03, "form": "reddi", "calibration": {"kind": "softplus", "beta": 200}},
    )
    told = json.loads(json.dumps(server.describe(), allow_nan=False))
    assert told == {
        "class": "AMSGrad",
        "lr": 0.03,
        "beta1": 0.9,
        "beta2": 0.99,
        "tau": None,
        "calibration": {"class": "Softplus", "beta": 200.0},
        "second_moment": "raw",
        "v_init": "zero",
        "v0": 0.0,
        "bias_correction": False,
        "first_effective_step": pytest.approx(0.03 * 200 / 0.6931471805599453),
        "form": "reddi",
    }


def test_bias_correction_starts_at_zero() -> None:
    told = made("server", {"kind": "adam", "tau": 0.1, "bias_correction": True}).describe()
    assert (told["v_init"], told["v0"], told["tau"]) == ("zero", 0.0, 0.1)
    assert told["first_effective_step"] == pytest.approx(10.0)  # 0.1 / (1 - 0.9) / 0.1


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("epsilon", {"class": "Epsilon", "epsilon": 1e-8}),
        ({"kind": "p", "p": 0.125}, {"class": "Power", "p": 0.125, "epsilon": 1e-8}),
        ("softplus", {"class": "Softplus", "beta": 50.0}),
    ],
)
def test_calibrations_by_kind(given: Any, told: dict[str, Any]) -> None:
    assert made("server", {"kind": "yogi", "calibration": given}).describe()["calibration"] == told


def test_a_built_server_steps_like_one_made_by_hand() -> None:
    built = made("server", {"kind": "amsgrad", "calibration": {"kind": "p", "p": 0.25}, "beta1": 0.5})
    changes = [[1.0, -0.2], [0.0, 0.1], [-1.0, 0.3]]
    by_hand = walk(AMSGrad(beta1=0.5, calibration=Power(p=0.25)), [2.0, 0.0], changes)
    assert torch.equal(walk(built, [2.0, 0.0], changes).last.vector, by_hand.last.vector)


def test_means_by_kind() -> None:
    answers = group(sent([0.0], 0), sent([4.0], 2), weights=(3.0, 1.0))
    old = Entry(torch.zeros(1))
    assert float(made("mean", "weighted").combine(old, answers)) == 1.0
    assert float(made("mean", "uniform").combine(old, answers)) == 2.0
    assert float(made("mean", {"kind": "listed", "weights": {0: 1, 2: 3}}).combine(old, answers)) == 3.0
    assert float(made("mean", {"kind": "listed", "weights": [1, 9, 1]}).combine(old, answers)) == 2.0


@pytest.mark.parametrize(
    ("part", "given", "message"),
    [
        ("server", "adm", r"no server is called 'adm'; did you mean 'adam'"),
        ("server", "fedavg", r"no server is called 'fedavg'"),
        ("mean", "uniformly", r"did you mean 'uniform'"),
        ("calibration", "softmax", r"did you mean 'softplus'"),
        ("server", {"kind": "adam", "beta_2": 0.9}, r"server\.beta_2: no such setting; did you mean 'beta2'"),
        ("server", {"kind": "adam", "tau": 0.1, "calibration": "p"}, "tau and calibration exclude each other"),
        ("server", {"kind": "adagrad", "bias_correction": True}, "adagrad's v is a sum"),
        ("server", {"kind": "adam", "second_moment": "mean"}, "'raw' or 'momentum'"),
        ("server", {"kind": "adam", "lr": -0.1}, "lr must be positive"),
        ("server", {"kind": "adam", "calibration": {"kind": "epsilon", "epsilon": 0}}, "epsilon must be positive"),
        ("server", {"kind": "momentum", "beta": 1}, "0 <= beta < 1"),
        ("mean", {"kind": "listed", "weights": [1.0, 0.0]}, "positive and finite"),
        ("mean", "listed", r"mean\.weights: this setting is required"),
    ],
)
def test_a_wrong_configuration_is_refused_before_any_training(part: str, given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(part, given)


def fedavg(server: ServerOptimizer, mean: Mean | None = None) -> FedAvg:
    world = World(seed=0, clients=3, rounds=5, models={})
    return FedAvg(world, Learner(world, Local()), mean or Weighted(), server)


@pytest.mark.parametrize(
    ("kind", "lr"),
    [("adam", 1.0), ("amsgrad", 1.0), ("yogi", 1.0), ("adagrad", 5.0), ("momentum", 2.0), ("sgd", 2.0)],
)
def test_buffers_are_averaged_whatever_the_server_does(kind: str, lr: float) -> None:
    # The same falling numbers as a parameter, which the server carries below zero, and as a variance.
    method = fedavg(made("server", {"kind": kind, "lr": lr}))
    counters = torch.tensor([3], dtype=torch.int64)
    entry = Entry(torch.tensor([4.0]), buffers=Buffers(torch.tensor([4.0]), counters))
    lowest = float("inf")
    for round in range(1, 9):
        now = [max(float(entry.vector), 0.0) / 4, max(float(entry.vector), 0.0) / 8]
        variances = [entry.buffers.floats / 4, entry.buffers.floats / 8]
        parts = [
            Part(torch.tensor([x]), Buffers(v, counters + round + i), client=i)
            for i, (x, v) in enumerate(zip(now, variances, strict=True))
        ]
        before = float(entry.buffers.floats)
        entry = method.merge_entry("global", entry, group(*parts, weights=(1.0, 3.0)), Moment(0, round))
        assert float(entry.buffers.floats) == pytest.approx(before * (1 / 4 + 3 / 8) / 4)
        assert entry.buffers.counters.tolist() == [3 + round + 1]
        lowest = min(lowest, float(entry.vector))
    assert lowest < 0


def test_server_numbers_advance_only_when_a_model_came() -> None:
    method = fedavg(made("server", "adam"))
    entry = Entry(torch.tensor([1.0]))
    entry = method.merge_entry("global", entry, group(sent([2.0])), NOW)
    assert int(entry.server["steps"]) == 1
    told = method.merge_entry("global", entry, group(Part(None, extra={"prior": torch.ones(1)})), NOW)
    assert told.server is entry.server
    assert told.vector is entry.vector


def test_federated_averaging_end_to_end_is_the_mean_to_the_bit() -> None:
    answers = group(sent([0.1, 7.0], 0), sent([0.3, -7.0], 1, times=2), weights=(10.0, 40.0))
    old = Entry(torch.tensor([1e6, -1e-6]))
    for mean in (Weighted(), Uniform()):
        merged = fedavg(SGD(), mean).merge_entry("global", old, answers, NOW)
        assert torch.equal(merged.vector, mean.combine(old, answers))
        assert merged.weight == 50.0


def test_the_defaults_of_an_authors_own_server() -> None:
    class Own(ServerOptimizer):
        pass

    assert Own().describe() == {"class": "Own"}
    assert Own().effective_step(Entry(torch.zeros(1)), NOW) is None
    with pytest.raises(NotImplementedError):
        Own().step(Entry(torch.zeros(1)), torch.zeros(1), NOW, NAN)
