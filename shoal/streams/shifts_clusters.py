"""The clusters of a stream of shifts: which rows belong to each, for training, validation and testing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..data.dataset import TRANSFORM_NAMES, Dataset
from ..data.splits import strata, stratified
from ..errors import ConfigError, nearest
from ..randomness import Name, generator
from .cells import Array

Given = Sequence[Sequence[int | str] | int | str]


@dataclass(frozen=True)
class Cluster:
    """Base rows of one cluster, sorted int64 ``[n]``. ``shift`` makes them rows under the cluster's transform."""

    name: str
    train: Array
    test: Array
    shift: int = 0


def make_clusters(data: Dataset, by: str, given: Given | None) -> tuple[Dataset, list[Cluster]]:
    """The clusters, and the data set with their transforms or labels; raises `ConfigError`.

    ``by`` is ``class`` (``given``: groups of labels), ``transform`` (names of transforms), ``swap`` (lists of labels
    that are swapped in pairs), or a column (groups of its values; ``None``: every value is a cluster).
    """
    if by == "transform":
        return _by_transform(data, given)
    if by == "swap":
        return _by_swap(data, given)
    if by == "class":
        _need_classes(data, "by: class makes clusters of classes")
        if given is None:
            raise ConfigError("stream.clusters: needs groups of labels, one per cluster, such as [[0, 1], [2, 3]]")
        names, codes = data.classes, data.labels
    elif by in data.columns:
        names, codes = data.columns[by].names, data.columns[by].codes
    else:
        known = nearest(by, ["class", "transform", "swap", *data.columns])
        raise ConfigError(f"stream.by: the data have no column {by!r}; {known} (data.columns keeps columns)")
    groups = [[i] for i in range(len(names))] if given is None else [codes_of(names, several(g), by) for g in given]
    if not groups or not all(groups):
        raise ConfigError(f"stream.clusters: every cluster needs a value of {by} at least; got {given}")
    values = codes.cpu().numpy()
    train, test = data.train.cpu().numpy(), data.test.cpu().numpy()
    return data, [
        Cluster(
            ", ".join(names[i] for i in group),
            np.sort(train[np.isin(values[train], group)]),
            np.sort(test[np.isin(values[test], group)]),
        )
        for group in groups
    ]


def several(group: Sequence[int | str] | int | str) -> Sequence[int | str]:
    """A group of values, which may be written as a single value."""
    return [group] if isinstance(group, int | str) else group


def _need_classes(data: Dataset, what: str) -> None:
    if data.is_regression:
        raise ConfigError(
            f"stream.by: {what}, but {data.name} has none, it learns values; use by: transform, or a column"
        )


def codes_of(
    names: Sequence[str], wanted: Iterable[int | str], by: str, where: str = "stream.clusters", group: str = "cluster"
) -> list[int]:
    """The places of these values among the ``names``, by name or, where no name is a number, by place.

    ``by`` says what they are, ``where`` the setting, ``group`` what they make. Raises `ConfigError` for an unknown
    value, or one that comes twice.
    """
    known = {name: code for code, name in enumerate(names)}
    # A source that names its classes numbers them too, and people use either.
    if not any(name.lstrip("-").isdigit() for name in names):
        known |= {str(code): code for code in range(len(names))}
    found = []
    for value in wanted:
        if str(value) not in known:
            raise ConfigError(f"{where}: {by} has no value {value!r}; {nearest(str(value), names)}")
        found.append(known[str(value)])
    if len(set(found)) != len(found):
        raise ConfigError(f"{where}: a value stands in one {group} twice: {list(wanted)}")
    return found


def _plain(data: Dataset, by: str) -> tuple[Array, Array]:
    """All training and test rows of data that are under no transform yet."""
    if data.transforms != ("identity",):
        raise ConfigError(f"stream.by: {by}: the data are under transforms already: {list(data.transforms)}")
    return np.sort(data.train.cpu().numpy()), np.sort(data.test.cpu().numpy())


def _by_transform(data: Dataset, given: Given | None) -> tuple[Dataset, list[Cluster]]:
    train, test = _plain(data, "transform")
    names = [] if given is None else ["+".join(map(str, several(group))) for group in given]
    if not names or len(set(names)) != len(names):
        raise ConfigError(
            f"stream.clusters: by: transform needs different transforms, one per cluster, out of "
            f"{', '.join(TRANSFORM_NAMES)}; got {given}"
        )
    moved = data.with_transforms(*names)
    return moved, [Cluster(name, train, test, i * len(data)) for i, name in enumerate(names)]


def _by_swap(data: Dataset, given: Given | None) -> tuple[Dataset, list[Cluster]]:
    train, test = _plain(data, "swap")
    _need_classes(data, "by: swap swaps labels")
    if not given:
        raise ConfigError(
            "stream.clusters: by: swap needs the labels that each cluster swaps, in pairs, [] for none: [[], [0, 1]]"
        )
    maps = torch.arange(len(data.classes)).repeat(len(given), 1)
    names = []
    for number, group in enumerate(given):
        codes = codes_of(data.classes, several(group), "class")
        if len(codes) % 2:
            raise ConfigError(f"stream.clusters: labels are swapped in pairs; cluster {number} lists {len(codes)}")
        pairs = swap(maps[number], codes)
        names.append(", ".join(f"{data.classes[a]} <-> {data.classes[b]}" for a, b in pairs) or "no swap")
    moved = data.with_label_maps(maps)
    return moved, [Cluster(name, train, test, i * len(data)) for i, name in enumerate(names)]


def swap(labels: Tensor, codes: Sequence[int]) -> list[tuple[int, int]]:
    """Exchanges labels in pairs, in place: ``labels`` is what each class is called; gives the pairs."""
    pairs = list(zip(codes[::2], codes[1::2], strict=True))
    for a, b in pairs:
        labels[a], labels[b] = b, a
    return pairs


class Family(NamedTuple):
    """Sets of rows that are joined by rows in common, or one that shares none.

    ``rows`` are sorted, int64 ``[n]``; ``marks`` (0 or 1, ``[n]`` each) say which of them are in each of the sets that
    has not all of them, so that rows of different sets can be told apart. ``number`` is that of its last set.
    """

    number: int
    rows: Array
    marks: list[Array]


def families(size: int, sets: Sequence[Array]) -> list[Family]:
    """The families of some sets of rows out of ``0..size-1``."""
    owner = np.full(size, -1, dtype=np.int64)
    for number, rows in enumerate(sets):
        met = np.unique(owner[rows])
        owner[np.isin(owner, met[met >= 0])] = number
        owner[rows] = number
    found = []
    for number in np.unique(owner[owner >= 0]).tolist():
        members = np.flatnonzero(owner == number)
        inside = [rows for rows in sets if len(rows) and owner[rows[0]] == number and len(rows) < len(members)]
        found.append(Family(number, members, [np.isin(members, rows).astype(np.int64) for rows in inside]))
    return found


def hold_back(
    data: Dataset, clusters: Sequence[Cluster], rows: int, validation_rows: int, names: tuple[Name, ...]
) -> list[tuple[Tensor, Tensor]]:
    """The pools of training and of validation rows of each cluster, as rows of the data set, int64.

    The training rows are split once, as ``rows`` to ``validation_rows``, stratified by label: what one client
    validates on nobody trains on, in no cluster (also not under another transform). Clusters that share rows are split
    together. Raises `ConfigError` for a cluster with too few rows for a single client.
    """
    held = np.zeros(len(data), dtype=bool)
    labels = data.labels.cpu().numpy()
    for part, members, marks in families(len(data), [cluster.train for cluster in clusters]):
        if len(members) < rows + validation_rows:
            continue  # told below, with the name of the cluster
        groups = strata(labels[members], *marks)
        count = round(len(members) * validation_rows / (rows + validation_rows))
        count = min(max(count, validation_rows), len(members) - rows)
        held[members[stratified(groups, count, generator(*names, "validation rows", part))]] = True
    pools = []
    for number, cluster in enumerate(clusters):
        chosen = held[cluster.train]
        train, validation = cluster.train[~chosen], cluster.train[chosen]
        if len(train) < rows or len(validation) < validation_rows:
            raise ConfigError(
                f"stream.rows: a client holds {rows} training and {validation_rows} validation rows at a time, but "
                f"cluster {number} ({cluster.name}) has only {len(cluster.train)} rows"
                + (f", of which {len(train)} and {len(validation)}" if chosen.any() else "")
                + "; lower stream.rows or stream.validation_rows, or widen the cluster"
            )
        pools.append((torch.from_numpy(train + cluster.shift), torch.from_numpy(validation + cluster.shift)))
    return pools


def tested_rows(data: Dataset, clusters: Sequence[Cluster], count: int | None) -> list[Tensor]:
    """The test rows of each cluster: all, or ``count``, stratified by label and the same for every seed of the run.

    Raises `ConfigError` for a cluster with fewer.
    """
    labels = data.labels.cpu().numpy()
    found = []
    for number, cluster in enumerate(clusters):
        rows = cluster.test
        if count is not None and len(rows) < count:
            raise ConfigError(
                f"stream.test_rows: {count}, but cluster {number} ({cluster.name}) has {len(rows)} test rows; lower "
                f"it, leave it out to use all of them, or hold more out (data.test)"
            )
        if count is not None:
            rows = rows[stratified(strata(labels[rows]), count, generator("stream", "test rows", number))]
        found.append(torch.from_numpy(rows + cluster.shift))
    return found
