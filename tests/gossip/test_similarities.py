"""Sparse similarities: draws against their probabilities, estimates by two hops against dense tables."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings

from shoal.bank import Entry
from shoal.gossip.similarities import Similarities, draw, inverse_loss, similarities_of, two_hop
from shoal.requests import Score


def frequencies(known: Similarities, eligible: list[int], count: int, times: int, **how: float) -> dict[int, int]:
    rng = np.random.default_rng(3)
    found = dict.fromkeys(eligible, 0)
    for _ in range(times):
        drawn = draw(rng, np.array(eligible), known, count, how.get("temperature", 1.0), how.get("clip"))
        assert len(set(drawn)) == count
        for j in drawn:
            found[j] += 1
    return found


def test_one_contact_is_drawn_by_the_softmax() -> None:
    known = Similarities.of({1: 0.5, 4: 2.0, 6: 1.0, 9: 5.0}, unknown=0.25)  # 9 is not eligible
    eligible = [1, 2, 4, 6, 7]
    s = np.array([0.5, 0.25, 2.0, 1.0, 0.25])
    p = np.exp(1.5 * s) / np.exp(1.5 * s).sum()
    found = frequencies(known, eligible, 1, 4000, temperature=1.5)
    assert scipy.stats.chisquare(list(found.values()), 4000 * p).pvalue > 0.001


def test_two_contacts_are_drawn_one_after_the_other() -> None:
    known = Similarities.of({0: 1.0, 3: 2.0}, unknown=0.0)
    w = np.exp([1.0, 0.0, 0.0, 2.0])
    p = w / w.sum()
    # P(j is among two) = p_j + sum over i of p_i p_j / (1 - p_i)
    both = np.array([p[j] + sum(p[i] * p[j] / (1 - p[i]) for i in range(4) if i != j) for j in range(4)])
    found = frequencies(known, [0, 1, 2, 3], 2, 4000)
    assert np.abs(np.array(list(found.values())) / 4000 - both).max() < 0.03


@pytest.mark.parametrize("known", [{}, {0: 3.0, 1: 3.0, 2: 3.0, 3: 3.0, 4: 3.0}])
def test_equal_similarities_draw_uniformly(known: dict[int, float]) -> None:
    found = frequencies(Similarities.of(known, 0.25), [0, 1, 2, 3, 4], 2, 3000, temperature=30.0)
    assert scipy.stats.chisquare(list(found.values())).pvalue > 0.001


def test_the_clip_makes_all_above_it_alike() -> None:
    found = frequencies(Similarities.of({0: 20.0, 1: 1e10, 2: -5.0}), [0, 1, 2], 1, 2000, temperature=30.0, clip=20.0)
    assert found[2] == 0
    assert scipy.stats.chisquare([found[0], found[1]]).pvalue > 0.001


def test_huge_similarities_neither_overflow_nor_run_out() -> None:
    known = Similarities.of({0: 1e10, 1: 1e9, 2: 0.0})
    assert draw(np.random.default_rng(0), np.arange(4), known, 2, 30.0, None) == [0, 1]
    assert draw(np.random.default_rng(0), np.arange(4), known, 9, 30.0, None) == [0, 1, 2, 3]
    assert draw(np.random.default_rng(0), np.arange(0), known, 2, 30.0, None) == []


def dense(known: Similarities, n: int, me: int) -> np.ndarray:
    table = np.full(n, known.unknown)
    table[known.ids] = known.values
    table[me] = 0
    return table


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_two_hops_are_those_of_dense_tables(data: st.DataObject) -> None:
    n, me = 7, 0
    unknown = data.draw(st.sampled_from([0.0, 0.2]))
    value = st.sampled_from([0.0, 0.1, 0.3, 0.7, 1.5])

    def some(but: int) -> Similarities:
        return Similarities.of(
            data.draw(st.dictionaries(st.sampled_from([j for j in range(n) if j != but]), value)), unknown
        )

    contacts = data.draw(st.lists(st.integers(1, n - 1), min_size=1, max_size=3, unique=True))
    earlier = data.draw(st.lists(st.integers(1, n - 1), max_size=2, unique=True))
    s = {k: 1.0 + 0.1 * place for place, k in enumerate(contacts)}
    settled = sorted({me, *earlier, *(contacts if data.draw(st.booleans()) else [])})
    own, peers = some(me).joined(Similarities.of(s)), {k: some(k) for k in contacts}
    expected, tables = dense(own, n, me), {k: dense(peers[k], n, k) for k in contacts}
    for j in set(range(n)) - set(settled):
        who = [k for k in contacts if tables[k][j] > 0]
        if who:
            expected[j] = tables[max(who, key=lambda k: s[k])][j]
    found = two_hop(own, peers, s, np.array(settled))
    assert (np.diff(found.ids) > 0).all()
    np.testing.assert_array_equal(dense(found, n, me), expected)


def test_what_is_published_comes_back() -> None:
    known = Similarities.of({70_001: 0.25, 3: 1e10}, 0.5)
    entry = Entry(torch.zeros(1), extra={"gossip/similarities": known.tensor()})
    ids, values = similarities_of(entry)
    assert ids.tolist() == [3, 70_001]
    np.testing.assert_allclose(values, [1e10, 0.25], rtol=1e-7)
    assert similarities_of(Entry(torch.zeros(1)))[0].size == 0


@pytest.mark.parametrize(
    ("loss", "expected"), [(0.5, 2.0), (0.0, 1e10), (-1.0, 1e10), (float("inf"), 0.0), (float("nan"), 0.0)]
)
def test_one_over_the_loss(loss: float, expected: float) -> None:
    entry = Entry(torch.zeros(1))
    assert inverse_loss(entry, entry, Score(loss, 0.0, 1)) == pytest.approx(expected)
