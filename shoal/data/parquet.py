"""Images in parquet files with the schema of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import PIL
import pyarrow
import pyarrow.parquet

from ..errors import DataError
from .arrow import BLOCK, Fields, decode_rows
from .cache import cached
from .dataset import Dataset
from .images import Channels, Fit, Rule, Size, Unreadable
from .source import Amount, Cut, Decoded, Limit, Normalize, Source, Span, located


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


class FileRows:
    """The rows of a parquet file, read as they are asked for."""

    reads_paths = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        with self._open() as file:
            self.schema: pyarrow.Schema = file.schema_arrow
            self.count = int(file.metadata.num_rows)

    def _open(self) -> pyarrow.parquet.ParquetFile:
        try:
            return pyarrow.parquet.ParquetFile(self.path)
        except (pyarrow.ArrowInvalid, OSError) as error:
            raise DataError(f"{self.path}: no readable parquet file (cut short?): {error}") from None

    def column(self, name: str) -> list[Any]:
        """All values of a column."""
        with self._open() as file:
            values: list[Any] = file.read(columns=[name]).column(name).to_pylist()
        return values

    def blocks(self, name: str) -> Iterator[pyarrow.Array]:
        """A column in blocks of a bounded number of rows."""
        with self._open() as file:
            for batch in file.iter_batches(batch_size=BLOCK, columns=[name]):
                yield batch.column(0)


class Parquet(Source):
    """Images in local parquet files: a folder with ``train`` and perhaps ``test`` files, or one file.

    ``path`` is seen from ``root`` (``""``: the working directory). The column ``image`` holds structs
    ``{"bytes", "path"}`` or plain bytes, ``label`` integers or strings; the classes have the names that the file
    gives, if any. ``columns`` are further columns kept as groupings of the rows (a domain, a client).

    Without a test file, ``test`` (a share below 1, or a number of rows) is held out, drawn with ``split_seed``,
    stratified by label and ``columns``; with ``test_by: domain`` out of every domain. ``channels``, ``size``, ``fit``
    and ``unreadable`` say what every image becomes, see `shoal.data.images.Rule`.
    """

    def __init__(
        self,
        *,
        path: str,
        root: str = "",
        image: str = "image",
        label: str = "label",
        columns: list[str] | None = None,
        channels: Channels = None,
        size: Size = None,
        fit: Fit = "resize",
        unreadable: Unreadable = "error",
        test: Amount = 0.2,
        test_by: str | None = None,
        split_seed: int = 0,
        normalize: Normalize = "channel",
        rows: Span = None,
        limit: Limit = None,
        limit_test: Limit = None,
        cache: str | None = "auto",
    ) -> None:
        self.path = path
        self.root = root
        self.fields = Fields(image, label, tuple(columns or ()))
        self.rule = Rule.of(channels, size, fit, unreadable)
        self.cut = Cut(
            normalize, test=test, test_by=test_by, split_seed=split_seed, span=rows, limit=limit, limit_test=limit_test
        )
        self.cache = cache

    def load(self) -> Dataset:
        """The rows, from the cache where they were decoded before. Raises `DataError`."""
        path = located(self.root, self.path)
        train, test = find_files(path)
        settings = {
            "source": "parquet",
            "files": [len(train), len(test)],
            "columns": [self.fields.image, self.fields.label, *self.fields.columns],
            "rule": self.rule.settings(),
            "pillow": PIL.__version__,  # its version may change the pixels of a JPEG
        }
        rows = cached(self.cache, [*train, *test], settings, lambda: self._decode(train, test))
        return self.cut.of(rows, path.resolve().stem)

    def _decode(self, train: Sequence[Path], test: Sequence[Path]) -> Decoded:
        parts = [[FileRows(path) for path in files] for files in (train, test)]
        return decode_rows(parts[0], parts[1], self.fields, self.rule, str(train[0].parent))
