"""`serving`: what must be known, beside the numbers of a model, to use it on further rows without its data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from .setup import Setup

VERSION = 1


def serving(setup: Setup) -> dict[str, Any]:
    """How raw rows become inputs, and outputs answers; JSON.

    ``reader``, ``shape``, ``peak``, ``scale``, ``offset`` and ``shift`` are those of the data set, ``value_scale`` and
    ``value_offset`` the way from outputs to a regression's units (``None`` for classes). ``classes`` are the original
    ones, ``classes_by_target`` those of targets that have others (heads of their own). ``outputs``, ``task_outputs``,
    ``clients``, ``rounds`` and ``tasks`` rebuild the models. Numbers are exact: JSON's are doubles.
    """
    stream, data = setup.stream, setup.stream.dataset
    targets = [dict(target.labels) for target in stream.targets(max(1, setup.config.rounds))]
    own = {name_of(labels): list(stream.classes_of(labels)) for labels in targets}
    return {
        "version": VERSION,
        "data": data.name,
        "reader": dict(data.reader),
        "image": data.is_image,
        "shape": list(data.shape),
        "peak": data.peak,
        "scale": _listed(data.scale),
        "offset": _listed(data.offset),
        "shift": _listed(data.shift),
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
        "clients": stream.clients,
        "rounds": setup.config.rounds,
        "tasks": stream.tasks,
    }


def name_of(labels: Mapping[str, Any]) -> str:
    """A target's labels as text, such as ``task=3``; ``all`` for a target of all rows."""
    parts = [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in labels.items()]
    return ", ".join(parts) or "all"


def _listed(tensor: Tensor | None) -> list[float] | None:
    return None if tensor is None else [float(value) for value in tensor.reshape(-1).tolist()]
