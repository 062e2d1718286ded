"""Forward transfer: when which bank is measured, and the mean made of it."""

from __future__ import annotations

import json

import pytest
from measure_fakes import EMPTY, FakeMethod, FakeScore, FakeStream, bank, context, entry, rows, seen, target

from shoal.metrics.forward import ForwardTransfer

SHARED = FakeMethod({t: [("global",)] for t in range(3)})
TARGETS = [target(rows(10 * (t + 1), t + 1), task=t) for t in range(3)]


def play(measure, *rounds):
    memory, lines = {}, [{"round": 0, "record": "stream", "boundaries": [1, 2], "tasks": 3}]
    for one in rounds:
        found, memory = measure.observe(one, memory)
        memory = json.loads(json.dumps(memory, allow_nan=False))
        lines += [{"round": one.when.round, **line} for line in found]
        tasks = {str(h.task): [c] for c, h in one.holdings.items()}
        lines.append({"round": one.when.round, "record": "round", "trained_tasks": tasks})
    return lines


def chain(*numbers, key="global"):
    """Banks whose entry is each of these numbers in turn."""
    banks = [bank(**{key: numbers[0]})]
    for number in numbers[1:]:
        banks.append(banks[-1].put({key: entry(number)}))
    return banks


# Accuracies of the model "n" on the tasks' rows from 10, 20, 30 on.
TABLE = {
    ((0.0,), 10): (0.1, 2.0), ((0.0,), 20): (0.2, 2.0), ((0.0,), 30): (0.3, 2.0),
    ((1.0,), 20): (0.25, 1.0), ((2.0,), 30): (0.1, 1.0),
}  # fmt: skip


def shared_run(score, **more):
    banks = chain(0, 1, 2, 3)
    return [seen(r, banks[r], score, before=banks[r - 1], tasks={0: r - 1}, last=r == 3, **more) for r in (1, 2, 3)]


def test_a_shared_model():
    score = FakeScore(TABLE)
    lines = play(ForwardTransfer(context(FakeStream(TARGETS, tasks=3, boundaries=(1, 2)), SHARED)), *shared_run(score))
    about = {"entry": "global", "rows": 2, "task": 1}
    assert [line for line in lines if line.get("task") == 1] == [
        {"round": 1, "metric": "accuracy_untrained", "value": 0.2, **about},
        {"round": 2, "metric": "accuracy_before_training", "value": 0.25, "unchanged": False, **about},
    ]
    assert score.calls == [[((0.0,), 10), ((0.0,), 20), ((0.0,), 30)], [((1.0,), 20)], [((2.0,), 30)]]
    # .25 - .2 = +.05 and .1 - .3 = -.2; task 0 was trained in round 1.
    assert ForwardTransfer.summarise(lines)["forward_transfer"] == {
        "mean": pytest.approx(-0.15 / 2),
        "tasks": 2,
        "excluded": 1,
        "missing": 0,
        "own_entries": False,
    }


def test_an_entry_per_task_is_zero_by_construction():
    stream = FakeStream(TARGETS, tasks=3, boundaries=(1, 2))
    method = FakeMethod({t: [(f"task/{t}",)] for t in range(3)})
    first = bank(task_0=0, task_1=0, task_2=0)
    second = first.put({"task/0": entry(5)})
    third = second.put({"task/1": entry(6)})
    score = FakeScore({((0.0,), 10 * (t + 1)): (0.1 * (t + 1), 2.0) for t in range(3)})
    rounds = [seen(r, b, score, before=b, tasks={0: r - 1}) for r, b in enumerate((first, second, third), start=1)]
    found = ForwardTransfer.summarise(play(ForwardTransfer(context(stream, method)), *rounds))["forward_transfer"]
    assert found == {"mean": 0.0, "tasks": 2, "excluded": 1, "missing": 0, "own_entries": True}


def test_a_task_counts_once_and_one_that_is_never_trained_does_not():
    score = FakeScore(TABLE)
    banks = chain(0, 1, 2, 3)
    measure = ForwardTransfer(context(FakeStream(TARGETS, tasks=3, boundaries=(1, 2)), SHARED))
    rounds = [seen(r, banks[r], score, before=banks[r - 1], tasks={0: 0, 1: min(1, r - 1)}) for r in (1, 2, 3)]
    lines = play(measure, *rounds)
    assert [line["round"] for line in lines if line.get("metric") == "accuracy_before_training"] == [2]
    found = ForwardTransfer.summarise(lines)["forward_transfer"]
    assert (found["tasks"], found["excluded"], found["missing"]) == (1, 1, 0)


def test_after_a_warm_up_the_bank_of_round_1_counts_and_what_it_trained_is_excluded():
    score = FakeScore(TABLE)
    measure = ForwardTransfer(context(FakeStream(TARGETS, tasks=3, boundaries=(1, 2)), SHARED))
    before, after, third = chain(9, 0, 1)
    rounds = [
        seen(0, after, score, before=before, tasks={0: 0, 1: 2}),
        seen(1, after, score, before=after, tasks={0: 0}),
        seen(2, third, score, before=third, tasks={0: 1}),
    ]
    lines = play(measure, *rounds)
    assert [line["round"] for line in lines if line.get("metric") == "accuracy_untrained"] == [1, 1, 1]
    found = ForwardTransfer.summarise(lines)["forward_transfer"]
    assert (found["mean"], found["tasks"], found["excluded"]) == (pytest.approx(0.05), 1, 2)


def test_without_test_rows_or_a_model_it_is_missing():
    targets = [TARGETS[0], target(EMPTY, task=1), TARGETS[2]]
    method = FakeMethod({0: [("global",)], 1: [("global",)], 2: [("unborn",)]})
    score = FakeScore(TABLE)
    lines = play(ForwardTransfer(context(FakeStream(targets, tasks=3), method)), *shared_run(score))
    assert [x["value"] for x in lines if x.get("metric") == "accuracy_before_training"] == [None, None]
    found = ForwardTransfer.summarise(lines)["forward_transfer"]
    assert found == {"mean": None, "tasks": 0, "excluded": 1, "missing": 2, "own_entries": False}


def test_the_model_is_chosen_on_validation_rows_of_the_bank_before():
    stream = FakeStream([target(rows(10, 2), rows(50, 4), task=0)], tasks=1)
    method = FakeMethod({0: [("a",), ("b",)]})
    score = FakeScore({((1.0,), 50): (0, 0.9), ((2.0,), 50): (0, 0.4), ((2.0,), 10): (0.6, 0.0)})
    before = bank(a=1, b=2)
    after = before.put({"b": entry(7)})
    lines, _ = ForwardTransfer(context(stream, method)).observe(seen(1, after, score, before=before), {})
    assert [(line["value"], line["entry"]) for line in lines] == [(0.6, "b")]


@pytest.mark.parametrize(("tasks", "every"), [(0, 1), (3, 0)])
def test_no_tasks_or_no_measuring(tasks, every):
    measure = ForwardTransfer(context(FakeStream(TARGETS, tasks=tasks), SHARED, every=every))
    lines = play(measure, *shared_run(FakeScore({})))
    assert not [line for line in lines if "metric" in line]
    assert ForwardTransfer.summarise(lines) == {}
