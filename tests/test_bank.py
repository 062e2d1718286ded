"""The bank: versions, retirement, bytes; the grouping of updates."""

from __future__ import annotations

import math

import pytest
import torch

from shoal import registry
from shoal.bank import Bank, Buffers, Entry
from shoal.messages import Assignment, Group, Part, Update, grouped
from shoal.methods.base import merge_buffers


def entry(n: int = 3) -> Entry:
    return Entry(torch.zeros(n))


def test_put_gives_versions_that_never_come_back() -> None:
    bank = Bank().put({"a": entry(), "b": entry()})
    assert (bank["a"].version, bank["b"].version) == (1, 2)
    after = bank.put({"a": bank["a"].new(weight=2.0), "b": bank["b"]})
    assert (after["a"].version, after["b"].version) == (3, 2)
    reborn = after.put({"a": None}).put({"a": entry()})
    assert reborn["a"].version == 4
    assert bank["a"].version == 1
    assert "a" not in after.put({"a": None}).entries


def test_put_replaces_numbers_of_memory_and_keeps_the_others() -> None:
    bank = Bank().put({}, record=1.0, seen=2).put({}, seen=3)
    assert bank.memory == {"record": 1.0, "seen": 3}


def test_bytes_count_vector_buffers_and_extra_but_not_the_server() -> None:
    full = Entry(
        torch.zeros(10),
        buffers=Buffers(torch.zeros(4), torch.zeros(2, dtype=torch.int64)),
        extra={"c": torch.zeros(10)},
        server={"m": torch.zeros(10)},
    )
    assert full.bytes == 4 * 10 + 4 * 4 + 8 * 2 + 4 * 10
    given = Assignment(0, ("a", "b", "a"), own=("b",), entries={"a": full, "b": full})
    assert given.bytes == full.bytes
    mask = torch.tensor([True, False] * 5)
    # Five sent numbers of four bytes, and ten bits for the mask.
    assert Part(torch.zeros(10), mask=mask).bytes == 5 * 4 + 2
    assert Part(None, extra={"g": torch.zeros(3)}).bytes == 12


def test_updates_are_grouped_by_entry_with_weights_and_the_mean_reported_loss() -> None:
    a, b, c = Part(torch.zeros(1)), Part(torch.ones(1)), Part(torch.ones(1))
    groups = grouped(
        [
            Update({"x": a}, weight=10, note={"validation_loss": 1.0}),
            Update({"x": b, "y": c}, weight=15, times=2, note={"validation_loss": 2.0}),
            Update({"y": a}, weight=5),
        ]
    )
    assert list(groups) == ["x", "y"]
    assert groups["x"].weights == (10.0, 30.0)
    assert groups["x"].reported == pytest.approx((10 * 1.0 + 30 * 2.0) / 40)
    assert groups["y"].weights == (30.0, 5.0)
    assert groups["y"].reported == 2.0
    assert math.isnan(grouped([Update({"x": a}, weight=1)])["x"].reported)


def test_a_bank_that_was_not_made_by_put_still_tells_changed_entries() -> None:
    bank = Bank().put({"a": entry(), "b": entry()}, seen=1)
    by_put = bank.put({"a": entry()})
    assert bank.followed_by(by_put) is by_put
    by_hand = bank.followed_by(Bank({"b": bank["b"], "a": bank["a"].new(weight=2.0), "c": entry()}))
    assert list(by_hand.entries) == ["b", "a", "c"]
    assert by_hand["b"] is bank["b"]
    assert {by_hand["a"].version, by_hand["c"].version} == {3, 4}
    assert (by_hand.clock, dict(by_hand.memory)) == (4, {})
    assert list(bank.followed_by(Bank({"a": bank["a"]})).entries) == ["a"]


@pytest.mark.parametrize(("kind", "expected"), [("weighted", 9.9), ("uniform", 5.0)])
def test_buffers_are_averaged_as_the_model_is(kind: str, expected: float) -> None:
    mean = registry.build("mean", {"kind": kind})
    parts = tuple(Part(torch.tensor([v]), Buffers(torch.tensor([v]))) for v in (0.0, 10.0))
    group = Group(parts, (1.0, 99.0))
    old = Entry(torch.zeros(1), buffers=Buffers(torch.zeros(1)))
    assert float(mean.combine(old, group)) == pytest.approx(expected)
    merged = merge_buffers(old.buffers, group, mean.weights(group))
    assert merged.floats is not None
    assert float(merged.floats) == pytest.approx(expected)
