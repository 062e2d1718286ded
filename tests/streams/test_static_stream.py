"""The stream that never changes."""

import numpy as np
import pytest
import torch
from stream_data import images, laws

from shoal.errors import ConfigError
from shoal.registry import build, resolve
from shoal.streams.partitions import Dirichlet, Shards, Sizes
from shoal.streams.static import StaticStream

DATA = images([3, 7, 41, 7] * 30, [3, 41] * 5)


def test_laws_and_the_same_rows_in_every_round():
    stream = StaticStream(DATA, 5, 4, clients=6, partition=Dirichlet(by="client", alpha=0.5), validation=0.25)
    held = laws(stream, 4)
    for client in range(6):
        assert len({str(held[client, r]) for r in range(5)}) == 1
        assert (len(held[client, 1][0]), len(held[client, 1][1])) == (15, 5)
        assert held[client, 1][2] == DATA.test.tolist()
    assert sorted(row for c in range(6) for row in held[c, 1][0] + held[c, 1][1]) == DATA.train.tolist()
    (target,) = stream.targets(3)
    assert target.labels == {}
    assert target.test.tolist() == DATA.test.tolist()
    assert sorted(target.validation.tolist()) == sorted(row for c in range(6) for row in held[c, 1][1])
    assert (stream.outputs, stream.tasks, stream.boundaries, stream.phase(4), stream.head) == (3, 0, (), 0, "shared")
    assert stream.holding(2, 1).task is None
    assert dict(stream.holding(2, 1).truth) == {}


def test_rows_are_those_of_the_data_set_and_not_of_the_pool():
    """Training rows need not be the first ones, nor the labels of the pool those of the first rows."""
    data = build("data", resolve("data", {"kind": "digits", "limit": 60})).load()
    stream = StaticStream(data, 0, 1, clients=30, partition=Shards(per_client=1), validation=0)
    held = [stream.holding(c, 1).train for c in range(30)]
    assert sorted(torch.cat(held).tolist()) == data.train.tolist()
    # Sorted by label and cut into pairs: of ten classes at most nine boundaries fall inside a pair.
    assert sum(len(set(data.labels[rows].tolist())) == 2 for rows in held) <= 9


def test_from_a_configuration_with_its_defaults():
    resolved = resolve("stream", {"kind": "static", "clients": 4})
    assert resolved == {
        "kind": "static",
        "clients": 4,
        "validation": 0.1,
        "targets": "all",
        "test_rows": None,
        "partition": {"kind": "iid"},
    }
    stream = build("stream", resolved, DATA, 0, 3, False)
    assert laws(stream, 1)[0, 1] == laws(StaticStream(DATA, 0, 3, clients=4), 1)[0, 1]
    nested = {"kind": "static", "clients": 2, "partition": {"kind": "dirichlet", "by": "class", "alhpa": 1}}
    with pytest.raises(ConfigError, match=r"stream\.partition\.alhpa: no such setting; did you mean 'alpha'"):
        resolve("stream", nested)
    for wrong in ({"clients": 0}, {"validation": 1.0}, {"validation": -0.1}):
        with pytest.raises(ConfigError, match=rf"stream\.{next(iter(wrong))}"):
            resolve("stream", {"kind": "static", "clients": 2, **wrong})
        with pytest.raises(ConfigError, match=rf"stream\.{next(iter(wrong))}"):
            StaticStream(DATA, 0, 1, **{"clients": 2, **wrong})


def test_notes_tell_what_nobody_holds():
    assert StaticStream(DATA, 0, 1, clients=4).notes() == []
    stream = StaticStream(DATA, 0, 1, clients=4, partition=Sizes(sizes=[100, 0, 10, 0]))
    assert stream.notes() == [
        "clients without a row, which are skipped: 2 of 4",
        "training rows that no client holds: 10",
    ]
    empty = stream.holding(1, 1)
    assert (empty.train.tolist(), empty.validation.tolist(), empty.train.dtype) == ([], [], DATA.train.dtype)


def test_clients_that_do_not_exist():
    stream = StaticStream(DATA, 0, 1, clients=4)
    for client in (-1, 4):
        with pytest.raises(IndexError, match="clients 0 to 3"):
            stream.holding(client, 1)


def test_a_column_can_be_the_group_of_a_mix():
    """Two groups of two classes, nearly one-hot mixes: a client has both classes of its group."""
    labels = np.arange(400) % 4
    data = images(labels.tolist(), [0] * 3, {"coarse": [str(y // 2) for y in labels] + ["0"] * 3})
    mixed = Dirichlet(by="client", alpha=0.001, group="coarse", rows=20)
    stream = StaticStream(data, 0, 1, clients=8, partition=mixed, validation=0)
    counts = np.array([np.bincount(labels[stream.holding(c, 1).train.numpy()], minlength=4) for c in range(8)])
    assert (counts.sum(axis=1) == 20).all()
    assert sorted(np.sort(counts.reshape(8, 2, 2).sum(axis=2), axis=1).tolist()) == [[0, 20]] * 8
    assert (np.sort(counts, axis=1)[:, 2] >= 3).all()
