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
