"""Shared by the tests of predictions: small configurations, and what a run logged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from shoal.data.dataset import Dataset
from shoal.folder import RunFolder

CONFIG: dict[str, Any] = {
    "name": "small",
    "rounds": 2,
    "stream": {"kind": "static", "clients": 3},
    "model": {"kind": "mlp", "hidden": [8]},
    "execution": {"kind": "serial"},
}
TASKS = {"kind": "tasks", "tasks": 5, "by": "class", "clients": 3}


def logged(folder: Path, **labels: Any) -> float:
    """The accuracy that the run logged last for a target."""
    found = [line for line in RunFolder(folder).lines() if line.get("metric") == "accuracy"]
    return float([line for line in found if all(line.get(k) == v for k, v in labels.items())][-1]["value"])


def right(frame: pd.DataFrame, truth: list[str]) -> float:
    return float(np.mean(np.asarray(frame["prediction"]) == np.asarray(truth)))


def raw_test_rows(data: Dataset, rows: torch.Tensor | None = None) -> tuple[np.ndarray, list[str]]:
    chosen = data.test if rows is None else rows
    return data.features[chosen].numpy(), [data.classes[int(i)] for i in data.labels[chosen]]
