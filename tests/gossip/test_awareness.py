"""What follows from an alarm: which similarities are forgotten or aged, who hears of it, and what is passed on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gossip_lab import Run, play

import shoal
from shoal.bank import Entry
from shoal.checks.runner import check_target
from shoal.engine import one_torch_thread
from shoal.gossip.awareness import AGED, ALARMS, Noticed, judged, notice, read_aged, read_alarms
from shoal.gossip.detectors import Detector, Jump
from shoal.gossip.similarities import PUBLISHED, Similarities, two_hop
from shoal.messages import Client
from shoal.methods.dac import Dac
from shoal.methods.hast import Hast
from shoal.methods.pens import BEGAN, SELECTED, Pens
from shoal.randomness import Moment

EMPTY = torch.zeros(0, dtype=torch.int64)


class After(Detector):
    """Alarms whenever so many losses are known; without a number never."""

    window = 4

    def __init__(self, *, count: int | None = 2) -> None:
        self.count = count

    def alarm(self, past: Sequence[float], now: float) -> bool:
        return len(past) == self.count


SOMETIMES = {"kind": f"{__name__}:After"}
NEVER = {"kind": f"{__name__}:After", "count": None}


class AwareDac(Dac):
    examples: ClassVar = [{"contacts": 2, "awareness": {**SOMETIMES, "count": 1}}]


class AwareHast(Hast):
    examples: ClassVar = [
        {"contacts": 1, "awareness": {**SOMETIMES, "count": 1}, "on_shift": "age"},
        {"contacts": 1, "awareness": {**SOMETIMES, "count": 1}, "similar_losses": "used"},
    ]


class AwarePens(Pens):
    examples: ClassVar = [{"drawn_peers": 2, "best": 1, "selection_rounds": 1, "awareness": {**SOMETIMES, "count": 1}}]


def table(**numbers: float) -> torch.Tensor:
    """``table(c3=0.5)``: a published table with 0.5 for client 3."""
    return Similarities.of({int(name[1:]): value for name, value in numbers.items()}).tensor()


def published(*, alarms: dict[str, float] | None = None, aged: Sequence[int] = (), **numbers: float) -> Entry:
    extra = {
        PUBLISHED: table(**numbers),
        ALARMS: table(**(alarms or {})),
        AGED: torch.tensor(aged, dtype=torch.float32),
    }
    return Entry(torch.zeros(1), extra=extra, weight=3.0)


def known(run: Run, round: int, client: int) -> dict[int, float]:
    found = Similarities.read(run.state(round).bank[f"client/{client}"])
    return {int(j): float(v) for j, v in zip(found.ids, found.values, strict=True)}


def heard(run: Run, round: int, client: int) -> dict[int, int]:
    found = read_alarms(run.state(round).bank[f"client/{client}"])
    return {int(j): int(v) for j, v in zip(found.ids, found.values, strict=True)}


# ---- alarms -----------------------------------------------------------------------------------------------------


def test_losses_are_kept_since_the_last_alarm_in_a_bounded_window() -> None:
    detector, entry, state = Jump(warmup=3, window=4), published(), dict[str, Any]()
    seen: list[tuple[bool, list[float]]] = []
    for round, loss in enumerate([1.0, 1.1, 0.9, 1.0, 1.05, 7.0, 7.0], 1):
        client = Client(0, Moment(0, round), EMPTY, EMPTY, state)
        alarm, state = judged(detector, client, "client/0", entry, loss)
        seen.append((alarm, state["gossip/losses/client/0"]))
    assert [alarm for alarm, _ in seen] == [False] * 5 + [True, False]
    assert [losses for _, losses in seen][3:] == [[1.0, 1.1, 0.9, 1.0], [1.1, 0.9, 1.0, 1.05], [], [7.0]]


def test_losses_that_say_nothing_are_passed_over() -> None:
    client = Client(0, Moment(0, 9), EMPTY, EMPTY, {"gossip/losses/client/0": [1.0, 1.0]})
    for entry, loss in ((published(), float("nan")), (published(), float("inf")), (published().new(weight=0.0), 9.0)):
        alarm, state = judged(After(), client, "client/0", entry, loss)
        assert (alarm, state) == (False, {"gossip/losses/client/0": [1.0, 1.0]})


def noticed(mine: Entry, peers: dict[int, Entry], past: int = 0, most: int | None = None, round: int = 7) -> Noticed:
    client = Client(0, Moment(0, round), EMPTY, EMPTY, {"gossip/losses/client/0": [1.0] * past})
    return notice(After(), client, "client/0", mine, peers, 1.0, most)


def test_an_alarm_travels_from_contact_to_contact_and_is_news_once() -> None:
    mine = published(alarms={"c4": 3})
    peers = {1: published(alarms={"c4": 3, "c5": 6}), 2: published(alarms={"c2": 4, "c4": 5}), 3: published()}
    found = noticed(mine, peers)
    assert not found.alarm
    assert dict(zip(found.alarms.ids.tolist(), found.alarms.values.tolist(), strict=True)) == {2: 4, 4: 5, 5: 6}
    assert found.news.tolist() == [2, 4, 5]
    again = noticed(mine.new(extra={**mine.extra, ALARMS: found.alarms.tensor()}), peers)
    assert again.news.tolist() == []
    # Of more than are kept the latest count; one that was left out is no news later.
    few = noticed(mine, peers, most=2)
    assert few.alarms.ids.tolist() == few.news.tolist() == [4, 5]
    assert noticed(mine.new(extra={**mine.extra, ALARMS: few.alarms.tensor()}), peers, most=2).news.tolist() == []


def test_after_an_own_alarm_everything_is_stale() -> None:
    found = noticed(published(c1=1.0, c3=2.0), {2: published()}, past=2)
    assert found.alarm
    assert (found.alarms.ids.tolist(), found.alarms.values.tolist()) == ([0], [7.0])
    assert found.stale(np.array([1, 3])).tolist() == [1, 3]
    assert found.after([1, 3]) == []
    told = noticed(published(c1=1.0, c3=2.0), {2: published(alarms={"c3": 6})})
    assert told.stale(np.array([1, 3])).tolist() == [3]
    assert told.after([1, 3]) == [1]


# ---- two hops ---------------------------------------------------------------------------------------------------


def test_old_numbers_are_not_passed_on() -> None:
    # Client 5 alarmed in round 6, of which contact 1 has not heard; contact 2 has aged 4 and forgotten 3.
    one = published(alarms={"c5": 2}, c3=1.0, c4=1.0, c5=1.0)
    two = published(alarms={"c3": 5, "c5": 6}, aged=[4], c4=9.0, c5=8.0)
    found = noticed(published(), {1: one, 2: two})
    assert found.mute(one, Similarities.read(one)).tolist() == [3, 5]
    assert found.mute(two, Similarities.read(two)).tolist() == [3, 4]
    peers = {1: Similarities.read(one), 2: Similarities.read(two)}
    mute = {1: np.array([3, 5]), 2: np.array([3, 4])}
    got = two_hop(Similarities.of({1: 3.0, 2: 2.0}), peers, {1: 3.0, 2: 2.0}, np.array([0, 1, 2]), mute)
    assert dict(zip(got.ids.tolist(), got.values.tolist(), strict=True)) == {1: 3.0, 2: 2.0, 4: 1.0, 5: 8.0}


@pytest.mark.parametrize("unknown", [0.0, 0.1])
def test_contacts_that_are_mute_about_nobody_change_nothing(unknown: float) -> None:
    rng = np.random.default_rng(5)
    for _ in range(30):
        peers = {
            k: Similarities.of(
                {j: float(rng.uniform(-0.2, 1)) for j in range(8) if j != k and rng.random() < 0.6}, unknown
            )
            for k in (1, 2, 3)
        }
        own, measured = Similarities.of({6: 0.3}, unknown), {k: float(rng.uniform(0, 1)) for k in peers}
        own = own.joined(Similarities.of(measured))
        plain, told = (
            two_hop(own, peers, measured, np.array([0, 1, 2, 3]), m) for m in (None, {k: EMPTY.numpy() for k in peers})
        )
        assert plain.ids.tolist() == told.ids.tolist()
        assert plain.values.tolist() == told.values.tolist()


# ---- whole runs -------------------------------------------------------------------------------------------------

KINDS = ["dac", "hast", "pens"]


def method(kind: str, **more: Any) -> dict[str, Any]:
    if kind == "pens":
        return {"kind": kind, "drawn_peers": 3, "best": 1, "selection_rounds": 2, "contacts": 2, **more}
    return {"kind": kind, "contacts": 1 if kind == "hast" else 2} | more


@pytest.mark.parametrize("kind", KINDS)
def test_without_an_alarm_nothing_is_different(kind: str) -> None:
    plain, aware = play(rounds=4, method=method(kind)), play(rounds=4, method=method(kind, awareness=NEVER))
    for client in range(5):
        key = f"client/{client}"
        a, b = plain.state(4).bank[key], aware.state(4).bank[key]
        assert torch.equal(a.vector, b.vector)
        assert all(torch.equal(a.extra[name], b.extra[name]) for name in a.extra)
        assert a.bytes == b.bytes  # an empty table of alarms costs nothing
    assert len(aware.state(4).clients[0]["gossip/losses/client/0"]) == 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["forget", "age"])
def test_a_run_goes_on_from_any_round_as_if_nothing_had_been(kind: str, how: str) -> None:
    settings = method(kind, awareness=SOMETIMES, **({} if kind == "pens" else {"on_shift": how}))
    whole = play(rounds=5, method=settings)
    for round in range(1, 5):
        rest = play(rounds=5, method=settings, state=whole.state(round)).states[-1]
        for key, entry in whole.state(5).bank.entries.items():
            assert torch.equal(entry.vector, rest.bank[key].vector)
            assert all(torch.equal(value, rest.bank[key].extra[name]) for name, value in entry.extra.items())
        assert whole.state(5).clients[0]["gossip/losses/client/0"] == rest.clients[0]["gossip/losses/client/0"]


def test_what_is_forgotten_and_who_hears_of_it() -> None:
    run = play(rounds=5, method=method("hast", awareness=SOMETIMES, two_hop=False))
    assert [line["value"] for line in run.all(metric="alarms")] == [0, 0, 5, 0, 0]
    for client in range(5):
        met = {round: run.assigned(round)[client].note for round in (1, 2, 3, 4)}
        assert set(known(run, 2, client)) == {*met[1]["random"], *met[2]["random"]}
        # Alarm: only what was measured in the round itself is left.
        assert set(known(run, 3, client)) == set(met[3]["random"])
        assert heard(run, 3, client) == {client: 3}
        contacted = run.state(3).clients[client][f"gossip/contacted/client/{client}"]
        assert contacted[0].tolist() == met[3]["random"]
        # Contacts tell of their own alarm of round 3: what was measured before hearing of it is old.
        told = {*met[4]["random"], *met[4]["similar"]}
        assert heard(run, 4, client) == dict.fromkeys({client, *told}, 3)
        assert set(known(run, 4, client)) == (set(met[3]["random"]) - told) | set(met[4]["random"])


def test_what_is_aged() -> None:
    more = {"contacts": 1, "temperature": 0.0, "on_shift": "age", "aging": 0.25, "two_hop": False}
    run = play(rounds=4, method=method("dac", awareness=SOMETIMES, **more))
    for client in range(5):
        key, met = f"client/{client}", set(run.assigned(3)[client].note["similar"])
        before, after = known(run, 2, client), known(run, 3, client)
        old = set(before) - met
        assert set(read_aged(run.state(3).bank[key]).tolist()) == old
        assert {j: after[j] for j in old} == {j: before[j] / 4 for j in old}
        # Whom it contacted is not forgotten.
        assert set(run.state(3).clients[client][f"gossip/contacted/{key}"][0].tolist()) == set(before) | met
        now = set(run.assigned(4)[client].note["similar"])
        assert set(read_aged(run.state(4).bank[key]).tolist()) == (old | (met & now)) - now
        assert known(run, 4, client).keys() == after.keys() | now
    assert any(set(known(run, 2, c)) - set(run.assigned(3)[c].note["similar"]) for c in range(5))


def test_peers_are_selected_anew() -> None:
    run = play(rounds=6, method=method("pens", awareness={**SOMETIMES, "count": 3}))
    drawn = {r: [len(run.assigned(r)[c].note["random"]) for c in range(5)] for r in range(1, 7)}
    # Two rounds of selection, two of gossip with an alarm in round 4, two of selection.
    assert drawn[1] == drawn[2] == drawn[5] == drawn[6] == [3] * 5
    assert all(len({*n["random"], *n["similar"]}) <= 2 for n in (run.assigned(4)[c].note for c in range(5)))
    entry = run.state(4).bank["client/0"]
    assert entry.server[SELECTED].shape == (2, 0)
    assert entry.server[BEGAN].tolist() == [4.0]
    assert run.state(6).bank["client/0"].server[SELECTED][1].sum() == 2
    # An alarm while selecting: the counts begin with that round.
    run = play(rounds=2, method=method("pens", awareness={**SOMETIMES, "count": 1}))
    assert run.state(2).bank["client/0"].server[SELECTED][1].sum() == 1
    assert run.state(2).bank["client/0"].server[BEGAN].tolist() == [1.0]


@pytest.mark.long
@pytest.mark.parametrize("name", ["AwareDac", "AwareHast", "AwarePens"])
def test_laws(name: str) -> None:
    with one_torch_thread():
        results = check_target(f"test_awareness:{name}")
    assert len(results) > 10
    assert [f"{result.law}: {result.detail}" for result in results if not result.passed] == []


def test_a_shift_of_labels_is_noticed_the_same_by_any_engine(tmp_path: Path) -> None:
    settings = {
        "name": "noticing",
        "rounds": 7,
        "data": {"kind": "digits", "limit": 500, "limit_test": 100},
        "stream": {"kind": "shifts", "clusters": [[0, 1, 8, 9], [3, 4, 5, 7]], "clients": 4, "steps": 2,
                   "pattern": "rotate", "rounds_per_step": 5, "rows": 30, "validation_rows": 10},
        "model": {"kind": "mlp", "hidden": [8]},
        "method": method("dac", awareness={"kind": "jump", "warmup": 3}),
        "local": {"lr": 0.1, "batch_size": 8, "epochs": 3},
    }  # fmt: skip
    folders = []
    for engine in ({"kind": "serial"}, {"kind": "workers", "workers": 2}):
        result = shoal.run({**settings, "execution": engine}, out=tmp_path / engine["kind"])
        # "rotate" changes the cluster of everyone, and the labels of the other one are new to all.
        found = result.summary["alarms"]
        assert (found["changes"], found["detected"], found["mean_delay"]) == (4, 4, 0)
        folders.append(result.folder)
    assert len({(folder / "metrics.jsonl").read_bytes() for folder in folders}) == 1
