"""What a setting may be, in words, from its annotation."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import annotated_types
import pydantic
from pydantic.fields import FieldInfo

_PLAIN = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def union_at(schema: Any, loc: Sequence[int | str]) -> tuple[int, str] | None:
    """How many items of a fault's place lead to the first union on its way, and what the union wants, in words.

    ``schema`` is a model or an annotation. The next item is pydantic's name for the branch, such as
    ``constrained-int``. ``None`` where there is no union.
    """
    kind: Any = schema
    for depth, item in enumerate(loc):
        bare, _ = _parts(kind)
        if len(branches(bare)) > 1:
            return depth, words(kind)
        bare = next(iter(branches(bare)), bare)
        bare, _ = _parts(bare)
        arguments = typing.get_args(bare)
        if isinstance(bare, type) and issubclass(bare, pydantic.BaseModel):
            found = bare.model_fields.get(str(item))
            if found is None:
                return None
            kind = typing.Annotated[found.annotation, found]
        elif _origin(bare, Mapping) and len(arguments) == 2:
            kind = arguments[1]
        elif typing.get_origin(bare) is tuple and isinstance(item, int) and ... not in arguments:
            kind = arguments[item] if item < len(arguments) else Any
        elif _origin(bare, Sequence) and arguments:
            kind = arguments[0]
        else:
            return None
    return None


def branches(kind: Any) -> list[Any]:
    """The members of a union but ``None``; of anything else, itself."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return [branch for branch in typing.get_args(kind) if branch is not type(None)]
    return [kind]


def words(kind: Any) -> str:
    """What an annotation wants: ``a whole number of 1 or more, or a text``. A field's own description comes first."""
    bare, metadata = _parts(kind)
    for item in metadata:
        if isinstance(item, FieldInfo) and item.description:
            return item.description
    options = branches(bare)
    if len(options) > 1:
        plain = [_parts(option) for option in options]
        # A whole number is a number.
        kept = [o for o, (b, m) in zip(options, plain, strict=True) if b is not int or (float, m) not in plain]
        said = list(dict.fromkeys(words(option) for option in kept))
        return ", or ".join(said) + _bounds(metadata)
    (bare,) = options
    return _one(bare) + _bounds(metadata)


def _one(kind: Any) -> str:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if origin is typing.Literal:
        return " or ".join(map(repr, arguments))
    if origin is typing.Annotated:
        return words(kind)
    if origin is tuple and ... not in arguments:
        return f"[{', '.join(words(argument) for argument in arguments)}]"
    if _origin(kind, Mapping) or (isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)):
        return "a mapping"
    if _origin(kind, Sequence):
        return "a list"
    return getattr(kind, "__name__", str(kind))


def _origin(kind: Any, base: type) -> bool:
    origin = typing.get_origin(kind) or kind
    return isinstance(origin, type) and issubclass(origin, base)


def _parts(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """An annotation without ``Annotated``, and what that adds to it."""
    if typing.get_origin(kind) is typing.Annotated:
        bare, metadata = _parts(typing.get_args(kind)[0])
        return bare, (*metadata, *kind.__metadata__)
    return kind, ()


def _bounds(metadata: Sequence[Any]) -> str:
    """The limits of a number, in words."""
    said = []
    for item in (inner for m in metadata for inner in (m.metadata if isinstance(m, FieldInfo) else (m,))):
        if isinstance(item, annotated_types.Ge):
            said.append(f"of {item.ge} or more")
        elif isinstance(item, annotated_types.Gt):
            said.append(f"above {item.gt}")
        elif isinstance(item, annotated_types.Le):
            said.append(f"of {item.le} or less")
        elif isinstance(item, annotated_types.Lt):
            said.append(f"below {item.lt}")
    return "".join(f" {text}" for text in said[:1]) + "".join(f" and {text}" for text in said[1:])
