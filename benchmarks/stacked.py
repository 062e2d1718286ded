"""What stacking gives: rounds of small dense models, stacked by one thread and by two against serial and two workers.

All engines play the same rounds of the same federation through the whole of Shoal: selection, assignment, named
randomness, screening, merging. The order alternates, the times of one repetition are made into a ratio, and the median
of the ratios is given with the lowest and highest. The last line is one JSON object.

    python benchmarks/stacked.py [--repetitions 5] [--clients 50 200] [--seconds 1.0]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np

from shoal import from_arrays
from shoal.bank import State
from shoal.config import Execution
from shoal.engine import make_engine, one_torch_thread
from shoal.experiment import Experiment
from shoal.setup import Setup, assemble, resolve_config

NETS = {"64-64-10": (64, 64, 50, 10), "784-100-10": (784, 100, 50, 10)}
"""Inputs, hidden units, rows of a client, batch size; one epoch a round."""
ENGINES = {
    "serial": Execution(kind="serial"),
    "stacked": Execution(kind="stacked", workers=1),
    "workers": Execution(workers=2),
    "stacked by two": Execution(kind="stacked", workers=2),
}
PAIRS = (("serial", "stacked"), ("workers", "stacked by two"))


def set_up(net: str, clients: int) -> Setup:
    """A federation over random tables."""
    features, hidden, rows, batch = NETS[net]
    rng = np.random.default_rng(0)
    n = clients * rows
    x = rng.normal(size=(n, features)).astype("float32")
    y = np.concatenate([np.arange(10), rng.integers(0, 10, n - 10)])
    config = {
        "rounds": 10**6,
        "data": {"kind": "arrays"},
        "stream": {"kind": "static", "clients": clients, "partition": {"kind": "iid"}, "validation": 0.0},
        "model": {"kind": "mlp", "hidden": [hidden]},
        "local": {"lr": 0.05, "batch_size": batch, "epochs": 1},
        "evaluate": {"every": 0, "measures": []},
    }
    return assemble(resolve_config(config), from_arrays(x, y, x[:10], y[:10]))


class Player:
    """A run on one engine that can be played on."""

    def __init__(self, setup: Setup, execution: Execution) -> None:
        engine = make_engine(execution, setup.world.models, setup.stream.dataset)
        self.experiment = Experiment(setup, engine)
        self.state: State = self.experiment.play(self.experiment.start()).state

    def seconds(self, rounds: int) -> float:
        """The time of so many rounds."""
        began = time.perf_counter()
        for _ in range(rounds):
            self.state = self.experiment.play(self.state).state
        return time.perf_counter() - began


def compare(net: str, clients: int, repetitions: int, seconds: float) -> dict[str, Any]:
    """Ratios of time, one by one with as many threads, and the microseconds of one client and round."""
    players = {name: Player(set_up(net, clients), execution) for name, execution in ENGINES.items()}
    rounds = max(1, round(seconds / players["serial"].seconds(1)))
    times: list[dict[str, float]] = []
    for repetition in range(repetitions):
        order = list(players) if repetition % 2 else list(players)[::-1]
        times.append({name: players[name].seconds(rounds) for name in order})
    found: dict[str, Any] = {}
    for other, ours in PAIRS:
        ratios = sorted(t[other] / t[ours] for t in times)
        found[f"{other} / {ours}"] = [round(r, 2) for r in (statistics.median(ratios), ratios[0], ratios[-1])]
    for name in ENGINES:
        found[f"{name}, us"] = round(statistics.median(t[name] for t in times) / rounds / clients * 1e6, 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--clients", type=int, nargs="+", default=[50, 200])
    parser.add_argument("--seconds", type=float, default=1.0, help="of the serial side in one repetition")
    args = parser.parse_args()
    results: dict[str, Any] = {}
    with one_torch_thread():
        for net in NETS:
            for clients in args.clients:
                case = results[f"{net}, {clients} clients"] = compare(net, clients, args.repetitions, args.seconds)
                print(f"{net}, {clients} clients: {case}", flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
