"""Tasks in three orders: who trains what when, by hand."""

import itertools
import random
from collections import Counter

import pytest
import torch
from stream_data import images, laws

from shoal.errors import ConfigError
from shoal.registry import build, resolve
from shoal.streams.partitions import Dirichlet, Draw, Iid, Sizes
from shoal.streams.tasks import TaskStream, phases

DATA = images([0, 1, 2, 3, 4, 5] * 20, [0, 1, 2, 3, 4, 5] * 3)


def stream(rounds=6, heads_by_task=True, seed=0, data=DATA, **changes):
    given = {"tasks": 3, "clients": 4, "order": "asynchronous", **changes}
    return TaskStream(data, seed, rounds, heads_by_task, **given)


def tasks_of(s, rounds):
    return [[s.holding(c, r).task for r in range(1, rounds + 1)] for c in range(s.clients)]


@pytest.mark.parametrize("order", ["multi-task", "synchronous", "asynchronous"])
@pytest.mark.parametrize("by", ["class", "transform"])
@pytest.mark.parametrize("partition", [Iid(), Dirichlet(by="class", alpha=0.1), Draw(rows=12, alpha=0.3)])
def test_laws(order, by, partition):
    s = stream(order=order, by=by, partition=partition)
    held = laws(s, 6)
    for client in range(4):
        for r in range(7):
            holding = s.holding(client, r)
            assert holding.truth["task"] == holding.task
            assert holding.truth["phase"] == (max(r, 1) - 1) // 2
            # The rows are those of the task, and the same whenever it comes.
            target = s.targets(r)[holding.task]
            assert held[client, r][2] == target.test.tolist()
            cell = s.cell(client, holding.task)
            assert held[client, r][:2] == (cell[0].tolist(), cell[1].tolist())


def test_synchronous_by_hand():
    s = stream(order="synchronous")
    assert tasks_of(s, 6) == [[0, 0, 1, 1, 2, 2]] * 4
    assert s.boundaries == (2, 4)
    assert [s.phase(r) for r in range(1, 7)] == [0, 0, 1, 1, 2, 2]
    assert s.notes() == []


def test_asynchronous_clients_follow_their_own_permutations():
    s = stream(clients=30, partition=Draw(rows=5))
    seen = tasks_of(s, 6)
    for line in seen:
        assert line[::2] == line[1::2]
        assert sorted(line[::2]) == [0, 1, 2]
    # All six orders turn up among 30 clients (without one: 6 * (5/6) ** 30 = 2.5%; this seed has them).
    assert len({tuple(line[::2]) for line in seen}) == 6


def test_multi_task_clients_draw_anew_every_round():
    s = stream(order="multi-task", rounds=60)
    seen = tasks_of(s, 60)
    assert all(set(line) == {0, 1, 2} for line in seen)
    assert len({tuple(line) for line in seen}) == 4
    changes = sum(a != b for line in seen for a, b in itertools.pairwise(line))
    # 236 changes of 2/3 probability: mean 157, standard deviation 7.2.
    assert 128 < changes < 187


def test_rounds_that_do_not_divide():
    assert phases(8, 3) == (3, 6, 8)
    assert phases(7, 3) == (3, 5, 7)
    assert phases(3, 3) == (1, 2, 3)
    assert phases(5, 1) == (5,)
    s = stream(rounds=8, order="synchronous")
    assert tasks_of(s, 8)[0] == [0, 0, 0, 1, 1, 1, 2, 2]
    assert s.boundaries == (3, 6)
    assert s.notes() == ["8 rounds are no multiple of 3 tasks: the first 2 phases have one round more than 2"]
    for rounds in (0, 2):
        with pytest.raises(ConfigError, match=f"3 tasks need at least one round each, but there are {rounds}"):
            stream(rounds=rounds)


def test_rows_do_not_depend_on_when_and_in_which_order_they_are_asked_for():
    asked = [(c, r) for c in range(4) for r in range(7)]
    for order in ("multi-task", "asynchronous"):
        forwards, shuffled = stream(order=order), stream(order=order)
        mixed = asked.copy()
        random.Random(3).shuffle(mixed)
        later = {key: shuffled.holding(*key) for key in mixed}
        for key in asked:
            a, b = forwards.holding(*key), later[key]
            assert torch.equal(a.train, b.train)
            assert torch.equal(a.validation, b.validation)
            assert a.task == b.task


def test_the_seed_decides():
    def rows(seed):
        s = stream(seed=seed, by="transform", order="multi-task")
        return [s.holding(c, r).train.tolist() for c in range(4) for r in (1, 4)]

    assert rows(1) == rows(1)
    assert rows(1) != rows(2)
    # 64 bits of it, not the low 32.
    assert rows(1) != rows(1 + 2**32)


def test_more_clients_do_not_change_who_is_where():
    few, many = stream(clients=3), stream(clients=9)
    assert tasks_of(few, 6) == tasks_of(many, 6)[:3]


def test_tasks_are_dealt_independently():
    s = stream(by="transform", tasks=2, clients=2, validation=0)
    first, second = (set((s.cell(0, t)[0] % len(DATA)).tolist()) for t in (0, 1))
    # 60 of 120 rows each; the same 60 would mean one split for both tasks, none in common its mirror.
    assert 15 < len(first & second) < 45


def test_every_row_of_a_task_is_held_exactly_once():
    for by in ("class", "transform"):
        s = stream(by=by, partition=Dirichlet(by="class", alpha=0.2), validation=0.3)
        for task in range(3):
            cells = [s.cell(c, task) for c in range(4)]
            rows = sorted(row for train, validation in cells for row in [*train.tolist(), *validation.tolist()])
            expected = [r for r in DATA.train.tolist() if by == "transform" or int(DATA.labels[r]) // 2 == task]
            assert rows == [r + (task * len(DATA) if by == "transform" else 0) for r in expected]
            validation = sorted(row for _, v in cells for row in v.tolist())
            assert s.targets(1)[task].validation.tolist() == validation
            assert [len(v) for _, v in cells] == [
                0 if len(t) + len(v) < 2 else max(1, min(round(0.3 * (len(t) + len(v))), len(t) + len(v) - 1))
                for t, v in cells
            ]


def test_heads():
    assert (stream().head, stream().task_outputs, stream().outputs) == ("task", (2, 2, 2), 2)
    shared = stream(heads_by_task=False)
    assert (shared.head, shared.task_outputs, shared.outputs) == ("shared", (), 6)
    assert shared.dataset.targets is None
    forced = stream(head="shared")
    assert (forced.head, forced.outputs) == ("shared", 6)
    assert stream(head="task").head == "task"
    with pytest.raises(ConfigError, match=r"set method\.per: task"):
        stream(heads_by_task=False, head="task")


def test_targets_are_one_per_task():
    s = stream()
    assert [target.labels for target in s.targets(1)] == [{"task": 0}, {"task": 1}, {"task": 2}]
    for t, target in enumerate(s.targets(5)):
        assert sorted(set(DATA.labels[target.test].tolist())) == [2 * t, 2 * t + 1]
        assert len(target.test) == 6


@pytest.mark.parametrize("order", ["asynchronous", "synchronous", "multi-task"])
def test_targets_of_clients_are_their_tasks_so_far(order):
    s, plain = stream(order=order, targets="client", validation=0.25), stream(order=order, validation=0.25)
    for r in (0, 1, 2, 3, 6):
        so_far = range(1, max(r, 1) + 1)
        begun = [{s.task(c, q) for q in so_far} if order != "multi-task" else {0, 1, 2} for c in range(4)]
        found = s.targets(r)
        assert sorted((t.labels["client"], t.labels["task"]) for t in found) == [
            (c, task) for c in range(4) for task in sorted(begun[c])
        ]
        for target in found:
            client, task = target.labels["client"], target.labels["task"]
            assert torch.equal(target.test, plain.targets(r)[task].test)
            assert torch.equal(target.validation, s.cell(client, task)[1])
            assert len(target.validation)


def test_too_many_clients_to_be_measured_one_by_one():
    with pytest.raises(ConfigError, match=r"10,000 at most; there are 10,001. Use targets: task"):
        stream(clients=10_001, partition=Draw(rows=5), targets="client")


def test_from_a_configuration():
    given = {
        "kind": "tasks",
        "tasks": 2,
        "by": "transform",
        "order": "synchronous",
        "clients": 3,
        "partition": {"kind": "dirichlet", "by": "class", "alpha": 0.1},
        "head": "task",
        "transforms": ["mirror", "invert"],
    }
    resolved = resolve("stream", given)
    assert resolved["partition"]["minimum"] == 0
    assert resolved["validation"] == 0.1
    s = build("stream", resolved, DATA, 0, 4, True)
    assert s.task_names == ("mirror", "invert")
    assert s.dataset.transforms == ("mirror", "invert")
    assert resolve("stream", {"kind": "tasks", "tasks": 2, "clients": 1})["partition"] == {"kind": "iid"}
    labels = resolve("stream", {"kind": "tasks", "tasks": 2, "clients": 1, "classes": [[3, "a"], [41]]})["classes"]
    assert labels == [[3, "a"], [41]]
    with pytest.raises(ConfigError, match=r"stream\.order"):
        resolve("stream", {**given, "order": "sync"})


def test_clients_without_rows_get_empty_tensors():
    s = stream(order="synchronous", partition=Sizes(sizes=[0.5, 0.0, 0.5, 0.0]))
    holding = s.holding(1, 3)
    assert (holding.train.tolist(), holding.validation.tolist(), holding.task) == ([], [], 1)
    assert len(holding.test) == 6
    assert s.notes()[0] == "task 0 (0, 1): clients without a row, which are skipped: 2 of 4"
    with pytest.raises(IndexError):
        s.holding(4, 1)
    with pytest.raises(IndexError):
        s.holding(-1, 1)


def test_one_client_and_one_task():
    s = stream(tasks=1, clients=1, rounds=1, validation=0)
    assert s.boundaries == ()
    assert s.holding(0, 1).train.tolist() == DATA.train.tolist()
    assert Counter(s.task_outputs) == {6: 1}
