"""IDX files, written by hand byte by byte."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

import shoal.data
from shoal.data.idx import read_idx
from shoal.errors import ConfigError, DataError

IMAGES = struct.pack(">BBBBIII", 0, 0, 8, 3, 3, 2, 2) + bytes(range(1, 13))
LABELS = b"\x00\x00\x08\x01\x00\x00\x00\x03\x07\x29\x03"  # three labels: 7, 41, 3
TEST_IMAGES = struct.pack(">BBBBIII", 0, 0, 8, 3, 2, 2, 2) + bytes([255, 0, 0, 0, 0, 0, 0, 255])
TEST_LABELS = b"\x00\x00\x08\x01\x00\x00\x00\x02\x03\x00"  # 3, and a label that training never has: 0
PLAIN = {
    "train-images-idx3-ubyte": IMAGES,
    "train-labels-idx1-ubyte": LABELS,
    "t10k-images-idx3-ubyte": TEST_IMAGES,
    "t10k-labels-idx1-ubyte": TEST_LABELS,
}


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return folder


def load(folder: Path, **settings):
    return shoal.data.load({"kind": "idx", "path": str(folder), "cache": None, "normalize": "unit", **settings})


NAMES = {
    "plain": list(PLAIN),
    "gzipped": [name + ".gz" for name in PLAIN],
    "dots": ["train-images.idx3-ubyte", "train-labels.idx1-ubyte", "t10k-images.idx3-ubyte", "t10k-labels.idx1-ubyte"],
    "emnist": [f"emnist-letters-{a}-{b}-ubyte.gz" for a in ("train", "test") for b in ("images-idx3", "labels-idx1")],
}


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_the_usual_names_plain_and_gzipped(tmp_path, names):
    data = load(write(tmp_path, dict(zip(names, PLAIN.values(), strict=True))))
    assert data.features.dtype == torch.uint8
    assert data.features[..., 0].tolist() == [
        [[1, 2], [3, 4]],
        [[5, 6], [7, 8]],
        [[9, 10], [11, 12]],
        [[255, 0], [0, 0]],
        [[0, 0], [0, 255]],
    ]
    assert data.classes == ("0", "3", "7", "41")
    assert data.labels.tolist() == [2, 3, 1, 1, 0]
    assert (data.train.tolist(), data.test.tolist()) == ([0, 1, 2], [3, 4])
    assert data.name == tmp_path.name
    assert data.shape == (1, 2, 2)
    assert torch.allclose(data.batch(torch.tensor([3]))[0, :, :, 0], torch.tensor([[1.0, 0.0], [0.0, 0.0]]))


def test_what_is_gzipped_is_told_by_the_content_and_the_plain_twin_wins(tmp_path):
    write(tmp_path, {**PLAIN, "train-images-idx3-ubyte.gz": IMAGES[:-1] + b"\x63"})
    (tmp_path / "t10k-images-idx3-ubyte").unlink()
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(TEST_IMAGES)  # a browser unpacked it on the way
    data = load(tmp_path)
    assert int(data.features[2, 1, 1, 0]) == 12
    assert int(data.features[3, 0, 0, 0]) == 255


@pytest.mark.parametrize(
    ("code", "kind", "values"),
    [(0x09, ">i1", [-1, 5]), (0x0B, ">i2", [-300, 2]), (0x0C, ">i4", [70000, -1]), (0x0D, ">f4", [0.5, -2.0])],
)
def test_other_types_of_the_format(tmp_path, code, kind, values):
    path = tmp_path / "x"
    path.write_bytes(bytes([0, 0, code, 1]) + struct.pack(">I", 2) + np.array(values, dtype=kind).tobytes())
    assert read_idx(path).tolist() == values


def test_four_dimensions_are_images_with_channels(tmp_path):
    colour = struct.pack(">BBBBIIII", 0, 0, 8, 4, 1, 1, 2, 3) + bytes([10, 20, 30, 40, 50, 60])
    one = b"\x00\x00\x08\x01\x00\x00\x00\x01\x05"
    names = list(PLAIN)
    data = load(write(tmp_path, dict(zip(names, [colour, one, colour, one], strict=True))))
    assert data.shape == (3, 1, 2)
    assert data.features[0].tolist() == [[[10, 20, 30], [40, 50, 60]]]


FAULTS = {
    "cut short: the header says 3 x 2 x 2": ("train-images-idx3-ubyte", IMAGES[:-1]),
    "too long": ("train-images-idx3-ubyte", IMAGES + b"\x00"),
    "cut short in the header": ("t10k-images-idx3-ubyte", TEST_IMAGES[:9]),
    "no IDX file; it must begin": ("train-labels-idx1-ubyte", b"PK\x03\x04 a zip file"),
    "begins with nothing": ("train-labels-idx1-ubyte", b""),
    "3 images, but 2 labels": ("train-labels-idx1-ubyte", TEST_LABELS),
    "images and labels mixed up": ("t10k-labels-idx1-ubyte", TEST_IMAGES),
    "images are bytes in 3 dimensions": ("t10k-images-idx3-ubyte", TEST_LABELS),
    "(2, 1) pixels, but the training images": (
        "t10k-images-idx3-ubyte",
        struct.pack(">BBBBIII", 0, 0, 8, 3, 2, 2, 1) + bytes(4),
    ),
    # 2**32 - 1 rows of 2**32 - 1 pixels: must not overflow into a size that fits.
    "18446744065119617025 in all": ("t10k-labels-idx1-ubyte", b"\x00\x00\x08\x02" + b"\xff" * 8),
}


@pytest.mark.parametrize("message", FAULTS, ids=range(len(FAULTS)))
def test_faulty_files_are_named(tmp_path, message):
    name, content = FAULTS[message]
    write(tmp_path, {**PLAIN, name: content})
    with pytest.raises(DataError) as raised:
        load(tmp_path)
    assert message in str(raised.value)
    assert str(tmp_path) in str(raised.value)


@pytest.mark.parametrize("cut", [5, 25, -1, -5])
def test_a_truncated_gzip_file(tmp_path, cut):
    folder = write(tmp_path, {name + ".gz": content for name, content in PLAIN.items()})
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz: the gzip file is cut short or damaged"):
        load(folder)


def test_a_damaged_gzip_file(tmp_path):
    folder = write(tmp_path, {name + ".gz": content for name, content in PLAIN.items()})
    path = folder / "train-labels-idx1-ubyte.gz"
    content = bytearray(path.read_bytes())
    content[-8] ^= 1  # the checksum
    path.write_bytes(content)
    with pytest.raises(DataError, match="cut short or damaged"):
        load(folder)


def test_missing_and_ambiguous_files(tmp_path):
    with pytest.raises(DataError, match="there is no"):
        load(tmp_path / "absent")
    write(tmp_path, {name: PLAIN[name] for name in list(PLAIN)[:3]})
    with pytest.raises(DataError, match="no file with test labels"):
        load(tmp_path)
    with pytest.raises(DataError, match="is not a folder"):
        load(tmp_path / "train-images-idx3-ubyte")
    write(tmp_path, {**PLAIN, "emnist-digits-train-images-idx3-ubyte": IMAGES})
    with pytest.raises(DataError, match="could both be the train images"):
        load(tmp_path)


def test_root_and_settings_that_do_not_exist(tmp_path):
    (tmp_path / "here").mkdir()
    write(tmp_path / "here", PLAIN)
    assert load(Path("here"), root=str(tmp_path)).name == "here"
    with pytest.raises(ConfigError, match="did you mean 'path'"):
        shoal.data.load({"kind": "idx", "path": "x", "pth": "y"})


def test_channels_size_and_fit(tmp_path):
    write(tmp_path, PLAIN)
    data = load(tmp_path, channels=3, size=[3, 4], fit="pad")
    assert data.shape == (3, 3, 4)
    for channel in range(3):  # [[9, 10], [11, 12]], the extra line at the bottom
        assert data.features[2, ..., channel].tolist() == [[0, 9, 10, 0], [0, 11, 12, 0], [0, 0, 0, 0]]
    always = {"kind": "image", "unreadable": "error"}
    assert data.reader == {**always, "size": [3, 4], "channels": 3, "convert": True, "fit": "pad"}
    assert load(tmp_path).reader == {**always, "size": [2, 2], "channels": 1, "convert": False, "fit": None}
    with pytest.raises(DataError, match="row 0: 2x2 pixels do not fit into 1x2"):
        load(tmp_path, size=[1, 2], fit="pad")
    cache = str(tmp_path / "cache")
    assert [load(tmp_path, size=s, cache=cache).shape for s in (None, 4, [4, 2], 4)] == [
        (1, 2, 2),
        (1, 4, 4),
        (1, 4, 2),
        (1, 4, 4),
    ]
