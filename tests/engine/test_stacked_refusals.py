"""What a stack must not do: models, requests and terms that look stackable and are not, and failures in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import shoal
from shoal.engine.dense import dense_of
from shoal.engine.program import Running
from shoal.engine.serial import Serial
from shoal.engine.stacked import Stacked, answer_all
from shoal.messages import Assignment, Client, Failure, Job, Outcome, Update
from shoal.models.base import Model
from shoal.models.dropout import Dropout
from shoal.randomness import Moment
from shoal.requests import Evaluate, Fit, FitResult, Optimizer, Served
from shoal.terms import Hold

ROWS, FEATURES, CLASSES, CLIENTS = 20, 4, 3, 3


def table() -> Any:
    rng = np.random.default_rng(1)
    n = ROWS * CLIENTS
    x, y = rng.normal(size=(n + 6, FEATURES)).astype("float32"), np.arange(n + 6) % CLASSES
    return shoal.from_arrays(x[:n], y[:n], x[n:], y[n:])


def client(c: int) -> Client:
    return Client(c, Moment(2, 1), torch.arange(c * ROWS, (c + 1) * ROWS), torch.arange(0))


def net(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.ReLU(), *between, nn.Linear(6, CLASSES))


def outcomes(engine: Serial, ask: Callable[[Client], Any]) -> list[Outcome]:
    def train(given: Assignment, who: Client) -> Any:
        yield from ask(who)
        return Update({}, weight=1.0)

    return engine.run(train, [Job(Assignment(c), client(c), torch.arange(2)) for c in range(CLIENTS)])


def fits(engine: Serial, ask: Callable[[Client], Fit]) -> list[Any]:
    """The vectors that the clients' fits gave, or their failures."""
    found: dict[int, Any] = {}

    def asked(who: Client) -> Any:
        result = yield ask(who)
        found[who.id] = result.vector

    for outcome in outcomes(engine, asked):
        if isinstance(outcome.answer, Failure):
            found[outcome.client] = outcome.answer.error
    return [found[c] for c in range(CLIENTS)]


def engine(kind: type[Serial], of: Model, **settings: Any) -> Any:
    return kind({"main": of}, table(), torch.device("cpu"), **settings)


def start(of: Model) -> Served:
    rng = np.random.default_rng(3)
    return Served("main", torch.from_numpy(rng.normal(size=of.space.size)).float())


def agree(of: Model, ask: Callable[[Client], Fit]) -> None:
    for a, b in zip(fits(engine(Serial, of), ask), fits(engine(Stacked, of), ask), strict=True):
        if isinstance(a, str):
            assert a == b
        else:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def with_forward() -> nn.Module:
    module = net()
    module.forward = lambda x: x  # type: ignore[method-assign]
    return module


def with_buffer() -> nn.Module:
    module = net()
    module[0].register_buffer("seen", torch.zeros(3))
    return module


def with_hook() -> nn.Module:
    module = net()
    module[0].register_full_backward_pre_hook(lambda m, g: None)
    return module


def with_dropout_twice() -> nn.Module:
    dropout = Dropout(0.5)
    return nn.Sequential(nn.Linear(FEATURES, 6), dropout, nn.Linear(6, 6), dropout, nn.Linear(6, CLASSES))


def with_frozen_double() -> nn.Module:
    module = net()
    module[0].double().requires_grad_(False)
    return module


def with_frozen_bias() -> nn.Module:
    module = net()
    module[0].bias.requires_grad_(False)  # type: ignore[union-attr]
    return module


def with_parametrization() -> nn.Module:
    return net(nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)))


class Reversed(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = super().forward(x.flip(1))
        return result


@pytest.mark.parametrize(
    "make",
    [
        with_forward,
        with_buffer,
        with_hook,
        with_dropout_twice,
        with_frozen_double,
        with_frozen_bias,
        with_parametrization,
        lambda: Reversed(*net()),
        lambda: net(nn.ELU()),
        lambda: net(nn.Flatten()),
    ],
)
def test_a_module_that_does_more_than_its_layers_is_left_to_the_reference(make: Callable[[], nn.Module]) -> None:
    assert dense_of(Model("main", make)) is None
    assert dense_of(Model("main", net)) is not None


def test_the_dropout_of_a_frozen_part_drops_nothing() -> None:
    def make() -> nn.Module:
        frozen = nn.Sequential(nn.Linear(FEATURES, 6), nn.ReLU(), Dropout(0.5)).requires_grad_(False)
        return nn.Sequential(frozen, nn.Linear(6, 5), Dropout(0.4), nn.Linear(5, CLASSES))

    of = Model("main", make)
    assert dense_of(of) is not None
    agree(of, lambda c: Fit(start(of), c.train, batch=8))


def test_models_that_drop_differently_or_have_other_segments_are_told_apart() -> None:
    def signature(of: Model) -> Any:
        dense = dense_of(of)
        assert dense is not None
        return dense.signature

    assert signature(Model("a", lambda: net(Dropout(0.1)))) == signature(Model("b", lambda: net(Dropout(0.1))))
    assert signature(Model("a", lambda: net(Dropout(0.1)))) != signature(Model("a", lambda: net(Dropout(0.2))))
    one = Model("a", net, {"first": ["0.weight"], "rest": ["0.bias", "2"]})
    other = Model("a", net, {"first": ["0"], "rest": ["2"]})
    assert one.space.slots == other.space.slots
    assert signature(one) != signature(other)


def test_a_purpose_that_is_used_twice_is_an_error_for_its_client_alone() -> None:
    of = Model("main", net)

    def ask(who: Client) -> Any:
        yield Fit(start(of), who.train, batch=8)
        yield Fit(start(of), who.train, batch=8, purpose="fit" if who.id == 1 else "again")

    found = outcomes(engine(Stacked, of), ask)
    assert [len(outcome.fits) for outcome in found] == [2, 1, 2]
    assert isinstance(found[1].answer, Failure)
    assert "used twice" in found[1].answer.error


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch": 0},
        {"loss": "no such loss"},
        {"segments": ("nowhere",)},
        {"loss_args": {"colour": 1.0}},
        {"optimizer": Optimizer("sgd", lr="fast")},  # type: ignore[arg-type]
        {"optimizer": Optimizer("sgd", weight_decay=0.1, undecayed=("nowhere",))},
        {"slots": {"steps": torch.zeros(2)}},
    ],
)
def test_a_request_that_is_wrong_is_the_fault_of_its_client_alone(wrong: dict[str, Any]) -> None:
    of = Model("main", net)

    def ask(who: Client) -> Fit:
        return Fit(start(of), who.train, **{"batch": 8, **(wrong if who.id == 1 else {})})

    expected, got = fits(engine(Serial, of), ask), fits(engine(Stacked, of), ask)
    assert isinstance(expected[1], str)
    assert got[1] == expected[1]
    for c in (0, 2):
        torch.testing.assert_close(got[c], expected[c], rtol=1e-4, atol=1e-5)


def test_sloppy_requests_are_done_all_the_same() -> None:
    of = Model("main", net)
    agree(of, lambda c: Fit(start(of), c.train, batch=8, segments=["classifier"]))  # type: ignore[arg-type]
    agree(of, lambda c: Fit(start(of), c.train.int(), batch=8))
    agree(of, lambda c: Fit(Served("main", start(of).vector.double()), c.train, batch=8))
    agree(of, lambda c: Fit(start(of), c.train, Optimizer("adam", betas=[0.8, 0.9]), batch=8))  # type: ignore[arg-type]


@dataclasses.dataclass
class Fading:
    """A term with a memory: it is weaker in every step."""

    strength: float

    def gradient(self, w: Tensor, g: Tensor, s: slice) -> None:
        g.add_(w, alpha=self.strength)
        self.strength /= 2

    def after(self, w: Tensor, s: slice, lr: float) -> None:
        pass


@dataclasses.dataclass(frozen=True)
class Above:
    """A term that asks for its number's sign, as one can ask a number alone."""

    strength: float

    def gradient(self, w: Tensor, g: Tensor, s: slice) -> None:
        if self.strength > 0.5:
            g.add_(w, alpha=self.strength)

    def after(self, w: Tensor, s: slice, lr: float) -> None:
        if lr > 0.1:
            w.mul_(0.9)


def test_own_terms_may_use_their_numbers_as_numbers() -> None:
    of = Model("main", net)

    def ask(who: Client, term: Any) -> Fit:
        return Fit(start(of), who.train, Optimizer(lr=0.05 + 0.1 * who.id), batch=8, terms=(term,))

    agree(of, lambda c: ask(c, Fading(0.5 + c.id)))
    agree(of, lambda c: ask(c, Above(0.3 * c.id)))
    agree(of, lambda c: ask(c, Hold(0.3 * c.id, start(of).vector * 2)))


def own_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Weighs rows by how frequent their labels are in the batch."""
    weights = torch.bincount(targets, minlength=CLASSES).float().reciprocal()[targets]
    return nn.functional.cross_entropy(outputs, targets, reduction="none") * weights


def test_a_loss_of_ones_own_may_look_across_its_rows() -> None:
    of = Model("main", net)

    def scores(kind: type[Serial]) -> list[float]:
        found: dict[int, float] = {}

        def ask(who: Client) -> Any:
            (score,) = yield Evaluate((start(of),), who.train[: 5 + who.id])
            found[who.id] = score.loss

        outcomes(engine(kind, of, loss=f"{__name__}:own_loss"), ask)
        return [found[c] for c in range(CLIENTS)]

    assert scores(Stacked) == scores(Serial)


def test_padding_brings_in_no_row_that_the_step_does_not_take() -> None:
    of, data = Model("main", net), table()
    features = data.features.clone()
    rows = client(0).train
    features[rows[0]] = float("inf")
    data = dataclasses.replace(data, features=features)
    purpose = next(
        name for name in map(str, range(999)) if 0 not in Moment(2, 1).random(name, 0).permutation(ROWS)[:14]
    )
    found: dict[str, FitResult] = {}

    def train_on(name: str) -> Any:
        def program(given: Assignment, who: Client) -> Any:
            found[name] = yield Fit(start(of), rows, batch=7, steps=2, purpose=purpose)
            return Update({}, weight=1.0)

        return program

    for name, kind in (("serial", Serial), ("stacked", Stacked)):
        job = Job(Assignment(0), client(0), torch.arange(2))
        kind({"main": of}, data, torch.device("cpu")).run(train_on(name), [job])
    assert bool(found["serial"].vector.isfinite().all())
    torch.testing.assert_close(found["stacked"].vector, found["serial"].vector, rtol=1e-4, atol=1e-5)


def test_what_a_common_stack_cannot_do_is_left_to_the_engine_that_asked() -> None:
    one, other = Model("main", net), Model("task", net)
    data = table()
    targets = data.labels.clone()
    targets[3] = -1
    data = dataclasses.replace(data, targets=targets)
    engines = [Stacked({model.name: model}, data, torch.device("cpu")) for model in (one, other)]
    found: dict[str, Any] = {}

    def train(given: Assignment, who: Client) -> Any:
        name = "main" if who.id == 0 else "task"
        found[name] = yield Fit(Served(name, start(one).vector), who.train, batch=8)
        return Update({}, weight=1.0)

    programs = [Running(train, Job(Assignment(c), client(c), torch.arange(2))) for c in (0, 1)]
    assert engines[0].key(programs[0]) == engines[1].key(programs[1])
    answer_all(list(zip(engines, programs, strict=True)), {})
    assert isinstance(programs[0].outcome().answer, Failure)  # the label that no head has
    assert isinstance(programs[1].outcome().answer, Update)
    assert isinstance(found["task"], FitResult)
