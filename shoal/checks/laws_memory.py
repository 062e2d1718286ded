"""A law on whole runs: nothing is kept from round to round but the state."""

from __future__ import annotations

import gc
from collections.abc import Iterable

import torch
from torch import Tensor

from ..bank import State
from ..checkpoint import tensors_of
from ..engine import make_engine, one_torch_thread
from .case import Case
from .law import law, require

EARLY, LATE = 10, 30
"""What is kept per round shows at the second of these rounds; what an engine keeps to save work is dropped before."""


@law("run")
def memory_stays_flat(case: Case) -> None:
    """Twenty more rounds leave no more tensors than the state and bounded caches hold: what is kept is in the state."""
    case.clean()
    setup = case.setup(rounds=LATE, evaluate={"every": 5})
    with one_torch_thread():
        engine = make_engine(setup.config.execution, setup.world.models, setup.stream.dataset, setup.config.local.loss)
        try:
            experiment = case.experiment(setup, engine)
            state = experiment.start()
            kept = []
            while state.round < LATE:
                state = experiment.play(state).state
                if state.round in (EARLY, LATE):
                    engine.forget()  # activations of frozen layers: bounded by themselves, and with new rows never full
                    kept.append(_live() - _held(state))
        finally:
            engine.close()
    more = kept[1] - kept[0]
    require(more <= 0, f"{more} tensors were kept beside the state in {LATE - EARLY} rounds; keep numbers in the state")


def _live() -> int:
    """How many pieces of memory tensors hold."""
    gc.collect()
    return _pieces(t for t in gc.get_objects() if type(t) is torch.Tensor)


def _held(state: State) -> int:
    """How many of them the state holds."""
    return _pieces(tensors_of(state))


def _pieces(tensors: Iterable[Tensor]) -> int:
    # Empty tensors hold nothing, and share one address.
    return len({t.untyped_storage().data_ptr() for t in tensors if t.numel()})
