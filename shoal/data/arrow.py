"""Images in Arrow tables with the schema of the Hugging Face hub: what local files and the hub have in common."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow

from ..errors import DataError, nearest
from .images import Data, Rule, decode_images
from .source import Array, Decoded, class_codes


class Rows(Protocol):
    """The rows of one file or table."""

    @property
    def name(self) -> str:
        """What errors call it."""

    @property
    def schema(self) -> pyarrow.Schema:
        """The columns; the metadata that Hugging Face's ``datasets`` writes name the classes."""

    @property
    def reads_paths(self) -> bool:
        """Whether an image without bytes may be read from its path."""

    @property
    def count(self) -> int:
        """The number of rows."""

    def column(self, name: str) -> list[Any]:
        """All values of a column."""

    def blocks(self, name: str) -> Iterator[pyarrow.Array]:
        """A column in blocks of a bounded number of rows."""


class Fields(NamedTuple):
    """The names of the columns: the encoded image, the label, and further groupings of the rows."""

    image: str
    label: str
    columns: Sequence[str]


BLOCK = 1024
"""Rows of a block."""


def class_names(schema: pyarrow.Schema) -> dict[str, list[str]]:
    """The names of the classes by column; empty where the schema has none."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {c: f["names"] for c, f in features.items() if isinstance(f, dict) and isinstance(f.get("names"), list)}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def decode_rows(train: Sequence[Rows], test: Sequence[Rows], fields: Fields, rule: Rule, where: str) -> Decoded:
    """The rows of all parts, first those of ``train``; without ``test`` there is no split.

    ``where`` names the source in errors. An image that the rule leaves out is gone from the labels, the columns and
    the count of training rows, too. Raises `DataError`.
    """
    parts = [*train, *test]
    for part in parts:
        _check(part, fields)
    total = sum(part.count for part in parts)
    if total == 0:
        raise DataError(f"{where}: there is no row in {', '.join(Path(part.name).name for part in parts)}")
    names = _names(parts, fields)
    values = {c: [v for part in parts for v in part.column(c)] for c in {fields.label, *fields.columns}}

    def coded(column: str, kept: Array | None = None) -> tuple[Array, tuple[str, ...]]:
        chosen = values[column] if kept is None else [values[column][row] for row in kept]
        return class_codes(chosen, f"{where}, column {column!r}", names.get(column))

    wanted = (fields.label, *fields.columns)
    found = {column: coded(column) for column in wanted}  # before the images, which take long
    images = decode_images(lambda: _items(parts, fields.image), total, rule, f"{where}, column {fields.image!r}")
    if len(images.kept) < total:
        found = {column: coded(column, images.kept) for column in wanted}
    labels, classes = found[fields.label]
    train_rows = int(np.searchsorted(images.kept, sum(part.count for part in train))) if test else None
    columns = {column: found[column] for column in fields.columns}
    return Decoded(
        images.pixels, labels, classes, columns, train_rows, notes=images.notes, reader=rule.reader(images.pixels)
    )


def _names(parts: Sequence[Rows], fields: Fields) -> dict[str, list[str]]:
    """The class names that the parts agree on."""
    first = class_names(parts[0].schema)
    for part, column in itertools.product(parts[1:], (fields.label, *fields.columns)):
        here = class_names(part.schema).get(column)
        if here != first.get(column):
            raise DataError(
                f"{part.name}, column {column!r}: the classes are called {here}, but in {parts[0].name} "
                f"{first.get(column)}; the same number would mean another class"
            )
    return first


def _items(parts: Sequence[Rows], column: str) -> Iterator[tuple[str, Data]]:
    row = 0
    for part in parts:
        for block in part.blocks(column):
            paths = None
            if pyarrow.types.is_struct(block.type):
                inner = dict(zip([field.name for field in block.type], block.flatten(), strict=True))
                block, paths = inner["bytes"], inner.get("path") if part.reads_paths else None
            for i, image in enumerate(block):
                data: Data = image.as_py()
                if data is None and paths is not None:
                    data = image_file(paths[i].as_py())
                yield f"row {row}", data
                row += 1


def image_file(path: str | None) -> Path | None:
    """The file behind the path of an image without bytes; a relative one would mean another in every folder."""
    return Path(path) if path and Path(path).is_absolute() and Path(path).is_file() else None


def _check(part: Rows, fields: Fields) -> None:
    """Raises `DataError` unless the part has all columns."""
    schema = part.schema
    for setting, column in [
        ("image", fields.image),
        ("label", fields.label),
        *(("columns", c) for c in fields.columns),
    ]:
        if column not in schema.names:
            hint = nearest(column, schema.names)
            raise DataError(f"data.{setting}: {part.name} has no column {column!r}; {hint}")
    kind = inner = schema.field(fields.image).type
    if pyarrow.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        inner = kind.field("bytes").type
    if not (pyarrow.types.is_binary(inner) or pyarrow.types.is_large_binary(inner)):
        raise DataError(
            f"data.image: column {fields.image!r} of {part.name} holds {kind}; it needs encoded images as bytes or as "
            f"structs with 'bytes'"
        )
