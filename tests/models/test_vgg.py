"""VGG-11: torchvision's names and counts, and the variants for small images."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from shoal.models.base import Dropout, Model
from shoal.models.vgg import vgg11
from shoal.parameters import ParameterSpace
from shoal.randomness import generator

STAGES = ([64], [128], [256, 256], [512, 512], [512, 512])


def expected(channels, outputs, hidden, pooled, norm="none"):
    """Names and shapes of the parameters: a layer's number counts convolutions, norms, rectifiers and poolings."""
    found, place = {}, 0
    for widths in STAGES:
        for width in widths:
            found[f"features.{place}.weight"] = (width, channels, 3, 3)
            found[f"features.{place}.bias"] = (width,)
            if norm == "batch":
                found[f"features.{place + 1}.weight"] = found[f"features.{place + 1}.bias"] = (width,)
                place += 1
            place += 2
            channels = width
        place += 1
    inputs = 512 * pooled
    for i, width in enumerate([*hidden, outputs]):
        found[f"classifier.{3 * i}.weight"], found[f"classifier.{3 * i}.bias"] = (width, inputs), (width,)
        inputs = width
    return found


def shapes(module):
    return {name: tuple(p.shape) for name, p in module.named_parameters()}


@pytest.mark.parametrize(("norm", "known"), [("none", 132_863_336), ("batch", 132_868_840)])
def test_names_and_counts_are_those_of_torchvision(norm, known):
    names = expected(3, 1000, [4096, 4096], 49, norm)
    with torch.device("meta"):
        module = vgg11((3, 224, 224), 1000, norm=norm)
    assert list(shapes(module).items()) == list(names.items())
    assert sum(math.prod(s) for s in names.values()) == known
    places = [int(n.split(".")[1]) for n in names if n.startswith("features") and len(names[n]) == 4]
    wanted = [0, 3, 6, 8, 11, 13, 16, 18] if norm == "none" else [0, 4, 8, 11, 15, 18, 22, 25]
    assert places == wanted  # as in torchvision's vgg11 and vgg11_bn
    assert [n for n, m in module.named_modules() if isinstance(m, Dropout)] == ["classifier.2", "classifier.5"]


@pytest.mark.parametrize(
    ("shape", "outputs", "settings", "pooled", "known"),
    [
        ((3, 32, 32), 10, {"hidden": [512, 512]}, 1, 9_750_922),
        ((3, 32, 32), 100, {"hidden": [], "norm": "batch", "dropout": 0.0}, 1, 9_277_284),
        ((3, 64, 97), 10, {"hidden": []}, 2 * 3, None),
        ((1, 500, 32), 2, {"hidden": []}, 7 * 1, None),
        ((3, 32, 32), 2, {"hidden": [], "pool": 3}, 9, None),
    ],
)
def test_small_images(shape, outputs, settings, pooled, known):
    names = expected(shape[0], outputs, settings["hidden"], pooled, settings.get("norm", "none"))
    module = vgg11(shape, outputs, **settings)
    assert shapes(module) == names
    space = ParameterSpace(module)
    if known is not None:
        assert space.size == sum(math.prod(s) for s in names.values()) == known
    assert list(space.segments) == ["features", "classifier"]
    dense = sum(math.prod(s) for n, s in names.items() if n.startswith("classifier"))
    assert space.segments["classifier"] == slice(space.size - dense, space.size)
    last = names[f"classifier.{3 * len(settings['hidden'])}.weight"]
    assert space.head == slice(space.size - outputs * (last[1] + 1), space.size)


def forward(module, x, pooled):
    p = dict(module.named_parameters())
    for widths in STAGES:
        for _ in widths:
            weight = next(n for n in p if n.startswith("features"))
            x = F.relu(F.conv2d(x, p.pop(weight), p.pop(weight.replace("weight", "bias")), padding=1))
        x = F.max_pool2d(x, 2)
    x = F.adaptive_avg_pool2d(x, pooled).flatten(1)
    *hidden, last = [n for n in p if n.endswith("weight")]
    for name in hidden:
        x = F.relu(F.linear(x, p[name], p[name.replace("weight", "bias")]))
    return F.linear(x, p[last], p[last.replace("weight", "bias")])


@pytest.mark.parametrize(("shape", "pool"), [((3, 32, 32), 1), ((2, 64, 96), None)])
def test_is_the_network_of_the_paper_in_both_layouts(shape, pool):
    torch.manual_seed(0)
    module = vgg11(shape, 5, hidden=[20, 30], pool=pool)  # dropout is the identity outside a fit
    x = torch.randn(2, *shape)
    wanted = forward(module, x, (1, 1) if pool == 1 else (2, 3))
    torch.testing.assert_close(module(x), wanted, rtol=1e-4, atol=1e-5)
    module.to(memory_format=torch.channels_last)
    torch.testing.assert_close(module(x.contiguous(memory_format=torch.channels_last)), wanted, rtol=1e-4, atol=1e-5)


def test_initialisation():
    torch.manual_seed(0)
    module = vgg11((3, 32, 32), 10, hidden=[512])
    for place, fan in ((0, 64 * 9), (18, 512 * 9)):
        weight = module.features[place].weight.detach()
        assert abs(float(weight.std()) / math.sqrt(2 / fan) - 1) < 0.05
        assert not module.features[place].bias.any()
    assert float(module.classifier[0].weight.detach().abs().max()) <= 512**-0.5


def test_initialises_from_its_generator_alone_and_takes_a_step():
    model = Model("main", lambda: vgg11((3, 32, 32), 3, hidden=[], norm="batch"))
    first = model.initial(generator(0, "a"))
    torch.manual_seed(2)
    assert torch.equal(first.vector, model.initial(generator(0, "a")).vector)
    assert not torch.equal(first.vector, model.initial(generator(0, "b")).vector)
    assert model.batch_coupled
    module = model.build()
    x, y = torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 0])
    loss = F.cross_entropy(module(x), y)
    loss.backward()
    with torch.no_grad():
        for p in module.parameters():
            p -= 0.01 * p.grad
    assert F.cross_entropy(module(x), y) < loss
    assert {int(m.num_batches_tracked) for m in module.modules() if isinstance(m, nn.BatchNorm2d)} == {2}


@pytest.mark.parametrize("shape", [(3, 31, 32), (3, 32, 31)])
def test_the_smallest_image(shape):
    assert vgg11((1, 32, 32), 2, hidden=[])(torch.zeros(1, 1, 32, 32)).shape == (1, 2)
    with pytest.raises(ValueError, match=f"vgg11 needs images of at least 32x32; got {shape[1]}x{shape[2]}"):
        vgg11(shape, 2)
    with pytest.raises(ValueError, match="vgg11 takes images"):
        vgg11((64,), 2)
