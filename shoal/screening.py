"""Which updates reach the bank: everything that is not finite, of a wrong size or without weight is rejected."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from .bank import Entry
from .messages import Assignment, Part, Update

GROWTH = 1000.0
"""A largest weight that grows by this factor in one update is worth a warning: it is finite, but exploding."""


class Screen:
    """Screens the updates of one exchange. ``births``: clients may answer for entries that they were not given, of the
    size of what ``newborn`` says (``None``: of any size)."""

    def __init__(self, births: bool = False, newborn: Callable[[str], Entry | None] = lambda key: None) -> None:
        self.births = births
        self.newborn = newborn
        self._largest: dict[str, float] = {}

    def __call__(self, update: Update, given: Assignment) -> tuple[str | None, str | None]:
        """Why an update is rejected, and what is suspicious about it if it is not; ``None`` where there is nothing.

        Looks at everything that the update carries: private state too.
        """
        if not math.isfinite(update.weight) or update.weight <= 0:
            return f"weight must be a positive number; got {update.weight}", None
        doubt = None
        for key, part in update.parts.items():
            old = given.entries.get(key)
            if old is None and not self.births:
                return f"answers for entry {key!r}, but was given {list(given.entries)}", None
            problem = _wrong_size(part, self.newborn(key) if old is None else old)
            if problem is None:
                problem, growth = self._values(key, part, old)
                doubt = doubt or growth
            if problem:
                return f"entry {key!r}: {problem}", None
        problem = _unfit(update.state, "private state ")
        told = update.note.get("validation_loss", 0.0)
        if not problem and (isinstance(told, bool) or not isinstance(told, int | float)):
            problem = f"note 'validation_loss' must be a number; got {type(told).__name__}"
        return (problem, None) if problem else (None, doubt)

    def _values(self, key: str, part: Part, old: Entry | None) -> tuple[str | None, str | None]:
        """What is not finite in a part, and whether its largest weight grew too much; each tensor is read once."""
        others = {f"extra {name!r}": tensor for name, tensor in part.extra.items()}
        if part.buffers.floats is not None:
            others["a buffer"] = part.buffers.floats
        if part.base is not None:
            others["the base"] = part.base
        for name, tensor in others.items():
            if not _finite(tensor):
                return f"{name} is not finite", None
        if part.vector is None or not part.vector.numel():
            return None, None
        after = largest(part.vector)
        if not math.isfinite(after):
            return "the vector is not finite", None
        if old is None:
            return None, None
        if key not in self._largest:
            self._largest[key] = largest(old.vector)
        before = self._largest[key]
        if before > 0 and after > GROWTH * before:
            return None, f"entry {key!r}: the largest weight grew from {before:.3g} to {after:.3g}"
        return None, None


def largest(values: Tensor) -> float:
    """The largest magnitude; NaN if any value is NaN, infinite if any is. One pass, no copy."""
    ends = torch.aminmax(values)
    low, high = float(ends.min), float(ends.max)
    return max(abs(low), abs(high)) if low == low else low  # both are NaN if any value is


def _wrong_size(part: Part, old: Entry | None) -> str | None:
    vector = part.vector
    if vector is not None and (vector.dim() != 1 or vector.dtype != torch.float32):
        return f"the vector must be flat float32; got {vector.dtype} of shape {tuple(vector.shape)}"
    if part.mask is not None and (vector is None or part.mask.shape != vector.shape or part.mask.dtype != torch.bool):
        return "the mask must be boolean and of the vector's size"
    base = part.base
    if base is not None and (vector is None or base.shape != vector.shape or base.dtype != vector.dtype):
        return "the base must be float32 and of the vector's size"
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


def _unfit(value: Any, where: str) -> str | None:
    """Why a value cannot be kept in a state: it is not finite, or nothing that a checkpoint can hold."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            if not isinstance(name, str) or name == "tensor":
                return f"{where}has the key {name!r}; keys are strings other than 'tensor'"
            found = _unfit(item, f"{where}{name}/")
            if found:
                return found
        return None
    if isinstance(value, list | tuple):
        return next((found for i, item in enumerate(value) if (found := _unfit(item, f"{where}{i}/"))), None)
    if isinstance(value, Tensor | float):
        return None if _finite(value) else f"{where.rstrip('/')} is not finite"
    if value is None or isinstance(value, bool | int | str):
        return None
    return (
        f"{where.rstrip('/')} is a {type(value).__name__}; "
        f"a state holds tensors, numbers, strings, lists and mappings of them"
    )


def _finite(value: Tensor | float) -> bool:
    if not isinstance(value, Tensor):
        return math.isfinite(value)
    if not value.is_floating_point() or value.numel() == 0:
        return True
    return math.isfinite(largest(value))


def diverged(before: Mapping[str, Entry], after: Mapping[str, Entry]) -> list[str]:
    """The changed entries whose vector, buffers, extra or server numbers are no longer finite after the merge."""
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
