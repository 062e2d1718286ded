"""Tensors on the device where they are used, without waiting for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

T = TypeVar("T")


def placed(value: T, device: torch.device) -> T:
    """A tensor, or a mapping, a sequence or a record with all its tensors, on the device; on the CPU it is as it was.

    The host does not wait for a GPU: numbers go from page-locked memory, in the order of the device's work.
    """
    return value if device.type == "cpu" else cast(T, _moved(value, device))


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        ready = value.pin_memory() if device.type == "cuda" and value.device.type == "cpu" else value
        return ready.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {name: _moved(item, device) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return tuple(_moved(item, device) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, **{name: _moved(item, device) for name, item in vars(value).items()})
    return value


def fetched(numbers: Sequence[Tensor]) -> list[float]:
    """Single numbers on a device, of one type, read in one go; the host waits once."""
    if len(numbers) == 1 or (numbers and numbers[0].device.type == "cpu"):
        return [float(number) for number in numbers]
    return [float(number) for number in torch.stack(list(numbers)).tolist()] if numbers else []
