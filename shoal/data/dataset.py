"""`Dataset`: all rows of a run in one place, shared by every client and worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {
    # On normalised images [rows, height, width, channels], exact in every bit.
    "identity": lambda x: x,
    "rotate90": lambda x: x.rot90(1, (1, 2)),
    "rotate180": lambda x: x.rot90(2, (1, 2)),
    "rotate270": lambda x: x.rot90(3, (1, 2)),
    "mirror": lambda x: x.flip(2),
}


@dataclass(frozen=True)
class Column:
    """A named grouping of the rows: a domain, a source, a client id. ``codes`` is int64, one per base row."""

    codes: Tensor
    names: tuple[str, ...]


@dataclass(frozen=True)
class Dataset:
    """Rows with labels, decoded once and never copied.

    ``features`` is uint8 ``[rows, height, width, channels]`` for images or float32 ``[rows, features]`` for
    tables; a batch is ``features * scale + offset`` per channel (or feature). ``labels`` are dense internal
    labels ``0..len(classes)-1``; ``classes`` are the original ones. ``targets`` is what the models learn: the
    labels, unless a stream gives every task a head of its own.

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
    transforms: tuple[str, ...] = ("identity",)
    targets: Tensor | None = None
    fingerprint: str = ""
    """A hash of the content (rows, labels, split)."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def is_image(self) -> bool:
        """Whether the rows are images (4-d features)."""
        return self.features.dim() == 4

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input: ``(channels, height, width)`` or ``(features,)``."""
        if self.is_image:
            _, height, width, channels = self.features.shape
            return (channels, height, width)
        return (int(self.features.shape[1]),)

    def with_transforms(self, *transforms: str) -> Dataset:
        """The same rows under these transforms, as further row indices."""
        return replace(self, transforms=transforms)

    def to(self, device: torch.device) -> Dataset:
        """The data set on a device."""
        targets = None if self.targets is None else self.targets.to(device)
        return replace(
            self,
            features=self.features.to(device),
            labels=self.labels.to(device),
            scale=self.scale.to(device),
            offset=self.offset.to(device),
            targets=targets,
        )

    def batch(self, rows: Tensor) -> Tensor:
        """The inputs of these rows, float32, normalised: ``[rows, height, width, channels]`` or ``[rows, features]``.

        `inputs` turns it into what a module takes.
        """
        base = rows % len(self) if len(self.transforms) > 1 else rows
        x = self.features.index_select(0, base.to(self.features.device))
        x = x.to(torch.float32).mul_(self.scale).add_(self.offset)
        if self.transforms == ("identity",):
            return x
        which = rows // len(self)
        kinds = which.unique().tolist()
        if len(kinds) == 1:
            return transform(self.transforms[kinds[0]])(x).contiguous()
        out = torch.empty_like(x)
        for kind in kinds:
            chosen = (which == kind).to(x.device)
            out[chosen] = transform(self.transforms[kind])(x[chosen])
        return out

    def wanted(self, rows: Tensor) -> Tensor:
        """The targets of these rows."""
        source = self.labels if self.targets is None else self.targets
        base = rows % len(self) if len(self.transforms) > 1 else rows
        return source.index_select(0, base.to(source.device))

    def labels_of(self, rows: Tensor) -> Tensor:
        """The internal labels of these rows, whatever the heads are."""
        return self.labels.index_select(0, (rows % len(self)).to(self.labels.device))


def inputs(x: Tensor) -> Tensor:
    """A batch as a module takes it: images become ``[rows, channels, height, width]``, channels-last in memory."""
    return x.permute(0, 3, 1, 2) if x.dim() == 4 else x


def transform(name: str) -> Callable[[Tensor], Tensor]:
    """The transform of this name; ``invert`` negates a normalised image around its channel mean."""
    return TRANSFORMS[name]
