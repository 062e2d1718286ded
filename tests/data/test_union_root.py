"""One folder from which the sources of a union start."""

import numpy as np
import pytest
from PIL import Image

import shoal
from shoal.errors import DataError


@pytest.fixture
def folders(tmp_path):
    rng = np.random.default_rng(0)
    for place in ("one/first", "one/second", "two/third"):
        for split in ("train", "test"):
            for label in "ab":
                folder = tmp_path / place / split / label
                folder.mkdir(parents=True)
                for number in range(3):
                    pixels = rng.integers(0, 256, (4, 4), dtype=np.uint8)
                    Image.fromarray(pixels).save(folder / f"{number}.png")
    return tmp_path


def loaded(root, *sources):
    given = [{"kind": "folder", "cache": None, **source} for source in sources]
    return shoal.data.load({"kind": "union", "root": str(root), "sources": given})


def test_relative_paths_start_from_it(folders):
    data = loaded(folders / "one", {"path": "first"}, {"path": "second"})
    assert data.columns["source"].names == ("first", "second")
    plain = loaded("", {"path": str(folders / "one/first")}, {"path": str(folders / "one/second")})
    assert data.fingerprint == plain.fingerprint


def test_a_root_of_its_own_and_a_whole_path_count_first(folders):
    own = {"path": "third", "root": str(folders / "two")}
    data = loaded(folders / "one", {"path": "first"}, own, {"path": str(folders / "one/second")})
    assert data.columns["source"].names == ("first", "third", "second")
    with pytest.raises(DataError, match=r"there is no '.*one/third'"):
        loaded(folders / "one", {"path": "third"})


def test_sources_that_have_no_root_are_left_alone(folders):
    given = {"kind": "union", "root": str(folders), "sources": [{"kind": "digits", "limit": 20, "limit_test": 10}]}
    assert len(shoal.data.load(given)) == 30
