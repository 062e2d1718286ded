"""What a method says of its merges: in the lines and nowhere else; and what its clients may not answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from shoal.bank import Bank, Entry
from shoal.checks.case import Case
from shoal.checks.tamper import Raising
from shoal.config import Execution
from shoal.messages import Assignment, Client, Update
from shoal.methods.base import Program
from shoal.methods.fedavg import FedAvg
from shoal.randomness import Moment


class Telling(FedAvg):
    """FedAvg that says how many clients answered, and how far the model went."""

    def records(self, before: Bank, after: Bank, updates: Sequence[Update], when: Moment) -> Iterable[dict[str, Any]]:
        away = float((after["global"].vector - before["global"].vector).norm())
        yield {"record": "told", "exchange": when.exchange, "clients": [u.client for u in updates], "away": away}


class Fresh(FedAvg):
    """Client 0 answers for a new model, with one number too many."""

    births = True

    def newborn(self, key: str) -> Entry:
        return self.initial("global")

    def train(self, given: Assignment, client: Client) -> Program:
        update = yield from super().train(given, client)
        if client.id:
            return update
        (part,) = update.parts.values()
        assert part.vector is not None
        return replace(update, parts={"new": replace(part, vector=torch.cat([part.vector, torch.zeros(1)]))})


def test_records_are_lines_and_change_nothing() -> None:
    telling, plain = Case(method={"kind": "test_records:Telling"}), Case()
    run = telling.clean()
    assert run.prints == plain.clean().prints
    assert [line["clients"] for line in run.told("told")] == [[0, 1, 2, 3]] * 3
    assert all(line["away"] > 0 for line in run.told("told"))
    for number, lines in enumerate(run.records, start=1):
        assert [line["round"] for line in lines if line["record"] == "told"] == [number]
    for engine in (Execution(kind="workers", workers=2), Execution(kind="workers", workers=3)):
        assert telling.play(telling.setup(), engine=engine).lines == run.lines


def test_every_exchange_is_asked_and_a_merge_that_is_undone_is_not() -> None:
    case = Case(method={"kind": "test_records:Telling"}, learner={"kind": "svrg", "anchor": "global"})
    assert [line["exchange"] for line in case.play(case.setup()).told("told")] == [0, 1] * 3
    case = Case(method={"kind": "test_records:Telling"})
    unmerged = case.play(case.setup(participation={"minimum": 4}), method=Raising.put(1))
    assert unmerged.told("unchanged")
    assert not unmerged.told("told")
    exploding = case.setup(method={"server": {"kind": "sgd", "lr": 1e300}})
    run = case.play(exploding)
    assert run.told("diverged")
    assert not run.told("told")


def test_an_answer_of_another_size_for_a_new_model_is_rejected_by_name() -> None:
    case = Case(method={"kind": "test_records:Fresh"})
    run = case.play(case.setup())
    assert run.clients_of("rejected") == {0}
    assert "must have" in run.told("rejected")[0]["reason"]


@pytest.mark.parametrize("kind", ["concept-matching", "feddrift", "ifca"])
def test_what_was_decided_is_in_every_round(kind: str) -> None:
    settings: dict[str, Any] = {"step": 1, "delta": 0.1} if kind == "feddrift" else {"concepts": 2}
    case = Case(method={"kind": kind, **settings})
    for run in (case.clean(), case.play(case.setup(participation={"count": 2}))):
        told = run.told("clusters")
        assert [line["round"] for line in told] == [1, 2, 3]
        for line, around in zip(told, run.told("round"), strict=True):
            assert line["clients"] == around["participants"]
            assert len(line["choices"]) == len(line["labels"]) == len(line["clients"])
            assert len(line["models"]) == len(line["fates"]) == max(line["labels"]) + 1
