"""Rounds with compression in numpy: linear models with one full-batch step, top-k by hand, means by rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from learner_lab import CURVED, Run, gradient, play

FULL = {"batch_size": 100, "lr": 0.1}
SIZES = np.array([len(values) for _, values in CURVED], dtype=float)


def in_numpy(run: Run, count: int, momentum: float, server: float) -> list[np.ndarray]:
    """The models after each round; ``count`` of the three coordinates are sent, by those whose update counted."""
    late = {(line["round"], line["client"]) for line in run.told("straggler")}
    who = [[c for c in line["participants"] if (line["round"], c) not in late] for line in run.told("round")]
    x = np.zeros(3)
    u, v = np.zeros((2, len(CURVED), 3))
    found = []
    for clients in who:
        sent = np.zeros((len(CURVED), 3))
        for c in clients:
            u[c] = momentum * u[c] - FULL["lr"] * gradient(CURVED[c], x)
            v[c] += u[c]
            places = np.argsort(-np.abs(v[c]))[:count]
            sent[c][places] = v[c][places]
            u[c][places] = v[c][places] = 0.0
        if clients:
            x = x + server * (SIZES[clients] @ sent[clients]) / SIZES[clients].sum()
        found.append(x)
    return found


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("server", [1.0, 0.5])
def test_rounds_of_unequal_clients_that_come_and_go(count: int, momentum: float, server: float) -> None:
    compression = {"kind": "topk", "share": count / 3, "per": "model", "momentum": momentum}
    more: dict[str, Any] = {"participation": {"count": 2, "straggler_probability": 0.3}, "seed": 2, "rounds": 8}
    method = {"kind": "fedavg", "server": {"kind": "sgd", "lr": server}}
    run = play(
        CURVED, {"kind": "plain"}, clean=False, local={**FULL, "compression": compression}, method=method, **more
    )
    assert run.told("straggler")
    expected = in_numpy(run, count, momentum, server)
    for round, model in enumerate(expected, 1):
        np.testing.assert_allclose(run.vector(round), model, rtol=1e-4, atol=1e-5)
    assert np.abs(in_numpy(run, 3, momentum, server)[-1] - expected[-1]).max() > 1e-3
