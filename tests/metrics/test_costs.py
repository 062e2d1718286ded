"""Bytes, steps and training loss, counted by hand."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
from measure_fakes import context, seen
from torch import nn

from shoal.bank import Bank, Buffers, Entry
from shoal.messages import Assignment, Failure, Outcome, Part, Update, World
from shoal.metrics.costs import Costs
from shoal.metrics.probes import Probes
from shoal.models.base import Model
from shoal.requests import FitResult, Score

# 10 float32 numbers and an extra of 2: 48 bytes. The moments on the server never travel.
ENTRY = Entry(torch.zeros(10), extra={"control": torch.zeros(2)}, server={"v": torch.zeros(10)})


def fit(steps=1, rows=1, loss=0.0):
    return FitResult(torch.empty(0), Buffers(), steps, rows, loss)


def sent(count):
    return Update({"a": Part(torch.zeros(count))}, 1.0)


def given(client, keys=("a",), own=()):
    return Assignment(client, keys, own, entries=dict.fromkeys((*keys, *own), ENTRY))


def values(**observed):
    lines, _ = Costs(context()).observe(seen(1, **observed), {})
    return {line["metric"]: line["value"] for line in lines}, lines


def test_bytes_of_a_round():
    # Client 0 gets 48 and sends 40. Client 1 fails. Client 2 gets one entry of 48 from a peer, has its own, sends 20.
    found, lines = values(
        assignments=[given(0), given(1), given(2, ("a", "b"), ("b",))],
        outcomes=[Outcome(0, sent(10)), Outcome(1, Failure("crash")), Outcome(2, sent(5))],
    )
    assert found["total_bytes_down"] == 144
    assert found["bytes_down"] == 48
    assert found["total_bytes_up"] == 60
    assert found["bytes_up"] == 20
    assert {line["clients"] for line in lines if line["metric"] in ("bytes_down", "bytes_up")} == {3}


def test_all_exchanges_of_a_round_count_but_a_client_only_once():
    found, _ = values(
        assignments=[given(0), given(1), given(0), given(1)],
        outcomes=[Outcome(c, sent(10)) for c in (0, 1, 0, 1)],
    )
    assert (found["bytes_down"], found["bytes_up"]) == (96, 80)


def test_a_client_drawn_several_times_sends_once():
    twice = Assignment(0, ("a",), times=3, entries={"a": ENTRY})
    found, _ = values(assignments=[twice], outcomes=[Outcome(0, sent(10))])
    assert (found["total_bytes_down"], found["total_bytes_up"]) == (48, 40)


def test_steps_and_loss():
    # Loss: (1 * 2.0 + 3 * 1.0) / 4. The diverged fit has steps, but no loss.
    found, lines = values(
        assignments=[given(0), given(1)],
        outcomes=[
            Outcome(0, sent(1), (fit(2, 1, 2.0), fit(3, 3, 1.0))),
            Outcome(1, Failure("late"), (fit(4, 100, math.nan), fit(0, 0, math.nan))),
        ],
    )
    assert found["client_steps"] == 9
    assert found["training_loss"] == 1.25
    assert [line["rows"] for line in lines if line["metric"] == "training_loss"] == [4]


def test_a_round_without_clients():
    found, _ = values()
    assert found == {
        "bytes_down": None,
        "total_bytes_down": 0,
        "bytes_up": None,
        "total_bytes_up": 0,
        "client_steps": 0,
        "training_loss": None,
        "bank_bytes": 0,
    }


def half_frozen(outputs):
    """A frozen layer of 3 x 2 and 2 numbers with a frozen norm (4 vectors of 2, a counter), a trained head."""

    def make():
        torch.manual_seed(0)
        front = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        front.requires_grad_(False)
        return nn.Sequential(OrderedDict(front=front, classifier=nn.Linear(2, outputs)))

    return make


def test_the_size_of_the_models():
    main = Model("main", half_frozen(4), teacher=nn.Linear(3, 4))
    other = Model("main-5", half_frozen(5), like=main, teacher=nn.Linear(3, 5))
    world = World(0, 2, 3, {"main": main, "main-5": other})
    costs = Costs(replace(context(), world=world))
    bank = Bank({"a": ENTRY, "b": ENTRY})
    lines, _ = costs.observe(seen(1, before=bank, after=bank), {})
    # (6 + 2 + 4 * 2) numbers of 4 bytes and a counter of 8 are frozen, in both models the same; the teachers have
    # 12 + 4 and 15 + 5 numbers. Equal numbers inside one model (the norm's two zeros and two ones) are all there.
    wanted = {"metric": "bank_bytes", "value": 96, "entries": 2, "held": None, "constants": 72, "teachers": 144}
    assert lines[-1] == wanted
    summary = Costs.summarise([{"round": 1, **wanted}, {"round": 3, **wanted, "value": 48, "entries": 1, "held": 7.5}])
    found = {key: summary[key] for key in ("bank_bytes", "bank_entries", "client_bytes")}
    assert found == {"bank_bytes": 48, "bank_entries": 1, "client_bytes": 7.5}
    assert (summary["constant_bytes"], summary["teacher_bytes"]) == (72, 144)


def test_what_lies_at_a_client():
    # In two exchanges client 0 has three entries of 48 bytes, one of them in both; client 1 has one of its own.
    asked = [given(0, ("a", "b")), given(0, ("b",), ("c",)), given(1, (), ("d",))]
    _, lines = values(assignments=asked, outcomes=[Outcome(one.client, sent(1)) for one in asked])
    assert [line["held"] for line in lines if line["metric"] == "bank_bytes"] == [(3 * 48 + 48) / 2]


@pytest.mark.parametrize(("round", "after", "last", "told"), [
    (1, ("a",), False, True), (2, ("a",), False, False), (2, ("a", "b"), False, True), (2, ("b",), False, True),
    (9, ("a",), True, True),
])  # fmt: skip
def test_when_the_size_is_told(round, after, last, told):
    before = Bank({"a": ENTRY})
    lines, _ = Costs(context()).observe(
        seen(round, before=before, after=Bank(dict.fromkeys(after, ENTRY)), last=last), {}
    )
    assert ("bank_bytes" in [line["metric"] for line in lines]) == told


def test_no_line_holds_a_time():
    _, lines = values(assignments=[given(0)], outcomes=[Outcome(0, sent(1), seconds=123.0)])
    assert 123.0 not in [value for line in lines for value in line.values()]


def test_summary_weighs_every_client_and_round_alike():
    # One client gets 100 bytes in round 1, three get 20 each in round 2: (100 + 60) / 4 = 40, not (100 + 20) / 2.
    # The warm-up counts in the totals alone, a round without clients nowhere.
    lines = [
        {"round": r, "metric": metric, "value": value, **({"clients": clients} if metric == "bytes_down" else {})}
        for r, clients, each in [(0, 2, 50), (1, 1, 100), (2, 3, 20), (3, 0, None)]
        for metric, value in [
            ("bytes_down", each),
            ("total_bytes_down", clients * (each or 0)),
            ("client_steps", 5 * clients),
        ]
    ]
    summary = Costs.summarise(lines)
    assert summary == {
        "bytes_down_per_round": 40,
        "bytes_up_per_round": None,
        "total_bytes_down": 260,
        "total_bytes_up": 0,
        "client_steps": 30,
        "bank_bytes": None,
        "bank_entries": None,
        "client_bytes": None,
        "constant_bytes": None,
        "teacher_bytes": None,
    }


def test_summary_of_nothing():
    summary = Costs.summarise([])
    assert (summary["bytes_up_per_round"], summary["client_steps"]) == (None, 0)


def test_probes_are_logged_by_client_and_null_without_rows():
    outcomes = [
        Outcome(2, sent(1), probes=(("before", Score(0.5, 0.25, 8)), ("after", Score(math.inf, 0.75, 8)))),
        Outcome(1, Failure("crash"), probes=(("before", Score(math.nan, math.nan, 0)),)),
    ]
    lines, _ = Probes(context()).observe(seen(1, outcomes=outcomes), {})
    assert [line for line in lines if line["metric"] == "probe"] == [
        {"metric": "probe", "label": "before", "value": None, "loss": None, "rows": 0, "client": 1},
        {"metric": "probe", "label": "before", "value": 0.25, "loss": 0.5, "rows": 8, "client": 2},
        {"metric": "probe", "label": "after", "value": 0.75, "loss": None, "rows": 8, "client": 2},
    ]


def test_weights_must_match():
    from shoal.metrics.values import mean

    assert mean([1, None, 4], [1.0, 5.0, 2.0]) == pytest.approx(3.0)
    assert mean([1, 2], [0.0, 0.0]) is None
    with pytest.raises(ValueError):
        mean([1, 2], [1.0])
