"""Metrics: numbers made from a model's outputs on all rows of a target at once.

A metric is a function ``(outputs, targets) -> number``, named in ``evaluate.metrics`` by its kind or by import path
(``my_module:my_metric``). ``outputs`` is float32 ``[rows, outputs]`` (logits, or values in the units of the source),
``targets`` is int64 ``[rows]`` or float32 ``[rows, outputs]``; there is at least one row. ``None`` says that the number
does not exist for these rows, such as an AUC where all are of one class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from .. import registry
from .values import finite

Metric = Callable[[Tensor, Tensor], Any]


def metric_of(kind: str) -> Metric:
    """The metric of this kind; raises `ConfigError` for an unknown one."""
    return cast("Metric", registry.find("metric", kind))


def measured(metrics: Sequence[str], seen: Sequence[tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """Each metric of the rows in these batches of outputs and targets; ``None`` without rows."""
    if not metrics:
        return {}
    if not seen:
        return dict.fromkeys(metrics)
    outputs, targets = (torch.cat(list(parts)) for parts in zip(*seen, strict=True))
    found = {}
    for kind in metrics:
        value = metric_of(kind)(outputs, targets)
        found[kind] = value if isinstance(value, list) else finite(value)
    return found
