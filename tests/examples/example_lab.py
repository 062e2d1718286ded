"""Where the examples are tried: small data, a stream of one's own, and the laws that each example must keep.

An example is a part in one file, named by import path in a configuration. `prove` runs it serially, with two
workers, with its jobs backwards and from every checkpoint, and demands the same bits each time. Each run first has
to show that nobody was rejected and that the bank changed: a law that holds because every client failed is no law.
"""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import shoal
from shoal.bank import Bank, State
from shoal.checkpoint import Checkpoints
from shoal.data.dataset import Dataset
from shoal.data.digits import Digits
from shoal.engine import Engine, Serial, Workers, one_torch_thread
from shoal.experiment import Experiment
from shoal.loading import merged
from shoal.losses import Loss
from shoal.messages import Job, Outcome
from shoal.setup import Setup, assemble, resolve_config
from shoal.streams.base import Holding, Stream, Target

NONE = torch.empty(0, dtype=torch.int64)


# ---- data -------------------------------------------------------------------------------------------------------


@functools.cache
def digits() -> Dataset:
    """300 training and 100 test rows of the bundled digits."""
    return Digits(limit=300, limit_test=100).load()


def points(x: Sequence[Sequence[float]], y: Sequence[float]) -> Dataset:
    """A table with real targets: every row is a training row and a test row."""
    features = torch.tensor(x, dtype=torch.float32)
    rows = torch.arange(len(features))
    ones = torch.ones(features.shape[1])
    targets = torch.tensor(y, dtype=torch.float32)[:, None]
    labels = torch.zeros(len(rows), dtype=torch.int64)
    return Dataset("points", features, labels, ("value",), rows, rows, ones, 0 * ones, targets=targets)


class Squared(Loss):
    """Half the squared error, for models with one real output. There is no accuracy."""

    def __call__(self, module: nn.Module, x: Tensor, y: Tensor, **args: float) -> Tensor:
        return self.score(module(x), y)[0].mean()

    def score(self, outputs: Tensor, y: Tensor, **args: Any) -> tuple[Tensor, Tensor]:
        loss = 0.5 * (outputs - y).square().sum(1)
        return loss, torch.full_like(loss, float("nan"))


class Deal(Stream):
    """The first ``sizes[0]`` training rows to client 0, the next to client 1, and so on.

    One in ``hold_back`` of a client's rows is for validation (0: none). With ``concepts`` transforms, client ``i``
    sees the world through transform ``(i + shift) % concepts``, where ``shift`` grows by one every ``lasting``
    rounds; the targets are then the concepts, otherwise the clients.
    """

    def __init__(
        self,
        data: Dataset,
        seed: int,
        rounds: int,
        heads_by_task: bool,
        *,
        sizes: list[int],
        hold_back: int = 5,
        concepts: tuple[str, ...] = (),
        lasting: int = 1000,
    ) -> None:
        self.dataset = data.with_transforms(*concepts) if concepts else data
        self.clients = len(sizes)
        self.outputs = len(data.classes)
        self.ends = [0, *np.cumsum(sizes).tolist()]
        self.hold_back = hold_back
        self.concepts = concepts
        self.lasting = lasting

    def _rows(self, client: int) -> tuple[Tensor, Tensor]:
        rows = self.dataset.train[self.ends[client] : self.ends[client + 1]]
        held = (torch.arange(len(rows)) % max(1, self.hold_back)) == (0 if self.hold_back else 1)
        return rows[~held], rows[held]

    def holding(self, client: int, round: int) -> Holding:
        concept = (client + (round - 1) // self.lasting) % max(1, len(self.concepts))
        move = concept * len(self.dataset)
        train, validation = self._rows(client)
        return Holding(train + move, validation + move, self.dataset.test + move, truth={"concept": concept})

    def targets(self, round: int) -> Sequence[Target]:
        if self.concepts:
            validation = torch.cat([self._rows(c)[1] for c in range(self.clients)])
            moves = [k * len(self.dataset) for k in range(len(self.concepts))]
            return [Target({"concept": k}, self.dataset.test + m, validation + m) for k, m in enumerate(moves)]
        return [Target({"client": c}, self.dataset.test, self._rows(c)[1]) for c in range(self.clients)]


# ---- running ----------------------------------------------------------------------------------------------------


def config(**parts: Any) -> dict[str, Any]:
    """A small configuration on the digits, with these parts laid on top."""
    base = {
        "name": "example",
        "rounds": 3,
        "stream": {"kind": "example_lab:Deal", "sizes": [40, 30, 60, 20]},
        "model": {"kind": "mlp", "hidden": [8]},
        "local": {"lr": 0.1, "batch_size": 16},
        "execution": {"kind": "serial"},
    }
    return merged(base, parts)


def quadratics(**parts: Any) -> dict[str, Any]:
    """Client 0 has 2 rows that want 2, client 1 has 4 that want -4; batches of 2: one step, and two.

    All inputs are 0, so the model is its bias b, and client i's loss is (b - y_i)^2 / 2. See `QUADRATICS`.
    """
    base = {
        "stream": {"kind": "example_lab:Deal", "sizes": [2, 4], "hold_back": 0},
        "model": {"kind": "mlp", "hidden": []},
        "local": {"lr": 0.5, "batch_size": 2, "loss": "example_lab:Squared"},
    }
    return merged(config(), merged(base, parts))


QUADRATICS = points([[0.0]] * 6, [2, 2, -4, -4, -4, -4])


@dataclasses.dataclass
class Run:
    """What happened: the states after each round (the first: before all), and the lines of each round."""

    setup: Setup
    states: list[State]
    lines: list[list[dict[str, Any]]]

    @property
    def bank(self) -> Bank:
        return self.states[-1].bank

    def all(self, **wanted: Any) -> list[dict[str, Any]]:
        """All lines with these values."""
        every = (line for lines in self.lines for line in lines)
        return [line for line in every if all(line.get(name) == value for name, value in wanted.items())]

    def participants(self) -> list[list[int]]:
        return [record["participants"] for record in self.all(record="round")]


class Backwards(Serial):
    """The serial engine, the last job first."""

    def run(self, train: Any, jobs: Sequence[Job]) -> list[Outcome]:
        return super().run(train, jobs[::-1])[::-1]


def play(
    raw: Mapping[str, Any],
    data: Dataset | None = None,
    *,
    engine: type[Engine] = Serial,
    state: State | None = None,
    zero: bool = False,
    clean: bool = True,
) -> Run:
    """Plays a configuration, from a state if one is given; ``zero`` starts from models of zeros.

    Unless not ``clean``, asserts that nobody was rejected, failed or late and that every round changed the bank.
    """
    setup = assemble(resolve_config(raw), digits() if data is None else data)
    more = {"workers": 2} if engine is Workers else {}
    with one_torch_thread():
        arguments = (setup.world.models, setup.stream.dataset, torch.device("cpu"), "float32", setup.config.local.loss)
        worker = engine(*arguments, **more)
        experiment = Experiment(setup, worker)
        states, lines = [state or experiment.start()], []
        if zero:
            zeros = {k: e.new(vector=torch.zeros_like(e.vector)) for k, e in states[0].bank.entries.items()}
            states[0] = dataclasses.replace(states[0], bank=states[0].bank.put(zeros))
        before = frozen(vars(setup.method) | vars(setup.method.learner) | vars(setup.method.server))
        while states[-1].round < setup.config.rounds:
            played = experiment.play(states[-1])
            states.append(played.state)
            lines.append(played.lines)
        worker.close()
    assert frozen(vars(setup.method) | vars(setup.method.learner) | vars(setup.method.server)) == before
    run = Run(setup, states, lines)
    if clean:
        for old, new, each in zip(states, states[1:], lines, strict=False):
            troubles = ("rejected", "failed", "straggler", "skipped", "unchanged", "diverged", "warning")
            assert not [line for line in each if line.get("record") in troubles]
            assert changed(old.bank, new.bank), f"round {new.round} changed no vector"
    return run


def changed(old: Bank, new: Bank) -> list[str]:
    """The keys whose vector is another one."""
    return [k for k, e in new.entries.items() if k not in old.entries or not torch.equal(e.vector, old[k].vector)]


def frozen(value: Any) -> Any:
    """A value that can be compared, tensors bit by bit."""
    if isinstance(value, Tensor):
        return str(value.dtype), tuple(value.shape), value.detach().numpy().tobytes()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple((f.name, frozen(getattr(value, f.name))) for f in dataclasses.fields(value))
    if isinstance(value, Mapping):
        return tuple((str(k), frozen(v)) for k, v in value.items())
    if isinstance(value, list | tuple):
        return tuple(frozen(item) for item in value)
    return repr(value)


def prove(raw: Mapping[str, Any], data: Dataset | None = None) -> Run:
    """The laws: the same bits serially, backwards, with two workers, and resumed after every round."""
    run = play(raw, data)
    for engine in (Backwards, Workers):
        other = play(raw, data, engine=engine)
        assert frozen(other.states) == frozen(run.states), engine.__name__
        assert other.lines == run.lines, engine.__name__
    for done, state in enumerate(run.states[1:-1], start=1):
        with tempfile.TemporaryDirectory() as folder:
            Checkpoints(Path(folder)).save(state)
            loaded, _ = Checkpoints(Path(folder)).load()
        rest = play(raw, data, state=loaded)
        assert frozen(rest.states) == frozen(run.states[done:]), f"resumed after round {state.round}"
        assert rest.lines == run.lines[done:], f"resumed after round {state.round}"
    return run


def on_digits(folder: Path, **parts: Any) -> shoal.Result:
    """A whole run on the bundled digits as a user would start it, on a stream that comes with the package."""
    base = {
        "name": "example",
        "rounds": 6,
        "data": {"kind": "digits", "limit": 300, "limit_test": 100},
        "stream": {"kind": "static", "clients": 4},
        "model": {"kind": "mlp", "hidden": [16]},
        "local": {"lr": 0.3, "epochs": 2, "batch_size": 16},
        "execution": {"workers": 2},
    }
    result = shoal.run(merged(base, parts), out=folder)
    assert result.summary["finished"]
    problems = result.summary["problems"]
    assert not problems["clients"]
    assert not any(problems[kind] for kind in ("rejected", "failed", "stragglers", "skipped"))
    assert result.report.is_file()
    return result
