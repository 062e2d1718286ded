"""Needs: a loss of one's own, and data of one's own. Here: regression on noisy waves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from example_lab import config, on_digits, play, points, prove

from shoal.data.source import Source
from shoal.randomness import generator


class Waves(Source):
    """``sin(x + a) + noise`` for three numbers x; the loss is `example_lab.Squared`."""

    def __init__(self, *, rows: int = 200, noise: float = 0.05) -> None:
        self.rows, self.noise = rows, noise

    def load(self):
        rng = generator("waves", self.rows)
        x = rng.uniform(-1, 1, (self.rows, 3))
        y = np.sin(2 * x).sum(1) + self.noise * rng.normal(size=self.rows)
        table = points(x.tolist(), y.tolist())
        cut = 4 * self.rows // 5
        return type(table)(**{**vars(table), "train": table.train[:cut], "test": table.test[cut:]})


WAVES = {"data": {"kind": "test_example_regression:Waves"}, "local": {"loss": "example_lab:Squared"}}


def test_the_laws():
    prove(config(**WAVES), Waves().load())


def test_a_linear_model_descends_to_least_squares():
    raw = config(**WAVES, model={"kind": "mlp", "hidden": []}, rounds=12, stream={"hold_back": 0, "sizes": [60, 100]})
    data = Waves().load()
    run = play({**raw, "local": {**raw["local"], "lr": 0.5, "batch_size": 100, "epochs": 1}}, data)
    # One full-batch step each, averaged by rows, is gradient descent on all rows.
    x = np.c_[data.features[data.train].double().numpy(), np.ones(len(data.train))]
    y = data.targets[data.train, 0].double().numpy()
    w = run.states[0].bank["global"].vector.double().numpy()
    for _ in range(12):
        w = w - 0.5 * x.T @ (x @ w - y) / len(y)
    np.testing.assert_allclose(run.bank["global"].vector.numpy(), w, rtol=1e-4, atol=1e-5)
    best = np.linalg.lstsq(x, y, rcond=None)[0]
    assert np.abs(w - best).max() < 0.2


@pytest.mark.parametrize("method", ["test_example_concepts:Concepts", "test_example_gossip:Gossip"])
def test_methods_that_compare_losses_use_the_loss_of_the_run(method):
    run = play(config(**WAVES, method={"kind": method}, rounds=2), Waves().load())
    losses = [line["value"] for line in run.all(metric="loss")]
    assert all(0 < loss < 5 for loss in losses)
    assert all(line["value"] is None for line in run.all(metric="accuracy"))


def test_a_gradient_uses_the_loss_of_the_run_too():
    full = {**WAVES["local"], "batch_size": 64}
    svrg = {**full, "learner": {"kind": "test_example_svrg:Svrg"}}
    run, plain = (
        play(config(**{**WAVES, "local": local}, rounds=1, stream={"sizes": [40]}), Waves().load())
        for local in (svrg, full)
    )
    # One client and one full-batch step: the anchor corrects nothing.
    torch.testing.assert_close(run.bank["global"].vector, plain.bank["global"].vector, rtol=1e-4, atol=1e-6)


def test_a_whole_run(tmp_path):
    raw = {**WAVES, "model": {"kind": "mlp", "hidden": [32]}, "rounds": 30}
    raw["local"] = {**raw["local"], "lr": 0.1, "epochs": 4}
    result = on_digits(tmp_path / "run", **raw)
    assert result.summary["acc"] is None
    frame = result.frame()
    losses = frame[frame["metric"] == "loss"]["value"].tolist()
    assert losses[-1] < 0.1 < losses[0]
