"""From ``model`` settings to models. The classes below are users' own modules, named by import path."""

from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from shoal.errors import ConfigError
from shoal.models.factory import build_models, resolve_model
from shoal.models.mlp import mlp
from shoal.parameters import ParameterSpace
from shoal.randomness import generator

HERE = __name__
COMMON = {"segments": None, "freeze": [], "weights": None, "weights_sha256": None}


class Wild(nn.Module):
    """As modules in the wild are: positional parameters, a class and a tuple as defaults."""

    def __init__(
        self,
        shape,
        units: int = 6,
        sizes: tuple[int, ...] = (2, 3),
        outputs=10,
        act=nn.Tanh,
        gain: float = None,  # noqa: RUF013
    ):
        super().__init__()
        assert isinstance(sizes, tuple)
        self.settings = (units, sizes, act, gain)
        self.body = nn.Linear(shape[0], units)
        self.act = act()
        self.top = nn.Linear(units, outputs)

    def forward(self, x):
        return self.top(self.act(self.body(x)))


class Fixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.top = nn.Linear(4, 3)

    def forward(self, x):
        return self.top(x)


class Noisy(Fixed):
    def forward(self, x):
        return self.top(F.dropout(x, 0.5, self.training))


def keywords(shape, outputs, *, kind_of: Literal["a", "b"] = "a", depth: int = 1):
    return mlp(shape, outputs, hidden=[3] * depth)


def anything(outputs, **options):
    return nn.Linear(4, outputs, **options)


def need(shape, outputs, width):
    return mlp(shape, outputs, hidden=[width])


def no_module(outputs):
    return "net"


def by_position(width, /):
    return nn.Linear(width, 3)


def unknown_hint(outputs, bias: "Nowhere" = True):  # noqa: F821
    return nn.Linear(4, outputs, bias=bias)


def own(name, **settings):
    return {"kind": f"{HERE}:{name}", **settings}


def build(settings, shape=(4,), outputs=3, task_outputs=(), seed=0):
    return build_models(resolve_model(settings), shape, outputs, task_outputs, seed)


# ---- known kinds ---------------------------------------------------------------------------------------------------


def test_resolving_fills_in_every_default():
    full = {"kind": "mlp", "hidden": [64], "activation": "relu", "dropout": 0.0, **COMMON}
    assert resolve_model("mlp") == resolve_model({"kind": "mlp"}) == resolve_model(full) == full
    given = {"kind": "cnn", "width": 2, "segments": {"all": [""]}, "freeze": ["features.conv1"]}
    layers = {"channels": [6, 16], "kernel": 5, "stride": 1, "padding": 0, "pool": 2, "hidden": [120, 84]}
    assert resolve_model(given) == {**COMMON, **given, **layers, "width": 2.0}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "mlp", "hiden": [3]}, "model.hiden: no such setting; did you mean 'hidden'"),
        ({"kind": "mlp", "frezze": [3]}, "model.frezze: no such setting; did you mean 'freeze'"),
        ({"kind": "mlp", "hidden": [3, 0]}, "model.hidden.1: .*greater than or equal to 1; got 0"),
        ({"kind": "mlp", "dropout": 1}, "model.dropout: .*less than 1"),
        ({"kind": "cnn", "width": 0}, "model.width: .*greater than 0"),
        ({"kind": "cnn", "freeze": "features"}, "model.freeze: .*list"),
        ({"kind": "cnn", "segments": {"a": "features"}}, "model.segments.a: .*list"),
        ({"kind": "nlp"}, "no model is called 'nlp'; did you mean 'mlp'"),
        ({"hidden": [3]}, "model: needs a mapping with a 'kind'"),
        ([], "model: needs a mapping with a 'kind'"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ConfigError, match=message):
        resolve_model(settings)


def test_one_head_for_all():
    models, tasks = build({"kind": "mlp", "hidden": [5]}, outputs=7)
    assert list(models) == ["main"]
    assert models["main"].space.size == 25 + 42
    assert tasks == ()


@pytest.mark.parametrize(
    ("task_outputs", "names", "main"),
    [
        ([5, 5], ("main", "main"), 5),
        ([5, 3, 5], ("main", "main-3", "main"), 5),
        ([3, 7], ("main-3", "main"), 7),
        ([2, 2, 9, 4], ("main", "main", "main-9", "main-4"), 2),
    ],
)
def test_heads_of_tasks(task_outputs, names, main):
    models, tasks = build({"kind": "mlp", "hidden": []}, outputs=99, task_outputs=task_outputs)
    assert tasks == names
    assert models["main"].space.size == 5 * main
    assert {name: m.space.size for name, m in models.items()} == {
        n: 5 * o for n, o in zip(names, task_outputs, strict=True)
    }
    assert all(name == model.name for name, model in models.items())


def test_frozen_parameters_are_constants_and_the_same_in_all_heads():
    models, _ = build({"kind": "mlp", "hidden": [5, 6], "freeze": ["features.layer1"]}, task_outputs=[2, 2, 3])
    assert models["main"].space.names[0] == "features.layer2.weight"
    assert models["main"].space.size == 36 + 14
    main, other = models["main"].build(), models["main-3"].build()
    assert main.features.layer1.weight is other.features.layer1.weight
    assert not main.features.layer1.weight.requires_grad
    again, _ = build({"kind": "mlp", "hidden": [5, 6], "freeze": ["features.layer1"]})
    assert torch.equal(again["main"].build().features.layer1.weight, main.features.layer1.weight)


def test_own_segments():
    models, _ = build({"kind": "mlp", "segments": {"low": ["features"], "high": ["classifier"]}})
    assert list(models["main"].space.segments) == ["low", "high"]


@pytest.mark.parametrize(
    ("settings", "shape", "message"),
    [
        ({"kind": "cnn"}, (3, 8, 8), "at least 16x16; got 8x8"),
        ({"kind": "lenet"}, (4,), "takes images"),
        ({"kind": "resnet20", "norm": "group", "groups": 3}, (1, 8, 8), "groups that divide the width"),
        (
            {"kind": "mlp", "freeze": ["featurse"]},
            (4,),
            "model: freeze: no parameter lies under 'featurse'; did you mean 'features'",
        ),
        ({"kind": "mlp", "freeze": ["features", "classifier"]}, (4,), "no trainable parameter"),
        ({"kind": "mlp", "segments": {"a": ["features"]}}, (4,), "leave out"),
    ],
)
def test_what_does_not_fit_is_a_configuration_error(settings, shape, message):
    with pytest.raises(ConfigError, match=message):
        build(settings, shape)


def test_a_head_needs_an_output():
    with pytest.raises(ConfigError, match="at least one output; got 0"):
        build("mlp", outputs=0)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("mlp", (3, 4, 4)),
        ("cnn", (1, 28, 28)),
        ("lenet", (3, 9, 9)),
        ("resnet20", (1, 8, 8)),
        ("resnet18", (3, 8, 8)),
        ({"kind": "vgg11", "hidden": [8]}, (1, 32, 32)),
    ],
)
def test_every_known_model_ends_in_a_linear_head(kind, shape):
    models, _ = build(kind, shape, outputs=3)
    model = models["main"]
    module, space = model.build(), model.space
    last = [m for m in module.modules() if isinstance(m, nn.Linear)][-1]
    assert space.head == slice(space.size - 3 * (last.in_features + 1), space.size)
    assert list(space.segments) == ["features", "classifier"]
    assert space.segments["classifier"].stop == space.size
    vector = model.initial(generator(0, "x")).vector
    assert torch.equal(space.view(vector, space.names[-2]), vector[space.head][:-3].view(3, last.in_features))


# ---- own modules ---------------------------------------------------------------------------------------------------


def test_an_own_module_takes_all_its_named_parameters_as_settings():
    full = {**own("Wild"), "units": 6, "sizes": [2, 3], "gain": None, **COMMON}
    assert resolve_model(own("Wild")) == resolve_model(full) == full
    assert build(own("Wild"))[0]["main"].build().settings == (6, (2, 3), nn.Tanh, None)
    settings = resolve_model(own("Wild", units="8", sizes=[4], gain=2, freeze=["body"]))
    assert settings == {**full, "units": 8, "sizes": [4], "gain": 2, "freeze": ["body"]}
    models, _ = build_models(settings, (4,), 3, [3, 5], 0)
    assert models["main"].build().settings == (8, (4,), nn.Tanh, 2.0)
    assert models["main"].space.size == 9 * 5
    assert models["main-3"].space.size == 9 * 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (own("Wild", unit=3), "model.unit: no such setting; did you mean 'units'"),
        (own("Wild", units="many"), "model.units: .*valid integer.*got 'many'"),
        (own("Wild", sizes=[1, "x"]), "model.sizes.1: .*got 'x'"),
        (own("Wild", outputs=3), "model.outputs: comes from the data and the stream"),
        (own("need"), f"model.width: this setting is required by {HERE}:need"),
        (own("by_position"), "model.width: .* by position only"),
        (own("Nothing"), "cannot import"),
        (own("HERE"), "not a class or function"),
        (own("keywords", kind_of="c"), "model.kind_of: .*'a' or 'b'"),
        (own("keywords", dept=3), "model.dept: no such setting; did you mean 'depth'"),
    ],
)
def test_wrong_settings_of_own_modules(settings, message):
    with pytest.raises(ConfigError, match=message):
        resolve_model(settings)


def test_own_functions():
    assert build(own("keywords", depth=2))[0]["main"].space.size == 15 + 12 + 12
    assert build(own("need", width=2))[0]["main"].space.size == 10 + 9
    assert resolve_model(own("anything", bias=False))["bias"] is False
    assert build(own("anything", bias=False))[0]["main"].space.size == 12
    assert build(own("unknown_hint", bias=False))[0]["main"].space.size == 12
    with pytest.raises(ConfigError, match=r"anything cannot be built: .*unexpected keyword argument 'biass'"):
        build(own("anything", biass=False))


def test_a_module_that_is_told_nothing():
    assert build(own("Fixed"))[0]["main"].space.size == 15
    with pytest.raises(ConfigError, match=r"outputs of shape \(2, 3\) for 2 rows; the stream needs \(2, 10\)"):
        build(own("Fixed"), outputs=10)
    with pytest.raises(ConfigError, match=r"fails on inputs of shape \(2, 5\)"):
        build(own("Fixed"), shape=(5,))
    with pytest.raises(ConfigError, match=r"gives a str, not a torch\.nn\.Module"):
        build(own("no_module"))


def test_randomness_from_the_global_generator_is_found():
    before = torch.get_rng_state()
    with pytest.raises(ConfigError, match="reads torch's global random generator while training"):
        build(own("Noisy"))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_trial_run_leaves_no_trace():
    models, _ = build({"kind": "resnet20", "width": 2}, (1, 8, 8))
    module = models["main"].build()
    assert int(module.features.norm.num_batches_tracked) == 0
    assert not module.features.norm.running_mean.any()
    assert ParameterSpace(module).size == models["main"].space.size
