"""Several image sources as one data set."""

from fractions import Fraction
from math import floor
from pathlib import Path

import numpy as np
import pytest
import torch
from image_files import encoded, write_idx, write_table, write_tree
from PIL import Image
from sklearn.datasets import load_digits

import shoal
import shoal.data
from shoal import registry
from shoal.data.union import numbered
from shoal.errors import ConfigError, DataError

RNG = np.random.default_rng(7)
GREY = RNG.integers(0, 256, (6, 8, 8), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)


@pytest.fixture
def idx(tmp_path) -> dict:
    folder = tmp_path / "mnist"
    for split, rows in (("train", slice(0, 4)), ("t10k", slice(4, 6))):
        write_idx(folder / f"{split}-images-idx3-ubyte", GREY[rows])
        write_idx(folder / f"{split}-labels-idx1-ubyte", np.array([3, 5, 3, 1, 5, 1])[rows])
    return {"kind": "idx", "path": str(folder), "cache": None}


@pytest.fixture
def parquet(tmp_path) -> dict:
    files = [encoded(image) for image in COLOUR]
    write_table(tmp_path / "things" / "train.parquet", files[:3], label=list("aba"), site=["x", "y", "x"])
    write_table(tmp_path / "things" / "test.parquet", files[3:], label=list("ba"), site=["y", "y"])
    return {"kind": "parquet", "path": str(tmp_path / "things"), "columns": ["site"], "cache": None}


def union(*sources, **settings):
    return shoal.data.load({"kind": "union", "sources": list(sources), **settings})


def column(data, name):
    return [data.columns[name].names[code] for code in data.columns[name].codes]


def test_rows_labels_and_splits_of_digits_idx_and_parquet(idx, parquet):
    data = union({"kind": "digits", "test": 300}, idx, parquet)
    digits = shoal.data.load({"kind": "digits", "test": 300})
    n = 1497
    assert (len(data.train), len(data.test)) == (n + 4 + 3, 300 + 2 + 2)
    assert data.train.tolist() == list(range(n + 7))
    assert data.name == "digits+mnist+things"
    assert data.shape == (3, 8, 8)  # one source is coloured
    source = column(data, "source")
    train = ["digits"] * n + ["mnist"] * 4 + ["things"] * 3
    assert source == train + ["digits"] * 300 + ["mnist"] * 2 + ["things"] * 2
    # Rows one after another, first all training rows.
    features = data.features.numpy()
    assert np.array_equal(features[n + 4 : n + 7], COLOUR[:3])
    assert np.array_equal(features[-2:], COLOUR[3:])
    assert np.array_equal(features[n : n + 4], np.repeat(GREY[:4, ..., None], 3, axis=3))
    assert np.array_equal(features[-4:-2], np.repeat(GREY[4:, ..., None], 3, axis=3))
    # 255 v / 16, to the nearest whole number, halves upwards.
    table = np.array([floor(Fraction(255 * v, 16) + Fraction(1, 2)) for v in range(17)])
    raw = load_digits().images.astype(int)
    assert np.array_equal(features[:n, ..., 1], table[raw[digits.train.numpy()]])
    assert np.array_equal(features[n + 7 : n + 307, ..., 2], table[raw[digits.test.numpy()]])
    assert (table[0], table[8], table[16], data.peak) == (0, 128, 255, 255.0)
    assert data.classes == tuple(
        [f"digits:{c}" for c in range(10)] + ["mnist:1", "mnist:3", "mnist:5", "things:a", "things:b"]
    )
    names = [data.classes[y] for y in data.labels]
    assert names[n : n + 7] == ["mnist:3", "mnist:5", "mnist:3", "mnist:1", "things:a", "things:b", "things:a"]
    assert names[-4:] == ["mnist:5", "mnist:1", "things:b", "things:a"]
    assert names[:n] == [f"digits:{y}" for y in load_digits().target[digits.train.numpy()]]
    assert column(data, "site") == [""] * (n + 4) + ["x", "y", "x"] + [""] * 302 + ["y", "y"]
    assert data.notes == (
        "digits has no column 'site': its rows have '' there",
        "mnist has no column 'site': its rows have '' there",
    )


def test_shared_labels_merge_equal_names(idx):
    data = union("digits", idx, labels="shared")
    assert data.classes == tuple("0123456789")
    assert [data.classes[y] for y in data.labels[-2:]] == ["5", "1"]
    other = union(idx, "digits", labels="shared")
    assert other.classes == ("1", "3", "5", "0", "2", "4", "6", "7", "8", "9")
    assert [other.classes[y] for y in other.labels[:4]] == ["3", "5", "3", "1"]


def test_one_shape_by_the_rule_or_an_error_with_both(idx, parquet):
    small = {**parquet, "size": [4, 6]}
    with pytest.raises(ConfigError, match=r"mnist 1x8x8, things 3x4x6; bring all to one with data\.size"):
        _ = union(idx, small).shape
    data = union(idx, small, size=[4, 6], channels=1)
    assert data.shape == (1, 4, 6)
    expected = Image.fromarray(COLOUR[0]).resize((6, 4), Image.Resampling.BILINEAR)
    expected = Image.fromarray(np.asarray(expected)).convert("L")
    assert np.array_equal(data.features[4, ..., 0].numpy(), np.asarray(expected))
    rule = {"convert": True, "fit": "resize", "unreadable": "error"}
    assert data.reader == {"kind": "image", "size": [4, 6], "channels": 1, **rule}
    assert [
        union(a, b).reader["convert"] for a, b in ((idx, idx), ({**idx, "channels": 1}, {**idx, "channels": 1}))
    ] == [
        False,
        True,
    ]
    padded = union(idx, small, size=10, fit="pad", channels=3)
    assert padded.shape == (3, 10, 10)
    assert int(padded.features[4, :3].sum()) == int(padded.features[4, 7:].sum()) == 0
    with pytest.raises(DataError, match=r"mnist, row 0: 8x8 pixels do not fit into 4x6"):
        union(idx, small, size=[4, 6], fit="pad")


def test_further_images_are_read_as_all_sources_were(idx, parquet):
    assert union(idx, parquet).reader["fit"] is None
    assert union({**idx, "size": 5}, {**parquet, "size": 5}).reader["fit"] == "resize"
    assert union({**idx, "size": 9, "fit": "pad"}, {**parquet, "size": 9}).reader["fit"] is None
    assert union({**idx, "size": 9, "fit": "pad"}, {**parquet, "size": 9}, size=9, fit="pad").reader["fit"] == "pad"


def test_a_name_that_comes_again_gets_a_number(idx):
    data = union("digits", {**idx, "limit": 2}, {"kind": "digits", "test": 5, "limit": 1}, "digits")
    assert data.columns["source"].names == ("digits", "mnist", "digits-2", "digits-3")
    assert [sum(s == name for s in column(data, "source")) for name in data.columns["source"].names] == [
        1797,
        4,
        6,
        1797,
    ]
    assert {c.split(":")[0] for c in data.classes} == {"digits", "mnist", "digits-2", "digits-3"}


def test_a_number_never_makes_a_name_that_is_there():
    assert numbered(["a", "a", "a-2", "b", "a"]) == ["a", "a-3", "a-2", "b", "a-4"]
    assert numbered(["a-2", "a", "a"]) == ["a-2", "a", "a-3"]


def test_limits_and_normalisation_are_of_all_rows(idx, parquet):
    data = union({**idx, "normalize": "half"}, parquet, limit=5, limit_test=2)
    assert (len(data.train), len(data.test)) == (5, 2)
    x = data.batch(data.train)
    assert torch.allclose(x.mean((0, 1, 2)), torch.zeros(3), atol=1e-5)
    assert torch.allclose(x.std((0, 1, 2), correction=0), torch.ones(3), atol=1e-5)
    # A source's own limit comes first.
    assert len(union({**idx, "limit": 2}, parquet).train) == 5


def test_every_default_of_a_source_is_written_out(idx):
    resolved = registry.resolve("data", {"kind": "union", "sources": ["digits", idx]})
    first, second = resolved["sources"]
    assert (first["kind"], first["test"], first["normalize"]) == ("digits", 0.2, "unit")
    assert (second["path"], second["size"], second["fit"]) == (idx["path"], None, "resize")
    assert registry.resolve("data", resolved) == resolved
    with pytest.raises(ConfigError, match=r"data\.sources\[1\]\.pth: no such setting"):
        registry.resolve("data", {"kind": "union", "sources": ["digits", {**idx, "pth": 1}]})
    with pytest.raises(ConfigError, match=r"data\.sources\[0\]\.kind|no data is called 'digts'"):
        registry.resolve("data", {"kind": "union", "sources": ["digts"]})
    with pytest.raises(ConfigError, match=r"data\.sources"):
        registry.resolve("data", {"kind": "union", "sources": []})


def test_notes_of_a_source_have_its_name(tmp_path):
    tree = {"a/1.png": GREY[0], "b/1.png": GREY[1], "a/2.png": b"broken", "a/3.png": GREY[2]}
    write_tree(tmp_path / "tree", tree)
    folder = {"kind": "folder", "path": str(tmp_path / "tree"), "unreadable": "skip", "test": 1, "cache": None}
    data = union("digits", folder)
    assert data.notes == ("tree: 1 of 4 images cannot be read and are left out: a/2.png",)
    assert len(data) == 1797 + 3


def test_what_a_union_cannot_hold(idx, monkeypatch):
    with pytest.raises(DataError, match=r"'mnist\+digits' has a column 'source' of its own"):
        union("digits", {"kind": "union", "sources": [idx, "digits"]})
    table = shoal.from_arrays(np.eye(4, 3), [0, 1, 0, 1])
    values = shoal.data.load("digits")
    object.__setattr__(values, "values", torch.zeros(1797, 1))
    for data, message in ((table, "has a table of 3 features"), (values, "has real values to learn")):
        monkeypatch.setattr("shoal.data.digits.Digits.load", lambda self, data=data: data)
        with pytest.raises(DataError, match=message):
            union(idx, "digits")


def test_a_run_writes_the_sources_into_its_configuration(idx, tmp_path: Path):
    config = {
        "name": "u",
        "rounds": 2,
        "data": {"kind": "union", "sources": [{"kind": "digits", "limit": 40, "limit_test": 20}, idx]},
        "stream": {"kind": "tasks", "by": "source", "tasks": 2, "order": "synchronous", "clients": 1},
        "execution": {"workers": 1},
    }
    first = shoal.run(config, out=tmp_path / "one")
    again = shoal.run(tmp_path / "one" / "config.yaml", out=tmp_path / "two")
    assert "split_seed" in (tmp_path / "one" / "config.yaml").read_text().split("sources:")[1]
    lines = [(r.folder / "metrics.jsonl").read_bytes() for r in (first, again)]
    assert lines[0] == lines[1]
