"""Data handed over in Python."""

import numpy as np
import pytest
import torch

import shoal.data
from shoal.data.arrays import from_arrays
from shoal.errors import DataError

RNG = np.random.default_rng(0)
TABLE = RNG.normal(3, 2, (40, 3))
LABELS = np.array([3, 7, 41, 7] * 10)


def test_labels_keep_their_originals():
    data = from_arrays(TABLE, LABELS)
    assert data.classes == ("3", "7", "41")  # numeric order, not "3", "41", "7"
    assert data.labels.tolist() == [0, 1, 2, 1] * 10
    assert from_arrays(TABLE, LABELS - 10).classes == ("-7", "-3", "31")
    words = from_arrays(TABLE, ["wolf", "ant", "Bee", "ant"] * 10)
    assert words.classes == ("Bee", "ant", "wolf")
    assert words.labels.tolist() == [2, 1, 0, 1] * 10
    assert from_arrays(TABLE, torch.from_numpy(LABELS[:, None])).classes == data.classes
    assert from_arrays(TABLE, LABELS == 7).classes == ("0", "1")


def test_a_label_that_only_the_test_rows_have():
    data = from_arrays(TABLE, LABELS, TABLE[:4], [0, 3, 3, 41])
    assert data.classes == ("0", "3", "7", "41")
    assert data.labels[data.test].tolist() == [0, 1, 1, 3]
    assert (len(data.train), len(data.test)) == (40, 4)


def test_the_hold_out():
    data = from_arrays(TABLE, LABELS, test=0.2, seed=4)
    assert (len(data.train), len(data.test)) == (32, 8)
    assert torch.bincount(data.labels[data.test]).tolist() == [2, 4, 2]
    assert not set(data.train.tolist()) & set(data.test.tolist())
    assert torch.equal(data.test, from_arrays(TABLE, LABELS, test=8, seed=4).test)
    assert not torch.equal(data.test, from_arrays(TABLE, LABELS, seed=5).test)
    # A class of one row is trained on, never tested alone.
    lonely = from_arrays(TABLE, [9] + [1] * 39, test=39 - 1)
    assert 0 in lonely.train.tolist()
    with pytest.raises(DataError, match="only 37 of 40 can be held out"):
        from_arrays(TABLE, LABELS, test=38)
    for share in (0, -0.5, float("nan"), 1.5, float("inf")):
        with pytest.raises(DataError, match="a share between 0 and 1"):
            from_arrays(TABLE, LABELS, test=share)


def test_tables_are_standardised_by_the_training_rows_alone():
    train, test = TABLE[:30], TABLE[30:] + 100
    data = from_arrays(train, LABELS[:30], test, LABELS[30:])
    expected = (train - train.mean(axis=0)) / train.std(axis=0)
    assert np.allclose(data.batch(data.train).numpy(), expected, atol=1e-5)
    expected = (test - train.mean(axis=0)) / train.std(axis=0)
    assert np.allclose(data.batch(data.test).numpy(), expected, rtol=1e-5, atol=1e-4)


def test_the_other_normalisations():
    x = np.array([[1.0, -8.0, 0.0], [3.0, 2.0, 0.0], [4.0, 4.0, 0.0]])
    given = (x, [0, 1, 1], x[:1], [0])
    raw = from_arrays(*given, normalize="none")
    assert torch.equal(raw.batch(torch.arange(3)), torch.from_numpy(x).float())
    unit = from_arrays(*given, normalize="unit").batch(torch.arange(3))
    assert np.allclose(unit.numpy(), x / [4, 8, 1], atol=1e-6)
    half = from_arrays(*given, normalize="half").batch(torch.arange(3))
    assert np.allclose(half.numpy(), (x / [4, 8, 1] - 0.5) / 0.5, atol=1e-6)
    # A constant feature is shifted to 0, not blown up; also where its mean is no round number.
    constant = np.column_stack([np.full(3, 0.1), np.full(3, 1e6), [1.0, 2.0, 3.0]])
    got = from_arrays(constant, [0, 1, 1], constant, [0, 1, 1]).batch(torch.arange(3))
    assert np.allclose(got[:, :2].numpy(), 0, atol=1e-6)
    assert got[:, 2].numpy() == pytest.approx(np.array([-1, 0, 1]) * np.sqrt(1.5), abs=1e-6)


def test_images():
    grey = RNG.integers(0, 256, (10, 5, 4), dtype=np.uint8)
    data = from_arrays(grey, [0, 1] * 5)
    assert (data.features.shape, data.shape, data.peak) == ((10, 5, 4, 1), (1, 5, 4), 255)
    colour = RNG.integers(0, 256, (10, 4, 4, 3), dtype=np.uint8)
    data = from_arrays(torch.from_numpy(colour), [0, 1] * 5)
    assert data.shape == (3, 4, 4)
    x = data.batch(data.train).double()
    assert x.mean((0, 1, 2)).numpy() == pytest.approx(np.zeros(3), abs=1e-6)
    assert x.std((0, 1, 2), correction=0).numpy() == pytest.approx(np.ones(3), abs=1e-6)
    # A copy: what the user does later changes nothing.
    colour[:] = 0
    assert int(data.features.max()) > 0


def test_columns_cover_all_rows_and_stratify():
    domain = np.repeat(["b", "a"], [30, 10])
    data = from_arrays(TABLE, LABELS, columns={"domain": domain, "site": list(range(40))})
    assert data.columns["domain"].names == ("a", "b")
    assert data.columns["domain"].codes.tolist() == [1] * 30 + [0] * 10
    assert len(data.columns["site"].names) == 40
    plain = from_arrays(TABLE, LABELS, columns={"domain": domain})
    assert (domain[plain.test.numpy()] == "a").sum() == 2
    with pytest.raises(DataError, match=r"columns\['domain'\]: 40 values for 44 rows"):
        from_arrays(TABLE, LABELS, TABLE[:4], LABELS[:4], columns={"domain": domain})


def test_the_fingerprint_is_one_of_the_content():
    one = from_arrays(TABLE, LABELS).fingerprint
    assert one == from_arrays(TABLE.copy(), LABELS.tolist(), name="other").fingerprint
    changed = TABLE.copy()
    changed[5, 1] += 1
    swapped = LABELS.copy()
    swapped[[0, 1]] = swapped[[1, 0]]
    others = [
        from_arrays(changed, LABELS),
        from_arrays(TABLE, swapped),
        from_arrays(TABLE, LABELS + 1),
        from_arrays(TABLE, LABELS, seed=1),
        from_arrays(TABLE, LABELS, columns={"c": LABELS}),
        from_arrays(TABLE, LABELS, columns={"c": LABELS + 1}),
        from_arrays(TABLE, LABELS, columns={"d": LABELS}),
    ]
    assert len({one, *(data.fingerprint for data in others)}) == 8


BAD = {
    "NaN or infinite .* first in row 2, feature 1": (np.where(np.arange(120).reshape(40, 3) == 7, np.nan, 1), LABELS),
    "1 values are NaN or infinite": (np.where(np.arange(120).reshape(40, 3) == 7, 1e300, 1), LABELS),
    "39 values for 40 rows": (TABLE, LABELS[:39]),
    "needs numbers; got <U": (np.full((40, 2), "a"), LABELS),
    "images are uint8": (np.zeros((40, 4, 4)), LABELS),
    r"channels come last: use x.transpose\(0, 2, 3, 1\)": (np.zeros((40, 3, 8, 8), np.uint8), LABELS),
    r"got the shape \(40,\)": (np.zeros(40), LABELS),
    "there is nothing in it": (np.zeros((0, 3)), []),
    "one-hot rows become labels": (TABLE, np.eye(40)),
    "needs integers or strings; got float64": (TABLE, LABELS / 2),
    "values of one kind; got .'int', 'str'.": (TABLE, [1, "a"] * 20),
    "have no value": (TABLE, ["a", None] * 20),
    "rows of different lengths": ([[1.0], [1.0, 2.0]], [0, 1]),
}


@pytest.mark.parametrize("message", BAD, ids=range(len(BAD)))
def test_refusals(message):
    with pytest.raises(DataError, match=message):
        from_arrays(*BAD[message])


def test_refusals_of_test_rows():
    with pytest.raises(DataError, match="go together"):
        from_arrays(TABLE, LABELS, TABLE)
    with pytest.raises(DataError, match=r"x_test: rows of float64 \(2,\), but those of x are float64 \(3,\)"):
        from_arrays(TABLE, LABELS, TABLE[:, :2], LABELS)
    with pytest.raises(DataError, match="one kind"):
        from_arrays(TABLE, LABELS, TABLE, [str(y) for y in LABELS])


def test_the_kind_cannot_load_by_itself():
    with pytest.raises(DataError, match="data=dataset"):
        shoal.data.load("arrays")
