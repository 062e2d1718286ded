"""Losses: numbers by hand and from torch, losses of one's own, and what is refused before any training."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import shoal as library
from shoal.data.source import Decoded
from shoal.data.source import assemble as dataset_of
from shoal.errors import ConfigError
from shoal.losses import CrossEntropy, Huber, Loss, MeanSquared, RowLoss, check_arguments, has_derivative, loss_of
from shoal.setup import assemble, resolve_config

HERE = __name__
VALUES = ("mse", "mae", "huber")


# ---- own losses, named by import path ------------------------------------------------------------------------------


def focal(outputs, targets, *, gamma: float = 2.0):
    logs = outputs.log_softmax(1).gather(1, targets[:, None]).squeeze(1)
    return -((1 - logs.exp()) ** gamma) * logs


def quartic(outputs, targets):
    assert targets.dtype == torch.float32
    return (outputs - targets).pow(4).sum(1)


def anything(outputs, targets, **args):
    return (outputs - targets).pow(2).mean(1) * args.get("scale", 1)


def positional(outputs, targets, delta=1.0):
    return delta * (outputs - targets).abs().sum(1)


def needs(outputs, targets, *, teacher):
    return (outputs - teacher).pow(2).mean(1)


def scalar(outputs, targets):
    return F.cross_entropy(outputs, targets)


def column(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")[:, None]


def number(outputs, targets):
    return float(F.cross_entropy(outputs, targets))


def nothing(outputs, targets):
    return None


def in_place(outputs, targets):
    targets.mul_(0)
    return outputs.neg_().sum(1)


def detached(outputs, targets):
    return focal(outputs.detach(), targets)


def counted(outputs, targets):
    return (outputs.argmax(1) != targets).float()


def infinite(outputs, targets):
    return outputs.square().sum(1) / 0


def steep(outputs, targets):
    return (outputs - outputs.detach()).abs().sqrt().sum(1)  # 0 with an infinite slope


def noisy(outputs, targets):
    return focal(outputs, targets) + 0 * torch.rand(len(targets))


def broken(outputs, targets):
    raise KeyError("weights")


class Margin(Loss):
    """Right minus the best wrong logit, below 1."""

    def __call__(self, module, x, y, *, margin=1.0):
        return self.score(module(x), y, margin=margin)[0].mean()

    def score(self, outputs, y, *, margin=1.0):
        mine = outputs.gather(1, y[:, None]).squeeze(1)
        other = outputs.scatter(1, y[:, None], -math.inf).amax(1)
        return (margin - mine + other).clamp(min=0), (mine > other).float()


class BadScore(Margin):
    def score(self, outputs, y, *, margin=1.0):
        loss, right = super().score(outputs, y, margin=margin)
        return loss.mean(), right.mean()


class Vector(Margin):
    def __call__(self, module, x, y, *, margin=1.0):
        return self.score(module(x), y, margin=margin)[0]


class Smoother(MeanSquared):
    def rows(self, outputs, y):
        return super().rows(outputs, y).sqrt()


class Weighted(RowLoss):
    """Squared errors, the second output three times."""

    learns = "values"

    def rows(self, outputs, y):
        return (outputs - y).square() @ torch.tensor([1.0, 3.0])


def own(name):
    return f"{HERE}:{name}"


# ---- the numbers ---------------------------------------------------------------------------------------------------

OUTPUTS = torch.tensor([[1.0, -2.0], [0.5, 0.0], [-1.0, 4.0]])
TARGETS = torch.tensor([[0.0, -2.0], [-1.5, 0.25], [-1.0, 1.0]])  # errors 1, 0; 2, -1/4; 0, 3


@pytest.mark.parametrize(
    ("kind", "args", "rows"),
    [
        ("mse", {}, [Fraction(1, 2), Fraction(65, 32), Fraction(9, 2)]),
        ("mae", {}, [Fraction(1, 2), Fraction(9, 8), Fraction(3, 2)]),
        # delta 1: 1/2, 0; 3/2, 1/32; 0, 5/2. delta 1/2: 3/8, 0; 7/8, 1/32; 0, 11/8. delta 9: half the squares.
        ("huber", {}, [Fraction(1, 4), Fraction(49, 64), Fraction(5, 4)]),
        ("huber", {"delta": 0.5}, [Fraction(3, 16), Fraction(29, 64), Fraction(11, 16)]),
        ("huber", {"delta": 9.0}, [Fraction(1, 4), Fraction(65, 64), Fraction(9, 4)]),
    ],
)
def test_regressions_by_hand(kind, args, rows):
    loss, wanted = loss_of(kind), torch.tensor([float(r) for r in rows])
    scores, right = loss.score(OUTPUTS, TARGETS, **args)
    torch.testing.assert_close(scores, wanted, rtol=0, atol=0)
    assert right.isnan().all()
    assert float(loss(nn.Identity(), OUTPUTS, TARGETS, **args)) == pytest.approx(float(sum(rows) / 3), rel=1e-6)
    # In bf16 the outputs are what they are, but the loss is a float32 number.
    assert loss.score(OUTPUTS.bfloat16(), TARGETS, **args)[0].dtype == torch.float32


@pytest.mark.parametrize(
    ("kind", "args", "function"),
    [
        ("mse", {}, F.mse_loss),
        ("mae", {}, F.l1_loss),
        ("huber", {"delta": 0.7}, lambda o, y: F.huber_loss(o, y, delta=0.7)),
        ("cross_entropy", {}, F.cross_entropy),
        ("cross_entropy", {"label_smoothing": 0.3}, lambda o, y: F.cross_entropy(o, y, label_smoothing=0.3)),
    ],
)
def test_values_gradients_and_derivatives_are_those_of_torch(kind, args, function):
    torch.manual_seed(0)
    outputs = (2 * torch.randn(2, 9, 4)).requires_grad_()  # two models with nine rows
    y = torch.randn(2, 9, 4) if kind in VALUES else torch.randint(0, 4, (2, 9))
    loss = loss_of(kind)
    rows, slope = loss.derivative(outputs.detach(), y, **args)
    for i in (0, 1):
        wanted = function(outputs[i], y[i])
        torch.testing.assert_close(loss(nn.Identity(), outputs[i], y[i], **args), wanted)
        torch.testing.assert_close(rows[i].mean(), wanted.detach())
        (gradient,) = torch.autograd.grad(wanted, outputs)
        torch.testing.assert_close(slope[i] / 9, gradient[i])


def test_shapes_are_never_broadcast():
    for kind in VALUES:
        for outputs, y in ((torch.ones(3), torch.ones(3, 1)), (torch.ones(3, 2), torch.ones(3, 1))):
            with pytest.raises(ValueError, match="do not fit targets of shape"):
                loss_of(kind).score(outputs, y)
    for delta in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="huber needs a delta above 0"):
            loss_of("huber").score(OUTPUTS, TARGETS, delta=delta)


def test_which_losses_have_their_own_derivative():
    assert all(has_derivative(loss_of(kind)) for kind in (*VALUES, "cross_entropy"))
    assert not any(has_derivative(loss_of(own(name))) for name in ("Smoother", "Margin", "focal", "Weighted"))


def test_a_function_by_rows():
    loss = loss_of(own("focal"))
    logits, y = torch.tensor([[0.0, 0.0], [math.log(3), 0.0], [math.log(3), 0.0]]), torch.tensor([0, 0, 1])
    rows, right = loss.score(logits, y, gamma=1)
    half, quarter = math.log(2) / 2, math.log(4)
    wanted = [half, -math.log(0.75) / 4, quarter * 0.75]
    torch.testing.assert_close(rows, torch.tensor(wanted))
    assert right.tolist() == [1, 1, 0]
    torch.testing.assert_close(loss(nn.Identity(), logits, y, gamma=1), torch.tensor(sum(wanted) / 3))
    values, none = loss_of(own("quartic")).score(OUTPUTS, TARGETS)
    assert values.tolist() == [1, 16 + 1 / 256, 81]
    assert none.isnan().all()
    with pytest.raises(ConfigError, match=r"one's|must give the loss of each row"):
        loss_of(own("scalar")).score(logits, y)


def test_a_loss_that_works_in_place_changes_nothing_that_is_measured_after_it():
    outputs, targets = torch.tensor([[1.0, 2.0], [4.0, 3.0]]), torch.tensor([1, 1])
    kept = outputs.clone(), targets.clone()
    rows, right = loss_of(own("in_place")).score(outputs, targets)
    assert rows.tolist() == [-3.0, -7.0]
    assert right.tolist() == [1.0, 0.0]
    assert torch.equal(outputs, kept[0])
    assert torch.equal(targets, kept[1])


def test_row_losses_work_row_by_row_under_vmap():
    # What a diagonal Fisher needs: the gradient of every row of its own.
    loss, w = loss_of(own("focal")), torch.randn(3, 2)
    x, y = torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1])

    def one(w, x, y):
        return loss(lambda v: v @ w, x[None], y[None])

    every = torch.func.vmap(torch.func.grad(one), (None, 0, 0))(w, x, y)
    each = [torch.func.grad(one)(w, x[i], y[i]) for i in range(5)]
    torch.testing.assert_close(every, torch.stack(each))


# ---- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "args", "message"),
    [
        ("mse", {"delta": 1}, r"local.loss_args.delta: mse has no such argument; it takes none"),
        ("huber", {"dleta": 1}, "huber has no such argument; did you mean 'delta'"),
        (own("focal"), {"gama": 1}, "focal has no such argument; did you mean 'gamma'"),
        (own("positional"), {"delta": 1}, r"takes it as a positional parameter; .* put it after \*"),
        (own("Margin"), {"marign": 1}, "did you mean 'margin'"),
        ("mean_squared", {}, "no loss is called 'mean_squared'"),
        ("torch.nn:MSELoss", {}, r"is a class, but not a shoal.losses.Loss; .* or give a function"),
        ("torch:where", {}, "the parameters of torch:where are not known; wrap it"),
    ],
)
def test_arguments_are_checked(kind, args, message):
    with pytest.raises(ConfigError, match=message):
        check_arguments(kind, args)


def test_arguments_that_fit():
    check_arguments("huber", {"delta": 2})
    check_arguments(own("focal"), {"gamma": 1})
    check_arguments(own("anything"), {"whatever": 1})
    check_arguments(own("Margin"), {"margin": 1})


def waves(outputs=1, rows=80, kind="regression"):
    """A table of three numbers whose values are sums of sines, in units far from 0 and 1; or their signs."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (rows, 3)).astype(np.float32)
    y = np.stack([np.sin((2 + i) * x).sum(1) for i in range(outputs)], 1)
    if kind == "classes":
        return dataset_of(Decoded(x, (y[:, 0] > 0).astype(np.int64), ("low", "high")), "signs", "channel")
    values = (50 * y + 300).astype(np.float32)
    decoded = Decoded(x, np.zeros(rows, dtype=np.int64), ("all",), values=values)
    return dataset_of(decoded, "waves", "channel")


def config(loss, model=None, **parts):
    local = {"lr": 0.1, "loss": loss, "batch_size": 16, **parts.pop("local", {})}
    return {
        "rounds": 3,
        "data": {"kind": "arrays"},
        "stream": {"kind": "static", "clients": 3},
        "model": model or {"kind": "mlp", "hidden": [8]},
        "local": local,
        "execution": {"kind": "serial"},
        **parts,
    }


def setup(loss, data, **parts):
    return assemble(resolve_config(config(loss, **parts)), data)


@pytest.mark.parametrize(
    ("loss", "kind", "message"),
    [
        ("cross_entropy", "regression", "learns class labels, but waves has real values; set local.loss: mse"),
        ("mse", "classes", "mse learns real values, but signs has class labels; set local.loss: cross_entropy"),
        (own("Weighted"), "classes", "Weighted learns real values, but signs has class labels"),
    ],
)
def test_a_loss_must_fit_the_data(loss, kind, message):
    with pytest.raises(ConfigError, match=f"^local.loss: .*{message}"):
        setup(loss, waves(kind=kind))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("scalar", r"a tensor of shape \(2,\) for 2 rows with outputs \(2, 2\) and targets \(2,\); got a tensor of "
         r"shape \(\); leave out the mean \(reduction='none'\)"),
        ("column", r"got a tensor of shape \(2, 1\)$"),
        ("number", "got float; leave out the mean"),
        ("nothing", "got NoneType$"),
        ("detached", r"has no gradient with respect to the model's parameters; .*no detach\(\)"),
        ("counted", "has no gradient"),
        ("infinite", r"scores two training rows with \[inf, inf\]; a loss must be finite"),
        ("steep", "the gradient of .*steep is not finite"),
        ("noisy", "reads torch's global random generator"),
        ("broken", "fails on two rows: KeyError: 'weights'"),
        ("quartic", "fails on two rows: AssertionError"),
        ("BadScore", r"BadScore.score must give loss and accuracy of each row, \(2,\) each; got \[\(\), \(\)\]"),
        ("Vector", r"must give the mean loss of the batch, a scalar tensor; got a tensor of shape \(2,\)"),
    ],
)  # fmt: skip
def test_own_losses_are_tried_before_any_training(loss, message):
    state = torch.get_rng_state()
    with pytest.raises(ConfigError, match=f"^local.loss: .*{message}"):
        setup(own(loss), waves(kind="classes"))
    assert torch.equal(state, torch.get_rng_state())


def test_arguments_are_tried_too():
    with pytest.raises(ConfigError, match=r"local.loss: cross_entropy fails on two rows: .*label_smoothing"):
        setup("cross_entropy", waves(kind="classes"), local={"loss_args": {"label_smoothing": 2}})
    with pytest.raises(ConfigError, match=r"local.loss: huber fails on two rows: .*delta above 0; got -1"):
        setup("huber", waves(), local={"loss_args": {"delta": -1}})
    setup(own("needs"), waves())  # only a learner can give it a tensor


def test_losses_that_fit():
    for name in ("focal", "Margin"):
        setup(own(name), waves(kind="classes"))
        setup(own(name), waves(kind="classes", rows=3))
    for name in ("quartic", "anything", "positional", "Weighted"):
        setup(own(name), waves(2))
    tasks = {"kind": "tasks", "clients": 2, "tasks": 2, "by": "class", "head": "task"}
    images = {"data": {"kind": "digits", "limit": 100, "limit_test": 40}, "method": {"kind": "fedavg", "per": "task"}}
    resolved = resolve_config({**config(own("focal")), **images, "stream": {**tasks, "classes": [[0, 1], [7, 8, 9]]}})
    assemble(resolved)  # the labels of the first two rows may lie outside the head of their task


# ---- whole runs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["mse", "mae", "huber", "quartic"])
def test_a_regression_learns(tmp_path, loss):
    name, data = loss if loss in VALUES else own(loss), waves(2)
    raw = config(name, rounds=12, local={"epochs": 3, "lr": 0.02 if loss == "quartic" else 0.2})
    lines = {}
    for kind, execution in {"serial": {"kind": "serial"}, "two": {"kind": "workers", "workers": 2}}.items():
        result = library.run({**raw, "execution": execution}, out=tmp_path / kind, data=data)
        lines[kind] = (tmp_path / kind / "metrics.jsonl").read_bytes()
    assert lines["serial"] == lines["two"]
    assert result.summary["acc"] is None
    assert not any(result.summary["problems"][kind] for kind in ("rejected", "failed", "skipped"))
    measured = [json.loads(line) for line in lines["two"].splitlines()]
    losses = [line["value"] for line in measured if line.get("metric") == "loss"]
    assert losses[-1] < 0.5 * losses[0]
    assert all(line["value"] is None for line in measured if line.get("metric") == "accuracy")


def test_a_linear_model_takes_the_steps_of_least_squares(tmp_path):
    data, clients, rounds = waves(2), 3, 5
    raw = config(
        "mse",
        {"kind": "mlp", "hidden": []},
        stream={"kind": "static", "clients": clients, "validation": 0},
        rounds=rounds,
        local={"batch_size": 1000, "lr": 0.3},
    )
    resolved = assemble(resolve_config(raw), data)
    library.run(raw, out=tmp_path / "run", data=data)
    from safetensors.numpy import load_file

    state = load_file(tmp_path / "run/model.safetensors")
    # One full batch each, averaged by rows, is a step on all rows: w - lr * d/dw mean over rows and outputs of e^2.
    space, start = resolved.world.models["main"].space, resolved.method.start()["global"].vector
    weight = space.view(start, "classifier.weight").double().numpy()
    w = np.vstack([weight.T, space.view(start, "classifier.bias").double().numpy()])
    raw_x, rows = data.features.double().numpy(), data.train.numpy()
    x = (raw_x[rows] - raw_x[rows].mean(0)) / raw_x[rows].std(0)
    x = np.c_[x, np.ones(len(x))]
    assert data.values is not None
    y = data.values[data.train].double().numpy()
    assert np.allclose(y.mean(0), 0, atol=1e-6)
    assert np.allclose(y.std(0), 1, atol=1e-6)
    for _ in range(rounds):
        w = w - 0.3 * 2 / y.size * x.T @ (x @ w - y)
    np.testing.assert_allclose(state["global/classifier.weight"], w[:-1].T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state["global/classifier.bias"], w[-1], rtol=1e-4, atol=1e-5)
    # The loss that was reported is that of the test rows, by numpy.
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    last = [line["value"] for line in lines if line.get("metric") == "loss"][-1]
    t = data.test.numpy()
    z = np.c_[(raw_x[t] - raw_x[rows].mean(0)) / raw_x[rows].std(0), np.ones(len(t))]
    assert last == pytest.approx(((z @ w - data.values[data.test].double().numpy()) ** 2).mean(), rel=1e-4)


def test_a_function_and_a_class_give_the_same_run(tmp_path):
    data, found = waves(2), []
    for name in ("mse", own("anything")):
        library.run(config(name), out=tmp_path / str(len(found)), data=data)
        lines = [json.loads(line) for line in (tmp_path / str(len(found)) / "metrics.jsonl").read_text().splitlines()]
        found.append([line["value"] for line in lines if line.get("metric") == "loss"])
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_a_function_of_labels_has_an_accuracy(tmp_path):
    raw = config(own("focal"), rounds=15, local={"epochs": 3, "lr": 0.5, "loss_args": {"gamma": 1}})
    result = library.run(raw, out=tmp_path / "run", data=waves(kind="classes", rows=200))
    assert result.summary["acc"] > 0.8  # half the rows are of either class


def test_the_built_in_kinds_are_what_they_say():
    assert isinstance(loss_of("cross_entropy"), CrossEntropy)
    assert isinstance(loss_of("huber"), Huber)
    assert {kind: loss_of(kind).learns for kind in (*VALUES, "cross_entropy", own("focal"))} == {
        **dict.fromkeys(VALUES, "values"),
        "cross_entropy": "classes",
        own("focal"): None,
    }
