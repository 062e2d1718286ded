"""Which rows each step takes: counted by hand."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.engine.plan import plan, total_steps
from shoal.randomness import generator


@given(st.integers(1, 70), st.integers(1, 40), st.integers(1, 4), st.booleans())
@settings(max_examples=60, deadline=None)
def test_every_epoch_takes_every_row_once(rows: int, batch: int, epochs: int, coupled: bool) -> None:
    steps = list(plan(rows, batch, epochs, None, coupled, generator(0)))
    kept = rows - 1 if coupled and rows % batch == 1 % batch else rows
    if coupled and batch == 1:
        assert steps == []
        return
    per_epoch = math.ceil(kept / batch)
    assert len(steps) == per_epoch * epochs
    for e in range(epochs):
        epoch = steps[e * per_epoch : (e + 1) * per_epoch]
        taken = np.concatenate([s.positions for s in epoch]) if epoch else np.array([], int)
        assert len(set(taken.tolist())) == len(taken) == kept
        assert all(len(s.positions) <= batch for s in epoch)
        assert [s.ends_epoch for s in epoch] == [False] * (per_epoch - 1) + [True] * (per_epoch > 0)


def test_the_number_of_steps() -> None:
    assert total_steps(33, 32, 2, None, False) == 4
    assert total_steps(33, 32, 2, None, True) == 2
    assert total_steps(1, 32, 5, None, True) == 0
    assert total_steps(0, 32, 5, 7, False) == 0
    assert total_steps(100, 10, 0.5, None, False) == 5
    assert total_steps(100, 10, 0.001, None, False) == 1
    assert total_steps(5, 32, 1, 9, False) == 9


def test_epochs_differ_in_their_order() -> None:
    first, second = plan(50, 50, 2, None, False, generator(1))
    assert not np.array_equal(first.positions, second.positions)
