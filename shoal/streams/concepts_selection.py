"""The concepts of a stream: which rows belong to each, under which transforms and with which labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ..data.dataset import TRANSFORM_NAMES, Dataset
from ..errors import ConfigError, nearest
from .cells import Array
from .grouping import title
from .shifts_clusters import codes_of, several, swap

Selector = dict[str, Any]
Given = dict[str, Any] | list[Selector | list[Selector]]
"""What the setting ``concepts`` takes, see `make_concepts`."""

SOURCE = "source"
"""The column of a union, whose classes are called ``mnist:3``."""

_Layer = tuple[str, tuple[int, ...]]
"""A transform, and labels that are swapped in pairs: the rows of the data once more."""


@dataclass(frozen=True)
class Concept:
    """Rows of one concept, training and test rows alike: base rows and their layers, int64 ``[n]`` each.

    Row ``base + layer * len(data)`` of the data set is the base row under the layer's transform and labels.
    """

    name: str
    base: Array
    layer: Array


def make_concepts(data: Dataset, given: Given) -> tuple[Dataset, list[Concept]]:
    """The concepts, and the data set with their transforms and labels; raises `ConfigError`.

    ``given`` is one of

    - ``{by: COLUMN}``: every value of a column of the data (``source``, ``domain``) is a concept; with ``groups``
      every list of values;
    - ``{classes: [[..], ..]}``, which is ``{by: class, groups: [[..], ..]}``: groups of labels;
    - ``{by: transform, groups: [..]}``: all rows under each of these transforms;
    - ``{by: swap, groups: [[], [0, 1]]}``: all rows, with labels that are swapped in pairs;
    - a list with a selector for each concept, or a list of several whose rows it has together. A selector is a mapping
      of columns to values (one or several), ``classes`` to labels, ``transform`` to one, ``swap`` to labels; what it
      does not name is not restricted. ``name`` is what the concept is called.

    In a selector with ``source`` the labels are those of these sources: 3 is ``mnist:3``.
    """
    wanted = _listed(data, given) if isinstance(given, Mapping) else [_selectors(item) for item in given]
    if not wanted:
        raise ConfigError("stream.concepts: needs one concept at least")
    if data.transforms != ("identity",):
        raise ConfigError(f"stream.concepts: the data are under transforms already: {list(data.transforms)}")
    used = np.zeros(len(data), dtype=bool)
    used[torch.cat([data.train, data.test]).cpu().numpy()] = True
    layers: dict[_Layer, int] = {}
    concepts: list[Concept] = []
    for number, selectors in enumerate(wanted):
        parts, names = [], []
        for selector in selectors:
            name, rows, layer = _select(data, selector, used, f"stream.concepts[{number}]")
            parts.append(np.flatnonzero(rows) + layers.setdefault(layer, len(layers)) * len(data))
            names.append(name)
        found = np.unique(np.concatenate(parts))
        called = [str(selector["name"]) for selector in selectors if "name" in selector]
        concepts.append(Concept(", ".join(called or names), found % len(data), found // len(data)))
    called_by = [concept.name for concept in concepts]
    twice = sorted({name for name in called_by if called_by.count(name) > 1})
    if twice:
        raise ConfigError(f"stream.concepts: several are called {twice[0]!r}; give each a name of its own (name: ...)")
    return _layered(data, list(layers)), concepts


def _listed(data: Dataset, given: Mapping[str, Any]) -> list[list[Selector]]:
    """The selectors behind ``{by: ..., groups: ...}``."""
    odd = sorted(set(given) - {"by", "groups", "classes"})
    if odd or ("by" in given) == ("classes" in given) or ("classes" in given and "groups" in given):
        raise ConfigError(
            f"stream.concepts: {{by: COLUMN}}, {{by: ..., groups: [..]}}, {{classes: [[..], ..]}}, or a list with a "
            f"selector per concept; got {dict(given)}"
        )
    by = given.get("by", "class")
    groups = given.get("classes", given.get("groups"))
    keys = {"class": "classes", "transform": "transform", "swap": "swap"}
    if groups is None and by in data.columns:
        groups = data.columns[by].names
    elif by not in keys and by not in data.columns:
        known = nearest(str(by), [*keys, *data.columns])
        raise ConfigError(f"stream.concepts.by: the data have no column {by!r}; {known} (data.columns keeps columns)")
    if not isinstance(groups, list | tuple):
        example = {"class": "[[0, 1], [2, 3]]", "transform": "[identity, rotate90]", "swap": "[[], [0, 1]]"}
        raise ConfigError(
            f"stream.concepts.groups: by: {by} needs a list with an item per concept, such as "
            f"{example.get(by, '[[a, b], [c]]')}; got {groups!r}"
        )
    return [[{keys.get(by, by): group}] for group in groups]


def _selectors(item: Any) -> list[Selector]:
    found = item if isinstance(item, list) else [item]
    if not found or not all(isinstance(selector, Mapping) for selector in found):
        raise ConfigError(
            f"stream.concepts: a concept is a selector, such as {{domain: photo}} or {{classes: [0, 1], transform: "
            f"invert}}, or a list of them; got {item!r}"
        )
    return [dict(selector) for selector in found]


def _values(selector: Selector, key: str, where: str) -> Sequence[int | str]:
    """One value or several, as a list."""
    found = selector[key]
    each = list(found) if isinstance(found, list | tuple) else several(found)
    if isinstance(each, list) and all(isinstance(v, int | str) and not isinstance(v, bool) for v in each):
        return each
    raise ConfigError(f"{where}.{key}: a value or a list of values; got {found!r}")


def _select(data: Dataset, selector: Selector, used: Array, where: str) -> tuple[str, Array, _Layer]:
    """A title, the base rows (bool, one per row), and the layer of a selector."""
    known = ["classes", "transform", "swap", "name", *data.columns]
    for key in selector:
        if key not in known:
            raise ConfigError(f"{where}: no selector and no column is called {key!r}; {nearest(str(key), known)}")
    rows, names = used.copy(), []
    for key in (key for key in selector if key in data.columns):
        column, wanted = data.columns[key], _values(selector, key, where)
        codes = codes_of(column.names, wanted, key, f"{where}.{key}", "concept")
        rows &= np.isin(column.codes.cpu().numpy(), codes)
        names.append(title(column.names, codes))
    if "classes" in selector:
        codes = _labels(data, selector, "classes", where)
        rows &= np.isin(data.labels.cpu().numpy(), codes)
        names.append(title(data.classes, codes) if SOURCE not in selector else title(*_short(data, codes)))
    if not rows.any():
        raise ConfigError(f"{where}: no row of the data is in this concept: {selector}")
    layer = _layer(data, selector, where)
    if "transform" in selector:
        names.append(layer[0])
    if "swap" in selector:
        pairs = zip(layer[1][::2], layer[1][1::2], strict=True)
        names.append(", ".join(f"{data.classes[a]} <-> {data.classes[b]}" for a, b in pairs) or "no swap")
    return " / ".join(names) or "all", rows, layer


def _layer(data: Dataset, selector: Selector, where: str) -> _Layer:
    transform = selector.get("transform", "identity")
    if transform not in TRANSFORM_NAMES:
        raise ConfigError(
            f"{where}.transform: none is called {transform!r}; {nearest(str(transform), TRANSFORM_NAMES)}"
        )
    swapped = _labels(data, selector, "swap", where) if "swap" in selector else []
    if len(swapped) % 2:
        raise ConfigError(f"{where}.swap: labels are swapped in pairs; got {len(swapped)} of them")
    return transform, tuple(swapped)


def _labels(data: Dataset, selector: Selector, key: str, where: str) -> list[int]:
    """The codes of the labels under a key; in a selector with sources those of each source."""
    if data.is_regression:
        raise ConfigError(f"{where}.{key}: {data.name} has no classes, it learns values; use a column, or transform")
    wanted, at = _values(selector, key, where), f"{where}.{key}"
    sources = [str(source) for source in several(selector.get(SOURCE, []))] if SOURCE in data.columns else []
    prefixes = [f"{source}:" for source in sources if any(name.startswith(f"{source}:") for name in data.classes)]
    if not prefixes or any(str(value) in data.classes for value in wanted):
        return codes_of(data.classes, wanted, "class", at, "concept")
    found = []
    for prefix in prefixes:
        own = [code for code, name in enumerate(data.classes) if name.startswith(prefix)]
        names = [data.classes[code].removeprefix(prefix) for code in own]
        found += [own[place] for place in codes_of(names, wanted, f"class of {prefix[:-1]}", at, "concept")]
    return found


def _short(data: Dataset, codes: Sequence[int]) -> tuple[list[str], list[int]]:
    """The names of classes without their source, as a title wants them."""
    return [name.partition(":")[2] or name for name in data.classes], list(codes)


def _layered(data: Dataset, layers: Sequence[_Layer]) -> Dataset:
    """The data set with these layers; the one that was given where there is nothing but itself."""
    if list(layers) == [("identity", ())]:
        return data
    moved = data.with_transforms(*(transform for transform, _ in layers))
    if not any(swapped for _, swapped in layers):
        return moved
    maps = torch.arange(len(data.classes)).repeat(len(layers), 1)
    for number, (_, codes) in enumerate(layers):
        swap(maps[number], codes)
    data.with_label_maps(maps)  # raises for what has no classes
    return replace(moved, label_maps=maps)
