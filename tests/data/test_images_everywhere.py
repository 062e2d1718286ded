"""The same images through four sources are the same data set, and give the same run."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from image_files import encoded, write_idx, write_table, write_tree

import shoal
import shoal.data

CLASSES = 3
SPLITS = {"train": 30, "test": 12}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """``data`` sections for the same rows, which are in the order of their class as in folders."""
    root = tmp_path_factory.mktemp("same")
    rng = np.random.default_rng(11)
    for split, rows in SPLITS.items():
        labels = np.sort(np.arange(rows) % CLASSES)
        images = rng.integers(0, 256, (rows, 6, 5), dtype=np.uint8) // (labels + 1)[:, None, None].astype(np.uint8)
        files = [encoded(image) for image in images]
        write_tree(
            root / "folder", {f"{split}/{y}/{i:03}.png": f for i, (y, f) in enumerate(zip(labels, files, strict=True))}
        )
        write_table(root / "parquet" / f"{split}.parquet", files, label=labels.tolist())
        write_table(root / "hub" / "data" / f"{split}-00000-of-00001.parquet", files, label=labels.tolist())
        prefix = "t10k" if split == "test" else split
        write_idx(root / "idx" / f"{prefix}-images-idx3-ubyte", images)
        write_idx(root / "idx" / f"{prefix}-labels-idx1-ubyte", labels)
    places = {kind: {"kind": kind, "path": str(root / kind), "cache": None} for kind in ("folder", "parquet", "idx")}
    return {**places, "hub": {"kind": "hub", "name": str(root / "hub"), "cache": None}}


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of this test's own for the hub's package."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


RULES = [{}, {"channels": 3}, {"size": [9, 8], "fit": "pad"}, {"size": 4, "channels": 3}]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_same_bits(places, rule):
    found = {kind: shoal.data.load({**settings, **rule}) for kind, settings in places.items()}
    first = found["parquet"]
    assert (len(first.train), len(first.test)) == tuple(SPLITS.values())
    for kind, data in found.items():
        for name in ("features", "labels", "train", "test", "scale", "offset"):
            assert torch.equal(getattr(data, name), getattr(first, name)), (kind, name)
        assert (data.classes, data.reader, data.peak) == (("0", "1", "2"), first.reader, 255.0), kind
        assert data.fingerprint == first.fingerprint, kind


def test_the_same_run(places, tmp_path):
    config = {
        "rounds": 2,
        "stream": {"kind": "static", "clients": 3, "partition": {"kind": "dirichlet", "by": "class", "alpha": 0.5}},
        "model": {"kind": "mlp", "hidden": [8]},
        "execution": {"workers": 1},
    }
    numbers = {}
    for kind, settings in places.items():
        shoal.run({**config, "data": settings}, out=tmp_path / kind)
        lines = [json.loads(line) for line in (tmp_path / kind / "metrics.jsonl").read_text().splitlines()]
        numbers[kind] = [line for line in lines if "metric" in line]
    assert len(numbers["parquet"]) > 10
    for kind, lines in numbers.items():
        assert lines == numbers["parquet"], kind
