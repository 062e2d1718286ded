"""Schedules of the local rate, against torch's schedulers and by hand, with every learner and every optimiser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from learner_lab import CURVED, TWO, Dealt, Rows, Run, gradient, play, same, setup_of

from shoal.bank import Bank, Entry
from shoal.checks.case import Case
from shoal.config import Local
from shoal.errors import ConfigError
from shoal.messages import Assignment, Client, Update
from shoal.methods.base import Method
from shoal.randomness import Moment
from shoal.requests import FitResult, Optimizer, Served
from shoal.server.fednova import FedNova
from shoal.streams.base import Holding

SCHEDULERS = torch.optim.lr_scheduler
HALVED = {"kind": "exponential", "gamma": 0.5}


class Held(Dealt):
    """As `Dealt`, but the last row of every client is for validation."""

    def holding(self, client: int, round: int) -> Holding:
        held = super().holding(client, round)
        return replace(held, train=held.train[:-1], validation=held.train[-1:])


class Alone(Method):
    """Everyone trains a model of its own, without a server."""

    serverless = True

    def start(self):
        first = self.initial("client")
        return Bank().put({f"client/{i}": first for i in range(self.world.clients)})

    def assign(self, bank, when, clients):
        return [Assignment(c.id, own=(f"client/{c.id}",), times=c.times) for c in clients]

    def train(self, given, client):
        ((key, entry),) = given.entries.items()
        note = yield from self.report(Served.of(entry), client)
        part, state = yield from self.learner.fit(key, Served.of(entry), entry, client)
        return Update({key: part}, weight=len(client.train), state=state, note=note)

    def candidates(self, bank, target):
        return [(key,) for key in bank.entries]


# ---- schedules of the round --------------------------------------------------------------------------------------

ONE: list[Rows] = [([[0.0]] * 2, [3.0] * 2)]
OF_TORCH: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "exponential": ({"kind": "exponential", "gamma": 0.7}, lambda o: SCHEDULERS.ExponentialLR(o, 0.7)),
    "cosine": ("cosine", lambda o: SCHEDULERS.CosineAnnealingLR(o, 6)),
    "stages": ({"kind": "stages", "at": [0.5, 5], "gamma": 0.3}, lambda o: SCHEDULERS.MultiStepLR(o, [3, 5], 0.3)),
}
OPTIMIZERS: dict[str, tuple[dict[str, Any], Callable[..., torch.optim.Optimizer]]] = {
    "sgd": ({"momentum": 0.9, "weight_decay": 0.1}, torch.optim.SGD),
    "adam": ({"optimizer": "adam"}, torch.optim.Adam),
    "adamw": ({"optimizer": "adamw", "weight_decay": 0.1}, torch.optim.AdamW),
}


@pytest.mark.parametrize("kind", OF_TORCH)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_six_rounds_of_torch_with_a_scheduler(kind: str, optimizer: str) -> None:
    schedule, make = OF_TORCH[kind]
    settings, build = OPTIMIZERS[optimizer]
    local = {"lr": 0.3, "lr_schedule": schedule, "steps": 2, **settings}
    run = play(ONE, "plain", local=local, rounds=6)
    b = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    more = {name: value for name, value in settings.items() if name != "optimizer"}
    scheduled = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    scheduler = make(scheduled)
    for round in range(1, 7):
        steps = build([b], lr=scheduled.param_groups[0]["lr"], **more)  # new in every round
        for _ in range(2):
            steps.zero_grad()
            (0.5 * (b - 3.0) ** 2).sum().backward()
            steps.step()
        assert run.bias(round) == pytest.approx(float(b.detach()), rel=1e-4)
        scheduled.step()
        scheduler.step()
    assert not run.bank["global"].extra


@pytest.mark.parametrize("learner", ["plain", "proximal", "scaffold", "svrg", "adaptive-rate", "early-stopping"])
def test_without_a_fall_no_bit_changes(learner: str) -> None:
    still, none = (
        play(CURVED, learner, local={"lr": 0.1, "lr_schedule": schedule}, rounds=3)
        for schedule in ({"kind": "stages", "at": [1000]}, None)
    )
    assert all(same(a, b) for a, b in zip(still.states, none.states, strict=True))


@pytest.mark.parametrize("implicit", [False, True])
def test_proximal_steps_and_its_penalty_take_the_rate_of_the_round(implicit: bool) -> None:
    # One client with 2 rows: b moves by lr, from 1/2 on halved each round, towards 2.
    learner = {"kind": "proximal", "mu": 1.0, "implicit": implicit}
    run = play(TWO[:1], learner, local={"lr_schedule": HALVED, "steps": 2}, rounds=3)
    x, rate = 0.0, 0.5
    for round in (1, 2, 3):
        y = x
        for _ in range(2):
            if implicit:
                y = (y - rate * (y - 2) + rate * x) / (1 + rate)
            else:
                y -= rate * (y - 2 + (y - x))
        x, rate = y, rate / 2
        assert run.bias(round) == pytest.approx(x, rel=1e-6)


@pytest.mark.parametrize("learner", ["scaffold", "svrg"])
def test_option_two_of_scaffold_divides_by_the_rate_of_the_round(learner: str) -> None:
    local = {"lr": 0.2, "batch_size": 6, "steps": 3, "lr_schedule": HALVED}
    run = play(CURVED, learner, local=local, method={"kind": "fedavg", "mean": "uniform"}, rounds=3)
    x, c, variates = np.zeros(3), np.zeros(3), [np.zeros(3)] * 3
    for round, rate in ((1, 0.2), (2, 0.1), (3, 0.05)):
        ends, news = [], []
        for rows, mine in zip(CURVED, variates, strict=True):
            y = x
            for _ in range(3):
                y = y - rate * (gradient(rows, y) - mine + c)
            ends.append(y)
            news.append(mine - c + (x - y) / (3 * rate))
        x = np.mean(ends, 0)
        c = c + np.mean([new - mine for new, mine in zip(news, variates, strict=True)], 0)
        variates = news
        np.testing.assert_allclose(run.vector(round), x, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(run.states[round].bank["global"].extra["control/c"], c, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("anchor", ["local", "global"])
def test_svrg_at_the_rate_of_the_round(anchor: str) -> None:
    local = {"lr": 0.2, "batch_size": 6, "steps": 2, "lr_schedule": HALVED}
    run = play(CURVED, {"kind": "svrg", "anchor": anchor}, local=local, rounds=2)
    x, share = np.zeros(3), np.array([4, 6, 2]) / 12
    for round, rate in ((1, 0.2), (2, 0.1)):
        slopes = [gradient(rows, x) for rows in CURVED]
        ends = []
        for rows, slope in zip(CURVED, slopes, strict=True):
            y, towards = x, slope if anchor == "local" else share @ np.stack(slopes)
            for _ in range(2):
                y = y - rate * (gradient(rows, y) - slope + towards)
            ends.append(y)
        x = share @ np.stack(ends)
        np.testing.assert_allclose(run.vector(round), x, rtol=1e-4, atol=1e-6)


def client(round: int, **fields: Any) -> Client:
    return Client(0, Moment(0, round), torch.arange(2), torch.arange(0), **fields)


def test_the_schedule_multiplies_whatever_rate_is_asked_for() -> None:
    setup = setup_of(TWO, "adaptive-rate", local={"lr_schedule": HALVED})
    learner, entry = setup.method.learner, setup.method.start()["global"]
    start = Served.of(entry)
    # A warm-up, round 0, has the rate of the first round.
    rates = [learner.request(start, client(r)).optimizer.lr for r in (0, 1, 2, 4)]
    assert rates == [0.5, 0.5, 0.25, 0.0625]
    own = learner.request(start, client(3), optimizer=Optimizer("adam", 0.08))
    assert (own.optimizer.kind, own.optimizer.lr) == ("adam", 0.02)
    sent = entry.new(extra={"adaptive-rate/lr": torch.tensor(0.25)})
    assert next(learner.fit("global", start, sent, client(3))).optimizer.lr == 0.0625


def test_a_fit_that_a_method_asks_for_itself_follows_the_plateau_of_the_entry() -> None:
    learner = setup_of(TWO, "plain", local={"lr_schedule": "plateau"}).method.learner
    fallen = Entry(torch.zeros(2), extra={"schedule/factor": torch.tensor(0.25, dtype=torch.float64)})
    assert learner.request(Served.of(fallen), client(2), entry=fallen).optimizer.lr == 0.125
    assert next(learner.fit("global", Served.of(fallen), fallen, client(2))).optimizer.lr == 0.125


def test_a_rate_of_zero_leaves_scaffolds_variate() -> None:
    setup = setup_of(TWO, "scaffold", local={"lr_schedule": {"kind": "exponential", "gamma": 1e-200}})
    learner, entry = setup.method.learner, setup.method.start()["global"]
    program = learner.fit("global", Served.of(entry), entry, client(4))
    fit = next(program)
    assert fit.optimizer.lr == 0.0
    with pytest.raises(StopIteration) as stop:
        program.send(FitResult(entry.vector, entry.buffers, 2, 4, 1.0))
    assert not stop.value.value[0].extra["control/delta"].any()


# ---- the plateau -------------------------------------------------------------------------------------------------

FAR: list[Rows] = [([[0.0]] * 3, [2.0] * 3), ([[0.0]] * 5, [-4.0] * 5)]
"""With `Held` 2 and 4 training rows; the validation row wants the same."""
PLATEAU = {"kind": "plateau", "patience": 1, "gamma": 0.5, "threshold": 0.0}
HELD = {"kind": "test_local_schedules:Held", "sizes": [3, 5]}
GOALS, WEIGHTS = (2.0, -4.0), (2.0, 4.0)


def bias(run: Run, key: str, round: int) -> float:
    return float(run.vector(round, key)[-1])


def falling(run: Run, key: str, clients: Callable[[int], list[int]], lr: float, rounds: int) -> list[float]:
    """The factors that torch's plateau gives for an entry's losses; asserts that the entry's own are the same."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    scheduler = SCHEDULERS.ReduceLROnPlateau(optimizer, factor=0.5, patience=1, threshold=0.0, eps=0)
    factors = [1.0]
    for round in range(1, rounds + 1):
        b, who = bias(run, key, round - 1), clients(round)
        losses = [0.5 * (b - GOALS[i]) ** 2 for i in who]
        scheduler.step(float(np.average(losses, weights=[WEIGHTS[i] for i in who])))
        factors.append(optimizer.param_groups[0]["lr"] / lr)
        kept = run.states[round].bank[key].extra
        assert float(kept["schedule/factor"]) == pytest.approx(factors[-1])
        assert float(kept["schedule/best"]) == pytest.approx(scheduler.best, rel=1e-5)
        assert int(kept["schedule/waited"]) == scheduler.num_bad_epochs
    return factors


def after(b: float, goal: float, rate: float, steps: int) -> float:
    return goal + (b - goal) * (1 - rate) ** steps


@pytest.mark.parametrize("server", ["sgd", {"kind": "sgd", "lr_schedule": {"kind": "plateau", "patience": 50}}])
def test_the_plateau_is_torchs_and_travels_with_the_entry(server: Any) -> None:
    # At this rate every step overshoots; after some falls it does not any more.
    local = {"lr": 2.3, "lr_schedule": PLATEAU}
    method = {"kind": "fedavg", "server": server}
    run = play(FAR, "plain", stream=HELD, local=local, method=method, rounds=9)
    factors = falling(run, "global", lambda round: [0, 1], 2.3, 9)
    assert factors[2] == 1.0
    assert factors[-1] < 0.5
    for round in range(1, 10):
        b, rate = run.bias(round - 1), 2.3 * factors[round - 1]
        expected = (2 * after(b, 2.0, rate, 1) + 4 * after(b, -4.0, rate, 2)) / 6
        assert run.bias(round) == pytest.approx(expected, rel=1e-4)
    down = [line["value"] for lines in run.lines for line in lines if line.get("metric") == "bytes_down"]
    assert down[:2] == [8, 8 + 24]


def test_each_entry_has_a_plateau_of_its_own() -> None:
    stream = {**HELD, "tasks": 2}
    run = play(FAR, "plain", stream=stream, local={"lr": 2.3, "lr_schedule": PLATEAU, "steps": 1},
               method={"kind": "fedavg", "per": "task"}, rounds=8)  # fmt: skip
    for task in (0, 1):
        who = lambda round, task=task: [i for i in (0, 1) if (i + round) % 2 == task]  # noqa: E731
        factors = falling(run, f"task/{task}", who, 2.3, 8)
        for round in range(1, 9):
            b, (i,) = bias(run, f"task/{task}", round - 1), who(round)
            expected = after(b, GOALS[i], 2.3 * factors[round - 1], 1)
            assert bias(run, f"task/{task}", round) == pytest.approx(expected, rel=1e-4)


def test_without_a_server_each_client_has_a_plateau_of_its_own() -> None:
    # One step of 2.3 overshoots for client 0; client 1 takes two, (1 - 2.3)^2 = 1.69: both get worse, then settle.
    local = {"lr": 2.3, "lr_schedule": PLATEAU}
    method = {"kind": "test_local_schedules:Alone"}
    run = play(FAR, "plain", stream=HELD, local=local, method=method, rounds=7)
    for i, steps in ((0, 1), (1, 2)):
        factors = falling(run, f"client/{i}", lambda round, i=i: [i], 2.3, 7)
        for round in range(1, 8):
            b = bias(run, f"client/{i}", round - 1)
            expected = after(b, GOALS[i], 2.3 * factors[round - 1], steps)
            assert bias(run, f"client/{i}", round) == pytest.approx(expected, rel=1e-4)
    assert {line["value"] for lines in run.lines for line in lines if line.get("metric") == "total_bytes_down"} == {0}


@pytest.mark.parametrize(
    ("learner", "extras"),
    [
        ("scaffold", {"control/c"}),
        ({"kind": "scaffold", "option": "I"}, {"control/c"}),
        ({"kind": "svrg", "anchor": "global"}, set()),
        ("adaptive-rate", {"adaptive-rate/lr"}),
    ],
)
def test_a_learners_own_numbers_stay_beside_it(learner: Any, extras: set[str]) -> None:
    kind = learner if isinstance(learner, str) else learner["kind"]
    method = {"kind": "fedavg", "server": "adaptive-fedavg" if kind == "adaptive-rate" else "sgd"}
    local = {"lr": 0.01, "lr_schedule": {**PLATEAU, "patience": 50, "threshold": 0.99}}
    run = play(FAR, learner, stream=HELD, local=local, method=method, rounds=4)
    kept = run.bank["global"].extra
    assert set(kept) == extras | {"schedule/best", "schedule/waited", "schedule/factor"}
    # The first report is the best; the three others are rounds of waiting, one for each round, two exchanges or not.
    assert int(kept["schedule/waited"]) == 3


def test_without_validation_rows_the_rate_stays_and_that_is_said() -> None:
    local = {"lr": 2.3, "lr_schedule": PLATEAU}
    run = play(FAR, "plain", local=local, rounds=4)
    assert same(run.states[-1], play(FAR, "plain", local={"lr": 2.3}, rounds=4).states[-1])
    assert not run.bank["global"].extra
    (note,) = run.setup.notes
    assert "2 of 2 clients hold no validation rows" in note
    assert "local.lr_schedule" in note
    assert not setup_of(FAR, "plain", stream=HELD, local=local).notes


def test_a_plateau_of_the_server_without_validation_rows_is_said_too() -> None:
    method = {"kind": "fedavg", "server": {"kind": "sgd", "lr_schedule": "plateau"}}
    (note,) = setup_of(FAR, "plain", method=method).notes
    assert "2 of 2 clients hold no validation rows" in note
    assert "the server optimiser hears no loss from them" in note
    assert "local.lr_schedule" not in note
    assert not setup_of(FAR, "plain", stream=HELD, method=method).notes


def test_a_resumed_run_goes_on_at_the_fallen_rate() -> None:
    case = Case(local={"lr": 30.0, "lr_schedule": {"kind": "plateau", "patience": 0, "gamma": 0.25}})
    whole = case.play(case.setup(rounds=5))
    assert float(whole.states[3].bank["global"].extra["schedule/factor"]) < 1
    resumed = case.play(case.setup(rounds=5), state=replace(whole.states[3]))
    assert resumed.prints[-1] == whole.prints[-1]


# ---- configuration -----------------------------------------------------------------------------------------------


def test_it_is_written_out_and_checked() -> None:
    assert Local().lr_schedule is None
    setup = setup_of(TWO, "plain", local={"lr_schedule": "plateau"})
    written = {"kind": "plateau", "gamma": 0.1, "patience": 10, "threshold": 1e-4, "floor": 0.0}
    assert setup.config.local.lr_schedule == written
    for given, message in [
        ("cosin", "did you mean 'cosine'"),
        ({"kind": "cosine", "flor": 0.1}, r"local.lr_schedule.flor: no such setting"),
        ({"kind": "exponential", "gamma": 0}, "0 < gamma <= 1"),
    ]:
        with pytest.raises(ConfigError, match=message):
            setup_of(TWO, "plain", local={"lr_schedule": given})


def test_fednova_refuses_a_proximal_term_at_a_changing_rate() -> None:
    # Its weights are made of the rate times mu; without a term they are the same at every rate.
    proximal = {"kind": "proximal", "mu": 0.1, "implicit": False}
    with pytest.raises(ValueError, match=r"local\.lr_schedule changes"):
        FedNova(Local(lr_schedule={"kind": "cosine"}, learner=proximal))
    FedNova(Local(lr_schedule={"kind": "cosine"}, momentum=0.9))
