"""The convolutional network with 62,006 parameters."""

import pytest
import torch
import torch.nn.functional as F

from shoal.models.cnn import cnn
from shoal.parameters import ParameterSpace


def reference(module, x, stride=1):
    """The network as the papers give it, with the rectifier before the pooling."""
    p = dict(module.named_parameters())
    for i in (1, 2):
        x = F.conv2d(x, p[f"features.conv{i}.weight"], p[f"features.conv{i}.bias"], stride)
        x = F.max_pool2d(F.relu(x), 2)
    x = x.reshape(len(x), -1)
    for name in ("fc1", "fc2"):
        x = F.relu(x @ p[f"classifier.{name}.weight"].T + p[f"classifier.{name}.bias"])
    return x @ p["classifier.output.weight"].T + p["classifier.output.bias"]


def sizes(module):
    return {n: s.stop - s.start for n, s in ParameterSpace(module).segments.items()}


@pytest.mark.parametrize(("shape", "stride", "outputs"), [((3, 32, 32), 1, 10), ((3, 227, 227), 3, 7)])
def test_parameter_counts_of_the_papers(shape, stride, outputs):
    module = cnn(shape, outputs, stride=stride)
    features = (3 * 25 + 1) * 6 + (6 * 25 + 1) * 16
    classifier = (400 + 1) * 120 + (120 + 1) * 84 + (84 + 1) * outputs
    assert sizes(module) == {"features": features, "classifier": classifier}
    if outputs == 10:
        assert features + classifier == 62_006
    space = ParameterSpace(module)
    assert space.head == slice(space.size - 85 * outputs, space.size)


@pytest.mark.parametrize(("shape", "stride"), [((3, 32, 32), 1), ((1, 16, 21), 1), ((2, 50, 61), 3)])
def test_values_and_gradients_are_those_of_rectifying_first(shape, stride):
    module = cnn(shape, 5, stride=stride)
    x, y = torch.randn(6, *shape), torch.arange(6) % 5
    logits = module(x)
    torch.testing.assert_close(logits, reference(module, x, stride), rtol=1e-5, atol=1e-6)
    ours = torch.autograd.grad(F.cross_entropy(logits, y), list(module.parameters()))
    theirs = torch.autograd.grad(F.cross_entropy(reference(module, x, stride), y), list(module.parameters()))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_channels_last_changes_nothing():
    module = cnn((3, 32, 32), 10)
    x = torch.randn(4, 3, 32, 32)
    expected = module(x)
    module.to(memory_format=torch.channels_last)
    torch.testing.assert_close(module(x.contiguous(memory_format=torch.channels_last)), expected, rtol=1e-5, atol=1e-6)


def test_width_scales_channels_and_dense_layers():
    assert sizes(cnn((1, 28, 28), 10, width=0.5)) == {
        "features": 26 * 3 + (3 * 25 + 1) * 8,
        "classifier": (8 * 16 + 1) * 60 + 61 * 42 + 43 * 10,
    }
    assert sizes(cnn((1, 16, 16), 2, width=0.01))["features"] == 26 * 1 + 26 * 1


@pytest.mark.parametrize("stride", [1, 2, 3, 4])
def test_the_smallest_image_is_really_the_smallest(stride):
    def left(side):
        for _ in range(2):
            side = len(range(0, side - 4, stride)) // 2
        return side

    smallest = next(n for n in range(1, 200) if left(n) >= 1)
    assert cnn((1, smallest, smallest), 2, stride=stride)(torch.zeros(1, 1, smallest, smallest)).shape == (1, 2)
    for height, width in ((smallest - 1, smallest), (smallest, smallest - 1)):
        with pytest.raises(ValueError, match=f"at least {smallest}x{smallest}; got {height}x{width}"):
            cnn((1, height, width), 2, stride=stride)


def test_tables_are_refused():
    with pytest.raises(ValueError, match=r"takes images of shape \(channels, height, width\); got \(64,\).*mlp"):
        cnn((64,), 10)


# ---- other layers ----------------------------------------------------------------------------------------------

FIVE_LAYERS = {"channels": [32, 64, 64], "kernel": 3, "padding": 1, "pool": [1, 2, 2], "hidden": [256, 128]}
CHEAP = {"channels": [12, 32], "kernel": [5, 2], "stride": 2, "padding": [2, 0], "pool": [2, 1], "hidden": [64]}


def test_parameter_counts_of_other_layers():
    five = sizes(cnn((1, 28, 28), 10, **FIVE_LAYERS))
    assert five["features"] == (9 + 1) * 32 + (9 * 32 + 1) * 64 + (9 * 64 + 1) * 64
    assert five["classifier"] == (49 * 64 + 1) * 256 + 257 * 128 + 129 * 10
    assert sum(five.values()) == 893_002
    cheap = sizes(cnn((3, 32, 32), 10, **CHEAP))
    # 32 -> 16 by the stride, 8 by the pooling, 4 by the second stride.
    assert cheap == {"features": (75 + 1) * 12 + (48 + 1) * 32, "classifier": (16 * 32 + 1) * 64 + 65 * 10}
    assert sum(cheap.values()) == 35_962


def test_values_of_other_layers_are_those_of_the_functions():
    module = cnn((3, 32, 32), 10, **CHEAP)
    p = dict(module.named_parameters())
    x = torch.randn(3, 3, 32, 32)
    h = F.conv2d(x, p["features.conv1.weight"], p["features.conv1.bias"], stride=2, padding=2)
    h = F.max_pool2d(F.relu(h), 2)
    h = F.relu(F.conv2d(h, p["features.conv2.weight"], p["features.conv2.bias"], stride=2))
    h = F.relu(F.linear(h.flatten(1), p["classifier.fc1.weight"], p["classifier.fc1.bias"]))
    h = F.linear(h, p["classifier.output.weight"], p["classifier.output.bias"])
    torch.testing.assert_close(module(x), h, rtol=1e-5, atol=1e-6)
    assert not list(module.buffers())


def test_no_hidden_layer_and_lists_of_one_number():
    assert sizes(cnn((1, 8, 8), 3, channels=[2], kernel=[3], hidden=[])) == {"features": 20, "classifier": 19 * 3}


@pytest.mark.parametrize("settings", [CHEAP, FIVE_LAYERS, {"kernel": [7, 2], "stride": [3, 1], "padding": [3, 1]}])
def test_the_smallest_image_of_other_layers(settings):
    def fits(side):
        try:
            return cnn((1, side, side), 2, **settings)(torch.zeros(1, 1, side, side)).shape == (1, 2)
        except ValueError:
            return False

    def left(side):
        count = len(settings.get("channels", [6, 16]))
        for i in range(count):
            kernel, stride, padding, pool = (
                v if isinstance(v, int) else v[i]
                for v in (settings.get(n, d) for n, d in (("kernel", 5), ("stride", 1), ("padding", 0), ("pool", 2)))
            )
            side = len(range(0, side + 2 * padding - kernel + 1, stride)) // pool
        return side

    smallest = next(n for n in range(1, 100) if left(n) >= 1)
    assert [fits(n) for n in range(max(1, smallest - 2), smallest + 2)] == [
        n >= smallest for n in range(max(1, smallest - 2), smallest + 2)
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kernel": [5]}, r"kernel: one number, or one for each of 2 convolutions; got \[5\]"),
        ({"pool": [2, 2, 2]}, "pool: one number, or one for each of 2"),
        ({"channels": []}, "at least one convolution; .* kind: mlp"),
        ({"padding": 3}, "padding: at most half the kernel; got 3 for a kernel of 5"),
    ],
)
def test_layers_that_do_not_fit_together(settings, message):
    with pytest.raises(ValueError, match=message):
        cnn((3, 32, 32), 10, **settings)
