"""What is rejected, and what is only suspicious."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from shoal.bank import Buffers, Entry
from shoal.messages import Assignment, Part, Update
from shoal.screening import Screen, diverged, largest

NAN, INF = float("nan"), float("inf")
OLD = Entry(torch.ones(3), buffers=Buffers(torch.ones(2), torch.ones(1, dtype=torch.int64)))
GIVEN = Assignment(0, ("a",), entries={"a": OLD})
GOOD = Update({"a": Part(torch.zeros(3), OLD.buffers)}, weight=2.0, state={"n": {"x": [1.0, torch.zeros(2)]}})


def fault(update: Update, given: Assignment, births: bool = False) -> str | None:
    return Screen(births)(update, given)[0]


def suspicion(update: Update, given: Assignment) -> str | None:
    reason, doubt = Screen()(update, given)
    assert reason is None
    return doubt


def part(**changes: Any) -> Update:
    return replace(GOOD, parts={"a": replace(GOOD.parts["a"], **changes)})


def test_a_good_update_passes() -> None:
    assert fault(GOOD, GIVEN) is None
    assert fault(part(vector=None, buffers=Buffers(), extra={"g": torch.zeros(9)}), GIVEN) is None
    assert fault(part(mask=torch.tensor([True, False, True])), GIVEN) is None
    assert fault(part(base=torch.ones(3)), GIVEN) is None


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (replace(GOOD, weight=0.0), "weight"),
        (replace(GOOD, weight=-1.0), "weight"),
        (replace(GOOD, weight=NAN), "weight"),
        (replace(GOOD, weight=INF), "weight"),
        (replace(GOOD, note={"validation_loss": "low"}), "must be a number; got str"),
        (part(vector=torch.tensor([0.0, NAN, 0.0])), "the vector is not finite"),
        (part(vector=torch.tensor([0.0, 0.0, -INF])), "the vector is not finite"),
        (part(vector=torch.zeros(4)), "must have 3 numbers; got 4"),
        (part(vector=torch.zeros(1, 3)), "flat float32"),
        (part(vector=torch.zeros(3, dtype=torch.float64)), "flat float32"),
        (part(buffers=Buffers(torch.tensor([NAN, 0.0]), OLD.buffers.counters)), "a buffer is not finite"),
        (part(buffers=Buffers(torch.zeros(3), OLD.buffers.counters)), "buffers"),
        (part(buffers=Buffers(OLD.buffers.floats, torch.zeros(1))), "buffers"),
        (part(extra={"c": torch.tensor(INF)}), "extra 'c' is not finite"),
        (part(mask=torch.ones(2, dtype=torch.bool)), "mask"),
        (part(mask=torch.ones(3)), "mask"),
        (part(base=torch.ones(2)), "the base must be float32 and of the vector's size"),
        (part(base=torch.ones(3, dtype=torch.float64)), "the base must be float32"),
        (part(vector=None, base=torch.ones(3)), "the base must be"),
        (part(base=torch.tensor([0.0, NAN, 0.0])), "the base is not finite"),
        (replace(GOOD, state={"fisher": torch.tensor([0.0, NAN])}), "private state fisher is not finite"),
        (replace(GOOD, state={"deep": {"list": [1.0, {"x": NAN}]}}), "private state deep/list/1/x is not finite"),
        (replace(GOOD, state={"x": [object()]}), "private state x/0 is a object; a state holds"),
        (replace(GOOD, state={"tensor": 1}), "keys are strings other than 'tensor'"),
        (replace(GOOD, state={"a": {3: 1}}), "private state a/has the key 3"),
    ],
)
def test_bad_updates_are_rejected_with_the_reason(update: Update, message: str) -> None:
    assert message in str(fault(update, GIVEN))


def test_an_answer_for_an_entry_that_was_not_given() -> None:
    born = Update({"new": Part(torch.zeros(7))}, weight=1.0)
    assert "was given ['a']" in str(fault(born, GIVEN))
    assert fault(born, GIVEN, births=True) is None


def test_a_thousandfold_growth_is_suspicious() -> None:
    assert suspicion(part(vector=torch.tensor([0.0, -1001.0, 0.0])), GIVEN) is not None
    assert suspicion(part(vector=torch.tensor([0.0, -999.0, 0.0])), GIVEN) is None
    silent = replace(GIVEN, entries={"a": OLD.new(vector=torch.zeros(3))})
    assert suspicion(part(vector=torch.full((3,), 1e9)), silent) is None


@pytest.mark.parametrize("place", [0, 7, 999])
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_one_bad_value_is_found_anywhere(place: int, bad: float) -> None:
    values = torch.linspace(-1, 1, 1000)
    assert largest(values) == 1.0
    values[place] = bad
    assert not largest(values) < INF


def test_a_merge_that_is_not_finite_is_found() -> None:
    before = {"a": OLD, "b": OLD}
    bad = OLD.new(server={"v": torch.tensor([INF])})
    assert diverged(before, {"a": OLD, "b": OLD.new(weight=1.0)}) == []
    assert diverged(before, {"a": OLD, "b": bad}) == ["b"]
    assert diverged({"b": bad}, {"b": bad}) == []
