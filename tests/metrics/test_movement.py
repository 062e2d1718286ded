"""The cosine distance between two versions of an entry, in arithmetic of whole numbers."""

from __future__ import annotations

import math
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch
from measure_fakes import context, seen
from torch import nn

from shoal.bank import Bank, Entry
from shoal.metrics.movement import Movement
from shoal.parameters import ParameterSpace


class Tiny(nn.Module):
    """Two features in front, and a head of two: the vector is [front, front, head, head]."""

    def __init__(self, head=True):
        super().__init__()
        self.front = nn.Parameter(torch.zeros(2))
        if head:
            self.classifier = nn.Linear(2, 1, bias=False)


SPACE = ParameterSpace(Tiny())
MODELS = {"main": SimpleNamespace(space=SPACE), "headless": SimpleNamespace(space=ParameterSpace(Tiny(head=False)))}


def measure(before, after, trained, round=1):
    move = seen(round, after, before=before, trained=dict.fromkeys(trained, (0,)))
    lines, memory = Movement(context(models=MODELS)).observe(move, {})
    assert memory == {}
    return [(line.get("entry"), line["over"], line["value"]) for line in lines]


def made(**vectors):
    return Bank().put({key: Entry(torch.tensor(vector)) for key, vector in vectors.items()})


def test_over_all_and_over_the_head():
    before = made(a=[1.0, 0.0, 3.0, 4.0])
    after = before.put({"a": before["a"].new(vector=torch.tensor([1.0, 0.0, 4.0, 3.0]))})
    # All: 1 + 12 + 12 = 25 of 26. Head: 24 of 25.
    assert measure(before, after, ["a"]) == [
        ("a", "all", pytest.approx(1 / 26, rel=1e-5)),
        ("a", "head", pytest.approx(1 / 25, rel=1e-5)),
    ]


def test_opposite_and_merely_longer_vectors():
    before = made(a=[1.0, -2.0, 2.0, 0.0], b=[1.0, -2.0, 2.0, 0.0])
    after = before.put({"a": Entry(-before["a"].vector), "b": Entry(2 * before["b"].vector)})
    assert [value for _, _, value in measure(before, after, "ab")] == [2.0, 0.0, 2.0, 0.0]


def test_close_vectors_do_not_cancel():
    step = 2.0**-13
    before = made(a=[1.0, 1.0, 1.0, 1.0])
    after = before.put({"a": Entry(torch.tensor([1 + step, 1.0, 1.0, 1.0]))})
    s = Fraction(1, 2**13)
    dot, square = 4 + s, 4 * ((1 + s) ** 2 + 3)
    # 1 - dot / sqrt(square) = (square - dot^2) / (sqrt(square) (sqrt(square) + dot)); float32 alone would give 0.
    root = math.sqrt(square)
    expected = float(square - dot**2) / (root * (root + float(dot)))
    ((_, over, value), (_, _, head)) = measure(before, after, ["a"])
    assert (over, head) == ("all", 0.0)
    assert value == pytest.approx(expected, rel=1e-3)


def test_what_was_not_touched_has_no_line_and_neither_has_a_birth():
    before = made(a=[1.0, 0.0, 1.0, 0.0], b=[1.0, 0.0, 1.0, 0.0], c=[1.0, 0.0, 0.0, 1.0])
    copy = Entry(before["b"].vector.clone())
    after = before.put({"b": copy, "new": Entry(torch.ones(4)), "c": Entry(torch.tensor([1.0, 0.0, 1.0, 0.0]))})
    # c was not trained by that name, but the server put another client's answer there.
    assert [line[0] for line in measure(before, after, ["new"])] == ["c", "c"]


def test_an_entry_that_was_trained_and_did_not_turn_is_zero():
    before = made(a=[1.0, 0.0, 1.0, 0.0])
    after = before.put({"a": Entry(before["a"].vector.clone())})
    assert measure(before, after, ["a"]) == [("a", "all", 0.0), ("a", "head", 0.0)]
    # Trained, but the server kept the old vector: not touched.
    assert measure(before, before.put({"a": before["a"].new(weight=3.0)}), ["a"]) == []


def test_entries_that_cover_only_some_segments():
    front, head = ("features",), ("classifier",)
    before = Bank().put(
        {
            "front": Entry(torch.tensor([1.0, 0.0]), segments=front),
            "head": Entry(torch.tensor([1.0, 0.0]), segments=head),
            "loose": Entry(torch.tensor([1.0]), segments=()),
            "plain": Entry(torch.tensor([1.0, 0.0]), model="headless"),
        }
    )
    after = before.put({key: e.new(vector=-e.vector.flip(0)) for key, e in before.entries.items()})
    assert measure(before, after, list(before.entries)) == [
        ("front", "all", 1.0),
        ("head", "all", 1.0),
        ("plain", "all", 1.0),
        ("head", "head", 1.0),
    ]


@pytest.mark.parametrize("count", [32, 33])
def test_many_entries_are_one_mean(count):
    before = made(**{f"e{i}": [1.0, 0.0, 1.0, 0.0] for i in range(count)})
    turned = {f"e{i}": Entry(torch.tensor([0.0, 1.0, 0.0, 1.0] if i else [-1.0, 0.0, -1.0, 0.0])) for i in range(count)}
    move = seen(1, before.put(turned), before=before, trained=dict.fromkeys(turned, (0,)))
    lines, _ = Movement(context(models=MODELS)).observe(move, {})
    assert len(lines) == (64 if count == 32 else 2)
    mean = pytest.approx((2.0 + count - 1) / count)
    if count == 33:
        assert lines[0] == {"metric": "entry_cosine", "value": mean, "over": "all", "entries": 33}
    numbered = [{"round": 1, **line} for line in lines]
    assert Movement.summarise(numbered) == {"entry_cosine": {"all": mean, "head": mean}}


def test_the_summary_leaves_out_the_warm_up():
    lines = [
        {"round": r, "metric": "entry_cosine", "value": v, "over": "all", "entry": "a"} for r, v in enumerate([9, 1, 2])
    ]
    assert Movement.summarise(lines) == {"entry_cosine": {"all": 1.5, "head": None}}
    assert Movement.summarise([]) == {"entry_cosine": {"all": None, "head": None}}
