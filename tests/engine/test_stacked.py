"""The stacked engine against the serial one: the same requests, the same answers to rounding, whatever the company."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import shoal
from shoal.data.dataset import Dataset
from shoal.engine.base import Engine
from shoal.engine.dense import dense_of
from shoal.engine.serial import Serial
from shoal.engine.stacked import Stacked
from shoal.messages import Assignment, Client, Failure, Job, Outcome, Update
from shoal.models.base import Model
from shoal.models.mlp import mlp
from shoal.randomness import Moment
from shoal.requests import Evaluate, Fit, FitResult, Gradient, Optimizer, Score, Served
from shoal.terms import Hold, Lasso, Pull, Shift

SIZES = (3, 41, 16, 1, 25, 40)
"""Training rows of the clients: below a batch, whole batches, a rest, a single row."""
FEATURES, CLASSES = 6, 4


def table() -> Dataset:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(sum(SIZES) + 8, FEATURES)).astype("float32")
    y = np.concatenate([np.arange(CLASSES), rng.integers(0, CLASSES, len(x) - CLASSES)])
    return shoal.from_arrays(x[:-8], y[:-8], x[-8:], y[-8:])


def clients() -> list[Client]:
    rows = torch.arange(sum(SIZES)).split(list(SIZES))
    return [Client(c, Moment(5, 2), own, own[:0]) for c, own in enumerate(rows)]


def model(**settings: Any) -> Model:
    return Model("main", lambda: mlp((FEATURES,), CLASSES, **{"hidden": (5, 7), **settings}))


def vectors(space: int, count: int = len(SIZES)) -> Tensor:
    return torch.from_numpy(np.random.default_rng(9).normal(size=(count, space))).float().mul_(0.4)


def answers(
    kind: type[Serial], of: Model, data: Dataset, ask: Callable[[Client], Any], who: Sequence[Client] | None = None
) -> list[Any]:
    """What each client's one request gives; a failure is given as its text."""
    engine: Engine = kind({"main": of}, data, torch.device("cpu"))
    found: dict[int, Any] = {}

    def train(given: Assignment, client: Client) -> Any:
        found[client.id] = yield ask(client)
        return Update({}, weight=1.0)

    chosen = clients() if who is None else who
    outcomes = engine.run(train, [Job(Assignment(c.id), c, c.train) for c in chosen])
    for outcome in outcomes:
        if isinstance(outcome.answer, Failure):
            found[outcome.client] = outcome.answer.error
    return [found[c.id] for c in chosen]


def close(a: Any, b: Any, gap: float) -> None:
    if isinstance(a, Tensor):
        assert float((a - b).abs().max()) <= gap * max(1e-3, float(a.abs().max()))
        return
    assert (a.steps, a.rows) == (b.steps, b.rows)
    close(a.vector, b.vector, gap)
    assert b.loss == pytest.approx(a.loss, rel=10 * gap)
    for name in ("squared", "squared_head", "distance", "distance_head", "cosine", "cosine_head"):
        assert getattr(b.drift, name) == pytest.approx(getattr(a.drift, name), rel=100 * gap, abs=1e-9), name


SGD = Optimizer(lr=0.1)
FITS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "three epochs": {"epochs": 3},
    "half an epoch": {"epochs": 0.5},
    "steps that cycle": {"steps": 7},
    "momentum and decay": {"optimizer": Optimizer(lr=0.1, momentum=0.9, weight_decay=0.05)},
    "biases undecayed": {"optimizer": Optimizer(lr=0.1, weight_decay=0.5, undecayed=("classifier.bias",))},
    "clip": {"optimizer": Optimizer(lr=0.1, clip=0.05)},
    "adam": {"optimizer": Optimizer("adam", 1e-3), "epochs": 2},
    "adamw": {"optimizer": Optimizer("adamw", 1e-2, weight_decay=0.1), "epochs": 2},
    "classifier only": {"segments": ("classifier",), "optimizer": Optimizer(lr=0.1, momentum=0.5)},
    "features only": {"segments": ("features",), "optimizer": Optimizer(lr=0.1, clip=0.05)},
    "head only": {"segments": ("head",)},
    "smoothed labels": {"loss_args": {"label_smoothing": 0.2}},
}


@pytest.mark.parametrize("case", FITS)
@pytest.mark.parametrize("settings", [{}, {"activation": "tanh"}, {"activation": "gelu", "hidden": (5,)}])
def test_a_fit_agrees_with_the_reference(case: str, settings: dict[str, Any]) -> None:
    of, data = model(**settings), table()
    starts = vectors(of.space.size)

    def ask(client: Client) -> Fit:
        return Fit(Served("main", starts[client.id]), client.train, **{"optimizer": SGD, "batch": 8, **FITS[case]})

    expected, got = answers(Serial, of, data, ask), answers(Stacked, of, data, ask)
    trained = of.space.slices(FITS[case].get("segments"))
    for c, (a, b) in enumerate(zip(expected, got, strict=True)):
        assert isinstance(a, FitResult)
        close(a, b, 1e-3 if "adam" in case else 1e-5)
        assert not torch.equal(b.vector, starts[c])
        frozen = torch.ones(of.space.size, dtype=torch.bool)
        for s in trained:
            frozen[s] = False
        assert torch.equal(b.vector[frozen], starts[c][frozen])


def terms(client: Client, size: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(client.id)
    a, b, c = (torch.from_numpy(rng.normal(size=size)).float() for _ in range(3))
    return (Shift(0.1 * a), Pull(0.3, b), Pull(c.abs(), a), Hold(5.0 * c.abs(), b), Hold(0.5, c), Lasso(0.01))


@pytest.mark.parametrize("changing", [False, True])
def test_terms_agree_with_the_reference_and_may_differ_in_their_numbers(changing: bool) -> None:
    of, data = model(), table()
    starts = vectors(of.space.size)

    def ask(client: Client) -> Fit:
        own = terms(client, of.space.size)
        if changing:
            own = (*own[:-1], Lasso(0.01 * client.id))
        return Fit(Served("main", starts[client.id]), client.train, SGD, epochs=2, batch=8, terms=own)

    for a, b in zip(answers(Serial, of, data, ask), answers(Stacked, of, data, ask), strict=True):
        close(a, b, 1e-5)


def test_an_anchor_a_shared_start_and_another_origin_of_drift() -> None:
    of, data = model(), table()
    start, anchor, since = vectors(of.space.size, 3)

    def ask(client: Client) -> Fit:
        return Fit(Served("main", start), client.train, SGD, epochs=2, batch=8, anchor=anchor, since=since)

    for a, b in zip(answers(Serial, of, data, ask), answers(Stacked, of, data, ask), strict=True):
        close(a, b, 1e-5)


def test_kept_moments_go_on() -> None:
    of, data = model(), table()
    starts = vectors(of.space.size)
    kept: dict[str, list[dict[str, Tensor]]] = {}
    for kind in (Serial, Stacked):
        slots: list[dict[str, Tensor]] = [{} for _ in SIZES]
        for _ in range(2):
            given = slots

            def ask(client: Client, given: Any = given) -> Fit:
                start = Served("main", starts[client.id])
                return Fit(start, client.train, Optimizer("adam", 1e-3), batch=8, slots=given[client.id])

            slots = [result.slots for result in answers(kind, of, data, ask)]
        kept[kind.__name__] = slots
    for a, b in zip(kept["Serial"], kept["Stacked"], strict=True):
        assert int(a["steps"]) == int(b["steps"]) > 1
        close(a["m"], b["m"], 1e-3)
        close(a["v"], b["v"], 1e-3)


def test_dropout_has_the_masks_of_the_reference() -> None:
    of, data = model(dropout=0.5), table()
    start = vectors(of.space.size)[0]

    def ask(client: Client) -> Fit:
        return Fit(Served("main", start), client.train, SGD, epochs=2, batch=8)

    for a, b in zip(answers(Serial, of, data, ask), answers(Stacked, of, data, ask), strict=True):
        close(a, b, 1e-5)


def test_rates_of_each_client_are_its_own() -> None:
    of, data = model(), table()
    start = vectors(of.space.size)[0]
    for kind in ("sgd", "adam"):

        def ask(client: Client, kind: str = kind) -> Fit:
            n = 1 + client.id
            momentum = 0.1 * n if kind == "sgd" else 0.0
            own = Optimizer(kind, 0.002 * n, momentum, weight_decay=0.01 * n, clip=0.1 * n)
            return Fit(Served("main", start), client.train, own, epochs=2, batch=8)

        for a, b in zip(answers(Serial, of, data, ask), answers(Stacked, of, data, ask), strict=True):
            close(a, b, 1e-3 if kind == "adam" else 1e-5)


@pytest.mark.parametrize("case", ["sgd", "adam", "clip", "classifier only"])
def test_the_company_in_a_stack_changes_no_bit(case: str) -> None:
    of, data = model(dropout=0.3), table()
    starts = vectors(of.space.size)

    def ask(client: Client) -> Fit:
        own = terms(client, of.space.size)
        start = Served("main", starts[client.id])
        return Fit(start, client.train, **{"optimizer": SGD, "batch": 8, "terms": own, **FITS[case]})

    together = answers(Stacked, of, data, ask)
    for some in ([0], [3, 1], [5, 4, 2, 0]):
        who = [clients()[c] for c in some]
        for c, result in zip(some, answers(Stacked, of, data, ask, who), strict=True):
            assert torch.equal(result.vector, together[c].vector)
            assert (result.loss, result.drift) == (together[c].loss, together[c].drift)


@pytest.mark.parametrize("shared", [False, True])
def test_scores_agree_with_the_reference(shared: bool) -> None:
    of, data = model(), table()
    starts = vectors(of.space.size, 8)

    def ask(client: Client) -> Evaluate:
        first = 0 if shared else client.id
        return Evaluate(tuple(Served("main", starts[first + k]) for k in range(3)), client.train)

    expected, got = answers(Serial, of, data, ask), answers(Stacked, of, data, ask)
    for a, b in zip(expected, got, strict=True):
        assert [s.accuracy for s in a] == [s.accuracy for s in b]
        assert [s.loss for s in b] == pytest.approx([s.loss for s in a], rel=1e-5)
        assert all(isinstance(s, Score) and s.rows == a[0].rows for s in b)


@pytest.mark.parametrize("per", ["row", "batch"])
@pytest.mark.parametrize("power", [1, 2])
def test_gradients_agree_with_the_reference(per: str, power: int) -> None:
    of, data = model(), table()
    starts = vectors(of.space.size)

    def ask(client: Client) -> Gradient:
        return Gradient(Served("main", starts[client.id]), client.train, power, per, batch=8)

    for a, b in zip(answers(Serial, of, data, ask), answers(Stacked, of, data, ask), strict=True):
        close(a, b, 1e-5)


@pytest.mark.parametrize("frozen", ["features.layer1", "features.layer2"])
def test_frozen_layers_are_shared_constants(frozen: str) -> None:
    def make() -> nn.Module:
        module = mlp((FEATURES,), CLASSES, hidden=(5, 7))
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(not name.startswith(frozen))
        return module

    of, data = Model("main", make), table()
    starts = vectors(of.space.size)

    def ask(client: Client) -> Fit:
        return Fit(Served("main", starts[client.id]), client.train, SGD, epochs=2, batch=8)

    dense = dense_of(of)
    assert dense is not None
    assert len(dense.frozen) == (frozen == "features.layer1")
    assert sum(isinstance(layer.weight, str) for layer in dense.layers) == 2
    for a, b in zip(answers(Serial, of, data, ask), answers(Stacked, of, data, ask), strict=True):
        close(a, b, 1e-5)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Linear(FEATURES, FEATURES)
        self.classifier = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.classifier(self.features(self.features(x)).relu())
        return result


def test_what_is_no_chain_of_layers_is_left_to_the_reference_and_named() -> None:
    of, data = Model("main", Twice), table()
    starts = vectors(of.space.size)
    engine = Stacked({"main": of, "plain": model()}, data, torch.device("cpu"))
    assert sorted(engine.chains) == ["plain"]
    assert "main by the reference kernel" in engine.describe()

    def ask(client: Client) -> Fit:
        return Fit(Served("main", starts[client.id]), client.train, SGD, batch=8)

    for a, b in zip(answers(Serial, of, data, ask), answers(Stacked, of, data, ask), strict=True):
        assert torch.equal(a.vector, b.vector)


def test_a_client_that_fails_fails_alone() -> None:
    of, data = model(), table()
    starts = vectors(of.space.size)

    def ask(client: Client) -> Fit:
        if client.id == 1:
            raise RuntimeError("no power")
        start = starts[client.id] if client.id != 2 else starts[client.id][:-1]
        return Fit(Served("main", start), client.train, SGD, batch=8)

    def nan(client: Client) -> Fit:
        start = starts[client.id] if client.id != 2 else starts[client.id] * float("nan")
        return Fit(Served("main", start), client.train, SGD, batch=8)

    expected, got = answers(Serial, of, data, ask), answers(Stacked, of, data, ask)
    assert got[1] == expected[1]
    assert "no power" in got[1]
    assert got[2] == expected[2]
    assert "parameters" in got[2]
    close(expected[4], got[4], 1e-5)
    broken = answers(Stacked, of, data, nan)
    assert bool(broken[2].vector.isnan().any())
    assert all(bool(broken[c].vector.isfinite().all()) for c in (0, 1, 3, 4, 5))


def test_a_label_that_the_head_lacks_is_the_fault_of_its_client_alone() -> None:
    of, data = model(), table()
    start = vectors(of.space.size)[0]
    targets = data.labels.clone()
    targets[clients()[1].train[5]] = -1
    data = dataclasses.replace(data, targets=targets)

    def ask(client: Client) -> Fit:
        return Fit(Served("main", start), client.train, SGD, batch=8)

    expected, got = answers(Serial, of, data, ask), answers(Stacked, of, data, ask)
    assert isinstance(got[1], str)
    assert got[1] == expected[1]
    for c in (0, 2, 3, 4, 5):
        close(expected[c], got[c], 1e-5)


def test_a_crash_that_was_asked_for_is_a_failure() -> None:
    of, data = model(), table()
    start = vectors(of.space.size)[0]

    def train(given: Assignment, client: Client) -> Any:
        yield Fit(Served("main", start), client.train, SGD, batch=8)
        return Update({}, weight=1.0)

    jobs = [Job(Assignment(c.id), c, c.train, crash=c.id == 1) for c in clients()]
    outcomes: list[Outcome] = Stacked({"main": of}, data, torch.device("cpu")).run(train, jobs)
    failed = [isinstance(outcome.answer, Failure) for outcome in outcomes]
    assert failed == [c.id == 1 for c in clients()]
    assert len(outcomes[0].fits) == 1


@pytest.mark.parametrize("kind", ["mse", "mae", "huber"])
def test_a_regression_is_stacked(kind: str) -> None:
    of, data = model(), table()
    rng = np.random.default_rng(4)
    values = torch.from_numpy(rng.normal(size=(len(data), CLASSES))).float()
    data = dataclasses.replace(data, values=values)
    start = vectors(of.space.size)[0]

    def ask(client: Client) -> Fit:
        return Fit(Served("main", start), client.train, SGD, epochs=2, batch=8, loss=kind)

    for a, b in zip(answers(Serial, of, data, ask), answers(Stacked, of, data, ask), strict=True):
        close(a, b, 1e-5)
        assert not torch.equal(b.vector, start)
