"""Training rows of all clients at once, against those of the rows themselves."""

import numpy as np
import pytest
from stream_data import images

from shoal.streams.partitions import Draw
from shoal.streams.static import StaticStream
from shoal.streams.tasks import TaskStream

DATA = images([*(np.arange(120) % 4)], [*(np.arange(8) % 4)])
PARTITIONS = [
    "iid",
    {"kind": "shards"},
    {"kind": "sizes", "exponent": 2.0},
    {"kind": "sizes", "sizes": [7, 0, 1, 2, 30]},
    {"kind": "dirichlet", "by": "client", "alpha": 0.3},
    {"kind": "draw", "rows": 9},
    {"kind": "draw", "rows": 9, "alpha": 0.3},
]


def asked(stream):
    return [len(stream.holding(client, 1).train) for client in range(stream.clients)]


@pytest.mark.parametrize("validation", [0, 0.2])
@pytest.mark.parametrize("partition", PARTITIONS, ids=str)
def test_a_static_stream(partition, validation):
    stream = StaticStream(DATA, 0, 3, clients=5, partition=partition, validation=validation)
    assert stream.sizes().tolist() == asked(stream)


def test_more_clients_than_rows():
    stream = StaticStream(DATA, 0, 3, clients=300, partition="iid")
    assert stream.sizes().tolist() == asked(stream) == [1] * 120 + [0] * 180
    assert stream.notes() == ["clients without a row, which are skipped: 180 of 300"]


@pytest.mark.parametrize("order", ["multi-task", "synchronous", "asynchronous"])
@pytest.mark.parametrize("partition", [PARTITIONS[0], PARTITIONS[2], PARTITIONS[5]], ids=str)
def test_a_stream_of_tasks(partition, order):
    # Tasks of 90 and 30 rows.
    stream = TaskStream(DATA, 0, 4, tasks=2, classes=[[0, 1, 2], [3]], order=order, clients=7, partition=partition)
    assert stream.sizes().tolist() == asked(stream)


def test_validation_rows_of_all_clients_are_those_of_each():
    stream = StaticStream(DATA, 0, 3, clients=11, partition={"kind": "sizes", "exponent": 1.0}, validation=0.3)
    each = np.concatenate([stream.holding(client, 1).validation for client in range(11)])
    (target,) = stream.targets(1)
    assert target.validation.tolist() == sorted(each.tolist())
    assert len(each) > 20


def test_a_partition_that_does_not_know_its_sizes_is_asked(monkeypatch):
    # A kind of one's own whose cells say nothing.
    cells = StaticStream(DATA, 0, 3, clients=5, partition=Draw(rows=9))._cells
    monkeypatch.setattr(type(cells), "sizes", lambda self, clients: None)
    assert StaticStream(DATA, 0, 3, clients=5, partition=Draw(rows=9)).sizes() is None
    assert TaskStream(DATA, 0, 4, tasks=2, clients=5, partition=Draw(rows=9)).sizes() is None
