"""What the cluster engine costs over threads: two Ray actors against two workers, on one machine.

Both run the same rounds; measuring is off. The order alternates, and Ray is started before. The last line is one JSON
object with time of workers / time of the cluster per model (1 means that sending costs nothing). Needs the extra
``cluster``.

    python benchmarks/cluster.py [--repetitions 5] [--clients 12] [--rows 160]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

from overhead import set_up, timed

from shoal.config import Execution
from shoal.engine import Engine, make_engine, one_torch_thread
from shoal.experiment import Experiment
from shoal.setup import Setup

MODELS = ("mlp", "cnn", "vgg11")
"""Small steps, larger steps, and an entry of many megabytes."""
ENGINES = {"workers": Execution(kind="workers", workers=2), "cluster": Execution(kind="cluster", actors=2)}


def rounds_of(setup: Setup, engine: Engine, rounds: int) -> Callable[[], None]:
    """Plays so many further rounds whenever it is called."""
    experiment = Experiment(setup, engine)
    state = experiment.start()

    def play() -> None:
        nonlocal state
        for _ in range(rounds):
            state = experiment.play(state).state

    return play


def compare(kind: str, clients: int, rows: int, repetitions: int, rounds: int) -> float:
    """The median ratio workers / cluster of the repetitions, after some rounds of each to warm up."""
    setup = set_up(kind, clients, rows)
    model = setup.world.models["main"]
    began = time.perf_counter()
    engines = {
        name: make_engine(execution, setup.world.models, setup.stream.dataset) for name, execution in ENGINES.items()
    }
    print(f"{kind}: {model.space.size} parameters; started in {time.perf_counter() - began:.1f} s", flush=True)
    plays = {name: rounds_of(setup, engine, rounds) for name, engine in engines.items()}
    for play in plays.values():
        play()
    ratios = []
    for i in range(repetitions):
        names = list(plays)[:: -1 if i % 2 else 1]
        took = {name: timed(plays[name], time.perf_counter) for name in names}
        each = {name: f"{1e3 * seconds / rounds / clients:.1f} ms" for name, seconds in took.items()}
        print(f"{kind}: a client and round: {each}", flush=True)
        ratios.append(took["workers"] / took["cluster"])
    for engine in engines.values():
        engine.close()
    print(f"{kind}: median {statistics.median(ratios):.3f}, from {min(ratios):.3f} to {max(ratios):.3f}", flush=True)
    return statistics.median(ratios)


def main() -> None:
    """Measures all models and prints the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--rows", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--models", nargs="+", default=MODELS)
    options = parser.parse_args()
    with one_torch_thread():
        result = {
            kind: round(compare(kind, options.clients, options.rows, options.repetitions, options.rounds), 3)
            for kind in options.models
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
