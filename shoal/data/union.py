"""Several image sources as one: their rows one after another, brought to one shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import pydantic

from .. import registry
from ..errors import DataError
from .dataset import Dataset
from .folder import name_codes
from .images import Channels, Fit, Rule, Size, fitted
from .source import Array, Decoded, Limit, Normalize, Source, assemble

COLUMN = "source"
"""The column with the sources' names."""


def _resolved(sources: list[dict[str, Any] | str]) -> list[dict[str, Any]]:
    """The sources with all their settings; here, so that config.yaml holds every default."""
    return [registry.resolve("data", given, f"data.sources[{i}]") for i, given in enumerate(sources)]


Sources = Annotated[list[dict[str, Any] | str], pydantic.Field(min_length=1), pydantic.AfterValidator(_resolved)]


class Union(Source):
    """The rows of several image sources, one after another, each with its own training and test rows.

    ``sources`` are ``data`` sections of their own, of any kind with images. ``channels``, ``size`` and ``fit`` bring
    all to one shape, see `shoal.data.images.Rule`; without ``channels`` grey sources among coloured ones get three.
    What still differs is an error. ``root`` is the folder that the paths of sources without a ``root`` of their own
    start from. ``labels: separate`` gives every source classes of its own, called ``mnist:3``;
    ``shared`` merges classes with equal names. The column ``source`` has the sources' names; a name that comes again
    gets a number (``digits``, ``digits-2``). A column that only some sources have is ``""`` for the rows of the others.

    Where white is not 255 (`Dataset.peak` p: 16 for the digits), a value v becomes ``floor((510 v + p) / 2p)``:
    ``255 v / p`` to the nearest whole number, halves upwards, before an image is resized. The values are normalised
    over the training rows of all sources; the sources' own ``normalize`` plays no part. ``limit`` and ``limit_test``
    are for all rows together, beside those of each source.
    """

    def __init__(
        self,
        *,
        sources: Sources,
        root: str = "",
        labels: Literal["separate", "shared"] = "separate",
        channels: Channels = None,
        size: Size = None,
        fit: Fit = "resize",
        split_seed: int = 0,
        normalize: Normalize = "channel",
        limit: Limit = None,
        limit_test: Limit = None,
    ) -> None:
        self.sources = _resolved(sources)
        self.root = root
        self.labels = labels
        self.rule = Rule.of(channels, size, fit)
        self.split_seed = split_seed
        self.normalize = normalize
        self.limit = limit
        self.limit_test = limit_test

    def load(self) -> Dataset:
        """The rows of all sources. Raises `DataError`."""
        loaded: list[Dataset] = [
            registry.build("data", self._rooted(settings), where=f"data.sources[{i}]").load()
            for i, settings in enumerate(self.sources)
        ]
        parts = dict(zip(numbered([data.name for data in loaded]), loaded, strict=True))
        for name, data in parts.items():
            _check(name, data)
        pixels = self._pixels(parts)
        order = [np.arange(len(data.train)) for data in loaded]
        order += [np.arange(len(data.train), len(data.train) + len(data.test)) for data in loaded]
        begins = np.cumsum([0, *(len(data.train) + len(data.test) for data in loaded[:-1])])
        rows = np.concatenate([o + b for o, b in zip(order, [*begins, *begins], strict=True)])
        labels, classes = self._classes(parts)
        columns, notes = _columns(parts)
        features = np.concatenate(list(pixels.values()))[rows]
        decoded = Decoded(
            features,
            labels[rows],
            classes,
            {column: (codes[rows], names) for column, (codes, names) in columns.items()},
            sum(len(data.train) for data in loaded),
            notes=(*(f"{name}: {note}" for name, data in parts.items() for note in data.notes), *notes),
            reader={**self.rule.reader(features), "fit": self._fit(loaded), **self._common(loaded)},
        )
        return assemble(
            decoded,
            "+".join(parts),
            self.normalize,
            split_seed=self.split_seed,
            limit=self.limit,
            limit_test=self.limit_test,
        )

    def _rooted(self, settings: dict[str, Any]) -> dict[str, Any]:
        """The settings of a source with the common root, where it has none of its own."""
        return {**settings, "root": self.root} if settings.get("root") == "" else settings

    def _pixels(self, parts: Mapping[str, Dataset]) -> dict[str, Array]:
        """The images of each source, training rows first, all in one shape."""
        rule = self.rule
        if rule.channels is None and {data.features.shape[-1] for data in parts.values()} == {1, 3}:
            rule = Rule(3, rule.size, rule.fit)
        found: dict[str, Array] = {}
        for name, data in parts.items():
            raw = np.asarray(data.features.numpy()[_used(data)])
            found[name] = fitted(_scaled(raw, data.peak, name), rule, name)
            first = next(iter(found))
            if found[name].shape[1:] != found[first].shape[1:]:
                here, there = (" x ".join(map(str, found[key].shape[1:])) for key in (name, first))
                raise DataError(
                    f"data.sources: the images of {name!r} are {here} (height x width x channels), but those of "
                    f"{first!r} {there}; set data.size and data.channels, such as size: 32, channels: 3"
                )
        return found

    def _classes(self, parts: Mapping[str, Dataset]) -> tuple[Array, tuple[str, ...]]:
        """Labels in the order of `_used`, and the classes in the order of the sources."""
        prefix = {name: f"{name}:" if self.labels == "separate" else "" for name in parts}
        named = {name: [prefix[name] + c for c in data.classes] for name, data in parts.items()}
        classes = list(dict.fromkeys(c for names in named.values() for c in names))
        place = {c: i for i, c in enumerate(classes)}
        codes = [
            np.array([place[c] for c in named[name]], dtype=np.int64)[data.labels.numpy()[_used(data)]]
            for name, data in parts.items()
        ]
        return np.concatenate(codes), tuple(classes)

    def _fit(self, loaded: Sequence[Dataset]) -> str | None:
        """How further images come to the size: by this rule, or by that of the sources if they have one in common."""
        if self.rule.size is not None:
            return self.rule.fit
        fits = {data.reader.get("fit") for data in loaded}
        return fits.pop() if len(fits) == 1 else None

    def _common(self, loaded: Sequence[Dataset]) -> dict[str, Any]:
        """What else is done with further images: what the sources do where they all do it."""
        rules = {data.reader["unreadable"] for data in loaded if "unreadable" in data.reader}
        return {
            "convert": self.rule.channels is not None or all(data.reader.get("convert") for data in loaded),
            "unreadable": "skip" if rules == {"skip"} else "error",
        }


def numbered(names: Sequence[str]) -> list[str]:
    """The names, with a number from 2 on where one comes again, never one that is there already."""
    found: list[str] = []
    for name in names:
        number, free = 1, name
        while free in found or (number > 1 and free in names):
            number += 1
            free = f"{name}-{number}"
        found.append(free)
    return found


def _check(name: str, data: Dataset) -> None:
    if not data.is_image or data.is_regression:
        what = "real values to learn" if data.is_regression else f"a table of {data.shape[0]} features"
        raise DataError(f"data.sources: a union needs images with classes; {name!r} has {what}")
    if COLUMN in data.columns:
        raise DataError(
            f"data.sources: {name!r} has a column {COLUMN!r} of its own, which is the name of the column that a union "
            f"adds; leave it out, or list the sources of an inner union in the outer one"
        )
    if data.peak != int(data.peak):
        raise DataError(f"data.sources: {name!r} has pixels up to {data.peak}; a union needs a whole number")


def _used(data: Dataset) -> Array:
    """The rows that a source uses, training rows first; a limit leaves others unused."""
    return np.concatenate([data.train.numpy(), data.test.numpy()])


def _scaled(pixels: Array, peak: float, name: str) -> Array:
    """Pixels with the values 0 to ``peak`` as values 0 to 255, by a table of whole numbers."""
    p = int(peak)
    if p == 255:
        return pixels
    if pixels.size and int(pixels.max()) > p:
        raise DataError(f"{name}: a pixel of {int(pixels.max())}, but white is {p}")
    table = (510 * np.arange(p + 1) + p) // (2 * p)
    return np.asarray(table.astype(np.uint8)[pixels])


def _columns(parts: Mapping[str, Dataset]) -> tuple[dict[str, tuple[Array, tuple[str, ...]]], list[str]]:
    """The columns of all sources, in the order of `_used`, and which are not everywhere."""
    lengths = {name: len(_used(data)) for name, data in parts.items()}
    source = np.repeat(np.arange(len(parts)), list(lengths.values()))
    found: dict[str, tuple[Array, tuple[str, ...]]] = {COLUMN: (source, tuple(parts))}
    notes = []
    for column in dict.fromkeys(c for data in parts.values() for c in data.columns):
        values: list[str] = []
        for name, data in parts.items():
            if column in data.columns:
                there = data.columns[column]
                values += [there.names[code] for code in there.codes.numpy()[_used(data)].tolist()]
            else:
                values += [""] * lengths[name]
                notes.append(f"{name} has no column {column!r}: its rows have '' there")
        found[column] = name_codes(values)
    return found, notes
