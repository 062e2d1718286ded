"""A small data set whose rows can be told apart, and laws that every stream obeys."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from shoal.data.arrays import from_arrays
from shoal.data.dataset import Dataset
from shoal.streams.base import Stream


def images(
    labels: Sequence[int] | Sequence[str],
    test_labels: Sequence[int] | Sequence[str] = (),
    columns: Mapping[str, Sequence[str]] | None = None,
    shape: tuple[int, int] = (4, 4),
) -> Dataset:
    """Images of random pixels; without test labels the training labels are tested too."""
    test_labels = list(test_labels) or list(labels)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (len(labels) + len(test_labels), *shape), dtype=np.uint8)
    return from_arrays(x[: len(labels)], list(labels), x[len(labels) :], test_labels, columns=columns)


def laws(stream: Stream, rounds: int) -> dict[tuple[int, int], tuple[list[int], list[int], list[int]]]:
    """Asserts what holds for every stream; returns train, validation and test rows by (client, round)."""
    data = stream.dataset
    allowed_train, allowed_test = set(data.train.tolist()), set(data.test.tolist())
    held = {}
    validation: set[int] = set()
    trained: set[int] = set()
    for client in range(stream.clients):
        for round in range(rounds + 1):
            holding = stream.holding(client, round)
            assert holding.train.dtype == holding.validation.dtype == holding.test.dtype == torch.int64
            train, val = holding.train.tolist(), holding.validation.tolist()
            assert len(set(train)) == len(train)
            assert len(set(val)) == len(val)
            base = {row % len(data) for row in [*train, *val]}
            assert base <= allowed_train, "a test row is trained on"
            assert {row % len(data) for row in holding.test.tolist()} <= allowed_test
            validation |= set(val)
            trained |= set(train)
            held[client, round] = (train, val, holding.test.tolist())
        assert held[client, 0] == held[client, 1]
    assert not validation & trained, "a validation row is trained on"
    of_targets = {row for target in stream.targets(1) for row in target.validation.tolist()}
    assert validation <= of_targets
    assert not of_targets & trained
    return held
