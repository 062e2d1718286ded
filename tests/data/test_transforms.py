"""Transforms of a data set: exact, free where they do nothing, and refused where they make no sense."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from shoal.data.dataset import Dataset, transform
from shoal.errors import ConfigError


def make(features: torch.Tensor, peak: float = 255.0, scale: float = 1 / 255, offset: float = -0.3) -> Dataset:
    n, channels = len(features), features.shape[-1]
    return Dataset(
        "made",
        features,
        torch.arange(n) % 2,
        ("a", "b"),
        torch.arange(n - 1),
        torch.arange(n - 1, n),
        torch.full((channels,), scale),
        torch.full((channels,), offset),
        peak=peak,
    )


@pytest.fixture
def images() -> Dataset:
    rng = np.random.default_rng(5)
    return make(torch.from_numpy(rng.integers(0, 256, (6, 4, 4, 3), dtype=np.uint8)))


def test_quarter_turns_and_mirror_by_hand():
    data = make(torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8)[None, :, :, None].repeat(2, 1, 1, 1), 255, 1.0, 0.0)
    turned = data.with_transforms("identity", "rotate90", "rotate180", "rotate270", "mirror")
    found = turned.batch(torch.tensor([0, 2, 4, 6, 8])).squeeze(-1).tolist()
    assert found == [[[1, 2], [3, 4]], [[2, 4], [1, 3]], [[4, 3], [2, 1]], [[3, 1], [4, 2]], [[2, 1], [4, 3]]]


@pytest.mark.parametrize("peak", [255, 16])
def test_inversion_has_the_bits_of_the_inverted_raw_image(peak):
    rng = np.random.default_rng(3)
    raw = torch.from_numpy(rng.integers(0, peak + 1, (5, 3, 3, 2), dtype=np.uint8))
    data = make(raw, peak, 0.0123, -0.7)
    by_hand = make((peak - raw.int()).to(torch.uint8), peak, 0.0123, -0.7)
    rows = torch.tensor([4, 0, 2])
    assert torch.equal(data.with_transforms("invert").batch(rows), by_hand.batch(rows))
    # The same inside a batch of several transforms, and twice gives the image back.
    mixed = data.with_transforms("mirror", "invert", "identity")
    got = mixed.batch(torch.tensor([1, 5 + 1, 10 + 1, 5 + 3]))
    assert torch.equal(got[[1, 3]], by_hand.batch(torch.tensor([1, 3])))
    assert torch.equal(got[2:3], data.batch(torch.tensor([1])))
    assert torch.equal(by_hand.with_transforms("invert").batch(rows), data.batch(rows))


def test_one_transform_alone_and_in_a_mixed_batch_agree(images):
    names = ("identity", "rotate90", "rotate180", "rotate270", "mirror", "invert")
    moved = images.with_transforms(*names)
    rows = torch.arange(len(names) * len(images))
    mixed = moved.batch(rows.flip(0)).flip(0)
    for t, name in enumerate(names):
        alone = images.with_transforms(name).batch(torch.arange(len(images)))
        assert torch.equal(mixed[t * 6 : t * 6 + 6], alone), name
        assert torch.equal(moved.batch(rows[t * 6 : t * 6 + 6]), alone), name


def test_labels_and_targets_follow_the_base_row(images):
    moved = replace(images.with_transforms("identity", "mirror"), targets=torch.arange(6) * 10)
    rows = torch.tensor([1, 7, 11])
    assert moved.labels_of(rows).tolist() == [1, 1, 1]
    assert moved.wanted(rows).tolist() == [10, 10, 50]


def test_identity_is_free(images):
    """A batch under the identity is the one copy that reading the rows makes, also beside other transforms."""
    moved = images.with_transforms("identity", "rotate90")
    calls: list[str] = []

    class Counted(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            calls.append(func.__name__.split(".")[0])
            return func(*args, **(kwargs or {}))

    with Counted():
        moved.batch(torch.arange(6))
    assert not {"rot90", "clone", "index", "index_put_", "flip"} & set(calls)
    calls.clear()
    with Counted():
        moved.batch(torch.arange(4, 8))
    assert (calls.count("index_put_"), calls.count("index")) == (1, 1)
    assert torch.equal(moved.batch(torch.arange(6)), images.batch(torch.arange(6)))


def test_the_data_are_not_changed_by_reading(images):
    before = images.features.clone()
    images.with_transforms("invert").batch(torch.arange(6))
    table = make(torch.arange(6.0).reshape(3, 2))
    kept = table.features.clone()
    table.batch(torch.arange(3))
    assert torch.equal(images.features, before)
    assert torch.equal(table.features, kept)


def test_refusals(images):
    with pytest.raises(ConfigError, match="did you mean 'rotate90'"):
        images.with_transforms("rotate9")
    with pytest.raises(ConfigError, match="at least one"):
        images.with_transforms()
    wide = make(torch.zeros(3, 2, 4, 1, dtype=torch.uint8))
    with pytest.raises(ConfigError, match="square images; those of made are 2x4"):
        wide.with_transforms("rotate270")
    assert wide.with_transforms("rotate180", "invert").batch(torch.tensor([0, 3])).shape == (2, 2, 4, 1)
    with pytest.raises(ConfigError, match="needs images"):
        make(torch.zeros(3, 2)).with_transforms("mirror")
    with pytest.raises(ConfigError, match="no move of pixels"):
        transform("invert")
