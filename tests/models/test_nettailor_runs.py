"""NetTailor in whole runs: what is frozen keeps every bit and is not sent, and the laws."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import shoal as library
from shoal.checks import laws_bits, laws_failure, laws_memory, laws_purity, laws_stacked
from shoal.checks.case import Case
from shoal.engine import one_torch_thread
from shoal.engine.kernel import Kernel
from shoal.folder import RunFolder
from shoal.messages import Client
from shoal.models.base import Model
from shoal.models.factory import build_models, resolve_model
from shoal.randomness import Moment, generator
from shoal.requests import Fit, Optimizer, Served
from shoal.setup import assemble, resolve_config

CPU = torch.device("cpu")
SMALL = {"kind": "nettailor", "backbone": {"kind": "resnet20", "width": 2}, "first_tailored_block": 8}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As in a run; on a busy machine two threads mostly wait for each other."""
    with one_torch_thread():
        yield


class Dense(nn.Module):
    """A backbone for the rows of the stand-in world."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(shape[0], 3), nn.ReLU())
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)) for _ in range(2))


def config(**more: Any) -> dict[str, Any]:
    return {
        "rounds": 3,
        "data": {"kind": "digits", "limit": 200},
        # Two tasks of two and one of three classes: two models, which share the backbone.
        "stream": {"kind": "tasks", "clients": 2, "tasks": 3, "by": "class", "classes": [[0, 1], [2, 3], [4, 5, 6]]},
        "model": SMALL,
        "method": {"kind": "fedavg", "per": "task", "server": "adam"},
        "local": {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4, "batch_size": 16},
        "execution": {"kind": "serial"},
        **more,
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library.run(config(), out=tmp_path_factory.mktemp("nettailor") / "run").folder


def test_workers_give_the_same_bits(run: Path, tmp_path: Path) -> None:
    other = library.run(config(execution={"kind": "workers", "workers": 2}), out=tmp_path / "run").folder
    assert (run / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()


def test_what_is_frozen_keeps_its_bits_and_is_in_no_entry(run: Path) -> None:
    setup = assemble(resolve_config(RunFolder(run).config()))
    tensors = load_file(run / "model.safetensors")
    main = setup.world.models["main"]
    frozen = {name: p for name, p in main.build().named_parameters() if not p.requires_grad}
    assert frozen
    for name, parameter in frozen.items():
        assert torch.equal(tensors[f"_constants/main/{name}"], parameter.detach().contiguous()), name
    sent = {name.removeprefix("task/0/") for name in tensors if name.startswith("task/0/")}
    assert not sent & set(frozen)
    assert set(main.space.names) <= sent
    # The model of the task with three classes has the same backbone, which is written once.
    assert tensors["task/2/classifier.weight"].shape == (3, 8)
    assert not any(name.startswith("_constants/main-3") for name in tensors)
    lines = [line for line in RunFolder(run).lines() if line.get("record") == "model"]
    assert lines[0]["trainable_parameters"] == setup.world.models["main-3"].space.size


def test_predictions_need_no_file_of_the_backbone(run: Path, tmp_path: Path) -> None:
    torch.save(
        {name: t for name, t in resnet(2).state_dict().items() if not name.startswith("classifier")},
        tmp_path / "backbone.pth",
    )
    settings = {**SMALL, "backbone": {**SMALL["backbone"], "weights": str(tmp_path / "backbone.pth")}}
    done = library.run(config(model=settings), out=tmp_path / "run").folder
    assert RunFolder(done).config()["model"]["backbone"]["weights_sha256"]
    images = np.random.default_rng(0).integers(0, 17, (3, 8, 8)).astype(np.uint8)
    before = library.predict(done, images, target="task=2")
    (tmp_path / "backbone.pth").unlink()
    after = library.predict(done, images, target="task=2")
    assert before.equals(after)
    assert len(before) == 3


def resnet(width: int) -> nn.Module:
    from shoal.models.resnet import resnet20

    return resnet20((1, 8, 8), 5, width=width)


def kernel_of(**settings: Any) -> tuple[Kernel, Model]:
    setup = assemble(resolve_config(config()))
    shape = setup.stream.dataset.shape
    models, _ = build_models(resolve_model({**SMALL, **settings}), shape, 10, (), 0)
    return Kernel(models, setup.dataset, CPU), models["main"]


def client(rows: int) -> Client:
    return Client(0, Moment(0, 1), torch.arange(rows), torch.arange(0))


def test_no_weight_decay_pulls_the_numbers_of_attention() -> None:
    # Adam's decoupled decay at a huge rate of decay: what is decayed is 0 after one step, to within the step.
    kernel, model = kernel_of()
    start = Served.of(model.initial(generator(0, "a")))
    optimizer = Optimizer("adamw", lr=1e-3, weight_decay=1e3)
    fit = kernel.fit(Fit(start, torch.arange(16), optimizer, steps=1, batch=16), client(16))
    for name in model.space.names:
        before, after = model.space.view(start.vector, name), model.space.view(fit.vector, name)
        if name.startswith("tail.attention."):
            assert float(after) == pytest.approx(float(before), abs=2e-3)
            assert abs(float(before)) == 2
        else:
            assert float(after.abs().max()) <= 2e-3


def test_a_batch_of_one_row_is_left_out() -> None:
    kernel, model = kernel_of()
    start = Served.of(model.initial(generator(0, "a")))
    fit = kernel.fit(Fit(start, torch.arange(9), Optimizer(), batch=8), client(9))
    assert (fit.steps, fit.rows) == (1, 8)
    fit = kernel.fit(Fit(start, torch.arange(1), Optimizer(), batch=8), client(1))
    assert fit.steps == 0
    assert torch.equal(fit.vector, start.vector)
    assert kernel.evaluate([start], torch.arange(1))[0].rows == 1


def test_the_price_of_complexity_lowers_it() -> None:
    found = {}
    for price in (0.0, 1e4):
        kernel, model = kernel_of()
        start = Served.of(model.initial(generator(0, "a")))
        request = Fit(start, torch.arange(64), Optimizer(lr=0.1), steps=5, batch=16, loss="nettailor")
        fit = kernel.fit(Fit(**{**vars(request), "loss_args": {"complexity": price}}), client(64))
        with kernel.workspace("main").holding(Served("main", fit.vector, fit.buffers), False) as module:
            found[price] = float(module.get_submodule("tail").complexity().detach())  # type: ignore[operator]
    assert found[1e4] < 0.8 * found[0.0]


LAWS = [
    laws_bits.any_number_of_workers,
    laws_bits.resume_at_every_round,
    laws_memory.memory_stays_flat,
    laws_purity.sizes_stay,
    laws_purity.buffers_never_pass_the_server,
    laws_purity.batch_norm_stays_sound,
    laws_failure.a_single_class,
    laws_failure.late_and_crashed_clients,
    laws_stacked.stacked_agrees_with_serial,
]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_laws(law: Any) -> None:
    model = {"kind": "nettailor", "backbone": {"kind": f"{__name__}:Dense"}, "first_tailored_block": 2}
    law(Case(method={"kind": "fedavg", "per": "task"}, model=model, needs_model=True))
