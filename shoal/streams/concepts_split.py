"""How a concept's rows are split by use and dealt to clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ..data.dataset import Dataset
from ..data.splits import strata, stratified
from ..errors import ConfigError
from ..randomness import Name, generator
from .cells import Array
from .concepts_selection import Concept
from .shifts_clusters import families

Mode = Literal["merged", "given"]


@dataclass(frozen=True)
class Uses:
    """The rows of one concept by what they are used for, as rows of the stream's data set, int64, sorted."""

    train: Tensor
    validation: Tensor
    test: Tensor


def share_of(rows: int, share: float) -> int:
    """How many of so many rows a share is: to the nearest whole number, but at least one of three."""
    return min(max(1, round(share * rows)), rows - 1) if share > 0 and rows > 2 else 0


def split_uses(
    data: Dataset, concepts: Sequence[Concept], mode: Mode, test: float, validation: float, seed: int
) -> tuple[Dataset, list[Uses]]:
    """Splits the rows of every concept, and gives the data set whose training and test rows are the new ones.

    ``merged``: training and test rows of the data together; the share ``test`` of them is tested, the share
    ``validation`` validated. ``given``: the data's own test rows, and the share ``validation`` of its training rows. A
    base row has one use, in whatever concepts and layers it is; concepts that share rows are split together.
    Stratified by label and by which concepts have the row, so that each concept's shares are right to a row or so. Test
    rows are the same for all seeds. Raises `ConfigError` for a concept without training rows.
    """
    if not (0 <= validation < 1 and 0 <= test < 1 and (mode == "given" or test + validation < 1)):
        raise ConfigError(
            f"stream.test, stream.validation: shares of a concept's rows that leave some for training; got {test} and "
            f"{validation}"
        )
    labels = data.labels.cpu().numpy()
    tested = np.zeros(len(data), dtype=bool)
    tested[data.test.cpu().numpy()] = True
    validated = np.zeros(len(data), dtype=bool)
    for number, rows, marks in families(len(data), [np.unique(concept.base) for concept in concepts]):
        groups = strata(labels[rows], *marks)
        if mode == "merged":
            chosen = stratified(groups, share_of(len(rows), test), generator("stream", "test rows", number))
            tested[rows] = False
            tested[rows[chosen]] = True
        rest = np.flatnonzero(~tested[rows])
        count = share_of(len(rows) if mode == "merged" else len(rest), validation)
        # Where the shares leave a single row for training, the tests' minimum of one must not take it.
        count = min(count, max(0, len(rest) - 1))
        chosen = stratified(groups[rest], count, generator(seed, "stream", "validation rows", number))
        validated[rows[rest[chosen]]] = True
    found = [_uses(data, concept, tested, validated) for concept in concepts]
    for number, (concept, uses) in enumerate(zip(concepts, found, strict=True)):
        if not len(uses.train):
            raise ConfigError(
                f"stream.concepts: concept {number} ({concept.name}) has no training row: it has {len(concept.base)} "
                f"rows, of which {len(uses.test)} are tested and {len(uses.validation)} validated"
            )
    every = torch.cat([data.train, data.test]).cpu().numpy()
    train, held = (torch.from_numpy(np.sort(every[tested[every] == use])) for use in (False, True))
    return replace(data, train=train, test=held), found


def _uses(data: Dataset, concept: Concept, tested: Array, validated: Array) -> Uses:
    rows = concept.base + concept.layer * len(data)
    test, validation = tested[concept.base], validated[concept.base]
    kinds = (rows[~test & ~validation], rows[validation & ~test], rows[test])
    return Uses(*(torch.from_numpy(np.sort(kind)) for kind in kinds))


class Chunks:
    """Shuffled rows, cut into disjoint chunks for their owners, whose sizes differ by at most one; no row is left."""

    def __init__(self, rows: Tensor, owners: Array, names: tuple[Name, ...]) -> None:
        """``owners`` says which clients get a chunk, bool ``[clients]``; ``names`` are those of the shuffle."""
        self._rows = rows[torch.from_numpy(generator(*names).permutation(len(rows)))]
        self.owners = int(owners.sum())
        self._ranks = np.where(owners, np.cumsum(owners) - 1, -1).astype(np.int32)

    def __getitem__(self, client: int) -> Tensor:
        """The chunk of a client, in the order of the shuffle; no rows for one that is no owner."""
        rank = int(self._ranks[client])
        if rank < 0:
            return self._rows[:0]
        size, longer = divmod(len(self._rows), self.owners)
        begin = rank * size + min(rank, longer)
        return self._rows[begin : begin + size + (rank < longer)]

    @property
    def smallest(self) -> int:
        """The rows of the smallest chunk."""
        return len(self._rows) // self.owners if self.owners else 0

    @property
    def largest(self) -> int:
        """The rows of the largest chunk."""
        return -(-len(self._rows) // self.owners) if self.owners else 0


def next_rows(chunk: Tensor, size: int, begin: int) -> Tensor:
    """``size`` rows of a chunk from a place on, going on at its beginning; the whole chunk where it is smaller."""
    if len(chunk) <= size:
        size = len(chunk)
    places = (begin + torch.arange(size)) % max(1, len(chunk))
    return chunk[places]
