"""Need: a server step that follows the clients' reported loss. Here: a rate that falls when that loss stands still."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from example_lab import config, digits, on_digits, play, prove

from shoal.bank import Entry
from shoal.data.dataset import inputs
from shoal.randomness import Moment
from shoal.server.base import ServerOptimizer


class Plateau(ServerOptimizer):
    """``x + lr Delta``; ``lr`` falls by ``factor`` after more than ``patience`` rounds without a better loss."""

    reads_reported = True

    def __init__(self, *, lr: float = 1.0, factor: float = 0.5, patience: int = 1) -> None:
        self.lr, self.factor, self.patience = lr, factor, patience

    def step(self, old, mean, when, reported):
        lr, waited = old.server.get("plateau/lr", torch.tensor(self.lr, dtype=torch.float64)), 0
        best = old.server.get("plateau/best")
        if math.isfinite(reported) and (best is None or reported < best):
            best = torch.tensor(reported, dtype=torch.float64)
        elif math.isfinite(reported):
            waited = int(old.server["plateau/waited"]) + 1
            if waited > self.patience:
                lr, waited = lr * self.factor, 0
        kept = {} if best is None else {"plateau/best": best, "plateau/waited": torch.tensor(waited)}
        vector = old.vector + float(lr) * (mean - old.vector)
        return vector, {**old.server, **kept, "plateau/lr": lr}


PLATEAU = {"kind": "fedavg", "server": {"kind": "test_example_plateau:Plateau", "patience": 0}}


def test_the_rates_are_those_of_torch():
    losses = [3.0, 2.0, 2.5, 2.0, 2.1, 1.0, 1.0, 1.0, 1.5, 0.9, 0.9, 0.95, 5.0]
    for patience in (0, 1, 2):
        server, entry = Plateau(lr=0.8, factor=0.3, patience=patience), Entry(torch.zeros(1))
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.8)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, factor=0.3, patience=patience, threshold=0, eps=0
        )
        for loss in losses:
            scheduler.step(loss)
            vector, numbers = server.step(entry, torch.ones(1), Moment(0, 1), loss)
            assert float(vector) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-6)
            entry = entry.new(server=numbers)
        assert float(entry.server["plateau/lr"]) < 0.8


def test_a_loss_that_nobody_reported_changes_no_rate():
    server, entry = Plateau(patience=0), Entry(torch.zeros(1))
    for _ in range(3):
        vector, numbers = server.step(entry, entry.vector + 1, Moment(0, 1), float("nan"))
        entry = entry.new(vector=vector, server=numbers)
    assert float(entry.vector) == 3


def test_the_laws_and_the_reported_loss_is_that_of_the_validation_rows_weighted_by_training_rows():
    # A rate so large that the loss rises again and again.
    run = prove(config(method=PLATEAU, rounds=5, local={"lr": 3.0, "epochs": 3}))
    stream, best, lr = run.setup.stream, math.inf, 1.0
    for old, new in zip(run.states, run.states[1:], strict=False):
        module = run.setup.world.models["main"].build()
        torch.nn.utils.vector_to_parameters(old.bank["global"].vector, module.parameters())
        held = [stream.holding(i, 1) for i in range(4)]
        losses = [
            F.cross_entropy(module(inputs(digits().batch(h.validation))), digits().wanted(h.validation)) for h in held
        ]
        weights = [len(h.train) for h in held]
        reported = sum(w * float(loss.detach()) for w, loss in zip(weights, losses, strict=True)) / sum(weights)
        lr, best = (lr, reported) if reported < best else (lr / 2, best)
        assert float(new.bank["global"].server["plateau/lr"]) == lr
        assert float(new.bank["global"].server["plateau/best"]) == pytest.approx(best, rel=1e-4)
    assert lr < 1


def test_an_optimiser_that_does_not_read_it_costs_no_evaluation():
    run = play(config(rounds=1))
    assert not run.setup.method.server.reads_reported
    assert "plateau/best" not in run.bank["global"].server


def test_on_digits(tmp_path):
    result = on_digits(tmp_path / "run", method=PLATEAU)
    assert result.summary["acc"] > 0.5
    assert result.summary["server"]["class"] == "Plateau"
