"""``data.rows``: a span of the training rows, so that two runs share none."""

from pathlib import Path

import numpy as np
import pytest
from image_files import encoded, write_table

import shoal
from shoal.data.duplicates import marks
from shoal.errors import ConfigError
from shoal.registry import build

DIGITS = {"kind": "digits", "test": 0.2}


def loaded(**settings):
    return build("data", settings).load()


def test_a_span_is_counted_in_the_sources_order_and_leaves_the_test_rows() -> None:
    whole = loaded(**DIGITS)
    first, second = loaded(**DIGITS, rows=[0, 500]), loaded(**DIGITS, rows=[500, len(whole.train)])
    assert first.train.tolist() == whole.train.tolist()[:500]
    assert second.train.tolist() == whole.train.tolist()[500:]
    for part in (first, second):
        assert part.test.tolist() == whole.test.tolist()
        assert part.fingerprint != whole.fingerprint
    few = loaded(**DIGITS, rows=[500, 1000], limit=30)
    assert len(few.train) == 30
    assert set(few.train.tolist()) < set(whole.train.tolist()[500:1000])


def test_the_sources_own_test_rows_are_not_counted(tmp_path: Path) -> None:
    images = [encoded(np.full((2, 2, 3), value, dtype=np.uint8)) for value in range(0, 240, 10)]
    for split, part in (("train", images[:16]), ("test", images[16:])):
        write_table(
            tmp_path / f"{split}.parquet", part, {"label": ["a", "b"]}, label=[i // 8 for i in range(len(part))]
        )
    data = loaded(kind="parquet", path=str(tmp_path), rows=[4, 12], cache=None, normalize="channel")
    assert data.features[data.train][:, 0, 0, 0].tolist() == list(range(40, 120, 10))
    assert len(data.test) == 8
    # The mean over these rows alone: 75.
    assert float(-data.offset[0] / data.scale[0]) == pytest.approx(75, abs=0.01)
    assert data.notes == ()
    sorted_away = loaded(kind="parquet", path=str(tmp_path), rows=[0, 8], cache=None)
    assert sorted_away.notes == ("data.rows: rows 0 to 8 have no row of 1 of the classes",)


@pytest.mark.parametrize("rows", [[0, 1439], [700, 700], [900, 800], [1438, 1500]])
def test_a_span_that_is_not_there_is_refused(rows: list[int]) -> None:
    with pytest.raises(ConfigError, match=r"data\.rows: .* <= 1438 .*digits"):
        loaded(**DIGITS, rows=rows)


@pytest.mark.parametrize("rows", [[3], [1, 2, 3], [-1, 4], "all"])
def test_a_span_has_two_ends(rows: object, tmp_path: Path) -> None:
    raw = {"data": {**DIGITS, "rows": rows}, "stream": {"kind": "static", "clients": 2}}
    with pytest.raises(ConfigError, match=r"data\.rows"):
        shoal.run(raw, out=tmp_path / "run")


def test_equal_images_have_equal_marks_and_others_have_not() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (40, 3, 3, 1), dtype=np.uint8)
    found = marks(images, np.arange(40))
    assert len(set(found.tolist())) == 40
    assert marks(images[::-1], np.array([39, 0])).tolist() == [found[0], found[39]]
    changed = images.copy()
    changed[5, 2, 2, 0] += 1
    assert (marks(changed, np.arange(40)) != found).nonzero()[0].tolist() == [5]
    assert marks(images.reshape(40, 9, 1, 1), np.arange(1))[0] != found[0]
