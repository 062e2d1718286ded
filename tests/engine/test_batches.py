"""Batches against the same arithmetic in numpy, however they are gathered."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from shoal.data.dataset import Dataset
from shoal.engine.batches import ALIGNED, Batches, Scratch
from shoal.engine.plan import Step, plan
from shoal.randomness import generator

ROWS = torch.tensor([3, 11, 0, 29, 7, 8, 21, 14, 5, 30, 2])


def table(features: int) -> Dataset:
    rng = np.random.default_rng(features)
    x = torch.from_numpy(rng.normal(size=(31, features)).astype(np.float32))
    scale = torch.from_numpy(rng.normal(size=features).astype(np.float32))
    offset = torch.from_numpy(rng.normal(size=features).astype(np.float32))
    every = torch.arange(31)
    return Dataset("t", x, every % 4, ("a", "b", "c", "d"), every, every[:0], scale, offset)


def images() -> Dataset:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, 256, (31, 4, 3, 2), dtype=np.uint8))
    every = torch.arange(31)
    scale, offset = torch.tensor([0.013, 0.02]), torch.tensor([-1.7, 0.3])
    return Dataset("i", x, every % 4, ("a", "b", "c", "d"), every, every[:0], scale, offset)


def expected(data: Dataset, rows: np.ndarray) -> np.ndarray:
    x = data.features.numpy()[rows].astype(np.float32)
    return x * data.scale.numpy() + data.offset.numpy()


def check(data: Dataset, batch: int, rows: torch.Tensor = ROWS) -> None:
    batches = Batches(data, rows, Scratch())
    seen = 0
    for step in plan(len(rows), batch, 3, None, False, generator(0)):
        at = rows.numpy()[step.positions]
        x, y = batches.take(step)
        np.testing.assert_array_equal(x.numpy(), expected(data, at))
        np.testing.assert_array_equal(y.numpy(), at % 4)
        assert x.data_ptr() % ALIGNED == 0
        seen += len(y)
    assert seen == 3 * len(rows)


@pytest.mark.parametrize("limit", ["GATHER_BYTES", "EPOCH_BYTES", None])
@pytest.mark.parametrize("batch", [1, 4, 11, 16])
def test_every_way_to_gather_gives_the_same_values(
    monkeypatch: pytest.MonkeyPatch, limit: str | None, batch: int
) -> None:
    if limit is not None:
        monkeypatch.setattr(f"shoal.engine.batches.{limit}", 1)
    for data in (table(1), table(5), table(16), images()):
        check(data, batch)


def test_a_request_of_a_large_data_set_is_normalised_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    data = table(5)
    monkeypatch.setattr("shoal.engine.batches.GATHER_BYTES", 4 * 5 * len(ROWS))  # the rows' bytes, not the data set's
    batches = Batches(data, ROWS, Scratch())
    assert batches.pool is None
    check(data, 4)
    assert "prepared" not in vars(data)


def test_steps_of_two_epochs_may_not_be_mixed_up() -> None:
    data = table(16)
    batches = Batches(data, ROWS, Scratch())
    for order in (np.arange(11), np.arange(11)[::-1].copy(), np.arange(11)):
        x, y = batches.take(Step(order, 4, 8, False))
        at = ROWS.numpy()[order[4:8]]
        np.testing.assert_array_equal(x.numpy(), expected(data, at))
        np.testing.assert_array_equal(y.numpy(), at % 4)


def test_a_stretch_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in (2**20, 4 * 5 * 11, 1):
        monkeypatch.setattr("shoal.engine.batches.GATHER_BYTES", limit)
        x, y = Batches(table(5), ROWS, Scratch()).range(8, 16)
        np.testing.assert_array_equal(x.numpy(), expected(table(5), ROWS.numpy()[8:]))
        assert y.tolist() == [1, 2, 2]


def test_transforms_are_those_of_the_row() -> None:
    data = images().with_transforms("identity", "mirror", "invert")
    rows = torch.tensor([4, 31 + 4, 62 + 4])
    x, _ = Batches(data, rows, Scratch()).take(Step(np.array([2, 0, 1]), 0, 3, True))
    raw = data.features[4].numpy().astype(np.float32)
    scale, offset = data.scale.numpy(), data.offset.numpy()
    for found, image in zip(x.numpy(), (255 - raw, raw, raw[:, ::-1]), strict=True):
        np.testing.assert_array_equal(found, image * scale + offset)


def test_rows_are_prepared_for_one_data_set_and_not_for_its_copies() -> None:
    data = table(5)
    np.testing.assert_array_equal(data.prepared.numpy(), expected(data, np.arange(31)))
    assert data.prepared is data.prepared
    other = replace(data, offset=data.offset + 1)
    np.testing.assert_array_equal(other.prepared.numpy(), expected(other, np.arange(31)))
    assert torch.equal(data.features, table(5).features)
