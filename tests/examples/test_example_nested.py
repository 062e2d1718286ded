"""Need: a part around another of its kind. Here: a proximal term around any learner."""

from __future__ import annotations

import pytest
import torch
from example_lab import QUADRATICS, config, frozen, on_digits, play, prove, quadratics

from shoal.learners.base import Learner
from shoal.terms import Pull


class Proximal(Learner):
    """FedProx (Li et al. 2020) around another learner: every step is pulled to the model that was received."""

    def __init__(self, world, local, *, mu: float = 0.1, inner: Learner = {"kind": "plain"}):  # noqa: B006
        super().__init__(world, local)
        self.mu, self.inner, self.exchanges = mu, inner, inner.exchanges

    def fit(self, key, start, entry, client, **request):
        terms = (*request.pop("terms", ()), Pull(self.mu, start.vector))
        return (yield from self.inner.fit(key, start, entry, client, terms=terms, **request))

    def extra(self, key, old, new, group, when):
        return self.inner.extra(key, old, new, group, when)


def around(inner, **settings):
    return {"learner": {"kind": "test_example_nested:Proximal", "inner": {"kind": inner}, **settings}}


SCAFFOLD, SVRG = "test_example_scaffold:Scaffold", "test_example_svrg:Svrg"


@pytest.mark.parametrize("inner", ["plain", SCAFFOLD, SVRG])
def test_the_laws(inner):
    run = prove(config(local=around(inner), rounds=2))
    assert run.setup.config.local.learner["inner"]["kind"] == inner


@pytest.mark.parametrize("inner", [SCAFFOLD, SVRG])
def test_without_strength_it_is_the_inner_learner(inner):
    wrapped, alone = play(config(local=around(inner, mu=0.0))), play(config(local={"learner": {"kind": inner}}))
    assert frozen(wrapped.bank) == frozen(alone.bank)


def test_hand_numbers():
    # Client 1 alone, from 0, goal -4, two steps of 1/2 with mu 1: to -2, then 2 + 1 * (-2 - 0) = 0, so it stays.
    run = play(quadratics(local=around("plain", mu=1.0), participation=ONLY_1, rounds=1), QUADRATICS, zero=True)
    assert float(run.bank["global"].vector[1]) == -2
    # With SCAFFOLD inside, round 1 is the same; c_1 = (0 + 2) / (2/2) = 2 and c = 1, so the next steps see -1 more:
    # from -2: 2 - 1 + 0 = 1 to -5/2; then 3/2 - 1 - 1/2 = 0.
    run = play(quadratics(local=around(SCAFFOLD, mu=1.0), participation=ONLY_1, rounds=2), QUADRATICS, zero=True)
    assert torch.equal(run.bank["global"].vector[1], torch.tensor(-2.5))


ONLY_1 = {"count": 1, "probabilities": [0.0, 1.0]}


def test_on_digits(tmp_path):
    assert on_digits(tmp_path / "run", local=around(SCAFFOLD)).summary["acc"] > 0.5
