"""Laws of whole runs: what must not change a bit, and what must."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch

from ..bank import State
from ..checkpoint import Checkpoints
from ..config import Execution
from ..engine import Engine, make_engine, one_torch_thread
from ..randomness import generator
from ..requests import Served
from ..setup import Setup
from .case import Case, Run, require_clean, require_same, require_same_numbers, vectors
from .fingerprint import difference, fingerprint
from .law import law, require
from .tamper import Order, PostedEngine, Probing, Reordered, ReorderedEngine, reverse, shuffled


@law("run")
def any_number_of_workers(case: Case) -> None:
    """Bank, private states and lines are those of the serial engine with 1, 2 and 3 workers."""
    for own, numbers in ((case, (1, 2, 3)), (case.normed, (2,))):
        clean = own.clean()
        for workers in numbers:
            run = own.play(own.setup(), engine=Execution(kind="workers", workers=workers))
            require_same(clean, run, f"serial and {workers} workers")


@law("run")
def any_order_of_clients(case: Case) -> None:
    """The order in which clients are assigned, run and answered changes no bit."""
    clean = case.clean()
    orders: list[tuple[str, Order]] = [("reversed", reverse), ("shuffled", shuffled)]
    for name, order in orders:
        assigned = case.play(case.setup(), method=Reordered.put(order))
        require_same(clean, assigned, f"assignments as they are and {name}")
        ran = case.play(case.setup(), engine=partial(ReorderedEngine, order=order))
        require_same(clean, ran, f"clients as they are and {name}")


@law("run")
def programs_can_be_sent(case: Case) -> None:
    """Programs, jobs and answers that went to another process give the same bits, without what stays on the server."""
    require_same(case.clean(), case.play(case.setup(), engine=PostedEngine), "here and in another process")


@law("run", "paired")
def resume_at_every_round(case: Case) -> None:
    """A run that goes on from a checkpoint file, with parts made anew, is the uninterrupted one."""
    clean = case.clean()
    with tempfile.TemporaryDirectory() as name:
        stored: dict[int, Path] = {}
        run = case.play(case.setup(), rounds=0)
        while True:  # each round is saved before the next one is played, as a run does it
            if run.last.round >= 0:
                stored[run.last.round] = Path(name) / str(run.last.round)
                Checkpoints(stored[run.last.round]).save(run.last)
            if run.last.round >= len(clean.lines) + clean.states[0].round:
                break
            run = case.play(case.setup(), state=run.last, rounds=1)
        for round, folder in stored.items():
            state, complaints = Checkpoints(folder).load()
            require(state is not None and not complaints, f"the checkpoint of round {round} cannot be read")
            assert state is not None
            at = round - clean.states[0].round
            require(
                fingerprint(state) == clean.prints[at],
                f"the state of round {round} before and after a checkpoint: "
                f"{difference(clean.states[at], state) or 'it is another one by now'}",
            )
            require_same(_tail(clean, at), case.play(case.setup(), state=state), f"resumed after round {round}")


def _tail(run: Run, at: int) -> Run:
    return Run(run.states[at:], run.lines[at:], run.records[at:], run.prints[at:], run.models[at:])


@law("run")
def a_probe_changes_nothing(case: Case) -> None:
    """Programs that have a model measured first and last give the same bank and private states."""
    clean = case.clean()
    setup = case.setup()
    models = {name: Served.of(model.initial(generator("a probe", name))) for name, model in setup.world.models.items()}
    run = case.play(setup, method=Probing.put(models))
    require_clean(run)
    require(any("planted-first" in line for line in run.lines[-1]), "the planted probes were not measured")
    for a, b in zip(clean.states, run.states, strict=True):
        require_same_numbers(a, b, f"without and with probes, after round {a.round}")


@law("run")
def evaluation_changes_nothing(case: Case) -> None:
    """More measuring, or none, gives the same bank and private states."""
    clean = case.clean()
    none = case.play(case.setup(evaluate={"every": 0}))
    for a, b in zip(clean.states, none.states, strict=True):
        require_same_numbers(a, b, f"measured after every round and never, after round {a.round}")
    setup = case.setup()
    with one_torch_thread():
        engine = make_engine(setup.config.execution, setup.world.models, setup.stream.dataset, setup.config.local.loss)
        state = case.experiment(setup, engine).start()
        for i in range(len(clean.lines)):
            _measure(setup, state, engine)
            require(fingerprint(state) == clean.prints[i], f"measuring changed the state of round {state.round}")
            state = case.experiment(setup, engine).play(state).state
    require_same_numbers(clean.last, state, "without and with extra measuring")


def _measure(setup: Setup, state: State, engine: Engine) -> None:
    """Measures every model that could answer for a target, on more rows than a run does."""
    method = setup.method
    for target in setup.stream.targets(max(1, state.round)):
        rows = torch.cat([target.test, target.validation])
        for keys in method.candidates(state.bank, target.labels):
            if all(key in state.bank.entries for key in keys):
                engine.score([([method.compose(state.bank, tuple(keys))], rows)])


@contextmanager
def global_generators() -> Iterator[Callable[[], str]]:
    """Gives a fingerprint of the global generators' states, and puts them back at the end."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002

    def mark() -> str:
        return fingerprint(random.getstate(), np.random.get_state(), torch.get_rng_state())  # noqa: NPY002

    try:
        yield mark
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        torch.set_rng_state(before[2])


@law("run")
def the_same_seed_twice(case: Case) -> None:
    """The same seed gives the same bits, whatever state the global random generators are in."""
    clean = case.clean()
    with global_generators():
        random.seed(11)
        np.random.seed(11)  # noqa: NPY002
        torch.manual_seed(11)
        again = case.play(case.setup())
    require_same(clean, again, "the same seed twice")


@law("run", "paired")
def no_global_generator(case: Case) -> None:
    """Nothing reads or seeds a global random generator (random, numpy, torch)."""
    case.clean()
    with global_generators() as mark:
        before = mark()
        setup = case.setup()
        require(mark() == before, "building the parts read or seeded a global random generator")
        case.play(setup)
        require(mark() == before, "the run read or seeded a global random generator")


@law("run")
def two_seeds_differ(case: Case) -> None:
    """Another seed gives other models at the start, and trains them otherwise from the same start."""
    clean = case.clean()
    other = case.setup(seed=1)
    start = case.play(other, rounds=0).last
    require(vectors(start) != clean.models[0], "seeds 0 and 1 start from the same models")
    ours = case.play(case.setup(), state=clean.states[0], rounds=1)
    theirs = case.play(other, state=clean.states[0], rounds=1)
    require(ours.models[-1] != theirs.models[-1], "from the same start, seeds 0 and 1 train the same models")
