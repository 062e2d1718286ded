"""DAC against dense tables in numpy, with the measured first contact kept and overwritten."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from gossip_lab import Run, built, data_of, forward, play, weights_of

from shoal.bank import Entry
from shoal.errors import ConfigError
from shoal.gossip.similarities import Rising, similarities_of
from shoal.methods.dac import Dac
from shoal.randomness import Moment
from shoal.requests import Score

SEVEN = {"sizes": [12, 20, 9, 16, 24, 10, 14]}


def priors(run: Run, released: bool, rounds: int) -> list[np.ndarray]:
    """The dense priors after each round, from the models that the run had: only this arithmetic is done again."""
    n = run.setup.world.clients
    prior = np.full((n, n), 1 / (n - 1))
    np.fill_diagonal(prior, 0)
    sampled, found = np.zeros((n, n), int), []
    for number in range(1, rounds + 1):
        new, counts = prior.copy(), sampled.copy()
        for i, given in run.assigned(number).items():
            x, y = data_of(run, i)
            drawn = given.note["similar"]
            s = {k: 1 / forward(weights_of(run.vector(number - 1, k)), x, y)[0] for k in drawn}
            for k in drawn:
                new[i, k] = s[k]
                counts[i, k] += 1
            met = np.flatnonzero((sampled if released else counts)[i])
            for j in set(range(n)) - set(met) - {i}:
                who = [k for k in drawn if prior[k, j] > 0]
                if who:
                    new[i, j] = prior[max(who, key=lambda k: s[k]), j]
        prior, sampled = new, counts
        found.append(prior)
    return found


@pytest.mark.parametrize("rule", ["kept", "overwritten"])
def test_similarities_are_those_of_dense_tables(rule: str) -> None:
    method = {"kind": "dac", "contacts": 3, "first_contact": rule, "temperature": 2.0}
    run = play(stream=SEVEN, method=method, rounds=4)
    for number, expected in enumerate(priors(run, rule == "overwritten", 4), 1):
        for i in range(7):
            dense = np.full(7, 1 / 6)
            dense[i] = 0
            ids, values = similarities_of(run.state(number).bank[f"client/{i}"])
            assert i not in ids
            dense[ids] = values
            np.testing.assert_allclose(dense, expected[i], rtol=2e-4)


def test_in_the_first_round_the_released_code_keeps_only_what_nobody_else_speaks_of() -> None:
    """Everybody has 1/6 for everybody but itself, so all fresh numbers are lost; kept, there are three each."""
    for rule, known in (("kept", 3), ("overwritten", 0)):
        run = play(stream=SEVEN, method={"kind": "dac", "contacts": 3, "first_contact": rule}, rounds=1)
        for i in range(7):
            assert len(similarities_of(run.state(1).bank[f"client/{i}"])[0]) == known
        models = [run.vector(1, i) for i in range(7)]
        if rule == "kept":
            kept = models
    assert all(np.array_equal(a, b) for a, b in zip(kept, models, strict=True))  # the same contacts, the same mix


def test_all_layers_are_the_mean_by_rows_of_the_models_of_the_round_before() -> None:
    warm = play(rounds=0, method={"kind": "dac"}).states[-1]
    run = play(rounds=1, method={"kind": "dac", "contacts": 2}, local={"lr": 1e-30}, state=warm)
    run.states.insert(0, warm)
    sizes = [len(data_of(run, i)[1]) for i in range(5)]
    for i, given in run.assigned(1).items():
        who = [i, *given.note["similar"]]
        models = [run.vector(0, k) for k in who]
        expected = np.average(models, axis=0, weights=[sizes[k] for k in who])
        np.testing.assert_allclose(run.vector(1, i), expected, rtol=1e-4, atol=1e-6)


def test_contacts_follow_the_similarities_once_they_are_known() -> None:
    run = play(method={"kind": "dac", "contacts": 1, "temperature": 1000.0, "clip": None}, rounds=4)
    for i, given in run.assigned(4).items():
        ids, values = similarities_of(run.state(3).bank[f"client/{i}"])
        assert given.note["similar"] == [ids[np.argmax(values)]]


@pytest.mark.parametrize(("start", "share"), [("uniform", 1 / 6), ("zero", 0.0)])
def test_an_unknown_client_competes_with_the_start_value(start: str, share: float) -> None:
    """One client is known, at similarity 0: the other five are drawn exp(30 share) times as often, each."""
    method = built(stream=SEVEN, method={"kind": "dac", "initial_similarity": start, "temperature": 30.0}).method
    assert isinstance(method, Dac)
    own = Entry(torch.zeros(1), extra={"gossip/similarities": torch.tensor([[3.0], [0.0]])})
    drawn = [method.alike(own, Moment(0, r), 0, np.arange(1, 7), 1) for r in range(1, 601)]
    assert method.unknown == pytest.approx(share)
    p = 1 / (1 + 5 * math.exp(30 * share))
    assert scipy.stats.binomtest(drawn.count([3]), 600, p).pvalue > 0.001


def test_the_rising_temperature() -> None:
    rising = Rising()
    assert rising.at(0) == 1
    assert rising.at(1000) == pytest.approx(31)
    assert rising.at(5) == pytest.approx(60 / (1 + math.exp(-1)) - 29)
    resolved = built(method={"kind": "dac", "temperature": {"a": 10}}).config.method["temperature"]
    assert resolved == {"a": 10.0, "b": 0.2}


def test_batch_means_weigh_the_last_rows_more() -> None:
    """9 rows in batches of 4: (mean of 4 + mean of 4 + mean of 1) / 3."""
    method = {"kind": "dac", "contacts": 4, "loss_mean": "batches", "two_hop": False}
    run = play(method=method, local={"batch_size": 4}, stream={"sizes": [12, 20, 9, 16, 24], "held": 0}, rounds=1)
    x, y = data_of(run, 2)
    ids, values = similarities_of(run.state(1).bank["client/2"])
    assert ids.tolist() == [0, 1, 3, 4]
    for k, value in zip(ids, values, strict=True):
        w = weights_of(run.vector(0, int(k)))
        means = [forward(w, x[a:b], y[a:b])[0] for a, b in ((0, 4), (4, 8), (8, 9))]
        assert value == pytest.approx(3 / sum(means), rel=1e-4)


def by_accuracy(own: Entry, peer: Entry, found: Score) -> float:
    return found.accuracy - 2


def by_nothing(own: Entry, peer: Entry, found: Score) -> float:
    return float("nan")


def test_a_score_of_ones_own() -> None:
    run = play(method={"kind": "dac", "contacts": 4, "score": "test_dac:by_accuracy"}, rounds=1)
    ids, values = similarities_of(run.state(1).bank["client/3"])
    x, y = data_of(run, 3)
    for k, value in zip(ids, values, strict=True):
        w = weights_of(run.vector(0, int(k)))
        z = np.maximum(x @ w["A"].T + w["a"], 0) @ w["B"].T + w["b"]
        assert value == pytest.approx((z.argmax(1) == y).mean() - 2)


def test_a_score_that_is_no_number_fails_by_name() -> None:
    run = play(method={"kind": "dac", "contacts": 1, "score": "test_dac:by_nothing"}, rounds=1, clean=False)
    assert "a score is a finite number" in run.all(record="failed")[0]["reason"]


def by_too_much(own: Entry, peer: Entry, found: Score) -> float:
    return 1e39


def test_a_score_that_float32_cannot_hold_fails_by_name() -> None:
    run = play(method={"kind": "dac", "contacts": 1, "score": "test_dac:by_too_much"}, rounds=1, clean=False)
    assert "a score is a finite number of at most 3.4e+38" in run.all(record="failed")[0]["reason"]


def by_the_peer_alone(peer: Entry) -> float:
    return 1.0


def test_a_score_that_takes_other_arguments_is_refused_before_any_training() -> None:
    with pytest.raises(ConfigError, match=r"test_dac:by_the_peer_alone is called with \(own, peer, found\)"):
        built(method={"kind": "dac", "score": "test_dac:by_the_peer_alone"})


def test_an_unknown_score_is_refused() -> None:
    with pytest.raises(ConfigError, match="no score is called 'cosine'; known: inverse-loss"):
        built(method={"kind": "dac", "score": "cosine"})


def test_no_more_similarities_are_published_than_are_kept() -> None:
    run = play(stream=SEVEN, method={"kind": "dac", "contacts": 4, "kept": 2, "two_hop": False}, rounds=1)
    full = play(stream=SEVEN, method={"kind": "dac", "contacts": 4, "two_hop": False}, rounds=1)
    for key, entry in run.state(1).bank.entries.items():
        ids, values = similarities_of(full.state(1).bank[key])
        best = sorted(ids[np.argsort(-values)[:2]].tolist())
        assert similarities_of(entry)[0].tolist() == best
