"""Fits of trailing layers: activations computed once, against plain loops over the whole network with torch.optim."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.data.dataset import Dataset
from shoal.engine.batches import Batches
from shoal.engine.features import Features, split
from shoal.engine.kernel import Kernel
from shoal.engine.plan import plan
from shoal.losses import CrossEntropy
from shoal.messages import Client
from shoal.models.base import Model, set_mode
from shoal.models.cnn import cnn
from shoal.models.lenet import lenet
from shoal.models.mlp import mlp
from shoal.models.resnet import resnet20
from shoal.randomness import Moment, generator
from shoal.registry import PARTS
from shoal.requests import Fit, FitResult, Optimizer, Served

ROWS = 37
CPU = torch.device("cpu")


def images(rows: int = ROWS) -> Dataset:
    rng = np.random.default_rng(2)
    x = torch.from_numpy(rng.normal(size=(rows, 16, 16, 1)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, 3, rows))
    every = torch.arange(rows)
    return Dataset("i", x, y, ("a", "b", "c"), every, every[:0], torch.ones(1), torch.zeros(1))


def make_cnn() -> nn.Module:
    return cnn((1, 16, 16), 3, channels=(3, 4), kernel=3, pool=2, hidden=(6,))


def client() -> Client:
    return Client(3, Moment(0, 1), torch.arange(ROWS), torch.arange(0))


def counted(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each fit used the activations."""
    used: list[bool] = []
    asked = kernel._features

    def told(*args: Any) -> Any:
        module, source = asked(*args)
        used.append(isinstance(source, Features))
        return module, source

    monkeypatch.setattr(kernel, "_features", told)
    return used


def trained(model: Model, dataset: Dataset, request: Fit, make: Callable[[Sequence[Tensor]], Any]) -> Tensor:
    """The same fit as a loop over the whole network, in which the optimiser has the parameters of the segments."""
    module = model.build()
    named = dict(module.named_parameters())
    slices = model.space.slices(request.segments)
    with torch.no_grad():
        for name, p in named.items():
            p.copy_(model.space.view(request.start.vector, name))
    chosen = [p for name, p in named.items() if any(s.start <= model.space.slots[name].offset < s.stop for s in slices)]
    optimizer = make(chosen)
    for step in plan(ROWS, request.batch, request.epochs, request.steps, False, client().random(request.purpose)):
        rows = torch.from_numpy(step.positions)
        optimizer.zero_grad()
        x = dataset.features[rows]
        F.cross_entropy(module(x.permute(0, 3, 1, 2)), dataset.labels[rows]).backward()
        optimizer.step()
    vector = request.start.vector.clone()
    for name, p in named.items():
        model.space.view(vector, name).copy_(p.detach())
    return vector


@pytest.mark.parametrize(
    ("segments", "optimizer", "make"),
    [
        (("classifier",), Optimizer(lr=0.1), lambda p: torch.optim.SGD(p, 0.1)),
        (("head",), Optimizer("adam", lr=0.01), lambda p: torch.optim.Adam(p, 0.01)),
        (
            ("classifier",),
            Optimizer(lr=0.1, momentum=0.9, weight_decay=0.01),
            lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.01),
        ),
    ],
)
def test_a_fit_is_the_loop_over_the_whole_network(
    segments: tuple[str, ...], optimizer: Optimizer, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = Model("main", make_cnn), images()
    kernel = Kernel({"main": model}, data, CPU)
    used = counted(kernel, monkeypatch)
    start = Served.of(model.initial(generator(0, "start")))
    request = Fit(start, torch.arange(ROWS), optimizer, 3, None, 8, segments)
    result = kernel.fit(request, client())
    assert used == [True]
    expected = trained(model, data, request, make)
    assert torch.allclose(result.vector, expected, rtol=1e-4, atol=1e-6)
    frozen = torch.ones(model.space.size, dtype=torch.bool)
    for s in model.space.slices(segments):
        frozen[s] = False
    assert torch.equal(result.vector[frozen], start.vector[frozen])
    assert not torch.equal(result.vector, start.vector)
    assert (result.steps, result.rows) == (15, 111)


def both_ways(make: Callable[[], nn.Module], request: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """A fit with and without the activations."""
    model, found = Model("main", make), list[FitResult]()
    start = Served.of(model.initial(generator(0, "start")))
    for plain in (False, True):
        kernel = Kernel({"main": model}, images(), CPU)
        if plain:
            monkeypatch.setattr(kernel, "_features", lambda work, slices, batches, *_: (work.module, batches))
        fit = Fit(start, torch.arange(ROWS), epochs=2, batch=8, **request)
        found.append(kernel.fit(fit, client()))
    return found


def test_dropout_behind_and_clipping_are_those_of_the_whole_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> nn.Module:
        front = nn.Sequential(nn.Flatten(), nn.ReLU(inplace=True), nn.Linear(256, 9), nn.Tanh())
        back = nn.Sequential(nn.Dropout(0.5), nn.Linear(9, 6), nn.ReLU(), nn.Linear(6, 3))
        return nn.Sequential(OrderedDict(features=front, classifier=back))

    request = {"segments": ("classifier",), "optimizer": Optimizer(lr=0.5, clip=0.1)}
    ours, plain = both_ways(make, request, monkeypatch)
    assert torch.allclose(ours.vector, plain.vector, rtol=1e-4, atol=1e-6)
    assert ours.loss == pytest.approx(plain.loss, rel=1e-5)
    assert ours.drift.distance == pytest.approx(plain.drift.distance, rel=1e-4)


def test_one_step_on_the_longest_run_of_rows_and_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = Model("main", make_cnn), images()
    start = Served.of(model.initial(generator(0, "start")))
    kernel = Kernel({"main": model}, data, CPU)
    used = counted(kernel, monkeypatch)
    fit = Fit(start, torch.arange(ROWS), Optimizer(), 1, None, 8, ("classifier",))
    kernel.fit(fit, client())
    kernel.fit(replace(fit, steps=2), client())  # fewer rows than there are: activations would be wasted
    kernel.fit(replace(fit, rows=torch.arange(1)), client())
    assert kernel.fit(replace(fit, rows=torch.arange(0)), client()).steps == 0
    assert used == [True, False, True, False]


def test_activations_that_take_too_much_memory_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.engine.batches.GATHER_BYTES", 4 * ROWS * 16 - 1)  # 4 x 2 x 2 numbers a row
    kernel = Kernel({"main": Model("main", make_cnn)}, images(), CPU)
    batches = Batches(images(), torch.arange(ROWS), kernel._scratch)
    front = split_of(make_cnn, ("classifier",))
    assert front is not None
    assert Features.of(front.front, batches) is None


def split_of(make: Callable[[], nn.Module], segments: tuple[str, ...], groups: Any = None) -> Any:
    model = Model("main", make, groups)
    module = model.build()
    set_mode(module, True)
    return split(module, model.space, model.space.slices(segments))


@pytest.mark.parametrize(
    ("make", "layers"),
    [
        (make_cnn, ["Linear", "ReLU", "Linear"]),
        (lambda: lenet((1, 16, 16), 3, width=0.1), ["Linear", "ReLU", "Linear", "ReLU", "Linear"]),
        (lambda: mlp((5,), 3, hidden=(4, 4)), ["Linear"]),
        (lambda: resnet20((3, 16, 16), 3, norm="group", width=4), ["Linear"]),
    ],
)
def test_where_networks_are_parted(make: Callable[[], nn.Module], layers: list[str]) -> None:
    found = split_of(make, ("classifier",))
    assert [type(layer).__name__ for layer in found.back] == layers
    module = make()
    size = {1: (4, 1, 16, 16), 3: (4, 3, 16, 16)}.get(next(module.parameters()).shape[1], (4, 5))
    x = torch.randn(size, generator=torch.Generator().manual_seed(0))
    model = Model("main", make)
    whole = model.build()
    parts = split(whole, model.space, model.space.slices(("classifier",)))
    assert parts is not None
    assert torch.equal(whole(x), parts.back(parts.front(x)))


class Looking(CrossEntropy):
    """It looks at the network, not at its outputs alone."""

    def __call__(self, module: nn.Module, x: Tensor, y: Tensor, **args: Any) -> Tensor:
        assert isinstance(module, nn.Sequential)
        return F.cross_entropy(module.classifier(module.features(x)), y)


class Own(nn.Module):
    """No chain: the trained layer is inside."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.classifier = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.classifier(self.features(x).relu())
        return found


class Doubled(nn.Linear):
    """A layer of one's own may do anything."""


def chain(*front: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(OrderedDict(features=nn.Sequential(*front), classifier=nn.Linear(4, 3)))


def hooked() -> nn.Module:
    module = chain(nn.Linear(5, 4))()
    module[0].register_forward_hook(lambda *_: None)
    return module


@pytest.mark.parametrize(
    "make",
    [
        Own,
        hooked,
        chain(nn.Flatten()),
        chain(Doubled(5, 4)),
        chain(nn.Linear(5, 4), nn.Dropout(0.2)),
        chain(nn.Linear(5, 4), nn.BatchNorm1d(4)),
        chain(nn.Linear(5, 4), nn.InstanceNorm1d(4, track_running_stats=True)),
        lambda: resnet20((3, 16, 16), 3, norm="batch", width=4),
    ],
)
def test_what_is_not_parted(make: Callable[[], nn.Module]) -> None:
    assert split_of(make, ("classifier",)) is None


def test_dropout_that_drops_nothing_and_batchnorm_that_stands_still_are_parted() -> None:
    assert split_of(chain(nn.Linear(5, 4), nn.Dropout(0.0)), ("classifier",)) is not None

    def frozen() -> nn.Module:
        module = chain(nn.Linear(5, 4), nn.BatchNorm1d(4))()
        module[0].requires_grad_(False)
        return module

    assert split_of(frozen, ("classifier",)) is not None


def test_a_first_layer_that_is_trained_leaves_nothing_in_front() -> None:
    assert split_of(make_cnn, ("features",)) is None
    assert split_of(make_cnn, ("features", "head")) is None
    groups = {"low": ["features.conv1"], "rest": ["features.conv2", "classifier"]}
    found = split_of(make_cnn, ("rest",), groups)
    assert [type(layer).__name__ for layer in found.front] == ["Conv2d", "MaxPool2d", "ReLU"]
    # Tied weights: what is trained behind stands in front, too.

    def tied() -> nn.Module:
        module = chain(nn.Linear(5, 4), nn.Linear(4, 4), nn.ReLU())()
        module.classifier = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
        module.classifier[0].weight = module.features[1].weight
        return module

    found = split_of(tied, ("classifier",))
    assert [type(layer).__name__ for layer in found.front] == ["Linear"]
    assert len(found.back) == 4


def test_augmentation_and_losses_of_ones_own_see_the_whole_network(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model("main", make_cnn)
    kernel = Kernel({"main": model}, images(), CPU)
    used = counted(kernel, monkeypatch)
    start = Served.of(model.initial(generator(0, "start")))
    fit = Fit(start, torch.arange(ROWS), Optimizer(), 1, None, 8, ("classifier",))
    kernel.fit(replace(fit, augment=("flip",)), client())
    kernel.fit(replace(fit, anchor=start.vector), client())
    kernel.fit(replace(fit, segments=None), client())
    assert used == []
    monkeypatch.setitem(PARTS["loss"], "looking", f"{__name__}:Looking")
    kernel.fit(replace(fit, loss="looking"), client())
    assert used == [False]
