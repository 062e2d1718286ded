"""Every partition deals every row exactly once, whatever the classes, the clients and the settings."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import ConfigError
from shoal.registry import build, resolve
from shoal.streams.cells import held_out, make_partition
from shoal.streams.partitions import Dirichlet, Draw, Iid, Shards, Sizes

ALPHAS = [0.01, 0.1, 1, 100]
KINDS = [
    Iid(),
    Shards(),
    Shards(per_client=3),
    Sizes(exponent=0),
    Sizes(exponent=1.5),
    *(Dirichlet(by=by, alpha=alpha) for by in ("client", "class") for alpha in [1e-300, *ALPHAS, 1e300, float("inf")]),
    Dirichlet(by="client", alpha=0.1, prior="ones"),
    Dirichlet(by="class", alpha=0.5, group="domain"),
]

pools = st.one_of(
    # Any labels, with gaps; and one class that nearly all rows have.
    st.lists(st.sampled_from([0, 1, 2, 5, 9]), max_size=200),
    st.builds(lambda many, few: [4] * many + [7] * few, st.integers(0, 300), st.integers(0, 3)),
)


def dealt(partition, labels, clients, seed=0, columns=None):
    labels = np.asarray(labels, dtype=np.int64)
    columns = {"domain": np.arange(len(labels)) % 3} if columns is None else columns
    split = partition.split(labels, clients, (seed, "test"), columns)
    return [split.rows(client) for client in range(clients)]


@settings(max_examples=150, deadline=None)
@given(partition=st.sampled_from(KINDS), labels=pools, clients=st.integers(1, 200), seed=st.integers(0, 2**40))
def test_every_row_goes_to_exactly_one_client(partition, labels, clients, seed):
    parts = dealt(partition, labels, clients, seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    sizes = [len(part) for part in parts]
    if isinstance(partition, Iid) or (isinstance(partition, Dirichlet) and partition.by == "client"):
        assert max(sizes) - min(sizes) <= 1


@settings(max_examples=60, deadline=None)
@given(
    partition=st.sampled_from(KINDS),
    labels=pools,
    clients=st.integers(1, 60),
    share=st.sampled_from([0, 0.01, 0.3, 0.9]),
)
def test_validation_rows_come_from_the_client_and_are_never_trained_on(partition, labels, clients, share):
    labels = np.asarray(labels, dtype=np.int64)
    columns = {"domain": np.arange(len(labels)) % 3}
    cells = partition.cells(labels, clients, (1,), share, columns)
    split = partition.split(labels, clients, (1,), columns)
    parts = [split.rows(client).tolist() for client in range(clients)]
    everyone: list[int] = []
    for client, part in enumerate(parts):
        train, validation = cells.rows(client)
        assert sorted([*train, *validation]) == sorted(part)
        assert len(validation) == held_out(len(part), share)
        everyone += validation.tolist()
    assert cells.validation.tolist() == sorted(everyone)
    assert cells.empty == sum(not part for part in parts)
    assert cells.unused == 0


def test_validation_rows_lie_elsewhere_for_every_client():
    labels = np.zeros(100, dtype=np.int64)
    split, cells = Iid().split(labels, 2, (0,)), Iid().cells(labels, 2, (0,), 0.2)
    ranks = [np.searchsorted(np.sort(split.rows(c)), cells.rows(c)[1]).tolist() for c in range(2)]
    assert len(ranks[0]) == len(ranks[1]) == 10
    assert ranks[0] != ranks[1]


def test_a_seed_decides_and_two_differ():
    labels = np.arange(300) % 5
    for partition in [*KINDS, Draw(rows=40, alpha=0.5)]:
        once, again, other = dealt(partition, labels, 7), dealt(partition, labels, 7), dealt(partition, labels, 7, 1)
        assert all(np.array_equal(a, b) for a, b in zip(once, again, strict=True)), partition
        assert not all(np.array_equal(a, b) for a, b in zip(once, other, strict=True)), partition


def test_the_number_of_validation_rows_by_hand():
    cases = [
        (0, 0.1, 0),
        (1, 0.5, 0),
        (2, 0.1, 1),
        (2, 0.9, 1),
        (10, 0.1, 1),
        (100, 0.1, 10),
        (100, 0.999, 99),
        (9, 0, 0),
    ]
    assert [held_out(rows, share) for rows, share, _ in cases] == [expected for *_, expected in cases]


def test_shards_give_few_classes():
    """McMahan et al.'s numbers, a hundredth of them: 100 clients with 2 of 200 shards of 3 rows."""
    labels = np.repeat(np.arange(10), 60)
    parts = dealt(Shards(), labels, 100)
    assert {len(part) for part in parts} == {6}
    classes = [len(set(labels[part])) for part in parts]
    assert max(classes) <= 2
    # Two different classes with probability 1 - 19 / 199; sd of the count 2.9.
    assert 100 * 180 / 199 - 12 < classes.count(2) < 100 * 180 / 199 + 9
    # With fewer rows than shards nobody fails; with rows that do not divide, shards differ by one.
    assert sorted(len(part) for part in dealt(Shards(), [0, 1, 1], 4)) in ([0, 1, 1, 1], [0, 0, 1, 2])
    assert {len(part) for part in dealt(Shards(per_client=1), np.zeros(11), 4)} == {2, 3}
    with pytest.raises(ConfigError, match="at least one shard"):
        Shards(per_client=0)


def test_given_sizes():
    labels = np.zeros(100)
    assert [len(p) for p in dealt(Sizes(sizes=[10, 0, 90]), labels, 3)] == [10, 0, 90]
    # Shares; the largest remainders get what rounding leaves: 33.3, 33.3, 33.4.
    assert sorted(len(p) for p in dealt(Sizes(sizes=[1 / 3, 1 / 3, 1 / 3]), labels, 3)) == [33, 33, 34]
    assert [len(p) for p in dealt(Sizes(sizes=[0.1, 0.25]), labels, 2)] == [10, 25]
    assert Sizes(sizes=[10, 20]).cells(np.zeros(100, dtype=np.int64), 2, (0,), 0.1).unused == 70
    parts = dealt(Sizes(sizes=[10, 20]), labels, 2)
    assert len(set(np.concatenate(parts).tolist())) == 30
    # One power law: 1, 1/2, 1/3, 1/4 of 100 rows is 48, 24, 16, 12.
    assert sorted(len(p) for p in dealt(Sizes(exponent=1), labels, 4)) == [12, 16, 24, 48]
    assert [len(p) for p in dealt(Sizes(exponent=0), labels, 4)] == [25] * 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sizes(), "either 'sizes'"),
        (lambda: Sizes(sizes=[1], exponent=1), "not both"),
        (lambda: Sizes(sizes=[-1, 5]), "from 0 on"),
        (lambda: Sizes(sizes=[float("nan"), 0.5]), "finite"),
        (lambda: Sizes(exponent=-1), "from 0 on"),
        (lambda: dealt(Sizes(sizes=[50, 51]), np.zeros(100), 2), "asks for 101 rows in all, but there are 100"),
        (lambda: dealt(Sizes(sizes=[0.5, 0.6]), np.zeros(100), 2), "sum to at most 1; got 1.1"),
        (lambda: dealt(Sizes(sizes=[50, 50]), np.zeros(100), 3), "got 2 for 3 clients"),
    ],
)
def test_sizes_that_cannot_be(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_from_a_configuration():
    resolved = resolve("partition", {"kind": "sizes", "sizes": [10, 20]})
    assert resolved == {"kind": "sizes", "sizes": [10, 20], "exponent": None}
    assert build("partition", resolved).sizes == [10, 20]
    assert make_partition({"kind": "sizes", "sizes": [0.5, 0.5]}).sizes == [0.5, 0.5]
    assert isinstance(make_partition("shards"), Shards)
    for alpha in (0, -1, float("nan")):
        with pytest.raises(ConfigError, match=r"partition\.alpha"):
            make_partition({"kind": "dirichlet", "by": "class", "alpha": alpha})
    assert make_partition({"kind": "dirichlet", "by": "class", "alpha": float("inf")}).alpha == float("inf")
    with pytest.raises(ConfigError, match=r"partition\.alpha: this setting is required"):
        make_partition({"kind": "dirichlet", "by": "class"})
    with pytest.raises(ConfigError, match="did you mean 'dirichlet'"):
        make_partition("dirichelt")
