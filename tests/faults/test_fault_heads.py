"""Faults of heads: evaluating a task whose head nobody trained, and clients that hold different classes.

Where heads grow as classes arrive, a task of the future has none and evaluation fails or silently measures another
head. Where each client's head has its own classes, averaging fails by shape or mixes logits that nobody trained.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fault_lab import config, images, lines, models, table
from torch import nn

import shoal
from shoal.errors import ShoalError


class TwoOutputs(nn.Module):
    """A head that was made for two classes and takes no notice of how many there are."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(x)
        return out


TASKS = {"kind": "tasks", "tasks": 3, "by": "class", "order": "synchronous", "clients": 2}
HARD = {"lr": 0.5, "epochs": 20}


def test_every_task_is_measured_after_the_first_whoever_trained_its_head(tmp_path: Path) -> None:
    x, y = images(90, 6)
    x_test, y_test = images(30, 6, seed=1)
    data = shoal.from_arrays(x, y, x_test, y_test, normalize="unit")
    own = config(rounds=3, stream=TASKS, method={"kind": "fedavg", "per": "task"}, local=HARD)
    fresh = shoal.run(own, {"participation.crash_probability": 1.0}, out=tmp_path / "fresh", data=data)
    start = models(fresh)
    result = shoal.run(own, out=tmp_path / "run", data=data)
    for task in range(3):
        rows = np.isin(y_test, [2 * task, 2 * task + 1])
        weight, bias = (start[f"task/{task}/classifier.{name}"] for name in ("weight", "bias"))
        logits = x_test[rows].reshape(rows.sum(), -1) / 255 @ weight.T + bias
        untrained = float((logits.argmax(1) == y_test[rows] - 2 * task).mean())
        measured = {line["round"]: line["value"] for line in lines(result, metric="accuracy", task=task)}
        assert [measured[round] for round in range(1, task + 1)] == pytest.approx([untrained] * task)
        assert lines(fresh, metric="accuracy", task=task)[0]["value"] == pytest.approx(untrained)
    # Its own labels from its own head: a task that was just trained is better than a coin.
    assert all(lines(result, metric="accuracy", task=t, round=t + 1)[0]["value"] > 0.5 for t in range(3))


def test_a_shared_head_has_an_output_for_classes_that_come_later(tmp_path: Path) -> None:
    x, y = images(90, 6)
    data = shoal.from_arrays(x, y, x, y, normalize="unit")
    result = shoal.run(config(rounds=3, stream=TASKS, local=HARD), out=tmp_path / "a", data=data)
    assert models(result)["global/classifier.weight"].shape[0] == 6
    after_one = [lines(result, metric="accuracy", task=t, round=1)[0]["value"] for t in range(3)]
    assert after_one[0] > 0.5
    assert after_one[1:] == [0.0, 0.0]  # a class that was never trained is never the answer once others were


CLUSTERS = {0: [4.0, 0.0], 1: [0.0, 4.0], 2: [-3.0, -3.0], 3: [5.0, 5.0]}
ALICE = [(0, label, [CLUSTERS[label][0] + d, CLUSTERS[label][1] - d]) for label in (0, 1) for d in (-0.5, 0.0, 1.0)]
BOB = [(1, 2, [-3.0 + d, -3.0]) for d in (0.0, 0.5)]
ROUNDS = 30


def descended(rows: list[tuple[int, int, list[float]]], start: dict[str, np.ndarray], outputs: int) -> np.ndarray:
    """Gradient descent of softmax regression on all rows together: weights and, last, the bias."""
    x = np.array([[*features, 1.0] for _, _, features in rows])
    wanted = np.eye(outputs)[[label for _, label, _ in rows]]
    w = np.c_[start["global/classifier.weight"], start["global/classifier.bias"]]
    for _ in range(ROUNDS):
        e = np.exp(x @ w.T - (x @ w.T).max(1, keepdims=True))
        w = w - 0.1 * ((e / e.sum(1, keepdims=True)) - wanted).T @ x / len(x)
    return w


def test_heads_of_clients_with_different_classes_are_one_head(tmp_path: Path) -> None:
    """Alice holds the classes 0 and 1, Bob 2, and nobody 3, which only test rows have. One full-batch step a round,
    averaged by rows, is gradient descent on all rows: also for the logits that a client has no row of."""
    data = table(ALICE + BOB, [*ALICE, *BOB, (1, 3, CLUSTERS[3])])
    start = models(shoal.run(config(rounds=0), out=tmp_path / "start", data=data))
    result = shoal.run(config(rounds=ROUNDS), out=tmp_path / "run", data=data)
    found = models(result)
    w = descended(ALICE + BOB, start, outputs=4)
    np.testing.assert_allclose(found["global/classifier.weight"], w[:, :2], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["global/classifier.bias"], w[:, 2], rtol=1e-4, atol=1e-5)
    # Alice's own training pushes class 2 down; the average still knows it. Class 3 is Bob's only wrong row.
    values = {line["client"]: line["value"] for line in lines(result, metric="accuracy", round=ROUNDS)}
    assert values == {0: 1.0, 1: pytest.approx(2 / 3)}
    assert not lines(result, record="rejected")


def test_classes_of_a_client_that_never_takes_part_are_measured_too(tmp_path: Path) -> None:
    only_bob = {"participation": {"count": 1, "probabilities": [0.0, 1.0]}}
    result = shoal.run(config(rounds=20, **only_bob), out=tmp_path / "a", data=table(ALICE + BOB))
    found = models(result)
    x = np.array([features for _, _, features in ALICE])
    answers = (x @ found["global/classifier.weight"].T + found["global/classifier.bias"]).argmax(1)
    by_hand = float((answers == [label for _, label, _ in ALICE]).mean())
    values = {line["client"]: line["value"] for line in lines(result, metric="accuracy", round=20)}
    assert values == {0: pytest.approx(by_hand), 1: 1.0}


@pytest.mark.parametrize("labels", [[0, 1, 2], [3, 7, 41], ["ant", "bee", "cat"]])
def test_a_model_with_too_few_outputs_is_refused_in_words(tmp_path: Path, labels: list[Any]) -> None:
    x = np.arange(24, dtype=np.float32).reshape(12, 2)
    data = shoal.from_arrays(x, labels * 4, test=3)
    own = config(stream={"kind": "static", "clients": 2}, model={"kind": "test_fault_heads:TwoOutputs"})
    with pytest.raises(ShoalError, match=r"3") as caught:
        shoal.run(own, out=tmp_path / "a", data=data)
    assert "outputs" in str(caught.value)
    assert not (tmp_path / "a").exists()
