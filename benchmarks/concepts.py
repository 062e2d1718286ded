"""What clustering and matching take of a round of Concept Matching, and whether models are best measured together.

**Share.** Nobody trains eighty clients for this. One client's program (the comparison of all models on its rows, and
one fit) is played and its time multiplied. The server's half is real: as many answers as there are clients, each a
model of the bank plus a random change of the size that the one client's fit had, half of which (of its square) is
common to its concept. The round is the clients' time and all of the merge; the share is that of the clusters
(coordinates, number, labels, means) and of their match (distances, assignment) in it. More local epochs make it
smaller: one is the default.

**Together.** The models measured one after another by the kernel, against all in one pass by ``torch.func.vmap``, on
the same rows, for `lenet` and `cnn`; order alternated, one after another / one pass: above 1 the one pass is faster.

The last line is one JSON object: ``share``, the seconds of ``clustering``, ``matching``, the whole ``merge`` and the
``round``, and the ratio for each network (``together lenet``).

    python benchmarks/concepts.py [--clients 80] [--concepts 5] [--rows 320] [--epochs 1] [--wall]

Processor time of one core is compared, on a machine that others use too; with ``--wall`` the time on the clock.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal import from_arrays
from shoal.bank import Bank
from shoal.data.dataset import inputs
from shoal.engine import one_torch_thread
from shoal.engine.batches import Batches, Scratch
from shoal.engine.kernel import Kernel
from shoal.messages import Client, Part, Participant, Update
from shoal.methods.clustered_matching import ConceptMatching
from shoal.randomness import Moment
from shoal.records import changed
from shoal.requests import Evaluate, Fit, Served
from shoal.setup import Setup, assemble, resolve_config

CLASSES = 183
"""Of the paper's data: with `lenet` 3,079,553 parameters."""
DATA_ROWS = 3000
"""More than are normalised once for a run, as in data sets of a real size."""
NETS = ("lenet", "cnn")


def set_up(options: argparse.Namespace, model: dict[str, Any]) -> tuple[Setup, Kernel]:
    """Random 32x32 images with as many labels as the paper's data, and the kernel of one core."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (DATA_ROWS, 32, 32, 3), dtype=np.uint8)
    y = np.arange(DATA_ROWS) % CLASSES
    config = {
        "data": {"kind": "arrays"},
        "stream": {"kind": "static", "clients": 1},
        "model": model,
        "method": {"kind": "concept-matching", "concepts": options.concepts},
        "local": {"lr": 0.05, "batch_size": 32, "epochs": options.epochs},
        "evaluate": {"every": 0, "measures": []},
        "execution": {"kind": "serial"},
    }
    setup = assemble(resolve_config(config), from_arrays(x, y, x[:CLASSES], y[:CLASSES]))
    return setup, Kernel(setup.world.models, setup.stream.dataset, torch.device("cpu"))


def client_round(
    method: ConceptMatching, kernel: Kernel, bank: Bank, options: argparse.Namespace, clock: Callable[[], float]
) -> tuple[float, float, Update]:
    """Seconds that one client compares and trains, and its answer."""
    when = Moment(0, 1)
    (given,) = method.assign(bank, when, [Participant(0)])
    given = changed(given, entries={key: bank[key] for key in given.keys})
    nobody = torch.empty(0, dtype=torch.int64)
    client = Client(0, when, torch.arange(options.rows), nobody)
    program, result = method.train(given, client), None
    compared = trained = 0.0
    while True:
        try:
            request = program.send(result)
        except StopIteration as stop:
            return compared, trained, stop.value
        began = clock()
        if isinstance(request, Evaluate):
            result = kernel.evaluate(request.models, request.rows, request.loss)
            compared += clock() - began
        else:
            assert isinstance(request, Fit)
            result = kernel.fit(request, client)
            trained += clock() - began


def directions(rng: np.random.Generator, size: int, length: float) -> Tensor:
    """A random vector of about this length."""
    return torch.from_numpy(rng.standard_normal(size, dtype=np.float32)).mul_(length / size**0.5)


def played(bank: Bank, clients: int, length: float, rows: int) -> list[Update]:
    """Answers of clients whose concepts take turns, each near the model of its concept."""
    rng = np.random.default_rng(1)
    keys = list(bank.entries)
    common = [directions(rng, bank[key].vector.numel(), length * 0.5**0.5) for key in keys]
    found = []
    for client in range(clients):
        place = client % len(keys)
        start = bank[keys[place]].vector
        vector = start + common[place] + directions(rng, start.numel(), length * 0.5**0.5)
        found.append(Update({keys[place]: Part(vector, client=client)}, weight=rows, client=client))
    return found


def timed(work: Callable[[], Any], clock: Callable[[], float]) -> tuple[float, Any]:
    """Seconds that this takes, and what it gives."""
    began = clock()
    found = work()
    return clock() - began, found


def share(options: argparse.Namespace, clock: Callable[[], float]) -> dict[str, float]:
    """The medians of the server's parts, of the round, and of the share."""
    setup, kernel = set_up(options, {"kind": "lenet", "width": options.width})
    method = setup.method
    assert isinstance(method, ConceptMatching)
    bank = method.start()
    keys = list(bank.entries)
    _, _, answer = client_round(method, kernel, bank, options, clock)
    (part,) = answer.parts.values()
    assert part.vector is not None
    length = float((part.vector - bank[keys[0]].vector).norm())
    # Models that have been trained on concepts of their own for a while.
    rng = np.random.default_rng(2)
    size = part.vector.numel()
    bank = bank.put({key: bank[key].new(vector=bank[key].vector + directions(rng, size, 4 * length)) for key in keys})
    updates = played(bank, options.clients, length, options.rows)
    when = Moment(0, 1)
    bank = method.merge(bank, updates, when)  # so that there is a past
    found: dict[str, list[float]] = {name: [] for name in ("share", "clustering", "matching", "merge", "round")}
    for _ in range(options.repetitions):
        compared, trained, _ = client_round(method, kernel, bank, options, clock)
        clustering, clusters = timed(lambda: method.clusters_of(bank, updates, when), clock)
        models = [bank[key].vector for key in keys]
        matching, matched = timed(lambda c=clusters, m=models: method.matched(c, m, bank.memory), clock)
        merge, _ = timed(lambda: method.merge(bank, updates, when), clock)
        whole = options.clients * (compared + trained) + merge
        values = ((clustering + matching) / whole, clustering, matching, merge, whole)
        for name, value in zip(found, values, strict=True):
            found[name].append(value)
        print(
            f"{size:,} parameters, {options.clients} clients: one compares {1e3 * compared:.0f} ms and trains "
            f"{1e3 * trained:.0f} ms; clusters {clustering:.2f} s ({clusters.clusters.number} of them), match "
            f"{matching:.2f} s ({matched.counts}), merge in all {merge:.2f} s; share {100 * values[0]:.2f} %",
            flush=True,
        )
    print(f"share from {100 * min(found['share']):.2f} to {100 * max(found['share']):.2f} %", flush=True)
    return {name: statistics.median(values) for name, values in found.items()}


class Together:
    """The mean losses of several models of one architecture on the same rows, in one pass."""

    def __init__(self, setup: Setup, kernel: Kernel) -> None:
        self.space = setup.world.models["main"].space
        self.module = kernel.workspace("main").module.eval()
        self.dataset = setup.stream.dataset
        self.scratch = Scratch()

    def losses(self, vectors: Sequence[Tensor], rows: Tensor) -> Tensor:
        """``[models]``."""
        stacked = torch.stack(list(vectors))
        values = {name: torch.stack([self.space.view(vector, name) for vector in stacked]) for name in self.space.names}
        x, y = Batches(self.dataset, rows, self.scratch).range(0, len(rows))

        def one(numbers: dict[str, Tensor], images: Tensor) -> Tensor:
            outputs: Tensor = torch.func.functional_call(self.module, numbers, (images,))
            return outputs

        with torch.no_grad():
            outputs = torch.func.vmap(one, (0, None))(values, inputs(x))
            return torch.stack([F.cross_entropy(some, y) for some in outputs])


def together(net: str, options: argparse.Namespace, clock: Callable[[], float]) -> float:
    """The median of one after another / one pass."""
    setup, kernel = set_up(options, {"kind": net, "width": options.width})
    method, rows = setup.method, torch.arange(options.rows)
    rng = np.random.default_rng(3)
    start = method.start()["concept/0"].vector
    vectors = [start + directions(rng, start.numel(), float(start.norm()) / 4) for _ in range(options.concepts)]
    served = tuple(Served("main", vector) for vector in vectors)
    one_pass = Together(setup, kernel)
    expected = torch.tensor([score.loss for score in kernel.evaluate(served, rows)])
    torch.testing.assert_close(one_pass.losses(vectors, rows), expected, rtol=1e-4, atol=1e-4)
    ratios = []
    for i in range(options.repetitions):
        sides = [lambda: kernel.evaluate(served, rows), lambda: one_pass.losses(vectors, rows)]
        spent = [0.0, 0.0]
        for side in (0, 1) if i % 2 else (1, 0):
            spent[side], _ = timed(sides[side], clock)
        print(f"{net}: one after another {1e3 * spent[0]:.0f} ms, one pass {1e3 * spent[1]:.0f} ms", flush=True)
        ratios.append(spent[0] / spent[1])
    print(f"{net}: median {statistics.median(ratios):.3f}, from {min(ratios):.3f} to {max(ratios):.3f}", flush=True)
    return statistics.median(ratios)


def main() -> None:
    """Measures both and prints the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--clients", type=int, default=80)
    parser.add_argument("--concepts", type=int, default=5)
    parser.add_argument("--rows", type=int, default=320)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--wall", action="store_true")
    options = parser.parse_args()
    clock = time.perf_counter if options.wall else time.process_time
    with one_torch_thread():
        found = share(options, clock)
        found |= {f"together {net}": together(net, options, clock) for net in NETS}
        print(json.dumps({name: round(value, 6) for name, value in found.items()}))


if __name__ == "__main__":
    main()
