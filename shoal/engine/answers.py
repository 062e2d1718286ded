"""Whether what a program ends with is an answer: a method's author may put anything there."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..bank import Buffers
from ..messages import Part, Update


def check_answer(answer: Any) -> None:
    """Raises ``TypeError``, in words, for anything but an `Update` of `Part` objects of tensors.

    Sizes and values are looked at later, by `shoal.screening.Screen`, which knows what was asked.
    """
    if not isinstance(answer, Update):
        raise TypeError(f"train must give an Update; got {_kind(answer)}")
    found: Any = answer
    if not isinstance(found.weight, numbers.Real):
        raise TypeError(f"an Update's weight must be a number; got {_kind(found.weight)}")
    for name in ("parts", "state", "note"):
        if not isinstance(getattr(found, name), Mapping):
            raise TypeError(f"an Update's {name} must be a mapping; got {_kind(getattr(found, name))}")
    for key, part in found.parts.items():
        _check_part(f"entry {key!r}", part)


def _check_part(where: str, part: Any) -> None:
    if not isinstance(part, Part):
        hint = "; a learner's fit is a generator: part, state = yield from self.learner.fit(...)"
        raise TypeError(f"an Update's parts must be Parts; got {_kind(part)} for {where}{hint}")
    found: Any = part
    if not isinstance(found.extra, Mapping):
        raise TypeError(f"{where}: a Part's extra must be a mapping; got {_kind(found.extra)}")
    if not isinstance(found.buffers, Buffers):
        raise TypeError(f"{where}: a Part's buffers must be Buffers; got {_kind(found.buffers)}")
    tensors = {"vector": found.vector, "mask": found.mask, "base": found.base}
    tensors |= {"floats": found.buffers.floats, "counters": found.buffers.counters}
    for name, value in tensors.items():
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(f"{where}: a Part's {name} must be a tensor or None; got {_kind(value)}")
    for name, value in found.extra.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{where}: a Part's extra {name!r} must be a tensor; got {_kind(value)}")


def _kind(thing: object) -> str:
    return type(thing).__name__
