"""What a round of gossip costs over its own requests: HAST and DAC against the same fits and evaluations run bare.

A round is played once with everything that its programs ask for recorded. Then the whole round (draws, contacts,
mixing, similarities, screening, merging, no measuring) and the bare requests, one after another on one kernel, take
turns; one core, order alternated. The last line is one JSON object with round / requests for each method (1 means no
overhead).

    python benchmarks/gossip.py [--repetitions 5] [--clients 20] [--rows 250] [--wall] [--profile hast]

Processor time is compared, on a machine that others use too; with ``--wall`` the time on the clock. ``--profile``
prints where the rest of the round goes.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from shoal import from_arrays
from shoal.bank import State
from shoal.engine import Serial, one_torch_thread
from shoal.engine.kernel import Kernel
from shoal.experiment import Experiment
from shoal.messages import Client, Job
from shoal.records import changed
from shoal.requests import Evaluate, Fit
from shoal.setup import Setup, assemble, resolve_config

ROUNDS_BEFORE = 3
"""Rounds that are played first, so that similarities are known."""
METHODS: dict[str, dict[str, Any]] = {"hast": {"kind": "hast", "contacts": 3}, "dac": {"kind": "dac", "contacts": 6}}


def set_up(method: str, clients: int, rows: int) -> Setup:
    """Random 32x32 images, two clusters of labels, the network and the local training of the papers."""
    rng = np.random.default_rng(0)
    n = clients * (rows + 75)
    y = np.concatenate([np.arange(10), rng.integers(0, 10, 3 * n - 10)])
    x = rng.integers(0, 256, (len(y), 32, 32, 3), dtype=np.uint8)
    stream = {"kind": "shifts", "clusters": [[0, 1, 8, 9], [3, 4, 5, 7]], "clients": clients, "steps": 1}
    return assemble(
        resolve_config(
            {
                "rounds": 1000,
                "data": {"kind": "arrays"},
                "stream": {**stream, "rounds_per_step": 1000, "rows": rows, "validation_rows": 75},
                "model": {"kind": "cnn"},
                "method": METHODS[method],
                "local": {"lr": 0.01, "batch_size": 8, "epochs": 3},
                "evaluate": {"every": 0, "measures": []},
                "execution": {"kind": "serial"},
            }
        ),
        from_arrays(x, y, x[:100], y[:100]),
    )


class Recording(Serial):
    """The serial engine, which can be told to remember what it is asked."""

    asked: list[tuple[Job, Fit | Evaluate]] | None = None

    def run(self, train: Any, jobs: Sequence[Job]) -> list[Any]:
        def told(given: Any, client: Client) -> Any:
            program, result = train(given, client), None
            job = next(job for job in jobs if job.client.id == client.id)
            while True:
                try:
                    request = program.send(result)
                except StopIteration as stop:
                    return stop.value
                if self.asked is not None and isinstance(request, Fit | Evaluate):
                    self.asked.append((job, request))
                result = yield request

        return super().run(train if self.asked is None else told, jobs)


def replay(kernel: Kernel, asked: Sequence[tuple[Job, Fit | Evaluate]]) -> None:
    """The requests alone."""
    clients: dict[int, Client] = {}
    for job, request in asked:
        client = clients.setdefault(job.client.id, changed(job.client, used=set()))
        if isinstance(request, Fit):
            kernel.fit(request, client)
        else:
            kernel.evaluate(request.models, request.rows, request.loss)


def timed(work: Callable[[], Any], clock: Callable[[], float]) -> float:
    """Seconds that this takes."""
    began = clock()
    work()
    return clock() - began


def compare(method: str, options: argparse.Namespace) -> float:
    """The median of round / requests over the repetitions."""
    clock = time.perf_counter if options.wall else time.process_time
    setup = set_up(method, options.clients, options.rows)
    engine = Recording(setup.world.models, setup.stream.dataset, torch.device("cpu"), "float32", "cross_entropy")
    experiment = Experiment(setup, engine)
    state: State = experiment.start()
    for _ in range(ROUNDS_BEFORE + 1):
        state = experiment.play(state).state
    engine.asked = []
    experiment.play(state)
    asked, engine.asked = engine.asked, None
    kernel = engine._kernel
    ratios = []
    for i in range(options.repetitions):
        if i % 2:
            whole, bare = timed(lambda: experiment.play(state), clock), timed(lambda: replay(kernel, asked), clock)
        else:
            bare, whole = timed(lambda: replay(kernel, asked), clock), timed(lambda: experiment.play(state), clock)
        print(f"{method}: requests {1e3 * bare:.0f} ms, round {1e3 * whole:.0f} ms", flush=True)
        ratios.append(whole / bare)
    print(f"{method}: median {statistics.median(ratios):.3f}, from {min(ratios):.3f} to {max(ratios):.3f}", flush=True)
    if options.profile == method:
        profile = cProfile.Profile()
        profile.runcall(experiment.play, state)
        pstats.Stats(profile).sort_stats("cumulative").print_stats(40)
    engine.close()
    return statistics.median(ratios)


def main() -> None:
    """Measures both methods and prints the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rows", type=int, default=250)
    parser.add_argument("--wall", action="store_true")
    parser.add_argument("--profile", choices=METHODS)
    options = parser.parse_args()
    with one_torch_thread():
        print(json.dumps({method: round(compare(method, options), 3) for method in METHODS}))


if __name__ == "__main__":
    main()
