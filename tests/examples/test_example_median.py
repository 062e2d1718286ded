"""Need: another way to make one vector of many. Here: the median of every coordinate."""

from __future__ import annotations

import statistics

import torch
from example_lab import config, on_digits, play, prove

from shoal.bank import Entry
from shoal.learners.base import Learner
from shoal.messages import Group, Part
from shoal.server.base import Mean


class Median(Mean):
    """The median over those who sent the coordinate; weights count for nothing. (Yin et al. 2018)"""

    def combine(self, old, group):
        nan = torch.full_like(old.vector, float("nan"))
        sent = [p.vector if p.mask is None else torch.where(p.mask, p.vector, nan) for p in group.parts]
        middle = torch.stack(sent).nanquantile(0.5, dim=0)
        return torch.where(middle.isnan(), old.vector, middle)


class Loud(Learner):
    """Client 0 sends 100 times its change."""

    def fit(self, key, start, entry, client, **request):
        part, state = yield from super().fit(key, start, entry, client, **request)
        factor = 100 if client.id == 0 else 1
        return Part(start.vector + factor * (part.vector - start.vector), part.buffers), state


MEDIAN = {"kind": "fedavg", "mean": {"kind": "test_example_median:Median"}}


def test_the_laws():
    prove(config(method=MEDIAN))


def test_against_the_statistics_module_with_odd_and_even_counts_and_masks():
    torch.manual_seed(0)
    vectors = torch.randn(4, 6).tolist()
    masks = [[True] * 6, [True, False, False, True, True, False], [True, False, True, True, False, False]]
    masks += [[False, False, True, True, True, False]]
    old = Entry(torch.full((6,), 7.0))
    parts = tuple(Part(torch.tensor(v), mask=torch.tensor(m)) for v, m in zip(vectors, masks, strict=True))
    parts = (Part(parts[0].vector), *parts[1:])
    found = Median().combine(old, Group(parts, (1.0, 5.0, 2.0, 9.0)))
    rows = [[True] * 6, *masks[1:]]
    sent = [[v[i] for v, m in zip(vectors, rows, strict=True) if m[i]] for i in range(6)]
    torch.testing.assert_close(found, torch.tensor([statistics.median(values) for values in sent]))
    none = Group((Part(parts[0].vector, mask=torch.zeros(6, dtype=torch.bool)),), (1.0,))
    assert torch.equal(Median().combine(old, none), old.vector)
    same = Group((parts[0],) * 4, (1.0, 2.0, 3.0, 4.0))
    assert torch.equal(Median().combine(old, same), parts[0].vector)


def test_one_loud_client_moves_the_mean_but_not_the_median():
    loud = {"learner": {"kind": "test_example_median:Loud"}}
    raw = {"rounds": 1, "stream": {"sizes": [40, 40, 40, 40, 40]}}
    moved = {}
    for name, method in (("mean", {"kind": "fedavg"}), ("median", MEDIAN)):
        quiet, noisy = play(config(method=method, **raw)), play(config(method=method, local=loud, **raw))
        before = quiet.states[0].bank["global"].vector
        moved[name] = [float((run.bank["global"].vector - before).norm()) for run in (quiet, noisy)]
    assert moved["mean"][1] > 10 * moved["mean"][0]
    assert moved["median"][1] < 2 * moved["median"][0]


def test_on_digits(tmp_path):
    assert on_digits(tmp_path / "run", method=MEDIAN).summary["acc"] > 0.5
