"""Which targets are measured, when, with which entry, and how their numbers become means."""

from __future__ import annotations

import copy
import json
import math

import pytest
from measure_fakes import EMPTY, FakeMethod, FakeScore, FakeStream, bank, context, entry, rows, seen, target

from shoal.bank import Bank
from shoal.metrics.accuracy import Accuracy

NAN = float("nan")


def of_metric(lines, metric="mean_accuracy"):
    return [line for line in lines if line.get("metric") == metric]


def run(measure, *rounds):
    """All lines of these rounds as the loop writes them; the memory goes through JSON as in a checkpoint."""
    memory, lines = {}, []
    for one in rounds:
        found, memory = measure.observe(one, memory)
        memory = json.loads(json.dumps(memory, allow_nan=False))
        lines += [{"round": one.when.round, **line} for line in found]
        lines.append({"round": one.when.round, "record": "round"})
    return json.loads(json.dumps(lines, allow_nan=False))


def two_tasks():
    """Tasks 0 and 1, each with an entry of its own; test rows from 10 and 20 on."""
    stream = FakeStream([target(rows(10, 5), task=0), target(rows(20, 7), task=1)])
    return stream, FakeMethod({0: [("task/0",)], 1: [("task/1",)]})


def test_lines_of_a_round():
    score = FakeScore({((1.0,), 10): (0.5, 0.7), ((2.0,), 20): (0.9, 0.3)})
    lines, _ = Accuracy(context(*two_tasks())).observe(seen(1, bank(task_0=1, task_1=2), score), {})
    assert lines == [
        {"metric": "accuracy", "value": 0.5, "rows": 5, "entry": "task/0", "task": 0},
        {"metric": "loss", "value": 0.7, "rows": 5, "entry": "task/0", "task": 0},
        {"metric": "accuracy", "value": 0.9, "rows": 7, "entry": "task/1", "task": 1},
        {"metric": "loss", "value": 0.3, "rows": 7, "entry": "task/1", "task": 1},
        {"metric": "mean_accuracy", "value": 0.7, "weighting": "targets", "targets": 2},
        {"metric": "mean_accuracy", "value": pytest.approx(8.8 / 12), "weighting": "rows", "targets": 2},
    ]
    assert len(score.calls) == 1


def test_plain_and_weighted_means_differ():
    # 1 row all wrong, 99 rows all right: one target in two is right, but 99 rows of 100.
    stream = FakeStream([target(rows(0, 1), client=0), target(rows(1, 99), client=1)])
    method = FakeMethod({0: [("global",)], 1: [("global",)]})
    score = FakeScore({((1.0,), 0): (0.0, 9.0), ((1.0,), 1): (1.0, 1.0)})
    lines = run(Accuracy(context(stream, method)), seen(1, bank(**{"global": 1}), score))
    means = {line["weighting"]: line["value"] for line in of_metric(lines)}
    assert means == {"targets": 0.5, "rows": 0.99}
    summary = Accuracy.summarise(lines)
    assert (summary["acc"], summary["acc_weighted"], summary["loss"]) == (0.5, 0.99, 5.0)
    assert summary["accuracy_by_target"] == {"client=0": 0.0, "client=1": 1.0}


def test_one_model_that_serves_several_clients_on_the_same_rows_is_measured_once():
    shared, other = rows(10, 5), rows(10, 6)
    stream = FakeStream([target(shared, client=0), target(shared, client=1), target(other, client=2)])
    method = FakeMethod({0: [("global",)], 1: [("global",)], 2: [("global",)]})
    score = FakeScore({((1.0,), 10): (0.5, 0.7)})
    lines = run(Accuracy(context(stream, method)), seen(1, bank(**{"global": 1}), score))
    assert [(line["client"], line["value"], line["rows"]) for line in of_metric(lines, "accuracy")] == [
        *((client, 0.5, 5) for client in (0, 1)),
        (2, 0.5, 6),
    ]
    assert score.calls == [[((1.0,), 10)] * 2]


def test_what_did_not_change_is_not_measured_again():
    score = FakeScore({((1.0,), 10): (0.5, 0.7), ((2.0,), 20): (0.9, 0.3), ((3.0,), 20): (0.95, 0.2)})
    first = bank(task_0=1, task_1=2)
    second = first.put({"task/1": entry(3)})
    lines = run(Accuracy(context(*two_tasks())), seen(1, first, score), seen(2, first, score), seen(3, second, score))
    assert score.calls == [[((1.0,), 10), ((2.0,), 20)], [((3.0,), 20)]]
    written = {(line["round"], line["task"]): line["value"] for line in of_metric(lines, "accuracy")}
    assert written == {(1, 0): 0.5, (1, 1): 0.9, (2, 0): 0.5, (2, 1): 0.9, (3, 0): 0.5, (3, 1): 0.95}


def test_a_target_whose_rows_change_is_measured_again():
    method = FakeMethod({0: [("global",)]})
    score = FakeScore({((1.0,), 10): (0.5, 0.7), ((1.0,), 20): (0.6, 0.8)})
    stream = FakeStream([target(rows(10, 5), stamp=1, task=0)])
    measure, same = Accuracy(context(stream, method)), bank(**{"global": 1})
    _, memory = measure.observe(seen(1, same, score), {})
    stream.given = [target(rows(20, 5), stamp=2, task=0)]
    lines, _ = measure.observe(seen(2, same, score), memory)
    assert len(score.calls) == 2
    assert lines[0]["value"] == 0.6


def test_a_key_that_is_born_again_is_not_taken_for_the_old_one():
    method = FakeMethod({0: [("a",)]})
    score = FakeScore({((1.0,), 10): (0.5, 0.7), ((2.0,), 10): (0.6, 0.8)})
    old = bank(a=1)
    new = old.put({"a": None}).put({"a": entry(2)})
    lines = run(
        Accuracy(context(FakeStream([target(rows(10, 5), task=0)]), method)), seen(1, old, score), seen(2, new, score)
    )
    assert [line["value"] for line in of_metric(lines, "accuracy")] == [0.5, 0.6]


VALIDATION = rows(50, 4)


def choice(validation_losses, validation=VALIDATION):
    """One target and the concepts 1, 2, ...: validation loss as given, test accuracy n / 10."""
    names = [f"concept/{n}" for n in range(1, len(validation_losses) + 1)]
    stream = FakeStream([target(rows(10, 5), validation, concept="c")])
    method = FakeMethod({"c": [(name,) for name in names]})
    numbers = range(1, len(names) + 1)
    table = {((float(n),), 10): (n / 10, 0.0) for n in numbers}
    table |= {((float(n),), 50): (0.0, loss) for n, loss in zip(numbers, validation_losses, strict=True)}
    full = Bank().put({name: entry(n) for n, name in zip(numbers, names, strict=True)})
    return context(stream, method), full, FakeScore(table)


@pytest.mark.parametrize(
    ("losses", "chosen"),
    [
        ((0.9, 0.2, 0.5), 2),  # the lowest loss, although the third is the best on test rows
        ((0.5, 0.2, 0.2), 2),  # ties: the first
        ((NAN, 0.8, 0.9), 2),  # a diverged entry is never chosen ...
        ((0.9, math.inf, -0.1), 3),
        ((NAN, math.inf, NAN), 1),  # ... unless all are
    ],
)
def test_the_entry_is_chosen_by_loss_on_validation_rows(losses, chosen):
    about, full, score = choice(losses)
    lines, memory = Accuracy(about).observe(seen(1, full, score), {})
    assert (lines[0]["value"], lines[0]["entry"]) == (chosen / 10, f"concept/{chosen}")
    assert [len(call) for call in score.calls] == [3, 1]  # one call for all choices, one for all test rows
    json.dumps(memory, allow_nan=False)


def test_without_validation_rows_the_first_group_is_taken():
    about, full, score = choice((0.9, 0.2), validation=EMPTY)
    lines, _ = Accuracy(about).observe(seen(1, full, score), {})
    assert lines[0]["entry"] == "concept/1"
    assert len(score.calls) == 1


def test_only_changed_groups_are_compared_again():
    about, full, score = choice((0.5, 0.2))
    # The second concept gets worse than the first, then the first too: the choice goes 2, 1, 2.
    score.table |= {
        ((3.0,), 50): (0.0, 0.8),
        ((4.0,), 50): (0.0, 0.9),
        ((4.0,), 10): (0.4, 0.0),
        ((3.0,), 10): (0.3, 0.0),
    }
    second = full.put({"concept/2": entry(3)})
    third = second.put({"concept/1": entry(4)})
    lines = run(Accuracy(about), *(seen(r, b, score) for r, b in enumerate((full, second, third, third), start=1)))
    assert [line["entry"] for line in of_metric(lines, "accuracy")] == [
        "concept/2",
        "concept/1",
        "concept/2",
        "concept/2",
    ]
    # Round 2: the new second concept on validation, the old first one on test rows. Round 3: the new first on
    # validation, and the second, chosen for the first time at this version, on test rows. Round 4: nothing.
    assert score.calls[2:] == [[((3.0,), 50)], [((1.0,), 10)], [((4.0,), 50)], [((3.0,), 10)]]


def test_a_choice_that_flips_back_is_not_measured_again():
    about, full, score = choice((0.5, 0.2))
    score.table |= {((3.0,), 50): (0.0, 0.1), ((4.0,), 50): (0.0, 0.9), ((3.0,), 10): (0.3, 0.0)}
    second = full.put({"concept/1": entry(3)})
    third = second.put({"concept/1": entry(4)})
    run(Accuracy(about), *(seen(r, b, score) for r, b in enumerate((full, second, third), start=1)))
    # Round 3 goes back to the second concept, whose test score is known since round 1.
    assert score.calls[2:] == [[((3.0,), 50)], [((3.0,), 10)], [((4.0,), 50)]]


def test_a_group_of_several_keys_is_composed_and_has_all_their_versions():
    stream = FakeStream([target(rows(10, 5), client=1)])
    method = FakeMethod({1: [("base", "own/1")]})
    score = FakeScore({((1.0, 2.0), 10): (0.5, 0.7), ((3.0, 2.0), 10): (0.6, 0.8)})
    first = bank(base=1, own_1=2)
    second = first.put({"base": entry(3)})
    lines = run(Accuracy(context(stream, method)), seen(1, first, score), seen(2, second, score))
    assert [(x["value"], x["entry"]) for x in of_metric(lines, "accuracy")] == [
        (0.5, "base+own/1"),
        (0.6, "base+own/1"),
    ]


def test_a_score_that_is_not_finite_is_null_and_spoils_no_mean():
    score = FakeScore({((1.0,), 10): (NAN, math.inf), ((2.0,), 20): (0.9, 0.3)})
    lines = run(Accuracy(context(*two_tasks())), seen(1, bank(task_0=1, task_1=2), score))
    assert [line["value"] for line in of_metric(lines, "accuracy")] == [None, 0.9]
    assert [line["value"] for line in of_metric(lines, "loss")] == [None, 0.3]
    assert [(x["value"], x["targets"]) for x in of_metric(lines)] == [(0.9, 1), (0.9, 1)]
    assert Accuracy.summarise(lines)["accuracy_by_target"] == {"task=0": None, "task=1": 0.9}


def test_a_diverged_model_keeps_its_finite_accuracy():
    score = FakeScore({((1.0,), 10): (0.1, NAN), ((2.0,), 20): (0.9, 0.3)})
    lines, _ = Accuracy(context(*two_tasks())).observe(seen(1, bank(task_0=1, task_1=2), score), {})
    assert (lines[0]["value"], lines[1]["value"]) == (0.1, None)


def test_a_target_without_test_rows_or_without_an_entry_is_null():
    stream = FakeStream([target(EMPTY, rows(50, 4), task=0), target(rows(20, 7), task=1), target(rows(30, 1), task=2)])
    method = FakeMethod({0: [("task/0",)], 1: [("unborn",)], 2: []})
    score = FakeScore({})
    lines = run(Accuracy(context(stream, method)), seen(1, bank(task_0=1), score))
    assert [(x["value"], x["entry"], x["rows"]) for x in of_metric(lines, "accuracy")] == [
        (None, None, 0),
        (None, None, 7),
        (None, None, 1),
    ]
    assert [line["value"] for line in of_metric(lines)] == [None, None]
    assert score.calls == []
    assert Accuracy.summarise(lines)["acc"] is None


def test_the_given_memory_is_left_alone():
    score = FakeScore({((1.0,), 10): (0.5, 0.7), ((2.0,), 20): (0.9, 0.3), ((3.0,), 20): (0.95, 0.2)})
    measure, first = Accuracy(context(*two_tasks())), bank(task_0=1, task_1=2)
    _, memory = measure.observe(seen(1, first, score), {})
    before = copy.deepcopy(memory)
    measure.observe(seen(2, first.put({"task/1": entry(3)}), score), memory)
    assert memory == before


def measured_rounds(measure, rounds, tasks_by_round=None, first=1):
    memory, found = {}, []
    for r in range(first, rounds + 1):
        lines, memory = measure.observe(seen(r, tasks=(tasks_by_round or {}).get(r), last=r == rounds), memory)
        memory = json.loads(json.dumps(memory))
        found += [r] if lines else []
    return found


@pytest.mark.parametrize(
    ("every", "rounds", "expected"),
    [
        (1, 7, [1, 2, 3, 4, 5, 6, 7]),
        (4, 14, [3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14]),
        (100, 14, [3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14]),
        (100, 3, [1, 2, 3]),
        (0, 14, []),
    ],
)
def test_due_rounds_without_tasks(every, rounds, expected):
    # No BWT_f without tasks, but what clients hold may shift at the boundary: it and five rounds after it are due.
    stream = FakeStream([], boundaries=(3,))
    assert measured_rounds(Accuracy(context(stream, every=every, rounds=rounds)), rounds) == expected


def test_due_rounds_of_bwt_f():
    # One boundary, after round 12. Task 0 is trained in both phases from their first rounds on; task 1 in round 2 and
    # again from round 25 on, late; task 2 for the first time in round 40.
    stream = FakeStream([], tasks=3, boundaries=(12,))
    tasks = {r: {0: 0} for r in range(1, 61)} | {2: {0: 0, 1: 1}, 25: {1: 1}, 26: {1: 1}, 40: {0: 0, 5: 2}}
    due = measured_rounds(Accuracy(context(stream, every=50, rounds=60)), 60, tasks)
    assert due == [12, *range(13, 18), *range(25, 30), 40, 50, *range(56, 61)]


def test_bwt_f_never_switches_measuring_on():
    stream = FakeStream([], tasks=1, boundaries=(2,))
    tasks = {r: {0: 0} for r in range(1, 9)}
    measure = Accuracy(context(stream, every=0, rounds=8))
    assert measured_rounds(measure, 8, tasks) == []
    assert not any(measure.due(r, {}) for r in range(1, 9))


def test_a_task_may_be_known_from_the_truth_alone():
    # The client does not know its task. Trained in rounds 1 and 20; the boundary is 2.
    stream = FakeStream([], tasks=1, boundaries=(2,))
    measure, memory, due = Accuracy(context(stream, every=1000, rounds=100)), {}, []
    for r in range(1, 40):
        truths = {0: {"task": 0}} if r in (1, 20) else {0: {"domain": "x"}}
        lines, memory = measure.observe(seen(r, truths=truths), memory)
        due += [r] if lines else []
    assert due == [*range(2, 8), *range(20, 25)]


def test_the_warm_up_is_not_measured():
    assert measured_rounds(Accuracy(context(rounds=2)), 2, first=0) == [1, 2]
    lines, _ = Accuracy(context(rounds=0)).observe(seen(0, last=True), {})
    assert lines == []


def mean_line(round, value, weighting="targets"):
    return {"round": round, "metric": "mean_accuracy", "value": value, "weighting": weighting}


def test_the_last_five_rounds():
    # Rounds 1 to 9, of which 2, 4, 5, 8 and 9 were measured: the last five are 5 to 9.
    lines = [mean_line(r, r / 10) for r in (2, 4, 5, 8, 9)] + [mean_line(9, 0.1, "rows")]
    lines += [{"round": r, "record": "round"} for r in range(1, 10)]
    summary = Accuracy.summarise(lines)
    assert summary["acc"] == 0.9
    assert summary["acc_weighted"] == 0.1
    assert summary["acc_last5"] == pytest.approx((0.5 + 0.8 + 0.9) / 3)


def test_a_run_that_stopped_between_two_measurements():
    lines = [mean_line(10, 0.5), *({"round": r, "record": "round"} for r in range(1, 20))]
    summary = Accuracy.summarise(lines)
    assert (summary["acc"], summary["acc_last5"]) == (0.5, None)


@pytest.mark.parametrize("lines", [[], [{"round": 1, "record": "round"}]])
def test_nothing_was_measured(lines):
    assert Accuracy.summarise(lines) == {
        "acc": None,
        "acc_weighted": None,
        "acc_last5": None,
        "loss": None,
        "accuracy_by_target": {},
        "over_targets": {},
    }


def test_names_of_targets():
    lines = [
        mean_line(1, 0.5),
        {"round": 1, "metric": "accuracy", "value": 0.5, "rows": 3, "entry": "a"},
        {"round": 1, "metric": "accuracy", "value": 0.6, "rows": 3, "entry": "a", "task": 3, "client": 1},
    ]
    assert Accuracy.summarise(lines)["accuracy_by_target"] == {"all": 0.5, "task=3, client=1": 0.6}
