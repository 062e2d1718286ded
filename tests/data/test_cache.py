"""The cache of decoded rows: found by content, checked, rebuilt, never in the way."""

import dataclasses
import json
import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import shoal.data
from shoal.data import cache as cache_module
from shoal.data.cache import cached, default_folder
from shoal.data.source import Decoded


def rows(value: int = 1) -> Decoded:
    features = np.arange(60, dtype=np.uint8).reshape(5, 2, 2, 3) + np.uint8(value)
    codes = np.array([0, 1, 0, 1, 1])
    return Decoded(features, codes.copy(), ("cat", "dög"), {"domain": (codes, ("x", "y"))}, 3, 16.0)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source.bin"
    path.write_bytes(b"content")
    return path


class Counter:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> Decoded:
        self.calls += 1
        return rows()


def same(a: Decoded, b: Decoded) -> bool:
    arrays = all(np.array_equal(x, y) for x, y in zip(a.arrays().values(), b.arrays().values(), strict=True))
    return arrays and (a.classes, a.train_rows, a.peak) == (b.classes, b.train_rows, b.peak)


def entry(folder: Path) -> Path:
    (found,) = folder.iterdir()
    return found


def test_the_second_load_is_mapped_and_not_decoded(tmp_path, source):
    decode, folder = Counter(), str(tmp_path / "cache")
    first = cached(folder, [source], {"size": 8}, decode)
    second = cached(folder, [source], {"size": 8}, decode)
    assert decode.calls == 1
    assert isinstance(second.features, np.memmap)
    assert same(first, rows())
    assert same(second, rows())
    assert second.columns["domain"][1] == ("x", "y")
    assert first.digests == second.digests
    assert {p.name for p in entry(tmp_path / "cache").iterdir()} == {
        "features.npy",
        "labels.npy",
        "column-0.npy",
        "meta.json",
    }


def test_other_content_or_settings_are_another_entry(tmp_path, source):
    decode, folder = Counter(), str(tmp_path / "cache")
    cached(folder, [source], {"size": 8}, decode)
    cached(folder, [source], {"size": 9}, decode)
    moved = source.rename(tmp_path / "moved.bin")
    cached(folder, [moved], {"size": 8}, decode)
    assert decode.calls == 2
    moved.write_bytes(b"Content")
    cached(folder, [moved], {"size": 8}, decode)
    assert decode.calls == 3


def test_writing_to_a_loaded_tensor_never_reaches_the_file(tmp_path, source):
    decode, folder = Counter(), str(tmp_path / "cache")
    cached(folder, [source], {}, decode)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor = torch.from_numpy(cached(folder, [source], {}, decode).features)
    tensor.zero_()
    assert same(cached(folder, [source], {}, decode), rows())
    assert decode.calls == 1


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)


def rename_class(path: Path) -> None:
    meta = json.loads(path.read_text())
    meta["content"] = meta["content"].replace("cat", "bat")
    path.write_text(json.dumps(meta))


DAMAGE = {
    "cut": lambda folder: os.truncate(folder / "features.npy", 150),
    "cut in the header": lambda folder: os.truncate(folder / "labels.npy", 20),
    "emptied": lambda folder: os.truncate(folder / "features.npy", 0),
    "one bit of the values": lambda folder: flip(folder / "features.npy"),
    "one bit of a column": lambda folder: flip(folder / "column-0.npy"),
    "header": lambda folder: (folder / "features.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00{'descr': (((" + b" " * 200),
    "no array": lambda folder: (folder / "labels.npy").write_bytes(b"\x80\x04a pickle"),
    "gone": lambda folder: (folder / "labels.npy").unlink(),
    "meta cut": lambda folder: os.truncate(folder / "meta.json", 30),
    "meta bytes": lambda folder: (folder / "meta.json").write_bytes(b"\xff\xfe\x00"),
    "meta of another shape": lambda folder: (folder / "meta.json").write_text("[1, 2]"),
    "meta class": lambda folder: rename_class(folder / "meta.json"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_entry_is_built_again(tmp_path, source, damage):
    decode, folder = Counter(), tmp_path / "cache"
    cached(str(folder), [source], {}, decode)
    damage(entry(folder))
    assert same(cached(str(folder), [source], {}, decode), rows())
    assert decode.calls == 2
    assert same(cached(str(folder), [source], {}, decode), rows())
    assert decode.calls == 2


def test_a_folder_that_cannot_be_written_is_logged(tmp_path, source, caplog):
    decode = Counter()
    with caplog.at_level(logging.WARNING, logger="shoal.data.cache"):
        found = cached(str(source / "below a file"), [source], {}, decode)
    assert same(found, rows())
    assert "not cached" in caplog.text


def test_a_full_disk_leaves_no_half_entry(tmp_path, source, monkeypatch, caplog):
    decode, folder = Counter(), tmp_path / "cache"

    def full(file, arr, allow_pickle):
        file.write(b"half of it")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(cache_module.np, "save", full)
        assert same(cached(str(folder), [source], {}, decode), rows())
    assert "No space left" in caplog.text
    assert list(entry(folder).iterdir()) == []
    cached(str(folder), [source], {}, decode)
    cached(str(folder), [source], {}, decode)
    assert decode.calls == 2


def test_no_cache_writes_nothing(tmp_path, source, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    decode = Counter()
    cached(None, [source], {}, decode)
    assert not (tmp_path / "home").exists()
    cached("auto", [source], {}, decode)
    assert entry(tmp_path / "home" / "shoal").is_dir()


def test_the_default_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "shoal"
    for ignored in ("", "relative/is/ignored"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert default_folder().is_absolute()
        assert default_folder().name == "shoal"


SCRIPT = """
import sys, shoal.data
data = shoal.data.load({"kind": "idx", "path": sys.argv[1], "cache": sys.argv[2]})
print(data.fingerprint, int(data.features.sum()))
"""


def test_two_processes_can_make_and_load_the_same_entry(tmp_path):
    rng = np.random.default_rng(0)
    files, folder = tmp_path / "files", tmp_path / "cache"
    files.mkdir()
    pixels = rng.integers(0, 256, (300, 20, 20), dtype=np.uint8)
    for split, part in (("train", pixels[:200]), ("t10k", pixels[200:])):
        head = b"\x00\x00\x08\x03" + np.array(part.shape, ">u4").tobytes()
        (files / f"{split}-images-idx3-ubyte").write_bytes(head + part.tobytes())
        head = b"\x00\x00\x08\x01" + np.array(len(part), ">u4").tobytes()
        (files / f"{split}-labels-idx1-ubyte").write_bytes(head + bytes(i % 10 for i in range(len(part))))
    command = [sys.executable, "-W", "error", "-c", SCRIPT, str(files), str(folder)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0, 0], answers
    assert answers[0][0] == answers[1][0]
    assert answers[0][0].split()[1] == str(int(pixels.sum()))
    here = shoal.data.load({"kind": "idx", "path": str(files), "cache": str(folder)})
    assert here.fingerprint == answers[0][0].split()[0]
    # Decoded without a cache it is the same content.
    assert here.fingerprint == shoal.data.load({"kind": "idx", "path": str(files), "cache": None}).fingerprint


def test_everything_that_a_source_decodes_is_kept(tmp_path, source):
    full = dataclasses.replace(
        rows(),
        values=np.ones((5, 2), dtype=np.float32),
        held=np.array([1, 3]),
        flags=np.array([True, False, True]),
        train_rows=None,
        notes=("one image was skipped",),
        reader={"kind": "image", "size": [2, 2]},
    )
    for _ in range(2):
        found = cached(str(tmp_path / "cache"), [source], {}, lambda: full)
        for field in dataclasses.fields(Decoded):
            if field.name not in ("columns", "digests"):
                assert np.array_equal(getattr(found, field.name), getattr(full, field.name)), field.name
