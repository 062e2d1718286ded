"""``shoal check``: the laws on a part of a user's own, by import path."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Shoal

from shoal.checks.runner import check_target
from shoal.errors import ConfigError

PART = '''
from torch import nn

from shoal.methods.fedavg import FedAvg
from shoal.server.plain import SGD
from shoal.streams.cells import Partition
from shoal.streams.static import StaticStream

class Fine(SGD):
    """Half a step."""
    examples = [{"lr": 0.5}, {"lr": 1.0}]

class Backwards(SGD):
    def step(self, old, mean, when, reported):
        return old.vector - (mean - old.vector), old.server

class Wild(StaticStream):
    """Two clients that hold the same rows."""
    examples = [{"clients": 2}]
    shares_rows = True
    leaves_rows = True
    def holding(self, client, round):
        return super().holding(0, round)

class Net(nn.Module):
    """Two linear layers that the method below knows by name."""
    def __init__(self, shape, outputs):
        super().__init__()
        self.bottom, self.top = nn.Linear(shape[0], 3), nn.Linear(3, outputs)
    def forward(self, x):
        return self.top(self.bottom(x))

class Particular(FedAvg):
    """Works with one model only."""
    example_model = {"kind": "own_parts:Net"}
    def start(self):
        assert "bottom.weight" in self.world.models["main"].space.names
        return super().start()

class Number:
    part = "model"

NOTHING = 3
'''


@pytest.fixture(autouse=True)
def own_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_parts.py").write_text(PART)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_good_part_holds_every_law(shoal: Shoal) -> None:
    said = shoal("check", "own_parts:Fine")
    assert said.code == 0, said.out
    assert "laws for own_parts:Fine" in said.out
    assert "BROKEN" not in said.out
    # Every law is tried with each of the settings.
    results = check_target("own_parts:Fine")
    assert {r.law for r in results if r.law.startswith("no change")} == {
        "no change moves nothing (lr=0.5)",
        "no change moves nothing (lr=1.0)",
    }


def test_a_broken_law_is_named_with_what_was_found(shoal: Shoal) -> None:
    said = shoal("check", "own_parts:Backwards")
    assert said.code == 1
    assert said.out.count("BROKEN") == 1
    result = next(r for r in check_target("own_parts:Backwards") if not r.passed)
    assert result.law == "the first step goes the clients way"
    assert "moved the entry the other way" in result.detail


def test_a_method_may_need_a_model_of_its_own() -> None:
    results = check_target("own_parts:Particular")
    assert len(results) > 20
    assert [result for result in results if not result.passed] == []


def test_a_stream_may_say_that_clients_share_rows() -> None:
    assert all(result.passed for result in check_target("own_parts:Wild"))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("own_parts", "needs an import path, such as my_methods:MyMethod; got 'own_parts'"),
        ("own_parts:Missing", "cannot import 'own_parts:Missing'"),
        ("no_such_module:Part", "cannot import 'no_such_module:Part'"),
        ("own_parts:NOTHING", "no part of a run; laws exist for method, learner, compression, mean, server"),
        ("own_parts:Number", "own_parts:Number is a model; laws exist for"),
        ("shoal.streams.tasks:TaskStream", r"examples = \[\{\.\.\.\}\]"),
    ],
)
def test_what_cannot_be_checked_is_an_error(target: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_target(target)


def test_the_command_shows_the_error(shoal: Shoal) -> None:
    said = shoal("check", "own_parts:Missing")
    assert said.code == 2
    assert said.err.startswith("error: cannot import")
