"""Independent draws: a million clients that cost nothing until they are asked for."""

import tracemalloc

import numpy as np
import pytest
from stream_data import images

from shoal.errors import ConfigError
from shoal.randomness import generator
from shoal.streams import dirichlet
from shoal.streams.partitions import Draw
from shoal.streams.static import StaticStream

LABELS = np.repeat(np.arange(10), 200)


@pytest.mark.parametrize("alpha", [None, 0.01, 1.0, float("inf")])
def test_a_draw_has_no_row_twice_and_clients_overlap(alpha):
    split = Draw(rows=300, alpha=alpha).split(LABELS, 50, (0,))
    drawn = [split.rows(c) for c in range(50)]
    assert all(len(set(rows.tolist())) == 300 for rows in drawn)
    assert all(rows.min() >= 0 and rows.max() < 2000 for rows in drawn)
    assert set(drawn[0]) & set(drawn[1])
    assert set(drawn[0]) != set(drawn[1])
    # All rows at once is a draw too.
    assert sorted(Draw(rows=2000, alpha=alpha).split(LABELS, 1, (0,)).rows(0)) == list(range(2000))


def test_the_class_mix():
    one = Draw(rows=100, alpha=0.01).split(LABELS, 30, (0,))
    assert sum(len(set(LABELS[one.rows(c)])) == 1 for c in range(30)) >= 25
    even = Draw(rows=1000).split(LABELS, 30, (0,))
    mean = np.mean([np.bincount(LABELS[even.rows(c)], minlength=10) for c in range(30)], axis=0)
    # Hypergeometric: variance 1000 * 0.1 * 0.9 * (1000 / 1999) = 45 a client, 1.5 of the mean.
    assert np.abs(mean - 100).max() < 5


@pytest.mark.parametrize("alpha", [None, 0.1])
def test_nobody_trains_on_anybodys_validation_rows(alpha):
    cells = Draw(rows=100, alpha=alpha).cells(LABELS, 200, (0,), 0.2)
    assert len(cells.validation) == 400
    assert np.bincount(LABELS[cells.validation]).tolist() == [40] * 10
    held = set(cells.validation.tolist())
    close = 0
    for client in range(200):
        train, validation = cells.rows(client)
        assert (len(train), len(validation)) == (80, 20)
        assert not held & set(train.tolist())
        assert set(validation.tolist()) <= held
        mixes = [np.bincount(LABELS[rows], minlength=10) / len(rows) for rows in (train, validation)]
        close += np.abs(mixes[0] - mixes[1]).sum() / 2 < 0.5
    # Both have the client's mix. (Two unrelated mixes at alpha 0.1 would nearly never be close.)
    assert close > 190


def test_small_draws_and_refusals():
    train, validation = Draw(rows=1).cells(LABELS, 3, (0,), 0.5).rows(2)
    assert (len(train), len(validation)) == (1, 0)
    train, validation = Draw(rows=2).cells(LABELS[:2], 3, (0,), 0.1).rows(0)
    assert sorted([*train, *validation]) == [0, 1]
    assert len(Draw(rows=5).cells(LABELS, 3, (0,), 0).validation) == 0
    for share in (0.05, 0.5, 0.95):
        train, validation = Draw(rows=2000, alpha=0.5).cells(LABELS, 3, (0,), share).rows(1)
        assert sorted([*train, *validation]) == list(range(2000))
    with pytest.raises(ConfigError, match="a client draws 2001 rows, but there are 2000"):
        Draw(rows=2001).cells(LABELS, 3, (0,), 0.1)
    with pytest.raises(ConfigError, match="at least one row"):
        Draw(rows=0)


def test_a_million_clients(monkeypatch):
    made = []
    monkeypatch.setattr(dirichlet, "generator", lambda *names: made.append(names) or generator(*names))
    data = images([*(LABELS % 10)], [0] * 5)
    tracemalloc.start()
    stream = StaticStream(data, 0, 10, clients=1_000_000, partition=Draw(rows=50, alpha=0.3))
    before = len(made)
    asked = [stream.holding(c, 1) for c in range(0, 1_000_000, 10_000)]
    stream.targets(1)
    assert stream.notes() == []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Before anybody is asked for, the validation rows alone are drawn; then the clients that are asked for.
    assert before == 1
    assert {names[-1] for names in made[before:]} == set(range(0, 1_000_000, 10_000))
    assert peak < 5e6
    assert {len(h.train) for h in asked} == {45}
    assert len({tuple(h.train.tolist()) for h in asked}) == 100
    assert stream.holding(999_999, 1).train.tolist() == stream.holding(999_999, 7).train.tolist()
