"""How a data set is cut into tasks: by class, by a column, or by transform."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..data.dataset import TRANSFORM_NAMES, Dataset
from ..errors import ConfigError, nearest
from ..randomness import generator

Groups = Sequence[Sequence[int | str]]


@dataclass(frozen=True)
class Task:
    """One task: its rows of the stream's data set, and its classes (internal labels) in the order of its head."""

    name: str
    train: Tensor
    test: Tensor
    classes: tuple[int, ...]
    domain: str | None = None
    """The value of the column that made the task, if one did."""


def _cut(count: int, tasks: int, what: str) -> list[list[int]]:
    """``0..count-1`` in consecutive groups; sizes differ by at most one, the larger ones first."""
    if tasks > count:
        raise ConfigError(f"stream.tasks: {tasks} tasks out of {count} {what}; lower tasks to {count} at most")
    return [part.tolist() for part in np.array_split(np.arange(count), tasks)]


def _inside(rows: Tensor, values: Tensor, wanted: Sequence[int]) -> Tensor:
    return rows[torch.isin(values.cpu()[rows], torch.tensor(wanted, dtype=torch.int64))]


def title(names: Sequence[str], members: Sequence[int]) -> str:
    """The original names; a long run of neighbours is abbreviated."""
    if len(members) > 3 and list(members) == list(range(members[0], members[0] + len(members))):
        return f"{names[members[0]]} to {names[members[-1]]}"
    return ", ".join(names[i] for i in members)


def by_class(data: Dataset, tasks: int, seed: int, given: Groups | None, shuffle: bool) -> list[Task]:
    """Tasks of different classes: ``given`` groups of original labels, or consecutive ones.

    ``shuffle`` permutes the classes with the run's seed first.
    """
    if data.is_regression:
        raise ConfigError(
            f"stream.by: class makes tasks of classes, but {data.name} has none, it learns values; use by: a column, "
            f"or stream.kind: static"
        )
    if given is not None and shuffle:
        raise ConfigError("stream.shuffle_classes: with classes given there is nothing to shuffle; drop one of the two")
    if given is not None:
        if len(given) != tasks:
            raise ConfigError(f"stream.classes: needs one list of labels for each of {tasks} tasks; got {len(given)}")
        groups = class_groups(data, given, "stream.classes")
    else:
        order = np.arange(len(data.classes))
        if shuffle:
            order = generator(seed, "stream", "classes").permutation(order)
        groups = [[int(order[i]) for i in group] for group in _cut(len(order), tasks, "classes")]
    return [
        Task(
            title(data.classes, group),
            _inside(data.train, data.labels, group),
            _inside(data.test, data.labels, group),
            tuple(group),
        )
        for group in groups
    ]


def class_groups(data: Dataset, given: Groups, where: str) -> list[list[int]]:
    """Groups of original labels as internal ones. Raises `ConfigError`, naming the setting ``where``."""
    if not given or not all(given):
        raise ConfigError(f"{where}: needs lists of labels, none empty; got {[list(group) for group in given]}")
    known = {name: code for code, name in enumerate(data.classes)}
    # A source that names its classes numbers them too, and people use either.
    if not any(name.lstrip("-").isdigit() for name in data.classes):
        known |= {str(code): code for code in range(len(data.classes))}
    groups: list[list[int]] = []
    for group in given:
        for label in group:
            if str(label) not in known:
                raise ConfigError(f"{where}: the data have no label {label!r}; {nearest(str(label), data.classes)}")
        groups.append([known[str(label)] for label in group])
    flat = [code for group in groups for code in group]
    twice = sorted({data.classes[code] for code in flat if flat.count(code) > 1})
    if twice:
        raise ConfigError(f"{where}: a class belongs to one list; given more than once: {', '.join(twice)}")
    return groups


def by_column(data: Dataset, tasks: int, column: str | Sequence[str]) -> list[Task]:
    """Tasks of different values of a column (a domain, a source); consecutive values where there are fewer tasks.

    Several columns make a task of each combination of values that some training or test row has, in the order of the
    values; it is called by those that are not empty, such as ``pacs/photo``.
    """
    columns = [column] if isinstance(column, str) else list(column)
    for name in columns:
        if name not in data.columns:
            known = nearest(name, [*(["class", "transform"] if isinstance(column, str) else []), *data.columns])
            raise ConfigError(f"stream.by: the data have no column {name!r}; {known} (data.columns keeps columns)")
    codes, names = _combined(data, columns) if len(columns) > 1 else _values(data, columns[0])
    made = []
    for group in _cut(len(names), tasks, f"values of {', '.join(map(repr, columns))}"):
        train, test = _inside(data.train, codes, group), _inside(data.test, codes, group)
        present = data.labels.cpu()[torch.cat([train, test])].unique().tolist()  # type: ignore[no-untyped-call]
        domain = ", ".join(names[i] for i in group)
        made.append(Task(domain, train, test, tuple(present), domain))
    return made


def _values(data: Dataset, column: str) -> tuple[Tensor, tuple[str, ...]]:
    return data.columns[column].codes.cpu(), data.columns[column].names


def _combined(data: Dataset, columns: Sequence[str]) -> tuple[Tensor, tuple[str, ...]]:
    """The combinations of several columns' values as one column; rows that are not used may have -1."""
    table = np.stack([data.columns[name].codes.cpu().numpy() for name in columns], axis=1)
    used = torch.cat([data.train, data.test]).cpu().numpy()
    found, places = np.unique(table[used], axis=0, return_inverse=True)
    codes = np.full(len(table), -1, dtype=np.int64)
    codes[used] = places.reshape(-1)
    values = [[data.columns[name].names[code] for name, code in zip(columns, row, strict=True)] for row in found]
    return torch.from_numpy(codes), tuple("/".join(value for value in row if value) for row in values)


def by_transform(data: Dataset, tasks: int, names: Sequence[str] | None) -> tuple[Dataset, list[Task]]:
    """Tasks that each hold all rows under a transform of their own, and the data set with these transforms."""
    if data.transforms != ("identity",):
        raise ConfigError(f"stream.by: transform: the data are under transforms already: {list(data.transforms)}")
    if names is None:
        if tasks > len(TRANSFORM_NAMES):
            raise ConfigError(f"stream.tasks: there are {len(TRANSFORM_NAMES)} transforms, {tasks} tasks are asked for")
        names = TRANSFORM_NAMES[:tasks]
    if len(names) != tasks or len(set(names)) != len(names):
        raise ConfigError(f"stream.transforms: needs {tasks} different transforms, one per task; got {list(names)}")
    moved = data.with_transforms(*names)
    classes = tuple(range(len(data.classes)))
    shifts = [i * len(data) for i in range(tasks)]
    return moved, [
        Task(name, data.train + shift, data.test + shift, classes) for name, shift in zip(names, shifts, strict=True)
    ]
