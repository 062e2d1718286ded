"""ResNet-20 and VGG-11 with BatchNorm under an adaptive server: buffers are averaged, and never optimised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from shoal.data.arrays import from_arrays
from shoal.engine import Serial, one_torch_thread
from shoal.experiment import Experiment
from shoal.messages import Outcome, Update
from shoal.setup import assemble, resolve_config

MODELS = {
    "resnet20": ({"kind": "resnet20", "width": 4}, 8),
    "vgg11": ({"kind": "vgg11", "hidden": [], "norm": "batch", "dropout": 0.0}, 32),
}


class Watching(Serial):
    """The serial engine, which keeps what the clients answered."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.seen: list[Outcome] = []

    def run(self, *args: Any, **more: Any) -> list[Outcome]:
        found = super().run(*args, **more)
        self.seen += found
        return found


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_buffers_are_the_mean_of_the_clients_under_adam(kind: str) -> None:
    model, side = MODELS[kind]
    x = np.random.default_rng(0).integers(0, 256, (150, side, side, 3), dtype=np.uint8)
    config = resolve_config(
        {
            "rounds": 1,
            "data": "arrays",
            "stream": {"kind": "static", "clients": 2, "partition": {"kind": "sizes", "sizes": [30, 20]}},
            "model": model,
            "method": {"kind": "fedadam", "server": {"lr": 0.5, "calibration": {"kind": "epsilon"}}},
            "local": {"lr": 0.1, "steps": 1, "batch_size": 4},
            "evaluate": {"every": 0, "measures": []},
        }
    )
    setup = assemble(config, from_arrays(x[:50], np.arange(50), x[50:], np.arange(100)))
    engine = Watching(setup.world.models, setup.stream.dataset, torch.device("cpu"))
    with one_torch_thread():
        experiment = Experiment(setup, engine)
        entry = experiment.play(experiment.start()).state.bank.entries["global"]
    answers = [outcome.answer for outcome in engine.seen]
    parts = [answer.parts["global"] for answer in answers if isinstance(answer, Update)]
    rows = [len(setup.stream.holding(client, 1).train) for client in (0, 1)]
    assert rows[0] != rows[1]

    def mean(tensors: list[Any]) -> torch.Tensor:
        total = sum(w * t.double() for w, t in zip(rows, tensors, strict=True))
        return (torch.as_tensor(total) / sum(rows)).float()

    floats, counters = entry.buffers.floats, entry.buffers.counters
    assert floats is not None
    assert counters is not None
    sent = [part.buffers.floats for part in parts]
    assert (sent[0] - sent[1]).abs().max() > 1e-3  # type: ignore[operator]
    torch.testing.assert_close(floats, mean(sent), rtol=0, atol=1e-6)
    assert torch.equal(counters, torch.ones_like(counters))
    # The parameters did go through Adam: its first step is lr (1 - beta1) / sqrt(1 - beta2) where there was a change.
    start = experiment.start().bank.entries["global"].vector
    change = mean([part.vector for part in parts]) - start
    moved = change.abs() > 1e-5
    torch.testing.assert_close((entry.vector - start)[moved], 0.5 * change[moved].sign(), rtol=0.01, atol=0)
    assert all(entry.server[name].shape == entry.vector.shape for name in ("m", "v"))
