"""Any model in a stack under vmap, against the reference kernel: the same requests, the same answers to rounding."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import shoal
from shoal.bank import Buffers
from shoal.data.dataset import Dataset
from shoal.engine.general import general_of
from shoal.engine.serial import Serial
from shoal.engine.stacked import Stacked
from shoal.messages import Assignment, Client, Failure, Job, Update
from shoal.models.base import Dropout, Model
from shoal.models.cnn import cnn
from shoal.models.lenet import lenet
from shoal.models.mlp import mlp
from shoal.models.resnet import resnet20
from shoal.randomness import Moment
from shoal.records import changed
from shoal.requests import Evaluate, Fit, Gradient, Optimizer, Served
from shoal.terms import Pull, Shift

CPU = torch.device("cpu")
SIDE, CLASSES = 8, 5
SHAPE = (3, SIDE, SIDE)
SIZES = (8, 21, 3, 16, 13)
"""Training rows of the clients: one batch of 8, a rest, less than a batch; so also unequal steps."""


def pictures() -> Dataset:
    rng = np.random.default_rng(4)
    n = sum(SIZES) + 10
    x = rng.integers(0, 256, (n, SIDE, SIDE, 3)).astype("uint8")
    y = np.arange(n) % CLASSES
    return shoal.from_arrays(x[:-10], y[:-10], x[-10:], y[-10:])


def clients() -> list[Client]:
    rows = torch.arange(sum(SIZES)).split(list(SIZES))
    return [Client(c, Moment(5, 2), own, own[:0]) for c, own in enumerate(rows)]


class Own(nn.Module):
    """A layer that nobody knows: each row is seen beside the mean of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x - self.scale * x.mean(0, keepdim=True)


def normed_table(dropout: float = 0.0) -> nn.Module:
    layers = [nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(6, CLASSES))


def coupled() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 6), Own(), nn.ReLU(), nn.Linear(6, CLASSES))


def dropped() -> nn.Module:
    """Dropout on the maps of a convolution, and in a frozen part, where it stands still."""
    frozen = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5)).requires_grad_(False)
    own = nn.Sequential(nn.Conv2d(4, 3, 3), nn.ReLU(), nn.Dropout(0.3), nn.Flatten())
    return nn.Sequential(frozen, own, nn.Linear(3 * (SIDE - 4) ** 2, CLASSES))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "lenet": lambda: lenet(SHAPE, CLASSES, width=0.1),
    "cnn": lambda: cnn(SHAPE, CLASSES, channels=[3, 4], kernel=3, padding=1, hidden=[7]),
    "resnet20": lambda: resnet20(SHAPE, CLASSES, width=4, blocks=1),
    "resnet20, groups": lambda: resnet20(SHAPE, CLASSES, width=4, blocks=1, norm="group"),
    "mlp": lambda: nn.Sequential(nn.Flatten(), mlp((3 * SIDE * SIDE,), CLASSES, hidden=(6,))),
    "normed": normed_table,
    "dropout": partial(normed_table, 0.5),
    "dropped maps": dropped,
    "coupled": coupled,
}
FITS: dict[str, dict[str, Any]] = {
    "momentum": {"optimizer": Optimizer(lr=0.05, momentum=0.9, weight_decay=0.01)},
    # Behind a bias that BatchNorm takes away again the gradient is rounding alone, which a small eps would make large.
    "adam": {"optimizer": Optimizer("adam", 1e-3, eps=1e-3)},
    "steps": {"optimizer": Optimizer(lr=0.05, clip=0.5), "steps": 4},
    "smooth": {"optimizer": Optimizer(lr=0.05), "loss_args": {"label_smoothing": 0.2}},
}


def stacked(models: dict[str, Model], data: Dataset, **settings: Any) -> Stacked:
    engine = Stacked(models, data, CPU, kinds=(partial(general_of, device=CPU),), **settings)
    engine.stack_bytes = 2**30
    return engine


def answers(engine: Serial, ask: Callable[[Client], Any], alone: bool = False) -> list[Any]:
    """What each client's one request gives; everything must be stacked, unless it may be left ``alone``."""
    found: dict[int, Any] = {}

    def train(given: Assignment, client: Client) -> Any:
        found[client.id] = yield ask(client)
        return Update({}, weight=1.0)

    if isinstance(engine, Stacked) and not alone:
        engine.alone = None  # type: ignore[assignment, method-assign]
    for outcome in engine.run(train, [Job(Assignment(c.id), c, c.train) for c in clients()]):
        if isinstance(outcome.answer, Failure):
            found[outcome.client] = outcome.answer.error
    return [found[c.id] for c in clients()]


def near(a: Tensor, b: Tensor, gap: float) -> bool:
    return float((a - b).abs().max()) <= gap * max(1e-2, float(a.abs().max()))


def agree(of: Model, gap: float = 1e-5, **fit: Any) -> None:
    """At a kink (of a rectifier, or two equal values in a pool) rounding decides, which differs from processor to
    processor: whoever does not agree from one start must do so from another one, and only one may."""
    odd = disagree(of, gap, 7, **fit)
    assert len(odd) <= 1, odd
    if odd:
        again = disagree(of, gap, 77, **fit)
        assert len(again) <= 1, again
        assert not set(odd) & set(again), (odd, again)


def disagree(of: Model, gap: float, seed: int, **fit: Any) -> dict[int, str]:
    """The clients whose answers are not near each other, and in what."""
    starts = [of.initial(np.random.default_rng(seed + c)) for c in range(len(SIZES))]
    given = fit.pop("given", lambda client, start: {})

    def ask(client: Client) -> Fit:
        start = starts[client.id]
        served = Served("main", start.vector, start.buffers)
        return Fit(served, client.train, **{"epochs": 2, "batch": 8, **fit, **given(client, start)})

    data = pictures()
    expected, got = answers(Serial({"main": of}, data, CPU), ask), answers(stacked({"main": of}, data), ask)
    odd: dict[int, str] = {}
    for c, (a, b) in enumerate(zip(expected, got, strict=True)):
        assert not isinstance(a, str), a
        assert not torch.equal(b.vector, starts[c].vector)
        assert (a.steps, a.rows) == (b.steps, b.rows)
        close = {
            "vector": near(a.vector, b.vector, gap),
            "loss": b.loss == pytest.approx(a.loss, rel=10 * gap),
            "drift": b.drift.squared == pytest.approx(a.drift.squared, rel=100 * gap),
        }
        if a.buffers.floats is not None:
            close["buffers"] = near(a.buffers.floats, b.buffers.floats, gap)
            assert not torch.equal(b.buffers.floats, starts[c].buffers.floats)
        if a.buffers.counters is not None:
            assert torch.equal(a.buffers.counters, b.buffers.counters)
        for name, kept in (a.slots or {}).items():
            close[name] = near(kept.float(), b.slots[name].float(), 1e-3)
        if not all(close.values()):
            odd[c] = ", ".join(name for name, well in close.items() if not well)
    return odd


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("name", MODELS)
def test_a_fit_agrees_with_the_reference(name: str, fit: str) -> None:
    agree(Model("main", MODELS[name]), 1e-3 if fit == "adam" else 1e-5, **FITS[fit])


@pytest.mark.parametrize("name", ["cnn", "resnet20"])
def test_terms_an_anchor_kept_moments_and_a_single_segment(name: str) -> None:
    of = Model("main", MODELS[name])

    def terms(client: Client, start: Any) -> dict[str, Any]:  # as of FedProx and SCAFFOLD, each client's own
        rng = np.random.default_rng(client.id)
        shift = torch.from_numpy(rng.normal(size=of.space.size)).float()
        return {"terms": (Shift(0.01 * shift), Pull(0.1 * (1 + client.id), start.vector))}

    def anchor(client: Client, start: Any) -> dict[str, Any]:
        draw = np.random.default_rng(client.id).normal(size=of.space.size)
        return {"anchor": start.vector + 0.1 * torch.from_numpy(draw).float()}

    agree(of, optimizer=Optimizer(lr=0.05), given=terms)
    # The buffers follow the batches once, though each batch passes twice.
    agree(of, optimizer=Optimizer(lr=0.05), given=anchor)
    agree(of, optimizer=Optimizer(lr=0.05, momentum=0.9), slots={})
    agree(of, optimizer=Optimizer(lr=0.05), segments=("classifier",))


def test_one_parameter_in_two_places_is_one() -> None:
    def make() -> nn.Module:
        module = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 6), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
        module[4].weight = module[2].weight
        return module

    agree(Model("main", make), optimizer=Optimizer(lr=0.05))


@pytest.mark.parametrize("name", ["cnn", "resnet20", "dropout", "dropped maps"])
def test_scores_agree_with_the_reference(name: str) -> None:
    of, data = Model("main", MODELS[name]), pictures()
    rng = np.random.default_rng(3)
    starts = [of.initial(np.random.default_rng(c)) for c in range(2)]
    floats = starts[0].buffers.floats
    if floats is not None:  # statistics that are not those of a fresh model
        moved = Buffers(floats + torch.from_numpy(rng.uniform(0, 1, len(floats))).float(), starts[0].buffers.counters)
        starts = [changed(start, buffers=moved) for start in starts]

    def ask(client: Client) -> Evaluate:
        return Evaluate(tuple(Served("main", start.vector, start.buffers) for start in starts), client.train)

    expected, got = answers(Serial({"main": of}, data, CPU), ask), answers(stacked({"main": of}, data), ask)
    for a, b in zip(expected, got, strict=True):
        assert [s.accuracy for s in a] == [s.accuracy for s in b]
        assert [s.loss for s in b] == pytest.approx([s.loss for s in a], rel=1e-5)


class Counting(nn.Module):
    """Sets a buffer anew, which a functional call would lose."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + 1
        return x


def averaging() -> nn.Module:
    module = normed_table()
    module[2].momentum = None  # type: ignore[assignment, union-attr]
    return module


def counting() -> nn.Module:
    return nn.Sequential(nn.Flatten(), Counting(), nn.Linear(3 * SIDE * SIDE, CLASSES))


def hooked() -> nn.Module:
    module = normed_table()
    module[1].register_forward_hook(lambda layer, given, found: found)
    return module


@pytest.mark.parametrize("make", [averaging, counting, hooked])
def test_what_would_be_lost_in_a_stack_has_no_stacked_form(make: Callable[[], nn.Module]) -> None:
    of = Model("main", make)
    assert general_of(of, CPU) is None
    engine = stacked({"main": of}, pictures())
    assert "main by the reference kernel" in engine.describe()


class Choosing(nn.Module):
    """Looks at its numbers, which vmap does not allow."""

    def forward(self, x: Tensor) -> Tensor:
        return x if float(x.detach().sum()) > 0 else 2 * x


def twice() -> nn.Module:
    dropout = Dropout(0.5)
    layers = [nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 6), dropout, nn.Linear(6, 6), dropout]
    return nn.Sequential(*layers, nn.Linear(6, CLASSES))


def choosing() -> nn.Module:
    return nn.Sequential(nn.Flatten(), Choosing(), nn.Linear(3 * SIDE * SIDE, CLASSES))


@pytest.mark.parametrize("make", [twice, choosing])
def test_what_fails_in_a_stack_is_done_by_the_reference_and_said(make: Callable[[], nn.Module]) -> None:
    of, data = Model("main", make), pictures()
    start = of.initial(np.random.default_rng(2)).vector
    engine = stacked({"main": of}, data)

    def ask(client: Client) -> Fit:
        return Fit(Served("main", start), client.train, Optimizer(lr=0.05), batch=8)

    for a, b in zip(answers(Serial({"main": of}, data, CPU), ask), answers(engine, ask, alone=True), strict=True):
        assert torch.equal(a.vector, b.vector)
    assert engine.describe().endswith("; main by the reference kernel")


def test_gradients_are_the_reference_kernels() -> None:
    of, data = Model("main", MODELS["cnn"]), pictures()
    start = Served("main", of.initial(np.random.default_rng(2)).vector)

    def ask(client: Client) -> Gradient:
        return Gradient(start, client.train, 2, batch=8)

    found = answers(stacked({"main": of}, data), ask, alone=True)
    assert all(map(torch.equal, answers(Serial({"main": of}, data, CPU), ask), found))


def test_bf16_is_the_references_to_its_rounding() -> None:
    """bf16 has eight bits: both are compared with float32, from which the reference's own bf16 is as far away."""
    of, data = Model("main", MODELS["resnet20"]), pictures()
    start = of.initial(np.random.default_rng(2))

    def ask(client: Client) -> Fit:
        return Fit(Served("main", start.vector, start.buffers), client.train, Optimizer(lr=0.01), batch=8)

    single = answers(Serial({"main": of}, data, CPU), ask)
    half = answers(Serial({"main": of}, data, CPU, "bf16"), ask)
    got = answers(stacked({"main": of}, data, precision="bf16"), ask)
    for a, b, c in zip(single, half, got, strict=True):
        far = float((a.vector - b.vector).norm())
        assert 0 < float((a.vector - c.vector).norm()) < 2 * far
        assert c.vector.dtype == torch.float32
