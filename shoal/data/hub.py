"""Images from the Hugging Face hub, through its package ``datasets``."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import PIL
import pyarrow
from pydantic import ConfigDict

from ..errors import ConfigError, DataError
from ..registry import Strict
from .arrow import BLOCK, Fields, decode_rows, image_file
from .cache import cached
from .dataset import Dataset
from .images import Channels, Fit, Rule, Size, Unreadable
from .source import Amount, Cut, Decoded, Limit, Normalize, Source, Span


class Expected(Strict):
    """What the data must look like; ``null`` is not compared.

    ``classes``: how many. ``size`` (``[height, width]``) and ``channels``: of the images as they are kept. ``rows``:
    the source's own training and test rows, unreadable images and all; the second is ``null`` where test rows are held
    out. ``columns``: all columns of the source, in any order.
    """

    model_config = ConfigDict(frozen=True)

    classes: int | None = None
    size: tuple[int, int] | None = None
    channels: int | None = None
    rows: tuple[int | None, int | None] | None = None
    columns: tuple[str, ...] | None = None


class TableRows:
    """The rows of one split, as the package ``datasets`` loaded it."""

    reads_paths = True
    """Data sets that are folders of images keep only paths to the files that were fetched."""

    def __init__(self, loaded: Any, name: str) -> None:
        # A mapping of indices would be passed over by the plain table.
        self.loaded = loaded if loaded._indices is None else loaded.flatten_indices()
        self.name = name
        self.count = len(self.loaded)
        table = self.loaded.data.table
        self.table = table.replace_schema_metadata(self.loaded.features.arrow_schema.metadata)
        self.schema: pyarrow.Schema = self.table.schema

    def column(self, name: str) -> list[Any]:
        """All values of a column."""
        values: list[Any] = self.table.column(name).to_pylist()
        return values

    def blocks(self, name: str) -> Iterator[pyarrow.Array]:
        """A column in blocks of a bounded number of rows."""
        for batch in self.table.select([name]).to_batches(max_chunksize=BLOCK):
            yield batch.column(0)

    def files(self, image: str) -> list[Path]:
        """The files that hold the rows, and the images that are files of their own; empty if they are in memory."""
        found = [Path(file["filename"]) for file in self.loaded.cache_files]
        if found and image in self.schema.names and pyarrow.types.is_struct(self.schema.field(image).type):
            for block in self.blocks(image):
                inner = dict(zip([field.name for field in block.type], block.flatten(), strict=True))
                if "path" in inner and "bytes" in inner and inner["bytes"].null_count:
                    paths = inner["path"].filter(inner["bytes"].is_null()).to_pylist()
                    found += [file for file in map(image_file, paths) if file is not None]
        return found


def _package() -> Any:
    try:
        return importlib.import_module("datasets")
    except ImportError as error:
        raise ConfigError(
            f"data.kind: hub needs the package 'datasets', which cannot be imported ({error}); install it with: "
            f"pip install 'shoal[hub]'"
        ) from None


@contextlib.contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """No progress bars unless somebody watches them on a terminal."""
    hub: Any = importlib.import_module("huggingface_hub.utils")
    shown = [m for m in (datasets, hub) if not m.are_progress_bars_disabled()] if not sys.stderr.isatty() else []
    for module in shown:
        module.disable_progress_bars()
    try:
        yield
    finally:
        for module in shown:
            module.enable_progress_bars()


class Hub(Source):
    """A data set of the Hugging Face hub with a column of images; needs ``pip install 'shoal[hub]'``.

    This is the one source that reaches for the network: what was fetched is kept by ``datasets`` (in its own folder,
    ``HF_HOME``), and with ``HF_HUB_OFFLINE=1`` only that is used. Code that comes with a data set is never run.

    ``name`` is ``owner/name``, or a local folder in the hub's layout (seen from ``root``); ``config`` is the data
    set's configuration, ``revision`` a branch, tag or commit. ``train`` and ``test`` name its splits; without one of
    test rows ``test`` is a share or a number of rows to hold out as in `Parquet` (``null``: a fifth).

    ``image``, ``label``, ``columns`` and all other settings are those of `Parquet`. ``expect`` says what the data must
    look like, see `Expected`.
    """

    def __init__(
        self,
        *,
        name: str,
        root: str = "",
        config: str | None = None,
        revision: str | None = None,
        train: str = "train",
        test: str | Amount | None = "test",
        image: str = "image",
        label: str = "label",
        columns: list[str] | None = None,
        channels: Channels = None,
        size: Size = None,
        fit: Fit = "resize",
        unreadable: Unreadable = "error",
        expect: Expected | None = None,
        test_by: str | None = None,
        split_seed: int = 0,
        normalize: Normalize = "channel",
        rows: Span = None,
        limit: Limit = None,
        limit_test: Limit = None,
        cache: str | None = "auto",
    ) -> None:
        if train == test:
            raise ConfigError(f"data.test: the split {test!r} is trained on; name another, or a share to hold out")
        self.name = name
        self.root = root
        self.config = config
        self.revision = revision
        self.splits = [train, test] if isinstance(test, str) else [train]
        self.fields = Fields(image, label, tuple(columns or ()))
        self.rule = Rule.of(channels, size, fit, unreadable)
        self.expect = expect or Expected()
        self.cut = Cut(
            normalize,
            test=0.2 if test is None or isinstance(test, str) else test,
            test_by=test_by,
            split_seed=split_seed,
            span=rows,
            limit=limit,
            limit_test=limit_test,
        )
        self.cache = cache

    def load(self) -> Dataset:
        """The rows; fetches them unless they are there. Raises `DataError`, and `ConfigError` without ``datasets``."""
        parts = self._fetch()
        self._compare("columns", sorted(parts[0].schema.names), self.expect.columns and sorted(self.expect.columns))
        counts = [part.count for part in parts] + [None] * (2 - len(parts))
        self._compare("rows", counts, self.expect.rows and list(self.expect.rows))
        settings = {
            "source": "hub",
            "splits": self.splits,  # a split may be a part of a file, such as train[:10%]
            "columns": [self.fields.image, self.fields.label, *self.fields.columns],
            "rule": self.rule.settings(),
            "pillow": PIL.__version__,
        }
        files = [part.files(self.fields.image) for part in parts]
        cache = self.cache if all(files) else None  # nothing to tell the content by
        rows = cached(cache, [file for found in files for file in found], settings, lambda: self._decode(parts))
        self._compare("classes", len(rows.classes), self.expect.classes)
        _, *size, channels = rows.features.shape
        self._compare("size", size, self.expect.size and list(self.expect.size))
        self._compare("channels", channels, self.expect.channels)
        return self.cut.of(rows, Path(self.name).name)

    def _fetch(self) -> list[TableRows]:
        datasets = _package()
        folder = Path(self.root).expanduser() / Path(self.name).expanduser()
        place = str(folder) if folder.is_dir() else self.name
        what = f"{place}, config {self.config or 'default'}, revision {self.revision or 'newest'}"
        try:
            with _quiet(datasets):
                loaded = datasets.load_dataset(place, self.config, split=list(self.splits), revision=self.revision)
                return [TableRows(rows, f"{place}, {name}") for rows, name in zip(loaded, self.splits, strict=True)]
        except Exception as error:  # of the network, the hub, its files or pyarrow
            hint = "is the name right, the network there, HF_HUB_OFFLINE unset?"
            if "split" in str(error).lower():
                hint = "data.train and data.test name splits; without one of test rows hold some out, data.test=0.2"
            elif "config" in str(error).lower():
                hint = "data.config names one of the data set's configurations"
            raise DataError(
                f"data.name: cannot load the splits {self.splits} of {what}: {type(error).__name__}: {error} "
                f"(tried with the package 'datasets' {datasets.__version__}; {hint})"
            ) from error

    def _decode(self, parts: Sequence[TableRows]) -> Decoded:
        return decode_rows(parts[:1], parts[1:], self.fields, self.rule, self.name)

    def _compare(self, what: str, found: Any, expected: Any) -> None:
        if expected is not None and found != expected:
            raise DataError(
                f"data.expect.{what}: {expected}, but {self.name} has {found}; is it another data set or version? "
                f"Set data.expect.{what} to null to take it as it is"
            )
