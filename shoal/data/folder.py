"""Images in folders: one folder per class, perhaps below one per client or domain."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import PIL

from ..errors import ConfigError, DataError
from .cache import cached
from .dataset import Dataset
from .images import Channels, Data, Fit, Rule, Size, Unreadable, decode_images
from .source import Amount, Array, Cut, Decoded, Limit, Normalize, Source, Span, encode, located

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
"""The endings of an image's name, in any case."""

_VALIDATION = ("val", "valid", "validation", "dev")
_SPLITS = ("train", "test", *_VALIDATION)
_WHOLE = re.compile(r"0|[1-9][0-9]*")


def name_codes(names: Sequence[str]) -> tuple[Array, tuple[str, ...]]:
    """Dense int64 codes of names, and the names in order: by number if all are whole numbers, else alphabetic."""
    if names and all(_WHOLE.fullmatch(name) and len(name) < 19 for name in names):
        return encode(np.array([int(name) for name in names], dtype=np.int64))
    return encode(np.array(names, dtype=np.str_))


@dataclass
class _Found:
    """The images below a folder, and what was passed over."""

    images: list[tuple[str, Path]] = field(default_factory=list)
    """The path from the split's folder, in posix form and NFC, and the file."""
    ignored: list[str] = field(default_factory=list)
    empty: list[tuple[str, ...]] = field(default_factory=list)
    """Folders with neither an image nor a folder in them."""


def _entries(folder: Path) -> list[tuple[str, Path]]:
    """What is in a folder, by name in NFC: a name has the same letters wherever the files were packed."""
    found: dict[str, Path] = {}
    try:
        paths = list(folder.iterdir())
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error}") from None
    for path in paths:
        try:
            path.name.encode()
        except UnicodeEncodeError:
            raise DataError(f"{folder}: the name {path.name!r} is not UTF-8; rename it") from None
        name = unicodedata.normalize("NFC", path.name)
        if name in found:
            raise DataError(f"{folder}: two entries are called {name!r}, written in two ways in Unicode; rename one")
        found[name] = path
    return sorted(found.items())


def _is_image(name: str) -> bool:
    return not name.startswith(".") and name.lower().endswith(SUFFIXES)


def _walk(folder: Path, levels: Sequence[str], found: _Found, names: tuple[str, ...], above: frozenset[str]) -> None:
    """Collects the images below ``folder``, which is ``names`` deep; ``above`` are the real paths it lies in."""
    real = os.path.realpath(folder)
    if real in above:
        raise DataError(f"{folder}: a link to a folder that it lies in ({real}): a loop; remove the link")
    above |= {real}
    entries = _entries(folder)
    for name, path in entries:
        here = "/".join((*names, name))
        if name.startswith("."):
            found.ignored.append(here)
        elif path.is_dir():
            _walk(path, levels, found, (*names, name), above)
        elif not _is_image(name):
            found.ignored.append(here)
        elif not path.exists():
            raise DataError(f"{path}: a link that points nowhere; remove it")
        elif len(names) != len(levels):
            raise DataError(_depth(path, names, levels))
        else:
            found.images.append((here, path))
    if names and not any(path.is_dir() or _is_image(name) for name, path in entries):
        found.empty.append(names)


def _depth(path: Path, names: tuple[str, ...], levels: Sequence[str]) -> str:
    """What is wrong with an image that lies too high or too deep."""
    layout = "/".join([*(f"<{level}>" for level in levels), "image"])
    if len(names) < len(levels):
        missing = ", ".join(repr(level) for level in levels[len(names) :])
        hint = f"no folder says its {missing}; move it, or leave the level out of data.levels"
    else:
        hint = "there is a folder too many; name its level in data.levels (one of them is 'class')"
        if names[0].lower() in _SPLITS:
            hint = (
                f"{names[0]!r} looks like a split: with folders 'train' and 'test' side by side and split: auto they "
                f"are one (rename it), or give data.path the folder {names[0]!r} itself"
            )
    return f"{path}: {len(names)} folders above the image, but data.levels says {layout}; {hint}"


def _split(path: Path, split: str) -> tuple[list[Path], list[str]]:
    """The folders of the splits, one or ``train`` and ``test``, and what is passed over beside them."""
    there = {name: entry for name, entry in _entries(path) if entry.is_dir() and not name.startswith(".")}
    if split == "none" or not {"train", "test"} <= set(there):
        return [path], []
    others = sorted(set(there) - {"train", "test"})
    unknown = [name for name in others if name.lower() not in _VALIDATION]
    if unknown:
        raise DataError(
            f"{path}: beside the folders 'train' and 'test' there is {unknown}; move it away, or set split: none "
            f"if all of them are classes or groups"
        )
    return [there["train"], there["test"]], others


class Folder(Source):
    """Images in folders, one image to a file.

    ``levels`` names the levels of folders below ``path`` from top to bottom; one is ``class``, the others become
    columns: ``[client, class]`` is a folder per client with a folder per class in it. Where ``path`` holds folders
    ``train`` and ``test`` and ``split`` is ``auto``, they are the source's own split, with the levels inside each;
    otherwise ``test`` rows are held out as in `Parquet`. Rows are in the order of their paths by code point (names in
    Unicode's form NFC). Classes are in alphabetic order; in that of their numbers if all are whole numbers.

    Hidden files and files without one of `SUFFIXES` are passed over and counted in the notes; so are classes without
    an image. An image at another depth than the levels say is an error: a missing level never makes one big client.
    Links are followed; a loop is an error. ``channels``, ``size``, ``fit`` and ``unreadable`` say what every image
    becomes, see `shoal.data.images.Rule`.
    """

    def __init__(
        self,
        *,
        path: str,
        root: str = "",
        levels: tuple[str, ...] = ("class",),
        split: Literal["auto", "none"] = "auto",
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
        self.levels = levels
        if self.levels.count("class") != 1 or len(set(self.levels)) != len(self.levels) or "" in self.levels:
            raise ConfigError(
                f"data.levels: names of the folder levels from top to bottom, all different, one of them 'class', such "
                f"as [client, class]; got {list(self.levels)}"
            )
        self.split = split
        self.rule = Rule.of(channels, size, fit, unreadable)
        self.cut = Cut(
            normalize, test=test, test_by=test_by, split_seed=split_seed, span=rows, limit=limit, limit_test=limit_test
        )
        self.cache = cache

    def load(self) -> Dataset:
        """The rows, from the cache where they were decoded before. Raises `DataError`."""
        path = located(self.root, self.path)
        if not path.is_dir():
            raise DataError(f"data.path: {path} is not a folder; give the folder above the levels {list(self.levels)}")
        folders, others = _split(path, self.split)
        found = [_Found() for _ in folders]
        for folder, part in zip(folders, found, strict=True):
            _walk(folder, self.levels, part, (), frozenset())
            if not part.images:
                raise DataError(f"{folder}: there is no image; their names end in {', '.join(SUFFIXES)}")
        settings = {
            "source": "folder",
            # The content alone does not tell the class.
            "names": [[name for name, _ in part.images] for part in found],
            "levels": self.levels,
            "rule": self.rule.settings(),
            "pillow": PIL.__version__,
        }
        files = [file for part in found for _, file in part.images]
        rows = cached(self.cache, files, settings, lambda: self._decode(path, found))
        rows = replace(rows, notes=(*rows.notes, *self._notes(rows, found, others)))
        return self.cut.of(rows, path.resolve().name)

    def _decode(self, path: Path, found: Sequence[_Found]) -> Decoded:
        splits = ("train/", "test/") if len(found) > 1 else ("",)
        rows = [(split, *row) for split, part in zip(splits, found, strict=True) for row in part.images]

        def items() -> Iterator[tuple[str, Data]]:
            return ((f"{split}{name}", file) for split, name, file in rows)

        images = decode_images(items, len(rows), self.rule, str(path))
        names = [rows[row][1].split("/") for row in images.kept]
        codes = {level: name_codes([parts[i] for parts in names]) for i, level in enumerate(self.levels)}
        labels, classes = codes.pop("class")
        train_rows = int(np.searchsorted(images.kept, len(found[0].images))) if len(found) > 1 else None
        return Decoded(
            images.pixels,
            labels,
            classes,
            codes,
            train_rows,
            notes=images.notes,
            reader=self.rule.reader(images.pixels),
        )

    def _notes(self, rows: Decoded, found: Sequence[_Found], others: Sequence[str]) -> Iterable[str]:
        """Remarks on the folders; not in the cache, because files that are passed over are not part of its key."""
        ignored = [name for part in found for name in part.ignored]
        if ignored:
            yield f"{len(ignored)} files or folders are passed over, hidden or no images by name: {_listed(ignored)}"
        if others:
            yield f"the folders {', '.join(others)} beside train and test are passed over"
        empty = [names for part in found for names in part.empty]
        if empty:
            yield f"{len(empty)} folders hold no image: {_listed(['/'.join(names) for names in empty])}"
        place = self.levels.index("class")
        without = {names[place] for names in empty if len(names) > place} - set(rows.classes)
        if without:
            yield f"{len(without)} names of class folders are no classes, without an image: {_listed(sorted(without))}"
        if rows.train_rows is not None:
            unseen = sorted(set(rows.labels[rows.train_rows :].tolist()) - set(rows.labels[: rows.train_rows].tolist()))
            if unseen:
                yield f"{len(unseen)} classes have test rows only: {_listed([rows.classes[code] for code in unseen])}"


def _listed(names: Sequence[str], most: int = 10) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
