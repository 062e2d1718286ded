"""A union whose sources keep their own sizes and channels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from conftest import Shoal
from image_files import encoded, write_idx, write_table

import shoal
import shoal.data
from shoal.data.dataset import Dataset
from shoal.engine.batches import Batches, Scratch
from shoal.engine.plan import plan
from shoal.errors import ConfigError, DataError
from shoal.randomness import generator

RNG = np.random.default_rng(11)
GREY = RNG.integers(0, 256, (7, 6, 6), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (5, 8, 4, 3), dtype=np.uint8)
DIGITS = {"kind": "digits", "limit": 20, "limit_test": 5}


@pytest.fixture
def idx(tmp_path: Path) -> dict[str, Any]:
    """Five training and two test rows of 6x6, grey."""
    folder = tmp_path / "mnist"
    for split, rows in (("train", slice(0, 5)), ("t10k", slice(5, 7))):
        write_idx(folder / f"{split}-images-idx3-ubyte", GREY[rows])
        write_idx(folder / f"{split}-labels-idx1-ubyte", np.array([3, 5, 3, 1, 5, 1, 3])[rows])
    return {"kind": "idx", "path": str(folder), "cache": None}


@pytest.fixture
def parquet(tmp_path: Path) -> dict[str, Any]:
    """Three training and two test rows of 8x4, coloured."""
    files = [encoded(image) for image in COLOUR]
    write_table(tmp_path / "things" / "train.parquet", files[:3], label=list("aba"), site=["x", "y", "x"])
    write_table(tmp_path / "things" / "test.parquet", files[3:], label=list("ba"), site=["y", "y"])
    return {"kind": "parquet", "path": str(tmp_path / "things"), "columns": ["site"], "cache": None}


def union(*sources: Any, **settings: Any) -> Dataset:
    return shoal.data.load({"kind": "union", "sources": list(sources), **settings})


def normal(pixels: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Pixels ``[rows, height, width, channels]`` less the mean of the training rows, by their deviation."""
    mean, spread = train.mean((0, 1, 2), dtype=np.float64), train.std((0, 1, 2), dtype=np.float64)
    return (pixels - mean) / spread


def test_every_source_keeps_its_shape_and_is_normalised_by_itself(idx: Any, parquet: Any) -> None:
    data = union(idx, parquet)
    assert (data.is_image, len(data), data.train.tolist(), data.test.tolist()) == (
        True,
        12,
        list(range(8)),
        [8, 9, 10, 11],
    )
    assert data.shapes_of(torch.arange(5)) == ((1, 6, 6),)
    assert data.shapes_of(torch.tensor([0, 6])) == ((1, 6, 6), (3, 8, 4))
    # Training rows of both sources first, then their test rows.
    grey = normal(GREY[[4, 0, 6]][..., None], GREY[:5, ..., None])
    np.testing.assert_allclose(data.batch(torch.tensor([4, 0, 9])).numpy(), grey, rtol=1e-4, atol=1e-5)
    colour = normal(COLOUR[[1, 4]], COLOUR[:3])
    np.testing.assert_allclose(data.batch(torch.tensor([6, 11])).numpy(), colour, rtol=1e-4, atol=1e-5)
    assert data.classes == ("mnist:1", "mnist:3", "mnist:5", "things:a", "things:b")
    assert [data.classes[y] for y in data.wanted(torch.tensor([6, 9]))] == ["things:b", "mnist:3"]
    assert [data.columns["site"].names[c] for c in data.columns["site"].codes[[0, 5, 6]]] == ["", "x", "y"]
    assert "every source keeps its own shape" in data.notes[-1]
    assert "mnist 1x6x6, things 3x8x4" in data.notes[-1]


def test_one_model_for_all_is_told_the_shapes_and_what_to_do(idx: Any, parquet: Any) -> None:
    with pytest.raises(ConfigError, match=r"mnist 1x6x6, things 3x8x4; bring all to one with data\.size and data\.ch"):
        _ = union(idx, parquet).shape
    assert union(idx, parquet, size=[8, 4]).shape == (3, 8, 4)
    with pytest.raises(ValueError, match="rows of several shapes"):
        union(idx, parquet).batch(torch.tensor([0, 6]))


def test_no_row_is_copied(idx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = shoal.data.load(DIGITS)
    monkeypatch.setattr("shoal.data.digits.Digits.load", lambda self: given)
    data = union(idx, "digits")
    assert data.members is not None
    assert data.members.parts[1].features is given.features
    for moved in (data.with_transforms("identity", "mirror"), data.to(torch.device("cpu"))):
        assert moved.members is not None
        assert moved.members.parts[1].features.data_ptr() == given.features.data_ptr()


def test_channels_for_all_leave_the_sizes(idx: Any, parquet: Any) -> None:
    data = union(idx, parquet, DIGITS, channels=3)
    assert data.members is not None
    assert data.members.shapes == ((3, 6, 6), (3, 8, 4), (3, 8, 8))
    assert np.array_equal(data.members.parts[0].features.numpy(), np.repeat(GREY[..., None], 3, axis=3))
    digits, alone = data.members.parts[2], shoal.data.load(DIGITS)
    # Only the rows in use; 0 to 16 became 0 to 255.
    raw = alone.features.numpy()[np.concatenate([alone.train.numpy(), alone.test.numpy()])].astype(int)
    assert np.array_equal(digits.features.numpy()[..., 1:2], (510 * raw + 16) // 32)
    assert (digits.peak, digits.reader["kind"], digits.reader["size"]) == (255.0, "image", [8, 8])
    assert [data.classes[y] for y in data.labels[data.members.which == 2][:20]] == [
        f"digits:{alone.classes[y]}" for y in alone.labels[alone.train]
    ]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("half", lambda raw, peak: 2 * raw / peak - 1),
        ("unit", lambda raw, peak: raw / peak),
    ],
)
def test_a_normalisation_for_all_knows_each_source_s_white(
    idx: Any, how: str, expected: Callable[[np.ndarray, float], np.ndarray]
) -> None:
    data, alone = union(idx, DIGITS, normalize=how), shoal.data.load(DIGITS)
    np.testing.assert_allclose(
        data.batch(torch.tensor([2]))[0, ..., 0], expected(GREY[2].astype(float), 255.0), atol=1e-6
    )
    raw = alone.features[alone.train[:3]].numpy()
    np.testing.assert_allclose(data.batch(torch.tensor([5, 6, 7])), expected(raw.astype(float), 16.0), atol=1e-6)


def test_normalize_source_keeps_what_each_says_and_rows_of_one_shape_may_be_mixed(idx: Any) -> None:
    # Twice the same images, from -1 to 1 and from 0 to 1.
    data = union({**idx, "normalize": "half"}, {**idx, "normalize": "unit"}, normalize="source")
    assert data.shape == (1, 6, 6)
    x = data.batch(torch.tensor([6, 0, 5, 1]))[..., 0].numpy()
    unit = GREY[[1, 0, 0, 1]] / 255.0
    np.testing.assert_allclose(x, np.where(np.array([0, 1, 0, 1])[:, None, None], 2 * unit - 1, unit), atol=1e-6)
    assert torch.equal(data.batch(torch.tensor([6, 0, 5, 1]), torch.empty(4, 6, 6, 1)), torch.from_numpy(x)[..., None])
    # A size of the union's own: still what each source says.
    small = union({**idx, "normalize": "half"}, {**idx, "normalize": "unit"}, normalize="source", size=3)
    assert small.shape == (1, 3, 3)
    a, b = small.batch(torch.tensor([0])), small.batch(torch.tensor([5]))
    np.testing.assert_allclose(a, 2 * b - 1, atol=1e-6)


def test_transforms_of_every_member(idx: Any, parquet: Any) -> None:
    data = union(idx, DIGITS, normalize="unit").with_transforms("identity", "invert", "rotate90")
    n = len(data)
    alone = shoal.data.load(DIGITS)
    raw = alone.features[alone.train[:2]].numpy()[..., 0].astype(np.float64)
    np.testing.assert_allclose(data.batch(torch.tensor([n + 5, n + 6]))[..., 0], (16 - raw) / 16, atol=1e-6)
    np.testing.assert_allclose(data.batch(torch.tensor([n]))[0, ..., 0], 1 - GREY[0] / 255.0, atol=1e-6)
    turned = data.batch(torch.tensor([5, 2 * n + 6]))[..., 0].numpy()
    np.testing.assert_allclose(turned, np.stack([raw[0], np.rot90(raw[1])]) / 16, atol=1e-6)
    with pytest.raises(ConfigError, match="those of things are 8x4"):
        union(idx, parquet).with_transforms("identity", "rotate90")
    same = union(idx, parquet).with_label_maps(torch.arange(5).flip(0).expand(2, 5))
    assert torch.equal(same.batch(torch.tensor([12 + 3])), same.batch(torch.tensor([3])))
    assert same.wanted(torch.tensor([12 + 3])).tolist() == [4]


def test_limits_are_of_all_rows_and_decide_the_normalisation(idx: Any, parquet: Any) -> None:
    data = union(idx, parquet, limit=5, limit_test=2)
    assert (len(data.train), len(data.test)) == (5, 2)
    kept = [int(r) for r in data.train if r < 5]
    assert 0 < len(kept) < 5
    grey = normal(GREY[kept][..., None], GREY[kept][..., None])
    np.testing.assert_allclose(data.batch(torch.tensor(kept)), grey, rtol=1e-4, atol=1e-5)
    # The pixels, rows and normalisation of any member are in the fingerprint.
    prints = {union(idx, parquet, **more).fingerprint for more in ({}, {"limit": 5}, {"normalize": "half"}, {})}
    prints |= {union(idx, {**parquet, "size": [8, 5]}).fingerprint, union(idx, parquet, channels=3).fingerprint}
    assert len(prints) == 5
    empty = union(idx, parquet, limit=1)
    assert all(bool(part.scale.isfinite().all()) for part in empty.members.parts)  # type: ignore[union-attr]


@pytest.mark.parametrize("limit", ["GATHER_BYTES", "EPOCH_BYTES", None])
def test_batches_of_one_member_and_of_several(idx: Any, parquet: Any, limit: str | None, monkeypatch: Any) -> None:
    if limit is not None:
        monkeypatch.setattr(f"shoal.engine.batches.{limit}", 1)
    apart = union(idx, parquet)
    alike = union({**idx, "normalize": "half"}, {**idx, "normalize": "unit"}, normalize="source")
    for data, rows in ((apart, [6, 5, 7, 10]), (apart, [1, 9, 0]), (alike, [3, 8, 0, 6, 12]), (apart, [])):
        batches = Batches(data, torch.tensor(rows, dtype=torch.int64), Scratch())
        seen = []
        for step in plan(len(rows), 2, 2, None, False, generator(0)):
            x, y = batches.take(step)
            at = torch.tensor(rows)[torch.from_numpy(step.positions)]
            assert torch.equal(x, data.batch(at))
            assert torch.equal(y, data.labels[at])
            seen += at.tolist()
        assert sorted(seen) == sorted(2 * rows)
        if rows:
            assert torch.equal(batches.range(1, 3)[0], data.batch(torch.tensor(rows[1:3])))


def test_a_union_is_no_further_rows(idx: Any, parquet: Any, tmp_path: Path) -> None:
    stream = {"kind": "static", "clients": 2}
    run = shoal.run(
        {"rounds": 1, "data": DIGITS, "stream": stream, "execution": {"kind": "serial"}}, out=tmp_path / "r"
    )
    with pytest.raises(DataError, match="keep their rows each in its own way"):
        shoal.predict(run.folder, union(idx, parquet))


def test_show_has_a_model_and_a_shape_for_every_task(idx: Any, parquet: Any, tmp_path: Path, request: Any) -> None:
    command: Shoal = request.getfixturevalue("shoal")
    given = {
        "rounds": 2,
        "data": {"kind": "union", "sources": [idx, parquet]},
        "stream": {"kind": "tasks", "tasks": 2, "by": "source", "clients": 1},
        "model": {"kind": "mlp", "hidden": [2]},
        "method": {"kind": "fedavg", "per": "task"},
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(given))
    said = " ".join(command("show", str(tmp_path / "c.yaml")).out.split())
    # 36 2 + 2 + 2 3 + 3, and 96 2 + 2 + 2 2 + 2.
    assert "model of mnist: 83 trainable parameters" in said
    assert "model of things: 200 trainable parameters" in said
    assert "note: every source keeps its own shape" in said
    assert "3x8x4" in said.split("Tasks (head: task)")[1]
