"""Exact splits: as many training and test rows as asked for, in one mix; distinct shards; groups of classes."""

import numpy as np
import pytest
import torch
from scipy import stats
from stream_data import laws

from shoal.data.arrays import from_arrays
from shoal.errors import ConfigError
from shoal.registry import resolve
from shoal.streams.cells import Pool
from shoal.streams.partitions import ByColumn, Dirichlet, Draw, Iid, Shards, Sizes
from shoal.streams.static import StaticStream


def rows_of(classes, train, test):
    """A data set with so many rows of each class; the pixels are nothing."""
    labels = np.concatenate([np.repeat(np.arange(classes), train), np.repeat(np.arange(classes), test)])
    x = np.zeros((len(labels), 1), dtype=np.float32)
    count = classes * train
    return from_arrays(x[:count], labels[:count], x[count:], labels[count:], columns={"half": labels % 2})


CIFAR = rows_of(10, 5000, 1000)


def counts(data, rows, classes):
    return np.bincount(data.labels[rows].numpy(), minlength=classes)


def tables(stream, classes):
    """Own (training and validation) and test rows, by client and class."""
    data, own, test = stream.dataset, [], []
    for client in range(stream.clients):
        held = stream.holding(client, 1)
        own.append(counts(data, torch.cat([held.train, held.validation]), classes))
        test.append(counts(data, held.test, classes))
    return np.array(own), np.array(test)


@pytest.mark.parametrize("alpha", [100, 1, 0.5, 0.1, 0.05])
def test_500_and_100_rows_of_one_mix_exactly(alpha):
    """100 clients share all of CIFAR-10: the test rows of a client are a fifth of its own, class by class."""
    partition = Dirichlet(by="client", alpha=alpha, prior="ones", rows=500)
    for test_rows in (100, None):
        stream = StaticStream(
            CIFAR, 1, 1, clients=100, partition=partition, validation=0, targets="client", test_rows=test_rows
        )
        own, test = tables(stream, 10)
        assert (own.sum(axis=1) == 500).all()
        assert (own.sum(axis=0) == 5000).all()
        assert (test.sum(axis=1) == 100).all()
        assert (test.sum(axis=0) == 1000).all()
        assert np.abs(test - own / 5).max() < 1
        assert len(torch.cat([target.test for target in stream.targets(1)]).unique()) == 10_000
        assert stream.notes() == []


@pytest.mark.parametrize("alpha", [100.0, 1.0, 0.1])
def test_mixes_are_dirichlet_where_no_class_runs_out(alpha):
    """Marginals of Dir(alpha, ..., alpha) over 10 classes are Beta(alpha, 9 alpha)."""
    stream = StaticStream(
        rows_of(10, 12_000, 1), 0, 1, clients=200, partition=Dirichlet(by="client", alpha=alpha, prior="ones", rows=100)
    )
    shares = tables(stream, 10)[0] / 100
    law = stats.betabinom(100, alpha, 9 * alpha)
    assert shares.mean() == pytest.approx(0.1)
    # Classes are exchangeable. The standard error of the variance is largest for small alpha: some 8% there.
    assert shares.var(axis=0).mean() == pytest.approx(law.var() / 100**2, rel=0.25)


def test_test_rows_of_a_few_clients_leave_the_rest():
    partition = Dirichlet(by="client", alpha=0.1, prior="ones", rows=125)
    stream = StaticStream(CIFAR, 0, 1, clients=50, partition=partition, validation=0.2, targets="client", test_rows=100)
    laws(stream, 1)
    own, test = tables(stream, 10)
    assert {len(stream.holding(c, 1).train) for c in range(50)} == {100}
    assert {len(stream.holding(c, 1).validation) for c in range(50)} == {25}
    assert (test.sum(axis=1) == 100).all()
    assert np.abs(test - own * 0.8).max() < 1
    assert "test rows that no client holds: 5000" in stream.notes()
    again = StaticStream(CIFAR, 0, 1, clients=50, partition=partition, targets="client", test_rows=100)
    other = StaticStream(CIFAR, 1, 1, clients=50, partition=partition, targets="client", test_rows=100)
    assert all(torch.equal(stream.holding(c, 1).test, again.holding(c, 1).test) for c in range(50))
    assert not torch.equal(stream.holding(0, 1).test, other.holding(0, 1).test)


def test_unequal_clients_and_clients_without_rows():
    stream = StaticStream(
        CIFAR, 0, 1, clients=4, partition=Sizes(sizes=[30_000, 0, 10, 1]), targets="client", test_rows=50
    )
    own, test = tables(stream, 10)
    assert test.sum(axis=1).tolist() == [50, 0, 50, 50]
    for client in (0, 2, 3):
        assert np.abs(test[client] - own[client] * 50 / own[client].sum()).max() < 1


def test_more_test_rows_than_a_class_has():
    data = rows_of(2, 100, 30)
    only = Dirichlet(by="class", alpha=float("inf"))  # both clients have both classes alike
    full = StaticStream(data, 0, 1, clients=2, partition=only, targets="client", test_rows=30)
    assert tables(full, 2)[1].tolist() == [[15, 15], [15, 15]]
    with pytest.raises(
        ConfigError, match=r"31 test rows .* take 31 of one group .* there are 30; 30 rows are possible"
    ):
        StaticStream(data, 0, 1, clients=2, partition=only, targets="client", test_rows=31)
    with pytest.raises(ConfigError, match="cannot be had even with a single row"):
        StaticStream(rows_of(2, 100, 1), 0, 1, clients=8, partition=Iid(), targets="client", test_rows=1)
    with pytest.raises(ConfigError, match="goes with targets: client"):
        StaticStream(data, 0, 1, clients=2, test_rows=3)
    with pytest.raises(ConfigError, match="own test rows, as many as there are; got 3"):
        StaticStream(data, 0, 1, partition=ByColumn(column="half"), targets="client", test_rows=3)


def test_draws_have_as_many_test_rows_as_asked_for():
    stream = StaticStream(CIFAR, 0, 1, clients=30, partition=Draw(rows=20), targets="client", test_rows=7)
    assert {len(stream.holding(c, 1).test) for c in range(30)} == {7}
    with pytest.raises(ConfigError, match="draws 10001 test rows, but there are 10000"):
        StaticStream(CIFAR, 0, 1, clients=3, partition=Draw(rows=20), targets="client", test_rows=10_001)


# ---- shards of distinct classes ----------------------------------------------------------------------------------

MNIST = np.repeat(np.arange(10), [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])
"""The classes of MNIST's 60,000 training rows."""


def dealt(partition, labels, clients, seed=0):
    split = partition.split(labels, clients, (seed, "shards"))
    rows = [split.rows(client) for client in range(clients)]
    assert sorted(np.concatenate(rows).tolist()) == list(range(len(labels)))
    return np.array([np.bincount(labels[some], minlength=labels.max() + 1) for some in rows])


def test_two_digits_for_each_of_100_clients():
    found = dealt(Shards(distinct=True), MNIST, 100)
    assert ((found > 0).sum(axis=1) == 2).all()
    holders = (found > 0).sum(axis=0)
    assert holders.sum() == 200
    sizes = np.bincount(MNIST)
    # Every shard of a class is as large as the others, to a row.
    for c in range(10):
        assert set(found[:, c][found[:, c] > 0].tolist()) <= {sizes[c] // holders[c], -(-sizes[c] // holders[c])}
    # No other numbers of shards have a smaller largest one: with 200 shards of at most L - 1 rows some row is left.
    largest = max(sizes[c] / holders[c] for c in range(10))
    assert (np.ceil(sizes / (largest - 1e-9)) >= holders).all()
    assert np.ceil(sizes / (largest - 1e-9)).sum() > 200
    # Without it a shard may hold the end of one digit and the beginning of the next.
    loose = dealt(Shards(), MNIST, 100)
    assert ((loose > 0).sum(axis=1) != 2).any()


def test_pairs_of_classes_are_drawn_evenly():
    """Two of four equal classes for each of two clients: 6 pairs, of which the other client has the rest."""
    labels = np.repeat(np.arange(4), 6)
    found = [tuple(np.flatnonzero(dealt(Shards(distinct=True), labels, 2, seed)[0])) for seed in range(600)]
    numbers = [found.count(pair) for pair in sorted(set(found))]
    assert len(numbers) == 6
    assert stats.chisquare(numbers).pvalue > 1e-3


def test_a_large_class_is_held_by_everybody():
    # 3 clients, 2 classes each: 6 shards; the class with 50 rows has at most 3 of them.
    found = dealt(Shards(distinct=True), np.repeat(np.arange(4), [50, 2, 2, 2]), 3)
    assert (found[:, 0] > 0).all()
    assert ((found > 0).sum(axis=1) == 2).all()
    everything = dealt(Shards(per_client=4, distinct=True), np.repeat(np.arange(4), [9, 3, 3, 4]), 3)
    assert (everything > 0).all()


@pytest.mark.parametrize(
    ("labels", "clients", "per_client"),
    [([0, 0, 1, 1, 2, 2], 1, 2), ([0] * 9, 3, 2), ([0] * 9 + [1], 3, 2), ([0, 1], 2, 3), ([], 2, 2)],
)
def test_distinct_shards_that_cannot_be_had(labels, clients, per_client):
    with pytest.raises(ConfigError, match=r"partition\.distinct: .* shards, but the .* change per_client"):
        Shards(per_client=per_client, distinct=True).split(np.array(labels, dtype=np.int64), clients, (0,))


def test_distinct_shards_of_many_clients():
    found = dealt(Shards(per_client=3, distinct=True), np.repeat(np.arange(50), 1200), 5000)
    assert ((found > 0).sum(axis=1) == 3).all()


# ---- groups of classes ------------------------------------------------------------------------------------------

FINE = rows_of(100, 500, 100)


def grouped(group, alpha=0.05):
    partition = Dirichlet(by="client", alpha=alpha, prior="ones", group=group, rows=500)
    return StaticStream(FINE, 0, 1, clients=100, partition=partition, targets="client", validation=0, test_rows=100)


def test_100_labels_in_ten_groups():
    stream = grouped(10)
    laws(stream, 1)
    own, test = tables(stream, 100)
    assert (own.sum(axis=1) == 500).all()
    assert (own.sum(axis=0) == 500).all()
    assert (test.sum(axis=1) == 100).all()
    assert np.abs(test - own / 5).max() < 1
    groups = own.reshape(100, 10, 10)
    held = groups.sum(axis=2)
    assert np.median(held.max(axis=1)) > 250  # alpha is small: most rows of a client are of one group
    # Labels are uniform inside a group: drawn without replacement from 10 equal labels, chi-square of each client's
    # large groups with 9 degrees of freedom (less in the last ones, which get what is left).
    statistics = [stats.chisquare(groups[c, g]).statistic for c, g in zip(*np.nonzero(held >= 100), strict=True)]
    assert len(statistics) > 100
    assert np.mean(statistics) < 9 + 4 * np.sqrt(18 / len(statistics))


def test_listed_groups_are_those_of_the_list():
    lists = [[str(c) for c in range(100) if c % 10 == digit] for digit in range(10)]
    own, test = tables(grouped(lists), 100)
    assert (own.sum(axis=1) == 500).all()
    held = np.array([own[:, digit::10].sum(axis=1) for digit in range(10)]).T
    assert np.median(held.max(axis=1)) > 250
    assert np.abs(test - own / 5).max() < 1
    # Consecutive groups in a list are the number of them.
    consecutive = [list(range(10 * g, 10 * g + 10)) for g in range(10)]
    for found, expected in zip(tables(grouped(consecutive), 100), tables(grouped(10), 100), strict=True):
        assert np.array_equal(found, expected)


def test_groups_by_name_or_number():
    labels = ["cat", "dog", "emu", "fox"] * 40
    data = from_arrays(np.zeros((160, 1)), labels, test=0.5)
    for lists in ([["cat", "fox"], ["dog", "emu"]], [[0, 3], [1, "emu"]]):
        partition = Dirichlet(by="client", alpha=1e-6, group=lists)
        pool = partition.pool(data, data.train)
        assert isinstance(pool, Pool)
        split = partition.split(pool.labels, 2, (0,), pool.columns)
        assert sorted(tuple(np.unique(pool.labels[split.rows(c)])) for c in (0, 1)) == [(0, 3), (1, 2)]
        assert "half" not in pool.columns
        assert list(data.columns) == []


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (
            [["0", "1"], ["2"]],
            r"partition\.group: every class belongs to a group; in none of the 2 lists: 3, 4, 5, 6, 7 ",
        ),
        ([["0"], ["0", "1"]], r"partition\.group: a class belongs to one list; given more than once: 0"),
        ([["0"], []], r"partition\.group: needs lists of labels, none empty"),
        ([], r"partition\.group: needs lists of labels, none empty"),
        ([["zero"]], r"partition\.group: the data have no label 'zero'"),
    ],
)
def test_lists_that_are_no_groups(group, message):
    with pytest.raises(ConfigError, match=message):
        StaticStream(CIFAR, 0, 1, clients=2, partition=Dirichlet(by="client", alpha=1, group=group))


def test_groups_in_a_configuration():
    given = {"kind": "dirichlet", "by": "client", "alpha": 1.0, "group": [["a", 1], ["b"]]}
    assert resolve("partition", given)["group"] == [["a", 1], ["b"]]
    for wrong in (0, [1, 2], [[1.5]]):
        with pytest.raises(ConfigError, match=r"partition\.group"):
            resolve("partition", {**given, "group": wrong})
