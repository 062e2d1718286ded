"""The hub's loader on local folders in the hub's layout; nothing here touches the network."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from image_files import STRUCT, encoded, write_table, write_tree

import shoal.data
from shoal import registry
from shoal.errors import ConfigError, DataError

datasets = pytest.importorskip("datasets")

RNG = np.random.default_rng(5)
PIXELS = RNG.integers(0, 256, (9, 4, 4, 3), dtype=np.uint8)
NAMES = {"label": ["cat", "ant"]}


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    """No network, and a cache of this test's own."""
    import huggingface_hub.constants

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "animals"
    files = [encoded(image) for image in PIXELS]
    more = {"site": list("abcabc"), "extra": [1.5] * 6}
    write_table(path / "data" / "train-00000-of-00001.parquet", files[:6], NAMES, label=[0, 1, 1, 0, 0, 1], **more)
    more = {"site": list("abc"), "extra": [1.5] * 3}
    write_table(path / "data" / "test-00000-of-00001.parquet", files[6:], NAMES, label=[1, 0, 1], **more)
    return path


def load(name: Path | str, **settings):
    return shoal.data.load({"kind": "hub", "name": str(name), "cache": None, **settings})


def test_splits_classes_and_columns(folder):
    data = load(folder, columns=["site"])
    assert data.name == "animals"
    assert np.array_equal(data.features.numpy(), PIXELS)
    assert data.classes == ("cat", "ant")
    assert data.labels.tolist() == [0, 1, 1, 0, 0, 1, 1, 0, 1]
    assert (data.train.tolist(), data.test.tolist()) == (list(range(6)), [6, 7, 8])
    assert [data.columns["site"].names[c] for c in data.columns["site"].codes] == list("abcabcabc")
    rule = {"convert": False, "fit": None, "unreadable": "error"}
    assert data.reader == {"kind": "image", "size": [4, 4], "channels": 3, **rule}


def test_the_same_rows_as_from_its_parquet_files(folder):
    settings = {"columns": ["site"], "size": [3, 5], "channels": 1}
    plain = shoal.data.load({"kind": "parquet", "path": str(folder / "data"), "cache": None, **settings})
    hub = load(folder, **settings)
    assert hub.fingerprint == plain.fingerprint
    assert hub.reader == plain.reader


def test_holding_out_and_naming_splits(folder):
    for test, rows in ((None, 1), (2, 2), (0.5, 3)):
        data = load(folder, test=test)
        assert (len(data.train), len(data.test)) == (6 - rows, rows)
    swapped = load(folder, train="test", test="train")
    assert np.array_equal(swapped.features.numpy(), np.concatenate([PIXELS[6:], PIXELS[:6]]))
    parts = load(folder, train="train[:4]", test="train[4:]")
    assert np.array_equal(parts.features.numpy(), PIXELS[:6])
    assert parts.test.tolist() == [4, 5]
    with pytest.raises(ConfigError, match="the split 'train' is trained on"):
        load(folder, test="train")
    with pytest.raises(DataError, match=r"splits \['train', 'tset'\] of .*Unknown split \"tset\".*hold some out"):
        load(folder, test="tset")


def test_a_name_is_seen_from_root(folder):
    assert len(load("animals", root=str(folder.parent))) == 9


def test_what_cannot_be_loaded_says_what_was_tried():
    with pytest.raises(
        DataError, match=r"cannot load .* of nobody/nothing, config small, revision v1: .*nobody/nothing"
    ):
        load("nobody/nothing", config="small", revision="v1")


def test_code_that_comes_with_data_is_not_run(tmp_path):
    script = f"open({str(tmp_path / 'ran')!r}, 'w').close()\n"
    write_tree(tmp_path, {"evil/evil.py": script.encode()})
    with pytest.raises(DataError, match="cannot load"):
        load(tmp_path / "evil")
    assert not (tmp_path / "ran").exists()


def test_expectations(folder):
    right = {
        "classes": 2,
        "size": [4, 4],
        "channels": 3,
        "rows": [6, 3],
        "columns": ["site", "label", "image", "extra"],
    }
    assert len(load(folder, expect=right)) == 9
    assert len(load(folder, test=0.5, expect={"rows": [6, None]})) == 6
    wrong = {
        "classes": (3, "3, but .* has 2"),
        "size": ([4, 5], r"\[4, 5\], but .* has \[4, 4\]"),
        "channels": (1, "1, but .* has 3"),
        "rows": ([6, 4], r"\[6, 4\], but .* has \[6, 3\]"),
        "columns": (["image", "label"], r"\['image', 'label'\], but .* has \['extra', 'image', 'label', 'site'\]"),
    }
    for what, (value, message) in wrong.items():
        with pytest.raises(DataError, match=rf"data\.expect\.{what}: {message}"):
            load(folder, expect={**right, what: value})
    with pytest.raises(ConfigError, match="clases"):
        load(folder, expect={"clases": 2})
    resolved = registry.resolve("data", {"kind": "hub", "name": "x", "expect": {"size": [4, 4]}})
    assert resolved["expect"] == {"classes": None, "size": [4, 4], "channels": None, "rows": None, "columns": None}


def test_missing_columns_are_named(folder):
    with pytest.raises(DataError, match=r"data\.label: .*animals, train has no column 'lable'; did you mean 'label'"):
        load(folder, label="lable")
    with pytest.raises(DataError, match=r"data\.image: column 'extra' .* holds double"):
        load(folder, image="extra")


def test_unreadable_rows_disappear_from_labels_columns_and_split(tmp_path):
    files = [encoded(image) for image in PIXELS]
    files[1] = files[7] = b"broken"
    more = {"label": list("xyxzxx"), "site": list("abcabc")}
    write_table(tmp_path / "d" / "train-00000-of-00001.parquet", files[:6], **more)
    write_table(tmp_path / "d" / "test-00000-of-00001.parquet", files[6:], label=list("zxx"), site=list("abc"))
    for settings in ({"kind": "hub", "name": str(tmp_path / "d")}, {"kind": "parquet", "path": str(tmp_path / "d")}):
        rest = {"columns": ["site"], "cache": None}
        with pytest.raises(DataError, match="row 1: no image that pillow can read"):
            shoal.data.load({**settings, **rest})
        data = shoal.data.load({**settings, **rest, "unreadable": "skip"})
        assert np.array_equal(data.features.numpy(), PIXELS[[0, 2, 3, 4, 5, 6, 8]])
        assert [data.classes[y] for y in data.labels] == list("xxzxxzx")
        assert data.classes == ("x", "z")  # the only y is gone
        assert [data.columns["site"].names[c] for c in data.columns["site"].codes] == list("acabcac")
        assert (data.train.tolist(), data.test.tolist()) == ([0, 1, 2, 3, 4], [5, 6])
        assert data.notes == ("2 of 9 images cannot be read and are left out: row 1, row 7",)


def test_a_hub_folder_of_images_without_bytes_in_the_table(tmp_path):
    files = {f"train/{c}/{i}.png": PIXELS[i] for i, c in enumerate("abab")} | {"test/a/9.png": PIXELS[4]}
    write_tree(tmp_path / "tree", files)
    cache = str(tmp_path / "cache")
    data = load(tmp_path / "tree", cache=cache)
    plain = shoal.data.load({"kind": "folder", "path": str(tmp_path / "tree"), "cache": None})
    order = [0, 2, 1, 3, 4]
    assert np.array_equal(data.features.numpy(), PIXELS[order])
    assert data.fingerprint == plain.fingerprint
    # The paths stay, an image changes: the cache sees it.
    write_tree(tmp_path / "tree", {"train/a/0.png": PIXELS[8]})
    assert np.array_equal(load(tmp_path / "tree", cache=cache).features[0].numpy(), PIXELS[8])


def test_a_relative_path_is_never_looked_for(tmp_path, monkeypatch):
    import pyarrow as pa
    import pyarrow.parquet as pq

    monkeypatch.chdir(write_tree(tmp_path / "here", {"mine.png": PIXELS[0]}))
    images = pa.array([{"bytes": None, "path": "mine.png"}] * 2, STRUCT)
    (tmp_path / "d").mkdir()
    pq.write_table(pa.table({"image": images, "label": [0, 1]}), tmp_path / "d" / "train.parquet")
    with pytest.raises(DataError, match="row 0: no image bytes"):
        load(tmp_path / "d", test=None)


def test_a_mapping_of_indices_is_followed(folder):
    from shoal.data.hub import TableRows

    rows = datasets.load_dataset(str(folder), split="train").select([4, 0, 3])
    assert TableRows(rows, "some").column("site") == ["b", "a", "a"]


def test_the_cache_gives_the_same_bits(folder, tmp_path):
    settings = {"cache": str(tmp_path / "cache"), "columns": ["site"]}
    first, again = load(folder, **settings), load(folder, **settings)
    assert first.fingerprint == again.fingerprint == load(folder, columns=["site"]).fingerprint
    assert torch.equal(first.features, again.features)
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert np.array_equal(load(folder, **settings, train="train[:2]").features.numpy()[:2], PIXELS[:2])
    assert len(load(folder, **settings, train="train[:2]").train) == 2


def test_without_the_package(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"hub needs the package 'datasets'.*pip install 'shoal\[hub\]'"):
        load(folder)


def test_progress_bars_are_for_terminals(folder, capfd):
    load(folder)
    assert "examples/s" not in capfd.readouterr().err
    assert not datasets.are_progress_bars_disabled()
