"""A client that answers with something odd is told by name, and the round goes on with the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoal.checks.tamper import Around
from shoal.data.arrays import from_arrays
from shoal.engine import make_engine, one_torch_thread
from shoal.experiment import Experiment
from shoal.messages import Assignment, Client, Update
from shoal.setup import Setup, assemble, resolve_config


def set_up(**changes: Any) -> Setup:
    rows = torch.arange(240).reshape(24, 10).float().numpy() / 240
    data = from_arrays(rows, torch.arange(24).numpy() % 3)
    settings = {"rounds": 1, "data": "arrays", "stream": {"kind": "static", "clients": 3}, "local": {"batch_size": 4}}
    return assemble(resolve_config({**settings, **changes}), data)


def lines_of(setup: Setup) -> list[Any]:
    engine = make_engine(setup.config.execution, setup.world.models, setup.stream.dataset)
    experiment = Experiment(setup, engine)
    with one_torch_thread():
        lines = experiment.play(experiment.start()).lines
    engine.close()
    return list(lines)


class Odd(Around):
    """Client 1 answers as it should, but for one thing."""

    changes: Any

    def train(self, given: Assignment, client: Client) -> Any:
        update = yield from self.run_program(given, client)
        return self.changes(update) if client.id == 1 else update


def part(**changes: Any) -> Any:
    def change(update: Update) -> Update:
        return replace(update, parts={key: replace(p, **changes) for key, p in update.parts.items()})

    return change


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (part(vector="hello"), "entry 'global': a Part's vector must be a tensor or None; got str"),
        (part(vector=[1.0, 2.0]), "a Part's vector must be a tensor or None; got list"),
        (part(mask=3), "a Part's mask must be a tensor or None; got int"),
        (part(buffers=None), "a Part's buffers must be Buffers; got NoneType"),
        (part(extra={"a": 3}), "a Part's extra 'a' must be a tensor; got int"),
        (part(extra=[]), "a Part's extra must be a mapping; got list"),
        (lambda update: replace(update, weight="x"), "an Update's weight must be a number; got str"),
        (lambda update: replace(update, state=5), "an Update's state must be a mapping; got int"),
        (lambda update: replace(update, note=None), "an Update's note must be a mapping; got NoneType"),
        (lambda update: replace(update, parts=[1]), "an Update's parts must be a mapping; got list"),
        (lambda update: replace(update, parts={"global": 1}), "parts must be Parts; got int for entry 'global'"),
        (lambda update: "done", "train must give an Update; got str"),
    ],
)
@pytest.mark.parametrize("kind", ["serial", "stacked"])
def test_an_odd_answer_fails_its_client_alone(changes: Any, told: str, kind: str) -> None:
    setup = set_up(execution={"kind": kind})
    odd = Odd(setup.method)
    odd.changes = changes
    lines = lines_of(replace(setup, method=odd))  # type: ignore[arg-type]
    (failed,) = [line for line in lines if line.get("record") == "failed"]
    assert failed["client"] == 1
    assert told in failed["reason"]
    assert [line["value"] for line in lines if line.get("metric") == "accuracy"]


class Looking(nn.Module):
    """Numbers looked up, with gradients of the rows that were."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 4, sparse=sparse)
        self.classifier = nn.Linear(40, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.classifier(self.table((29 * x).long().clamp(0, 29)).flatten(1))
        return found


def looking(shape: Any, outputs: int, sparse: bool) -> nn.Module:
    return Looking(sparse)


@pytest.mark.parametrize("local", [{}, {"momentum": 0.9}, {"optimizer": "adam"}, {"clip": 0.1}])
def test_sparse_gradients_are_those_of_dense_ones(local: dict[str, Any]) -> None:
    ends = []
    for sparse in (False, True):
        model = {"kind": f"{__name__}:looking", "sparse": sparse}
        setup = set_up(model=model, local={"batch_size": 4, "lr": 0.1, **local}, execution={"kind": "serial"})
        engine = make_engine(setup.config.execution, setup.world.models, setup.stream.dataset)
        experiment = Experiment(setup, engine)
        ends.append(experiment.play(experiment.start()).state.bank["global"].vector)
    assert not torch.equal(ends[0], Experiment(setup, engine).start().bank["global"].vector)
    torch.testing.assert_close(ends[1], ends[0], rtol=0, atol=1e-7)
