"""The LeNet with local response normalisation."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from shoal.models.lenet import LocalResponseNorm, SamePool, lenet
from shoal.parameters import BufferSpace, ParameterSpace


def same_pool(x):
    """TensorFlow's rule: ceil(n / 2) windows; the smaller half of the padding goes in front."""
    pads = []
    for side in (x.shape[-1], x.shape[-2]):
        total = max((math.ceil(side / 2) - 1) * 2 + 3 - side, 0)
        pads += [total // 2, total - total // 2]
    return F.max_pool2d(F.pad(x, pads, value=-math.inf), 3, 2)


def reference(module, x):
    p = dict(module.named_parameters())
    norm = nn.LocalResponseNorm(size=9, alpha=1e-3, beta=0.75, k=1.0)
    for i in (1, 2):
        x = F.relu(F.conv2d(x, p[f"features.conv{i}.weight"], p[f"features.conv{i}.bias"], padding="same"))
        x = same_pool(norm(x))
    x = x.flatten(1)
    for name in ("fc1", "fc2"):
        x = F.relu(F.linear(x, p[f"classifier.{name}.weight"], p[f"classifier.{name}.bias"]))
    return F.linear(x, p["classifier.output.weight"], p["classifier.output.bias"])


@pytest.mark.parametrize(("shape", "sides"), [((3, 32, 32), 8 * 8), ((1, 28, 28), 7 * 7), ((2, 7, 9), 2 * 3)])
def test_parameter_counts(shape, sides):
    space = ParameterSpace(lenet(shape, 183))
    features = (shape[0] * 25 + 1) * 20 + (20 * 25 + 1) * 50
    body = (50 * sides + 1) * 800 + (800 + 1) * 500
    assert space.segments == {
        "features": slice(0, features),
        "classifier": slice(features, features + body + 91_683),
    }
    assert space.head == slice(space.size - 501 * 183, space.size)
    if shape == (3, 32, 32):
        assert features + body == 2_987_870


@pytest.mark.parametrize("channels", [1, 4, 9, 20])
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_normalisation_is_that_of_torch(channels, scale):
    torch.manual_seed(1)
    x = (scale * torch.randn(2, channels, 5, 3)).requires_grad_()
    y = x.detach().clone(memory_format=torch.channels_last).requires_grad_()
    push = torch.randn(2, channels, 5, 3)
    ours, theirs = LocalResponseNorm(channels)(y), nn.LocalResponseNorm(9, 1e-3, 0.75, 1.0)(x)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    ours.backward(push)
    theirs.backward(push)
    torch.testing.assert_close(y.grad, x.grad, rtol=1e-5, atol=1e-6)


def test_normalisation_by_hand():
    # alpha = 9, so a neighbourhood counts in full: channel 0 sees channels 0..4, of 0, 1, 0, 0, 2 -> 1 + 5 = 6.
    x = torch.tensor([3.0, 1, 0, 0, 2, 4, 0]).reshape(1, 7, 1, 1)
    got = LocalResponseNorm(7, size=9, alpha=9.0)(x).flatten()
    sums = [1 + 9 + 1 + 4, 1 + 9 + 1 + 4 + 16, 0, 0, 1 + 9 + 1 + 4 + 16, 1 + 1 + 4 + 16, 0]
    torch.testing.assert_close(
        got, torch.tensor([v / max(s, 1) ** 0.75 for v, s in zip(x.flatten().tolist(), sums, strict=True)])
    )


@pytest.mark.parametrize("height", [1, 2, 3, 7, 28])
@pytest.mark.parametrize("width", [1, 4, 5, 32])
def test_pooling_pads_as_tensorflow_does(height, width):
    x = torch.randn(2, 3, height, width)
    assert torch.equal(SamePool()(x), same_pool(x))


def test_pooling_by_hand():
    x = torch.arange(16.0).reshape(1, 1, 4, 4)  # even: windows begin at 0 and 2, padded behind
    assert SamePool()(x).tolist() == [[[[10, 11], [14, 15]]]]
    x = -torch.arange(9.0).reshape(1, 1, 3, 3)  # odd: padded by one in front and behind
    assert SamePool()(x).tolist() == [[[[0, -1], [-3, -4]]]]


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28)])
def test_is_the_reference_network_in_both_layouts(shape):
    torch.manual_seed(0)
    module = lenet(shape, 10)
    x, y = torch.randn(4, *shape), torch.arange(4)
    theirs = torch.autograd.grad(F.cross_entropy(reference(module, x), y), list(module.parameters()))
    torch.testing.assert_close(module(x), reference(module, x), rtol=1e-5, atol=1e-5)
    module.to(memory_format=torch.channels_last)
    logits = module(x.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(logits, reference(module, x), rtol=1e-5, atol=1e-5)
    ours = torch.autograd.grad(F.cross_entropy(logits, y), list(module.parameters()))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_initialisation_is_glorot_uniform_with_zero_biases():
    torch.manual_seed(0)
    module = lenet((3, 32, 32), 10)
    for name, fans in (
        ("features.conv1", 25 * (3 + 20)),
        ("features.conv2", 25 * (20 + 50)),
        ("classifier.fc1", 3200 + 800),
        ("classifier.output", 500 + 10),
    ):
        layer, limit = module.get_submodule(name), math.sqrt(6 / fans)
        assert not layer.bias.any()
        assert 0.98 * limit < float(layer.weight.detach().abs().max()) <= limit
        assert abs(float(layer.weight.detach().std()) / (limit / math.sqrt(3)) - 1) < 0.05


def test_width_and_what_travels():
    module = lenet((1, 28, 28), 3, width=0.5)
    shapes = [tuple(p.shape) for p in module.parameters() if p.dim() > 1]
    assert shapes == [(10, 1, 5, 5), (25, 10, 5, 5), (400, 1225), (250, 400), (3, 250)]
    assert not BufferSpace(module)
    with pytest.raises(ValueError, match="lenet takes images"):
        lenet((28, 28), 3)
