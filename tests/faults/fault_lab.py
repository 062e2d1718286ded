"""Shared by the tests of faults: a stream by a column of the data, small tables and images, and readers of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

import shoal
from shoal.data.dataset import Dataset
from shoal.loading import merged
from shoal.streams.base import Holding, Stream, Target


class Owned(Stream):
    """Client ``c`` holds the rows whose column ``owner`` has code ``c``, and is a target of its own."""

    def __init__(self, data: Dataset, seed: int, rounds: int, heads_by_task: bool = False) -> None:
        self.dataset = data
        self.outputs = data.outputs
        self.client_names = data.columns["owner"].names
        self.clients = len(self.client_names)

    def _of(self, rows: torch.Tensor, client: int) -> torch.Tensor:
        return rows[self.dataset.columns["owner"].codes[rows] == client]

    def holding(self, client: int, round: int) -> Holding:
        """Its training and test rows, the same in every round."""
        rows = self._of(self.dataset.train, client)
        return Holding(rows, rows[:0], self._of(self.dataset.test, client))

    def targets(self, round: int) -> list[Target]:
        """One per client."""
        none = self.dataset.train[:0]
        return [Target({"client": c}, self._of(self.dataset.test, c), none) for c in range(self.clients)]


def table(train: list[tuple[int, int, list[float]]], test: list[tuple[int, int, list[float]]] | None = None) -> Dataset:
    """Rows ``(owner, label, features)``, features as they are; without ``test`` the training rows are measured."""
    sides = (train, train if test is None else test)
    x, y = ([np.array([row[i] for row in rows], dtype=kind) for rows in sides] for i, kind in ((2, "f4"), (1, "i8")))
    owner = [row[0] for rows in sides for row in rows]
    return shoal.from_arrays(x[0], y[0], x[1], y[1], columns={"owner": owner}, normalize="none")


def images(count: int, classes: int, seed: int = 0, size: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Noisy pictures, uint8 ``[count, size, size]``, with one bright pixel: whose place is the class."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    pixels = rng.integers(0, 100, (count, size * size))
    pixels[np.arange(count), labels] += 150
    return pixels.reshape(count, size, size).astype(np.uint8), labels


def config(**parts: Any) -> dict[str, Any]:
    """A small configuration with these parts laid on top."""
    base = {
        "name": "fault",
        "rounds": 2,
        "stream": {"kind": "fault_lab:Owned"},
        "model": {"kind": "mlp", "hidden": []},
        "local": {"lr": 0.1, "batch_size": 1000},
        "execution": {"kind": "serial"},
    }
    return merged(base, parts)


def lines(folder: Path | shoal.Result, **wanted: Any) -> list[dict[str, Any]]:
    """The lines of a run's ``metrics.jsonl`` with these values."""
    path = folder.folder if isinstance(folder, shoal.Result) else folder
    found = [json.loads(line) for line in (path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line for line in found if all(line.get(name) == value for name, value in wanted.items())]


def models(result: shoal.Result) -> dict[str, np.ndarray]:
    """The exported tensors, float64, by ``entry/parameter``."""
    return {name: t.double().numpy() for name, t in load_file(result.folder / "model.safetensors").items()}
