"""Tailored tails in a stack: the reference's numbers to rounding, the same bits whatever the company."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from shoal.bank import Buffers
from shoal.data.dataset import Dataset
from shoal.engine import Gathering, features, one_torch_thread
from shoal.engine.features import CHUNK
from shoal.engine.program import Running
from shoal.engine.serial import Serial
from shoal.engine.shared import Companion
from shoal.engine.stacked import Stacked, answer_all
from shoal.engine.tailored import tailored_of
from shoal.messages import Assignment, Client, Failure, Job, Update
from shoal.models.backbones import Residual
from shoal.models.base import Model
from shoal.models.nettailor import nettailor
from shoal.randomness import Moment, generator
from shoal.requests import Evaluate, Fit, FitResult, Gradient, Optimizer, Served
from shoal.terms import Lasso, Pull, Shift

SIZES = (3, 17, 16, 20, 1)
"""Training rows of the clients: below a batch, a rest of one row (which is dropped), whole batches, a rest, one row."""
CLASSES, CPU = 3, torch.device("cpu")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_torch_thread():
        yield


class Images(nn.Module):
    """Residual blocks on maps of 4x4 and 2x2 pixels, a stem, and an end that pools."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = nn.Sequential(_conv(shape[0], 8, 2), nn.ReLU())
        shrink = Residual(nn.Sequential(_conv(8, 16, 2), nn.ReLU(), _conv(16, 16)), _conv(8, 16, 2, 1))
        same = [Residual(nn.Sequential(_conv(n, n), nn.ReLU(), _conv(n, n)), nn.Identity()) for n in (8, 16)]
        bias = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU6(), nn.Conv2d(16, 12, 1))
        self.blocks = nn.ModuleList([same[0], shrink, same[1], bias])
        self.end = nn.MaxPool2d(2)


def _conv(given: int, channels: int, stride: int = 1, side: int = 3) -> nn.Sequential:
    conv = nn.Conv2d(given, channels, side, stride, side // 2, bias=False)
    norm = nn.BatchNorm2d(channels)
    assert norm.running_mean is not None
    nn.init.normal_(norm.running_mean, std=0.1)
    return nn.Sequential(conv, norm)


class Shrinking(nn.Module):
    """Two blocks that halve the sides, of odd widths, and an activation that is not exact."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = _conv(shape[0], 5)
        self.blocks = nn.ModuleList([_conv(5, 6, 2), _conv(6, 3, 2)])
        self.activation = nn.GELU()


class Rows(nn.Module):
    """A backbone of rows of numbers."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Flatten(), nn.Linear(8 * 8 * shape[0], 7), nn.ReLU())
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(7, 7), nn.BatchNorm1d(7)) for _ in range(3))
        self.activation = nn.Tanh()


def net(backbone: Any = f"{__name__}:Images", first: int = 3, **settings: Any) -> Model:
    settings = {"backbone": {"kind": backbone}, "first_tailored_block": first, **settings}
    return Model("main", lambda: nettailor((2, 8, 8), CLASSES, **settings))


NETS: dict[str, Callable[[], Model]] = {
    "images": net,
    "from the second block on": lambda: net(first=2),
    "not folded": lambda: net(fold_norms=False),
    "shrinking twice": lambda: net(f"{__name__}:Shrinking", first=1),
    "rows": lambda: net(f"{__name__}:Rows", first=2),
    "pruned": lambda: net(first=2, paths={2: [1], 3: [-1, 1], 4: [-1, 2, 3]}),
    "without a block": lambda: net(first=3, paths={3: [2], 4: [3, 2]}),
    "resnet20": lambda: Model(
        "main",
        lambda: nettailor(
            (2, 8, 8), CLASSES, backbone={"kind": "resnet20", "width": 2}, first_tailored_block=6, skips=2
        ),
    ),
}


def images() -> Dataset:
    rng = np.random.default_rng(3)
    n = sum(SIZES) + 8
    x = torch.from_numpy(rng.normal(size=(n, 8, 8, 2)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, CLASSES, n))
    every = torch.arange(n)
    return Dataset("i", x, y, ("a", "b", "c"), every[:-8], every[-8:], torch.ones(2), torch.zeros(2))


def clients() -> list[Client]:
    rows = torch.arange(sum(SIZES)).split(list(SIZES))
    return [Client(c, Moment(5, 2), own, own[:0]) for c, own in enumerate(rows)]


def starts(of: Model) -> list[Served]:
    """A model of each client's own, with attention, norms and statistics of their own."""
    found = []
    for c in range(len(SIZES)):
        entry = of.initial(generator(c, "start"))
        rng = np.random.default_rng(c)
        noise = torch.from_numpy(rng.normal(size=of.space.size)).float().mul_(0.2)
        floats = entry.buffers.floats
        assert floats is not None
        buffers = Buffers(floats + 0.1 + 0.1 * c, entry.buffers.counters)
        found.append(Served("main", entry.vector + noise, buffers))
    return found


Ask = Callable[[Client], Any]


def answers(engine: Serial, ask: Ask, who: Sequence[int] = range(len(SIZES)), stacked: bool = False) -> list[Any]:
    """What each client's one request gives; a failure is given as its text. ``stacked``: nobody may be on its own."""
    found: dict[int, Any] = {}

    def train(given: Assignment, client: Client) -> Any:
        found[client.id] = yield ask(client)
        return Update({}, weight=1.0)

    everybody = clients()
    if stacked:
        engine.alone = None  # type: ignore[attr-defined]
    for outcome in engine.run(train, [Job(Assignment(c), everybody[c], everybody[c].train) for c in who]):
        if isinstance(outcome.answer, Failure):
            found[outcome.client] = outcome.answer.error
    return [found[c] for c in who]


def serial(of: Model) -> Serial:
    return Serial({"main": of}, images(), CPU)


def stack(of: Model, **settings: Any) -> Stacked:
    return Stacked({"main": of}, images(), CPU, **settings)


def close(a: FitResult, b: FitResult, gap: float) -> None:
    assert (a.steps, a.rows) == (b.steps, b.rows)
    assert a.buffers.floats is not None
    assert b.buffers.floats is not None
    for mine, theirs in ((a.vector, b.vector), (a.buffers.floats, b.buffers.floats)):
        assert float((mine - theirs).abs().max()) <= gap * float(mine.abs().max())
    assert a.buffers.counters is not None
    assert b.buffers.counters is not None
    assert a.buffers.counters.equal(b.buffers.counters)
    assert b.loss == pytest.approx(a.loss, rel=10 * gap)
    assert b.drift.squared == pytest.approx(a.drift.squared, rel=100 * gap, abs=1e-9)
    assert b.drift.cosine_head == pytest.approx(a.drift.cosine_head, rel=100 * gap, abs=1e-7)


SGD = Optimizer(lr=0.1, momentum=0.9, weight_decay=0.01)


@pytest.mark.parametrize("name", NETS)
def test_a_fit_agrees_with_the_reference_and_company_changes_no_bit(name: str) -> None:
    of = NETS[name]()
    begun = starts(of)

    def ask(client: Client) -> Fit:
        return Fit(begun[client.id], client.train, SGD, epochs=2, batch=8)

    many = range(len(SIZES) - 1)  # the last one has too few rows for a step
    expected, got = answers(serial(of), ask, many), answers(stack(of), ask, many, stacked=True)
    for c, (a, b) in enumerate(zip(expected, got, strict=True)):
        close(a, b, 3e-5)
        assert float((b.vector - begun[c].vector).abs().max()) > 1e-3
    for who in ([0], [2], [3, 1], [2, 1, 0]):
        for c, alone in zip(who, answers(stack(of), ask, who, stacked=True), strict=True):
            assert torch.equal(alone.vector, got[c].vector)
            assert torch.equal(alone.buffers.floats, got[c].buffers.floats)
            assert (alone.loss, alone.drift) == (got[c].loss, got[c].drift)


FITS: dict[str, dict[str, Any]] = {
    "steps that cycle": {"steps": 5},
    "adam": {"optimizer": Optimizer("adam", 1e-3, weight_decay=0.1)},
    "clip": {"optimizer": Optimizer(lr=0.1, clip=0.05)},
    "classifier only": {"segments": ("classifier",)},
    "attention and a block": {"segments": ("block4", "attention")},
    "smoothed labels": {"loss_args": {"label_smoothing": 0.2}},
    "kept moments": {"slots": {}},
    "fresh buffers": {"fresh": True},
    "an anchor": {"anchor": True},
    "terms": {"terms": True},
}


@pytest.mark.parametrize("case", FITS)
def test_whatever_is_asked_of_a_fit(case: str) -> None:
    of = net()
    begun = starts(of)
    more = dict(FITS[case])
    if more.pop("fresh", False):
        begun = [replace(one, buffers=Buffers()) for one in begun]
    if more.get("anchor"):
        more["anchor"] = begun[1].vector
    if more.get("terms"):
        more["terms"] = (Shift(0.1 * begun[1].vector), Pull(0.3, begun[2].vector), Lasso(0.01))

    def ask(client: Client) -> Fit:
        return Fit(begun[client.id], client.train, **{"optimizer": SGD, "batch": 8, **more})

    many = range(len(SIZES) - 1)
    for c, (a, b) in enumerate(zip(answers(serial(of), ask, many), answers(stack(of), ask, many, True), strict=True)):
        close(a, b, 1e-3 if case == "adam" else 3e-5)
        if a.slots is not None:
            assert float((a.slots["momentum"] - b.slots["momentum"]).abs().max()) < 1e-5
        for name, place in of.space.segments.items():
            if "segments" in more and name not in more["segments"]:
                assert torch.equal(b.vector[place], begun[c].vector[place])


@pytest.mark.parametrize("name", ["images", "rows"])
def test_scores_agree_with_the_reference(name: str) -> None:
    of = NETS[name]()
    begun = starts(of)

    def ask(client: Client) -> Evaluate:
        return Evaluate((begun[client.id], begun[0]), client.train)

    expected, got = answers(serial(of), ask), answers(stack(of), ask, stacked=True)
    for a, b in zip(expected, got, strict=True):
        assert [s.accuracy for s in a] == [s.accuracy for s in b]
        assert [s.loss for s in b] == pytest.approx([s.loss for s in a], rel=1e-5)
    assert answers(stack(of), ask, [2], stacked=True) == [got[2]]


def test_what_cannot_be_stacked_is_the_references_and_the_engine_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    of = net()
    begun = starts(of)

    def asking(**more: Any) -> Ask:
        return lambda client: Fit(begun[client.id], client.train, **{"optimizer": SGD, "batch": 8, **more})

    for more in ({"augment": ("flip",)}, {"loss": "nettailor"}):
        engine = stack(of)
        expected, got = answers(serial(of), asking(**more)), answers(engine, asking(**more))
        assert all(torch.equal(a.vector, b.vector) for a, b in zip(expected, got, strict=True))
        assert engine.describe() == "stacked on cpu, float32; main by the reference kernel"
    engine = stack(of)
    answers(engine, asking(), range(4))
    assert engine.describe() == "stacked on cpu, float32"
    answers(engine, asking(), [4])  # one row makes no step
    assert engine.describe() == "stacked on cpu, float32; main partly by the reference kernel"
    gradients = [answers(e, lambda c: Gradient(begun[c.id], c.train), [2])[0] for e in (serial(of), stack(of))]
    assert torch.equal(*gradients)
    # Activations of 16 rows, 2 x 4 x 4 x 16 bytes and more each, are kept only where a quarter of the memory does.
    monkeypatch.setattr(features, "KEPT_BYTES", 4 * 16 * 4 * (64 + 64) - 1)
    engine = stack(of)
    answers(engine, asking(), [2])
    assert engine.describe().endswith("main by the reference kernel")


def test_a_label_that_the_head_lacks_is_the_fault_of_its_client_alone() -> None:
    of = net()
    begun = starts(of)
    data = images()
    targets = data.labels.clone()
    targets[clients()[1].train[5]] = -1

    def ask(client: Client) -> Fit:
        return Fit(begun[client.id], client.train, SGD, batch=8)

    found = answers(Stacked({"main": of}, replace(data, targets=targets), CPU), ask, range(4))
    expected = answers(serial(of), ask, range(4))
    assert isinstance(found[1], str)
    for c in (0, 2, 3):
        close(expected[c], found[c], 3e-5)


class Odd(Images):
    """A block of a class that nobody knows."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        self.blocks[3] = Unknown()


class Unknown(nn.Conv2d):
    def __init__(self) -> None:
        super().__init__(16, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


def test_a_block_that_may_look_across_its_rows_is_not_stacked() -> None:
    assert tailored_of(net(f"{__name__}:Odd")) is None
    assert tailored_of(Model("main", lambda: nn.Sequential(nn.Linear(3, 3)))) is None
    assert tailored_of(net()) is not None


def test_models_that_do_something_else_are_told_apart() -> None:
    def signature(of: Model) -> Any:
        chain = tailored_of(of)
        assert chain is not None
        return chain.signature

    one = signature(net())
    assert one == signature(net())
    other = net()
    with torch.no_grad():
        next(p for p in other._template.get_submodule("front").parameters()).add_(1.0)
    assert signature(other) != one
    assert signature(net(skips=1)) != one
    assert signature(net(first=2)) != one


def test_runs_that_are_played_together_share_stacks_and_activations() -> None:
    models, data = [net(), net()], images()
    gathering = Gathering(2)
    engines = [Companion(gathering, {"main": model}, data, CPU) for model in models]
    seen: list[int] = []
    for engine in engines:
        frozen = engine._kernel.workspace("main").frozen
        assert frozen is not None
        frozen.front.register_forward_hook(lambda module, x, y: seen.append(len(y)))
    begun = starts(models[0])
    got: dict[tuple[int, int], FitResult] = {}

    def program(run: int) -> Any:
        def train(given: Assignment, client: Client) -> Any:
            optimizer = replace(SGD, lr=0.1 + 0.1 * run)
            got[run, client.id] = yield Fit(begun[client.id], client.train, optimizer, batch=8)
            return Update({}, weight=1.0)

        return train

    everybody = clients()[:4]
    programs = [
        (engine, Running(program(run), Job(Assignment(c.id), c, c.train)))
        for run, engine in enumerate(engines)
        for c in everybody
    ]
    assert len({engine.key(running) for engine, running in programs}) == 1
    answer_all(programs, {})
    assert max(SIZES) < CHUNK
    assert sorted(seen) == sorted(SIZES[:4])
    for client in everybody:
        engines[1]._kernel.evaluate([begun[0]], client.train)
    assert sorted(seen) == sorted(SIZES[:4])
    engines[0].forget()
    engines[1]._kernel.evaluate([begun[0]], everybody[0].train)
    assert len(seen) == 5
    for run in (0, 1):

        def ask(client: Client, run: int = run) -> Fit:
            return Fit(begun[client.id], client.train, replace(SGD, lr=0.1 + 0.1 * run), batch=8)

        for c, a in enumerate(answers(serial(models[run]), ask, range(4))):
            close(a, got[run, c], 3e-5)
