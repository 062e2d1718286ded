"""Every law catches the fault that was planted for it; where nothing else is named, it alone does."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import pytest

from shoal.checks.case import Case
from shoal.checks.law import LAWS, Law, LawResult
from shoal.checks.runner import laws_of
from shoal.experiment import Experiment

RUN = {
    "ThreadBound": {"any number of workers"},
    "Peeking": {"programs can be sent"},
    "Herd": {"any order of clients"},
    # Another process has no more of it than another day.
    "Forgetful": {"resume at every round", "programs can be sent"},
    "Tupled": {"resume at every round"},
    "Evaluated": {"a probe changes nothing"},
    # What is changed in place is another start for the next look at it.
    "Decaying": {"evaluation changes nothing", "inputs stay as they are", "stacked agrees with serial"},
    "Reseeded": {"the same seed twice"},
    "Wasteful": {"no global generator"},
    "Rigid": {"two seeds differ"},
    "Unshuffled": {"two seeds differ"},
    "Scribbler": {"inputs stay as they are"},
    # These merge by themselves.
    "Draining": {"inputs stay as they are", "the configured server is used", "reported losses are heard"},
    "Deaf": {"reported losses are heard"},
    "Counting": {"attributes never change"},
    "Growing": {"sizes stay"},
    "Summing": {"equal updates come back", "the configured server is used"},
    "Everybody": {"equal updates come back"},
    "ServedBuffers": {"buffers never pass the server"},
    "Extrapolating": {"batch norm stays sound"},
    "Paired": {"one client"},
    "Timeless": {"a sample of the clients"},
    "Knowing": {"tasks unknown or none"},
    "Leading": {"no rows"},
    "Spread": {"one row"},
    "Surprised": {"a single class"},
    # A client that failed is not named, also where other laws let one fail.
    "Swallowing": {"a raising client", "late and crashed clients", "equal updates come back"},
    # Both laws look at rounds in which nobody answers.
    "Stubborn": {"no rows", "nobody left"},
    "Patient": {"nobody left", "late and crashed clients"},
    "OwnMerge": {"the configured server is used", "equal updates come back"},
    "Hoarding": {"memory stays flat"},
    "Entangled": {"stacked agrees with serial", "any model can be stacked"},
    "Entwined": {"any model can be stacked"},
    "Mixing": {"private states stay with their client"},
    "Averaged": {"equal updates come back"},
    "Credulous": {"bad updates are rejected"},
    # What stragglers and rejected clients left in the process counts too, and goes round what is planted.
    "SideChannel": {
        "late and crashed clients",
        "bad updates are rejected",
        "equal updates come back",
        "programs can be sent",
    },
}
MODELS = ("Entwined", "Evaluated")
"""Those of `RUN` that are models."""
SERVER = {
    "Rounding": {"equal answers come back"},
    "Running": {"the order of answers is no matter"},
    # The second look at answers that were overwritten gives other numbers.
    "Greedy": {
        "answers stay as they are",
        "the order of answers is no matter",
        "only ratios of weights count",
        "inputs stay as they are",
    },
    "Squaring": {"only ratios of weights count"},
    "Beyond": {"a mean lies among the answers"},
    "Maskless": {"unsent coordinates stay"},
    "Subtracting": {"inputs of a step stay", "all numbers live in the entry"},
    "Remembering": {
        "all numbers live in the entry",
        "no change moves nothing",
        "resume at every round",
        "late and crashed clients",
        "attributes never change",
    },
    "Backwards": {"the first step goes the clients way"},
    # Where the clients moved little, the decay is stronger than they are.
    "Shrinking": {"no change moves nothing", "the first step goes the clients way"},
    "Dropping": {"numbers of others come back"},
    "Exploding": {"steps stay finite"},
    "Tongue": {"it describes itself"},
    "Ceilingless": {"denominators are positive"},
    "Falling": {"larger moments step no further"},
}
STREAM = {
    "Plain": set(),
    "Tasks": set(),
    "Favouring": {"asked in any order"},
    "Wired": {"it survives pickling"},
    "Warm": {"round 0 is round 1"},
    "Doubling": {"rows are valid"},
    "Testing": {"rows are valid"},
    "Peeking": {"validation rows are never trained"},
    "Sharing": {"no row is held twice"},
    "Losing": {"no row is lost"},
    "Seedless": {"two seeds deal differently"},
    "Stampless": {"targets are stamped"},
    "Stale": {"targets of clients are their own"},
    "Early": {"phases and tasks fit"},
    "Hoarding": {"attributes of a stream never change"},
    "Narrowing": {"positions are valid"},
    # A partition is tried alone and in a stream.
    "LosingOne": {"every row has one owner", "one client holds everything", "no row is lost"},
    "Doubled": {"every row has one owner", "no row is held twice"},
    "Unheld": {"validation rows are held back", "validation rows are never trained"},
    "Alike": {"a split is a function of its names"},
    "Sorting": {"labels stay as they are"},
    "Between": {"one client holds everything"},
}
TABLE = {
    **{f"faults_{'model' if name in MODELS else 'run'}:{name}": laws for name, laws in RUN.items()},
    **{f"faults_server:{name}": laws for name, laws in SERVER.items()},
    **{f"faults_stream:{name}": laws for name, laws in STREAM.items()},
}


def broken(results: Iterable[LawResult]) -> dict[str, str]:
    return {result.law: result.detail for result in results if not result.passed}


def laws(target: str) -> list[tuple[Law, Any]]:
    """The laws of a faulty part, each with what it is tried on."""
    module, _, name = target.partition(":")
    found: Any = getattr(importlib.import_module(module), name)
    if issubclass(found, Experiment):
        return [(law, Case(experiment=found)) for law in LAWS["run"]]
    if not hasattr(found, "part"):
        return [(law, Case(model={"kind": target})) for law in LAWS["run"]]
    return [(law, subject) for law, subject, _ in laws_of(found.part, target)]


def assert_caught(target: str, tried: list[tuple[Law, Any]]) -> None:
    found = broken(law.on(subject) for law, subject in tried)
    assert set(found) == TABLE[target], found
    assert not any(detail.startswith("the clean run") for detail in found.values()), found


@pytest.mark.parametrize("target", TABLE)
def test_the_planted_fault_is_caught(target: str) -> None:
    """By the laws that are named; a part without a fault keeps all of them."""
    assert_caught(target, [pair for pair in laws(target) if pair[0].name in TABLE[target] or not TABLE[target]])


@pytest.mark.long
@pytest.mark.parametrize("target", TABLE)
def test_no_other_law_is_broken(target: str) -> None:
    assert_caught(target, laws(target))


def test_every_law_has_a_planted_fault() -> None:
    caught = set().union(*TABLE.values())
    every = {law.name for found in LAWS.values() for law in found}
    assert every == caught


@pytest.mark.parametrize(
    ("target", "law"),
    [
        # Which laws notice these in how many threads depends on timing; this one always does.
        ("faults_run:Leaking", "inputs stay as they are"),
        ("faults_server:InPlace", "inputs of a step stay"),
    ],
)
def test_what_changes_a_received_model_in_place_is_caught(target: str, law: str) -> None:
    assert law in broken(one.on(subject) for one, subject in laws(target) if one.name == law)


def test_no_law_holds_where_every_client_fails() -> None:
    found = broken(law.on(subject) for law, subject in laws("faults_run:Failing"))
    assert set(found) == {law.name for law in LAWS["run"]}
    assert all(detail.startswith("the clean run is not") for detail in found.values()), found


def test_no_law_holds_where_nothing_changes() -> None:
    found = broken(law.on(subject) for law, subject in laws("faults_run:Idle"))
    assert set(found) == {law.name for law in LAWS["run"]}
    assert all(detail.startswith("the clean run changed no model") for detail in found.values()), found
