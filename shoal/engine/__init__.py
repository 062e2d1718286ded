"""Engines: who runs the clients' work. They know no method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..config import Execution
from ..data.dataset import Dataset
from ..models.base import Model
from .base import Engine, find_device, one_torch_thread
from .cluster import Cluster, check_cluster
from .dense import dense_of
from .serial import Serial
from .shared import Companion, Gathering
from .stacked import Stacked
from .workers import Workers

__all__ = [
    "Engine",
    "Gathering",
    "Serial",
    "Stacked",
    "Workers",
    "check_engine",
    "chosen",
    "make_engine",
    "one_torch_thread",
]


def chosen(execution: Execution, models: Mapping[str, Model]) -> Execution:
    """The settings with ``auto`` decided: by model, device and precision, never by the number of cores."""
    if execution.kind != "auto":
        return execution
    plain = find_device(execution.device).type == "cpu" and execution.precision == "float32"
    dense = plain and all(dense_of(model) is not None for model in models.values())
    return execution.model_copy(update={"kind": "stacked" if dense else "workers"})


def check_engine(execution: Execution) -> None:
    """Raises `ConfigError` for a device that there is not, or an engine whose package is not installed."""
    find_device(execution.device)
    if execution.kind == "cluster":
        check_cluster()


def make_engine(
    execution: Execution,
    models: Mapping[str, Model],
    dataset: Dataset,
    loss: str = "cross_entropy",
    loss_args: Mapping[str, Any] | None = None,
    gathering: Gathering | None = None,
) -> Engine:
    """The engine that a configuration asks for; ``loss`` is the run's own, with its arguments.

    A stacked one shares its stacks with the other runs of a ``gathering``, if there is one.
    """
    device = find_device(execution.device)
    if device.type == "cuda":
        # The fastest convolution may differ from run to run; the same bits are worth more.
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
        # float32 means float32: TF32 has ten bits of mantissa.
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
    stacks: dict[str, Any] = {"stack": execution.stack, "workers": execution.workers}
    if execution.kind == "stacked" and gathering is not None:
        return Companion(gathering, models, dataset, device, execution.precision, loss, loss_args, **stacks)
    if execution.kind == "stacked":
        return Stacked(models, dataset, device, execution.precision, loss, loss_args, **stacks)
    if execution.kind == "serial":
        return Serial(models, dataset, device, execution.precision, loss, loss_args)
    if execution.kind == "cluster":
        sizes: dict[str, Any] = {"actors": execution.actors, "address": execution.address}
        return Cluster(models, dataset, device, execution.precision, loss, loss_args, **sizes)
    return Workers(models, dataset, device, execution.precision, loss, loss_args, workers=execution.workers)
