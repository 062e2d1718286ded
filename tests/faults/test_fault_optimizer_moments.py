"""Fault: the local optimiser is rebuilt, or kept, at a task boundary without anybody having said so.

The declared choice is ``Fit.slots``. By default the moments are new in every round, whatever the task; that they go on
where a learner keeps them is shown against ``torch.optim`` in ``tests/examples/test_example_kept_adam.py``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from fault_lab import config, images, models

import shoal

ROUNDS, EPOCHS = 4, 3
STREAM = {"kind": "tasks", "tasks": 2, "by": "transform", "transforms": ["identity", "rotate90"]}
CONFIG = config(
    rounds=ROUNDS,
    stream={**STREAM, "order": "synchronous", "clients": 1, "validation": 0, "head": "shared"},
    local={"optimizer": "adam", "lr": 0.01, "epochs": EPOCHS},
)


def by_torch(start: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray, restart: bool) -> np.ndarray:
    """The weights after all rounds: upright pictures for two rounds, turned ones for two."""
    linear = torch.nn.Linear(16, 3)
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(start["global/classifier.weight"]))
        linear.bias.copy_(torch.from_numpy(start["global/classifier.bias"]))
    optimizer = torch.optim.Adam(linear.parameters(), lr=0.01)
    for round in range(ROUNDS):
        if restart:
            optimizer = torch.optim.Adam(linear.parameters(), lr=0.01)
        turned = x if round < 2 else np.rot90(x, 1, (1, 2))
        flat = torch.from_numpy(turned.reshape(len(x), -1).astype(np.float32) / 255)
        for _ in range(EPOCHS):
            optimizer.zero_grad()
            F.cross_entropy(linear(flat), torch.from_numpy(y)).backward()
            optimizer.step()
    return linear.weight.detach().double().numpy()


def test_adam_starts_anew_in_every_round_and_so_at_every_boundary(tmp_path: Path) -> None:
    x, y = images(30, 3)
    data = shoal.from_arrays(x, y, x, y, normalize="unit")
    start = models(
        shoal.run(
            CONFIG,
            {"rounds": 2, "evaluate.every": 0, "participation.crash_probability": 1.0},
            out=tmp_path / "start",
            data=data,
        )
    )
    found = models(shoal.run(CONFIG, out=tmp_path / "run", data=data))["global/classifier.weight"]
    anew, kept = (by_torch(start, x, y, restart) for restart in (True, False))
    np.testing.assert_allclose(found, anew, rtol=1e-4, atol=1e-5)
    assert np.abs(found - kept).max() > 1e-3
