"""Images in parquet files with the schema of the Hugging Face hub."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import PIL
import pyarrow
import pyarrow.parquet
import pydantic

from ..errors import DataError, nearest
from .cache import cached
from .dataset import Dataset
from .images import decode_images
from .source import Amount, Array, Decoded, Limit, Normalize, Source, assemble, class_codes, located


def find_files(path: Path) -> tuple[list[Path], list[Path]]:
    """The files with training and with test rows: ``train.parquet`` or its shards ``train-*.parquet``, in order.

    A file is all training rows. The second list is empty where there is no test file. Raises `DataError`.
    """
    if path.is_file():
        return [path], []
    found = []
    for split in ("train", "test"):
        whole = path / f"{split}.parquet"
        found.append([whole] if whole.is_file() else sorted(path.glob(f"{split}-*.parquet")))
    if not found[0]:
        there = ", ".join(sorted(p.name for p in path.iterdir())[:8]) or "nothing"
        raise DataError(f"{path}: neither train.parquet nor train-*.parquet; there is {there}")
    return found[0], found[1]


def _open(path: Path) -> pyarrow.parquet.ParquetFile:
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: no readable parquet file (cut short?): {error}") from None


def _names(schema: pyarrow.Schema) -> dict[str, list[str]]:
    """The names of the classes by column, from the metadata that Hugging Face's ``datasets`` writes."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {c: f["names"] for c, f in features.items() if isinstance(f, dict) and isinstance(f.get("names"), list)}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def _column(files: Sequence[Path], column: str) -> list[Any]:
    values: list[Any] = []
    for path in files:
        with _open(path) as file:
            values += file.read(columns=[column]).column(column).to_pylist()
    return values


def _images(files: Sequence[Path], column: str) -> Iterator[bytes | None]:
    for path in files:
        with _open(path) as file:
            for batch in file.iter_batches(batch_size=1024, columns=[column]):
                images = batch.column(0)
                if pyarrow.types.is_struct(images.type):
                    images = images.flatten()[images.type.get_field_index("bytes")]
                yield from (image.as_py() for image in images)


class Parquet(Source):
    """Images in local parquet files: a folder with ``train`` and perhaps ``test`` files, or one file.

    ``path`` is seen from ``root`` (``""``: the working directory). The column ``image`` holds structs
    ``{"bytes", "path"}`` or plain bytes, ``label`` integers or strings; the classes have the names that the file
    gives, if any. ``columns`` are further columns kept as groupings of the rows (a domain, a client).

    Without a test file, ``test`` (a share below 1, or a number of rows) is held out, drawn with ``split_seed``,
    stratified by label and ``columns``; with ``test_by: domain`` out of every domain. ``size`` resizes all images to
    ``size x size``.
    """

    def __init__(
        self,
        *,
        path: str,
        root: str = "",
        image: str = "image",
        label: str = "label",
        columns: list[str] | None = None,
        size: Annotated[int, pydantic.Field(ge=1)] | None = None,
        test: Amount = 0.2,
        test_by: str | None = None,
        split_seed: int = 0,
        normalize: Normalize = "channel",
        limit: Limit = None,
        limit_test: Limit = None,
        cache: str | None = "auto",
    ) -> None:
        self.path = path
        self.root = root
        self.image = image
        self.label = label
        self.columns = list(columns or ())
        self.size = size
        self.test = test
        self.test_by = test_by
        self.split_seed = split_seed
        self.normalize = normalize
        self.limit = limit
        self.limit_test = limit_test
        self.cache = cache

    def load(self) -> Dataset:
        """The rows, from the cache where they were decoded before. Raises `DataError`."""
        path = located(self.root, self.path)
        train, test = find_files(path)
        settings = {
            "source": "parquet",
            "files": [len(train), len(test)],
            "columns": [self.image, self.label, *self.columns],
            "size": self.size,
            "pillow": PIL.__version__,  # its version may change the pixels of a JPEG
        }
        rows = cached(self.cache, [*train, *test], settings, lambda: self._decode(train, test))
        return assemble(
            rows,
            path.resolve().stem,
            self.normalize,
            test=self.test,
            test_by=self.test_by,
            split_seed=self.split_seed,
            limit=self.limit,
            limit_test=self.limit_test,
        )

    def _decode(self, train: Sequence[Path], test: Sequence[Path]) -> Decoded:
        files = [*train, *test]
        counts = [self._check(path) for path in files]
        if sum(counts) == 0:
            raise DataError(f"{files[0].parent}: there is no row in {', '.join(path.name for path in files)}")
        with _open(files[0]) as file:
            names = _names(file.schema_arrow)

        def coded(column: str) -> tuple[Array, tuple[str, ...]]:
            return class_codes(_column(files, column), f"{files[0].parent}, column {column!r}", names.get(column))

        labels, classes = coded(self.label)
        columns = {column: coded(column) for column in self.columns}
        what = f"{files[0].parent}, column {self.image!r}"
        features = decode_images(lambda: _images(files, self.image), sum(counts), self.size, what)
        return Decoded(features, labels, classes, columns, sum(counts[: len(train)]) if test else None)

    def _check(self, path: Path) -> int:
        """The number of rows of a file that has all columns."""
        with _open(path) as file:
            schema = file.schema_arrow
            wanted = [("image", self.image), ("label", self.label), *(("columns", c) for c in self.columns)]
            for setting, column in wanted:
                if column not in schema.names:
                    raise DataError(f"data.{setting}: {path} has no column {column!r}; {nearest(column, schema.names)}")
            kind = inner = schema.field(self.image).type
            if pyarrow.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
                inner = kind.field("bytes").type
            if not (pyarrow.types.is_binary(inner) or pyarrow.types.is_large_binary(inner)):
                raise DataError(
                    f"data.image: column {self.image!r} of {path} holds {kind}; it needs encoded images as bytes or as "
                    f"structs with 'bytes'"
                )
            return int(file.metadata.num_rows)
