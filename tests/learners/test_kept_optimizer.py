"""``local.keep``: every client's optimiser goes on over the rounds, as one object of torch.optim does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from learner_lab import CURVED, Rows, Run, play, setup_of
from test_early_stopping import CLIENTS, Held

from shoal.bank import Entry
from shoal.errors import ConfigError
from shoal.learners.base import Learner
from shoal.messages import Client
from shoal.randomness import Moment
from shoal.requests import Fit, FitResult, Served

STREAM = f"{Held.__module__}:Held"
FULL = {"batch_size": 100, "epochs": 2, "keep": True}
OPTIMIZERS: dict[str, tuple[dict[str, Any], Callable[[Any], torch.optim.Optimizer]]] = {
    "momentum": (
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05},
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.05),
    ),
    "adam": (
        {"optimizer": "adam", "lr": 0.1, "beta1": 0.8, "beta2": 0.95},
        lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.8, 0.95)),
    ),
    "adamw": (
        {"optimizer": "adamw", "lr": 0.1, "weight_decay": 0.2},
        lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.2),
    ),
}


def loss_of(rows: Rows, w: torch.Tensor, part: slice = slice(None)) -> torch.Tensor:
    x = torch.tensor([[*row, 1.0] for row in rows[0]], dtype=torch.float64)[part]
    return 0.5 * (x @ w - torch.tensor(rows[1], dtype=torch.float64)[part]).square().mean()


class Trainer:
    """One client, its parameter and its one optimiser."""

    def __init__(self, rows: Rows, make: Callable[[Any], torch.optim.Optimizer], held: int = 0) -> None:
        self.rows, self.train = rows, slice(None, len(rows[1]) - held)
        self.w = torch.zeros(len(rows[0][0]) + 1, dtype=torch.float64, requires_grad=True)
        self.optimizer = make([self.w])
        self.variate = torch.zeros_like(self.w)

    def gradient(self, at: torch.Tensor) -> torch.Tensor:
        point = at.clone().requires_grad_()
        return torch.autograd.grad(loss_of(self.rows, point, self.train), point)[0]

    def fit(self, start: torch.Tensor, extra: Callable[[torch.Tensor], torch.Tensor], gamma: float | None) -> None:
        self.w.data.copy_(start)
        held = slice(self.train.stop, None)
        last = float(loss_of(self.rows, self.w.detach(), held))
        for epoch in (1, 2):
            self.w.grad = self.gradient(self.w.detach()) + extra(self.w.detach())
            self.optimizer.step()
            now = float(loss_of(self.rows, self.w.detach(), held)) if gamma is not None else 0.0
            if gamma is not None and last - now < gamma / epoch:
                return
            last = now


def rounds_of(run: Run) -> list[list[int]]:
    """Whose update counted, in each round."""
    late = {(line["round"], line["client"]) for line in run.told("straggler")}
    return [[c for c in r["participants"] if (r["round"], c) not in late] for r in run.told("round")]


def by_torch(run: Run, clients: list[Rows], name: str, learner: dict[str, Any], held: int = 0) -> np.ndarray:
    """Federated averaging of clients that each go on with the one optimiser that they have."""
    trainers = [Trainer(rows, OPTIMIZERS[name][1], held) for rows in clients]
    w = torch.zeros(len(clients[0][0][0]) + 1, dtype=torch.float64)
    shared = torch.zeros_like(w)
    mu, gamma = learner.get("mu", 0.0), learner.get("gamma")
    for who in rounds_of(run):
        change = torch.zeros_like(w)
        for c in who:
            trainer, before = trainers[c], trainers[c].variate
            own = shared - before if learner["kind"] == "scaffold" else torch.zeros_like(w)
            trainer.variate = trainer.gradient(w)
            change += trainer.variate - before
            trainer.fit(w, lambda y, own=own, x=w: own + mu * (y - x), gamma)  # type: ignore[misc]
        sizes = torch.tensor([float(len(clients[c][1]) - held) for c in who], dtype=torch.float64)
        stacked = torch.stack([trainers[c].w.detach() for c in who])
        w = (sizes[:, None] * stacked).sum(0) / sizes.sum()
        shared = shared + change / len(clients)
    return w.numpy()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_sample_of_unequal_clients_equals_torch_optim(name: str) -> None:
    local = {**OPTIMIZERS[name][0], **FULL}
    more = {"rounds": 5, "participation": {"count": 2, "straggler_probability": 0.3}, "seed": 2}
    run = play(CURVED, {"kind": "plain"}, clean=False, local=local, **more)
    visits = rounds_of(run)
    assert any(set(range(3)) - set(who) for who in visits)
    assert run.told("straggler")
    assert max(sum(c in who for who in visits) for c in range(3)) >= 2
    expected = by_torch(run, CURVED, name, {"kind": "plain"})
    np.testing.assert_allclose(run.vector(), expected, rtol=1e-4, atol=1e-5)
    fresh = play(CURVED, {"kind": "plain"}, clean=False, local={**local, "keep": False}, **more)
    assert np.abs(fresh.vector() - expected).max() > 1e-2
    steps = {c: int(numbers["optimizer/global"]["steps"]) for c, numbers in run.states[-1].clients.items()}
    assert steps == {c: n for c in range(3) if (n := 2 * sum(c in who for who in visits))}


@pytest.mark.parametrize(
    "learner",
    [
        {"kind": "proximal", "mu": 0.7},
        {"kind": "scaffold", "option": "I"},
        # On all rows at once the anchor's gradient takes itself away again.
        {"kind": "svrg", "anchor": "local"},
        {"kind": "ewc", "strength": 0.0},
    ],
)
def test_every_learner_keeps_its_moments(learner: dict[str, Any]) -> None:
    run = play(CURVED, learner, local={**OPTIMIZERS["momentum"][0], **FULL}, rounds=4)
    expected = by_torch(run, CURVED, "momentum", learner)
    np.testing.assert_allclose(run.vector(), expected, rtol=1e-4, atol=1e-5)


def test_moments_go_on_after_an_early_stop() -> None:
    learner = {"kind": "early-stopping", "gamma": 0.05}
    local = {**OPTIMIZERS["momentum"][0], **FULL}
    run = play(CLIENTS, learner, local=local, rounds=4, stream={"kind": STREAM, "sizes": [6, 5]})
    kept = [int(numbers["optimizer/global"]["steps"]) for numbers in run.states[-1].clients.values()]
    assert min(kept) < 8  # of four rounds with two epochs
    expected = by_torch(run, CLIENTS, "momentum", learner, held=2)
    np.testing.assert_allclose(run.vector(), expected, rtol=1e-4, atol=1e-5)


def test_nothing_of_it_is_sent() -> None:
    runs = [
        play(CURVED, {"kind": "plain"}, local={**OPTIMIZERS["adam"][0], **FULL, "keep": keep}) for keep in (True, False)
    ]
    bytes_of = [[x for lines in run.lines for x in lines if "bytes" in x.get("metric", "")] for run in runs]
    assert bytes_of[0] == bytes_of[1]
    assert bytes_of[0]
    assert not runs[1].states[-1].clients


def test_a_client_has_moments_for_each_entry_and_fine_tuning_begins_anew() -> None:
    local = {**OPTIMIZERS["momentum"][0], **FULL, "epochs": 1}
    method = {"kind": "random", "contacts": 1, "finetune": "always", "segment": "classifier"}
    stream = {"tasks": 2}
    run = play(
        CURVED,
        {"kind": "plain"},
        local=local,
        rounds=3,
        method={**method, "per": "task"},
        stream=stream,
        model={"hidden": [3]},
        evaluate={"every": 0},
    )
    for client, numbers in run.states[-1].clients.items():
        kept = {key: int(slots["steps"]) for key, slots in numbers.items() if key.startswith("optimizer/")}
        # A round 0 and three more, one step each; the steps of the fine-tuning are not among them.
        assert set(kept) == {f"optimizer/client/{client}/task/{t}" for t in (0, 1)}
        assert sum(kept.values()) == 4


class Twice(Learner):
    """Two fits, each asked for anew."""

    def fit(self, key: str, start: Served, entry: Entry, client: Client, **request: Any) -> Any:
        first = yield self.request(start, client, **request)
        middle = Served(start.model, first.vector, first.buffers)
        part, state = yield from super().fit(key, middle, entry, client, purpose="fit/2", **request)
        return part, state


def asked(learner: Learner, state: dict[str, Any], size: int, **request: Any) -> tuple[list[Any], dict[str, Any]]:
    """The moments with which each fit was asked for, and the private state that came out; a fit leaves ones."""
    vector, rows = torch.zeros(size), torch.arange(2)
    client = Client(0, Moment(0, 1), rows, rows[:0], state)
    program = learner.fit("global", Served("main", vector), Entry(vector), client, **request)
    found: list[Any] = []
    result = None
    while True:
        try:
            fit = program.send(result)
        except StopIteration as stop:
            return found, stop.value[1]
        assert isinstance(fit, Fit)
        found.append(fit.slots)
        left = {"momentum": torch.full((size,), float(len(found)))}
        result = FitResult(vector, fit.start.buffers, 1, 2, 0.0, slots=None if fit.slots is None else left)


def learner_of(kind: str, **local: Any) -> Learner:
    return setup_of(CURVED, {"kind": kind}, local={"momentum": 0.9, **local}).method.learner


def test_two_fits_in_one_go_on_from_each_other() -> None:
    found, state = asked(learner_of(f"{__name__}:Twice", keep=True), {}, 3)
    assert found[0] == {}
    assert found[1]["momentum"].tolist() == [1.0] * 3
    assert state["optimizer/global"]["momentum"].tolist() == [2.0] * 3
    assert asked(learner_of(f"{__name__}:Twice"), {}, 3) == ([None, None], {})


def test_moments_of_another_size_begin_anew_and_own_ones_are_left_alone() -> None:
    learner, old = learner_of("plain", keep=True), {"optimizer/global": {"momentum": torch.ones(3)}}
    ((same,), _), ((grown,), after) = asked(learner, old, 3), asked(learner, old, 4)
    assert same["momentum"].tolist() == [1.0] * 3
    assert grown == {}
    assert after["optimizer/global"]["momentum"].shape == (4,)
    for own in (None, {}):
        assert asked(learner, old, 3, slots=own) == ([own], {})


def test_what_cannot_be_kept_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"local\.keep: sgd without momentum has nothing to keep"):
        setup_of(CURVED, {"kind": "plain"}, local={"keep": True})
    with pytest.raises(ConfigError, match=r"local\.keep: true those of earlier rounds"):
        setup_of(CURVED, {"kind": "plain"}, local={"keep": True, "momentum": 0.5}, method={"mean": "fednova"})
