"""`Members`: a data set whose rows are kept in several others, each with a shape and a normalisation of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..errors import ConfigError
from ..placing import placed

if TYPE_CHECKING:
    from .dataset import Dataset

Shape = tuple[int, ...]


def in_words(shape: Shape) -> str:
    """A shape such as ``3x32x32``."""
    return "x".join(map(str, shape))


@dataclass(frozen=True)
class Members:
    """Where the rows of a data set are: base row ``r`` is row ``place[r]`` of ``parts[which[r]]``.

    ``which`` and ``place`` are int64 ``[rows]``. Nothing is copied: the parts are the sources' own data sets, with
    their own pixels, peak and normalisation. They have the transforms of the whole, see `Dataset.with_transforms`.
    """

    parts: tuple[Dataset, ...]
    which: Tensor
    place: Tensor

    @functools.cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """The shape of one input of each part, ``(channels, height, width)``."""
        return tuple(part.shape for part in self.parts)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parts."""
        return tuple(part.name for part in self.parts)

    def shape(self) -> Shape:
        """The shape that all parts have in common; raises `ConfigError` where they differ."""
        if len(set(self.shapes)) == 1:
            return self.shapes[0]
        each = ", ".join(f"{name} {in_words(shape)}" for name, shape in zip(self.names, self.shapes, strict=True))
        raise ConfigError(
            f"data.sources: a model takes images of one shape, but the sources have their own (channels x height x "
            f"width): {each}; bring all to one with data.size and data.channels, such as data.size: 32 and "
            f"data.channels: 3, or keep a model for each task: stream.kind: tasks with by: source, and method.per: "
            f"task (stream.head: auto)"
        )

    def at(self, rows: Tensor) -> tuple[int, ...]:
        """The numbers of the parts that keep these rows, ascending."""
        found: list[int] = self.which[self._base(rows)].unique().tolist()  # type: ignore[no-untyped-call]
        return tuple(found)

    def part(self, rows: Tensor) -> tuple[Dataset, Tensor] | None:
        """The part that keeps all of these rows, and what they are called there; ``None`` where there are several."""
        if not len(rows):
            return self.parts[0], rows
        which = self.which[self._base(rows)]
        number = int(which[0])
        if not bool((which == number).all()):
            return None
        return self.parts[number], self._inside(rows, number)

    def by_part(self, rows: np.ndarray) -> list[tuple[Dataset, np.ndarray]]:
        """All parts, and those of these base rows that each keeps, as they are called there."""
        which, place = self.which.cpu().numpy()[rows], self.place.cpu().numpy()[rows]
        return [(part, place[which == number]) for number, part in enumerate(self.parts)]

    def of_shape(self, rows: Tensor, shape: Shape) -> Tensor:
        """Those of the rows whose inputs have this shape."""
        fits = torch.tensor([own == tuple(shape) for own in self.shapes])
        return rows[fits.to(rows.device)[self.which[self._base(rows)]]]

    def batch(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """The inputs of rows of several parts with one shape, see `Dataset.batch`; raises ``ValueError`` for more."""
        numbers = self.at(rows)
        row = self.row_shape(rows)
        which = self.which[self._base(rows)]
        x = torch.empty((len(rows), *row), device=self.parts[0].device) if out is None else out
        for number in numbers:
            places = (which == number).nonzero().squeeze(1)
            x[placed(places, x.device)] = self.parts[number].batch(self._inside(rows[places], number))
        return x

    def row_shape(self, rows: Tensor) -> Shape:
        """The shape of one row as it is kept, ``(height, width, channels)``; raises ``ValueError`` for several."""
        shapes = {tuple(self.parts[number].features.shape[1:]) for number in self.at(rows) or (0,)}
        if len(shapes) > 1:
            raise ValueError(f"rows of several shapes (height, width, channels) in one request: {sorted(shapes)}")
        return shapes.pop()

    def mapped(self, change: Callable[[Dataset], Dataset]) -> Members:
        """The same rows of changed parts."""
        return Members(tuple(change(part) for part in self.parts), self.which, self.place)

    def to(self, device: torch.device) -> Members:
        """The parts on a device. The places stay where they are: the host asks them which parts a batch needs."""
        return Members(tuple(part.to(device) for part in self.parts), self.which, self.place)

    def _base(self, rows: Tensor) -> Tensor:
        return rows.to(self.which.device) % len(self.which)

    def _inside(self, rows: Tensor, number: int) -> Tensor:
        """What rows of one part are called there, under their transforms."""
        rows = rows.to(self.which.device)
        return self.place[self._base(rows)] + rows // len(self.which) * len(self.parts[number])
