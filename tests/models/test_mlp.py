"""The multi-layer perceptron."""

import pytest
import torch
from torch import nn

from shoal.models.base import Dropout
from shoal.models.mlp import mlp
from shoal.parameters import ParameterSpace


@pytest.mark.parametrize(
    ("shape", "hidden", "segments"),
    [
        ((64,), [64], {"features": 64 * 64 + 64, "classifier": 64 * 10 + 10}),
        ((1, 8, 8), [64], {"features": 64 * 64 + 64, "classifier": 64 * 10 + 10}),
        ((3, 2, 5), [7, 4], {"features": 30 * 7 + 7 + 7 * 4 + 4, "classifier": 4 * 10 + 10}),
        ((5,), [], {"classifier": 5 * 10 + 10}),
        ((3, 2, 2), [], {"classifier": 12 * 10 + 10}),
    ],
)
def test_sizes_and_segments(shape, hidden, segments):
    module = mlp(shape, 10, hidden=hidden)
    space = ParameterSpace(module)
    assert {n: s.stop - s.start for n, s in space.segments.items()} == segments
    assert space.head == space.segments["classifier"]
    assert module(torch.zeros(3, *shape)).shape == (3, 10)


@pytest.mark.parametrize(("activation", "function"), [("relu", torch.relu), ("tanh", torch.tanh), ("gelu", nn.GELU())])
def test_is_the_composition_of_its_layers(activation, function):
    module = mlp((2, 3, 3), 4, hidden=[5, 6], activation=activation)
    x = torch.randn(7, 2, 3, 3)
    w1, b1, w2, b2, w3, b3 = module.parameters()
    h = function(function(x.reshape(7, 18) @ w1.T + b1) @ w2.T + b2)
    expected = h @ w3.T + b3
    torch.testing.assert_close(module(x), expected)
    torch.testing.assert_close(module(x.contiguous(memory_format=torch.channels_last)), expected)


def test_dropout_follows_every_hidden_layer():
    assert [m.p for m in mlp((4,), 2, hidden=[3, 3], dropout=0.25).modules() if isinstance(m, Dropout)] == [0.25, 0.25]
    assert not any(isinstance(m, Dropout) for m in mlp((4,), 2).modules())
