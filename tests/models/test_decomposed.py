"""The decomposed network: its weights, its gradients, its segments, and which units are sent."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from shoal.errors import ConfigError
from shoal.models.base import Model
from shoal.models.decomposed import SEGMENTS, Factored, FactoredConv2d, FactoredLinear, Layout
from shoal.models.factory import build_models, resolve_model
from shoal.parameters import ParameterSpace

NETWORKS = [{"kind": "lenet", "width": 0.2}, {"kind": "cnn"}, {"kind": "resnet20", "width": 4}]


def built(network: dict[str, Any], parts: int = 3, outputs: int = 4) -> Model:
    settings = resolve_model({"kind": "decomposed", "network": network, "parts": parts})
    return build_models(settings, (3, 32, 32), outputs, (), 0)[0]["main"]


def factored(module: nn.Module) -> dict[str, Factored]:
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, Factored)}


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network["kind"])
def test_with_open_masks_and_no_parts_it_is_the_network(network: dict[str, Any]) -> None:
    model = built(network)
    plain = build_models(resolve_model(network), (3, 32, 32), 4, (), 0)[0]["main"].build()
    module = model.build()
    layers = factored(module)
    kinds = (nn.Conv2d, nn.Linear)
    weighed = [name for name, layer in plain.named_modules() if isinstance(layer, kinds)]
    assert list(layers) == [f"network.{name}" for name in weighed[:-1]]
    with torch.no_grad():
        for name, value in plain.named_parameters():
            path, _, leaf = name.rpartition(".")
            layer = layers.get(f"network.{path}")
            if layer is None or leaf == "bias":
                module.get_parameter(f"network.{name}").copy_(value)
            else:
                flat = value.permute(0, 2, 3, 1) if value.dim() == 4 else value
                layer.base.copy_(flat.flatten(1))
                layer.mask.fill_(100.0)
                layer.adaptive.zero_()
    x = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(module(x), plain(x), rtol=1e-4, atol=1e-5)


def spread(layer: Factored, pool: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Random numbers everywhere in the layer, also in its pool."""
    rng = np.random.default_rng(seed)
    shapes = {name: tuple(getattr(layer, name).shape) for name in ("base", "mask", "adaptive", "attention")}
    values = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    values["pool"] = rng.normal(size=(pool, *shapes["base"]))
    with torch.no_grad():
        for name in shapes:
            getattr(layer, name).copy_(torch.from_numpy(values[name]))
    layer.pool = torch.from_numpy(values["pool"]).to(layer.base.dtype)
    return values


def theta(v: dict[str, np.ndarray]) -> np.ndarray:
    """Equation 2."""
    borrowed = sum((v["attention"][i] * part for i, part in enumerate(v["pool"])), np.zeros_like(v["base"]))
    return np.asarray(v["base"] / (1 + np.exp(-v["mask"]))[:, None] + v["adaptive"] + borrowed)


@pytest.mark.parametrize("pool", [0, 1, 3])
def test_the_weights_are_those_of_equation_2(pool: int) -> None:
    dense = FactoredLinear(nn.Linear(5, 4), 3).double()
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(6, 5)))
    expected = x.numpy() @ theta(spread(dense, pool)).T + dense.bias.detach().numpy()
    np.testing.assert_allclose(dense(x).detach().numpy(), expected)
    conv = FactoredConv2d(nn.Conv2d(2, 3, (2, 3), stride=2, padding=1, bias=False), 3).double()
    weight = theta(spread(conv, pool)).reshape(3, 2, 3, 2).transpose(0, 3, 1, 2)
    x = torch.from_numpy(np.random.default_rng(2).normal(size=(2, 2, 5, 6)))
    np.testing.assert_allclose(
        conv(x).detach().numpy(), F.conv2d(x, torch.from_numpy(weight.copy()), None, 2, 1).numpy(), atol=1e-12
    )


def test_gradients_are_those_of_central_differences() -> None:
    conv = FactoredConv2d(nn.Conv2d(2, 3, 3), 3).double()
    spread(conv, 2)
    x = torch.from_numpy(np.random.default_rng(3).normal(size=(2, 2, 4, 4)))
    wanted = torch.from_numpy(np.random.default_rng(4).normal(size=(2, 3, 2, 2)))

    def loss() -> torch.Tensor:
        return (torch.tanh(conv(x)) * wanted).sum()

    loss().backward()
    for name, parameter in conv.named_parameters():
        slopes = torch.zeros_like(parameter)
        for i in range(parameter.numel()):
            found = []
            for move in (1e-6, -1e-6):
                with torch.no_grad():
                    parameter.view(-1)[i] += move
                    found.append(loss())
                    parameter.view(-1)[i] -= move
            slopes.view(-1)[i] = (found[0] - found[1]) / 2e-6
        torch.testing.assert_close(parameter.grad, slopes, rtol=1e-6, atol=1e-7, msg=name)
    assert conv.attention.grad[2] == 0  # no part stands in its place


def test_how_it_begins() -> None:
    model = built({"kind": "lenet"}, parts=400)
    for layer in factored(model.build()).values():
        mask = torch.sigmoid(layer.mask)
        assert 0 < mask.min() <= mask.max() < 1
        torch.testing.assert_close(layer.adaptive, layer.base / 3)
        # Variance 1 / n, cut at two deviations of the normal distribution that is cut.
        edge = 2 / 0.87962566103423978
        assert layer.attention.abs().max() <= edge / math.sqrt(400)
        assert float(layer.attention.detach().std()) == pytest.approx(1 / 20, rel=0.15)
    big = factored(model.build())["network.classifier.fc1"].mask
    assert float(big.detach().std()) == pytest.approx(1 / math.sqrt(len(big)), rel=0.1)


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network["kind"])
def test_segments_and_layout(network: dict[str, Any]) -> None:
    model = built(network)
    space, layout, layers = model.space, Layout.of(model.space), factored(model.build())
    assert tuple(space.segments) == SEGMENTS
    assert layout.layers == tuple(layers)
    assert (layout.units, layout.weights) == tuple(zip(*(layer.base.shape for layer in layers.values()), strict=True))
    units = torch.arange(sum(layout.units))
    assert torch.equal(layout.under(layout.over(units)), units)
    # `over` puts a unit's number at the unit's own weights: each layer's row i has one number.
    whole = torch.zeros(space.size)
    whole[space.segments["base"]] = layout.over(units).float()
    rows = torch.cat([space.view(whole, f"{name}.base")[:, 0] for name in layers])
    assert torch.equal(rows, units.float())
    assert all((view == view[:, :1]).all() for view in (space.view(whole, f"{name}.base") for name in layers))


def test_a_mixture_is_what_the_layers_make_of_the_pool() -> None:
    model = built({"kind": "lenet", "width": 0.2})
    space, layout, module = model.space, Layout.of(model.space), model.build()
    rng = torch.Generator().manual_seed(0)
    parts = torch.randn(2, space.size_of(("base",)), generator=rng)
    before = {name: layer.theta() for name, layer in factored(module).items()}
    for name, value in layout.pools(parts).items():
        path, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(path), leaf, value)
    whole = torch.zeros(space.size)
    attention = space.read(module)[space.segments["attention"]]
    whole[space.segments["adaptive"]] = layout.mixed(attention, parts)
    for name, layer in factored(module).items():
        added = space.view(whole, f"{name}.adaptive")
        torch.testing.assert_close(layer.theta(), before[name] + added, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sparsity", [0.3, 0.5, 0.8])
def test_so_many_units_of_each_layer_are_left_out(sparsity: float) -> None:
    layout = Layout.of(built({"kind": "lenet", "width": 0.5}).space)
    assert layout.units == (10, 25, 400, 250)
    mask = torch.randn(685, generator=torch.Generator().manual_seed(0))
    kept = layout.kept(mask, sparsity)
    begin = 0
    for count in layout.units:
        magnitudes, here = mask[begin : begin + count].abs(), kept[begin : begin + count]
        assert int((~here).sum()) == math.floor(sparsity * count) + 1
        assert magnitudes[~here].max() < magnitudes[here].min()
        begin += count
    assert layout.kept(mask, 0.0).all()


def test_what_is_frozen_stays_as_it_is() -> None:
    frozen = {"kind": "resnet20", "width": 4, "freeze": ["features.conv", "features.norm", "features.stage1"]}
    model = built(frozen)
    module = model.build()
    assert all("stage2" in name or "stage3" in name for name in factored(module))
    assert isinstance(module.network.features.stage1[0].conv1, nn.Conv2d)
    assert not any("stage1" in name for name in model.space.names)


def test_paths_beside_a_frozen_backbone_are_factored() -> None:
    tailored = {"kind": "nettailor", "backbone": {"kind": "resnet20", "width": 4}, "first_tailored_block": 8}
    model = built(tailored)
    assert all("proxies" in name for name in factored(model.build()))
    assert model.space.undecayed
    assert all("network.tail.attention" in name for name in model.space.undecayed)
    assert any("backbone" in note for note in model.notes)


class Odd(nn.Module):
    """Networks that do not fit."""

    def __init__(self, shape: Any, outputs: int, how: str = "") -> None:
        super().__init__()
        if how == "tied":
            self.one, self.two = nn.Linear(5, 5), nn.Linear(5, 5)
            self.two.weight = self.one.weight
        if how == "mirrored":
            self.one = nn.Conv1d(1, 1, 1)
            self.conv = nn.Conv2d(1, 1, 1, padding_mode="reflect")
        if how != "headless":
            self.head = nn.Linear(shape[0], outputs)
        else:
            self.scale = nn.Parameter(torch.ones(shape[0], outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x) if hasattr(self, "head") else x @ self.scale


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("", "nothing is shared"),
        ("tied", "is another layer's, too"),
        ("mirrored", "padded by 'reflect'"),
        ("headless", "needs a last linear layer"),
    ],
)
def test_networks_that_do_not_fit_are_refused(how: str, said: str) -> None:
    settings = resolve_model({"kind": "decomposed", "network": {"kind": "test_decomposed:Odd", "how": how}})
    with pytest.raises(ConfigError, match=said):
        build_models(settings, (5,), 2, (), 0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"freeze": ["network.features"]}, "model.network.freeze"),
        ({"network": {"kind": "lenet", "segments": {"all": [""]}}}, "segments of its own"),
        ({"network": {"kind": "lenet", "width": -1}}, "model.network.width"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        resolve_model({"kind": "decomposed", **settings})


def test_what_is_decomposed_already_is_no_network() -> None:
    inner = {"kind": "decomposed", "network": {"kind": "mlp", "hidden": [4]}}
    with pytest.raises(ConfigError, match="is decomposed already"):
        build_models(resolve_model({"kind": "decomposed", "network": inner}), (5,), 2, (), 0)


def test_a_plain_model_has_no_layout() -> None:
    with pytest.raises(ValueError, match="not decomposed"):
        Layout.of(ParameterSpace(nn.Linear(2, 2)))
