"""Data sets whose models learn real values."""

import numpy as np
import pytest
import torch

import shoal.data
from shoal.data.arrays import from_arrays
from shoal.errors import ConfigError, DataError
from shoal.streams.partitions import Dirichlet, Draw, Iid, Shards, Sizes
from shoal.streams.static import StaticStream
from shoal.streams.tasks import TaskStream

RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 3))
Y = RNG.normal(-300, 40, size=50)
GROUP = np.arange(50) % 5


@pytest.mark.parametrize(
    "y", [Y, Y[:, None], torch.from_numpy(Y), list(Y), np.column_stack([Y, -7 * Y, np.full(50, 3)])]
)
def test_values_and_the_way_back(y):
    data = from_arrays(X, y, learn="values")
    wanted = np.asarray(y, dtype=np.float64).reshape(50, -1)
    assert data.is_regression
    assert data.outputs == wanted.shape[1]
    assert (data.classes, data.labels.tolist()) == (("all",), [0] * 50)
    rows = torch.arange(50)
    assert data.wanted(rows).dtype == torch.float32
    assert data.in_units(data.wanted(rows)).numpy() == pytest.approx(wanted, rel=1e-6, abs=1e-4)
    train = data.train.numpy()
    spread = np.where(wanted.std(axis=0) < 1e-9, 1, wanted[train].std(axis=0))
    expected = (wanted - wanted[train].mean(axis=0)) / spread
    assert data.wanted(rows).numpy() == pytest.approx(expected, abs=1e-5)
    assert len(data.test) == 10


def test_whole_numbers_and_test_rows():
    data = from_arrays(X, np.arange(50), X[:2], [100, -100], learn="values")
    assert data.in_units(data.wanted(data.test)).reshape(-1).tolist() == pytest.approx([100, -100], rel=1e-6)
    # The scale is that of the training rows.
    assert float(data.value_offset) == pytest.approx(24.5)
    assert float(data.value_scale) == pytest.approx(np.sqrt((50**2 - 1) / 12))
    assert from_arrays(X, Y, learn="values").fingerprint != from_arrays(X, Y + 1, learn="values").fingerprint


def test_nothing_is_guessed():
    for y in (Y, list(Y), torch.from_numpy(Y)):
        with pytest.raises(DataError, match=r"needs integers or strings; got float.*say learn='values'"):
            from_arrays(X, y)
    assert not from_arrays(X, GROUP).is_regression
    with pytest.raises(DataError, match="learn: 'classes' or 'values'; got 'value'"):
        from_arrays(X, Y, learn="value")


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.where(np.arange(50) == 7, np.nan, Y), "1 rows have a value that is NaN or infinite .* row 7"),
        (np.where(np.arange(50) == 7, 1e39, Y), "1 rows have a value that is NaN or infinite"),
        (Y[:49], "49 values for 50 rows"),
        (["a"] * 50, "needs numbers; got <U1"),
        (np.zeros((50, 2, 2)), r"the shape \[n\] or \[n, outputs\]"),
    ],
)
def test_refusals(y, message):
    with pytest.raises(DataError, match=message):
        from_arrays(X, y, learn="values")


def test_test_values_of_another_width():
    with pytest.raises(DataError, match="y_test: 2 values a row, but y has 1"):
        from_arrays(X, Y, X, np.column_stack([Y, Y]), learn="values")


def test_the_hold_out_is_stratified_by_columns():
    data = from_arrays(X, Y, learn="values", columns={"group": GROUP}, test=10)
    assert np.bincount(GROUP[data.test.numpy()]).tolist() == [2] * 5


DATA = from_arrays(X, Y, learn="values", columns={"group": GROUP})


@pytest.mark.parametrize(
    "partition",
    [Dirichlet(by="class", alpha=1), Dirichlet(by="client", alpha=1), Shards(), Draw(rows=3, alpha=0.1)],
    ids=lambda p: type(p).__name__,
)
def test_partitions_by_class_are_refused(partition):
    with pytest.raises(
        ConfigError, match=f"{type(partition).__name__} deals rows by their classes, but arrays has none"
    ):
        StaticStream(DATA, 0, 1, clients=4, partition=partition)


@pytest.mark.parametrize(
    "partition",
    [Iid(), Sizes(exponent=1.0), Draw(rows=5), Dirichlet(by="client", alpha=0.1, group="group")],
    ids=lambda p: type(p).__name__,
)
def test_other_partitions_deal_values(partition):
    stream = StaticStream(DATA, 0, 1, clients=4, partition=partition, targets="client")
    assert stream.outputs == 1
    assert sum(len(stream.holding(c, 1).train) for c in range(4)) > 10


def test_tasks_of_values():
    with pytest.raises(ConfigError, match="by: class makes tasks of classes, but arrays has none"):
        TaskStream(DATA, 0, 5, clients=2, tasks=1)
    stream = TaskStream(DATA, 0, 5, clients=2, tasks=5, by="group")
    assert [len(target.test) + 0 for target in stream.targets(1)] == [2] * 5
    assert stream.outputs == 1


def test_a_table_of_values(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x,y\n1,0.5\n2,-3\n3,1e3\n4,\n5,7\n")
    with pytest.raises(DataError, match=r"data\.label: 1 of 5 rows have no value in 'y', the first is row 4"):
        shoal.data.load({"kind": "table", "path": str(path), "label": "y", "learn": "values"})
    settings = {"kind": "table", "path": str(path), "label": "y", "learn": "values", "missing_label": "drop"}
    data = shoal.data.load({**settings, "test": 1})
    assert data.in_units(data.wanted(torch.arange(4))).reshape(-1).tolist() == pytest.approx(
        [0.5, -3, 1000, 7], rel=1e-5, abs=1e-4
    )
    assert data.reader["learn"] == "values"
    path.write_text("x,y\n1,0.5\n2,-inf\n3,1\n")
    with pytest.raises(DataError, match=r"infinite .* row 2"):
        shoal.data.load(settings)
