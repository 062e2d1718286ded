"""ResNet-18: torchvision's names and shapes, and the numbers of the network that they stand for."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from shoal.models.base import Model, set_mode
from shoal.models.resnet18 import resnet18
from shoal.parameters import ParameterSpace
from shoal.randomness import generator


def expected(channels, outputs, kernel=7, norm="batch"):
    """Names and shapes of the state, in order, from the rule: stem, four stages of two blocks, head."""
    found = {}

    def conv(name, inputs, out, size):
        found[f"{name}.weight"] = (out, inputs, size, size)

    def normed(name, width):
        found[f"{name}.weight"] = found[f"{name}.bias"] = (width,)
        if norm == "batch":
            found[f"{name}.running_mean"] = found[f"{name}.running_var"] = (width,)
            found[f"{name}.num_batches_tracked"] = ()

    conv("conv1", channels, 64, kernel)
    normed("bn1", 64)
    inputs = 64
    for stage in (1, 2, 3, 4):
        width = 32 * 2**stage
        for block in (0, 1):
            at = f"layer{stage}.{block}"
            conv(f"{at}.conv1", inputs, width, 3)
            normed(f"{at}.bn1", width)
            conv(f"{at}.conv2", width, width, 3)
            normed(f"{at}.bn2", width)
            if block == 0 and stage > 1:
                conv(f"{at}.downsample.0", inputs, width, 1)
                normed(f"{at}.downsample.1", width)
            inputs = width
    found["fc.weight"], found["fc.bias"] = (outputs, 512), (outputs,)
    return found


def shapes(module):
    return {name: tuple(t.shape) for name, t in module.state_dict().items()}


def trainable(names):
    return sum(math.prod(s) for n, s in names.items() if "running" not in n and "num_batches" not in n)


def test_names_and_counts_are_those_of_torchvision():
    names = expected(3, 1000)
    module = resnet18((3, 224, 224), 1000)
    assert list(shapes(module).items()) == list(names.items())
    assert trainable(names) == ParameterSpace(module).size == 11_689_512
    assert len(names) == 122


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_the_small_stem(norm):
    module = resnet18((1, 28, 28), 10, stem="small", norm=norm)
    names = expected(1, 10, 3, norm)
    assert shapes(module) == names
    assert trainable(names) == 11_173_962 - 2 * 64 * 9  # two channels fewer than an image with colours
    assert not any(isinstance(m, nn.MaxPool2d) for m in module.modules())
    if norm == "group":
        assert not list(module.buffers())
        assert {m.num_groups for m in module.modules() if isinstance(m, nn.GroupNorm)} == {2}


def test_segments_are_the_features_and_fc():
    space = ParameterSpace(resnet18((3, 8, 8), 7))
    assert list(space.segments) == ["features", "classifier"]
    assert space.head == space.segments["classifier"] == slice(space.size - 513 * 7, space.size)
    assert space.names[-2:] == ("fc.weight", "fc.bias")
    frozen = resnet18((3, 8, 8), 7)
    for name, parameter in frozen.named_parameters():
        parameter.requires_grad_(name.startswith("fc"))
    assert list(ParameterSpace(frozen).segments) == ["classifier"]


def forward(module, x, stem):
    """Evaluation mode, written out from the state."""
    t = module.state_dict()

    def norm(x, name):
        scale = t[f"{name}.weight"] / torch.sqrt(t[f"{name}.running_var"] + 1e-5)
        shift = t[f"{name}.bias"] - t[f"{name}.running_mean"] * scale
        return x * scale.view(-1, 1, 1) + shift.view(-1, 1, 1)

    stride, padding = (2, 3) if stem == "imagenet" else (1, 1)
    x = F.relu(norm(F.conv2d(x, t["conv1.weight"], stride=stride, padding=padding), "bn1"))
    if stem == "imagenet":
        x = F.max_pool2d(x, 3, 2, 1)
    for at in (f"layer{stage}.{block}" for stage in (1, 2, 3, 4) for block in (0, 1)):
        stride = 2 if f"{at}.downsample.0.weight" in t else 1
        y = F.relu(norm(F.conv2d(x, t[f"{at}.conv1.weight"], stride=stride, padding=1), f"{at}.bn1"))
        y = norm(F.conv2d(y, t[f"{at}.conv2.weight"], padding=1), f"{at}.bn2")
        if stride == 2:
            x = norm(F.conv2d(x, t[f"{at}.downsample.0.weight"], stride=2), f"{at}.downsample.1")
        x = F.relu(x + y)
    return F.linear(x.mean((2, 3)), t["fc.weight"], t["fc.bias"])


@pytest.mark.parametrize(("shape", "stem"), [((3, 70, 64), "imagenet"), ((1, 1, 1), "imagenet"), ((2, 12, 9), "small")])
def test_is_the_network_of_the_paper_in_both_layouts(shape, stem):
    torch.manual_seed(0)
    module = resnet18(shape, 5, stem=stem)
    module(torch.randn(4, *shape))  # moves the running statistics away from 0 and 1
    module.eval()
    x = torch.randn(2, *shape)
    wanted = forward(module, x, stem)
    torch.testing.assert_close(module(x), wanted, rtol=1e-4, atol=1e-4)
    module.to(memory_format=torch.channels_last)
    torch.testing.assert_close(module(x.contiguous(memory_format=torch.channels_last)), wanted, rtol=1e-4, atol=1e-4)


def test_group_norm_keeps_rows_apart():
    module = resnet18((3, 8, 8), 2, stem="small", norm="group", groups=4)
    x = torch.randn(3, 3, 8, 8)
    torch.testing.assert_close(module(x)[:1], module(x[:1]), rtol=1e-4, atol=1e-5)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="groups that divide its 64 channels; got groups 3"):
        resnet18((3, 8, 8), 2, norm="group", groups=3)
    with pytest.raises(ValueError, match="resnet18 takes images"):
        resnet18((8,), 2)


def test_convolutions_start_with_he_normal_weights():
    torch.manual_seed(0)
    module = resnet18((3, 8, 8), 10)
    for name, fan in (("conv1", 64 * 49), ("layer3.1.conv2", 256 * 9), ("layer2.0.downsample.0", 128)):
        weight = module.get_submodule(name).weight.detach()
        assert abs(float(weight.std()) / math.sqrt(2 / fan) - 1) < 0.05
        assert float(weight.abs().max()) > 3 * math.sqrt(2 / fan)  # not uniform


def test_initialises_from_its_generator_alone_and_takes_a_step():
    model = Model("main", lambda: resnet18((3, 8, 8), 3, stem="small"))
    torch.manual_seed(1)
    first = model.initial(generator(0, "a"))
    torch.manual_seed(2)
    assert torch.equal(first.vector, model.initial(generator(0, "a")).vector)
    assert not torch.equal(first.vector, model.initial(generator(0, "b")).vector)
    module = model.build()
    x, y = torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 0])
    loss = F.cross_entropy(module(x), y)
    loss.backward()
    with torch.no_grad():
        for p in module.parameters():
            assert p.grad.abs().sum() > 0
            p -= 0.01 * p.grad
    assert F.cross_entropy(module(x), y) < loss


def test_frozen_features_are_constants_in_training_mode():
    def make():
        module = resnet18((3, 8, 8), 3, stem="small")
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name.startswith("fc"))
        return module

    model = Model("main", make)
    assert not model.batch_coupled
    assert not model.buffers
    module = model.build()
    set_mode(module, True)
    x = torch.randn(4, 3, 8, 8)
    torch.testing.assert_close(module(x)[:1], module(x[:1]), rtol=1e-4, atol=1e-5)
    assert int(module.bn1.num_batches_tracked) == 0
