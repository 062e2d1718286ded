"""Clients that are in the data: every value of a column is one."""

import numpy as np
import pytest
from stream_data import images, laws

from shoal.errors import ConfigError
from shoal.registry import build, resolve
from shoal.streams.describe import class_counts, phase_table
from shoal.streams.partitions import ByColumn, Iid
from shoal.streams.static import StaticStream
from shoal.streams.tasks import TaskStream

SITES = ["10", "2", "2", "ward", "10", "2"] * 10
DATA = images([0, 1] * 30, [0, 1, 0], {"site": [*SITES, "2", "2", "zoo"], "half": ["a", "b", "b"] * 21})


def settings(**more):
    return resolve("stream", {"kind": "static", "partition": {"kind": "column", "column": "site"}, **more})


def test_every_value_is_a_client():
    stream = build("stream", settings(), DATA, 0, 1, False)
    assert settings()["clients"] is None
    assert stream.clients == 4
    assert stream.client_names == ("10", "2", "ward", "zoo")
    held = laws(stream, 1)
    for client, name in enumerate(stream.client_names):
        train, validation, test = held[client, 1]
        assert sorted(train + validation) == [row for row, site in enumerate(SITES) if site == name]
        assert test == DATA.test.tolist()
    assert stream.notes() == ["clients without a row, which are skipped: 1 of 4"]
    assert len(stream.targets(1)) == 1


def test_names_that_are_numbers_come_in_their_order():
    data = images([0, 1] * 3, [0], {"id": [7, 70, 8, 70, 8, 7, 7]})
    stream = StaticStream(data, 0, 1, partition=ByColumn(column="id"), validation=0)
    assert stream.client_names == ("7", "8", "70")
    assert [stream.holding(c, 1).train.tolist() for c in range(3)] == [[0, 5], [2, 4], [1, 3]]


def test_targets_of_natural_clients():
    stream = build("stream", settings(targets="client"), DATA, 0, 1, False)
    assert [dict(target.labels) for target in stream.targets(1)] == [{"client": c} for c in range(4)]
    assert [target.test.tolist() for target in stream.targets(1)] == [[], [60, 61], [], [62]]
    assert [stream.holding(c, 1).test.tolist() for c in range(4)] == [[], [60, 61], [], [62]]
    assert stream.notes() == [
        "clients without a row, which are skipped: 1 of 4",
        "clients without a test row, which are not measured: 2 of 4",
    ]


def test_the_number_of_clients():
    assert build("stream", settings(clients=4), DATA, 0, 1, False).clients == 4
    for wrong in (3, 5):
        with pytest.raises(ConfigError, match=rf"stream\.clients: {wrong}, but the column .* has 4 values"):
            build("stream", settings(clients=wrong), DATA, 0, 1, False)
    with pytest.raises(ConfigError, match=r"stream\.clients: needs a number; only with partition: column"):
        StaticStream(DATA, 0, 1, partition=Iid())
    with pytest.raises(ConfigError, match=r"stream\.clients: needs a number"):
        TaskStream(DATA, 0, 4, tasks=2)
    with pytest.raises(ConfigError, match=r"partition\.column: arrays has no column 'sites'; did you mean 'site'"):
        StaticStream(DATA, 0, 1, partition=ByColumn(column="sites"))
    with pytest.raises(ConfigError, match=r"partition\.column: arrays has no column 'site'; it has none"):
        StaticStream(images([0, 1]), 0, 1, partition=ByColumn(column="site"))


def test_the_split_alone():
    column = np.array([1, 0, 2, 0])
    split = ByColumn(column="c").split(np.zeros(4), 3, (), {"c": column})
    assert [split.rows(c).tolist() for c in range(3)] == [[1, 3], [0], [2]]
    with pytest.raises(ConfigError, match="'c' has 3 values or more, but there are 2 clients"):
        ByColumn(column="c").split(np.zeros(4), 2, (), {"c": column})
    with pytest.raises(ConfigError, match="the rows have no column 'c'"):
        ByColumn(column="c").split(np.zeros(4), 2, ())


def test_natural_clients_in_tasks():
    stream = TaskStream(
        DATA, 0, 4, tasks=2, by="half", order="synchronous", partition=ByColumn(column="site"), validation=0
    )
    assert stream.clients == 4
    assert stream.client_names == ("10", "2", "ward", "zoo")
    laws(stream, 4)
    halves = (["a", "b", "b"] * 21)[:60]
    for task, half in enumerate("ab"):
        for client, name in enumerate(stream.client_names):
            mine = [row for row in range(60) if SITES[row] == name and halves[row] == half]
            assert stream.cell(client, task)[0].tolist() == mine
    assert [row[2] for row in phase_table(stream).rows[:4]] == ["0 (10)", "1 (2)", "2 (ward)", "3 (zoo)"]


def test_names_are_shown():
    stream = StaticStream(DATA, 0, 1, partition=ByColumn(column="site"), targets="client", validation=0)
    table = class_counts(stream)
    assert table.columns == ("label", "client 0 (10)", "client 1 (2)", "client 2 (ward)", "client 3 (zoo)")
    assert table.rows[-2:] == [("all", "20", "30", "10", "0"), ("test rows", "0", "2", "0", "1")]
