"""Fingerprints of values, to the bit, and where two values differ."""

from __future__ import annotations

import dataclasses
import hashlib
import random
import types
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, torch.dtype, torch.device, torch.Size)


def fingerprint(*values: Any) -> str:
    """A hash of everything that the values hold: tensors to the bit, attributes of objects, generators' states."""
    h = hashlib.blake2b(digest_size=16)
    seen: dict[int, int] = {}
    keep: list[Any] = []

    def add(value: Any) -> None:
        if isinstance(value, _PLAIN):
            h.update(f"{type(value).__name__}:{value!r};".encode())
            return
        if id(value) in seen:
            h.update(f"again:{seen[id(value)]};".encode())
            return
        if not isinstance(value, Tensor | np.ndarray):  # equal tensors count as equal, shared or not
            seen[id(value)] = len(seen)
            keep.append(value)  # or a temporary's id would be given to another
        h.update(f"{type(value).__name__}(".encode())
        _spread(value, add, h.update)
        h.update(b")")

    for value in values:
        add(value)
    return h.hexdigest()


def _spread(value: Any, add: Any, update: Any) -> None:
    if isinstance(value, Tensor):
        update(f"{value.dtype}{tuple(value.shape)}".encode())
        update(_bytes(value))
    elif isinstance(value, np.ndarray):
        update(f"{value.dtype}{value.shape}".encode())
        update(value.tobytes() if value.dtype != object else repr(value.tolist()).encode())
    elif isinstance(value, Mapping):
        for key, item in value.items():
            add(key)
            add(item)
    elif isinstance(value, Sequence):
        for item in value:
            add(item)
    elif isinstance(value, set | frozenset):
        update(repr(sorted(map(repr, value))).encode())
    elif isinstance(value, torch.Generator):
        add(value.get_state())
    elif isinstance(value, random.Random):
        add(value.getstate())
    elif isinstance(value, np.random.Generator):
        add(value.bit_generator.state)
    elif isinstance(value, np.random.BitGenerator):
        add(value.state)
    elif isinstance(value, nn.Module):
        add(dict(value.state_dict()))
        add(value.training)
    elif isinstance(value, types.MethodType):
        add(value.__self__)
    elif isinstance(value, _NAMED):
        update(repr(value).encode())
    elif hasattr(value, "__dict__"):
        add({name: item for name, item in vars(value).items()})
    elif hasattr(type(value), "__slots__"):
        add({name: getattr(value, name, None) for name in type(value).__slots__})
    else:
        update(repr(value).encode())  # a counter of itertools shows its number here


def _bytes(value: Tensor) -> bytes:
    flat = value.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def difference(a: Any, b: Any, where: str = "") -> str | None:
    """The first place where two values differ to the bit, in words, or ``None``."""
    place = where.lstrip(".") or "the value"
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return None if a is b else _between(a, b, place)
    if type(a) is not type(b) and not (isinstance(a, Mapping) and isinstance(b, Mapping)):
        return f"{place}: {type(a).__name__} and {type(b).__name__}"
    if dataclasses.is_dataclass(a) and not isinstance(a, type):
        for field in dataclasses.fields(a):
            found = difference(getattr(a, field.name), getattr(b, field.name), f"{where}.{field.name}")
            if found:
                return found
        return None
    if isinstance(a, Mapping):
        if list(a) != list(b):
            return f"{place}: keys {list(a)[:8]} and {list(b)[:8]}"
        return next((d for key in a if (d := difference(a[key], b[key], f"{where}[{key!r}]"))), None)
    if isinstance(a, list | tuple):
        if len(a) != len(b):
            return f"{place}: {len(a)} and {len(b)} items"
        pairs = enumerate(zip(a, b, strict=True))
        return next((d for i, (x, y) in pairs if (d := difference(x, y, f"{where}[{i}]"))), None)
    if isinstance(a, float) and a != a and b != b:
        return None
    return None if a == b else f"{place}: {a!r} and {b!r}"


def _between(a: Tensor, b: Tensor, place: str) -> str | None:
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{place}: {a.dtype} {tuple(a.shape)} and {b.dtype} {tuple(b.shape)}"
    if _bytes(a) == _bytes(b):
        return None
    away = (a.double() - b.double()).abs()
    return f"{place}: {int((away != 0).sum())} of {a.numel()} numbers differ, by up to {float(away.max()):.3g}"
