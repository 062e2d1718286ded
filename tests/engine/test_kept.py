"""Activations of frozen layers kept for a whole run: the same numbers, computed once, in bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.data.dataset import Dataset
from shoal.engine import features, one_torch_thread
from shoal.engine.batches import Batches, Scratch
from shoal.engine.features import Kept
from shoal.engine.kernel import Kernel
from shoal.engine.plan import plan
from shoal.messages import Client
from shoal.models.base import Model
from shoal.models.decomposed import decomposed
from shoal.models.factory import resolve_network
from shoal.randomness import Moment, generator
from shoal.requests import Fit, Optimizer, Served

ROWS, CPU = 600, torch.device("cpu")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As in a run; on a busy machine two threads mostly wait for each other."""
    with one_torch_thread():
        yield


def images() -> Dataset:
    rng = np.random.default_rng(2)
    x = torch.from_numpy(rng.normal(size=(ROWS, 6, 6, 1)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, 3, ROWS))
    every = torch.arange(ROWS)
    return Dataset("i", x, y, ("a", "b", "c"), every, every[:0], torch.ones(1), torch.zeros(1))


def net() -> nn.Module:
    """A frozen convolution with a frozen BatchNorm, and two layers behind it that are trained."""
    front = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU())
    front.requires_grad_(False)
    front[1].running_mean = torch.tensor([0.1, -0.2, 0.0])
    back = nn.Sequential(nn.Conv2d(3, 2, 2), nn.ReLU(), nn.Flatten())
    return nn.Sequential(OrderedDict(front=front, back=back, classifier=nn.Linear(18, 3)))


class Told:
    """A kernel, and how many rows its frozen layers have seen."""

    def __init__(self, make: Callable[[], nn.Module] = net, **settings: Any) -> None:
        self.model = Model("main", make)
        self.kernel = Kernel({"main": self.model}, images(), CPU, **settings)
        self.rows = 0
        self.start = Served.of(self.model.initial(generator(0, "start")))
        frozen = self.kernel.workspace("main").frozen
        assert frozen is not None
        forward = frozen.front.forward

        def counted(x: Tensor) -> Tensor:
            self.rows += len(x)
            return forward(x)

        frozen.front.forward = counted  # type: ignore[method-assign]

    def fit(self, rows: Tensor, **more: Any) -> Tensor:
        request = Fit(self.start, rows, Optimizer(lr=0.1, momentum=0.9), 2, None, 16)
        return self.kernel.fit(replace(request, **more), Client(3, Moment(0, 1), rows, rows[:0])).vector


def borrowing() -> nn.Module:
    """The same network, whose trained convolution has places for constants behind the frozen ones."""
    return decomposed((1, 6, 6), 3, network=resolve_network({"kind": "test_kept:net"}), parts=4)


@pytest.mark.parametrize("make", [net, borrowing])
def test_a_fit_is_the_loop_over_the_whole_network(make: Callable[[], nn.Module]) -> None:
    told = Told(make)
    rows = torch.arange(40) * 3
    module, space = told.model.build(), told.model.space
    if make is borrowing:
        pool = torch.randn(2, 2, 12, generator=torch.Generator().manual_seed(0))
        told.start = replace(told.start, constants={"network.back.0.pool": pool})
        module.get_submodule("network.back.0").pool = pool
    found = told.fit(rows)
    assert torch.equal(told.fit(rows), found)
    assert told.rows == 40
    named = {name: p for name, p in module.named_parameters() if p.requires_grad}
    for name, parameter in named.items():
        parameter.data.copy_(space.view(told.start.vector, name))
    module.get_submodule("front" if make is net else "network.front").eval()
    optimizer = torch.optim.SGD(named.values(), lr=0.1, momentum=0.9)
    data = images()
    for step in plan(40, 16, 2, None, False, Client(3, Moment(0, 1), rows, rows[:0]).random("fit")):
        at = rows[torch.from_numpy(step.positions)]
        optimizer.zero_grad()
        F.cross_entropy(module(data.features[at].permute(0, 3, 1, 2)), data.labels[at]).backward()
        optimizer.step()
    for name, parameter in named.items():
        torch.testing.assert_close(space.view(found, name), parameter.detach(), rtol=1e-4, atol=1e-6)


def test_rows_are_computed_once_for_fits_and_measurements() -> None:
    told = Told()
    rows = torch.arange(550)
    first = told.fit(rows)
    assert told.rows == 550
    score = told.kernel.evaluate([told.start, Served("main", first)], rows)
    assert told.rows == 550
    assert torch.equal(told.fit(rows), first)
    assert told.rows == 550
    # Measured without them it is the same, to rounding, and other rows are not those that were kept.
    with torch.no_grad():
        module = told.kernel.workspace("main").module.eval()
        told.kernel.workspace("main").vector.copy_(told.start.vector)
        data = images()
        outputs = module(data.features[rows].permute(0, 3, 1, 2))
        wanted = F.cross_entropy(outputs, data.labels[rows])
    assert score[0].loss == pytest.approx(float(wanted), rel=1e-5)
    assert score[0].accuracy == pytest.approx(float((outputs.argmax(1) == data.labels[rows]).float().mean()))
    told.kernel.evaluate([told.start], rows.flip(0))
    assert told.rows == 1100


def test_who_asked_before_changes_no_bit() -> None:
    rows = torch.arange(20) * 7
    alone, later = Told(), Told()
    later.fit(torch.arange(200))
    later.kernel.evaluate([later.start], torch.arange(300))
    assert torch.equal(alone.fit(rows), later.fit(rows))


def test_what_sees_the_whole_network() -> None:
    told = Told()
    rows = torch.arange(32)
    told.fit(rows, augment=("flip",))
    told.fit(rows, anchor=told.start.vector)
    assert told.rows == 0
    bf16 = Told(precision="bf16")
    bf16.fit(rows)
    bf16.kernel.evaluate([bf16.start], rows)
    assert bf16.rows == 0
    told.fit(rows, segments=("classifier",))  # of the classifier alone more is fixed, for this fit
    assert told.rows == 0
    told.fit(rows, segments=("features", "classifier"))
    assert told.rows == 32


def placed() -> nn.Module:
    """The network with a place for a constant in front."""
    module = net()
    module.get_submodule("front.0").register_buffer("place", torch.zeros(1), persistent=False)
    return module


def test_constants_in_front_are_this_fits_alone() -> None:
    told, rows = Told(placed), torch.arange(20)
    told.fit(rows)
    told.start = replace(told.start, constants={"front.0.place": torch.ones(1)})
    for _ in range(2):
        told.fit(rows)
    assert told.rows == 60


def test_memory_is_bounded_and_the_oldest_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    data, scratch = images(), Scratch()
    seen: list[int] = []

    def front(x: Tensor) -> Tensor:
        seen.append(len(x))
        return x.flatten(1)  # 144 bytes a row

    def ask(*rows: int) -> Tensor | None:
        return kept.of("main", front, Batches(data, torch.tensor(rows, dtype=torch.int64), scratch))

    kept = Kept(144 * 8)
    assert ask(0, 1, 2) is None  # more than a quarter of the memory
    assert ask() is None
    for i in range(4):
        found = ask(i, i + 1)
        assert found is not None
        assert torch.equal(found, data.features[i : i + 2].permute(0, 3, 1, 2).flatten(1))
    assert kept.bytes == 144 * 8
    seen.clear()
    ask(0, 1)
    assert seen == []
    ask(9, 10)  # 1 and 2 were used longest ago
    assert kept.bytes == 144 * 8
    seen.clear()
    ask(0, 1)
    ask(2, 3)
    assert seen == []
    ask(1, 2)
    assert seen == [2]
    assert kept.of("other", front, Batches(data, torch.tensor([1, 2]), scratch)) is not None
    assert seen == [2, 2]
    monkeypatch.setattr(features, "KEPT_BYTES", 5)
    assert Kept().most == 5
