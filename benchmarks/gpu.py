"""A GPU: the laws of whole runs on it, and clients stacked against one after another.

Three federations at full size on random images of 3x32x32: ``hast-cifar10`` (50 peers, 250 rows, batch 8, three epochs
of Adam), ``lenet`` and ``resnet20`` with 100 clients of 50 rows, batch 10, one epoch. Whole rounds through all of
Shoal; the order alternates, and given is the median of the ratios serial / stacked with the lowest and highest. The
last line is one JSON object. Ends with 1 if a law is broken, and with 2 where there is no such device.

    python benchmarks/gpu.py [--device cuda] [--repetitions 3] [--quick]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from shoal import from_arrays, registry
from shoal.bank import State
from shoal.checks.case import Case
from shoal.checks.runner import laws_of
from shoal.config import Execution
from shoal.engine import make_engine, one_torch_thread
from shoal.engine.base import find_device
from shoal.errors import ConfigError
from shoal.experiment import Experiment
from shoal.setup import Setup, assemble, resolve_config

LAWS = {"method": None, "learner": None, "compression": None}
QUICK = {"method": ("fedavg",), "learner": ("scaffold",)}
"""The parts whose laws are tried; ``None``: all kinds. Quickly, only those of stacks."""


def laws(device: str, quick: bool) -> tuple[int, list[str]]:
    """How many laws were tried on the device, and those that are broken."""
    tried, broken = 0, []
    for part, kinds in (QUICK if quick else LAWS).items():
        for kind in kinds or registry.PARTS[part]:
            for law, subject, _ in laws_of(part, kind):
                if isinstance(subject, Case) and ("stacked" in law.name or not quick):
                    tried += 1
                    result = law.on(replace(subject, device=device, kept={}))
                    if not result.passed:
                        broken.append(f"{part} {kind}: {law.name}: {result.detail}")
                        print(f"broken: {broken[-1]}", flush=True)
            print(f"laws of {part} {kind}: tried", flush=True)
    return tried, broken


def set_up(case: str, quick: bool) -> Setup:
    """A federation over random images."""
    hast = case == "hast-cifar10"
    clients, rows = (4, 16) if quick else (50, 250) if hast else (100, 50)
    rng = np.random.default_rng(0)
    n = clients * rows
    x = rng.integers(0, 256, (n, 32, 32, 3)).astype("uint8")
    y = np.concatenate([np.arange(10), rng.integers(0, 10, n - 10)])
    adam = {"optimizer": "adam", "lr": 0.00008, "epochs": 3, "batch_size": 8}
    config = {
        "rounds": 10**6,
        "data": {"kind": "arrays"},
        "stream": {"kind": "static", "clients": clients, "partition": {"kind": "iid"}, "validation": 0.2 * hast},
        "model": {"kind": "cnn" if hast else case},
        "method": {"kind": "hast", "contacts": 1 if quick else 3} if hast else {"kind": "fedavg"},
        "local": adam if hast else {"lr": 0.01, "epochs": 1, "batch_size": 10},
        "evaluate": {"every": 0, "measures": []},
    }
    return assemble(resolve_config(config), from_arrays(x, y, x[:10], y[:10]))


class Player:
    """A run on one engine that can be played on."""

    def __init__(self, setup: Setup, execution: Execution) -> None:
        self.engine = make_engine(execution, setup.world.models, setup.stream.dataset)
        self.experiment = Experiment(setup, self.engine)
        self.state: State = self.experiment.start()
        for _ in range(2):  # the first rounds load kernels, and may be a warm-up
            self.seconds()

    def seconds(self) -> float:
        """The time of one round."""
        began = time.perf_counter()
        self.state = self.experiment.play(self.state).state
        if self.engine.device.type == "cuda":
            torch.cuda.synchronize(self.engine.device)
        return time.perf_counter() - began


def compare(case: str, device: str, repetitions: int, quick: bool) -> dict[str, Any]:
    """The ratio serial / stacked, the seconds of a round, and what was stacked."""
    found: dict[str, Any] = {}
    for precision in ("float32", "bf16"):
        setup = set_up(case, quick)
        stack = {"kind": "stacked", "stack": "any", "device": device, "precision": precision}
        players = {
            "serial": Player(setup, Execution(kind="serial", device=device, precision=precision)),
            "stacked": Player(setup, Execution.model_validate(stack)),
        }
        times: list[dict[str, float]] = []
        for repetition in range(repetitions):
            order = list(players) if repetition % 2 else list(players)[::-1]
            times.append({name: players[name].seconds() for name in order})
        ratios = sorted(t["serial"] / t["stacked"] for t in times)
        found[f"{precision}, serial / stacked"] = [
            round(r, 2) for r in (statistics.median(ratios), ratios[0], ratios[-1])
        ]
        for name, player in players.items():
            found[f"{precision}, {name}, s"] = round(statistics.median(t[name] for t in times), 4)
            found[f"{precision}, {name}"] = player.engine.describe()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small federations and few laws: a rehearsal")
    args = parser.parse_args()
    try:
        device = find_device(args.device)
    except ConfigError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the processor"
    print(f"device: {name}, PyTorch {torch.__version__}", flush=True)
    results: dict[str, Any] = {}
    with one_torch_thread():
        tried, broken = laws(args.device, args.quick)
        print(f"{tried} laws on {args.device}: {len(broken)} broken", flush=True)
        for case in ("hast-cifar10", "lenet", "resnet20"):
            results[case] = compare(case, args.device, args.repetitions, args.quick)
            print(f"{case}: {results[case]}", flush=True)
    results["laws"] = {"device": name, "torch": torch.__version__, "tried": tried, "broken": broken}
    print(json.dumps(results))
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
