"""Several image sources as one: their rows one after another, in one shape or each in its source's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
import torch

from .. import registry
from ..errors import DataError
from .apart import assemble_apart
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

    ``sources`` are ``data`` sections of their own, of any kind with images. ``channels``, ``size`` and ``fit`` are for
    the images of all, see `shoal.data.images.Rule`; without ``channels`` grey sources among coloured ones of the same
    size get three. Where shapes still differ, every source keeps its own (`Dataset.members`), and no row is copied: a
    stream of tasks then needs a model for each. ``root`` is the folder that the paths of sources without a ``root`` of
    their own start from. ``labels: separate`` gives every source classes of its own, called ``mnist:3``;
    ``shared`` merges classes with equal names. The column ``source`` has the sources' names; a name that comes again
    gets a number (``digits``, ``digits-2``). A column that only some sources have is ``""`` for the rows of the others.

    Images of one shape are normalised over the training rows of all sources by ``normalize``, those of several shapes
    over the rows of their own source. ``normalize: source`` keeps what each source's own ``normalize`` makes, whatever
    the shapes. ``limit`` and ``limit_test`` are for all rows together, beside those of each source.

    Where images are brought to one shape, or resized here, and white is not 255 (`Dataset.peak` p: 16 for the digits),
    a value v first becomes ``floor((510 v + p) / 2p)``: ``255 v / p`` to the nearest whole number, halves upwards.
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
        normalize: Normalize | Literal["source"] = "channel",
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
        order = [np.arange(len(data.train)) for data in loaded]
        order += [np.arange(len(data.train), len(data.train) + len(data.test)) for data in loaded]
        begins = np.cumsum([0, *(len(data.train) + len(data.test) for data in loaded[:-1])])
        rows = np.concatenate([o + b for o, b in zip(order, [*begins, *begins], strict=True)])
        labels, classes = self._classes(parts)
        columns, notes = _columns(parts)
        rule = self._rule(parts)
        shapes = {(rule.size or data.shape[1:], rule.channels or data.shape[0]) for data in loaded}
        apart = len(shapes) > 1 or self.normalize == "source"
        features = np.zeros((len(rows), 0), np.uint8)
        if not apart:
            features = np.concatenate([self._pixels(name, data, rule) for name, data in parts.items()])[rows]
        decoded = Decoded(
            features,
            labels[rows],
            classes,
            {column: (codes[rows], names) for column, (codes, names) in columns.items()},
            sum(len(data.train) for data in loaded),
            notes=(*(f"{name}: {note}" for name, data in parts.items() for note in data.notes), *notes),
            reader={} if apart else self._reader(features, loaded),
        )
        name = "+".join(parts)
        if apart:
            own, places = zip(*(self._own(name, data, rule) for name, data in parts.items()), strict=True)
            hows = [self._how(*each) for each in zip(self.sources, own, loaded, strict=True)]
            which = np.repeat(np.arange(len(own)), [len(used) for used in places])[rows]
            return assemble_apart(decoded, name, own, hows, which, np.concatenate(places)[rows], **self._cut)
        return assemble(decoded, name, self.normalize, **self._cut)

    @property
    def _cut(self) -> dict[str, Any]:
        return {"split_seed": self.split_seed, "limit": self.limit, "limit_test": self.limit_test}

    def _rooted(self, settings: dict[str, Any]) -> dict[str, Any]:
        """The settings of a source with the common root, where it has none of its own."""
        return {**settings, "root": self.root} if settings.get("root") == "" else settings

    def _rule(self, parts: Mapping[str, Dataset]) -> Rule:
        """The rule, with three channels where that is all that grey sources lack to have the shape of coloured ones."""
        rule = self.rule
        sizes = {rule.size or data.shape[1:] for data in parts.values()}
        if rule.channels is None and len(sizes) == 1 and {data.shape[0] for data in parts.values()} == {1, 3}:
            rule = Rule(3, rule.size, rule.fit)
        return rule

    def _pixels(self, name: str, data: Dataset, rule: Rule) -> Array:
        """The images of a source, training rows first, by the rule; white is 255."""
        return fitted(_scaled(np.asarray(data.features.numpy()[_used(data)]), data.peak, name), rule, name)

    def _own(self, name: str, data: Dataset, rule: Rule) -> tuple[Dataset, Array]:
        """A source's data set under its name in the union, and where in it the rows are that it uses.

        Its own images where the rule changes nothing; else those rows alone are made anew.
        """
        if (rule.size or data.shape[1:], rule.channels or data.shape[0]) == (data.shape[1:], data.shape[0]):
            return replace(data, name=name), _used(data)
        pixels, used = self._pixels(name, data, rule), np.arange(len(data.train) + len(data.test))
        own = replace(
            data,
            name=name,
            features=torch.from_numpy(pixels),
            labels=data.labels[_used(data)],
            train=torch.from_numpy(used[: len(data.train)]),
            test=torch.from_numpy(used[len(data.train) :]),
            columns={},
            peak=255.0,
            reader=self._reader(pixels, [data]),
            fingerprint=f"{data.fingerprint} {rule}",
        )
        return own, used

    def _how(self, settings: Mapping[str, Any], own: Dataset, source: Dataset) -> str | None:
        """How the rows of one source are normalised by themselves; ``None``: as the source has done it."""
        if self.normalize != "source":
            return self.normalize
        return None if own.features is source.features else str(settings.get("normalize", "channel"))

    def _reader(self, features: Array, loaded: Sequence[Dataset]) -> dict[str, Any]:
        return {**self.rule.reader(features), "fit": self._fit(loaded), **self._common(loaded)}

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
