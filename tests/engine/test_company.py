"""Who else is in a stack changes no bit of a client's numbers, whatever the shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import shoal
from shoal.data.dataset import Dataset
from shoal.engine import Stacked, one_torch_thread
from shoal.messages import Assignment, Client, Job, Update
from shoal.models.base import Model
from shoal.models.mlp import mlp
from shoal.randomness import Moment
from shoal.requests import Evaluate, Fit, Gradient, Optimizer, Served
from shoal.terms import Hold, Lasso, Pull

WIDTHS = st.sampled_from([1, 2, 3, 4, 7, 10, 16, 31, 64, 200])


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "rows": draw(st.lists(st.integers(1, 70), min_size=2, max_size=12)),
        "features": draw(WIDTHS),
        "classes": draw(st.sampled_from([1, 2, 3, 10, 16])),
        "hidden": draw(st.lists(WIDTHS, max_size=2)),
        "activation": draw(st.sampled_from(["relu", "tanh", "gelu"])),
        "dropout": draw(st.sampled_from([0.0, 0.3])),
        "frozen": draw(st.booleans()),
        "batch": draw(st.integers(1, 64)),
        "epochs": draw(st.sampled_from([0.5, 1, 2])),
        "kind": draw(st.sampled_from(["plain", "sgd", "adam", "adamw"])),
        "terms": draw(st.booleans()),
        "seed": draw(st.integers(0, 10**6)),
    }


UNEVEN: dict[str, Any] = {
    "rows": [1, 1, 2],
    "features": 1,
    "classes": 1,
    "hidden": [64, 200],
    "activation": "relu",
    "dropout": 0.0,
    "frozen": False,
    "batch": 1,
    "epochs": 1,
    "kind": "sgd",
    "terms": False,
    "seed": 0,
}
"""Clients of a large model that end at different steps: how far they went is summed by an order that depends on where
in memory it lies."""


class World:
    """The clients, model and requests of a case."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case
        self.rng = np.random.default_rng(case["seed"])
        self.data = self._data()
        self.model = Model("main", self._module)
        size, count = self.model.space.size, len(case["rows"])
        self.vectors = torch.from_numpy(self.rng.normal(size=(count, size))).float().mul_(0.3)
        self.anchor = torch.from_numpy(self.rng.normal(size=size)).float().mul_(0.3)
        rows = torch.arange(sum(case["rows"])).split(case["rows"])
        self.clients = [Client(c, Moment(case["seed"], 1), own, own[:0]) for c, own in enumerate(rows)]

    def _data(self) -> Dataset:
        n, classes = sum(self.case["rows"]) + 40, self.case["classes"]
        x = self.rng.normal(size=(n, self.case["features"])).astype("float32")
        y = np.arange(n) % classes
        return shoal.from_arrays(x[:-20], y[:-20], x[-20:], y[-20:])

    def _module(self) -> nn.Module:
        c = self.case
        made = mlp((c["features"],), c["classes"], hidden=c["hidden"], activation=c["activation"], dropout=c["dropout"])
        if c["frozen"] and c["hidden"]:
            for parameter in made.features.layer1.parameters():  # type: ignore[union-attr]
                parameter.requires_grad_(False)
        return made

    def optimizer(self, c: int) -> Optimizer:
        n = 1 + c % 5
        if self.case["kind"] == "plain":  # steps without a gradient, where there is nothing else
            return Optimizer("sgd", 0.01 * (n if self.case["seed"] % 2 else 1))
        momentum = 0.3 if self.case["kind"] == "sgd" else 0.0
        undecayed = ("classifier.bias",) if self.case["seed"] % 2 else ()
        return Optimizer(self.case["kind"], 0.01 * n, momentum, 0.02 * n, undecayed, clip=0.5 * n)

    def fit(self, client: Client) -> Fit:
        c, case = client.id, self.case
        terms = (Pull(0.1 * c, self.anchor), Hold(0.3 * c, self.vectors[0]), Lasso(0.001 * c)) if case["terms"] else ()
        return Fit(
            Served("main", self.vectors[c]),
            client.train,
            self.optimizer(c),
            case["epochs"],
            batch=case["batch"],
            terms=terms,
            anchor=self.anchor if case["seed"] % 3 == 0 else None,
            slots={} if case["seed"] % 5 == 0 and case["kind"] != "plain" else None,
        )

    def answers(self, who: list[int], ask: Callable[[Client], Any]) -> dict[int, Any]:
        engine = Stacked({"main": self.model}, self.data, torch.device("cpu"))
        found: dict[int, Any] = {}

        def train(given: Assignment, client: Client) -> Any:
            found[client.id] = yield ask(client)
            return Update({}, weight=1.0)

        jobs = [Job(Assignment(c), self.clients[c], self.clients[c].train) for c in who]
        assert engine.chains
        engine.alone = None  # type: ignore[assignment, method-assign]  # everything must be stacked
        engine.run(train, jobs)
        return found


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if not hasattr(a, "drift"):
        return bool(a == b)
    slots = (a.slots or {}).keys() == (b.slots or {}).keys() and all(
        same(v, b.slots[n]) for n, v in (a.slots or {}).items()
    )
    return torch.equal(a.vector, b.vector) and (a.loss, a.drift, a.rows) == (b.loss, b.drift, b.rows) and slots


REQUESTS: dict[str, Callable[[World, Client], Any]] = {
    "fit": lambda w, c: w.fit(c),
    "scores": lambda w, c: Evaluate((Served("main", w.vectors[c.id]), Served("main", w.anchor)), c.train),
    "batch gradient": lambda w, c: Gradient(Served("main", w.vectors[c.id]), c.train, 2, batch=w.case["batch"]),
    "row gradient": lambda w, c: Gradient(Served("main", w.anchor), c.train, 2, "row"),
}


@pytest.mark.parametrize("name", REQUESTS)
@settings(max_examples=20, deadline=None, derandomize=True)
@given(case=cases())
@example(case=UNEVEN)
def test_the_company_changes_no_bit(name: str, case: dict[str, Any]) -> None:
    world = World(case)
    everybody = list(range(len(case["rows"])))
    ask = REQUESTS[name]
    with one_torch_thread():
        together = world.answers(everybody, lambda c: ask(world, c))
        for who in ([0], everybody[-1:], everybody[1::2], everybody[::-1]):
            some = world.answers(who, lambda c: ask(world, c))
            assert some.keys() == set(who)
            assert all(same(some[c], together[c]) for c in who)
