"""The Fit kernel against plain loops with torch.optim, and by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.bank import Buffers, Entry
from shoal.data.dataset import Dataset
from shoal.engine.drift import cosine_distance
from shoal.engine.kernel import Kernel, SimulatedCrash
from shoal.engine.plan import plan
from shoal.errors import ConfigError
from shoal.messages import Client
from shoal.models.base import Model
from shoal.randomness import Moment, generator
from shoal.requests import Fit, Gradient, Optimizer, Served
from shoal.terms import Hold, Lasso, Pull, Shift

ROWS = 37
CPU = torch.device("cpu")


def table(rows: int = ROWS, features: int = 5, classes: int = 3) -> Dataset:
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.normal(size=(rows, features)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, classes, rows))
    names = tuple(str(c) for c in range(classes))
    every = torch.arange(rows)
    return Dataset("t", x, y, names, every, every[:0], torch.ones(features), torch.zeros(features))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


@pytest.fixture
def model() -> Model:
    return Model("main", mlp)


@pytest.fixture
def kernel(model: Model) -> Kernel:
    return Kernel({"main": model}, table(), CPU)


@pytest.fixture
def start(model: Model) -> Entry:
    return model.initial(generator(0, "start"))


def client(rows: int = ROWS) -> Client:
    return Client(3, Moment(0, 1), torch.arange(rows), torch.arange(0))


def reference(
    model: Model,
    start: Entry,
    dataset: Dataset,
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    epochs: float,
    batch: int,
    clip: float | None = None,
    change: Callable[[dict[str, nn.Parameter]], None] | None = None,
    steps: int | None = None,
) -> Tensor:
    """The same training as a plain loop: a module of its own, torch.optim, batches in the order of the plan."""
    module = mlp()
    parameters = dict(module.named_parameters())
    with torch.no_grad():
        for name, p in parameters.items():
            p.copy_(model.space.view(start.vector, name))
    optimizer = make(list(module.parameters()))
    for step in plan(ROWS, batch, epochs, steps, False, client().random("fit")):
        rows = torch.from_numpy(step.positions)
        optimizer.zero_grad()
        F.cross_entropy(module(dataset.features[rows]), dataset.labels[rows]).backward()
        if change is not None:
            change(parameters)
        if clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


OPTIMIZERS: dict[str, tuple[Optimizer, Callable[[list[nn.Parameter]], torch.optim.Optimizer]]] = {
    "sgd": (Optimizer(lr=0.3), lambda p: torch.optim.SGD(p, lr=0.3)),
    "momentum": (Optimizer(lr=0.1, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "decay": (
        Optimizer(lr=0.1, momentum=0.5, weight_decay=0.2),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5, weight_decay=0.2),
    ),
    "adam": (
        Optimizer("adam", lr=0.01, weight_decay=0.1, betas=(0.8, 0.95)),
        lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1, betas=(0.8, 0.95)),
    ),
    "adamw": (
        Optimizer("adamw", lr=0.01, weight_decay=0.5),
        lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.5),
    ),
    "clip": (Optimizer(lr=0.3, clip=0.2), lambda p: torch.optim.SGD(p, lr=0.3)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("epochs", [1, 3, 1.6])
def test_fit_equals_a_plain_loop_with_torch_optim(
    name: str, epochs: float, kernel: Kernel, model: Model, start: Entry
) -> None:
    settings, make = OPTIMIZERS[name]
    result = kernel.fit(Fit(Served.of(start), torch.arange(ROWS), settings, epochs, batch=8), client())
    expected = reference(model, start, kernel.dataset, make, epochs, 8, settings.clip)
    torch.testing.assert_close(result.vector, expected, rtol=1e-5, atol=1e-6)
    assert result.steps == {1: 5, 3: 15, 1.6: 8}[epochs]
    assert not torch.equal(result.vector, start.vector)


def test_steps_win_over_epochs_and_cycle(kernel: Kernel, model: Model, start: Entry) -> None:
    result = kernel.fit(Fit(Served.of(start), torch.arange(ROWS), Optimizer(lr=0.1), 1, steps=12, batch=8), client())
    expected = reference(model, start, kernel.dataset, lambda p: torch.optim.SGD(p, lr=0.1), 1, 8, steps=12)
    torch.testing.assert_close(result.vector, expected, rtol=1e-5, atol=1e-6)
    # Two whole epochs of 5 steps and 2 of the next: 37 + 37 + 16 rows; drift after each epoch and at the end.
    assert (result.steps, result.rows, len(result.drift.squared)) == (12, 90, 3)


def test_drift_is_the_squared_distance_after_each_epoch(kernel: Kernel, model: Model, start: Entry) -> None:
    fit = Fit(Served.of(start), torch.arange(ROWS), Optimizer(lr=0.1), epochs=2, batch=8)
    result = kernel.fit(fit, client())
    one = kernel.fit(replace(fit, epochs=1), client())
    head = model.space.head
    for vector, whole, inside in zip(
        (one.vector, result.vector), result.drift.squared, result.drift.squared_head, strict=True
    ):
        away = (vector - start.vector).double()
        assert whole == pytest.approx(float(away @ away), rel=1e-5)
        assert inside == pytest.approx(float(away[head] @ away[head]), rel=1e-5)
    cosine = 1 - float(F.cosine_similarity(result.vector.double(), start.vector.double(), dim=0))
    assert result.drift.cosine == pytest.approx(cosine, rel=1e-4)
    assert result.drift.distance == pytest.approx(result.drift.squared[-1] ** 0.5)


def test_cosine_distance_of_close_vectors_does_not_cancel() -> None:
    rng = np.random.default_rng(0)
    a = torch.from_numpy(rng.normal(size=1000).astype(np.float32))
    b = a + 1e-4 * torch.from_numpy(rng.normal(size=1000).astype(np.float32))
    exact = 1 - float(a.double() @ b.double() / (a.double().norm() * b.double().norm()))

    def distance(start: Tensor, end: Tensor) -> float:
        away = end - start
        return cosine_distance(start, away, float(away @ away))

    assert distance(a, b) == pytest.approx(exact, rel=1e-3)
    assert distance(a, -a) == pytest.approx(2)
    assert distance(a * 0, a * 0) == 0
    assert distance(a * 0, a) == 1
    assert distance(a, a * 3) == pytest.approx(0, abs=1e-6)


def test_drift_is_measured_from_what_the_start_holds_now(kernel: Kernel, start: Entry) -> None:
    own = start.vector.clone()
    for change in (1.0, 3.0, -2.0):
        own.mul_(change)
        result = kernel.fit(Fit(Served("main", own), torch.arange(ROWS), Optimizer(lr=0.3), batch=8), client())
        cosine = 1 - float(F.cosine_similarity(result.vector.double(), own.double(), dim=0))
        assert result.drift.cosine == pytest.approx(cosine, rel=1e-4)
        again = kernel.fit(Fit(Served("main", own), torch.arange(ROWS), Optimizer(lr=0.3), batch=8), client())
        assert again.drift == result.drift


def test_a_start_of_inference_mode_is_trained(kernel: Kernel, start: Entry) -> None:
    with torch.inference_mode():
        own = start.vector * 1
    fit = Fit(Served.of(start), torch.arange(ROWS), batch=8)
    found = kernel.fit(replace(fit, start=Served("main", own)), client())
    assert found.drift == kernel.fit(fit, client()).drift


def test_naming_every_segment_is_naming_none() -> None:
    model = Model("main", mlp, groups={"first": ["0"], "second": ["2"]})
    kernel = Kernel({"main": model}, table(), CPU)
    fit = Fit(Served.of(model.initial(generator(0, "start"))), torch.arange(ROWS), Optimizer(momentum=0.9), batch=8)
    every = kernel.fit(replace(fit, segments=("second", "first")), client())
    assert torch.equal(every.vector, kernel.fit(fit, client()).vector)


def test_only_the_named_segments_move(kernel: Kernel, model: Model, start: Entry) -> None:
    fit = Fit(Served.of(start), torch.arange(ROWS), Optimizer(lr=0.1, momentum=0.9, weight_decay=0.1))
    result = kernel.fit(replace(fit, segments=("classifier",)), client())
    features, classifier = model.space.slice_of("features"), model.space.slice_of("classifier")
    assert torch.equal(result.vector[features], start.vector[features])
    assert not torch.equal(result.vector[classifier], start.vector[classifier])


def test_gradient_terms_equal_their_formulas(kernel: Kernel, model: Model, start: Entry) -> None:
    anchor = start.vector + 0.1
    shift = torch.linspace(-1, 1, model.space.size)
    terms = (Pull(0.7, anchor), Shift(shift), Lasso(0.05), Pull(torch.full_like(anchor, 0.2), start.vector))

    def change(parameters: dict[str, nn.Parameter]) -> None:
        for name, p in parameters.items():
            w = p.detach()
            assert p.grad is not None
            p.grad += 0.7 * (w - model.space.view(anchor, name)) + model.space.view(shift, name)
            p.grad += 0.05 * torch.sign(w) + 0.2 * (w - model.space.view(start.vector, name))

    fit = Fit(Served.of(start), torch.arange(ROWS), Optimizer(lr=0.1), 2, batch=8, terms=terms)
    expected = reference(model, start, kernel.dataset, lambda p: torch.optim.SGD(p, lr=0.1), 2, 8, change=change)
    torch.testing.assert_close(kernel.fit(fit, client()).vector, expected, rtol=1e-5, atol=1e-6)


def test_hold_solves_the_penalty_implicitly(kernel: Kernel, start: Entry) -> None:
    anchor = torch.full_like(start.vector, 0.25)
    plain = Fit(Served.of(start), torch.arange(ROWS), Optimizer(lr=0.1), steps=1, batch=ROWS)
    free = kernel.fit(plain, client()).vector
    held = kernel.fit(replace(plain, terms=(Hold(30.0, anchor),)), client()).vector
    # The minimum of |w - free|^2 / 2 + 0.1 * 30 / 2 |w - anchor|^2.
    torch.testing.assert_close(held, (free + 3 * anchor) / 4)
    strong = kernel.fit(replace(plain, steps=None, epochs=20, batch=8, terms=(Hold(1e6, anchor),)), client()).vector
    torch.testing.assert_close(strong, anchor, atol=1e-4, rtol=0)


def test_an_svrg_anchor_subtracts_the_same_batch_gradient(kernel: Kernel, model: Model, start: Entry) -> None:
    # With the anchor at the start itself the first step has gradient zero; with a Shift it is the shift alone.
    shift = torch.ones(model.space.size)
    fit = Fit(Served.of(start), torch.arange(ROWS), Optimizer(lr=0.1), steps=1, batch=8, anchor=start.vector)
    torch.testing.assert_close(kernel.fit(fit, client()).vector, start.vector)
    moved = kernel.fit(replace(fit, terms=(Shift(shift),)), client()).vector
    torch.testing.assert_close(moved, start.vector - 0.1)


def autograd(model: Model, vector: Tensor, x: Tensor, y: Tensor) -> Tensor:
    module = mlp()
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.copy_(model.space.view(vector, name))
    F.cross_entropy(module(x), y).backward()
    return torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None])


def test_gradient_over_batches_and_rows(kernel: Kernel, model: Model, start: Entry) -> None:
    x, y = kernel.dataset.features, kernel.dataset.labels
    rows = torch.arange(ROWS)
    whole = autograd(model, start.vector, x, y)
    at = Served.of(start)
    for per in ("batch", "row"):
        torch.testing.assert_close(kernel.gradient(Gradient(at, rows, per=per, batch=10)), whole, rtol=1e-4, atol=1e-6)
    fisher = torch.stack([autograd(model, start.vector, x[i : i + 1], y[i : i + 1]) ** 2 for i in range(ROWS)]).mean(0)
    torch.testing.assert_close(kernel.gradient(Gradient(at, rows, 2, "row", 10)), fisher, rtol=1e-4, atol=1e-7)
    batches = [(b, min(b + 10, ROWS)) for b in range(0, ROWS, 10)]
    squared = sum((e - b) * autograd(model, start.vector, x[b:e], y[b:e]) ** 2 for b, e in batches)
    assert isinstance(squared, Tensor)
    torch.testing.assert_close(
        kernel.gradient(Gradient(at, rows, 2, "batch", 10)), squared / ROWS, rtol=1e-4, atol=1e-7
    )
    assert not kernel.gradient(Gradient(at, rows[:0])).any()


def test_evaluate_gives_mean_loss_and_accuracy(kernel: Kernel, model: Model, start: Entry) -> None:
    module = mlp()
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.copy_(model.space.view(start.vector, name))
        outputs = module(kernel.dataset.features)
    (score,) = kernel.evaluate([Served.of(start)], torch.arange(ROWS))
    assert score.loss == pytest.approx(float(F.cross_entropy(outputs, kernel.dataset.labels)), rel=1e-5)
    assert score.accuracy == int((outputs.argmax(1) == kernel.dataset.labels).sum()) / ROWS
    (empty,) = kernel.evaluate([Served.of(start)], torch.arange(0))
    assert np.isnan(empty.loss)
    assert empty.rows == 0


def test_a_crash_comes_half_way(kernel: Kernel, start: Entry) -> None:
    with pytest.raises(SimulatedCrash, match="after 2 of 5 steps"):
        kernel.fit(Fit(Served.of(start), torch.arange(ROWS), batch=8), client(), crash=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizer": Optimizer("lion")}, "sgd, adam, adamw"),
        ({"augment": ("flop",)}, "did you mean 'flip'"),
        ({"segments": ("body",)}, "no segment 'body'"),
        ({"optimizer": Optimizer(weight_decay=0.1, undecayed=("nope",))}, "does not exist"),
    ],
)
def test_wrong_requests_are_explained(kernel: Kernel, start: Entry, change: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, KeyError, ConfigError), match=message):
        kernel.fit(replace(Fit(Served.of(start), torch.arange(ROWS)), **change), client())


def test_undecayed_parameters_get_no_weight_decay(kernel: Kernel, model: Model, start: Entry) -> None:
    optimizer = Optimizer(lr=0.1, weight_decay=0.5)
    fit = Fit(Served.of(start), torch.arange(ROWS), optimizer, steps=1, batch=ROWS)
    free = kernel.fit(replace(fit, optimizer=replace(optimizer, weight_decay=0.0)), client()).vector
    mixed = kernel.fit(replace(fit, optimizer=replace(optimizer, undecayed=("0.bias", "2.bias"))), client()).vector
    for name in model.space.names:
        expected = model.space.view(free, name)
        if "bias" not in name:
            expected = expected - 0.1 * 0.5 * model.space.view(start.vector, name)
        torch.testing.assert_close(model.space.view(mixed, name), expected)


def batchnorm() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def test_a_batchnorm_model_drops_a_last_batch_of_one_row() -> None:
    model = Model("main", batchnorm)
    kernel = Kernel({"main": model}, table(), CPU)
    start = model.initial(generator(0))
    result = kernel.fit(Fit(Served.of(start), torch.arange(33), epochs=2, batch=32), client(33))
    assert (result.steps, result.rows) == (2, 64)
    assert result.buffers.counters is not None
    assert result.buffers.counters.tolist() == [2]
    alone = kernel.fit(Fit(Served.of(start), torch.arange(1), steps=5), client(1))
    assert alone.steps == 0
    assert torch.equal(alone.vector, start.vector)


def test_gradients_and_evaluations_leave_buffers_alone() -> None:
    model = Model("main", batchnorm)
    kernel = Kernel({"main": model}, table(), CPU)
    start = model.initial(generator(0))
    fit = Fit(Served.of(start), torch.arange(ROWS), batch=8)
    expected = kernel.fit(fit, client())
    kernel.gradient(Gradient(Served.of(start), torch.arange(ROWS)))
    kernel.evaluate([Served.of(start)], torch.arange(ROWS))
    again = kernel.fit(fit, client())
    assert torch.equal(expected.vector, again.vector)
    assert expected.buffers.floats is not None
    assert again.buffers.floats is not None
    assert torch.equal(expected.buffers.floats, again.buffers.floats)
    anchored = kernel.fit(replace(fit, steps=1, anchor=start.vector), client())
    plain = kernel.fit(replace(fit, steps=1), client())
    assert anchored.buffers.floats is not None
    assert plain.buffers.floats is not None
    assert torch.equal(anchored.buffers.floats, plain.buffers.floats)


def test_large_fits_gather_per_step_with_the_same_bits(
    kernel: Kernel, start: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = Fit(Served.of(start), torch.arange(ROWS), epochs=2, batch=8)
    at_once = kernel.fit(fit, client())
    monkeypatch.setattr("shoal.engine.batches.GATHER_BYTES", 1)
    assert torch.equal(at_once.vector, kernel.fit(fit, client()).vector)


def test_bf16_is_honoured_and_stays_close(model: Model, start: Entry) -> None:
    fit = Fit(Served.of(start), torch.arange(ROWS), Optimizer(lr=0.1), batch=8)
    exact = Kernel({"main": model}, table(), CPU).fit(fit, client()).vector
    half = Kernel({"main": model}, table(), CPU, "bf16").fit(fit, client()).vector
    assert half.dtype == torch.float32
    assert not torch.equal(exact, half)
    torch.testing.assert_close(half, exact, atol=0.02, rtol=0.05)


def test_a_purpose_may_be_used_once() -> None:
    one = client()
    one.random("fit")
    with pytest.raises(ValueError, match="purpose 'fit' used twice by client 3"):
        one.random("fit")


def test_buffers_that_are_not_brought_start_fresh() -> None:
    model = Model("main", lambda: nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6, momentum=None), nn.Linear(6, 3)))
    start = model.initial(generator(0))
    fit = Fit(Served.of(start), torch.arange(ROWS), batch=8)
    half = replace(fit, start=replace(fit.start, buffers=Buffers(start.buffers.floats, None)))
    fresh = Kernel({"main": model}, table(), CPU).fit(half, client()).buffers
    used = Kernel({"main": model}, table(), CPU)
    used.fit(fit, client())
    after_another = used.fit(half, client()).buffers
    assert fresh.counters is not None
    assert after_another.counters is not None
    assert fresh.counters.tolist() == after_another.counters.tolist() == [5]
    assert fresh.floats is not None
    assert after_another.floats is not None
    assert torch.equal(fresh.floats, after_another.floats)
