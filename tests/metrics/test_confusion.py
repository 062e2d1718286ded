"""Confusion counts, worked out by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from measure_fakes import EMPTY, FakeMethod, FakeScore, FakeStream, bank, context, rows, seen, target

from shoal.metrics.confusion import COUNTS, Confusion, counts
from shoal.metrics.functions import NAN, Failed, measured


class Named(FakeStream):
    """Outputs are called by the target's ``names``, or all by the same."""

    dataset = SimpleNamespace(is_regression=False)
    names: ClassVar = {}

    def classes_of(self, labels):
        return self.names.get(labels.get("task"), ("cat", "dog", "7"))


def test_counts():
    outputs = torch.eye(3)[[0, 0, 1, 2, 2, 2]]
    assert counts(outputs, torch.tensor([0, 1, 1, 0, 2, 2])) == [[0, 0, 1], [0, 2, 1], [1, 0, 1], [1, 1, 1], [2, 2, 2]]
    assert measured([COUNTS], [(torch.full((1, 2), math.nan), torch.tensor([0]))]) == {COUNTS: Failed(NAN)}


def play(stream, method, table, round=3, last=True, every=1, bank_after=None):
    full = bank_after or bank(a=1)
    score = FakeScore(dict.fromkeys(table, (0.0, 0.0)), {key: {COUNTS: value} for key, value in table.items()})
    return Confusion(context(stream, method, every=every)).observe(seen(round, full, score, last=last), {})[0]


A = ((1.0,), 10)
B = ((1.0,), 20)


def test_one_record_per_target_with_original_names():
    stream = Named([target(rows(10, 5), task=0), target(rows(20, 2), task=1)])
    stream.names = {1: ("8", "9")}
    lines = play(stream, FakeMethod({0: [("a",)], 1: [("a",)]}), {A: [[0, 0, 4], [2, 1, 1]], B: [[1, 0, 2]]})
    common = {"record": "confusion", "entry": "a", "excluded": 0}
    assert lines == [
        {**common, "task": 0, "classes": ["cat", "dog", "7"], "counts": [[0, 0, 4], [2, 1, 1]]},
        {**common, "task": 1, "classes": ["8", "9"], "counts": [[1, 0, 2]]},
    ]


def test_a_target_that_cannot_be_scored_is_counted():
    targets = [target(rows(10, 5), task=0), target(EMPTY, task=1), target(rows(20, 2), task=2)]
    lines = play(Named(targets), FakeMethod({0: [("a",)], 1: [("a",)], 2: [("unborn",)]}), {A: Failed(NAN)})
    assert [(x["task"], x["entry"], x["excluded"], x["counts"]) for x in lines] == [
        (0, "a", 1, []),
        (1, None, 1, []),
        (2, None, 1, []),
    ]


def test_many_targets_are_summed_by_their_classes():
    targets = [target(rows(10 * c, 5), task=c) for c in range(1, 22)]
    stream = Named(targets)
    stream.names = {3: ("x", "y")}
    table = {((1.0,), 10 * c): [[0, 0, c], [2, 1, 1]] for c in range(1, 22)}
    table[(1.0,), 30] = [[1, 1, 5]]
    table[(1.0,), 50] = Failed(NAN)
    lines = play(stream, FakeMethod({c: [("a",)] for c in range(1, 22)}), table)
    total = sum(range(1, 22)) - 3 - 5
    assert lines == [
        {
            "record": "confusion",
            "targets": 19,
            "excluded": 1,
            "classes": ["cat", "dog", "7"],
            "counts": [[0, 0, total], [2, 1, 19]],
        },
        {"record": "confusion", "targets": 1, "excluded": 0, "classes": ["x", "y"], "counts": [[1, 1, 5]]},
    ]


@pytest.mark.parametrize(
    ("round", "last", "every", "written"),
    [(0, True, 1, 0), (2, False, 1, 1), (3, False, 1, 0), (4, False, 9, 1), (6, True, 1, 1), (6, True, 0, 0)],
)
def test_after_each_phase_and_at_the_end(round, last, every, written):
    stream = Named([target(rows(10, 5), task=0)], boundaries=(2, 4))
    lines = play(stream, FakeMethod({0: [("a",)]}), {A: [[0, 0, 5]]}, round, last, every)
    assert len(lines) == written


def test_none_for_real_values_or_too_many_classes():
    method = FakeMethod({0: [("a",)]})
    stream = Named([target(rows(10, 5), task=0)])
    stream.names = {0: tuple(map(str, range(1001)))}
    assert play(stream, method, {}) == []
    stream.names = {0: tuple(map(str, range(1000)))}
    assert len(play(stream, method, {A: [[0, 0, 5]]})) == 1
    stream.dataset = SimpleNamespace(is_regression=True)
    assert play(stream, method, {}) == []
