"""SVRG: each anchor by hand, in numpy, and by the minimum that it leads to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from learner_lab import CURVED, TWO, gradient, minimiser, play, same, setup_of

from shoal.errors import ConfigError
from shoal.messages import Group, Part
from shoal.randomness import Moment


def svrg(anchor: str, **settings: Any) -> dict[str, Any]:
    return {"kind": "svrg", "anchor": anchor, **settings}


def test_the_anchor_scaffold_is_scaffold():
    parts = {"rounds": 4, "local": {"lr": 0.1}, "participation": {"count": 2}}
    ours, theirs = play(CURVED, "svrg", **parts), play(CURVED, "scaffold", **parts)
    assert all(same(a, b) for a, b in zip(ours.states, theirs.states, strict=True))
    assert torch.equal(ours.bank["global"].extra["control/c"], theirs.bank["global"].extra["control/c"])
    with pytest.raises(ConfigError, match="plain SGD steps"):
        setup_of(TWO, "svrg", local={"momentum": 0.5})


NOISY = [([[0.0]] * 3, [1.0, 3.0, 8.0]), ([[0.0]] * 2, [-6.0, 1.0])]
"""Means of 4 and -2.5, with much noise."""


def test_the_local_anchor_takes_out_the_noise_of_the_batches():
    # Every row has the same curvature: (y - v) - (x - v) + (x - mean) = y - mean, whichever row v is drawn.
    run = play(NOISY, svrg("local"), local={"batch_size": 1})
    x = 0.0
    for round in (1, 2):
        ends = [4 + (x - 4) / 2**3, -2.5 + (x + 2.5) / 2**2]  # each step of 1/2 halves the way
        x = (3 * ends[0] + 2 * ends[1]) / 5
        assert run.bias(round) == pytest.approx(x, rel=1e-5)
    assert abs(play(NOISY, "plain", local={"batch_size": 1}).bias(1) - run.bias(1)) > 0.1


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_with_full_batches_the_local_anchor_is_the_plain_learner(optimizer):
    local = {"batch_size": 6, "steps": 4, "lr": 0.1, "optimizer": optimizer}
    run, plain = (play(CURVED, learner, local=local, rounds=3) for learner in (svrg("local"), "plain"))
    np.testing.assert_allclose(run.vector(), plain.vector(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("settings", "mean", "expected"), [({}, "weighted", -4 / 3), (None, "uniform", -0.625)])
def test_one_round_of_the_global_anchor_by_hand(settings, mean, expected):
    # From 0: gradients -2 (2 rows) and 4 (4 rows). By rows their mean is 2: client 0 goes to -1; client 1 to -1, and
    # along g(-1) - g(0) + 2 = 1 to -3/2; (2 * -1 + 4 * -3/2) / 6. Plainly it is 1: client 0 goes to -1/2; client 1
    # to -1/2, and along g(-1/2) - g(0) + 1 = 1/2 to -3/4; (-1/2 - 3/4) / 2.
    learner = svrg("global", **({"weights": "uniform"} if settings is None else settings))
    run = play(TWO, learner, rounds=1, method={"kind": "fedavg", "mean": mean})
    assert run.bias() == pytest.approx(expected, rel=1e-6)


def test_three_rounds_of_the_global_anchor_in_numpy():
    run = play(CURVED, svrg("global"), local={"lr": 0.1, "batch_size": 6, "steps": 3}, rounds=3)
    x, share = np.zeros(3), np.array([4, 6, 2]) / 12
    for round in (1, 2, 3):
        common = share @ np.stack([gradient(rows, x) for rows in CURVED])
        ends = []
        for rows in CURVED:
            y = x
            for _ in range(3):
                y = y - 0.1 * (gradient(rows, y) - gradient(rows, x) + common)
            ends.append(y)
        x = share @ np.stack(ends)
        np.testing.assert_allclose(run.vector(round), x, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("weights", ["rows", "uniform"])
def test_the_global_anchor_leads_to_the_minimum_of_its_own_mean(weights):
    # With batches of 2 and several steps: neither drift nor noise is left at the minimum.
    shares = [4, 6, 2] if weights == "rows" else [1, 1, 1]
    learner = svrg("global", weights=weights)
    run = play(CURVED, learner, local={"lr": 0.1, "epochs": 2}, rounds=200)
    np.testing.assert_allclose(run.vector(), minimiser(CURVED, shares), atol=2e-4)
    other = minimiser(CURVED, [1, 1, 1] if weights == "rows" else [4, 6, 2])
    assert np.abs(run.vector() - other).max() > 0.05


def test_draws_count_and_answers_without_a_gradient_do_not():
    gradients = {"svrg/gradient": torch.tensor([8.0, -2.0])}, {"svrg/gradient": torch.tensor([2.0, 4.0])}
    parts = (Part(None, extra=gradients[0]), Part(None), Part(None, extra=gradients[1], times=2))
    group = Group(parts, (1.0, 100.0, 3.0))
    for weights, expected in (("rows", [3.5, 2.5]), ("uniform", [4.0, 2.0])):
        setup = setup_of(TWO, svrg("global", weights=weights))
        entry = setup.method.start()["global"]
        found = setup.method.learner.extra("global", entry, entry, group, Moment(0, 1))
        assert found["svrg/gradient"].tolist() == pytest.approx(expected)
        assert setup.method.learner.extra("global", entry, entry, Group((Part(None),), (1.0,)), Moment(0, 1)) == {}
        assert setup.method.learner.extra("global", entry, entry, group, Moment(0, 1, 1)) == {"svrg/gradient": None}


def test_the_common_gradient_is_sent_once_and_not_kept():
    run = play(CURVED, svrg("global"), local={"lr": 0.1})
    size = 4 * 3  # of one model, for each client
    lines = [line for each in run.lines for line in each]
    # Down: the model, then the model with the gradient. Up: the gradient, then the model.
    assert [line["value"] for line in lines if line.get("metric") == "bytes_down"] == [3 * size] * 2
    assert [line["value"] for line in lines if line.get("metric") == "bytes_up"] == [2 * size] * 2
    assert not any(state.bank["global"].extra for state in run.states)


@pytest.mark.parametrize("anchor", ["local", "global"])
def test_an_adaptive_server_and_an_entry_per_task(anchor):
    method = {"kind": "fedavg", "per": "task", "server": {"kind": "adam", "lr": 0.3, "tau": 0.1}}
    parts = {"stream": {"tasks": 2}, "method": method, "local": {"batch_size": 6}}
    run = play(CURVED, svrg(anchor), rounds=1, **parts)
    # One full batch is one step along the gradient; clients 0 and 2 (4 and 2 rows) are at task 1, client 1 at task 0.
    slopes = [gradient(rows, np.zeros(3)) for rows in CURVED]
    for key, mean in (("task/0", slopes[1]), ("task/1", (4 * slopes[0] + 2 * slopes[2]) / 6)):
        delta = -0.5 * mean
        v = 0.99 * 0.01 + 0.01 * delta**2  # v starts at tau^2
        np.testing.assert_allclose(run.vector(key=key), 0.3 * 0.1 * delta / (np.sqrt(v) + 0.1), rtol=1e-5)


@pytest.mark.parametrize("anchor", ["global", "scaffold"])
def test_anchors_that_join_clients_need_a_server(anchor):
    method = {"kind": "learner_lab:Meeting"}
    with pytest.raises(ConfigError, match=r"Svrg .* has none"):
        setup_of(TWO, svrg(anchor), method=method)
    setup_of(TWO, svrg("local"), method=method)


def test_weights_go_with_the_global_anchor():
    with pytest.raises(ConfigError, match="anchor: global"):
        setup_of(TWO, svrg("local", weights="uniform"))


def test_nobody_trains_without_the_common_gradient():
    # All gradients come too late, and so there is none to train with: that is said, and no model changes.
    run = play(TWO, svrg("global"), clean=False, rounds=1, participation={"straggler_probability": 1.0})
    assert len(run.told("straggler")) == 2
    assert ["no gradient for entry 'global'" in line["reason"] for line in run.told("failed")] == [True, True]
    assert same(run.states[0], run.states[1])
