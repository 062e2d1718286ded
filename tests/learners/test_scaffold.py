"""SCAFFOLD: variates and models by hand and in numpy, with partial participation and unequal numbers of steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from learner_lab import CURVED, TWO, Run, drawn, gradient, minimiser, play, same, setup_of

from shoal.errors import ConfigError
from shoal.messages import Client, Group, Part
from shoal.randomness import Moment
from shoal.requests import Fit, FitResult, Gradient, Optimizer, Served


def scaffold(option: str = "II") -> dict[str, Any]:
    return {"kind": "scaffold", "option": option}


def control(run: Run, round: int = -1, key: str = "global") -> np.ndarray:
    return run.states[round].bank[key].extra["control/c"].double().numpy()


def own(run: Run, client: int, round: int = -1, key: str = "global") -> np.ndarray:
    found = run.states[round].clients.get(client, {}).get(f"control/{key}")
    return np.zeros_like(run.vector(key=key)) if found is None else found.double().numpy()


# Client 0 has the loss (b - 2)^2 / 2 and takes one step of 1/2, client 1 has (b + 4)^2 / 2 and takes two.
BY_HAND = {
    # 1, client 0 from 0: step along -2; c_0 = 0 - 0 + (0 - 1) / (1/2) = -2, and c = -2/2: divided by both clients.
    # 2, client 1 from 1: 5 - 0 - 1 = 4 to -1, then 3 - 0 - 1 = 2 to -2; c_1 = 0 + 1 + 3 / (2/2) = 4, c = -1 + 4/2.
    # 3, client 0 from -2: -4 + 2 + 1 = -1 to -3/2; c_0 = -2 - 1 - (1/2) / (1/2) = -4, c = 1 + (-4 + 2)/2.
    "II": [(1, -2, 0, -1), (-2, -2, 4, 1), (-1.5, -4, 4, 0)],
    # 1, the same step; c_0 is the gradient at 0, -2, and c = -1.
    # 2, the same two steps from 1; c_1 is the gradient at 1, 5, and c = -1 + 5/2.
    # 3, client 0 from -2: -4 + 2 + 3/2 = -1/2 to -7/4; c_0 is the gradient at -2, -4, and c = 3/2 + (-4 + 2)/2.
    "I": [(1, -2, 0, -1), (-2, -2, 5, 1.5), (-1.75, -4, 5, 0.5)],
}


@pytest.mark.parametrize("option", BY_HAND)
def test_three_rounds_by_hand_with_one_of_two_clients(option):
    seed = drawn(2, 3, [[0], [1], [0]], count=1)
    run = play(TWO, scaffold(option), seed=seed, rounds=3, participation={"count": 1})
    for round, expected in enumerate(BY_HAND[option], start=1):
        found = (run.bias(round), own(run, 0, round)[1], own(run, 1, round)[1], control(run, round)[1])
        assert found == expected


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize(("mean", "rate"), [("uniform", 1.0), ("weighted", 0.5)])
def test_three_rounds_in_numpy_with_all_clients(option, mean, rate):
    # Full batches (the largest client has 6 rows), so that the order of the rows is no matter; 3 steps each.
    method = {"kind": "fedavg", "mean": mean, "server": {"kind": "sgd", "lr": rate}}
    run = play(CURVED, scaffold(option), local={"lr": 0.1, "batch_size": 6, "steps": 3}, method=method, rounds=3)
    x, c, variates = np.zeros(3), np.zeros(3), [np.zeros(3)] * 3
    share = np.array([1, 1, 1]) / 3 if mean == "uniform" else np.array([4, 6, 2]) / 12
    for round in (1, 2, 3):
        ends, news = [], []
        for rows, mine in zip(CURVED, variates, strict=True):
            y = x
            for _ in range(3):
                y = y - 0.1 * (gradient(rows, y) - mine + c)
            ends.append(y)
            news.append(gradient(rows, x) if option == "I" else mine - c + (x - y) / (3 * 0.1))
        x = x + rate * (share @ np.stack(ends) - x)
        c = c + np.mean([new - mine for new, mine in zip(news, variates, strict=True)], 0)
        variates = news
        np.testing.assert_allclose(run.vector(round), x, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(control(run, round), c, rtol=1e-4, atol=1e-5)
        for client in range(3):
            np.testing.assert_allclose(own(run, client, round), variates[client], rtol=1e-4, atol=1e-5)


def test_with_one_full_batch_both_options_are_one():
    local = {"lr": 0.2, "batch_size": 6}
    one, two = (play(CURVED, scaffold(option), local=local, rounds=4) for option in ("I", "II"))
    np.testing.assert_allclose(one.vector(), two.vector(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(control(one), control(two), rtol=1e-4, atol=1e-5)


def test_the_first_round_is_federated_averaging_and_the_second_is_not():
    plain, corrected = play(CURVED, "plain", local={"lr": 0.1}), play(CURVED, scaffold(), local={"lr": 0.1})
    assert [same(a, b) for a, b in zip(plain.states, corrected.states, strict=True)] == [True, True, False]


@pytest.mark.parametrize("option", ["I", "II"])
def test_many_local_steps_still_lead_to_the_minimum_of_the_plain_mean(option):
    # Also with a mean weighted by rows: c is the plain mean of all gradients, and c is what all steps follow.
    rounds, local = 150, {"lr": 0.2, "batch_size": 6, "steps": 5}
    wanted = minimiser(CURVED, [1, 1, 1])
    run = play(CURVED, scaffold(option), local=local, rounds=rounds)
    np.testing.assert_allclose(run.vector(), wanted, atol=2e-4)
    plain = play(CURVED, "plain", local=local, rounds=rounds, method={"kind": "fedavg", "mean": "uniform"})
    assert np.abs(plain.vector() - wanted).max() > 0.05


@pytest.mark.parametrize("option", ["I", "II"])
def test_c_is_the_mean_of_all_variates_whoever_was_drawn_or_late(option):
    participation = {"count": 2, "straggler_probability": 0.3}
    run = play(CURVED, scaffold(option), clean=False, rounds=8, local={"lr": 0.1}, participation=participation)
    late = {(line["round"], line["client"]) for line in run.told("straggler")}
    took = [set(line["participants"]) for line in run.told("round")]
    assert late
    for round in range(1, 9):
        before, after = ([own(run, i, r) for i in range(3)] for r in (round - 1, round))
        for client in range(3):
            kept = client not in took[round - 1] or (round, client) in late
            assert np.array_equal(before[client], after[client]) == kept
        if "control/c" in run.states[round].bank["global"].extra:
            np.testing.assert_allclose(control(run, round), np.mean(after, 0), rtol=1e-4, atol=1e-5)


def test_a_client_that_is_drawn_twice_counts_once():
    participation = {"count": 2, "probabilities": [0.0, 1.0]}
    run = play(TWO, scaffold(), rounds=1, participation=participation)
    # Client 1 from 0: to -2, then 2 to -3; c_1 = (0 + 3) / (2/2) = 3, and c = 3/2.
    assert run.lines[0][0]["participants"] == [1]
    assert (run.bias(), own(run, 1)[1], control(run)[1]) == (-3, 3, 1.5)


def test_parts_without_a_change_leave_c_alone():
    learner = setup_of(TWO, scaffold()).method.learner
    entry = setup_of(TWO, scaffold()).method.start()["global"].new(extra={"control/c": torch.tensor([4.0, -4.0])})
    bare, change = Part(entry.vector), Part(entry.vector, extra={"control/delta": torch.tensor([2.0, 6.0])})
    assert learner.extra("global", entry, entry, Group((bare,), (1.0,)), Moment(0, 1)) == {}
    extra = learner.extra("global", entry, entry, Group((bare, change), (1.0, 5.0)), Moment(0, 1))
    assert extra["control/c"].tolist() == [5.0, -1.0]


@pytest.mark.parametrize("option", ["I", "II"])
def test_parameters_that_are_not_trained_keep_their_variates(option):
    # A model with one hidden layer; of the variates of its features nothing may change.
    setup = setup_of(CURVED, scaffold(option), model={"hidden": [2]})
    space, entry = setup.world.models["main"].space, setup.method.start()["global"]
    mine, shared = torch.full((space.size,), 3.0), torch.full((space.size,), 1.0)
    entry = entry.new(extra={"control/c": shared})
    client = Client(0, Moment(0, 1), torch.arange(4), torch.arange(0), {"control/k": mine})
    program = setup.method.learner.fit("k", Served.of(entry), entry, client, segments=("classifier",))
    asked = next(program)
    if option == "I":
        assert isinstance(asked, Gradient)
        assert asked.rows.tolist() == [0, 1, 2, 3]
        asked = program.send(torch.full((space.size,), 7.0))
    assert isinstance(asked, Fit)
    assert asked.terms[-1].by.tolist() == [-2.0] * space.size
    with pytest.raises(StopIteration) as stopped:
        program.send(FitResult(entry.vector - 1, entry.buffers, 4, 8, 0.5))
    part, state = stopped.value.value
    # Option II: 3 - 1 + 1 / (4 * 1/2) = 5/2.
    expected = torch.full((space.size,), 3.0)
    expected[space.slice_of("classifier")] = 7.0 if option == "I" else 2.5
    assert torch.equal(state["control/k"], expected)
    assert torch.equal(part.extra["control/delta"], expected - 3)


@pytest.mark.parametrize("local", [{"momentum": 0.9}, {"optimizer": "adam"}, {"optimizer": "adamw"}])
def test_option_ii_is_for_plain_steps(local):
    with pytest.raises(ConfigError, match="plain SGD steps"):
        setup_of(TWO, scaffold(), local=local)
    local = {**local, "lr": 0.1}
    run = play(CURVED, scaffold("I"), local=local, rounds=1)
    # A variate of option I is a gradient, whatever the steps are.
    for client, rows in enumerate(CURVED):
        np.testing.assert_allclose(own(run, client), gradient(rows, np.zeros(3)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("change", [{"optimizer": Optimizer("adam")}, {"optimizer": Optimizer(momentum=0.5)}])
def test_a_method_that_asks_for_other_steps_is_told(change):
    setup = setup_of(TWO, scaffold())
    entry, client = setup.method.start()["global"], Client(0, Moment(0, 1), torch.arange(2), torch.arange(0))
    with pytest.raises(ValueError, match="plain SGD steps"):
        next(setup.method.learner.fit("global", Served.of(entry), entry, client, **change))


def test_without_a_step_the_variate_stays():
    setup = setup_of(TWO, scaffold())
    entry, mine = setup.method.start()["global"], torch.tensor([1.0, -5.0])
    client = Client(0, Moment(0, 1), torch.arange(2), torch.arange(0), {"control/global": mine})
    entry = entry.new(extra={"control/c": torch.tensor([2.0, 2.0])})
    program = setup.method.learner.fit("global", Served.of(entry), entry, client)
    next(program)
    with pytest.raises(StopIteration) as stopped:
        program.send(FitResult(entry.vector, entry.buffers, 0, 0, 0.5))
    part, state = stopped.value.value
    assert state["control/global"].tolist() == [1.0, -5.0]
    assert part.extra["control/delta"].tolist() == [0.0, 0.0]


def test_an_adaptive_server_and_an_entry_per_task():
    method = {"kind": "fedavg", "per": "task", "server": {"kind": "adam", "lr": 0.3, "tau": 0.1}}
    parts = {"stream": {"tasks": 2}, "method": method, "rounds": 3, "local": {"lr": 0.1}}
    run = play(CURVED, scaffold(), **parts)
    for key in ("task/0", "task/1"):
        variates = [own(run, client, key=key) for client in range(3)]
        assert all(variate.any() for variate in variates)
        np.testing.assert_allclose(control(run, key=key), np.mean(variates, 0), rtol=1e-4, atol=1e-5)
    # After round 1 client 0, at task 1, knows that task alone, and task 0 knows client 1 alone: c is a third of c_1.
    assert set(run.states[1].clients[0]) == {"control/task/1"}
    np.testing.assert_allclose(control(run, 1, "task/0"), own(run, 1, 1, "task/0") / 3, rtol=1e-5)


def test_bytes_down_count_c_and_bytes_up_its_change():
    run = play(CURVED, scaffold(), local={"lr": 0.1})
    size = 4 * 3  # of one model, for each client
    lines = [line for each in run.lines for line in each]
    assert [line["value"] for line in lines if line.get("metric") == "bytes_down"] == [size, 2 * size]
    assert [line["value"] for line in lines if line.get("metric") == "bytes_up"] == [2 * size, 2 * size]
