"""Fault: integers that overflow. Sums of rows that are right for two clients are wrong for four, or for many rows.

The mean itself is compared with float64 for 4, 7 and 15 clients with 60,000 to 2**53 rows in
``tests/server/test_means.py``; here are whole runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fault_lab import config, models, table
from torch import Tensor, nn

import shoal
from shoal.bank import Buffers
from shoal.data.dataset import Dataset
from shoal.folder import RunFolder
from shoal.messages import Assignment, Client, Part, Update
from shoal.methods.fedavg import FedAvg

NODES = (4, 7, 15)


class Normed(nn.Module):
    """A linear layer behind BatchNorm, whose counter is an integer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1)
        self.linear = nn.Linear(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(self.norm(x))
        return out


def answer(client: int) -> tuple[np.ndarray, np.ndarray, int]:
    """What a client sends: the model, mean and variance, and the counter."""
    model = np.linspace(-1, 1, 6) * (-1) ** client * (client + 1)
    return model.astype(np.float32), np.array([client - 3.0, client + 0.5], dtype=np.float32), 2**33 + client


class Told(FedAvg):
    """Every client answers with known numbers, as if it had ``rows`` rows and one more for each id."""

    def __init__(self, *parts: Any, rows: int) -> None:
        super().__init__(*parts)
        self.rows = rows

    def train(self, given: Assignment, client: Client) -> Update:
        """No request: the answer is there."""
        vector, floats, counter = answer(client.id)
        buffers = Buffers(torch.from_numpy(floats), torch.tensor([counter]))
        return Update({"global": Part(torch.from_numpy(vector), buffers)}, weight=self.rows + client.id)


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("rows", [60_000, 2**31, 2**40])
def test_a_run_with_many_rows_gives_the_float64_mean(tmp_path: Path, nodes: int, rows: int) -> None:
    data = table([(c, c % 2, [float(c)]) for c in range(nodes)])
    told = {"kind": "test_fault_overflow:Told", "rows": rows}
    model = {"kind": "test_fault_overflow:Normed"}
    result = shoal.run(config(rounds=1, method=told, model=model), out=tmp_path / "a", data=data)
    assert result.summary["updates"] == nodes
    found = models(result)
    weights = [float(rows + c) for c in range(nodes)]
    answers = [answer(c) for c in range(nodes)]
    vector = np.average([a[0].astype(np.float64) for a in answers], axis=0, weights=weights)
    floats = np.average([a[1].astype(np.float64) for a in answers], axis=0, weights=weights)
    names = ("norm.weight", "norm.bias", "linear.weight", "linear.bias")
    np.testing.assert_allclose(np.concatenate([found[f"global/{n}"].ravel() for n in names]), vector, rtol=3e-7)
    stats = [float(found[f"global/norm.running_{name}"][0]) for name in ("mean", "var")]
    np.testing.assert_allclose(stats, floats, rtol=3e-7, atol=1e-9)
    state, _ = RunFolder(result.folder).checkpoints.load()
    assert state is not None
    assert state.bank["global"].buffers.counters.tolist() == [2**33 + nodes - 1]
    assert state.bank["global"].weight == sum(weights)


ROWS = 2**30 + 7  # no divisor of 2**32, so that a number that wraps around means another row
FEW = 40


def huge(folder: Path) -> Dataset:
    """2**30 + 7 images of 2x2 pixels in sparse files, of which the first 40 are not black."""
    rng = np.random.default_rng(0)
    pixels = np.memmap(folder / "pixels", np.uint8, "w+", shape=(ROWS, 2, 2, 1))
    labels = np.memmap(folder / "labels", np.int64, "w+", shape=(ROWS,))
    pixels[:FEW], labels[:FEW] = rng.integers(1, 256, (FEW, 2, 2, 1)), np.arange(FEW) % 2
    return _dataset(torch.from_numpy(pixels), torch.from_numpy(labels))


def _dataset(pixels: Tensor, labels: Tensor) -> Dataset:
    some = torch.arange(FEW)
    return Dataset(
        name="pixels",
        features=pixels,
        labels=labels,
        classes=("a", "b"),
        train=some[:30],
        test=some[30:],
        scale=torch.full((1,), 1 / 255),
        offset=torch.zeros(1),
        fingerprint="pixels",
    )


def test_row_numbers_beyond_32_bits_are_the_same_rows(tmp_path: Path) -> None:
    """Row ``r`` under the fifth transform of so many rows has a number above 2**32."""
    big = huge(tmp_path)
    small = _dataset(big.features[:FEW].clone(), big.labels[:FEW].clone())
    own = config(
        rounds=5,
        stream={"kind": "tasks", "tasks": 5, "by": "transform", "clients": 3, "order": "asynchronous"},
        model={"kind": "mlp", "hidden": [4]},
    )
    found = [shoal.run(own, out=tmp_path / name, data=data) for name, data in (("big", big), ("small", small))]
    lines = [(result.folder / "metrics.jsonl").read_bytes() for result in found]
    assert lines[0] == lines[1]
    moved = big.with_transforms("identity", "rotate90", "rotate180", "rotate270", "mirror")
    mirrored = moved.batch(torch.tensor([4 * ROWS + 7]))[0, :, :, 0]
    np.testing.assert_allclose(mirrored.numpy(), np.fliplr(big.features[7, :, :, 0].numpy()) / 255, rtol=1e-6)
