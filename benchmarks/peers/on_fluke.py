"""The work on fluke: one loop over the clients, in one process, as fluke does it. See `benchmarks/peers.py`.

fluke imports torchvision and three services for tracking when it is loaded, and uses none of them here: where they are
not installed, empty modules take their places.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import torch
from torch import nn
from work import Given, Turns


class _Anything(ModuleType):
    """A module that has every name."""

    __path__: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def stand_in(*names: str) -> None:
    """Empty modules for those of these packages that are not there."""
    missing = {name for name in names if "." not in name and importlib.util.find_spec(name) is None}
    for name in names:
        if name.partition(".")[0] in missing:
            sys.modules[name] = _Anything(name)


def main(folder: str) -> None:
    torch.set_num_threads(1)
    import torchmetrics  # noqa: F401  (looks for torchvision itself, and must not find the empty one)

    stand_in("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.models", "wandb", "clearml")
    from fluke import DDict, FlukeENV
    from fluke.client import Client
    from fluke.config import OptimizerConfigurator
    from fluke.data import FastDataLoader
    from fluke.evaluation import ClassificationEval
    from fluke.server import Server

    given = Given(folder)
    work = given.work
    settings = FlukeENV()
    settings.set_device("cpu")
    settings.set_seed(work.seed)
    settings.set_evaluator(ClassificationEval(1, 10))
    sgd = DDict(name="SGD", lr=work.lr)
    clients = [
        Client(
            c,
            FastDataLoader(given.x[c], given.y[c], num_labels=10, batch_size=work.batch, shuffle=True),
            None,
            OptimizerConfigurator(optimizer_cfg=sgd, scheduler_cfg=DDict(name="StepLR", step_size=1, gamma=1)),
            nn.CrossEntropyLoss(),
            local_epochs=1,
        )
        for c in range(work.clients)
    ]
    server = Server(given.model(), None, clients, weighted=True)
    for client in clients:
        client.set_channel(server.channel)
    turns = Turns(work)
    for number in range(1, work.rounds + 1):
        turns.before()
        chosen = server.get_eligible_clients(work.sampled / work.clients)
        server.broadcast_model(chosen)
        for client in chosen:
            client.local_update(number)
        server.aggregate(chosen, server.receive_client_models(chosen, state_dict=False))
        turns.after()
    turns.end(**given.ended(server.model))


if __name__ == "__main__":
    main(sys.argv[1])
