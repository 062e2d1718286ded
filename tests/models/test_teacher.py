"""The teacher of a tailored network: its numbers, both readings of Omega, and fits beside it, against plain torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.data.dataset import Dataset
from shoal.engine import features, one_torch_thread
from shoal.engine.kernel import Kernel
from shoal.engine.plan import plan
from shoal.errors import ConfigError
from shoal.losses import Beside, loss_of
from shoal.losses.nettailor import NetTailorLoss
from shoal.messages import Client
from shoal.models.base import Model, set_mode
from shoal.models.factory import build_models, made, resolve_backbone, resolve_model
from shoal.models.nettailor import Tail
from shoal.models.nettailor_paths import OWN
from shoal.models.teacher import build_teacher, unflat
from shoal.randomness import Moment, generator
from shoal.requests import Fit, Gradient, Optimizer, Served

CPU = torch.device("cpu")
ROWS, VALUES, CLASSES = 24, 5, 3


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As in a run; on a busy machine two threads mostly wait for each other."""
    with one_torch_thread():
        yield


class Dense(nn.Module):
    """A network of a user's own for rows of numbers, which is backbone and teacher: three blocks, of 4, 4 and 2."""

    def __init__(self, shape: tuple[int, ...], outputs: int = 2, twice: bool = False) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(shape[0], 4), nn.ReLU())
        widths = ((4, 4), (4, 4), (4, 2))
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(a, b), nn.BatchNorm1d(b)) for a, b in widths)
        self.classifier = nn.Linear(2, outputs)
        self.twice = twice

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x).relu()
        found: Tensor = self.classifier(2 * x if self.twice else x)
        return found


OWN_KIND = f"{__name__}:Dense"


def rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def saved(path: Path, module: nn.Module, seed: int = 1) -> str:
    """The module's file; its norms have statistics and factors that are no identity."""
    rng = np.random.default_rng(seed)
    for norm in (m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)):
        for tensor, low, high in ((norm.running_mean, -0.5, 0.5), (norm.running_var, 0.5, 2.0), (norm.bias, 0, 0.5)):
            assert tensor is not None
            tensor.data.copy_(torch.from_numpy(rng.uniform(low, high, tensor.shape)))
    torch.save(module.state_dict(), path)
    return str(path)


def model_of(teacher: str, **settings: Any) -> Model:
    given = {"kind": "nettailor", "backbone": {"kind": OWN_KIND}, "skips": 2, "teacher": teacher, **settings}
    return build_models(resolve_model(given), (VALUES,), CLASSES, (), 0)[0]["main"]


@pytest.fixture
def teacher_file(tmp_path: Path) -> str:
    torch.manual_seed(5)
    return saved(tmp_path / "teacher.pth", Dense((VALUES,), CLASSES))


@pytest.fixture
def network(teacher_file: str) -> nn.Module:
    """The teacher as a user would load it."""
    module = Dense((VALUES,), CLASSES)
    module.load_state_dict(torch.load(teacher_file, weights_only=True))
    return module.eval()


# ---- what it gives --------------------------------------------------------------------------------------------------

LAYERS: Mapping[str, tuple[dict[str, Any], tuple[int, ...], list[str]]] = {
    "resnet18": (
        {"stem": "small"},
        (3, 16, 16),
        [f"layer{stage}.{block}" for stage in (1, 2, 3, 4) for block in (0, 1)],
    ),
    "resnet20": (
        {"width": 2},
        (1, 8, 8),
        [f"features.stage{stage}.{block}" for stage in (1, 2, 3) for block in (0, 1, 2)],
    ),
    "vgg11": ({"hidden": [8]}, (3, 32, 32), [f"features.{i}" for i in (4, 7, 9, 12, 14, 17, 19)]),
    "efficientnet-lite0": ({}, (3, 64, 64), [f"_blocks.{i}" for i in range(16)]),
}
"""Of each model, the layers whose outputs are the activations of its blocks."""


@pytest.mark.parametrize("kind", LAYERS)
def test_it_gives_the_activations_and_logits_of_the_fine_tuned_network(kind: str, tmp_path: Path) -> None:
    more, shape, names = LAYERS[kind]
    settings = resolve_backbone({"kind": kind, **more})
    torch.manual_seed(0)
    module = made(settings, shape, 7)
    file = saved(tmp_path / "file.pth", module)
    seen: list[Tensor] = []
    for name in names:
        module.get_submodule(name).register_forward_hook(lambda _module, _x, y: seen.append(y))
    x = rows(3, *shape)
    with torch.no_grad():
        logits = module.eval()(x)
    for first in (1, len(names)):
        teacher = build_teacher(settings, shape, 7, file, None, first)
        found = teacher(x)
        assert not found.requires_grad
        assert not any(p.requires_grad for p in teacher.parameters())
        wanted = [one.permute(0, 2, 3, 1).flatten(1) for one in seen[first - 1 :]]
        close(found, torch.cat([*wanted, logits], 1))


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5 * float(1 + wanted.abs().max()))


@pytest.mark.parametrize(
    ("settings", "outputs", "message"),
    [
        ({"kind": OWN_KIND}, 4, r"model.teacher: teacher.pth does not fit.*classifier.weight: the file has \(3, 2\)"),
        ({"kind": OWN_KIND, "twice": True}, CLASSES, "model.teacher: .*Dense gives other logits as a whole"),
        ({"kind": "resnet20"}, CLASSES, r"model.teacher: teacher.pth does not fit this model \(96 of 116"),
    ],
)
def test_other_networks_are_refused(settings: dict[str, Any], outputs: int, message: str, teacher_file: str) -> None:
    shape = (1, 8, 8) if settings["kind"] == "resnet20" else (VALUES,)
    with pytest.raises(ConfigError, match=message):
        build_teacher(resolve_backbone(settings), shape, outputs, teacher_file, None, 1)


@pytest.mark.parametrize("args", [{"complexity": -1.0}, {"teacher": -5.0}])
def test_weights_below_zero_are_refused(args: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"local.loss_args.\w+: a weight is 0 or more; got -"):
        NetTailorLoss()(nn.Linear(2, 2), torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64), **args)


# ---- Omega ----------------------------------------------------------------------------------------------------------


def passed(tail: Tail, front: Tensor, detached: bool) -> dict[int, Tensor]:
    """The activations of the student: a loop of our own, with inputs cut off from those before or not."""
    found = {tail.fixed: front}
    for block, sources in tail.paths.items():
        mixed: Tensor | float = 0.0
        numbers = tail.attention[str(block)]
        names = ["own" if s == OWN else f"from{s}" for s in sources]
        alphas = torch.stack([getattr(numbers, name) for name in names]).softmax(0)
        for alpha, source in zip(alphas, sources, strict=True):
            x = found[block - 1 if source == OWN else source]
            x = x.detach() if detached else x
            path = tail.blocks[str(block)] if source == OWN else tail.proxies[str(block)].get_submodule(str(source))
            mixed = mixed + alpha * path(x)
        assert isinstance(mixed, Tensor)
        found[block] = mixed.relu()
    return found


def expected(module: nn.Module, network: nn.Module, x: Tensor, y: Tensor, omega: str, weight: float) -> Tensor:
    """The whole loss, from the definitions: the last term of Morgado and Vasconcelos in both readings."""
    tail, dense = module.get_submodule("tail"), network
    assert isinstance(tail, Tail)
    assert isinstance(dense, Dense)
    front = module.get_submodule("front")
    stem = front[0](x)  # type: ignore[index]
    own = front[1].block(stem)  # type: ignore[index]

    class First(nn.Module):
        def forward(self, _: Tensor) -> Tensor:
            return own

    tail.blocks["1"] = First()
    ours = passed(tail, stem, False)
    logits = module.get_submodule("classifier")(ours[3])
    theirs, t = [], dense.stem(x)
    for block in dense.blocks:
        t = block(t).relu()
        theirs.append(t.detach())
    wanted = dense.classifier(t).detach()
    complexity = tail.complexity()
    if omega == "mean":
        alone = passed(tail, stem, True)
        terms = [((logits - wanted) ** 2).mean()] + [((alone[i + 1] - theirs[i]) ** 2).mean() for i in range(3)]
        total = sum(terms) / 3
    else:
        terms = [((logits - wanted) ** 2).sum(1).mean()]
        terms += [((ours[i + 1] - theirs[i]) ** 2).sum(1).mean() for i in range(3)]
        total = sum(terms)
    del tail.blocks["1"]
    return F.cross_entropy(logits, y) + 0.3 * complexity + weight * total


@pytest.mark.parametrize("omega", ["mean", "sum"])
def test_omega_and_its_gradients_are_those_of_the_definition(omega: str, teacher_file: str, network: nn.Module) -> None:
    model = model_of(teacher_file)
    module = model.build()
    set_mode(module, True)
    x, y = rows(8, VALUES), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    assert model.teacher is not None
    trained = [p for p in module.parameters() if p.requires_grad]
    loss = Beside(loss_of("nettailor"), model.teacher(x))
    found = loss(module, x, y, **({} if omega == "mean" else {"omega": omega}))
    gradients = torch.autograd.grad(found, trained)
    wanted = expected(module, network, x, y, omega, 10.0)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    for one, other in zip(gradients, torch.autograd.grad(wanted, trained), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    half = loss(module, x, y, omega=omega, teacher=5.0, complexity=0.3)
    none = loss(module, x, y, omega=omega, teacher=0.0, complexity=0.3)
    torch.testing.assert_close(found - half, half - none, rtol=1e-3, atol=1e-4)


def test_running_statistics_follow_a_batch_once(teacher_file: str) -> None:
    model = model_of(teacher_file)
    module = model.build()
    set_mode(module, True)
    x, y = rows(8, VALUES), torch.zeros(8, dtype=torch.int64)
    assert model.teacher is not None
    Beside(loss_of("nettailor"), model.teacher(x))(module, x, y)
    proxy = module.get_submodule("tail.proxies.1.0")
    made = proxy.get_submodule("linear")(module.get_submodule("front.stem")(x))
    norm = proxy.get_submodule("norm")
    torch.testing.assert_close(norm.running_mean, 0.1 * made.mean(0).detach(), rtol=1e-4, atol=1e-7)
    assert int(norm.num_batches_tracked) == 1  # type: ignore[arg-type]


def test_pruned_blocks_are_left_out_of_the_sum_but_not_of_the_number(teacher_file: str, network: nn.Module) -> None:
    # Block 2 gives nothing, and block 3 lives on the activation of block 1.
    paths = {1: [OWN, 0], 2: [], 3: [1]}
    given = {"kind": "nettailor", "backbone": {"kind": OWN_KIND}, "skips": 2, "teacher": teacher_file}
    model = build_models({**resolve_model(given), "paths": paths}, (VALUES,), CLASSES, (), 0)[0]["main"]
    module = model.build().eval()
    tail = module.get_submodule("tail")
    assert isinstance(tail, Tail)
    x, y = rows(8, VALUES), torch.zeros(8, dtype=torch.int64)
    assert model.teacher is not None
    assert isinstance(network, Dense)
    loss = Beside(loss_of("nettailor"), model.teacher(x))
    ours = tail.activations(module.get_submodule("front")(x))
    assert set(ours) == {0, 1, 3}
    one = network.blocks[0](network.stem(x)).relu()
    three = network.blocks[2](network.blocks[1](one).relu()).relu()
    total = F.mse_loss(module(x), network(x)) + F.mse_loss(ours[1], one) + F.mse_loss(ours[3], three)
    found = loss(module, x, y, teacher=1.0) - loss(module, x, y, teacher=0.0)
    torch.testing.assert_close(found, total / 3, rtol=1e-3, atol=1e-5)


def test_unflat_undoes_the_order_of_the_teacher() -> None:
    x = rows(2, 3, 4, 5)
    assert torch.equal(unflat(x.permute(0, 2, 3, 1).flatten(1), (3, 4, 5)), x)


# ---- in the engine --------------------------------------------------------------------------------------------------


def table() -> Dataset:
    every = torch.arange(ROWS)
    y = torch.from_numpy(np.random.default_rng(2).integers(0, CLASSES, ROWS))
    one = torch.ones(VALUES)
    return Dataset("t", rows(ROWS, VALUES, seed=1), y, ("a", "b", "c"), every, every[:0], one, torch.zeros(VALUES))


class Told:
    """A kernel with a teacher that counts the rows it is shown."""

    def __init__(self, file: str, **settings: Any) -> None:
        self.model = model_of(file, **settings)
        self.kernel = Kernel({"main": self.model}, table(), CPU, loss="nettailor")
        self.start = Served.of(self.model.initial(generator(0, "start")))
        self.rows = 0
        teacher = self.model.teacher
        assert teacher is not None
        forward = teacher.forward

        def counted(x: Tensor) -> Tensor:
            self.rows += len(x)
            found: Tensor = forward(x)
            return found

        teacher.forward = counted  # type: ignore[method-assign]

    def fit(self, at: Tensor, **more: Any) -> Tensor:
        request = Fit(self.start, at, Optimizer(lr=0.1), 2, None, 8, **more)
        return self.kernel.fit(request, Client(3, Moment(0, 1), at, at[:0])).vector


@pytest.mark.parametrize("first", [1, 3])
def test_a_fit_is_the_loop_over_whole_networks(first: int, teacher_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(teacher_file, first_tailored_block=first)
    at = torch.arange(20)
    found = told.fit(at)
    assert told.rows == 20  # once, for two epochs
    assert torch.equal(told.fit(at), found)
    assert told.rows == 20  # and for the run
    module, space, data = told.model.build(), told.model.space, table()
    named = {name: p for name, p in module.named_parameters() if p.requires_grad}
    for name, parameter in named.items():
        parameter.data.copy_(space.view(told.start.vector, name))
    set_mode(module, True)
    optimizer = torch.optim.SGD(named.values(), lr=0.1)
    for step in plan(20, 8, 2, None, True, Client(3, Moment(0, 1), at, at[:0]).random("fit")):
        rows_of = at[torch.from_numpy(step.positions)]
        x, y = data.features[rows_of], data.labels[rows_of]
        optimizer.zero_grad()
        assert told.model.teacher is not None
        Beside(loss_of("nettailor"), told.model.teacher(x))(module, x, y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    for name, parameter in named.items():
        torch.testing.assert_close(space.view(found, name), parameter.detach(), rtol=1e-4, atol=1e-6)
    # Without memory the teacher sees each batch once, when that is known.
    monkeypatch.setattr(features, "KEPT_BYTES", 0)
    poor = Told(teacher_file, first_tailored_block=first)
    torch.testing.assert_close(poor.fit(at), found, rtol=1e-4, atol=1e-6)
    seen = poor.rows
    poor.fit(at)
    assert poor.rows == seen + 2 * 20


def test_a_weight_of_zero_needs_no_teacher(teacher_file: str) -> None:
    told = Told(teacher_file)
    without = told.fit(torch.arange(20), loss_args={"teacher": 0.0})
    assert told.rows == 0
    plain = Told(teacher_file)
    plain.model.teacher = None
    plain.kernel = Kernel({"main": plain.model}, table(), CPU, loss="nettailor")
    assert torch.equal(plain.fit(torch.arange(20)), without)


@pytest.mark.parametrize("per", ["batch", "row"])
def test_gradients_have_the_teacher_in_them(per: str, teacher_file: str) -> None:
    told = Told(teacher_file)
    at, batch = torch.arange(6), 6
    found = told.kernel.gradient(Gradient(told.start, at, 1, per, batch))
    module, data = told.model.build(), table()
    set_mode(module, per == "batch")
    named = {name: p for name, p in module.named_parameters() if p.requires_grad}
    for name, parameter in named.items():
        parameter.data.copy_(told.model.space.view(told.start.vector, name))
    assert told.model.teacher is not None
    parts = [at] if per == "batch" else at.split(1)
    total = torch.zeros(told.model.space.size)
    for part in parts:
        x = data.features[part]
        value = Beside(loss_of("nettailor"), told.model.teacher(x))(module, x, data.labels[part])
        for name, one in zip(named, torch.autograd.grad(value, list(named.values())), strict=True):
            told.model.space.view(total, name).add_(one, alpha=1 / len(parts))
    torch.testing.assert_close(found, total, rtol=1e-3, atol=1e-5)


def test_what_is_measured_is_the_cross_entropy(teacher_file: str) -> None:
    told = Told(teacher_file)
    score = told.kernel.evaluate([told.start], torch.arange(10))[0]
    other = told.kernel.evaluate([told.start], torch.arange(10), "cross_entropy")[0]
    assert score.loss == other.loss
    assert told.rows == 0
