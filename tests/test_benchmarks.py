"""The benchmarks run, at the smallest size, and end with one line of JSON. Their times are not tested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"
SMALL = {
    "overhead": ["--repetitions", "1", "--clients", "2", "--rows", "32"],
    "gossip": ["--repetitions", "1", "--clients", "3", "--rows", "16"],
    "concepts": ["--repetitions", "1", "--clients", "3", "--rows", "16", "--width", "0.1"],
    "stacked": ["--repetitions", "1", "--clients", "3", "--seconds", "0.01"],
    "sweep": ["--repetitions", "1", "--clients", "2", "--rounds", "2"],
    "cluster": ["--repetitions", "1", "--clients", "2", "--rows", "16", "--rounds", "1", "--models", "mlp"],
    "growth": ["--axes", "clients", "--clients", "20", "40", "--rounds", "2", "--turns", "1", "--out", os.devnull],
    "kernels": ["--repetitions", "1", "--steps", "1"],
    "peers": ["--quick", "--peers", "--workloads", "mlp"],
    "gpu": ["--device", "cpu", "--quick", "--repetitions", "1"],
    "nettailor": ["--repetitions", "1", "--clients", "2", "--rows", "8", "--batch", "4"],
}


def test_every_benchmark_is_tried() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == set(SMALL)
    makefile = (FOLDER.parent / "Makefile").read_text(encoding="utf-8")
    assert all(f"benchmarks/{name}.py" in makefile for name in SMALL)


@pytest.mark.long
@pytest.mark.parametrize("name", SMALL)
def test_the_last_line_is_json(name: str) -> None:
    command = [sys.executable, str(FOLDER / f"{name}.py"), *SMALL[name]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found
    numbers = [n for value in found.values() for n in (value if isinstance(value, list) else [value])]
    assert all(isinstance(n, dict) or n > 0 for n in numbers)
