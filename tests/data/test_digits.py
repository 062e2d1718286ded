"""The bundled digits, against scikit-learn's own arrays."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import shoal.data
from shoal.errors import ConfigError


@pytest.fixture(scope="module")
def digits():
    return shoal.data.load("digits")


def test_the_content(digits):
    bunch = load_digits()
    assert digits.features.dtype == torch.uint8
    assert np.array_equal(digits.features[..., 0].numpy(), bunch.images)
    assert np.array_equal(digits.labels.numpy(), bunch.target)
    assert digits.classes == tuple("0123456789")
    assert (digits.shape, digits.peak) == ((1, 8, 8), 16.0)
    assert np.array_equal(digits.batch(torch.arange(5))[..., 0].numpy(), bunch.images[:5] / 16)


def test_the_split_is_stratified_and_covers_all_rows(digits):
    assert sorted([*digits.train.tolist(), *digits.test.tolist()]) == list(range(1797))
    assert len(digits.test) == round(0.2 * 1797)
    exact = 0.2 * np.bincount(load_digits().target)
    assert np.abs(torch.bincount(digits.labels[digits.test]).numpy() - exact).max() < 1


def test_inverted_digits_turn_around_sixteen(digits):
    x = digits.with_transforms("invert").batch(torch.arange(3))[..., 0].numpy()
    assert np.array_equal(x, (16 - load_digits().images[:3]) / 16)


def test_settings(digits):
    assert torch.equal(shoal.data.load({"kind": "digits", "split_seed": 0}).test, digits.test)
    assert not torch.equal(shoal.data.load({"kind": "digits", "split_seed": 1}).test, digits.test)
    assert len(shoal.data.load({"kind": "digits", "test": 100}).test) == 100
    half = shoal.data.load({"kind": "digits", "normalize": "half"}).batch(torch.arange(3))[..., 0]
    assert np.allclose(half.numpy(), (load_digits().images[:3] / 16 - 0.5) / 0.5)
    for wrong in ({"test": 0}, {"limit": 0}, {"normalize": "none"}, {"tset": 0.1}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            shoal.data.load({"kind": "digits", **wrong})
