"""HAST round by round against a loop in numpy with dense tables, as the papers write it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gossip_lab import Run, Weights, built, data_of, descended, flat, forward, mean, play, weights_of

from shoal.errors import ConfigError
from shoal.gossip.similarities import similarities_of
from shoal.methods.hast import Hast

LR, STEPS = 0.3, 2


class Loop:
    """All clients' models, priors and counts, moved on by one round at a time."""

    def __init__(self, run: Run, unknown: float) -> None:
        self.run, self.n = run, run.setup.world.clients
        self.sizes = [len(data_of(run, i)[1]) for i in range(self.n)]
        first = weights_of(run.vector(-1, 0))
        self.models = [descended(first, *data_of(run, i), STEPS, LR) for i in range(self.n)]
        self.prior = np.full((self.n, self.n), unknown)
        np.fill_diagonal(self.prior, 0)
        self.sampled = np.zeros((self.n, self.n), int)
        self.accepted: list[bool] = []

    def round(self, number: int, used: bool = False) -> None:
        drawn = self.run.assigned(number)
        models, priors = [], self.prior.copy()
        for i in range(self.n):
            random, similar = drawn[i].note["random"], drawn[i].note["similar"]
            models.append(self._client(i, random, similar, priors[i], used))
        self.models, self.prior = models, priors

    def _client(self, i: int, random: list[int], similar: list[int], prior: np.ndarray, used: bool) -> Weights:
        x, y = data_of(self.run, i)
        s = {k: 1 / max(forward(self.models[k], x, y)[0], 1e-10) for k in random}
        for k in random:
            prior[k] = s[k]
            self.sampled[i, k] += 1
        known = {j for k in random for j in range(self.n) if self.prior[k, j] > 0}
        for j in known - set(np.flatnonzero(self.sampled[i])) - {i}:
            best = max((k for k in random if self.prior[k, j] > 0), key=lambda k: s[k])
            prior[j] = self.prior[best, j]
        mixed = mean({k: self.models[k] for k in [i, *random]}, self.sizes)
        top = mean({k: mixed if k == i else self.models[k] for k in [i, *similar]}, self.sizes, "Bb")
        for k in similar:
            self.sampled[i, k] += 1
            if used:
                prior[k] = 1 / forward(self.models[k], x, y)[0]
        trained = descended({**mixed, **top}, x, y, STEPS, LR)
        tuned = descended(trained, x, y, STEPS, LR, "Bb")
        xv, yv = data_of(self.run, i, "validation")
        self.accepted.append(forward(tuned, xv, yv)[0] < forward(trained, xv, yv)[0])
        return tuned if self.accepted[-1] else trained


def check(run: Run, loop: Loop, number: int, unknown: float) -> None:
    for i in range(loop.n):
        np.testing.assert_allclose(run.vector(number, i), flat(loop.models[i]), rtol=2e-4, atol=2e-5)
        dense = np.full(loop.n, unknown)
        dense[i] = 0
        ids, values = similarities_of(run.state(number).bank[f"client/{i}"])
        dense[ids] = values
        np.testing.assert_allclose(dense, loop.prior[i], rtol=2e-4)
        counts = run.state(number).clients[i][f"gossip/contacted/client/{i}"]
        assert isinstance(counts, torch.Tensor)
        assert dict(zip(*counts.tolist(), strict=True)) == {
            int(j): int(loop.sampled[i, j]) for j in np.flatnonzero(loop.sampled[i])
        }


@pytest.mark.parametrize(("start", "unknown"), [("uniform", 0.25), ("zero", 0.0)])
@pytest.mark.parametrize("losses", ["discarded", "used"])
def test_rounds_are_those_of_a_loop_by_hand(start: str, unknown: float, losses: str) -> None:
    method = {"kind": "hast", "contacts": 1, "initial_similarity": start, "similar_losses": losses, "temperature": 3.0}
    run = play(method=method, rounds=5)
    loop = Loop(run, unknown)
    check_warmed = [flat(w) for w in loop.models]
    for i in range(5):
        np.testing.assert_allclose(run.vector(0, i), check_warmed[i], rtol=1e-4, atol=1e-5)
    for number in range(1, 6):
        loop.round(number, losses == "used")
        check(run, loop, number, unknown)
    assert 0 < sum(loop.accepted) < len(loop.accepted)  # both ends of the accept test


def test_the_similar_touch_the_segment_alone() -> None:
    """A local rate of nearly nothing: what is left is the mixing. R is everyone, so all features are the same."""
    frozen = {"lr": 1e-30}
    warm = play(rounds=0, method={"kind": "hast", "contacts": 4}).states[-1]
    for contacts, others in ((4, "all"), (2, "all"), (2, "others")):
        method = {"kind": "hast", "contacts": contacts, "random_phase": others, "finetune": "off"}
        run = play(rounds=1, method=method, local=frozen, state=warm)
        run.states.insert(0, warm)
        sizes = [len(data_of(run, i)[1]) for i in range(5)]
        models = [weights_of(warm.bank[f"client/{i}"].vector.double().numpy()) for i in range(5)]
        for i, given in run.assigned(1).items():
            mixed = mean({k: models[k] for k in [i, *given.note["random"]]}, sizes)
            base = {**mixed, **({} if others == "all" else {n: models[i][n] for n in "Bb"})}
            top = mean({k: base if k == i else models[k] for k in [i, *given.note["similar"]]}, sizes, "Bb")
            np.testing.assert_allclose(run.vector(1, i), flat({**base, **top}), rtol=1e-4, atol=1e-6)


def test_fine_tuning_leaves_the_features_alone_and_can_be_off_or_always() -> None:
    warm = play(rounds=0, method={"kind": "hast"}).states[-1]
    ends = {}
    for how in ("off", "always", "if_better"):
        run = play(rounds=1, method={"kind": "hast", "contacts": 2, "finetune": how}, state=warm)
        ends[how] = np.stack([run.states[-1].bank[f"client/{i}"].vector.numpy() for i in range(5)])
    features = slice(0, 25)
    assert np.array_equal(ends["off"][:, features], ends["always"][:, features])
    assert (ends["off"][:, 25:] != ends["always"][:, 25:]).any(1).all()
    for row, off, always in zip(ends["if_better"], ends["off"], ends["always"], strict=True):
        assert np.array_equal(row, off) or np.array_equal(row, always)


def test_a_bare_off_in_yaml_is_understood() -> None:
    assert built(method={"kind": "hast", "finetune": False}).config.method["finetune"] == "off"


def test_without_validation_rows_nothing_is_fine_tuned() -> None:
    stream = {"held": 0}
    a = play(stream=stream, method={"kind": "hast", "contacts": 2}, rounds=2)
    b = play(stream=stream, method={"kind": "hast", "contacts": 2, "finetune": "off"}, rounds=2)
    assert all(torch.equal(e.vector, b.states[-1].bank[k].vector) for k, e in a.states[-1].bank.entries.items())


def test_unknown_segments_are_refused_before_any_training() -> None:
    with pytest.raises(ConfigError, match=r"segment: model 'main' has no segment 'top'; it has .*'classifier', 'head'"):
        built(method={"kind": "hast", "segment": "top"})


def test_segments_of_ones_own() -> None:
    """Two layers at the end as a segment, which is what the papers call another depth."""
    segments = {"base": ["features.layer1"], "deep": ["features.layer2"], "top": ["classifier"]}
    setup = built(model={"hidden": [6, 5], "segments": segments}, method={"kind": "hast", "segment": ["deep", "top"]})
    method, space = setup.method, setup.world.models["main"].space
    assert isinstance(method, Hast)
    assert space.slices(method.segments) == [slice(space.segments["deep"].start, space.size)]
