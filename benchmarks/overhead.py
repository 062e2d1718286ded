"""What Shoal costs over a bare loop: two workers against two threads that run the same kernels.

Both sides start from the same shared uint8 images, train the same clients for the same steps with the same module, flat
parameters and channels-last batches, and average the results. The bare side has no configuration, no named randomness,
no screening, no bank. The order alternates; the last line is one JSON object with bare time / Shoal time per model (1
means no overhead).

    python benchmarks/overhead.py [--repetitions 5] [--clients 12] [--rows 160] [--cpu]

With ``--cpu`` the processor time of both threads is compared instead, on a machine that others use too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal import from_arrays
from shoal.engine import make_engine, one_torch_thread
from shoal.experiment import Experiment
from shoal.models import Model
from shoal.setup import Setup, assemble, resolve_config

BATCH = 32
LR = 0.05
WORKERS = 2


def set_up(kind: str, clients: int, rows: int) -> Setup:
    """A run over random 32x32 images, ``rows`` training rows for each client."""
    rng = np.random.default_rng(0)
    n = clients * rows
    x = rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)
    y = np.concatenate([np.arange(10), rng.integers(0, 10, n - 10)])
    data = from_arrays(x, y, x[:10], y[:10])
    config = resolve_config(
        {
            "rounds": 1000,
            "data": {"kind": "arrays"},
            "stream": {"kind": "static", "clients": clients, "partition": {"kind": "iid"}, "validation": 0.0},
            "model": {"kind": kind},
            "local": {"lr": LR, "batch_size": BATCH, "epochs": 1},
            "evaluate": {"every": 0},
            "execution": {"kind": "workers", "workers": WORKERS},
        }
    )
    return assemble(config, data)


class Bare:
    """The same work as plain loops in two threads."""

    def __init__(self, setup: Setup) -> None:
        self.model: Model = setup.world.models["main"]
        stream = setup.stream
        self.data = stream.dataset
        self.rows = [stream.holding(c, 1).train for c in range(stream.clients)]
        self.start = setup.method.start().entries["global"].vector
        self.pool = ThreadPoolExecutor(WORKERS, initializer=torch.set_num_threads, initargs=(1,))
        self.threads = [self._thread() for _ in range(WORKERS)]

    def _thread(self) -> tuple[torch.nn.Module, Tensor, Tensor]:
        module = self.model.build().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        vector, gradient = torch.zeros(self.model.space.size), torch.zeros(self.model.space.size)
        self.model.space.bind(module, vector, gradient)
        return module, vector, gradient

    def _clients(self, which: int) -> list[Tensor]:
        module, vector, gradient = self.threads[which]
        ends = []
        for rows in self.rows[which::WORKERS]:
            x, y = self.data.batch(rows), self.data.wanted(rows)
            vector.copy_(self.start)
            order = torch.randperm(len(y))
            for begin in range(0, len(y), BATCH):
                chosen = order[begin : begin + BATCH]
                gradient.zero_()
                batch = x.index_select(0, chosen).permute(0, 3, 1, 2)
                F.cross_entropy(module(batch), y.index_select(0, chosen)).backward()
                vector.add_(gradient, alpha=-LR)
            ends.append(vector.clone())
        return ends

    def round(self) -> None:
        """One round: every client, then the mean."""
        ends = [end for part in self.pool.map(self._clients, range(WORKERS)) for end in part]
        self.start = torch.stack(ends).mean(0)


def timed(work: Callable[[], Any], clock: Callable[[], float]) -> float:
    """Seconds that this takes."""
    began = clock()
    work()
    return clock() - began


def compare(kind: str, clients: int, rows: int, repetitions: int, rounds: int, clock: Callable[[], float]) -> float:
    """The median ratio bare / Shoal of the repetitions, after one round of each to warm up."""
    setup = set_up(kind, clients, rows)
    engine = make_engine(setup.config.execution, setup.world.models, setup.stream.dataset, "cross_entropy")
    experiment = Experiment(setup, engine)
    bare = Bare(setup)
    state = experiment.start()

    def shoal_rounds() -> None:
        nonlocal state
        for _ in range(rounds):
            state = experiment.play(state).state

    def bare_rounds() -> None:
        for _ in range(rounds):
            bare.round()

    shoal_rounds()
    bare_rounds()
    ratios = []
    for i in range(repetitions):
        if i % 2:
            ours, theirs = timed(shoal_rounds, clock), timed(bare_rounds, clock)
        else:
            theirs, ours = timed(bare_rounds, clock), timed(shoal_rounds, clock)
        steps = rounds * clients * -(-rows // BATCH)
        print(f"{kind}: bare {1e3 * theirs / steps:.2f} ms a step, shoal {1e3 * ours / steps:.2f} ms", flush=True)
        ratios.append(theirs / ours)
    engine.close()
    print(f"{kind}: median {statistics.median(ratios):.3f}, from {min(ratios):.3f} to {max(ratios):.3f}", flush=True)
    return statistics.median(ratios)


def main() -> None:
    """Measures both models and prints the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--rows", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    clock = time.process_time if options.cpu else time.perf_counter
    with one_torch_thread():
        result = {
            kind: round(compare(kind, options.clients, options.rows, options.repetitions, options.rounds, clock), 3)
            for kind in ("cnn", "lenet")
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
