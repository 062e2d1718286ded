"""Metrics: numbers made from a model's outputs on all rows of a target at once.

A metric is a function ``(outputs, targets) -> number``, named in ``evaluate.metrics`` by its kind or by import path
(``my_module:my_metric``). Of classes ``outputs`` is float32 ``[rows, outputs]`` (logits) and ``targets`` int64
``[rows]``; of a regression both are float64 ``[rows, outputs]``, in the units of the source: in float32 values such as
1e9 + 2.4 would lose what tells them apart. There is at least one row. ``None`` says that the number
does not exist for these rows, such as an AUC where all are of one class. A metric runs in a worker's thread: it must
not depend on what else runs, and it must not use a global random generator.

As in scikit-learn, a name that ends with ``_error`` or ``_loss`` says that lower is better.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from .. import registry
from ..data.dataset import Dataset
from ..errors import ConfigError
from .values import finite

Metric = Callable[[Tensor, Tensor], Any]
M = TypeVar("M", bound=Metric)

NAN = "the model's outputs hold NaN"


@dataclass(frozen=True)
class Failed:
    """What is in the place of a metric's value that could not be had."""

    reason: str


def learns(what: str) -> Callable[[M], M]:
    """Marks a metric as one of ``"classes"`` or of ``"values"``; on other data it is refused before the run."""

    def mark(metric: M) -> M:
        vars(metric)["learns"] = what
        return metric

    return mark


def metric_of(kind: str) -> Metric:
    """The metric of this kind; raises `ConfigError` for an unknown one."""
    return cast("Metric", registry.find("metric", kind))


def name_of(kind: str) -> str:
    """The name of a metric's lines: its kind, or the name of the function behind an import path."""
    return kind.rpartition(":")[2]


def lower_is_better(name: str) -> bool:
    """Whether the highest value of this metric is the worst."""
    return name in ("loss", "mae", "rmse") or name.endswith(("_error", "_loss"))


def check_metrics(kinds: Sequence[str], dataset: Dataset, taken: Collection[str]) -> None:
    """Raises `ConfigError` for a metric that cannot be measured on these data or whose name is ``taken``."""
    names: dict[str, str] = {}
    data = "values" if dataset.is_regression else "classes"
    for kind in kinds:
        metric, name = metric_of(kind), name_of(kind)
        if name in taken:
            raise ConfigError(
                f"evaluate.metrics: {kind!r} would write lines called {name!r}, as a measure does; "
                f"give the function another name"
            )
        if name in names:
            raise ConfigError(
                f"evaluate.metrics: {names[name]!r} and {kind!r} would both write lines called {name!r}; "
                f"name one of them, or give the function another name"
            )
        names[name] = kind
        fits = getattr(metric, "learns", data)
        if fits != data:
            raise ConfigError(
                f"evaluate.metrics: {kind!r} is a metric of {fits}, but the models of {dataset.name} learn {data}; "
                f"use {_known(data)}"
            )
        _check_call(kind, metric)


def _known(data: str) -> str:
    return ", ".join(kind for kind in registry.PARTS["metric"] if getattr(metric_of(kind), "learns", data) == data)


def _check_call(kind: str, metric: Metric) -> None:
    if isinstance(metric, type):
        raise ConfigError(f"evaluate.metrics: {kind!r} is a class; a metric is a function (outputs, targets) -> number")
    try:
        inspect.signature(metric).bind(None, None)
    except TypeError as error:
        raise ConfigError(
            f"evaluate.metrics: {kind!r} cannot be called with (outputs, targets): {error}; "
            f"a metric is a function of two arguments"
        ) from None
    except ValueError:  # written in C, with a signature that cannot be read
        return


def measured(metrics: Sequence[str], seen: Sequence[tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """Each metric of the rows in these batches of outputs and targets; ``None`` without rows.

    A metric never ends a run: where it raises, or where the outputs hold NaN, its value is a `Failed`.
    """
    if not metrics:
        return {}
    if not seen:
        return dict.fromkeys(metrics)
    outputs, targets = (torch.cat(list(parts)) for parts in zip(*seen, strict=True))
    if bool(outputs.isnan().any()):
        return dict.fromkeys(metrics, Failed(NAN))
    # Each gets tensors of its own: one that works in place would change what the next one sees.
    return {kind: _value(metric_of(kind), outputs.clone(), targets.clone()) for kind in metrics}


def _value(metric: Metric, outputs: Tensor, targets: Tensor) -> Any:
    try:
        value = metric(outputs, targets)
        return value if isinstance(value, list) else finite(value)
    except Exception as error:  # somebody's own function may fail in any way
        # Here, because the engine imports this module.
        from ..engine.program import describe_error

        return Failed(describe_error(error))
