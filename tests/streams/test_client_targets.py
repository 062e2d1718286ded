"""Every client measured by itself: test rows with the mix of its own rows."""

import numpy as np
import pytest
import torch
from stream_data import images, laws

from shoal.data.arrays import from_arrays
from shoal.errors import ConfigError
from shoal.streams.cells import Cells, OwnCells, Partition, Pool
from shoal.streams.describe import class_counts
from shoal.streams.partitions import Dirichlet, Draw, Iid, Shards, Sizes
from shoal.streams.static import MOST_TARGETS, StaticStream

LABELS = np.repeat(np.arange(10), 500)
TEST = np.repeat(np.arange(10), 100)
RNG = np.random.default_rng(0)
DATA = from_arrays(
    RNG.normal(size=(6000, 2)),
    np.concatenate([LABELS, TEST]),
    columns={"coarse": np.concatenate([LABELS, TEST]) // 5},
    test=1000,
)


def counts(rows):
    return np.bincount(DATA.labels[rows].numpy(), minlength=10)


def own(stream, client):
    held = stream.holding(client, 1)
    return torch.cat([held.train, held.validation])


@pytest.mark.parametrize(
    "partition",
    [
        Iid(),
        Dirichlet(by="client", alpha=0.5),
        Dirichlet(by="class", alpha=0.5),
        Dirichlet(by="client", alpha=0.5, group=2),
        Dirichlet(by="client", alpha=1.0, rows=300),
        Shards(per_client=3),
        Sizes(exponent=1.2),
        Sizes(sizes=[2000, 0, 7, 100, 1, 5, 5, 5, 5, 5]),
    ],
    ids=lambda p: "-".join(map(str, [type(p).__name__, *vars(p).values()])),
)
def test_the_same_mix_and_no_row_twice(partition):
    stream = StaticStream(DATA, 3, 1, clients=10, partition=partition, targets="client")
    laws(stream, 1)
    tests = [stream.holding(c, 1).test for c in range(10)]
    flat = torch.cat(tests).tolist()
    assert len(set(flat)) == len(flat)
    train = np.array([counts(own(stream, c)) for c in range(10)])
    test = np.array([counts(rows) for rows in tests])
    total = counts(DATA.test)
    held = train.sum(axis=0)
    # Exact shares of each class, every number off by less than one row, and none left over.
    assert np.array_equal(test.sum(axis=0), np.where(held > 0, total, 0))
    exact = train * (total / np.maximum(held, 1))
    assert np.abs(test - exact).max() < 1
    assert (test[train == 0] == 0).all()
    for client, target in enumerate(stream.targets(1)):
        held_now = stream.holding(client, 1)
        assert dict(target.labels) == {"client": client}
        assert torch.equal(target.test, held_now.test)
        assert torch.equal(target.validation, held_now.validation)


def test_500_training_and_100_test_rows_of_one_mix():
    stream = StaticStream(DATA, 0, 1, clients=10, partition=Dirichlet(by="client", alpha=0.3), targets="client")
    for client in range(10):
        train, test = counts(own(stream, client)), counts(stream.holding(client, 1).test)
        assert (train.sum(), abs(test.sum() - 100) <= 5) == (500, True)
        assert np.abs(train / 500 - test / test.sum()).max() < 0.02


def test_a_column_that_makes_the_mix():
    mixed = Dirichlet(by="client", alpha=0.05, group="coarse")
    stream = StaticStream(DATA, 0, 1, clients=6, partition=mixed, targets="client")
    coarse = DATA.columns["coarse"].codes
    for client in range(6):
        train = np.bincount(coarse[own(stream, client)], minlength=2)
        test = np.bincount(coarse[stream.holding(client, 1).test], minlength=2)
        assert np.abs(test - train / 5).max() < 1


def test_classes_that_nobody_trains():
    data = images([0] * 10 + [1] * 10, [0, 0, 0, 1, 1])

    class Zeros(Partition):
        def split(self, labels, clients, names, columns=None):
            return Sizes(sizes=[10, 0]).split(np.sort(labels), clients, ("fixed",), columns)

    rows = Zeros().split(data.labels[data.train].numpy(), 2, ()).rows(0)
    kept = {int(data.labels[row]) for row in rows}
    stream = StaticStream(data, 0, 1, clients=2, partition=Sizes(sizes=[1, 0]), targets="client", validation=0)
    (label,) = data.labels[stream.holding(0, 1).train].tolist()
    assert stream.holding(0, 1).test.tolist() == [row for row in data.test.tolist() if data.labels[row] == label]
    assert kept
    assert stream.notes() == [
        "clients without a row, which are skipped: 1 of 2",
        "training rows that no client holds: 19",
        "clients without a test row, which are not measured: 1 of 2",
        f"test rows that no client holds: {2 if label == 0 else 3}",
    ]


@pytest.mark.parametrize("alpha", [None, 0.1, 5.0])
def test_draws_of_test_rows(alpha):
    stream = StaticStream(DATA, 1, 1, clients=80, partition=Draw(rows=500, alpha=alpha), targets="client")
    laws(stream, 1)
    tests = [stream.holding(c, 1).test for c in range(80)]
    # 500 of 5,000 rows: 100 of 1,000.
    assert [len(set(rows.tolist())) for rows in tests] == [100] * 80
    close = 0
    for client in range(80):
        mixes = [counts(own(stream, client)) / 500, counts(tests[client]) / 100]
        close += np.abs(mixes[0] - mixes[1]).sum() / 2 < 0.25
    assert close >= 76


def test_a_draw_keeps_its_mix_where_the_test_rows_are_mixed_otherwise():
    """One-hot mixes over training rows of four classes; of class 3 there is one test row in a hundred."""
    labels, test = np.repeat(np.arange(4), 100), np.repeat(np.arange(4), [33, 33, 33, 1])
    how = Draw(rows=40, alpha=0.001)
    cells = how.cells(labels, 60, (0,), 0)
    split = how.test_split(cells, Pool(labels), Pool(test), 60, (0,))
    same = 0
    for client in range(60):
        wanted = np.bincount(labels[cells.rows(client)[0]]).argmax()
        got = test[split.rows(client)]
        assert len(got) == 10
        same += (got == wanted).sum() == (1 if wanted == 3 else 10)
    assert same >= 55


def test_with_all_targets_nothing_changes():
    plain = StaticStream(DATA, 0, 1, clients=5, partition=Draw(rows=30, alpha=0.3))
    own_targets = StaticStream(DATA, 0, 1, clients=5, partition=Draw(rows=30, alpha=0.3), targets="client")
    for client in range(5):
        assert torch.equal(plain.holding(client, 1).train, own_targets.holding(client, 1).train)
        assert torch.equal(plain.holding(client, 1).validation, own_targets.holding(client, 1).validation)
        assert torch.equal(plain.holding(client, 1).test, DATA.test)


def test_too_many_clients():
    with pytest.raises(ConfigError, match=r"stream\.targets: client measures .* 10,000 at most; there are 1,000,000"):
        StaticStream(DATA, 0, 1, clients=1_000_000, partition=Draw(rows=3), targets="client")
    assert MOST_TARGETS == 10_000


def test_equal_shares_of_odd_rows_go_to_different_clients():
    """Seven test rows for three clients with the same rows: 3, 2, 2; who gets three is drawn."""
    labels, test = np.zeros(30, dtype=np.int64), np.zeros(7, dtype=np.int64)
    seen = set()
    for seed in range(20):
        cells: Cells = OwnCells(Iid().split(labels, 3, (seed,)), 30, 3, (seed,), 0.1)
        split = Iid().test_split(cells, Pool(labels), Pool(test), 3, (seed,))
        sizes = [len(split.rows(c)) for c in range(3)]
        assert sorted(sizes) == [2, 2, 3]
        seen.add(sizes.index(3))
    assert seen == {0, 1, 2}


def test_test_rows_are_shown():
    stream = StaticStream(DATA, 0, 1, clients=2, partition=Iid(), targets="client")
    name, *sizes = class_counts(stream).rows[-1]
    assert (name, sum(map(int, sizes))) == ("test rows", 1000)
    assert sizes == [str(len(stream.holding(client, 1).test)) for client in range(2)]
    assert class_counts(StaticStream(DATA, 0, 1, clients=2)).rows[-1] == ("all", "2500", "2500")
    values = from_arrays(RNG.normal(size=(20, 2)), RNG.normal(size=20), learn="values", test=4)
    table = class_counts(StaticStream(values, 0, 1, clients=2, targets="client"))
    assert (table.title, table.rows) == ("Rows by client", [("all", "8", "8"), ("test rows", "2", "2")])
