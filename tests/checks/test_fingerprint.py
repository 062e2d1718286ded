"""Fingerprints and differences: to the bit, by content, and in words."""

from __future__ import annotations

import functools
import itertools
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from shoal.checks.fingerprint import difference, fingerprint


class Thing:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


@dataclass(frozen=True)
class Pair:
    first: Any
    second: Any


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (torch.tensor([0.0]), torch.tensor([-0.0])),
        (torch.tensor([1.0]), torch.tensor([1.0 + 2**-23])),
        (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64)),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (torch.zeros(0), torch.zeros(0, 2)),
        (np.zeros(2), np.zeros(2, dtype=np.float32)),
        ([1, 2], (1, 2)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1}, {"a": 1.0}),
        (1, True),
        ("1", 1),
        (Pair(1, [2]), Pair(1, [3])),
        ([[1], [2, 3]], [[1, 2], [3]]),
    ],
)
def test_different_values_differ(a: Any, b: Any) -> None:
    assert fingerprint(a) != fingerprint(b)
    if not isinstance(a, np.ndarray | int | str):
        if isinstance(a, dict) and a.get("a") == b.get("a") == 1 and len(a) == 1:
            return  # 1 and 1.0 are told apart by their types inside
        assert difference(a, b) is not None


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(6.0).view(2, 3).t(),
        lambda: {"a": [torch.tensor([float("nan")]), None, float("nan")]},
        lambda: Pair(torch.ones(3, dtype=torch.int64), ("x", {"deep": (1, 2.5)})),
    ],
)
def test_equal_values_are_equal(make: Any) -> None:
    assert fingerprint(make()) == fingerprint(make())
    assert difference(make(), make()) is None


def test_layout_and_sharing_are_no_content() -> None:
    square = torch.arange(4.0).view(2, 2)
    assert fingerprint(square.t()) == fingerprint(square.t().contiguous())
    shared = [1, 2]
    assert fingerprint([shared, shared]) == fingerprint([[1, 2], [1, 2]])
    held = torch.ones(2)
    assert fingerprint({"a": held, "b": held}) == fingerprint({"a": held, "b": held.clone()})


@pytest.mark.parametrize(
    ("thing", "use"),
    [
        (Thing(rng=random.Random(1)), lambda t: t.rng.random()),
        (Thing(rng=np.random.Generator(np.random.Philox(1))), lambda t: t.rng.random()),
        (Thing(rng=torch.Generator().manual_seed(1)), lambda t: torch.rand(1, generator=t.rng)),
        (Thing(count=itertools.count()), lambda t: next(t.count)),
        (Thing(cache={}), lambda t: t.cache.update(a=1)),
        (Thing(inner=Thing(seen=set())), lambda t: t.inner.seen.add(3)),
        (Thing(module=torch.nn.Linear(2, 1)), lambda t: t.module.weight.data.add_(1)),
        (Thing(module=torch.nn.BatchNorm1d(2)), lambda t: t.module(torch.ones(3, 2))),
        (Thing(module=torch.nn.Linear(2, 1)), lambda t: t.module.eval()),
        (Thing(rows=torch.arange(3)), lambda t: t.rows.add_(1)),
    ],
)
def test_use_shows_in_attributes(thing: Any, use: Any) -> None:
    before = fingerprint(thing)
    assert fingerprint(thing) == before
    use(thing)
    assert fingerprint(thing) != before


def test_a_value_inside_itself_ends() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    assert fingerprint(loop) == fingerprint(loop)


def test_a_difference_is_told_with_its_place() -> None:
    a = Pair({"global": [torch.tensor([1.0, 2.0, 4.0])]}, 1)
    b = Pair({"global": [torch.tensor([1.0, 2.5, 3.0])]}, 1)
    assert difference(a, b) == "first['global'][0]: 2 of 3 numbers differ, by up to 1"
    assert difference({"a": 1}, {"b": 1}) == "the value: keys ['a'] and ['b']"
    assert difference([1, "x"], [1, "y"]) == "[1]: 'x' and 'y'"
    assert difference(torch.zeros(2), torch.zeros(3)) == "the value: torch.float32 (2,) and torch.float32 (3,)"
    assert difference((1,), [1]) == "the value: tuple and list"
    assert difference([1], [1, 2]) == "the value: 1 and 2 items"


@dataclass(frozen=True)
class Square:
    side: int

    @functools.cached_property
    def area(self) -> int:
        return self.side**2


class Hiding(Thing):
    area = Square.area


def test_what_a_record_keeps_of_its_fields_is_no_change_of_it() -> None:
    square = Square(3)
    before = fingerprint(square)
    assert square.area == 9
    assert "area" in vars(square)
    assert fingerprint(square) == before != fingerprint(Square(4))
    assert fingerprint(Hiding(side=3)) != fingerprint(Hiding(side=3, area=9))  # of other objects it is one
