"""Dropout from a named generator."""

import numpy as np
import pytest
import torch
from torch import nn

from shoal.models.dropout import Dropout, own_dropout
from shoal.randomness import generator


def training(p):
    layer = Dropout(p)
    layer.rng = generator(0, "dropout")
    return layer


def test_mask_comes_from_the_generator_in_logical_order():
    x = torch.randn(4, 3, 5, 6)
    kept = generator(0, "dropout").random((4, 3, 5, 6), dtype=np.float32) >= 0.3
    expected = np.where(kept, x.numpy() / 0.7, 0)
    torch.testing.assert_close(training(0.3)(x), torch.from_numpy(expected.astype(np.float32)))
    last = training(0.3)(x.contiguous(memory_format=torch.channels_last))
    assert torch.equal(last, training(0.3)(x))


def test_mean_is_preserved():
    n = 200_000
    y = training(0.4)(torch.full((n,), -2.0))
    dropped = int((y == 0).sum())
    deviation = (n * 0.4 * 0.6) ** 0.5
    assert abs(dropped - 0.4 * n) < 5 * deviation
    assert abs(float(y.mean()) + 2) < 5 * 2 / 0.6 * deviation / n


def test_gradient_passes_where_kept():
    x = torch.ones(1000, requires_grad=True)
    y = training(0.5)(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


def test_identity_in_evaluation_and_outside_a_fit():
    x = torch.randn(50)
    layer = training(0.5)
    assert not torch.equal(layer(x), x)
    assert layer.eval()(x) is x
    assert Dropout(0.5)(x) is x
    assert training(0.0)(x) is x


def test_draws_nothing_from_the_global_generator():
    before = torch.get_rng_state()
    training(0.5)(torch.ones(9))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5])
def test_probability_is_checked(p):
    with pytest.raises(ValueError, match="0 <= p < 1"):
        Dropout(p)


def test_dropout_of_torch_is_replaced_everywhere():
    twice = nn.Dropout(0.2)
    module = nn.Sequential(twice, nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.3)), twice)
    assert own_dropout(module) is module
    assert [(n, m.p) for n, m in module.named_modules() if isinstance(m, Dropout)] == [
        ("0", 0.2),
        ("1.1", 0.3),
        ("2", 0.2),
    ]
    assert not any(type(m) is nn.Dropout for m in module.modules())


@pytest.mark.parametrize(
    "layer",
    [
        nn.Dropout1d(),
        nn.Dropout2d(),
        nn.AlphaDropout(),
        nn.RReLU(),
        nn.FractionalMaxPool2d(2, output_size=3),
        nn.LSTM(2, 2, num_layers=2, dropout=0.1),
        nn.MultiheadAttention(4, 2, dropout=0.1),
    ],
)
def test_other_random_layers_are_refused(layer):
    with pytest.raises(ValueError, match=rf"layer '1.body' is a {type(layer).__name__} that reads torch's global"):
        own_dropout(nn.Sequential(nn.ReLU(), nn.ModuleDict({"body": layer})))


def test_layers_without_dropout_are_left_alone():
    module = nn.Sequential(nn.LSTM(2, 2), nn.MultiheadAttention(4, 2), nn.RNN(2, 2), nn.MaxPool2d(2))
    assert [type(m) for m in own_dropout(module)] == [nn.LSTM, nn.MultiheadAttention, nn.RNN, nn.MaxPool2d]
