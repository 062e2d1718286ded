"""Real data sets, where they are: facts that their authors and many others have published."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

import shoal.data

FASHION = Path("/usr/share/datasets/fashion-mnist")


@pytest.fixture
def root():
    folder = os.environ.get("SHOAL_DATA", "")
    if not folder:
        pytest.skip("SHOAL_DATA does not name a folder with real data (cifar10/, mnist/, pacs/)")
    return folder


def test_mnist_test_rows(root):
    data = shoal.data.load({"kind": "parquet", "root": root, "path": "mnist/test.parquet", "cache": None})
    assert data.features.shape == (10_000, 28, 28, 1)
    assert torch.bincount(data.labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert float(data.features.double().mean() / 255) == pytest.approx(0.1325, abs=1e-4)


def test_cifar10_test_rows(root, tmp_path):
    settings = {"kind": "parquet", "root": root, "path": "cifar10/test.parquet", "image": "img", "cache": str(tmp_path)}
    data = shoal.data.load(settings)
    assert data.features.shape == (10_000, 32, 32, 3)
    assert torch.bincount(data.labels).tolist() == [1000] * 10
    again = shoal.data.load(settings)
    assert again.fingerprint == data.fingerprint
    assert torch.equal(again.features, data.features)


@pytest.mark.long
def test_pacs_with_a_hold_out_in_every_domain(root):
    data = shoal.data.load(
        {
            "kind": "parquet",
            "root": root,
            "path": "pacs",
            "columns": ["domain"],
            "size": 32,
            "test": 250,
            "test_by": "domain",
            "cache": None,
        }
    )
    domain = data.columns["domain"]
    assert domain.names == ("art_painting", "cartoon", "photo", "sketch")
    assert torch.bincount(domain.codes).tolist() == [2048, 2344, 1670, 3929]
    assert torch.bincount(domain.codes[data.test]).tolist() == [250] * 4
    for d in range(4):
        inside = domain.codes == d
        share = torch.bincount(data.labels[inside], minlength=7) * 250 / int(inside.sum())
        found = torch.bincount(data.labels[data.test[inside[data.test]]], minlength=7)
        assert (found - share).abs().max() < 1


@pytest.mark.skipif(not FASHION.is_dir(), reason="Debian's package dataset-fashion-mnist is not installed")
def test_fashion_mnist():
    data = shoal.data.load({"kind": "idx", "path": str(FASHION), "cache": None})
    assert data.features.shape == (70_000, 28, 28, 1)
    assert torch.bincount(data.labels[data.train]).tolist() == [6000] * 10
    assert torch.bincount(data.labels[data.test]).tolist() == [1000] * 10
    # The mean and standard deviation that everybody uses, in units of 255.
    mean, std = -float(data.offset / data.scale) / 255, 1 / float(data.scale) / 255
    assert np.round([mean, std], 4).tolist() == [0.2860, 0.3530]
