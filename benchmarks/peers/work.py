"""The work that every system of `benchmarks/peers.py` is given, and the turns in which they do it.

This file runs in each peer's own virtual environment, so it knows torch and numpy and nothing else.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections import OrderedDict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

SOCKET = "PEERS_SOCKET"
"""The environment variable with the path of the socket on which a system is told to play."""


@dataclass(frozen=True)
class Work:
    """Rounds of federated averaging: ``sampled`` of ``clients`` train one epoch on their ``rows`` rows.

    ``shape`` is a row's: ``[height, width, channels]`` of images, ``[features]`` of a table. ``turns`` are the rounds
    that are played in one go, the first of them to warm up.
    """

    name: str
    model: str
    clients: int
    sampled: int
    shape: tuple[int, ...]
    turns: tuple[int, ...]
    rows: int = 50
    batch: int = 10
    lr: float = 0.1
    seed: int = 0

    @property
    def rounds(self) -> int:
        """All rounds of all turns."""
        return sum(self.turns)

    def make(self, folder: Path) -> None:
        """Writes the work, the rows and the first model into a folder.

        A row is noise around the middle of its class (of images around its colour), so that there is something to learn
        that one epoch does not learn to the end. ``x`` is uint8 ``[clients, rows, height, width, channels]`` of images
        and float32 ``[clients, rows, features]`` of a table, ``y`` int64 ``[clients, rows]``, ``start`` the parameters
        in the module's order.
        """
        rng = np.random.default_rng(self.seed)
        count = self.clients * self.rows
        y = rng.integers(0, 10, count)
        images = len(self.shape) == 3
        alike = (1, 1, self.shape[2]) if images else self.shape
        middles = rng.normal(size=(10, *alike)) * (1.2 if images else 3 / math.sqrt(self.shape[0]))
        x = np.empty((count, *self.shape), dtype=np.uint8 if images else np.float32)
        for begin in range(0, count, 1000):  # in float64 all of them would take eight times as much
            values = middles[y[begin : begin + 1000]] + rng.normal(size=x[begin : begin + 1000].shape)
            x[begin : begin + 1000] = np.clip(128 + 40 * values, 0, 255) if images else values
        torch.manual_seed(self.seed)
        start = nn.utils.parameters_to_vector(MODELS[self.model]().parameters()).detach().numpy()
        each = (self.clients, self.rows)
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / "tensors.npz", x=x.reshape(*each, *self.shape), y=y.reshape(each), start=start)
        (folder / "work.json").write_text(json.dumps(asdict(self)), encoding="utf-8")


class Given:
    """The work in a folder, as tensors: ``x`` float32 ``[clients, rows, ...]`` (images channels first) and ``y``."""

    def __init__(self, folder: str | Path) -> None:
        said = json.loads((Path(folder) / "work.json").read_text(encoding="utf-8"))
        self.work = Work(**{name: tuple(v) if isinstance(v, list) else v for name, v in said.items()})
        with np.load(Path(folder) / "tensors.npz", allow_pickle=False) as found:
            self.raw, self.y, self.start = found["x"], torch.from_numpy(found["y"]), torch.from_numpy(found["start"])
        self.x = inputs(self.raw)

    def model(self) -> nn.Module:
        """The module with the first model's parameters."""
        module = MODELS[self.work.model]()
        nn.utils.vector_to_parameters(self.start.clone(), module.parameters())  # which are views into it
        return module

    def ended(self, module: nn.Module) -> dict[str, float]:
        """What tells whether the same was done: the last model's loss on all rows, and how far it is from the first."""
        end = nn.utils.parameters_to_vector(module.parameters()).detach()
        module.eval()
        total = 0.0
        with torch.no_grad():
            for x, y in zip(self.x, self.y, strict=True):
                total += float(F.cross_entropy(module(x), y))
        return {"loss": total / len(self.y), "distance": float((end - self.start).norm())}


def inputs(raw: np.ndarray) -> Tensor:
    """Rows as the models take them: bytes as numbers from 0 to 1, channels first; a table's numbers as they are."""
    x = torch.from_numpy(raw)
    if raw.dtype != np.uint8:
        return x
    return x.float().mul_(float(np.float32(1 / 255))).movedim(-1, -3).contiguous()


def cnn() -> nn.Module:
    """62,006 parameters: two convolutions of 5x5 with poolings, then 120 - 84 - 10. Pooling comes before the rectifier,
    which gives the same values for less work; everybody has the gain."""
    features = nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()
    )
    dense = nn.Sequential(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))
    return nn.Sequential(OrderedDict(features=features, classifier=dense))


def simple_cnn() -> nn.Module:
    """1,626,442 parameters: ``simple_cnn`` of pfl-research's benchmarks for 32x32 images, with its two dropouts."""
    features = nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten()
    )
    dense = nn.Sequential(nn.Linear(12544, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10))
    module = nn.Sequential(OrderedDict(features=features, classifier=dense))
    for parameter in module.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
    return module


def mlp() -> nn.Module:
    """79,510 parameters: 784 - 100 - 10."""
    features = nn.Sequential(OrderedDict(layer1=nn.Linear(784, 100), activation1=nn.ReLU()))
    return nn.Sequential(OrderedDict(features=features, classifier=nn.Linear(100, 10)))


MODELS = {"cnn": cnn, "simple_cnn": simple_cnn, "mlp": mlp}


class Turns:
    """When a system plays. It calls `before` and `after` around every round, and `end` with its last model."""

    def __init__(self, work: Work) -> None:
        self.left = list(work.turns)
        self.played = 0
        self._wire = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._wire.connect(os.environ[SOCKET])
        self._lines = self._wire.makefile("r", encoding="utf-8")

    def _say(self, **numbers: Any) -> None:
        self._wire.sendall((json.dumps(numbers) + "\n").encode())

    @property
    def waits(self) -> bool:
        """Whether `before` would wait for its turn."""
        return self.played == 0

    def before(self) -> None:
        """Waits for its turn, if a turn begins with this round."""
        if self.waits:
            self._say(ready=True)
            if not self._lines.readline():
                os._exit(1)  # the other side has given up, and this may be no more than a thread
            self.began = time.perf_counter()

    def after(self) -> None:
        """A round is over; with the last one of a turn the seconds are told."""
        self.played += 1
        if self.played == self.left[0]:
            self._say(seconds=time.perf_counter() - self.began)
            self.left.pop(0)
            self.played = 0

    def end(self, **numbers: float) -> None:
        """Tells what came out."""
        self._say(**numbers)
        self._wire.close()
