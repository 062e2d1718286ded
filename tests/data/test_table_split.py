"""Which rows of a table are held out: by label, for every client, or the latest ones."""

import io

import numpy as np
import pandas as pd
import pytest

import shoal.data
from shoal.data.heldout import by_client, latest
from shoal.errors import ConfigError, DataError
from shoal.randomness import generator

RNG = np.random.default_rng(1)
SIZES = {"a": 40, "b": 11, "c": 2, "d": 1}
FRAME = pd.DataFrame(
    {
        "who": np.repeat(list(SIZES), list(SIZES.values())),
        "x": RNG.normal(size=54),
        "y": RNG.choice(["no", "yes"], size=54),
        "when": RNG.permutation(54) // 2,
    }
)


def load(frame, tmp_path, **settings):
    frame.to_csv(tmp_path / "rows.csv", index=False)
    return shoal.data.load({"kind": "table", "path": str(tmp_path / "rows.csv"), "label": "y", **settings})


def contents(data, rows):
    """The rows as a set that does not depend on their order."""
    return {tuple(row) for row in data.features[rows].double().numpy().round(6).tolist()}


@pytest.mark.parametrize(
    "settings",
    [
        {"ignore": ["who", "when"]},
        {"client": "who", "ignore": ["when"]},
        {"client": "who", "time": "when"},
        {"time": "when", "ignore": ["who"]},
        {"client": "who", "ignore": ["when"], "limit": 20, "limit_test": 5},
        {"label": "x", "learn": "values", "client": "who", "numeric": ["when"]},
    ],
)
def test_the_order_of_the_file_does_not_matter(tmp_path, settings):
    data = load(FRAME, tmp_path, **settings)
    shuffled = FRAME.sample(frac=1, random_state=3)
    other = load(shuffled, tmp_path, **settings)
    assert 0 < len(data.test) < len(data.train)
    assert contents(data, data.train) == contents(other, other.train)
    assert contents(data, data.test) == contents(other, other.test)
    assert len(data) == len(data.train) + len(data.test)
    if "limit" not in settings and settings.get("label") != "x":  # the rows keep their order
        place = data.reader["features"].index("x")
        assert other.features[:, place].numpy() == pytest.approx(shuffled["x"].to_numpy(np.float32))


def test_every_client_has_test_rows(tmp_path):
    data = load(FRAME, tmp_path, client="who", ignore=["when"], test=0.2)
    codes = data.columns["who"].codes
    assert np.bincount(codes[data.test], minlength=4).tolist() == [8, 2, 1, 0]
    assert data.notes == ("clients without a test row: 1 of 4",)
    number = load(FRAME, tmp_path, client="who", ignore=["when"], test=20)
    # In proportion to 40, 11 and 2: 15.1, 4.2 and 0.8.
    assert np.bincount(number.columns["who"].codes[number.test], minlength=4).tolist() == [15, 4, 1, 0]
    few = load(FRAME, tmp_path, client="who", ignore=["when"], test=4)
    assert np.bincount(few.columns["who"].codes[few.test], minlength=4).tolist() == [2, 1, 1, 0]
    for wrong in (2, 54):
        with pytest.raises(DataError, match="3 clients have two rows or more"):
            load(FRAME, tmp_path, client="who", ignore=["when"], test=wrong)
    other = load(FRAME, tmp_path, client="who", ignore=["when"], split_seed=1)
    assert contents(data, data.test) != contents(other, other.test)


def test_stratified_inside_every_client():
    labels = np.tile([0, 0, 0, 1], 50)
    clients = np.repeat([0, 1], 100)
    held = by_client(labels, clients, [], 0.2, generator(0))
    for client in (0, 1):
        assert np.bincount(labels[held[clients[held] == client]]).tolist() == [15, 5]
    domain = np.tile([0, 1], 100)
    held = by_client(labels, clients, [domain], 0.2, generator(0))
    assert np.bincount(domain[held]).tolist() == [20, 20]


def test_a_class_is_never_held_out_as_a_whole():
    # Both clients have one row of each class: each of them keeps one, and tests on the other.
    held = by_client(np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1]), [], 0.5, generator(0))
    assert sorted((held // 2).tolist()) == [0, 1]
    assert len({0, 1} & set((np.delete(np.arange(4), held) % 2).tolist())) == 2
    with pytest.raises(DataError, match="no row can be held out"):
        by_client(np.arange(4), np.array([0, 0, 1, 1]), [], 0.5, generator(0))


def test_the_latest_rows_of_each_client(tmp_path):
    data = load(FRAME, tmp_path, client="who", time="when", test=0.25)
    train, test = set(data.train.tolist()), set(data.test.tolist())
    assert "when" not in data.reader["features"]
    for who, group in FRAME.groupby("who"):
        mine = set(group.index)
        moments = sorted(group["when"].unique())
        count = min(max(1, round(0.25 * len(moments))), len(moments) - 1)
        late = set(group.index[group["when"] > moments[len(moments) - count - 1]])
        assert test & mine == late
        if late:
            assert max(FRAME["when"][list(train & mine)]) < min(FRAME["when"][list(late)])
        else:
            assert who == "d"


def test_equal_stamps_never_straddle():
    stamps = np.array([1, 1, 1, 2, 2, 3, 3, 3, 3, 9])
    clients = np.array([0] * 9 + [1])
    assert latest(stamps, clients, 0.34).tolist() == [5, 6, 7, 8]
    assert latest(stamps, clients, 2).tolist() == [3, 4, 5, 6, 7, 8]
    assert latest(stamps, clients, 50).tolist() == [3, 4, 5, 6, 7, 8]
    assert latest(stamps, clients, 1e-9).tolist() == [5, 6, 7, 8]
    with pytest.raises(DataError, match="no client has rows of two different moments"):
        latest(np.zeros(3), np.zeros(3, dtype=np.int64), 0.5)
    for wrong in (0, 1.5, float("nan")):
        with pytest.raises(DataError, match="a share between 0 and 1"):
            latest(stamps, clients, wrong)


def timed(stamps, tmp_path, kind="csv", **settings):
    frame = pd.DataFrame({"x": np.arange(len(stamps)), "t": stamps, "y": np.arange(len(stamps)) % 2})
    path = tmp_path / f"t.{kind}"
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
    data = shoal.data.load(
        {"kind": "table", "path": str(path), "label": "y", "learn": "values", "time": "t", "test": 1, **settings}
    )
    return data, data.features[data.test, 0].tolist()


def test_stamps_are_compared_in_utc(tmp_path):
    # 23:30 in New York is later than 00:30 of the next day in Tokyo, and than 01:00 in Berlin.
    stamps = [
        "2024-01-02T00:30:00+09:00",
        "2024-01-01T23:30:00-05:00",
        "2024-01-02T01:00:00+01:00",
        "2024-01-01T00:00Z",
    ]
    assert timed(stamps, tmp_path)[1] == [1]
    # The same moment in two zones stays together.
    same = ["2024-01-01T00:00Z", "2024-01-01T12:00+00:00", "2024-01-01T13:00+01:00"]
    assert timed(same, tmp_path)[1] == [1, 2]
    mixed, late = timed(["2024-01-01 10:00", "2024-01-01T11:00+02:00", "2023-01-01"], tmp_path)
    assert late == [0]
    assert mixed.notes == ("stamps without a time zone, read as UTC: 2 of 3",)
    aware = pd.Series(pd.to_datetime(["2024-01-02", "2024-01-05", "2024-01-03"])).dt.tz_localize("Asia/Tokyo")
    assert timed(aware, tmp_path, "parquet")[1] == [1]
    assert timed(aware.dt.tz_localize(None), tmp_path, "parquet")[1] == [1]


def test_stamps_that_are_numbers(tmp_path):
    assert timed([100, 20, 3], tmp_path)[1] == [0]  # not by text
    assert timed([-1.5, -1.25, -3], tmp_path)[1] == [1]
    base = 1_700_000_000_000_000_000  # nanoseconds: neighbours are one float
    assert timed([base, base + 1, base + 2], tmp_path)[1] == [2]


@pytest.mark.parametrize(
    ("stamps", "message"),
    [
        (
            ["2024-01-01", "yesterday", "2024-01-02"],
            "1 rows have no stamp in 't' that can be read, the first is row 2: 'y",
        ),
        (["2024-01-01", "", "2024-01-02"], "1 rows have no stamp .* row 2"),
        (["1", "", "3"], "1 rows have no stamp .* row 2"),
        (["2024-01-01", "2024-13-01", "2024-01-02"], "row 2: '2024-13-01'"),
        (["01/02/2024", "02/02/2024", "03/02/2024"], "3 rows have no stamp"),
    ],
)
def test_stamps_that_cannot_be_read(tmp_path, stamps, message):
    with pytest.raises(DataError, match=message):
        timed(stamps, tmp_path)


def test_time_and_a_test_file_exclude_each_other(tmp_path):
    for split in ("train", "test"):
        FRAME.to_csv(tmp_path / f"{split}.csv", index=False)
    with pytest.raises(ConfigError, match=r"data\.time: says which rows are for testing, but .* has a test file"):
        shoal.data.load({"kind": "table", "path": str(tmp_path), "label": "y", "time": "when"})


def test_a_class_that_comes_later_is_noted(tmp_path):
    text = "x,t,y\n1,1,a\n2,2,b\n3,3,a\n4,4,c\n"
    data = load(pd.read_csv(io.StringIO(text)), tmp_path, time="t", test=0.25)
    assert data.classes == ("a", "b", "c")
    assert data.notes == ("labels that no training row has: c",)
