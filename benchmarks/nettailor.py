"""What NetTailor saves: local training of a late tail on a frozen backbone of random weights, 32x32 images.

Two networks: ``resnet20`` of width 32, whose last blocks see 8x8 pixels, and ``quartered``, residual blocks of 32, 64
and 128 channels behind a stem that quarters the sides, whose last blocks see 2x2 pixels. Compared, in processor time of
one thread and as times without / with:

- ``kept``: activations in front of the first tailored block kept from fit to fit, against computed in every step;
- ``folded``: the backbone's BatchNorm folded into its convolutions, with nothing kept;
- ``stacked``: all clients at once, against one after another, both with activations kept;
- ``full / serial``, ``full / stacked``: all of the backbone trained, against the tail alone.

The order alternates; given is the median of the ratios with the lowest and highest. The last line is one JSON object.

    python benchmarks/nettailor.py [--repetitions 5] [--clients 5] [--rows 100] [--batch 25 32]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from shoal import from_arrays
from shoal.data.dataset import Dataset
from shoal.engine import Serial, Stacked, one_torch_thread
from shoal.engine.features import Kept
from shoal.messages import Assignment, Client, Job, Update
from shoal.models import Model
from shoal.models.backbones import Residual
from shoal.models.nettailor import nettailor
from shoal.models.resnet import resnet20
from shoal.randomness import Moment, generator
from shoal.requests import Fit, Optimizer, Served

SHAPE, CLASSES = (3, 32, 32), 10
OPTIMIZER = Optimizer(lr=0.01, momentum=0.9, weight_decay=5e-4)
EPOCHS = 2


class Quartered(nn.Module):
    """A frozen stem that quarters the sides, and six residual blocks."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = nn.Sequential(_conv(shape[0], 32, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        stages = [(32, 32), (32, 32), (32, 64), (64, 64), (64, 128), (128, 128)]
        self.blocks = nn.ModuleList(_block(given, channels) for given, channels in stages)


def _conv(given: int, channels: int, stride: int = 1, side: int = 3) -> nn.Sequential:
    conv = nn.Conv2d(given, channels, side, stride, side // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(channels))


def _block(given: int, channels: int) -> nn.Module:
    stride = channels // given
    branch = nn.Sequential(_conv(given, channels, stride), nn.ReLU(), _conv(channels, channels))
    return Residual(branch, nn.Identity() if stride == 1 else _conv(given, channels, stride, 1))


def quartered() -> nn.Module:
    """The whole network, to be trained."""
    backbone = Quartered(SHAPE)
    blocks = [layer for block in backbone.blocks for layer in (block, nn.ReLU())]
    return nn.Sequential(backbone.stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, CLASSES))


NETS: dict[str, tuple[dict[str, Any], int, Callable[[], nn.Module]]] = {
    "resnet20": ({"kind": "resnet20", "width": 32}, 8, lambda: resnet20(SHAPE, CLASSES, width=32)),
    "quartered": ({"kind": f"{__name__}:Quartered"}, 5, quartered),
}
"""The backbone, its first tailored block, and the same network to be trained as a whole."""


def tailored(net: str, fold: bool = True) -> Model:
    """The tailored network."""
    backbone, first, _ = NETS[net]

    def make() -> nn.Module:
        return nettailor(SHAPE, CLASSES, backbone=backbone, first_tailored_block=first, fold_norms=fold)

    return Model("main", make)


def images(rows: int) -> Dataset:
    """Random images in colour."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (rows, 32, 32, 3), dtype=np.uint8)
    return from_arrays(x, np.arange(rows) % CLASSES, x[:10], np.arange(10))


class Side:
    """The clients' fits on one engine."""

    def __init__(self, engine: Serial, model: Model, clients: int, rows: int, batch: int) -> None:
        self.engine = engine
        self.batch = batch
        self.start = Served.of(model.initial(generator(0, "start")))
        every = torch.arange(clients * rows).split(rows)
        self.clients = [Client(c, Moment(0, 1), own, own[:0]) for c, own in enumerate(every)]
        self.seconds()

    def _train(self, given: Assignment, client: Client) -> Any:
        yield Fit(self.start, client.train, OPTIMIZER, EPOCHS, batch=self.batch)
        return Update({}, weight=1.0)

    def seconds(self) -> float:
        """The processor time of one round of fits."""
        jobs = [Job(Assignment(client.id), client, client.train) for client in self.clients]
        began = time.process_time()
        outcomes = self.engine.run(self._train, jobs)
        spent = time.process_time() - began
        assert all(isinstance(outcome.answer, Update) for outcome in outcomes), outcomes[0].answer
        return spent


def sides(net: str, clients: int, rows: int, batch: int) -> dict[str, Side]:
    """All that is compared."""
    data = images(clients * rows)
    tail, plain, whole = tailored(net), tailored(net, fold=False), Model("main", NETS[net][2])

    def side(model: Model, kind: type[Serial] = Serial, keep: bool = True) -> Side:
        engine = kind({"main": model}, data, torch.device("cpu"))
        if not keep:
            engine._kernel.fronts.share(Kept(0), {})
        return Side(engine, model, clients, rows, batch)

    return {
        "full": side(whole),
        "unfolded": side(plain, keep=False),
        "anew": side(tail, keep=False),
        "serial": side(tail),
        "stacked": side(tail, Stacked),
    }


RATIOS = {
    "kept": ("anew", "serial"),
    "folded": ("unfolded", "anew"),
    "stacked": ("serial", "stacked"),
    "full / serial": ("full", "serial"),
    "full / stacked": ("full", "stacked"),
}
"""Each ratio as two sides."""


def compare(net: str, clients: int, rows: int, batch: int, repetitions: int) -> dict[str, Any]:
    """The ratios, and the milliseconds of one client's step."""
    found = sides(net, clients, rows, batch)
    times: list[dict[str, float]] = []
    for repetition in range(repetitions):
        order = list(found) if repetition % 2 else list(found)[::-1]
        times.append({name: found[name].seconds() for name in order})
    steps = clients * EPOCHS * -(-rows // batch)
    results: dict[str, Any] = {}
    for name, (without, with_it) in RATIOS.items():
        ratios = sorted(each[without] / each[with_it] for each in times)
        results[name] = [round(r, 2) for r in (statistics.median(ratios), ratios[0], ratios[-1])]
    for name in found:
        results[f"{name}, ms"] = round(statistics.median(each[name] for each in times) / steps * 1e3, 2)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--batch", type=int, nargs="+", default=[25, 32])
    args = parser.parse_args()
    results: dict[str, Any] = {}
    with one_torch_thread():
        for net in NETS:
            for batch in args.batch:
                case = results[f"{net}, batch {batch}"] = compare(net, args.clients, args.rows, batch, args.repetitions)
                print(f"{net}, batch {batch}: {case}", flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
