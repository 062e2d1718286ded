"""No step waits for a GPU: fits on torch's ``meta`` device, where every reading of a number is seen.

A tensor there has a shape and no numbers, so that this says nothing of results: those are compared on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from test_general import MODELS, clients, pictures
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shoal.engine.serial import Serial
from shoal.engine.stacked import Stacked
from shoal.messages import Assignment, Client, Failure, Job, Update
from shoal.models.base import Model
from shoal.requests import Evaluate, Fit, Optimizer, Served
from shoal.terms import Pull

META = torch.device("meta")


class Watch(TorchDispatchMode):
    """Counts what the host waits for: numbers that are read, and transfers that block. A read gives zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        there = any(tensor.device == META for tensor in tensors)
        name = func._schema.name
        if name == "aten::_to_copy" and there and kwargs.get("device", META) != META:
            self.waits += 1
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        if name == "aten::_local_scalar_dense" and there:
            self.waits += 1
            return 0
        moved = name == "aten::_to_copy" and kwargs.get("device") == META and not there
        copied = name == "aten::copy_" and args[0].device == META and args[1].device != META
        if (moved and not kwargs.get("non_blocking")) or (copied and not (len(args) > 2 and args[2])):
            self.waits += 1
        elif there and not copied and name not in ("aten::copy_", "aten::_to_copy"):
            # A GPU refuses these, but `meta` lets many pass; single numbers may come from the host.
            mixed = [tensor for tensor in tensors if tensor.device != META and tensor.dim()]
            assert not mixed, f"{name} of tensors on the device and on the host"
        return func(*args, **kwargs)


def waits(kind: type[Serial], name: str, ask: Callable[[Client], Any], **settings: Any) -> int:
    """How often the host waits in one round of these requests."""
    of = Model("main", MODELS[name])
    start = of.initial(np.random.default_rng(1))
    served = Served("main", start.vector, start.buffers)

    def train(given: Assignment, client: Client) -> Any:
        yield ask(client, served)  # type: ignore[call-arg]
        return Update({}, weight=1.0)

    # The last two clients: two whole batches, and one with a rest.
    with Watch() as watch:
        engine = kind({"main": of}, pictures(), META, **settings)
        if isinstance(engine, Stacked):
            engine.alone = None  # type: ignore[assignment, method-assign]
        outcomes = engine.run(train, [Job(Assignment(c.id), c, c.train) for c in clients()[-2:]])
    assert not [outcome.answer for outcome in outcomes if isinstance(outcome.answer, Failure)]
    return watch.waits


def fit(client: Client, start: Served, epochs: int, steps: int | None = None, **more: Any) -> Fit:
    settings = {"optimizer": Optimizer(lr=0.1, momentum=0.9, clip=1.0), "terms": (Pull(0.1, start.vector),), **more}
    return Fit(start, client.train, epochs=epochs, steps=steps, batch=settings.pop("batch", 4), **settings)


@pytest.mark.parametrize("name", ["mlp", "cnn", "lenet", "resnet20", "dropout", "dropped maps"])
@pytest.mark.parametrize("optimizer", [Optimizer(lr=0.1, momentum=0.9, weight_decay=0.1), Optimizer("adam", 1e-3)])
def test_no_step_of_a_stack_waits(name: str, optimizer: Optimizer) -> None:
    some, more = (
        waits(Stacked, name, partial(fit, epochs=epochs, optimizer=optimizer))  # type: ignore[arg-type]
        for epochs in (1, 5)
    )
    assert some == more > 0


@pytest.mark.parametrize("name", ["cnn", "resnet20", "dropout", "dropped maps"])
def test_no_step_of_the_reference_waits(name: str) -> None:
    few, many = (
        waits(Serial, name, partial(fit, epochs=1, batch=batch))  # type: ignore[arg-type]
        for batch in (8, 2)
    )
    assert few == many > 0


def test_measuring_waits_once_for_each_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(client: Client, start: Served) -> Evaluate:
        return Evaluate((start, start), client.train)

    found = []
    for rows in (512, 2):
        monkeypatch.setattr("shoal.engine.kernel.EVALUATION_ROWS", rows)
        found.append(waits(Serial, "cnn", ask))  # type: ignore[arg-type]
    assert found[0] == found[1] > 0


def test_a_step_that_reads_a_number_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.engine.steppers import Stepper

    plain = Stepper.step

    def reading(self: Stepper, vector: Tensor, gradient: Tensor) -> None:
        float(gradient.sum())
        plain(self, vector, gradient)

    monkeypatch.setattr(Stepper, "step", reading)
    for kind in (Serial, Stacked):
        some, more = (waits(kind, "cnn", partial(fit, epochs=epochs)) for epochs in (1, 3))  # type: ignore[arg-type]
        assert some < more
