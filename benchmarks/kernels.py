"""What each choice in the convolution path gives on the CPU, one at a time: training steps with and without it.

- ``channels-last``: weights and batches channels-last, against the layout that torch's modules have by themselves;
- ``pool first``: max-pooling before the rectifier, against the usual order (the values are equal);
- ``rows once``: a fit's rows normalised once and its batches gathered into memory that is kept, against a fresh batch
  from the bytes in every step;
- ``bf16``: autocast without its weight cache, against float32 (of use only where the processor has it).

Both sides do the same steps; the order alternates, and the median of the ratios (without / with) is given with the
lowest and highest. The last line is one JSON object.

    python benchmarks/kernels.py [--repetitions 5] [--steps 30]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal import from_arrays
from shoal.data.dataset import Dataset, inputs
from shoal.engine import one_torch_thread
from shoal.engine.batches import Batches, Scratch
from shoal.engine.plan import Step
from shoal.models import Model
from shoal.models.cnn import cnn
from shoal.models.lenet import lenet

BATCH, ROWS = 32, 320
NETS: dict[str, Callable[..., nn.Module]] = {"cnn": cnn, "lenet": lenet}
Side = Callable[[int], None]


def images() -> Dataset:
    """Random 32x32 images in colour."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (ROWS, 32, 32, 3), dtype=np.uint8)
    return from_arrays(x, np.arange(ROWS) % 10, test=10)


def flat(net: str) -> nn.Module:
    """The module on one flat vector, with channels-last weights, as the kernel has it."""
    model = Model("main", lambda: NETS[net]((3, 32, 32), 10))
    module = model.build()
    vector = model.initial(np.random.default_rng(0)).vector
    model.space.bind(module, vector, torch.zeros_like(vector))
    return module


def usual_order(module: nn.Module) -> nn.Module:
    """The module with each max-pooling and the rectifier behind it exchanged."""
    features = module.get_submodule("features")
    layers = dict(features.named_children())
    names = list(layers)
    for i in range(len(names) - 1):
        if isinstance(layers[names[i]], nn.MaxPool2d) and isinstance(layers[names[i + 1]], nn.ReLU):
            names[i], names[i + 1] = names[i + 1], names[i]
    module._modules["features"] = nn.Sequential(OrderedDict((name, layers[name]) for name in names))
    return module


def stepping(module: nn.Module, batches: Callable[[int], tuple[Tensor, Tensor]], half: bool = False) -> Side:
    """So many forward and backward passes, without a step: the weights stay what they are."""

    def run(steps: int) -> None:
        for step in range(steps):
            x, y = batches(step)
            cast = torch.autocast("cpu", torch.bfloat16, cache_enabled=False) if half else contextlib.nullcontext()
            for parameter in module.parameters():
                if parameter.grad is not None:
                    parameter.grad.zero_()
            with cast:
                loss = F.cross_entropy(module(x), y)
            loss.backward()  # type: ignore[no-untyped-call]

    return run


def cases(net: str, data: Dataset) -> dict[str, tuple[Side, Side]]:
    """Each choice as two sides, without and with."""
    order = [np.random.default_rng(i).permutation(len(data.train))[:BATCH] for i in range(10)]
    kept = Batches(data, data.train, Scratch())

    def once(step: int) -> tuple[Tensor, Tensor]:
        x, y = kept.take(Step(order[step % 10], 0, BATCH, False))
        return inputs(x), y

    def fresh(step: int) -> tuple[Tensor, Tensor]:
        rows = data.train[torch.from_numpy(order[step % 10])]
        return inputs(data.batch(rows)), data.wanted(rows)

    def contiguous(step: int) -> tuple[Tensor, Tensor]:
        x, y = once(step)
        return x.contiguous(), y

    plain = NETS[net]((3, 32, 32), 10)
    found = {
        "channels-last": (stepping(plain, contiguous), stepping(flat(net), once)),
        "rows once": (stepping(flat(net), fresh), stepping(flat(net), once)),
        "bf16": (stepping(flat(net), once), stepping(flat(net), once, half=True)),
    }
    if any(isinstance(m, nn.MaxPool2d) for m in plain.modules()):
        found["pool first"] = (stepping(usual_order(flat(net)), once), stepping(flat(net), once))
    return found


def timed(side: Side, steps: int) -> float:
    """Seconds that so many steps take."""
    began = time.perf_counter()
    side(steps)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    results: dict[str, Any] = {}
    data = images()
    with one_torch_thread():
        for net in NETS:
            for name, sides in cases(net, data).items():
                for side in sides:
                    side(5)
                ratios = []
                for repetition in range(args.repetitions):
                    places = (0, 1) if repetition % 2 else (1, 0)
                    times = {place: timed(sides[place], args.steps) for place in places}
                    ratios.append(times[0] / times[1])
                spread = (statistics.median(ratios), min(ratios), max(ratios))
                results[f"{net}, {name}"] = [round(r, 3) for r in spread]
                print(f"{net}, {name}: {results[f'{net}, {name}']}", flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
