"""`Dataset`: all rows of a run in one place, shared by every client and worker."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..errors import ConfigError, nearest
from ..placing import placed

if TYPE_CHECKING:
    from .members import Members

TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {
    # Moves of pixels, on images [rows, height, width, channels]; exact in every bit.
    "identity": lambda x: x,
    "rotate90": lambda x: x.rot90(1, (1, 2)),
    "rotate180": lambda x: x.rot90(2, (1, 2)),
    "rotate270": lambda x: x.rot90(3, (1, 2)),
    "mirror": lambda x: x.flip(2),
}
INVERT = "invert"
"""The transform that changes values: raw pixel ``v`` becomes ``peak - v``, see `Dataset.batch`."""

TRANSFORM_NAMES = (*TRANSFORMS, INVERT)


@dataclass(frozen=True)
class Column:
    """A named grouping of the rows: a domain, a source, a client id. ``codes`` is int64, one per base row."""

    codes: Tensor
    names: tuple[str, ...]


@dataclass(frozen=True)
class Dataset:
    """Rows with labels, decoded once and never copied.

    ``features`` is uint8 ``[rows, height, width, channels]`` for images or float32 ``[rows, features]`` for
    tables; a batch is ``features * scale + offset`` per channel (or feature). A table's features are less ``shift``
    (float64 ``[features]``, ``None``: nothing was subtracted), so that float32 is enough for numbers that are far from
    0, such as seconds since 1970. ``labels`` are dense internal labels ``0..len(classes)-1``; ``classes`` are the
    original ones. ``targets`` is what the models learn: the labels, unless a stream gives every task a head of its own.

    Of a regression ``values`` is what the models learn, float32 ``[rows, outputs]``, standardised: in the units of
    the source it is ``values * value_scale + value_offset`` (float64, see `in_units`). Its rows are all of one class,
    ``("all",)``.

    With ``members`` the rows are kept in several data sets with shapes and normalisations of their own; ``features`` is
    then ``[rows, 0]``, and ``scale`` and ``offset`` are empty. Labels, targets and splits are those of the whole.

    A row index ``r`` means base row ``r % len(labels)`` under transform ``r // len(labels)``, so a task of
    rotated images costs no memory. Base rows in ``train`` and ``test`` never overlap.
    """

    name: str
    features: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    train: Tensor
    test: Tensor
    scale: Tensor
    offset: Tensor
    columns: Mapping[str, Column] = field(default_factory=dict)
    peak: float = 255.0
    """The largest raw value that a pixel can have: white. 16 for the digits of scikit-learn."""
    transforms: tuple[str, ...] = ("identity",)
    targets: Tensor | None = None
    label_maps: Tensor | None = None
    """What each label is under each transform, int64 ``[transforms, classes]``; ``None``: what it always is."""
    fingerprint: str = ""
    """A hash of the content (rows, labels, split)."""
    values: Tensor | None = None
    value_scale: Tensor | None = None
    value_offset: Tensor | None = None
    shift: Tensor | None = None
    notes: tuple[str, ...] = ()
    """What the source did that a user should know: rows that were skipped, values that were filled in."""
    reader: Mapping[str, Any] = field(default_factory=dict)
    """How raw rows become features, as JSON: what ``shoal predict`` needs to read further rows the same way."""
    members: Members | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def is_regression(self) -> bool:
        """Whether the models learn real values instead of classes."""
        return self.values is not None

    @property
    def outputs(self) -> int:
        """How many outputs a model of all rows has: one per class, or per value."""
        return len(self.classes) if self.values is None else int(self.values.shape[1])

    @property
    def is_image(self) -> bool:
        """Whether the rows are images (4-d features)."""
        return self.members is not None or self.features.dim() == 4

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input: ``(channels, height, width)`` or ``(features,)``.

        Raises `ConfigError` where members have different ones; `shape_of` gives that of some rows.
        """
        if self.members is not None:
            return self.members.shape()
        if self.is_image:
            _, height, width, channels = self.features.shape
            return (channels, height, width)
        return (int(self.features.shape[1]),)

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        return self.labels.device

    def part(self, rows: Tensor) -> tuple[Dataset, Tensor]:
        """The data set that keeps these rows, and what they are called there: the member that has all of them, if
        there are members, else itself."""
        found = None if self.members is None else self.members.part(rows)
        return (self, rows) if found is None else found

    def by_part(self, rows: np.ndarray) -> list[tuple[Dataset, np.ndarray]]:
        """Every data set that keeps rows, and those of these base rows that it keeps, as they are called there."""
        return [(self, rows)] if self.members is None else self.members.by_part(rows)

    def row_shape(self, rows: Tensor) -> tuple[int, ...]:
        """The shape of each of these rows in a `batch`; raises ``ValueError`` where they have several."""
        return tuple(self.features.shape[1:]) if self.members is None else self.members.row_shape(rows)

    def shapes_of(self, rows: Tensor) -> tuple[tuple[int, ...], ...]:
        """The different shapes of the inputs of these rows, see `shape`."""
        if self.members is None:
            return (self.shape,)
        return tuple(dict.fromkeys(self.members.shapes[number] for number in self.members.at(rows)))

    def with_transforms(self, *transforms: str) -> Dataset:
        """The same rows under these transforms, as further row indices.

        Raises `ConfigError` for an unknown name, for tables, and for a quarter turn of images that are not square.
        """
        for name in transforms:
            if name not in TRANSFORM_NAMES:
                raise ConfigError(f"no transform is called {name!r}; {nearest(name, TRANSFORM_NAMES)}")
            if name != "identity" and not self.is_image:
                raise ConfigError(
                    f"transform {name!r} needs images; {self.name} has tables of {self.shape[0]} features"
                )
            if self.members is not None:
                continue  # each says for itself what it cannot do
            if name in ("rotate90", "rotate270") and self.features.shape[1] != self.features.shape[2]:
                _, height, width = self.shape
                raise ConfigError(
                    f"transform {name!r} needs square images; those of {self.name} are {height}x{width}: "
                    f"use rotate180, mirror or invert, or resize the images"
                )
        if not transforms:
            raise ConfigError("transforms: needs at least one; 'identity' leaves the rows as they are")
        return self._under(transforms)

    def _under(self, transforms: tuple[str, ...], **more: Any) -> Dataset:
        members = self.members
        if members is not None:
            members = members.mapped(lambda part: part.with_transforms(*transforms))
        return replace(self, transforms=transforms, members=members, **more)

    def with_label_maps(self, maps: Tensor) -> Dataset:
        """The same rows once for each map, as further row indices: their inputs stay, their labels are the map's.

        ``maps`` is int64 ``[maps, classes]``: the label that rows of each class have. It is all the memory that this
        costs, and works for tables too. Raises `ConfigError` for labels that there are not.
        """
        classes = len(self.classes)
        if maps.dim() != 2 or maps.shape[1] != classes or not len(maps) or self.is_regression:
            raise ConfigError(
                f"label maps: need a label for each of {classes} classes of a classification; got {tuple(maps.shape)}"
            )
        if int(maps.min()) < 0 or int(maps.max()) >= classes:
            raise ConfigError(f"label maps: labels are 0 to {classes - 1}; got {int(maps.min())} to {int(maps.max())}")
        return self._under(("identity",) * len(maps), label_maps=maps)

    def to(self, device: torch.device) -> Dataset:
        """The data set on a device."""
        names = (
            *("features", "labels", "scale", "offset", "shift", "targets", "label_maps"),
            *("values", "value_scale", "value_offset"),
        )
        moved: dict[str, Any] = {name: t.to(device) for name in names if (t := getattr(self, name)) is not None}
        if self.members is not None:
            moved["members"] = self.members.to(device)
        return replace(self, **moved)

    def batch(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """The inputs of these rows, float32, normalised: ``[rows, height, width, channels]`` or ``[rows, features]``.

        `inputs` turns it into what a module takes. Every transform is exact: the batch has the bits of the batch
        of images that were moved or inverted (``peak - v``) as raw pixels and then normalised. ``out`` is
        float32 memory of the batch's shape that may be used for it.
        """
        if self.members is not None:
            part, inside = self.part(rows)
            return self.members.batch(rows, out) if part is self else part.batch(inside, out)
        raw = self.features.index_select(0, placed(self._base(rows), self.features.device))
        x = raw.to(torch.float32, copy=False) if out is None else out.copy_(raw)
        groups = self._groups(rows)
        for name, where in groups:
            # Before the normalisation: whole numbers are exact in float32, normalised values are not.
            if name == INVERT and where is None:
                x.neg_().add_(self.peak)
            elif name == INVERT:
                x[where] = self.peak - x[where]
        self._normalise(x)
        for name, where in groups:
            if name in (INVERT, "identity"):
                continue
            if where is None:
                return transform(name)(x).contiguous()
            x[where] = transform(name)(x[where])
        return x

    @functools.cached_property
    def prepared(self) -> Tensor:
        """All base rows as `batch` gives them without a transform; made once and kept. Not to be changed."""
        x = self.features.to(torch.float32, copy=True)
        self._normalise(x)
        return x

    def _normalise(self, x: Tensor) -> None:
        """``x * scale + offset`` in place. A row of pixels at once: over three channels alone it is not vectorised."""
        if not self.is_image:
            x.mul_(self.scale).add_(self.offset)
            return
        width = x.shape[2]
        x.view(*x.shape[:2], -1).mul_(self.scale.repeat(width)).add_(self.offset.repeat(width))

    def _base(self, rows: Tensor) -> Tensor:
        return rows % len(self) if len(self.transforms) > 1 else rows

    def _groups(self, rows: Tensor) -> list[tuple[str, Tensor | None]]:
        """The transforms of these rows with the places where they hold; ``None`` is everywhere."""
        if len(self.transforms) == 1:
            return [(self.transforms[0], None)]
        which = rows // len(self)
        kinds = sorted(set(which.tolist()))
        if len(kinds) == 1:
            return [(self.transforms[kinds[0]], None)]
        # Where the rows came from: to look for them on a GPU, the host would have to wait for it.
        places = [(which == kind).nonzero().squeeze(1) for kind in kinds]
        return [(self.transforms[k], placed(at, self.features.device)) for k, at in zip(kinds, places, strict=True)]

    def wanted(self, rows: Tensor) -> Tensor:
        """The targets of these rows."""
        if self.label_maps is not None and self.targets is None:
            return self.labels_of(rows)
        source = self.labels if self.targets is None else self.targets
        if self.values is not None:
            source = self.values
        return source.index_select(0, placed(self._base(rows), source.device))

    def in_units(self, values: Tensor) -> Tensor:
        """Outputs or targets in the units of the source, float64; those of a classification are left as they are.

        In float32 a large offset would swallow the values: of 1e9 + 2.4 v nothing is left.
        """
        if self.value_scale is None or self.value_offset is None:
            return values
        return values.double() * self.value_scale.to(values.device) + self.value_offset.to(values.device)

    def labels_of(self, rows: Tensor) -> Tensor:
        """The internal labels of these rows, under their transforms, whatever the heads are."""
        rows = placed(rows, self.labels.device)
        found = self.labels.index_select(0, rows % len(self))
        return found if self.label_maps is None else self.label_maps[rows // len(self), found]


def inputs(x: Tensor) -> Tensor:
    """A batch as a module takes it: images become ``[rows, channels, height, width]``, channels-last in memory."""
    return x.permute(0, 3, 1, 2) if x.dim() == 4 else x


def transform(name: str) -> Callable[[Tensor], Tensor]:
    """The move of pixels of this name, on ``[rows, height, width, channels]``; raises `ConfigError` for another.

    ``invert`` is none: it changes raw values and needs the data set's peak, so `Dataset.batch` does it.
    """
    if name not in TRANSFORMS:
        raise ConfigError(f"no move of pixels is called {name!r}; {nearest(name, TRANSFORMS)}")
    return TRANSFORMS[name]
