"""`Case`: a part in a run of the stand-in world, and how such runs are played and compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..bank import State
from ..config import Execution
from ..engine import make_engine, one_torch_thread
from ..experiment import Experiment
from ..folder import dump
from ..setup import Setup
from .fingerprint import difference, fingerprint
from .law import require
from .standin import NORMED, ROUNDS, world

Change = Callable[[Any], Any]
PROBLEMS = ("failed", "rejected", "diverged", "unchanged", "straggler", "skipped")


@dataclass
class Run:
    """What a run gave: the state before the first round and after each, with fingerprints taken at once."""

    states: list[State]
    lines: list[list[str]] = field(default_factory=list)
    """The lines of ``metrics.jsonl`` of each round, as text."""
    records: list[list[dict[str, Any]]] = field(default_factory=list)
    """The structured records of each round."""
    prints: list[str] = field(default_factory=list)
    models: list[str] = field(default_factory=list)
    """Fingerprints of the models alone."""

    @property
    def last(self) -> State:
        """The state after the last round."""
        return self.states[-1]

    def told(self, record: str) -> list[dict[str, Any]]:
        """All records of a kind."""
        return [line for lines in self.records for line in lines if line["record"] == record]

    def clients_of(self, record: str) -> set[int]:
        """The clients that records of a kind name."""
        return {line["client"] for line in self.told(record)}


@dataclass(frozen=True)
class Case:
    """A method, a learner, a mean and a server optimiser on the stand-in world, or what replaces parts of it.

    ``stream`` are settings of `standin.StandinStream`. ``experiment`` plays the rounds.
    """

    method: Mapping[str, Any] = field(default_factory=lambda: {"kind": "fedavg"})
    learner: Mapping[str, Any] = field(default_factory=lambda: {"kind": "plain"})
    model: Mapping[str, Any] = field(default_factory=lambda: {"kind": "mlp", "hidden": [4]})
    stream: Mapping[str, Any] = field(default_factory=dict)
    local: Mapping[str, Any] = field(default_factory=dict)
    needs_model: bool = False
    """Whether the method needs this very model: laws about BatchNorm are then tried on it too."""
    experiment: type[Experiment] = Experiment
    device: str = "cpu"
    """Where the clients train, see `Execution.device`."""
    kept: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def setup(self, seed: int = 0, **parts: Any) -> Setup:
        """Fresh parts for a run; ``parts`` replace those of the case (``stream`` and ``method`` are merged)."""
        own = {"method": self.method, "learner": self.learner, "model": self.model, "local": self.local}
        merged = {name: {**value, **parts.pop(name, {})} for name, value in own.items() if name == "method"}
        stream = {**self.stream, **parts.pop("stream", {})}
        with one_torch_thread():
            return world(seed, **{"rounds": ROUNDS, "device": self.device, **own, **merged, "stream": stream, **parts})

    @staticmethod
    def exchanges(setup: Setup) -> int:
        """Rounds of communication in one round."""
        return max(setup.method.exchanges, setup.method.learner.exchanges)

    @property
    def normed(self) -> Case:
        """The same with the BatchNorm model."""
        return self if self.needs_model else replace(self, model=NORMED, kept={})

    def clean(self) -> Run:
        """The plain run, in which nobody failed and the bank changed: what a law compares with means nothing else."""
        if "clean" not in self.kept:
            run = self.play(self.setup())
            require_clean(run, what="the clean run")
            self.kept["clean"] = run
        found = self.kept["clean"]
        assert isinstance(found, Run)
        return found

    def play(
        self,
        setup: Setup,
        *,
        engine: Change | Execution | None = None,
        method: Change | None = None,
        selection: Change | None = None,
        state: State | None = None,
        rounds: int | None = None,
    ) -> Run:
        """Plays ``rounds`` rounds from a state (default: from the start to the end).

        ``engine`` is what to run on, or how to wrap the serial one; ``method`` and ``selection`` wrap these parts.
        """
        setup = replace(
            setup,
            method=setup.method if method is None else method(setup.method),
            selection=setup.selection if selection is None else selection(setup.selection),
        )
        config = setup.config
        with one_torch_thread():
            execution = config.execution
            if isinstance(engine, Execution):
                execution = engine.model_copy(update={"device": self.device})
            made = make_engine(execution, setup.world.models, setup.stream.dataset, config.local.loss)
            try:
                wrapped = engine(made) if callable(engine) else made
                experiment = self.experiment(setup, wrapped)
                if state is None:
                    state = experiment.start()
                last = config.rounds if rounds is None else state.round + rounds
                run = Run([state], prints=[fingerprint(state)], models=[vectors(state)])
                while state.round < last:
                    played = experiment.play(state)
                    state = played.state
                    run.states.append(state)
                    run.prints.append(fingerprint(state))
                    run.models.append(vectors(state))
                    run.lines.append([dump(line) for line in played.lines])
                    run.records.append([line for line in played.lines if "record" in line])
            finally:
                made.close()
        return run


def require_clean(run: Run, allowed: Sequence[str] = (), what: str = "the run") -> None:
    """Breaks the law unless nobody failed and the bank changed."""
    for record in PROBLEMS:
        found = [] if record in allowed else run.told(record)
        require(not found, f"{what} is not without fault: {found[0] if found else ''}")
    require(run.models[0] != run.models[-1], f"{what} changed no model in the bank")


def vectors(state: State) -> str:
    """A fingerprint of the models alone."""
    return fingerprint({key: (entry.vector, entry.buffers) for key, entry in state.bank.entries.items()})


def require_same(a: Run, b: Run, what: str) -> None:
    """Breaks the law unless two runs have the same states and lines, to the bit."""
    require(len(a.states) == len(b.states), f"{what}: {len(a.states) - 1} rounds and {len(b.states) - 1}")
    for i, (x, y) in enumerate(zip(a.prints, b.prints, strict=True)):
        where = difference(a.states[i], b.states[i]) if x != y else None
        require(x == y, f"{what}, after round {a.states[i].round}: {where or 'the states differ'}")
    for number, (mine, theirs) in enumerate(zip(a.lines, b.lines, strict=True), a.states[0].round + 1):
        odd = [(m, t) for m, t in zip(mine, theirs, strict=False) if m != t]
        require(mine == theirs, f"{what}, lines of round {number}: {odd[0] if odd else (len(mine), len(theirs))}")


def require_same_numbers(a: State, b: State, what: str) -> None:
    """Breaks the law unless bank and private states are the same to the bit (not what was measured)."""
    for name, mine, theirs in (("bank", a.bank, b.bank), ("clients", a.clients, b.clients)):
        if fingerprint(mine) != fingerprint(theirs):
            raise_difference(f"{what}: {name}", mine, theirs)


def raise_difference(what: str, a: Any, b: Any) -> None:
    """Breaks the law with the first difference of two values."""
    require(False, f"{what}: {difference(a, b) or 'they differ'}")
