"""Early stopping, the clients' half of Flash: epochs and models by torch.optim, and where it is the plain learner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from learner_lab import Dealt, Rows, Run, play, same, setup_of

from shoal.checks.case import Case
from shoal.config import Execution
from shoal.errors import ConfigError
from shoal.streams.base import Holding


class Held(Dealt):
    """As `Dealt`, but the last two rows of every client are for validation."""

    def holding(self, client: int, round: int) -> Holding:
        held = super().holding(client, round)
        return replace(held, train=held.train[:-2], validation=held.train[-2:])


HELD = {"kind": "test_early_stopping:Held", "sizes": [6, 5]}
CLIENTS: list[Rows] = [
    ([[1.0, 0.5], [-0.5, 1.0], [0.3, -1.0], [1.2, 0.4], [0.8, 0.8], [-1.0, 0.1]], [1.0, 2.0, -2.0, 0.5, 1.5, 0.0]),
    ([[0.3, -1.0], [1.2, 0.4], [-1.0, 0.2], [0.9, -0.9], [0.5, 1.0]], [-2.0, 0.5, 3.0, -2.0, -3.0]),
]
"""Client 1's validation rows disagree with its training rows: its loss there rises before long."""
SETTINGS: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.2},
    "momentum": {"lr": 0.1, "momentum": 0.8},
    "adam": {"lr": 0.2, "optimizer": "adam"},
}


def stopping(gamma: float = 0.04) -> dict[str, Any]:
    return {"kind": "early-stopping", "gamma": gamma}


def by_torch(rows: Rows, start: np.ndarray, gamma: float, epochs: int, settings: dict[str, Any]) -> tuple[Any, int]:
    """Full batches, one step an epoch: the model at the end, and the epochs that were trained."""
    x = torch.tensor([[*row, 1.0] for row in rows[0]], dtype=torch.float64)
    y = torch.tensor(rows[1], dtype=torch.float64)
    w = torch.tensor(start, requires_grad=True)
    kind = torch.optim.Adam if settings.get("optimizer") == "adam" else torch.optim.SGD
    optimizer = kind([w], **{name: value for name, value in settings.items() if name != "optimizer"})

    def loss(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return 0.5 * (a @ w - b).square().mean()

    last = float(loss(x[-2:], y[-2:]).detach())
    for epoch in range(1, epochs + 1):
        optimizer.zero_grad()
        loss(x[:-2], y[:-2]).backward()
        optimizer.step()
        now = float(loss(x[-2:], y[-2:]).detach())
        if last - now < gamma / epoch:
            return w.detach().numpy(), epoch
        last = now
    return w.detach().numpy(), epochs


def steps(run: Run) -> list[int]:
    return [line["value"] for lines in run.lines for line in lines if line.get("metric") == "client_steps"]


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("gamma", [0.0, 0.04, 0.3, 100.0])
def test_two_rounds_are_those_of_torch(name: str, gamma: float) -> None:
    local = {"batch_size": 8, "epochs": 7, **SETTINGS[name]}
    run = play(CLIENTS, stopping(gamma), stream=HELD, local=local)
    x, seen = np.zeros(3), []
    for round in (1, 2):
        ends = [by_torch(rows, x, gamma, 7, SETTINGS[name]) for rows in CLIENTS]
        x = (4 * ends[0][0] + 3 * ends[1][0]) / 7
        np.testing.assert_allclose(run.vector(round), x, rtol=2e-4, atol=1e-5)
        seen.append(sum(end[1] for end in ends))
    assert steps(run) == seen
    if gamma == 100.0:
        assert seen == [2, 2]  # nobody gains so much: one epoch each


def test_the_threshold_falls_with_the_epochs() -> None:
    # b goes from 0 towards 8 by halves: losses 32, 8, 2, 1/2, 1/8, ..., gains 24, 6, 1.5, 0.375. With gamma 12 the
    # thresholds are 12, 6, 4: the second gain is just enough, the third is not. With 24: 24, 12, and the second is not.
    rows: list[Rows] = [([[0.0]] * 4, [8.0] * 4)]
    stream = {"kind": "test_early_stopping:Held", "sizes": [4]}
    for gamma, epochs in ((12.0, 3), (24.0, 2), (24.1, 1), (0.0, 6)):
        run = play(rows, stopping(gamma), stream=stream, local={"epochs": 6}, rounds=1)
        assert steps(run) == [epochs]
        assert run.bias() == pytest.approx(8 - 8 / 2**epochs)


def test_a_rise_stops_and_the_model_of_the_rise_is_sent() -> None:
    # A rate of 5/2 overshoots from 0 to 20, away from 8: the loss rises at once.
    rows: list[Rows] = [([[0.0]] * 4, [8.0] * 4)]
    stream = {"kind": "test_early_stopping:Held", "sizes": [4]}
    run = play(rows, stopping(0.0), stream=stream, local={"epochs": 6, "lr": 2.5}, rounds=1)
    assert run.bias() == pytest.approx(20.0)
    assert steps(run) == [1]


@pytest.mark.parametrize("local", [{"epochs": 1}, {"epochs": 0.5}, {"steps": 2}])
def test_with_a_single_epoch_it_is_the_plain_learner_to_the_bit(local: dict[str, Any]) -> None:
    ours, plain = (play(CLIENTS, kind, stream=HELD, local=local) for kind in (stopping(100.0), "plain"))
    assert all(same(a, b) for a, b in zip(ours.states, plain.states, strict=True))


def test_without_validation_rows_all_epochs_are_trained_and_that_is_said() -> None:
    ours, plain = (play(CLIENTS, kind, local={"epochs": 3, "lr": 0.1}) for kind in (stopping(100.0), "plain"))
    assert all(same(a, b) for a, b in zip(ours.states, plain.states, strict=True))
    (note,) = ours.setup.notes
    assert "2 of 2 clients hold no validation rows" in note
    assert "never stop early" in note
    assert not plain.setup.notes
    assert not setup_of(CLIENTS, stopping(), stream=HELD).notes


@pytest.mark.parametrize(
    ("local", "total"),
    [
        # 4 training rows in batches of 2: 2 steps an epoch.
        ({"epochs": 2.5}, 5),
        ({"epochs": 1.2}, 2),
        ({"epochs": 1.3}, 3),
        ({"steps": 7}, 7),
    ],
)
def test_parts_of_an_epoch_add_up_to_the_steps_of_one_fit(local: dict[str, Any], total: int) -> None:
    # The small rate gains a little in every epoch, and with gamma 0 that is enough.
    parts = {"stream": {**HELD, "sizes": [6]}, "local": {**local, "lr": 1e-3}, "rounds": 1}
    assert steps(play(CLIENTS[:1], "plain", **parts)) == steps(play(CLIENTS[:1], stopping(0.0), **parts)) == [total]


def test_the_answer_tells_the_real_steps() -> None:
    # FedNova divides by them: goals 8 and -8, gains that stop client 0 after 3 epochs; client 1 has no validation
    # loss to gain, for its validation rows lie where it starts.
    rows: list[Rows] = [([[0.0]] * 4, [8.0] * 4), ([[0.0]] * 4, [-8.0, -8.0, 0.0, 0.0])]
    stream = {"kind": "test_early_stopping:Held", "sizes": [4, 4]}
    method = {"kind": "fedavg", "mean": "fednova"}
    run = play(rows, stopping(12.0), stream=stream, local={"epochs": 6}, method=method, rounds=1)
    assert steps(run) == [4]
    # Changes 7 in 3 steps and -4 in 1, shares 1/2: the mean change per step is 7/6 - 2, times 2 steps.
    assert run.bias() == pytest.approx((7 / 6 - 2) * 2)


def test_the_stacked_engine_agrees() -> None:
    case = Case(learner=stopping(0.02), local={"epochs": 4, "momentum": 0.5})
    serial = case.play(case.setup(), rounds=1)
    stacked = case.play(case.setup(), engine=Execution(kind="stacked"), rounds=1)
    pairs = zip(serial.last.bank.entries.values(), stacked.last.bank.entries.values(), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a.vector, b.vector, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("gamma", [-0.1, float("inf"), True])
def test_gamma_is_a_number_from_zero(gamma: Any) -> None:
    with pytest.raises(ConfigError, match="gamma"):
        setup_of(CLIENTS, {"kind": "early-stopping", "gamma": gamma})
