"""Which updates reach the bank: everything that is not finite, of a wrong size or without weight is rejected."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from .bank import Buffers, Entry
from .messages import Assignment, Part, Update

GROWTH = 1000.0
"""A largest weight that grows by this factor in one update is worth a warning: it is finite, but exploding."""


def fault(update: Update, given: Assignment, births: bool = False) -> str | None:
    """Why an update is rejected, or ``None``. Looks at everything that it carries: private state too.

    Without ``births`` a client may answer only for entries that it was given.
    """
    if not math.isfinite(update.weight) or update.weight <= 0:
        return f"weight must be a positive number; got {update.weight}"
    for key, part in update.parts.items():
        if key not in given.entries and not births:
            return f"answers for entry {key!r}, but was given {list(given.entries)}"
        problem = _wrong_size(part, given.entries.get(key))
        if problem:
            return f"entry {key!r}: {problem}"
        for name, tensor in _tensors(part):
            if not _finite(tensor):
                return f"entry {key!r}: {name} is not finite"
    for name, number in _numbers(update.state):
        if not _finite(number):
            return f"private state {name!r} is not finite"
    return None


class Growth:
    """Watches for largest weights that grow by a large factor; remembers those of the entries of one exchange."""

    def __init__(self) -> None:
        self._before: dict[str, float] = {}

    def warning(self, update: Update, given: Assignment) -> str | None:
        """What is suspicious about an accepted update, or ``None``."""
        for key, part in update.parts.items():
            old = given.entries.get(key)
            if old is not None and part.vector is not None and part.vector.numel():
                if key not in self._before:
                    self._before[key] = largest(old.vector)
                before, after = self._before[key], largest(part.vector)
                if before > 0 and after > GROWTH * before:
                    return f"entry {key!r}: the largest weight grew from {before:.3g} to {after:.3g}"
        return None


def largest(values: Tensor) -> float:
    """The largest magnitude; NaN if any value is NaN, infinite if any is. One pass, no copy."""
    low, high = torch.aminmax(values)
    return max(abs(float(low)), abs(float(high))) if not torch.isnan(low) else float("nan")


def _wrong_size(part: Part, old: Entry | None) -> str | None:
    vector = part.vector
    if vector is not None and (vector.dim() != 1 or vector.dtype != torch.float32):
        return f"the vector must be flat float32; got {vector.dtype} of shape {tuple(vector.shape)}"
    if part.mask is not None and (vector is None or part.mask.shape != vector.shape or part.mask.dtype != torch.bool):
        return "the mask must be boolean and of the vector's size"
    if old is None:
        return None
    if vector is not None and vector.numel() != old.vector.numel():
        return f"the vector must have {old.vector.numel()} numbers; got {vector.numel()}"
    for name in ("floats", "counters"):
        new_buffer, old_buffer = getattr(part.buffers, name), getattr(old.buffers, name)
        if new_buffer is None:
            continue
        if old_buffer is None or new_buffer.shape != old_buffer.shape or new_buffer.dtype != old_buffer.dtype:
            return f"buffers ({name}) must be those of the entry; got {tuple(new_buffer.shape)} {new_buffer.dtype}"
    return None


def _tensors(part: Part) -> Iterator[tuple[str, Tensor]]:
    buffers: Buffers = part.buffers
    for name, tensor in (("the vector", part.vector), ("a buffer", buffers.floats)):
        if tensor is not None:
            yield name, tensor
    for name, tensor in part.extra.items():
        yield f"extra {name!r}", tensor


def _numbers(state: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in state.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, list):
            yield from _numbers({str(i): item for i, item in enumerate(value)}, f"{prefix}{name}/")
        elif isinstance(value, Tensor | float):
            yield prefix + str(name), value


def _finite(value: Tensor | float) -> bool:
    if not isinstance(value, Tensor):
        return math.isfinite(value)
    if not value.is_floating_point() or value.numel() == 0:
        return True
    return math.isfinite(largest(value))


def diverged(before: Mapping[str, Entry], after: Mapping[str, Entry]) -> list[str]:
    """The changed entries whose vector, buffers or server numbers are no longer finite after the merge."""
    found = []
    for key, entry in after.items():
        if before.get(key) is entry:
            continue
        tensors = [entry.vector, *entry.server.values(), *entry.extra.values()]
        if entry.buffers.floats is not None:
            tensors.append(entry.buffers.floats)
        if not all(_finite(t) for t in tensors):
            found.append(key)
    return found
