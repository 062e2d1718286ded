"""Federated averaging where it is centralised training: one full-batch step of each client, averaged by rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from shoal.data.arrays import from_arrays
from shoal.data.dataset import Dataset, inputs
from shoal.engine import Serial, one_torch_thread
from shoal.experiment import Experiment
from shoal.loading import merged
from shoal.setup import Setup, assemble, resolve_config

ROUNDS = 3
SIZES = [5, 31, 12]
RATE = 0.4


def rows() -> Dataset:
    """48 training rows of six numbers in three classes, and three test rows."""
    rng = np.random.default_rng(3)
    labels = np.arange(51) % 3
    x = rng.normal(size=(51, 6)) + 0.8 * labels[:, None]
    return from_arrays(x[3:], labels[3:], x[:3], labels[:3])


def played(method: Any, **parts: Any) -> tuple[Setup, list[Tensor]]:
    """The run's parts, and the model before the first round and after each."""
    base = {
        "rounds": ROUNDS,
        "stream": {"kind": "static", "partition": {"kind": "sizes", "sizes": SIZES}, "clients": 3, "validation": 0},
        "model": {"kind": "mlp", "hidden": [7]},
        "local": {"lr": RATE, "batch_size": 100, "epochs": 1},
        "execution": {"kind": "serial"},
    }
    setup = assemble(resolve_config({**merged(base, parts), "method": method}), rows())
    with one_torch_thread():
        engine = Serial(setup.world.models, setup.stream.dataset, torch.device("cpu"), "float32", "cross_entropy", {})
        experiment = Experiment(setup, engine)
        states = [experiment.start()]
        for _ in range(ROUNDS):
            states.append(experiment.play(states[-1]).state)
        engine.close()
    return setup, [state.bank["global"].vector for state in states]


def centralised(setup: Setup, start: Tensor, settings: Mapping[str, float], weights: list[float]) -> list[Tensor]:
    """torch.optim's SGD on the clients' mean losses with these weights; by rows that is the loss of all rows."""
    module = setup.world.models["main"].build().double()
    torch.nn.utils.vector_to_parameters(start.double(), module.parameters())
    optimizer = torch.optim.SGD(module.parameters(), **settings)
    data = setup.stream.dataset
    held = [setup.stream.holding(client, 1).train for client in range(len(SIZES))]
    assert [len(some) for some in held] == SIZES
    found = []
    for _ in range(ROUNDS):
        optimizer.zero_grad()
        for some, weight in zip(held, weights, strict=True):
            x, y = inputs(data.batch(some)).double(), data.wanted(some)
            (weight * functional.cross_entropy(module(x), y)).backward()
        optimizer.step()
        found.append(torch.nn.utils.parameters_to_vector(module.parameters()).detach().float())
    return found


BY_ROWS = [size / sum(SIZES) for size in SIZES]


@pytest.mark.parametrize(("mean", "weights"), [("weighted", BY_ROWS), ("uniform", [1 / 3] * 3)])
def test_one_full_batch_step_of_everyone_is_centralised_gradient_descent(mean: str, weights: list[float]) -> None:
    setup, models = played({"kind": "fedavg", "mean": mean})
    for found, expected in zip(models[1:], centralised(setup, models[0], {"lr": RATE}, weights), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_weighted_by_rows_it_is_the_loss_of_all_rows_at_once() -> None:
    setup, models = played("fedavg")
    module = setup.world.models["main"].build().double()
    torch.nn.utils.vector_to_parameters(models[0].double(), module.parameters())
    data = setup.stream.dataset
    for found in models[1:]:
        loss = functional.cross_entropy(module(inputs(data.batch(data.train)).double()), data.wanted(data.train))
        for parameter, slope in zip(
            module.parameters(), torch.autograd.grad(loss, list(module.parameters())), strict=True
        ):
            parameter.data.sub_(RATE * slope)
        expected = torch.nn.utils.parameters_to_vector(module.parameters()).detach().float()
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_servers_heavy_ball_is_the_centralised_one() -> None:
    setup, models = played({"kind": "fedavg", "server": {"kind": "momentum", "form": "heavy-ball", "beta": 0.7}})
    settings = {"lr": RATE, "momentum": 0.7}
    for found, expected in zip(models[1:], centralised(setup, models[0], settings, BY_ROWS), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["fedadam", "fedyogi", "fedamsgrad"])
def test_without_momentum_and_with_power_zero_an_adaptive_server_is_averaging(kind: str) -> None:
    server = {"beta1": 0.0, "lr": 1.0, "calibration": {"kind": "p", "p": 0.0}}
    # Several local steps on small batches: nothing here is about gradient descent.
    local = {"batch_size": 4, "epochs": 2}
    _, plain = played("fedavg", local=local)
    _, models = played({"kind": kind, "server": server}, local=local)
    assert float((plain[-1] - plain[0]).abs().max()) > 0.05
    for found, expected in zip(models, plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
