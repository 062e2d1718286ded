"""Stacks on several threads, and the step that the products take by themselves."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import shoal
from shoal.engine import stacked as module
from shoal.engine.stacked import Stacked
from shoal.messages import Assignment, Client, Failure, Job, Update
from shoal.models.base import Model
from shoal.models.mlp import mlp
from shoal.randomness import Moment
from shoal.requests import Fit, Optimizer, Served

FEATURES, HIDDEN, CLASSES, ROWS = 40, 16, 3, 12
CLIENTS = 7


def data() -> shoal.Dataset:
    rng = np.random.default_rng(1)
    count = CLIENTS * ROWS + 4
    return shoal.from_arrays(
        rng.normal(size=(count, FEATURES)).astype("float32"),
        np.arange(count) % CLASSES,
        np.zeros((3, FEATURES), dtype="float32"),
        np.arange(3),
        normalize="none",
    )


MODEL = Model("main", lambda: mlp((FEATURES,), CLASSES, hidden=(HIDDEN,)))


def start() -> Tensor:
    return torch.from_numpy(np.random.default_rng(2).normal(size=MODEL.space.size)).float().mul_(0.3)


def fits(monkeypatch: pytest.MonkeyPatch, workers: int, of_a_stack: int, lr: Any = 0.1, broken: int = -1) -> list[Any]:
    """Each client's result, on so many threads with so many clients in a stack; and the threads that were at work."""
    monkeypatch.setattr(module, "THREADED_BYTES", 1)
    monkeypatch.setattr(module, "LIGHT", 1)
    engine = Stacked({"main": MODEL}, data(), torch.device("cpu"), workers=workers)
    engine.stack_bytes = 4 * MODEL.space.size * of_a_stack
    seen: set[str] = set()
    results = engine._results

    def watched(*args: Any) -> Any:
        seen.add(threading.current_thread().name)
        if any(program.client.id == broken for program in args[1]):
            raise RuntimeError("this stack cannot be answered")
        return results(*args)

    monkeypatch.setattr(engine, "_results", watched)
    first = start()
    found: dict[int, Any] = {}

    def train(given: Assignment, client: Client) -> Any:
        rate = lr(client.id) if callable(lr) else lr
        found[client.id] = yield Fit(Served("main", first), client.train, Optimizer(lr=rate), epochs=2, batch=5)
        return Update({}, weight=1.0)

    rows = torch.arange(CLIENTS * ROWS).split(ROWS)
    clients = [Client(c, Moment(5, 2), own, own[:0]) for c, own in enumerate(rows)]
    outcomes = engine.run(train, [Job(Assignment(c.id), c, c.train) for c in clients])
    assert not any(isinstance(outcome.answer, Failure) for outcome in outcomes)
    engine.close()
    own = {name.startswith("shoal-stack") for name in seen}
    assert own == {workers > 1}
    return [found[c] for c in range(CLIENTS)]


def same(a: list[Any], b: list[Any]) -> bool:
    pairs = list(zip(a, b, strict=True))
    return all(torch.equal(x.vector, y.vector) and (x.loss, x.drift) == (y.loss, y.drift) for x, y in pairs)


@pytest.mark.parametrize("of_a_stack", [1, 2, 3, 7])
def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch, of_a_stack: int) -> None:
    reference = fits(monkeypatch, 1, 3)
    for workers in (1, 2, 3):
        assert same(reference, fits(monkeypatch, workers, of_a_stack))


def test_outcomes_are_there_as_soon_as_their_stack_is(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Stacked({"main": MODEL}, data(), torch.device("cpu"), workers=1)
    engine.stack_bytes = 4 * MODEL.space.size * 3
    monkeypatch.setattr(module, "LIGHT", 1)
    results, answered = engine._results, []

    def watched(*args: Any) -> Any:
        answered.append(len(args[1]))
        return results(*args)

    monkeypatch.setattr(engine, "_results", watched)

    def train(given: Assignment, client: Client) -> Any:
        if client.id == 4:  # has nothing to ask for: its outcome waits for its turn
            return Update({}, weight=1.0)
        yield Fit(Served("main", start()), client.train, batch=5)
        return Update({}, weight=1.0)

    rows = torch.arange(CLIENTS * ROWS).split(ROWS)
    clients = [Client(c, Moment(5, 2), own, own[:0]) for c, own in enumerate(rows)]
    stream = engine.stream(train, [Job(Assignment(c.id), c, c.train) for c in clients], CLIENTS)
    seen = [(outcome.client, list(answered)) for outcome in stream]
    assert seen == [(0, [3]), (1, [3]), (2, [3]), (3, [3, 3]), (4, [3, 3]), (5, [3, 3]), (6, [3, 3])]


def test_what_a_thread_cannot_answer_goes_to_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = fits(monkeypatch, 1, 2)
    found = fits(monkeypatch, 2, 2, broken=3)
    alone = {2, 3}  # who shares the stack
    for c, (a, b) in enumerate(zip(reference, found, strict=True)):
        assert torch.equal(a.vector, b.vector) == (c not in alone)
        torch.testing.assert_close(a.vector, b.vector, rtol=1e-5, atol=1e-6)


def test_a_plain_step_is_that_of_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = [0.05 * (1 + c) for c in range(CLIENTS)]
    rows = data()
    for c, result in enumerate(fits(monkeypatch, 2, 3, lr=lambda client: rates[client])):
        net = MODEL.build()
        MODEL.space.bind(net, start(), torch.zeros(MODEL.space.size))
        rng = Moment(5, 2).random("fit", c)
        mine = torch.arange(c * ROWS, (c + 1) * ROWS)
        for _ in range(2):
            order = torch.from_numpy(rng.permutation(ROWS))
            for some in order.split(5):
                x, y = rows.batch(mine[some]), rows.labels_of(mine[some])
                named = list(net.named_parameters())
                loss = F.cross_entropy(net(x), y)
                for (_, p), g in zip(named, torch.autograd.grad(loss, [p for _, p in named]), strict=True):
                    p.data.sub_(g, alpha=rates[c])
        expected = torch.cat([p.detach().flatten() for p in net.parameters()])
        torch.testing.assert_close(result.vector, expected, rtol=1e-5, atol=1e-6)


def test_one_rate_for_all_and_rates_that_differ_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    together = fits(monkeypatch, 1, 7, lr=lambda client: 0.1 if client else 0.2)
    assert same(fits(monkeypatch, 1, 7)[1:], together[1:])
