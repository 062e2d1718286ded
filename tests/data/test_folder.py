"""Images in folders: classes, clients and domains by the names of the folders."""

import os
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch
from image_files import encoded, write_tree

import shoal.data
from shoal.errors import ConfigError, DataError


def flat(value: int) -> np.ndarray:
    """A small image that is told by its value."""
    return np.full((2, 3), value, dtype=np.uint8)


def load(path: Path, **settings):
    return shoal.data.load({"kind": "folder", "path": str(path), "cache": None, **settings})


def values(data):
    return data.features[:, 0, 0, 0].tolist()


def named(data, column):
    return [data.columns[column].names[code] for code in data.columns[column].codes]


def test_one_folder_per_class_in_the_order_of_the_paths(tmp_path):
    # Written in another order; "B" comes before "a" and 10.png before 2.png, by code point.
    files = {"bee/2.png": flat(4), "ant/x.png": flat(2), "bee/10.png": flat(3), "Bat/y.png": flat(1)}
    data = load(write_tree(tmp_path / "zoo", files), test=1)
    assert (data.name, data.shape) == ("zoo", (1, 2, 3))
    assert data.classes == ("Bat", "ant", "bee")
    assert values(data) == [1, 2, 3, 4]
    assert data.labels.tolist() == [0, 1, 2, 2]
    assert data.columns == {}
    assert (len(data.train), len(data.test)) == (3, 1)
    rule = {"convert": False, "fit": None, "unreadable": "error"}
    assert data.reader == {"kind": "image", "size": [2, 3], "channels": 1, **rule}
    assert data.notes == ()


def test_clients_and_domains_above_the_classes(tmp_path):
    files = {
        "photo/u2/cat/1.png": flat(5),
        "photo/u10/cat/1.png": flat(3),
        "art/u2/dog/1.png": flat(2),
        "art/u10/cat/1.png": flat(1),
        "photo/u10/dog/1.png": flat(4),
    }
    data = load(write_tree(tmp_path, files), levels=["domain", "client", "class"], test=1)
    assert values(data) == [1, 2, 3, 4, 5]
    assert named(data, "domain") == ["art", "art", "photo", "photo", "photo"]
    assert named(data, "client") == ["u10", "u2", "u10", "u10", "u2"]
    assert [data.classes[y] for y in data.labels] == ["cat", "dog", "cat", "dog", "cat"]
    # The class may be above the client.
    swapped = load(tmp_path, levels=["domain", "class", "client"], test=1)
    assert swapped.classes == ("u10", "u2")


def test_whole_numbers_are_in_the_order_of_their_values(tmp_path):
    data = load(write_tree(tmp_path / "a", {f"{c}/1.png": flat(c) for c in (10, 9, 2, 0)} | {"2/2.png": flat(2)}))
    assert data.classes == ("0", "2", "9", "10")
    assert [int(data.classes[y]) for y in data.labels] == values(data)
    # With a name among them, or a number that is not written as one, they are names.
    data = load(write_tree(tmp_path / "b", {f"{c}/{i}.png": flat(1) for c in ("10", "9", "07") for i in (1, 2)}))
    assert data.classes == ("07", "10", "9")


def test_train_and_test_folders_are_the_split(tmp_path):
    files = {"train/c1/cat/1.png": flat(1), "test/c2/cat/1.png": flat(3), "train/c2/dog/1.png": flat(2)}
    data = load(write_tree(tmp_path, files), levels=["client", "class"])
    assert values(data) == [1, 2, 3]
    assert (data.train.tolist(), data.test.tolist()) == ([0, 1], [2])
    assert named(data, "client") == ["c1", "c2", "c2"]
    none = load(tmp_path, levels=["what", "client", "class"], split="none", test=1)
    assert values(none) == [3, 1, 2]  # test/ comes before train/
    assert named(none, "what") == ["test", "train", "train"]


def test_folders_beside_train_and_test(tmp_path):
    files = {f"{s}/cat/{i}.png": flat(1) for s in ("train", "test", "val") for i in (1, 2)}
    data = load(write_tree(tmp_path, files))
    assert (len(data.train), len(data.test)) == (2, 2)
    assert data.notes == ("the folders val beside train and test are passed over",)
    write_tree(tmp_path, {"car/cat/1.png": flat(1)})
    with pytest.raises(DataError, match=r"beside the folders 'train' and 'test' there is \['car'\]"):
        load(tmp_path)
    # Without a test folder "train" is no split, and never a class either.
    with pytest.raises(DataError, match="'train' looks like a split"):
        load(write_tree(tmp_path / "other", {"train/cat/1.png": flat(1), "val/cat/1.png": flat(1)}))
    with pytest.raises(DataError, match="test: there is no image"):
        load(write_tree(tmp_path / "empty", {"train/cat/1.png": flat(1), "test/cat/readme.txt": b""}))


def test_a_class_of_the_test_folder_alone_is_noted(tmp_path):
    files = {"train/cat/1.png": flat(1), "test/cat/1.png": flat(1), "test/yak/1.png": flat(2)}
    data = load(write_tree(tmp_path, files))
    assert data.classes == ("cat", "yak")
    assert data.notes == ("1 classes have test rows only: yak",)


def test_a_missing_level_is_an_error(tmp_path):
    write_tree(tmp_path / "flat", {"cat/1.png": flat(1), "dog/1.png": flat(1)})
    with pytest.raises(
        DataError, match=r"cat/1\.png: 1 folders above .* <client>/<class>/image; no folder says its 'cl"
    ):
        load(tmp_path / "flat", levels=["client", "class"])
    write_tree(tmp_path / "some", {"u1/cat/1.png": flat(1), "u1/2.png": flat(1)})
    with pytest.raises(DataError, match=r"u1/2\.png: 1 folders above"):
        load(tmp_path / "some", levels=["client", "class"])
    with pytest.raises(DataError, match=r"1\.png: 2 folders above .* <class>/image; there is a folder too many"):
        load(tmp_path / "some")
    with pytest.raises(DataError, match=r"1\.png: 0 folders above"):
        load(tmp_path / "flat" / "cat")


def test_wrong_levels_and_paths(tmp_path):
    for levels in ([], ["client"], ["class", "class"], ["class", "client", "client"], ["class", ""]):
        with pytest.raises(ConfigError, match=r"data\.levels: names of the folder levels"):
            load(tmp_path, levels=levels)
    with pytest.raises(DataError, match="there is no image; their names end in"):
        load(tmp_path)
    (tmp_path / "file.png").write_bytes(encoded(flat(1)))
    with pytest.raises(DataError, match="is not a folder"):
        load(tmp_path / "file.png")
    with pytest.raises(DataError, match="there is no"):
        load(tmp_path / "absent")
    with pytest.raises(ConfigError, match="levles"):
        load(tmp_path, levles=["class"])


def test_what_is_passed_over_is_counted(tmp_path):
    files = {
        "cat/1.PNG": flat(1),
        "cat/2.png": flat(2),
        "cat/Thumbs.db": b"x",
        "cat/._1.png": b"x",
        ".git/objects/1.png": b"x",
        "README.md": b"x",
    }
    write_tree(tmp_path, files)
    (tmp_path / "dog").mkdir()
    data = load(tmp_path, test=1)
    assert data.classes == ("cat",)
    assert data.notes == (
        "4 files or folders are passed over, hidden or no images by name: .git, README.md, cat/._1.png, cat/Thumbs.db",
        "1 folders hold no image: dog",
        "1 names of class folders are no classes, without an image: dog",
    )


def test_a_class_that_a_client_lacks_stays_a_class(tmp_path):
    write_tree(tmp_path, {"a/cat/1.png": flat(1), "a/dog/1.png": flat(1), "b/cat/1.png": flat(1)})
    (tmp_path / "b" / "dog").mkdir()
    (tmp_path / "c").mkdir()
    data = load(tmp_path, levels=["client", "class"], test=1)
    assert data.classes == ("cat", "dog")
    assert data.columns["client"].names == ("a", "b")
    assert data.notes == ("2 folders hold no image: b/dog, c",)


def test_links(tmp_path):
    write_tree(tmp_path / "far", {"1.png": flat(7)})
    write_tree(tmp_path / "near", {"cat/1.png": flat(1), "cat/2.png": flat(2)})
    (tmp_path / "near" / "dog").symlink_to(tmp_path / "far")
    data = load(tmp_path / "near", test=1)
    assert values(data) == [1, 2, 7]
    assert data.classes == ("cat", "dog")
    loop = tmp_path / "near" / "cat" / "again"
    loop.symlink_to(tmp_path / "near")
    with pytest.raises(DataError, match=r"again: a link to a folder that it lies in .*: a loop"):
        load(tmp_path / "near")
    loop.unlink()
    (tmp_path / "near" / "cat" / "3.png").symlink_to(tmp_path / "gone.png")
    with pytest.raises(DataError, match=r"3\.png: a link that points nowhere"):
        load(tmp_path / "near")


def test_names_in_other_letters(tmp_path):
    composed, apart = unicodedata.normalize("NFC", "ñandú"), unicodedata.normalize("NFD", "ñandú")
    assert composed != apart
    files = {f"train/{composed}/1.png": flat(1), f"test/{apart}/1.png": flat(3), "train/猫/é.png": flat(2)}
    data = load(write_tree(tmp_path / "both", files))
    assert data.classes == (composed, "猫")
    assert data.labels.tolist() == [0, 1, 0]
    write_tree(tmp_path / "twice", {f"{composed}/1.png": flat(1), f"{apart}/1.png": flat(1)})
    if len(os.listdir(tmp_path / "twice")) == 2:  # some file systems take both for one
        with pytest.raises(DataError, match="two entries are called 'ñandú'"):
            load(tmp_path / "twice")
        os.mkdir(os.fsencode(tmp_path / "both" / "train") + b"/\xff")
        with pytest.raises(DataError, match="is not UTF-8; rename it"):
            load(tmp_path / "both")


def test_unreadable_images_are_named_or_left_out_of_everything(tmp_path):
    files = {
        f"{s}/u{u}/{c}/{i}.png": flat(10 * u + i)
        for s in ("train", "test")
        for u in (1, 2)
        for c in "ab"
        for i in (1, 2)
    }
    write_tree(tmp_path, files)
    levels = ["client", "class"]
    whole = load(tmp_path, levels=levels)
    for name in ("train/u1/a/1.png", "train/u2/b/2.png", "test/u1/a/2.png"):
        (tmp_path / name).write_bytes(b"broken")
    with pytest.raises(DataError, match=r"train/u1/a/1\.png: no image that pillow can read"):
        load(tmp_path, levels=levels)
    data = load(tmp_path, levels=levels, unreadable="skip")
    lost = [0, 7, 9]
    kept = torch.tensor([row for row in range(16) if row not in lost])
    assert torch.equal(data.features, whole.features[kept])
    assert torch.equal(data.labels, whole.labels[kept])
    assert torch.equal(data.columns["client"].codes, whole.columns["client"].codes[kept])
    assert (data.train.tolist(), data.test.tolist()) == (list(range(6)), list(range(6, 13)))
    assert data.notes == (
        "3 of 16 images cannot be read and are left out: train/u1/a/1.png, train/u2/b/2.png, test/u1/a/2.png",
    )


def test_a_class_whose_images_are_all_unreadable_is_gone(tmp_path):
    write_tree(tmp_path, {"a/1.png": b"broken", "b/1.png": flat(1), "b/2.png": flat(1), "c/1.png": flat(2)})
    data = load(tmp_path, unreadable="skip", test=1)
    assert data.classes == ("b", "c")
    assert data.labels.tolist() == [0, 0, 1]


def test_the_cache_knows_names_rule_and_notes(tmp_path):
    files = {"cat/1.png": flat(1), "cat/2.png": flat(2), "dog/1.png": flat(3), "dog/2.png": b"broken"}
    write_tree(tmp_path / "x", files)
    settings = {"cache": str(tmp_path / "cache"), "unreadable": "skip", "test": 1}
    first = load(tmp_path / "x", **settings)
    again = load(tmp_path / "x", **settings)
    assert again.fingerprint == first.fingerprint == load(tmp_path / "x", **{**settings, "cache": None}).fingerprint
    assert torch.equal(again.features, first.features)
    assert (again.notes, again.reader) == (first.notes, first.reader)
    assert len(list((tmp_path / "cache").iterdir())) == 1
    # The same bytes in the same order under other names are other data.
    (tmp_path / "x" / "dog").rename(tmp_path / "x" / "doe")
    assert load(tmp_path / "x", **settings).classes == ("cat", "doe")
    assert load(tmp_path / "x", **settings, size=4).shape == (1, 4, 4)
    assert load(tmp_path / "x", **settings, size=4, fit="pad").fingerprint != first.fingerprint
    assert len(list((tmp_path / "cache").iterdir())) == 4
    # What is passed over is told anew.
    write_tree(tmp_path / "x", {"notes.txt": b"new"})
    assert "notes.txt" in load(tmp_path / "x", **settings).notes[-1]
