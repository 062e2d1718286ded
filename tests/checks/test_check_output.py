"""What ``shoal check`` says beside its table: what was played, why nothing more was tried, and with which learner."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Shoal

import shoal.checks.runner  # noqa: F401  (registers the laws)
from shoal.checks.law import LAWS

PART = '''
from shoal.learners.base import Learner
from shoal.methods.base import Method
from shoal.methods.fedavg import FedAvg
from shoal.streams.static import StaticStream


class NoStart(FedAvg):
    def start(self):
        raise RuntimeError("no luck")


class Half(Method):
    def start(self):
        return None


class NoSuper(FedAvg):
    def __init__(self, world, learner, mean, server):
        pass


class Needy(FedAvg):
    def __init__(self, world, learner, mean, server, *, mu: float):
        super().__init__(world, learner, mean, server)


class Growing(FedAvg):
    """From round ``after`` on every round has an entry of its own beside the first."""

    births = True
    warmup = 1
    averages = False

    def __init__(self, world, learner, mean, server, *, after: int = 7):
        super().__init__(world, learner, mean, server)
        self.after = after

    def merge(self, bank, updates, when):
        merged = super().merge(bank, updates, when)
        if when.round < self.after:
            return merged
        return merged.put({f"at/{when.round}": merged["global"], f"at/{when.round - 1}": None})


class Grown(Growing):
    examples = [{"after": 7}, {"after": 1}]


class Counting(FedAvg):
    def merge(self, bank, updates, when):
        self.merges = getattr(self, "merges", 0) + 1
        return super().merge(bank, updates, when)


class Loud(Learner):
    def __init__(self, world, local, *, words: str):
        super().__init__(world, local)
        self.words = words

    def fit(self, key, start, entry, client, **request):
        raise RuntimeError(self.words)


class Empty(StaticStream):
    examples = [{"clients": 3}]

    def holding(self, client, round):
        raise RuntimeError("no rows today")
'''


@pytest.fixture(autouse=True)
def said_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "said_parts.py").write_text(PART)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize(
    ("target", "more", "cause"),
    [
        ("said_parts:NoStart", [], "RuntimeError: no luck"),
        ("said_parts:Empty", [], "RuntimeError: no rows today"),
        ("shoal.methods.fedavg:FedAvg", ["--learner", "{kind: said_parts:Loud, words: hush}"], "RuntimeError: hush"),
    ],
)
def test_what_cannot_run_is_told_once(shoal: Shoal, target: str, more: list[str], cause: str) -> None:
    said = shoal("check", target, *more)
    assert said.code == 1
    assert said.out.count(cause) == said.out.count("BROKEN") == 1
    assert "holds" not in said.out
    assert "no other law was tried" in said.out
    assert "played" not in said.out


@pytest.mark.parametrize(
    ("target", "message", "hint"),
    [
        ("said_parts:Half", "said_parts:Half lacks assign, train, candidates", False),
        ("said_parts:NoSuper", "must call super().__init__(world, learner, mean, server)", False),
        ("said_parts:Needy", "method.mu: this setting is required", True),
    ],
)
def test_settings_are_asked_for_only_where_they_help(shoal: Shoal, target: str, message: str, hint: bool) -> None:
    said = shoal("check", target)
    assert said.code == 2
    assert message in said.err
    assert ("examples = [{...}]" in said.err) is hint


def test_what_was_played_is_told(shoal: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LAWS, "run", LAWS["run"][:1])  # what is told depends on no law
    said = shoal("check", "said_parts:Growing")
    assert said.code == 0, said.out
    # The warm-up is round 0, so there are four; 16 + 16 training rows, and a validation and a test row of each task.
    played = (
        "played: 4 rounds with the warm-up, 4 clients, 48 rows; entries at the start global, born none, retired none"
    )
    assert played in said.out
    assert "warning: the class has births = True, but no entry was born" in said.out
    said = shoal("check", "said_parts:Grown")
    assert said.code == 0, said.out
    assert "played (after=7): 4 rounds with the warm-up" in said.out
    assert "played (after=1): 4 rounds with the warm-up, 4 clients, 48 rows; entries at the start global, " in said.out
    assert "born at/1, at/2, at/3, retired at/1, at/2" in said.out
    assert "warning" not in said.out


def test_an_attribute_that_appears_is_named(shoal: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LAWS, "run", [law for law in LAWS["run"] if law.name == "attributes never change"])
    said = " ".join(shoal("check", "said_parts:Counting").out.replace("│", " ").split())
    assert "attribute `merges` of the method appeared during the run; attributes never change after __init__" in said


@pytest.mark.parametrize(
    ("target", "learner", "message"),
    [
        ("shoal.methods.fedavg:FedAvg", "plane", "no learner is called 'plane'; did you mean 'plain'"),
        ("shoal.methods.fedavg:FedAvg", "said_parts:Loud", "learner.words: this setting is required"),
        ("shoal.methods.fedavg:FedAvg", "[1]", "learner: needs a mapping with a 'kind'"),
        ("shoal.learners.base:Learner", "plain", "is a learner"),
    ],
)
def test_a_learner_that_cannot_be_tried_is_an_error(shoal: Shoal, target: str, learner: str, message: str) -> None:
    said = shoal("check", target, "--learner", learner)
    assert said.code == 2
    assert message in said.err
