"""What it saves to play the cells of a sweep together: 20 cells of one sweep against 20 single runs.

Both sides make the same 20 runs of a small dense model (five local rates, four server rates) with everything that a run
has: its folder, checkpoints, measures and summary. The sweep has the stacked engine, whose stacks all cells share; the
single runs, one after another in one process, have the stacked engine or two workers. The order alternates, the times
of one repetition are made into a ratio, and the median of the ratios is given with the lowest and highest. The last
line is one JSON object.

    python benchmarks/sweep.py [--repetitions 3] [--clients 20] [--rounds 20]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import shoal
from shoal.data.dataset import Dataset
from shoal.running import start_run
from shoal.setup import resolve_config

RATES = [0.01, 0.02, 0.05, 0.1, 0.2]
SERVERS = [0.1, 0.3, 0.5, 1.0]


def table(clients: int, rows: int = 50) -> Dataset:
    """Random rows of 64 features in ten classes."""
    rng = np.random.default_rng(0)
    n = clients * rows + 500
    return shoal.from_arrays(rng.normal(size=(n, 64)).astype("float32"), rng.integers(0, 10, n), test=500)


def configuration(clients: int, rounds: int) -> dict[str, Any]:
    """A federation of a 64-64-10 network, ten rows a batch, one epoch a round, measured in every round."""
    return {
        "name": "cell",
        "rounds": rounds,
        "stream": {"kind": "static", "clients": clients, "validation": 0.1},
        "model": {"kind": "mlp", "hidden": [64]},
        "method": {"kind": "fedsgd"},
        "local": {"lr": 0.1, "batch_size": 10},
    }


def together(data: Dataset, base: dict[str, Any]) -> None:
    """All cells in one sweep."""
    with tempfile.TemporaryDirectory() as folder:
        own = {**base, "execution": {"kind": "stacked"}}
        shoal.sweep(own, {"local.lr": RATES, "method.server.lr": SERVERS}, out=Path(folder) / "sweep", data=data)


def alone(data: Dataset, base: dict[str, Any], execution: dict[str, Any]) -> None:
    """All cells one after another, without reports."""
    with tempfile.TemporaryDirectory() as folder:
        for lr in RATES:
            for server in SERVERS:
                raw = {**base, "data": "arrays", "execution": execution, "local": {**base["local"], "lr": lr}}
                raw["method"] = {"kind": "fedsgd", "server": {"lr": server}}
                start_run(resolve_config(raw), Path(folder) / f"{lr}-{server}", dataset=data, report=False)


def timed(work: Callable[[], None]) -> float:
    """Seconds that this takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    data, base = table(args.clients), configuration(args.clients, args.rounds)
    sides: dict[str, Callable[[], None]] = {
        "sweep": lambda: together(data, base),
        "stacked runs": lambda: alone(data, base, {"kind": "stacked"}),
        "runs with two workers": lambda: alone(data, base, {"kind": "workers", "workers": 2}),
    }
    times = []
    for repetition in range(args.repetitions):
        order = list(sides) if repetition % 2 else list(sides)[::-1]
        times.append({name: timed(sides[name]) for name in order})
        print({name: round(seconds, 2) for name, seconds in times[-1].items()}, flush=True)
    results: dict[str, Any] = {}
    for name in list(sides)[1:]:
        ratios = sorted(t[name] / t["sweep"] for t in times)
        results[f"20 {name} / sweep"] = [round(r, 2) for r in (statistics.median(ratios), ratios[0], ratios[-1])]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
