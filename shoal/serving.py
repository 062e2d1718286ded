"""`serving`: what must be known, beside the numbers of a model, to use it on further rows without its data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .data.dataset import Dataset
from .setup import Setup

VERSION = 1


def serving(setup: Setup) -> dict[str, Any]:
    """How raw rows become inputs, and outputs answers; JSON.

    ``reader``, ``shape``, ``peak``, ``scale``, ``offset`` and ``shift`` are those of the data set, ``value_scale`` and
    ``value_offset`` the way from outputs to a regression's units (``None`` for classes). ``classes`` are the original
    ones, ``classes_by_target`` those of targets that have others (heads of their own). ``outputs``, ``task_outputs``,
    ``task_shapes``, ``clients``, ``rounds`` and ``tasks`` rebuild the models. Numbers are exact: JSON's are doubles.

    Where every source keeps its rows in its own way, ``sources`` has for each name what is true of its rows instead,
    and ``sources_by_target`` whose rows each target has.
    """
    stream, data = setup.stream, setup.stream.dataset
    targets = [dict(target.labels) for target in stream.targets(max(1, setup.config.rounds))]
    own = {name_of(labels): list(stream.classes_of(labels)) for labels in targets}
    return {
        **_rows(data, stream.task_shapes[0] if stream.task_shapes else data.shape),
        **_sources(setup),
        "version": VERSION,
        "learns": "values" if data.is_regression else "classes",
        "value_scale": _listed(data.value_scale),
        "value_offset": _listed(data.value_offset),
        "classes": list(data.classes),
        "classes_by_target": {name: classes for name, classes in own.items() if classes != list(data.classes)},
        "targets": targets,
        "task_names": list(stream.task_names),
        "client_names": list(stream.client_names),
        "outputs": stream.outputs,
        "task_outputs": list(stream.task_outputs),
        "task_shapes": [list(shape) for shape in stream.task_shapes],
        "clients": stream.clients,
        "rounds": setup.config.rounds,
        "tasks": stream.tasks,
    }


def _rows(data: Dataset, shape: tuple[int, ...]) -> dict[str, Any]:
    """How raw rows of a data set become inputs of this shape."""
    return {
        "data": data.name,
        "reader": dict(data.reader),
        "image": data.is_image,
        "shape": list(shape),
        "peak": data.peak,
        "scale": _listed(data.scale),
        "offset": _listed(data.offset),
        "shift": _listed(data.shift),
    }


def _sources(setup: Setup) -> dict[str, Any]:
    members = setup.stream.dataset.members
    if members is None:
        return {}
    by_target = {
        name_of(target.labels): [members.names[i] for i in members.at(torch.cat([target.test, target.validation]))]
        for target in setup.stream.targets(max(1, setup.config.rounds))
    }
    return {
        "sources": {part.name: _rows(part, part.shape) for part in members.parts},
        "sources_by_target": by_target,
    }


def name_of(labels: Mapping[str, Any]) -> str:
    """A target's labels as text, such as ``task=3``; ``all`` for a target of all rows."""
    parts = [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in labels.items()]
    return ", ".join(parts) or "all"


def _listed(tensor: Tensor | None) -> list[float] | None:
    return None if tensor is None else [float(value) for value in tensor.reshape(-1).tolist()]
