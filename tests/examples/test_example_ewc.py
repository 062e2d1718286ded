"""Needs: curvature at the client, and a penalty that is stable at any strength. Here: EWC, online."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from example_lab import config, digits, frozen, on_digits, play, prove

from shoal.data.dataset import inputs
from shoal.learners.base import Learner
from shoal.messages import Part
from shoal.requests import Gradient, Served
from shoal.terms import Hold, Pull


class Ewc(Learner):
    """Kirkpatrick et al. (2017), online: when its task changes, a client holds what it knew, by the Fisher information.

    ``implicit`` solves the penalty after each step; otherwise it is a gradient, as in the paper's formula.
    """

    def __init__(self, world, local, *, strength: float = 5000.0, implicit: bool = True):
        super().__init__(world, local)
        self.strength = strength
        self.penalty = Hold if implicit else Pull

    def fit(self, key, start, entry, client, **request):
        held, last = (client.state.get(f"ewc/{name}/{key}") for name in ("held", "last"))
        if last is not None and last["task"] != client.task:
            fisher = last["fisher"] if held is None else (last["fisher"] + held["count"] * held["fisher"])
            count = 1 if held is None else held["count"] + 1
            held = {"anchor": last["vector"], "fisher": fisher / count, "count": count}
        fit = self.request(start, client, **request)
        if held is not None:
            fit = replace(fit, terms=(*fit.terms, self.penalty(self.strength * held["fisher"], held["anchor"])))
        result = yield fit
        at = Served(start.model, result.vector, result.buffers)
        fisher = yield Gradient(at, client.train, power=2, per="row")
        last = {"task": client.task, "vector": result.vector, "fisher": fisher}
        part = Part(result.vector, result.buffers, steps=result.steps, loss=result.loss)
        return part, {f"ewc/held/{key}": held, f"ewc/last/{key}": last}


TASKS = {"kind": "tasks", "tasks": 3, "by": "class", "order": "synchronous", "clients": 2}


def ewc(**settings):
    learner = {"kind": "test_example_ewc:Ewc", **settings}
    return config(stream=TASKS, rounds=6, local={"lr": 0.05, "epochs": 5, "learner": learner})


def test_the_laws():
    run = prove({**ewc(), "rounds": 3})
    assert run.states[-1].clients[0]["ewc/held/global"]["count"] == 2


def test_the_fisher_information_is_the_mean_squared_gradient_of_single_rows():
    run = play(ewc())
    state, rows = run.states[1].clients[0], run.setup.stream.holding(0, 1).train
    total = 0
    for row in rows:
        module = run.setup.world.models["main"].build()
        torch.nn.utils.vector_to_parameters(state["ewc/last/global"]["vector"], module.parameters())
        F.cross_entropy(module(inputs(digits().batch(row[None]))), digits().wanted(row[None])).backward()
        total = total + torch.cat([p.grad.reshape(-1) for p in module.parameters()]) ** 2
    torch.testing.assert_close(state["ewc/last/global"]["fisher"], total / len(rows), rtol=1e-3, atol=1e-9)


def largest(run):
    return max(float(state.bank["global"].vector.abs().max()) for state in run.states)


@pytest.mark.parametrize("strength", [100.0, 5000.0])
def test_the_implicit_penalty_stays_bounded_where_the_gradient_explodes(strength):
    assert largest(play(ewc(strength=strength))) < 2
    exploded = play(ewc(strength=strength, implicit=False), clean=False)
    if strength == 100:  # every value stays finite, so only a warning tells
        assert exploded.all(record="warning")
        assert largest(exploded) > 1e10
    else:  # infinite within one fit
        assert exploded.all(record="rejected")


def test_both_forms_agree_while_the_strength_is_small():
    free, held, pulled = (
        play(ewc(**s)) for s in ({"strength": 0}, {"strength": 3}, {"strength": 3, "implicit": False})
    )
    apart = float((held.bank["global"].vector - pulled.bank["global"].vector).norm())
    moved = float((held.bank["global"].vector - free.bank["global"].vector).norm())
    assert 0 < 5 * apart < moved


def test_a_strength_of_zero_is_plain_training():
    plain = play(config(stream=TASKS, rounds=6, local={"lr": 0.05, "epochs": 5}))
    assert frozen(play(ewc(strength=0.0)).bank) == frozen(plain.bank)


def test_parameters_that_mattered_move_less():
    free, held = play(ewc(strength=0.0)), play(ewc(strength=5000.0))
    numbers = held.states[3].clients[0]["ewc/held/global"]
    fisher, anchor = numbers["fisher"], numbers["anchor"]
    top = fisher > fisher.quantile(0.9)
    away = [(run.states[4].bank["global"].vector - anchor)[top].norm() for run in (free, held)]
    assert away[1] < 0.5 * away[0]


def test_on_digits(tmp_path):
    learner = {"kind": "test_example_ewc:Ewc", "strength": 100.0}
    stream = {"kind": "tasks", "tasks": 2, "by": "class", "order": "synchronous", "clients": 4}
    result = on_digits(tmp_path / "run", stream=stream, local={"learner": learner})
    assert result.summary["acc"] > 0.1
