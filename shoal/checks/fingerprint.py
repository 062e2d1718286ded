"""Fingerprints of values, to the bit, and where two values differ."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import random
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, torch.dtype, torch.device)


def fingerprint(*values: Any) -> str:
    """A hash of all that the values hold: tensors to the bit, attributes of objects, states of generators.

    Equal content gives equal hashes, shared or not. A list is not a tuple; all mappings are alike.
    """
    return _print(list(values), {}).hex()


def _print(value: Any, known: dict[int, tuple[Any, bytes]]) -> bytes:
    if isinstance(value, _PLAIN):
        return _hash(type(value).__name__, repr(value).encode())
    if id(value) in known:
        return known[id(value)][1]
    known[id(value)] = (value, b"inside itself")  # held, or a temporary's id would be given to another
    name = "mapping" if isinstance(value, Mapping) else type(value).__qualname__
    found = _hash(name, b"".join(_pieces(value, known)))
    known[id(value)] = (value, found)
    return found


def _hash(name: str, content: bytes) -> bytes:
    return hashlib.blake2b(name.encode() + b"\0" + content, digest_size=16).digest()


def _pieces(value: Any, known: dict[int, tuple[Any, bytes]]) -> Iterator[bytes]:
    if isinstance(value, Tensor):
        yield f"{value.dtype}{tuple(value.shape)}".encode()
        yield bits(value)
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype}{value.shape}".encode()
        yield repr(value.tolist()).encode() if value.dtype == object else value.tobytes()
    else:
        inside = _inside(value)
        if inside is None:
            yield repr(value).encode()  # itertools.count shows its number here
        else:
            for item in inside:
                yield _print(item, known)


def _inside(value: Any) -> Iterable[Any] | None:
    """What a value is made of, or ``None`` where only its text says something."""
    if isinstance(value, Mapping):
        return [item for pair in value.items() for item in pair]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if isinstance(value, Sequence):
        return value
    if isinstance(value, torch.Generator):
        return [value.get_state()]
    if isinstance(value, random.Random):
        return [value.getstate()]
    if isinstance(value, np.random.Generator):
        return [value.bit_generator.state]
    if isinstance(value, nn.Module):
        return [dict(value.state_dict()), value.training]
    if isinstance(value, types.MethodType):
        return [value.__func__.__qualname__, value.__self__]
    if isinstance(value, _NAMED):
        return None
    if hasattr(value, "__dict__"):
        return [{name: item for name, item in vars(value).items() if not _kept(value, name)}]
    if hasattr(type(value), "__slots__"):
        return [getattr(value, name, None) for name in type(value).__slots__]
    return None


def _kept(value: Any, name: str) -> bool:
    """Whether a frozen record keeps this for speed: what a cached property gives follows from the fields."""
    return dataclasses.is_dataclass(value) and isinstance(getattr(type(value), name, None), functools.cached_property)


def bits(value: Tensor) -> bytes:
    """The bytes of a tensor, in the order of its indices."""
    flat = value.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def difference(a: Any, b: Any, where: str = "") -> str | None:
    """The first place where two values differ to the bit, in words, or ``None``."""
    place = where.lstrip(".") or "the value"
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return _between(a, b, place)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        if list(a) != list(b):
            return f"{place}: keys {list(a)[:8]} and {list(b)[:8]}"
        return _first((f"{where}[{key!r}]", a[key], b[key]) for key in a)
    if type(a) is not type(b):
        return f"{place}: {type(a).__name__} and {type(b).__name__}"
    if dataclasses.is_dataclass(a) and not isinstance(a, type):
        return _first((f"{where}.{f.name}", getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, list | tuple):
        if len(a) != len(b):
            return f"{place}: {len(a)} and {len(b)} items"
        return _first((f"{where}[{i}]", x, y) for i, (x, y) in enumerate(zip(a, b, strict=True)))
    if isinstance(a, float) and a != a and b != b:
        return None
    return None if a == b else f"{place}: {a!r} and {b!r}"


def _first(places: Iterable[tuple[str, Any, Any]]) -> str | None:
    for where, a, b in places:
        found = difference(a, b, where)
        if found is not None:
            return found
    return None


def _between(a: Tensor, b: Tensor, place: str) -> str | None:
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{place}: {a.dtype} {tuple(a.shape)} and {b.dtype} {tuple(b.shape)}"
    if bits(a) == bits(b):
        return None
    away = (a.double() - b.double()).abs()
    return f"{place}: {int((away != 0).sum())} of {a.numel()} numbers differ, by up to {float(away.max()):.3g}"
