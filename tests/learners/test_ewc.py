"""EWC: linear models worked out in numpy, the closed form that many steps lead to, and what is kept where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from learner_lab import CURVED, Rows, Run, gradient, play, same, setup_of

from shoal.bank import State
from shoal.engine import Serial, one_torch_thread
from shoal.errors import ConfigError
from shoal.experiment import Experiment

FULL = {"batch_size": 100, "lr": 0.3}
"""One batch of all rows, so that their order is no matter."""


def ewc(**settings: Any) -> dict[str, Any]:
    return {"kind": "ewc", **settings}


def fisher(rows: Rows, at: np.ndarray) -> np.ndarray:
    """The mean over the rows of the squared gradient of each."""
    x = np.column_stack([np.asarray(rows[0], float), np.ones(len(rows[1]))])
    return np.mean(((x @ at - np.asarray(rows[1]))[:, None] * x) ** 2, axis=0)


def kept(run: Run, client: int, name: str, round: int = -1) -> np.ndarray:
    """The anchor or the Fisher information that a client holds."""
    state: Any = run.states[round].clients[client]["ewc/global"]
    return state["held"][name].double().numpy()


def rounds(clients: Sequence[Rows], count: int, steps: int, strength: float, decay: float) -> list[dict[str, Any]]:
    """The same in numpy: the entry after each round, and what every client holds."""
    entry, held = np.zeros(3), dict[int, tuple[np.ndarray, np.ndarray]]()
    found = []
    for _ in range(count):
        ends = []
        for i, rows in enumerate(clients):
            w = entry
            for _ in range(steps):
                w = w - 0.3 * gradient(rows, w)
                if i in held:
                    k = 0.3 * strength * held[i][1]
                    w = (w + k * held[i][0]) / (1 + k)
            before = decay * held[i][1] if i in held else 0.0
            held[i] = (w, fisher(rows, w) + before)
            ends.append(w)
        entry = np.average(ends, axis=0, weights=[len(rows[1]) for rows in clients])
        found.append({"entry": entry, "held": dict(held)})
    return found


@pytest.mark.parametrize(("strength", "decay"), [(0.7, 0.9), (50.0, 0.0), (5000.0, 1.0)])
def test_three_rounds_are_those_worked_out_in_numpy(strength: float, decay: float) -> None:
    run = play(CURVED, ewc(strength=strength, decay=decay), rounds=3, local={**FULL, "epochs": 3})
    expected = rounds(CURVED, 3, 3, strength, decay)
    for round in (1, 2, 3):
        np.testing.assert_allclose(run.vector(round), expected[round - 1]["entry"], rtol=2e-4, atol=1e-5)
        for client in range(3):
            anchor, information = expected[round - 1]["held"][client]
            np.testing.assert_allclose(kept(run, client, "anchor", round), anchor, rtol=2e-4, atol=1e-5)
            np.testing.assert_allclose(kept(run, client, "fisher", round), information, rtol=1e-3, atol=1e-5)
    free = play(CURVED, "plain", rounds=3, local={**FULL, "epochs": 3})
    assert same(run.states[1], free.states[1])  # nothing is held in the first round
    assert not same(run.states[2], free.states[2])


@pytest.mark.parametrize("strength", [0.5, 20.0])
def test_many_steps_lead_to_the_minimum_of_loss_and_penalty(strength: float) -> None:
    """``(H + strength diag F) w = b + strength diag F a`` from the normal equations of the loss."""
    one = play(CURVED[:1], ewc(strength=strength), rounds=1, local={**FULL, "steps": 2})
    a, f = kept(one, 0, "anchor"), kept(one, 0, "fisher")
    assert np.abs(f).min() > 1e-3
    rest = continued(CURVED[:1], ewc(strength=strength), one.states[1], steps=600)
    rows, values = CURVED[0]
    x = np.column_stack([np.asarray(rows, float), np.ones(len(values))])
    left = x.T @ x / len(x) + strength * np.diag(f)
    right = x.T @ np.asarray(values) / len(x) + strength * f * a
    np.testing.assert_allclose(rest, np.linalg.solve(left, right), rtol=1e-4, atol=1e-5)
    assert np.abs(gradient(CURVED[0], rest)).max() > 1e-2  # not where the loss alone leads


def continued(clients: Sequence[Rows], learner: Any, state: State, steps: int) -> np.ndarray:
    """The entry after one more round of so many steps."""
    setup = setup_of(clients, learner, rounds=2, local={**FULL, "steps": steps})
    loss = setup.config.local.loss
    with one_torch_thread():
        engine = Serial(setup.world.models, setup.stream.dataset, torch.device("cpu"), "float32", loss, {})
        after = Experiment(setup, engine).play(state).state
        engine.close()
    return after.bank["global"].vector.double().numpy()


def test_without_a_strength_it_is_the_plain_learner() -> None:
    held = play(CURVED, ewc(strength=0.0), rounds=3, local={"epochs": 2, "momentum": 0.5, "lr": 0.1})
    free = play(CURVED, "plain", rounds=3, local={"epochs": 2, "momentum": 0.5, "lr": 0.1})
    assert same(held.states[-1], free.states[-1])


@pytest.mark.parametrize("optimizer", [{}, {"momentum": 0.9}, {"optimizer": "adam"}])
def test_any_strength_is_stable(optimizer: dict[str, Any]) -> None:
    """As a gradient the penalty explodes at a thousandth of this."""
    run = play(CURVED, ewc(strength=1e7), rounds=6, local={"lr": 0.1, "epochs": 5, **optimizer})
    assert all(np.abs(run.vector(round)).max() < 10 for round in range(7))
    # What has Fisher information stays where the client left it.
    for client in range(3):
        away = kept(run, client, "anchor", 2) - kept(run, client, "anchor", 1)
        sure = kept(run, client, "fisher", 1) > 1e-3
        assert sure.any()
        assert np.abs(away[sure]).max() < 1e-2


def test_the_fisher_information_of_batches_is_the_square_of_their_gradients() -> None:
    run = play(CURVED, ewc(fisher="batch"), rounds=1, local=FULL)
    for client, rows in enumerate(CURVED):
        at = kept(run, client, "anchor")
        np.testing.assert_allclose(kept(run, client, "fisher"), gradient(rows, at) ** 2, rtol=1e-3, atol=1e-6)


def test_of_a_task_the_last_round_is_held_while_another_is_trained() -> None:
    """Clients change their task in every round: what is held is what was learnt in the round before."""
    tasks = {"stream": {"tasks": 2}, "rounds": 3, "local": {**FULL, "epochs": 3}}
    changing = play(CURVED, ewc(per="task", strength=5.0), **tasks)
    every = play(CURVED, ewc(per="round", strength=5.0), **tasks)
    assert same(changing.states[-1], every.states[-1])
    # With one task that never changes nothing is ever held.
    tasks["stream"] = {"tasks": 1}
    staying = play(CURVED, ewc(per="task", strength=5.0), **tasks)
    free = play(CURVED, "plain", **tasks)
    assert same(staying.states[-1], free.states[-1])
    assert staying.states[-1].clients[0]["ewc/global"]["held"] == {}  # type: ignore[index]


def test_each_entry_is_held_by_itself_and_nothing_is_sent() -> None:
    run = play(CURVED, ewc(), method={"per": "task"}, stream={"tasks": 2}, rounds=3, local=FULL)
    plain = play(CURVED, "plain", method={"per": "task"}, stream={"tasks": 2}, rounds=3, local=FULL)
    for state in run.states[-1].clients.values():
        assert set(state) == {"ewc/task/0", "ewc/task/1"}
        one, other = (state[name]["held"]["anchor"] for name in ("ewc/task/0", "ewc/task/1"))  # type: ignore[index]
        assert not torch.equal(one, other)
    assert all(entry.extra == {} and "ewc" not in str(entry.server) for entry in run.bank.entries.values())
    sent = [[x["value"] for lines in r.lines for x in lines if x.get("metric") == "bytes_up"] for r in (run, plain)]
    assert sent[0] == sent[1]
    assert all(sent[0])


def test_an_entry_for_each_task_is_held_when_a_client_comes_back_to_it() -> None:
    """Client i is at task (i + round) % 2: each entry is trained in rounds 1 and 3 by one client, with a round between.

    In round 3 it is held by what the client knew after round 1; with a task that never changes nothing is.
    """
    tasks = {"stream": {"tasks": 2}, "rounds": 3, "local": {**FULL, "epochs": 3}, "method": {"per": "task"}}
    held = play(CURVED[:1], ewc(per="task", strength=5.0), **tasks)
    plain = play(CURVED[:1], "plain", **tasks)
    assert same(held.states[2], plain.states[2])
    w = plain.states[1].bank["task/1"].vector.double().numpy()
    k = 0.3 * 5.0 * fisher(CURVED[0], w)
    end = w
    for _ in range(3):
        end = (end - 0.3 * gradient(CURVED[0], end) + k * w) / (1 + k)
    np.testing.assert_allclose(held.bank["task/1"].vector, end, rtol=2e-4, atol=1e-5)
    assert np.abs(plain.bank["task/1"].vector.double().numpy() - end).max() > 1e-2
    tasks["stream"] = {"tasks": 1}
    staying, free = (play(CURVED[:1], learner, **tasks) for learner in (ewc(per="task"), "plain"))
    assert same(staying.states[-1], free.states[-1])


def test_tasks_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ConfigError, match="no tasks"):
        setup_of(CURVED, ewc(per="task"))
    with pytest.raises(ConfigError, match="decay"):
        setup_of(CURVED, ewc(decay=1.5))
