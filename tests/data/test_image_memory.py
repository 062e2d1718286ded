"""Images that do not fit into memory are refused before any is decoded."""

import numpy as np
import pytest
from image_files import encoded, write_table

import shoal.data
from shoal.data import memory
from shoal.data.images import Rule, decode_images, fitted
from shoal.errors import DataError

GIB = 2**30


@pytest.fixture
def room(monkeypatch):
    """Says how much memory there is."""

    def set_to(amount):
        monkeypatch.setattr(memory, "available", lambda: amount)

    return set_to


def never():
    pytest.fail("an image was asked for")


@pytest.mark.parametrize("size", [30_000, 100_000])
def test_a_size_that_cannot_be(size, room):
    room(16 * GIB)
    gib = 1797 * size * size * 3 / GIB
    with pytest.raises(DataError) as error:
        decode_images(never, 1797, Rule(channels=3, size=(size, size)), "pictures")
    assert str(error.value) == (
        f"pictures: 1,797 rows x {size} x {size} pixels x 3 channels are {gib:,.1f} GiB, but only 16.0 GiB of memory "
        f"are available, and images may take 80% of them; set a smaller data.size, or use fewer images"
    )


def test_the_bound(room):
    # 10 rows of 20 x 30 x 3 bytes, and 8 bytes for each pixel of the one in the making.
    needed = 20 * 30 * (10 * 3 + 8)
    room(int(needed / memory.SHARE) + 1)
    memory.check_room(10, (20, 30), 3, "x")
    room(int(needed / memory.SHARE) - 1)
    with pytest.raises(DataError, match="10 rows x 20 x 30 pixels x 3 channels"):
        memory.check_room(10, (20, 30), 3, "x")
    room(None)  # a system that does not say
    memory.check_room(10**9, (10**6, 10**6), 3, "x")


def test_images_of_their_own_size(room):
    image = encoded(np.zeros((40, 50), dtype=np.uint8))
    room(40 * 50 * 60)
    rows = decode_images(lambda: iter([("a", image)] * 10), 10, Rule(), "x")
    assert rows.pixels.shape == (10, 40, 50, 1)
    with pytest.raises(DataError, match=r"1,000 rows x 40 x 50 pixels x 1 channels are 0\.0 GiB"):
        decode_images(lambda: iter([("a", image)] * 1000), 1000, Rule(), "x")


def test_every_source_checks(room, tmp_path):
    write_table(tmp_path / "train.parquet", [encoded(np.zeros((4, 4), dtype=np.uint8))] * 4, label=[0, 1, 0, 1])
    room(GIB)
    parquet = {"kind": "parquet", "path": str(tmp_path), "cache": None}
    for settings in (parquet, {"kind": "union", "sources": [{**parquet, "test": 2}]}):
        with pytest.raises(DataError, match=r"rows x 100000 x 100000 pixels x 1 channels are 37\.3 GiB"):
            shoal.data.load({**settings, "size": 100_000})
    with pytest.raises(DataError, match="2 rows x 30000 x 20000 pixels"):
        fitted(np.zeros((2, 4, 4, 1), dtype=np.uint8), Rule(size=(30_000, 20_000)), "x")


def test_what_the_system_says():
    found = memory.available()
    assert found is None or 2**20 < found < 2**50
