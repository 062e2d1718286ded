"""Fault: one copy of a model or an optimiser stays in memory for every client, round or failure.

``tests/checks/test_memory.py`` counts tensors and bytes of the round loop alone; here is a whole run in its folder,
with 200 rounds of 50 clients, also with failures: crashes, late clients and an exception that holds a large tensor.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from fault_lab import config, table

import shoal
from shoal.bank import Entry, Key
from shoal.learners.base import Learner
from shoal.messages import Client
from shoal.metrics.base import Line
from shoal.progress import Quiet
from shoal.requests import Served

CLIENTS, ROUNDS = 50, 200
MARKS = (20, 110, 200)


class Breaking(Learner):
    """One fit in ten raises, with 400 kB in its hands."""

    def fit(self, key: Key, start: Served, entry: Entry, client: Client, **request: Any) -> Any:
        """Trains, then breaks."""
        part, state = yield from super().fit(key, start, entry, client, **request)
        burden = torch.zeros(100_000)
        if client.random("break").random() < 0.1:
            raise RuntimeError(f"breaks with {burden.numel()} numbers")
        return part, state


class Watch(Quiet):
    """Counts living tensors and the resident memory after some rounds."""

    def __init__(self) -> None:
        self.tensors: list[int] = []
        self.resident: list[int] = []
        self.failed = 0

    def played(self, round: int, lines: list[Line]) -> None:
        """After every round."""
        self.failed += sum(line.get("record") == "failed" for line in lines)
        if round in MARKS:
            gc.collect()
            self.tensors.append(sum(type(thing) in (torch.Tensor, torch.nn.Parameter) for thing in gc.get_objects()))
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.resident.append(pages * os.sysconf("SC_PAGE_SIZE"))


FAILING = {
    "participation": {"crash_probability": 0.05, "straggler_probability": 0.05},
    "local": {"learner": {"kind": "test_fault_memory:Breaking"}},
}


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's view of a process")
@pytest.mark.parametrize(
    ("changes", "optimizer"), [({}, "sgd"), (FAILING, "adam")], ids=["all-answer", "one-in-ten-fails"]
)
def test_a_long_run_stays_flat(tmp_path: Path, changes: dict[str, Any], optimizer: str) -> None:
    data = table([(c, (c + i) % 2, [float((c + i) % 2), float(i)]) for c in range(CLIENTS) for i in range(3)])
    base = {"rounds": ROUNDS, "model": {"kind": "mlp", "hidden": [8]}, "evaluate": {"every": 10}}
    local = {"optimizer": optimizer, **changes.get("local", {})}
    watch = Watch()
    shoal.run(config(**{**base, **changes, "local": local}), out=tmp_path / "a", data=data, progress=watch)
    # A crash in 0.05 of 10,000 programs and a break in 0.1 of the rest.
    assert 1200 < watch.failed < 1700 if changes else not watch.failed
    assert watch.tensors[0] == watch.tensors[1] == watch.tensors[2]
    # Half a kilobyte for each of 50 clients in 90 rounds would be 2.2 MB. The smaller half: an allocator may grow once.
    assert min(b - a for a, b in zip(watch.resident, watch.resident[1:], strict=False)) < 2 * 2**20
