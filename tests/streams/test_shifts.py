"""Clients that shift: which rows they hold and are tested on, by counting and by hand."""

import itertools
import pickle
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from stream_data import images

from shoal.errors import ConfigError
from shoal.registry import build, resolve
from shoal.streams.describe import cluster_table, describe, step_table
from shoal.streams.shifts import ShiftStream

DATA = images([0, 1, 2, 3, 4] * 40, [0, 1, 2, 3, 4] * 12)
TWO = [[0, 1], [2, 3]]


def stream(data=DATA, rounds=12, seed=0, **changes):
    given = {"clusters": TWO, "clients": 4, "steps": 3, "rounds_per_step": 4, "rows": 6, "validation_rows": 2}
    return ShiftStream(data, seed, rounds, **{**given, **changes})


def rows(s, client, round):
    held = s.holding(client, round)
    return set(held.train.tolist()), set(held.validation.tolist())


def everything(s, rounds):
    return {(c, r): rows(s, c, r) for c in range(s.clients) for r in range(1, rounds + 1)}


def apart(s, rounds):
    """Nobody trains on what anybody validates on, as base rows; nobody holds a test row."""
    n = len(s.dataset)
    held = everything(s, rounds)
    trained = {row % n for train, _ in held.values() for row in train}
    validated = {row % n for _, validation in held.values() for row in validation}
    assert not trained & validated
    assert trained | validated <= set(s.dataset.train.tolist())


@pytest.mark.parametrize("fresh", ["all", "changed", "never"])
@pytest.mark.parametrize("gradual", [0, 2])
@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"clusters": [[0, 1, 2], [2, 3]]},
        {"by": "transform", "clusters": ["identity", "rotate90", "invert"]},
        {"by": "swap", "clusters": [[], [0, 1], [3, 4]]},
    ],
)
def test_rows_are_of_the_cluster_and_uses_stay_apart(kind, fresh, gradual):
    s = stream(fresh=fresh, gradual=gradual, pattern="rotate", **kind)
    apart(s, 12)
    for client, round in itertools.product(range(4), range(1, 13)):
        held, cluster = s.holding(client, round), s.cluster(client, round)
        assert held.task is None
        assert held.truth == {"cluster": cluster, "phase": (round - 1) // 4}
        train, validation, test = (set(pool.tolist()) for pool in s.cluster_rows(cluster))
        settled = (round - 1) % 4 >= gradual or round <= 4
        if settled:
            assert set(held.train.tolist()) <= train
            assert set(held.validation.tolist()) <= validation
            assert (len(held.train), len(held.validation)) == (6, 2)
        assert set(held.test.tolist()) == test


def test_label_clusters_hold_their_labels_alone():
    s = stream(pattern="keep")
    labels = [set(s.dataset.wanted(s.holding(c, 1).train).tolist()) for c in range(4)]
    assert [found <= set(group) for found, group in zip(labels, [[0, 1]] * 2 + [[2, 3]] * 2, strict=True)] == [True] * 4
    train, validation, test = s.cluster_rows(1)
    # 80 rows of labels 2 and 3, split as 6 to 2 and stratified: 30 + 10 of each label; 12 test rows of each.
    for found, count in ((train, 30), (validation, 10), (test, 12)):
        assert Counter(DATA.labels[found].tolist()) == {2: count, 3: count}
    assert s.notes() == ["training rows of no cluster: 40"]


def test_slices_are_consecutive_and_the_pool_is_shuffled_anew_when_it_is_used_up():
    # One cluster of 40 rows, 30 of them for training: five slices of six, then again.
    s = stream(clusters=[[0]], clients=2, steps=6, rounds_per_step=2, rounds=12)
    slices = [rows(s, client, 2 * step + 1)[0] for step in range(6) for client in range(2)]
    assert len(slices) == 12
    pool = set(s.cluster_rows(0)[0].tolist())
    for turn in (slices[:5], slices[5:10]):
        assert set().union(*turn) == pool
        assert sum(map(len, turn)) == 30
    assert sorted(map(sorted, slices[:5])) != sorted(map(sorted, slices[5:10]))
    # Of the ten validation rows, five slices of two.
    held = [rows(s, client, 2 * step + 1)[1] for step in range(6) for client in range(2)]
    assert set().union(*held[:5]) == set().union(*held[5:10])
    assert sum(map(len, held[:5])) == 10 == len(set().union(*held[:5]))
    assert [note for note in s.notes() if "cluster 0" in note] == [
        "cluster 0 (0): its training and validation rows suffice for 5 clients and are used again from time step 2 on"
    ]
    # Four slices of six out of 27 training rows, four of three out of 13 or so for validation.
    other = stream(clusters=[[0]], clients=2, steps=6, rounds_per_step=2, rounds=12, rows=6, validation_rows=3)
    pools = [len(pool) for pool in other.cluster_rows(0)[:2]]
    assert pools == [27, 13]
    assert sum("rows suffice for 4 clients" in note for note in other.notes()) == 1
    crowd = stream(clusters=[[0]], clients=7, steps=1, rounds=4)
    assert "7 clients take some at once, so some hold the same rows at the same time" in crowd.notes()[1]


def test_a_rest_that_is_no_slice_is_left_out_of_its_pass():
    # 30 rows in slices of 7: four a pass, two rows left.
    s = stream(clusters=[[0]], clients=1, steps=8, rounds_per_step=1, rounds=8, rows=7, validation_rows=2)
    size = len(s.cluster_rows(0)[0])
    whole = size // 7
    slices = [rows(s, 0, r)[0] for r in range(1, 9)]
    assert size % 7 != 0
    assert len(set().union(*slices[:whole])) == 7 * whole


def test_new_rows_for_all_for_those_who_changed_or_never():
    pattern = [[0, 1, 0], [1, 1, 0], [0, 0, 0]]
    given = {"clients": 3, "pattern": pattern, "rows": 4, "validation_rows": 1}
    for client in range(3):
        for use in (0, 1):
            first, second, third = (rows(stream(fresh="all", **given), client, r)[use] for r in (1, 5, 9))
            assert not first & second
            assert not second & third
            assert not first & third
    s = stream(fresh="changed", **given)
    for use in (0, 1):
        held = [[rows(s, client, r)[use] for r in (1, 5, 9)] for client in range(3)]
        assert not held[0][0] & held[0][2]
        assert held[1][0] == held[1][1]
        assert held[2][0] == held[2][1] == held[2][2]
    s = stream(fresh="never", **given)
    for use in (0, 1):
        held = [[rows(s, client, r)[use] for r in (1, 5, 9)] for client in range(3)]
        assert held[0][0] == held[0][2]
        assert held[1][0] == held[1][1]
        # Nobody takes a slice that somebody else has: 2 + 1 of cluster 0, 2 of cluster 1.
        own = [held[0][0], held[0][1], held[1][0], held[1][2], held[2][0]]
        assert len(set().union(*own)) == sum(map(len, own))
    for fresh in ("all", "changed", "never"):
        s = stream(fresh=fresh, **given)
        assert [rows(s, 0, r) for r in range(1, 5)] == [rows(s, 0, 1)] * 4


@pytest.mark.parametrize(("size", "gradual"), [(8, 3), (4, 2), (5, 1), (6, 4)])
def test_a_mixture_grows_linearly_and_keeps_its_new_rows(size, gradual):
    pattern = [[0, 1], [1, 1]]
    s = stream(clients=2, steps=2, pattern=pattern, rows=size, validation_rows=3, gradual=gradual, rounds=12)
    for use, count in ((0, size), (1, 3)):
        old, new = rows(s, 0, 4)[use], rows(s, 0, 5 + gradual)[use]
        assert len(old) == len(new) == count
        assert not old & new
        before: set[int] = set()
        for j in range(1, gradual + 1):
            held = rows(s, 0, 4 + j)[use]
            share = Fraction(j, gradual + 1) * count
            wanted = int(share + Fraction(1, 2))
            assert len(held & new) == wanted
            assert len(held & old) == count - wanted
            assert before <= held & new
            before = held & new
        # Who stays has new rows at once.
        assert rows(s, 1, 5)[use] == rows(s, 1, 12)[use] != rows(s, 1, 4)[use]
    assert [s.cluster(0, r) for r in (4, 5)] == [0, 1]


def test_a_mixture_of_clusters_that_share_rows_has_none_twice():
    s = stream(clusters=[[0], [0, 1]], clients=2, pattern="rotate", rows=20, validation_rows=4, gradual=2)
    apart(s, 12)
    for client, round in itertools.product(range(2), range(1, 13)):
        found = s.holding(client, round).train
        assert len(found.unique()) == len(found) <= 20


def test_listed_rounds_of_change():
    s = stream(clients=2, pattern=[[0, 0], [1, 1], [0, 1]], stagger=[[3, 7], [6, 12]], rounds=14)
    assert [s.cluster(0, r) for r in range(1, 9)] == [0, 0, 1, 1, 1, 1, 0, 0]
    assert [s.cluster(1, r) for r in range(4, 14)] == [0, 0, 1, 1, 1, 1, 1, 1, 1, 1]
    assert [s.step(1, r) for r in (5, 6, 11, 12, 14)] == [0, 1, 1, 2, 2]
    assert s.boundaries == (4, 8)
    assert rows(s, 1, 5) == rows(s, 1, 1)


def test_staggered_changes_come_within_their_rounds():
    s = stream(clients=200, pattern="rotate", rounds_per_step=5, rounds=15, stagger=3, gradual=2, steps=3)
    delays = []
    for client in range(200):
        for step in (1, 2):
            start = s.start(client, step)
            delays.append(start - (5 * step + 1))
            assert (s.cluster(client, start - 1), s.cluster(client, start)) in ((0, 1), (1, 0))
    # 400 draws from 0 to 3: the standard deviation of a count is 8.7.
    assert all(65 < count < 135 for count in Counter(delays).values())
    assert sorted(Counter(delays)) == [0, 1, 2, 3]


def test_each_client_is_tested_on_its_current_cluster():
    s = stream(pattern="rotate", test_rows=10, stagger=2, gradual=1)
    assert [target.labels for target in s.targets(1)] == [{"client": c} for c in range(4)]
    known: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
    for round in range(1, 13):
        for client, target in enumerate(s.targets(round)):
            held = s.holding(client, round)
            assert torch.equal(target.validation, held.validation)
            assert torch.equal(target.test, held.test)
            wanted = {0, 1} if s.cluster(client, round) == 0 else {2, 3}
            assert Counter(DATA.labels[target.test].tolist()) == dict.fromkeys(wanted, 5)
            content = (target.test.tolist(), target.validation.tolist())
            assert known.setdefault((client, target.stamp), content) == content
    # Rows that stay keep their stamp, whatever the round is.
    still = stream(pattern="keep", fresh="changed")
    assert {t.stamp for r in range(1, 13) for t in still.targets(r)} == {1}
    # The test rows are the same for all seeds; clients of a cluster share one tensor.
    other = stream(pattern="rotate", test_rows=10, seed=5)
    assert torch.equal(other.targets(1)[0].test, s.targets(1)[0].test)
    assert other.targets(1)[0].test is other.targets(1)[1].test


def test_columns_and_their_groups():
    domains = ["sea", "town", "wood", "sea"] * 50 + ["sea", "town", "wood"] * 20
    data = images([0, 1, 2, 3, 4] * 40, [0, 1, 2, 3, 4] * 12, columns={"domain": domains})
    s = stream(data, by="domain", clusters=None, pattern="keep")
    assert s.cluster_names == ("sea", "town", "wood")
    codes = data.columns["domain"].codes
    for client, code in enumerate([0, 0, 1, 2]):
        assert set(codes[s.holding(client, 1).train].tolist()) == {code}
    both = stream(data, by="domain", clusters=[["sea", "wood"], "town"], pattern="keep")
    assert both.cluster_names == ("sea, wood", "town")
    assert set(codes[both.cluster_rows(0)[2]].tolist()) == {0, 2}


def test_transforms_turn_the_rows_of_their_cluster():
    s = stream(by="transform", clusters=["identity", "rotate180"], pattern="keep")
    turned = s.holding(3, 1).train
    plain = DATA.batch(turned % len(DATA))
    assert torch.equal(s.dataset.batch(turned), plain.rot90(2, (1, 2)))
    assert torch.equal(s.dataset.wanted(turned), DATA.labels[turned % len(DATA)])
    assert s.dataset.features.data_ptr() == DATA.features.data_ptr()


def test_the_order_of_asking_is_no_matter_and_seeds_differ():
    s, other = stream(stagger=1, gradual=1), stream(stagger=1, gradual=1)
    places = list(itertools.product(range(4), range(1, 13)))
    later = {place: rows(other, *place) for place in reversed(places)}
    assert {place: rows(s, *place) for place in places} == later
    copied = pickle.loads(pickle.dumps(s))
    assert {place: rows(copied, *place) for place in places} == later
    assert everything(stream(seed=1), 4) != everything(stream(), 4)


def test_rounds_that_do_not_fit_the_steps():
    longer = stream(rounds=20)
    assert longer.boundaries == (4, 8)
    assert longer.holding(0, 20).truth == {"cluster": longer.cluster(0, 9), "phase": 2}
    assert "20 rounds, but 3 time steps have 12: the last one goes on" in longer.notes()
    shorter = stream(rounds=8)
    assert shorter.boundaries == (4,)
    assert "time steps that the run does not reach: 1 of 3" in shorter.notes()
    assert stream(rounds=12).notes() == ["training rows of no cluster: 40"]


def test_ten_thousand_clients():
    data = images([0, 1] * 300)
    s = stream(data, clusters=[[0], [1]], clients=10_000, steps=10, rounds_per_step=20, rounds=200, fresh="changed")
    # Three numbers of four bytes per client and step, and no rows.
    assert sum(a.nbytes for a in (s._plan.clusters, s._plan.slices, s._plan.since)) == 12 * 10 * 10_000
    assert len(s.targets(105)) == 10_000
    assert len(s.holding(9_999, 200).train) == 6
    with pytest.raises(ConfigError, match="10,000 at most; got 10,001"):
        stream(data, clusters=[[0], [1]], clients=10_001)


def test_the_tables_of_a_stream():
    s = stream(clients=2, pattern=[[0, 1], [1, 1], [0, 0]], stagger=[[5, 9], [7, 9]])
    assert [table.title for table in describe(s, 12)] == [
        "Clusters",
        "Cluster of each client by time step (rounds)",
        "Rows by label and client",
    ]
    assert cluster_table(s).rows == [
        ("0", "0, 1", "60", "20", "24", "0 to 2"),
        ("1", "2, 3", "60", "20", "24", "0 to 2"),
    ]
    table = step_table(s, 12)
    assert table.columns == ("client", "step 0: 1 to 4", "step 1: 5 to 8", "step 2: 9 to the end")
    assert table.rows == [("0", "0", "1", "0"), ("1", "1", "1 from 7", "0")]
    assert step_table(s, 12, clients=1, most=2).note == "clients not shown: 1; time steps not shown: 1"
    assert len(step_table(stream(rounds=8), 8).columns) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clients": 1}, "2 clusters, but only 1 clients"),
        ({"clusters": None}, "groups of labels, one per cluster"),
        ({"clusters": []}, "every cluster needs a value of class"),
        ({"clusters": [[0], []]}, "every cluster needs a value of class"),
        ({"clusters": [[0], [7]]}, "class has no value 7"),
        ({"clusters": [[0, 0], [1]]}, "a value stands in one cluster twice"),
        ({"by": "domain"}, "the data have no column 'domain'"),
        ({"by": "transform", "clusters": None}, "different transforms, one per cluster"),
        ({"by": "transform", "clusters": ["mirror", "mirror"]}, "different transforms, one per cluster"),
        ({"by": "transform", "clusters": ["rotate10"]}, "no transform is called 'rotate10'"),
        ({"by": "swap", "clusters": None}, "in pairs"),
        ({"by": "swap", "clusters": [[0, 1, 2]]}, "cluster 0 lists 3"),
        ({"by": "swap", "clusters": [[0, 9]]}, "class has no value 9"),
        ({"rows": 61, "validation_rows": 20}, r"cluster 0 \(0, 1\) has only 80 rows; lower stream.rows"),
        ({"validation_rows": 0}, "every client needs a row at least, for models are chosen on them; got 0"),
        ({"rows": 0}, "every client needs a training row at least"),
        ({"test_rows": 25}, "25, but cluster 0 .* has 24 test rows"),
        ({"stagger": 4}, r"stream\.stagger: .* 4 \+ 0 rounds, must fit into rounds_per_step, 4"),
        ({"stagger": 2, "gradual": 3}, r"stream\.stagger: .* 2 \+ 3 rounds, must fit into rounds_per_step, 4"),
        ({"gradual": 5}, r"stream\.gradual: .* 0 \+ 5 rounds, must fit into rounds_per_step, 4; lower gradual"),
        ({"gradual": 5, "stagger": 1}, r"stream\.gradual: .* 1 \+ 5 rounds"),
        ({"gradual": -1}, "0 or more; got -1"),
        ({"stagger": -1}, "0 or more; got -1"),
        ({"stagger": [[5, 9]]}, "for each of 4 clients, or one number; got 1"),
        ({"stagger": [[5, 9]] * 3 + [[5]]}, "client 3 has 1 rounds listed"),
        ({"stagger": [[5, 9]] * 3 + [[5, 5]]}, "client 3 has"),
        ({"stagger": [[1, 9]] * 4}, "rise from 2 on"),
        ({"stagger": [[5, 7]] * 4, "gradual": 3}, "3 or more apart"),
        ({"steps": 0}, "stream.steps: one at least"),
    ],
)
def test_what_cannot_be_built(changes, message):
    with pytest.raises(ConfigError, match=message):
        stream(**changes)


def test_the_fewest_rows_that_a_cluster_may_have_are_those_of_one_client():
    s = stream(rows=60, validation_rows=20, clients=2, steps=1, rounds=4)
    assert [len(part) for part in rows(s, 0, 1)] == [60, 20]
    assert np.isin(DATA.labels[s.holding(1, 1).train].numpy(), [2, 3]).all()


def test_settings_go_through_the_registry():
    settings = resolve("stream", {"kind": "shifts", "clusters": TWO, "clients": 4, "steps": 2, "rounds_per_step": 3,
                                  "rows": 5, "validation_rows": 2, "pattern": [[0, 0, 1, 1], [1, 0, 1, 0]],
                                  "stagger": [[4], [5], [6], [7]]})  # fmt: skip
    s = build("stream", settings, DATA, 0, 6, False)
    assert [s.cluster(0, r) for r in (3, 4)] == [0, 1]
    for wrong in ({"pattern": "Q"}, {"fresh": "some"}, {"stagger": "often"}, {"gradual": -1}, {"clusters": [[True]]}):
        with pytest.raises(ConfigError, match=f"stream.{next(iter(wrong))}"):
            resolve("stream", {"kind": "shifts", "clients": 4, "steps": 2, "rounds_per_step": 3, **wrong})
