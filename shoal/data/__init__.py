"""Data sets: where rows come from, and the one place where they lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import registry
from .dataset import Dataset


def load(settings: Mapping[str, Any] | str) -> Dataset:
    """The data set of a ``data`` section, such as ``{"kind": "idx", "path": "mnist"}``, or of a kind alone.

    Raises `ConfigError` for settings that do not exist and `DataError` for data that cannot be read.
    """
    dataset = registry.build("data", registry.resolve("data", settings)).load()
    assert isinstance(dataset, Dataset)
    return dataset
