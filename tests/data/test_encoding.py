"""The encoding of a table's columns, beside scikit-learn's."""

import numpy as np
import pandas as pd
import pytest
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.preprocessing import OneHotEncoder

from shoal.data.encoding import Category, Encoding, Number, Rules, fit
from shoal.errors import DataError

RNG = np.random.default_rng(0)
WORDS = np.array(["ant", "bee", "Cat", "été", "zz top"])
TRAIN = pd.DataFrame({"a": RNG.normal(size=60), "b": WORDS[RNG.integers(0, 5, 60)], "c": RNG.normal(5, 3, 60)})
TRAIN.loc[RNG.permutation(60)[:9], "a"] = np.nan
LATER = pd.DataFrame({"c": [1.0, np.nan], "b": ["bee", "dog"], "a": [np.nan, 2.0]})
COLUMNS = [("a", True), ("b", False), ("c", True)]


@pytest.mark.parametrize("how", ["mean", "median"])
def test_beside_scikit_learn(how):
    made = fit(TRAIN, COLUMNS, Rules(missing=how, missing_indicator=True))
    assert made.features == ["a", "a=(missing)", *(f"b={w}" for w in sorted(WORDS)), "b=(other)", "c"]
    numbers = SimpleImputer(strategy=how).fit(TRAIN[["a", "c"]])
    flags = MissingIndicator(features="missing-only", error_on_new=False).fit(TRAIN[["a", "c"]])
    hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(TRAIN[["b"]])
    for frame in (TRAIN, LATER):
        got = made.apply(frame)
        assert got.dtype == np.float64
        filled = numbers.transform(frame[["a", "c"]])
        assert got[:, [0, 8]] == pytest.approx(filled, rel=1e-12)
        assert np.array_equal(got[:, [1]], flags.transform(frame[["a", "c"]]))
        assert np.array_equal(got[:, 2:7], hot.transform(frame[["b"]]))
        # What scikit-learn leaves at zero everywhere is the feature of all others here.
        assert np.array_equal(got[:, 7], 1 - got[:, 2:7].sum(axis=1))
    assert made.apply(LATER)[:, 7].tolist() == [0, 1]


def test_an_encoding_learns_nothing_from_later_rows():
    made = fit(TRAIN, COLUMNS, Rules(missing="mean"))
    before = made.to_json()
    made.apply(LATER)
    assert made.to_json() == before
    assert np.array_equal(made.apply(pd.concat([TRAIN, LATER]))[:60], made.apply(TRAIN))


ENCODING = Encoding((Number("n", 7.5, True), Category("c", ("1", "b", None))), Rules(missing="mean"))


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        ({"n": [1, 2], "c": ["b", "1"]}, [[1, 0, 0, 1, 0, 0], [2, 0, 1, 0, 0, 0]]),
        ({"c": ["b", "x"], "n": ["1.5", ""]}, [[1.5, 0, 0, 1, 0, 0], [7.5, 1, 0, 0, 0, 1]]),
        ({"c": ["b", "b"]}, [[7.5, 1, 0, 1, 0, 0]] * 2),
        ({"n": [3, 4]}, [[3, 0, 0, 0, 1, 0], [4, 0, 0, 0, 1, 0]]),
        ({"n": [None, 4], "c": [1, None], "d": [9, 9]}, [[7.5, 1, 1, 0, 0, 0], [4, 0, 0, 0, 1, 0]]),
        ({"n": [0.5, -1], "c": [1.0, 2.0]}, [[0.5, 0, 1, 0, 0, 0], [-1, 0, 0, 0, 0, 1]]),
    ],
)
def test_no_frame_shifts_the_columns(frame, expected):
    assert ENCODING.apply(pd.DataFrame(frame)).tolist() == expected


def test_an_empty_frame_has_no_rows():
    assert ENCODING.apply(pd.DataFrame({"n": [], "c": []})).shape == (0, 6)


def test_what_later_rows_must_have():
    strict = Encoding((Number("n"), Category("c", ("a",), other=False)), Rules(missing_category="error"))
    good = pd.DataFrame({"n": [1.0], "c": ["a"]})
    assert strict.apply(good).tolist() == [[1, 1]]
    for frame, message in (
        (good[["c"]], "there is no column 'n'"),
        (good[["n"]], "column 'c': 1 of 1 rows have no category"),
        (good.assign(c="b"), "no training row has, such as 'b' in row 1"),
        (good.assign(n=np.nan), "column 'n': 1 of 1 rows have no value"),
        (good.assign(n="x"), "no numbers, such as 'x'"),
        (good.assign(n=np.inf), "infinite"),
        (pd.concat([good, good], axis=1), "more than one column of the same name"),
    ):
        with pytest.raises(DataError, match=message):
            strict.apply(frame)
    own = Encoding((Category("c", ("a",), other=False),), Rules(unseen="error"))
    with pytest.raises(DataError, match=r"no training row has, such as \(missing\) in row 1"):
        own.apply(pd.DataFrame({"c": [None]}))


def test_json_and_back():
    for encoding in (ENCODING, fit(TRAIN, COLUMNS, Rules(missing="median", missing_values=("?",), unseen="error"))):
        assert Encoding.from_json({**encoding.to_json(), "more": 1}) == encoding
    for wrong in (
        {},
        {"columns": [{"nam": "x"}], "rules": {}},
        {"columns": [], "rules": {"missing_values": [], "x": 1}},
    ):
        with pytest.raises(DataError, match="no encoding of a table"):
            Encoding.from_json(wrong)


def test_categories_named_like_a_missing_one_stay_apart():
    made = fit(pd.DataFrame({"c": ["(missing)", None, "(other)"]}), [("c", False)], Rules())
    assert made.columns == (Category("c", ("(missing)", "(other)", None)),)
    frame = pd.DataFrame({"c": [None, "(missing)", "(other)", "new"]})
    assert made.apply(frame).argmax(axis=1).tolist() == [2, 0, 1, 3]
