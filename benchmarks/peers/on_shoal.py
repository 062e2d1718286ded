"""The work on Shoal, on the engine that the command names: whole rounds of the loop, without measures.

    on_shoal.py FOLDER '{"kind": "workers", "workers": 2}'

See `benchmarks/peers.py`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch
from work import Given, Turns

from shoal import from_arrays
from shoal.bank import State
from shoal.config import Execution
from shoal.engine import make_engine, one_torch_thread
from shoal.experiment import Experiment
from shoal.records import changed
from shoal.setup import Setup, assemble, resolve_config

MODELS: dict[str, dict[str, Any]] = {
    "cnn": {"kind": "cnn"},
    "simple_cnn": {"kind": "work:simple_cnn"},
    "mlp": {"kind": "mlp", "hidden": [100]},
}
"""Shoal's own models where it has them. The other one has dropouts, and comes from a file as a user's would."""


def configuration(given: Given, execution: dict[str, Any]) -> dict[str, Any]:
    """What a user would write."""
    work = given.work
    return {
        "seed": work.seed,
        "rounds": work.rounds,
        "data": {"kind": "arrays"},
        "stream": {"kind": "static", "partition": {"kind": "column", "column": "client"}, "validation": 0.0},
        "model": MODELS[work.model],
        "method": {"kind": "fedavg"},
        "local": {"lr": work.lr, "batch_size": work.batch, "epochs": 1},
        "participation": {"count": work.sampled},
        "evaluate": {"every": 0, "measures": []},
        "execution": execution,
    }


def set_up(given: Given, execution: dict[str, Any]) -> Setup:
    """The run over the rows of the work."""
    work = given.work
    flat = given.raw.reshape(-1, *work.shape)
    owners = np.arange(work.clients).repeat(work.rows).tolist()
    data = from_arrays(
        flat,
        given.y.reshape(-1).numpy(),
        flat[:10],
        given.y.reshape(-1)[:10].numpy(),
        columns={"client": [*owners, *owners[:10]]},
        normalize="unit" if flat.dtype == np.uint8 else "none",
    )
    return assemble(resolve_config(configuration(given, execution)), data)


def started(experiment: Experiment, given: Given) -> State:
    """The state before the first round, with the work's first model."""
    state = experiment.start()
    space = experiment.setup.world.models["main"].space
    vector = torch.empty(space.size)
    for name, parameter in zip(space.names, given.model().parameters(), strict=True):
        space.view(vector, name).copy_(parameter.detach())  # weights of convolutions lie there channels last
    return changed(state, bank=state.bank.put({"global": changed(state.bank["global"], vector=vector)}))


def main(folder: str, execution: dict[str, Any]) -> None:
    given = Given(folder)
    setup = set_up(given, execution)
    settings = Execution.model_validate(execution)
    engine = make_engine(settings, setup.world.models, setup.stream.dataset)
    experiment = Experiment(setup, engine)
    state = started(experiment, given)
    turns = Turns(given.work)
    with one_torch_thread():
        for _ in range(given.work.rounds):
            turns.before()
            state = experiment.play(state).state
            turns.after()
        module, space = given.model(), setup.world.models["main"].space
        for name, parameter in zip(space.names, module.parameters(), strict=True):
            parameter.data.copy_(space.view(state.bank["global"].vector, name))
        turns.end(**given.ended(module))
    engine.close()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
