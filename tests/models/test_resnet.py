"""ResNet-20."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from shoal.models.resnet import Subsample, resnet20
from shoal.parameters import BufferSpace, ParameterSpace


def arithmetic(channels, outputs, shortcut, w=16, n=3, kernel=3):
    """The number of parameters, and of normalised channels."""
    total, norms, inputs = channels * w * kernel**2, w, w
    for c in (w, 2 * w, 4 * w):
        for _ in range(n):
            total += inputs * c * 9 + c * c * 9
            norms += 2 * c
            if inputs != c and shortcut == "B":
                total += inputs * c
                norms += c
            inputs = c
    return total + 2 * norms + 4 * w * outputs + outputs, norms


@pytest.mark.parametrize(("shortcut", "known"), [("A", 269_722), ("B", 272_474)])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_parameter_counts(shortcut, known, norm):
    count, norms = arithmetic(3, 10, shortcut)
    assert count == known
    module = resnet20((3, 32, 32), 10, shortcut=shortcut, norm=norm)
    space, buffers = ParameterSpace(module), BufferSpace(module).read(module)
    assert space.size == known
    assert space.head == space.segments["classifier"] == slice(known - 650, known)
    if norm == "batch":
        assert buffers.floats.numel() == 2 * norms
        assert buffers.counters.numel() == 19 + 2 * (shortcut == "B")
    else:
        assert not list(module.buffers())


def test_settings_reach_the_layers():
    module = resnet20((1, 9, 12), 4, width=6, norm="group", groups=3)
    assert ParameterSpace(module).size == arithmetic(1, 4, "A", 6)[0]
    assert {m.num_groups for m in module.modules() if isinstance(m, nn.GroupNorm)} == {3}
    with pytest.raises(ValueError, match="groups that divide the width; got groups 4, width 6"):
        resnet20((1, 9, 12), 4, width=6, norm="group", groups=4)
    resnet20((1, 9, 12), 4, width=6, groups=4)  # BatchNorm has no groups


@pytest.mark.parametrize(("blocks", "layers"), [(1, 8), (2, 14), (5, 32)])
def test_blocks_a_stage(blocks, layers):
    module = resnet20((3, 32, 32), 10, blocks=blocks, width=4)
    convolutions = [m for m in module.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) + 1 == layers  # 6 n + 2, table 6 of He et al.
    assert ParameterSpace(module).size == arithmetic(3, 10, "A", 4, blocks)[0]


def test_the_stem_of_imagenet_leaves_a_sixteenth_of_the_pixels():
    module = resnet20((3, 32, 32), 10, width=32, blocks=2, stem="imagenet", shortcut="B")
    assert ParameterSpace(module).size == arithmetic(3, 10, "B", 32, 2, 7)[0]
    features, x = module.get_submodule("features"), torch.randn(2, 3, 32, 32)
    found = {}
    for name, layer in features.named_children():
        x = found[name] = layer(x)
    sides = {name: tuple(values.shape[1:]) for name, values in found.items()}
    torch.testing.assert_close(found["maxpool"], F.max_pool2d(F.relu(found["norm"]), 3, 2, 1))
    assert [sides[f"stage{stage}"] for stage in (1, 2, 3)] == [(32, 8, 8), (64, 4, 4), (128, 2, 2)]
    assert sides["conv"] == (32, 16, 16)


def forward(module, x, shortcut):
    """Evaluation mode, written out from the parameters and buffers."""
    t = {**dict(module.named_parameters()), **dict(module.named_buffers())}

    def norm(x, name):
        shape = (1, -1, 1, 1)
        scale = t[f"{name}.weight"] / torch.sqrt(t[f"{name}.running_var"] + 1e-5)
        return (x - t[f"{name}.running_mean"].view(shape)) * scale.view(shape) + t[f"{name}.bias"].view(shape)

    x = F.relu(norm(F.conv2d(x, t["features.conv.weight"], padding=1), "features.norm"))
    for stage in (1, 2, 3):
        for block in (0, 1, 2):
            at, stride = f"features.stage{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            y = F.relu(norm(F.conv2d(x, t[f"{at}.conv1.weight"], stride=stride, padding=1), f"{at}.norm1"))
            y = norm(F.conv2d(y, t[f"{at}.conv2.weight"], padding=1), f"{at}.norm2")
            if stride == 2 and shortcut == "A":
                small = x[..., ::2, ::2]
                x = torch.cat([small, torch.zeros_like(small)], dim=1)
            elif stride == 2:
                x = norm(F.conv2d(x, t[f"{at}.shortcut.conv.weight"], stride=2), f"{at}.shortcut.norm")
            x = F.relu(x + y)
    return F.linear(x.mean((2, 3)), t["classifier.weight"], t["classifier.bias"])


@pytest.mark.parametrize("shortcut", ["A", "B"])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 7, 10)])
def test_is_the_network_of_the_paper_in_both_layouts(shortcut, shape):
    torch.manual_seed(0)
    module = resnet20(shape, 5, shortcut=shortcut, width=8)
    module(torch.randn(8, *shape))  # moves the running statistics away from 0 and 1
    module.eval()
    x = torch.randn(3, *shape)
    expected = forward(module, x, shortcut)
    torch.testing.assert_close(module(x), expected, rtol=1e-4, atol=1e-4)
    module.to(memory_format=torch.channels_last)
    torch.testing.assert_close(module(x.contiguous(memory_format=torch.channels_last)), expected, rtol=1e-4, atol=1e-4)


def test_group_norm_keeps_rows_apart():
    module = resnet20((3, 8, 8), 2, norm="group", width=4)
    x = torch.randn(4, 3, 8, 8)
    torch.testing.assert_close(module(x)[:1], module(x[:1]), rtol=1e-4, atol=1e-5)


def test_subsampling_adds_channels_of_zeros():
    x = torch.arange(9.0).reshape(1, 1, 3, 3)
    assert Subsample(1, 2)(x).tolist() == [[[[0, 2], [6, 8]], [[0, 0], [0, 0]]]]


def test_convolutions_start_with_he_normal_weights():
    torch.manual_seed(0)
    module = resnet20((3, 32, 32), 10)
    for name, fan in (("features.conv", 16 * 9), ("features.stage3.1.conv2", 64 * 9)):
        weight = module.get_submodule(name).weight.detach()
        assert abs(float(weight.std()) / math.sqrt(2 / fan) - 1) < 0.15
        assert float(weight.abs().max()) > 2.5 * math.sqrt(2 / fan)  # not uniform
