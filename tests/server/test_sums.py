"""`Sum` against the mean over kept answers, bit for bit, and against numpy where the plan did not hold."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from server_steps import bits, sent

from shoal.bank import Entry
from shoal.messages import Group, Part
from shoal.server.means import Weighted, average
from shoal.server.sums import BLOCK, Sum

WEIGHTS = (3.0, 60_000.0, 17.0, 0.25, 3.0, 250.0, 1e9)
CUTS = [(7,), (1, 6), (6, 1), (3, 2, 2), (1,) * 7]
"""How many of seven answers come together."""


def answers(size: int, masks: str) -> list[Part]:
    """Seven answers; a last coordinate that nobody sends where there are masks, and a first that one alone sends."""
    rng = np.random.default_rng(size)
    scale = 10.0 ** rng.integers(-6, 6, size)
    parts = []
    for client in range(7):
        mask = None
        if masks == "all" or (masks == "late" and client >= 4):
            mask = torch.from_numpy(rng.random(size) < 0.6)
            if masks == "all":
                mask[0], mask[-1] = client == 5, False
        values = (rng.normal(size=size) * scale).astype(np.float32)
        values[1] = -0.0
        part = sent(values, client)
        # What stands at a coordinate that was not sent may be anything.
        filled = part.vector if mask is None else torch.where(mask, part.vector, float("nan"))
        parts.append(Part(filled, mask=mask, client=client))
    return parts


def added(old: torch.Tensor, parts: list[Part], planned: tuple[float, ...], weights: tuple[float, ...], cut=(7,)):
    total = Sum(old, planned)
    begin = 0
    for count in cut:
        some = slice(begin, begin + count)
        if parts[some]:
            total.add([(part.vector, part.mask) for part in parts[some]], weights[some])
        begin += count
    return total.mean()


@pytest.mark.parametrize("masks", ["none", "all", "late"])
@pytest.mark.parametrize("size", [3, BLOCK + 5])
@pytest.mark.parametrize("cut", CUTS)
def test_as_planned_it_has_the_bits_of_the_mean_over_kept_answers(cut, size, masks):
    old, parts = torch.linspace(-1, 1, size), answers(size, masks)
    kept = average(Entry(old), Group(tuple(parts), WEIGHTS), WEIGHTS)
    assert bits(added(old, parts, WEIGHTS, WEIGHTS, cut)) == bits(kept)
    if masks == "all":
        assert float(kept[-1]) == 1.0  # the old value
        assert bits(kept[:1]) == bits(parts[5].vector[:1])


@pytest.mark.parametrize("there", [(0, 2, 3, 6), (1, 4), (5,)])
def test_who_stays_away_counts_for_nothing(there):
    parts = [answers(50, "none")[i] for i in there]
    weights = tuple(WEIGHTS[i] for i in there)
    values = np.stack([part.vector.numpy() for part in parts]).astype(np.float64)
    exact = np.average(values, axis=0, weights=weights)
    found = added(torch.zeros(50), parts, WEIGHTS, weights).numpy().astype(np.float64)
    assert (np.abs(found - exact) <= np.spacing(np.abs(exact).astype(np.float32)) + 1e-14 * np.abs(values).max(0)).all()


def test_another_weight_than_planned_is_the_one_that_counts():
    parts = [sent([0.0], 0), sent([8.0], 1)]
    assert float(added(torch.zeros(1), parts, (1.0, 1.0), (1.0, 3.0))) == 6.0  # 8 * 3 / 4


@pytest.mark.parametrize("scale", [1e-300, 1e308])
def test_huge_and_tiny_weights(scale):
    parts = [sent([1.0]), sent([2.0]), sent([4.0])]
    weights = (scale, scale, scale / 2)
    assert float(added(torch.zeros(1), parts, weights, weights)) == 2.0  # (1 + 2 + 4/2) / 2.5


@pytest.mark.parametrize("there", [7, 3, 1])
def test_equal_answers_come_back_bit_for_bit_whoever_is_missing(there):
    value = torch.tensor([0.1, -0.0, -1 / 3, 3.4028235e38, 1e-45])
    parts = [Part(value.clone(), client=i) for i in range(there)]
    assert bits(added(torch.ones(5), parts, WEIGHTS, WEIGHTS[:there])) == bits(value)


def test_without_an_answer_the_old_vector_stays():
    old = torch.tensor([1.0, 2.0])
    assert added(old, [], WEIGHTS, ()).tolist() == [1.0, 2.0]


def test_answers_are_not_changed_and_later_changes_of_theirs_do_not_count():
    first, second = torch.ones(3), torch.zeros(3)
    total = Sum(torch.zeros(3), (1.0, 1.0))
    total.add([(first, None)], [1.0])
    total.add([(second, torch.tensor([True, False, True]))], [1.0])
    assert total.mean().tolist() == [0.5, 1.0, 0.5]
    assert (first.tolist(), second.tolist()) == ([1.0] * 3, [0.0] * 3)


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
def test_weights_are_positive_and_finite(wrong):
    with pytest.raises(ValueError, match="all positive and finite"):
        added(torch.zeros(1), [sent([1.0])], (1.0,), (wrong,))
    # What was planned says nothing of who answers.
    assert float(added(torch.zeros(1), [sent([1.0]), sent([4.0])], (wrong, 1.0), (1.0, 2.0))) == 3.0


def test_a_class_with_a_mean_or_weights_of_its_own_is_not_added_up_unless_it_says_so():
    class Halved(Weighted):
        def weights(self, group):
            return [weight / 2 for weight in group.weights]

    class Said(Halved):
        streams = True

    class Other(Weighted):
        def combine(self, old, group):
            return old.vector

    assert [kind.streams for kind in (Weighted, Halved, Said, Other)] == [True, False, True, False]
