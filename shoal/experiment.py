"""The round loop, and nothing else: select, assign, train, merge, measure."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .adding import adding, held
from .bank import Bank, Key, State, Value
from .compression.base import Compressed
from .engine.base import Engine
from .engine.program import Train
from .messages import Assignment, Client, Failure, Job, Outcome, Participant, Update
from .metrics.base import Line, Seen
from .metrics.rounds import due
from .participation import Selected
from .randomness import Moment
from .records import changed
from .screening import Screen, diverged
from .setup import Setup
from .streams.base import Holding

LISTED_CLIENTS, LISTED_CLASSES = 200, 100
"""Up to so many clients and classes the stream's record has the rows of each."""


@dataclass
class _Round:
    """What happens in one round, while it happens."""

    number: int
    holdings: Mapping[int, Holding]
    assignments: list[Assignment] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    accepted: list[Update] = field(default_factory=list)
    trained: dict[Key, set[int]] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    counts: dict[str, set[int]] = field(
        default_factory=lambda: {name: set() for name in ("rejected", "failed", "stragglers", "skipped")}
    )
    """The clients, each once, however many exchanges the round has."""

    def note(self, record: str, count: str | None = None, **values: Any) -> None:
        self.lines.append({"round": self.number, "record": record, **values})
        if count is not None:
            self.counts[count].add(values["client"])


@dataclass(frozen=True)
class Played:
    """One finished round: the state after it, its lines for ``metrics.jsonl``, and the seconds that it took."""

    state: State
    lines: list[Line]
    seconds: float
    evaluation_seconds: float


class Experiment:
    """A run: plays rounds from state to state. Holds no state of its own."""

    def __init__(self, setup: Setup, engine: Engine) -> None:
        self.setup = setup
        self.engine = engine
        self.exchanges = max(setup.method.exchanges, setup.method.learner.exchanges)

    def start(self) -> State:
        """The state before the first round (before the warm-up, if the method has one)."""
        return State(-1 if self.setup.method.warmup else 0, self.setup.method.start())

    def header(self, state: State) -> list[Line]:
        """The lines that open ``metrics.jsonl``: what the stream and the model are."""
        stream, method = self.setup.stream, self.setup.method
        models = {entry.model for entry in state.bank.entries.values()}
        sizes = {name: self.setup.world.models[name].space.size for name in sorted(models)}
        first: Mapping[Key, Any] = dict(list(state.bank.entries.items())[:1])
        return [
            {
                "round": 0,
                "record": "stream",
                "kind": self.setup.config.stream["kind"],
                "clients": stream.clients,
                "rounds": self.setup.config.rounds,
                "tasks": stream.tasks,
                "task_names": list(stream.task_names),
                "order": self.setup.config.stream.get("order"),
                "boundaries": list(stream.boundaries),
                "head": stream.head,
                "classes": list(stream.dataset.classes),
                "learns": "values" if stream.dataset.is_regression else "classes",
                "client_names": list(stream.client_names),
                **({"cluster_names": list(stream.cluster_names)} if stream.cluster_names else {}),
                **({"concept_names": list(stream.concept_names)} if stream.concept_names else {}),
                "notes": self.setup.notes,
                **self._held(),
            },
            {
                "round": 0,
                "record": "model",
                "trainable_parameters": max(sizes.values(), default=0),
                "models": sizes,
                "model_bytes": max((entry.bytes for entry in first.values()), default=0),
                "entries": len(state.bank.entries),
                "server": method.server.describe(),
            },
        ]

    def _held(self) -> dict[str, Any]:
        """Training rows of each client in round 1, in all and by class; of streams whose clients would fill no page."""
        stream = self.setup.stream
        data = stream.dataset
        if stream.tasks or stream.clients > LISTED_CLIENTS:
            return {}
        held = [stream.holding(client, 1).train for client in range(stream.clients)]
        found: dict[str, Any] = {"client_rows": [len(rows) for rows in held]}
        if not data.is_regression and len(data.classes) <= LISTED_CLASSES:
            counts = (torch.bincount(data.labels_of(rows).cpu(), minlength=len(data.classes)) for rows in held)
            found["client_classes"] = [some.tolist() for some in counts]
        return found

    def play(self, state: State) -> Played:
        """The next round. Nothing of ``state`` is changed."""
        began = time.perf_counter()
        number = state.round + 1
        selected = self._select(number)
        stream = self.setup.stream
        now = _Round(number, {s.client: stream.holding(s.client, max(1, number)) for s in selected})
        present = []
        for s in selected:
            if len(now.holdings[s.client].train):
                present.append(s)
            else:
                now.note("skipped", "skipped", client=s.client, reason="holds no training rows")
        bank, clients = state.bank, dict(state.clients)
        for exchange in range(self.exchanges):
            when = Moment(self.setup.config.seed, number, exchange)
            bank = self._exchange(when, bank, clients, present, now)
        self._record(now, present)
        born, retired = (sorted(set(a.entries) - set(b.entries)) for a, b in ((bank, state.bank), (state.bank, bank)))
        if born or retired:
            now.note("entries", born=born, retired=retired, entries=len(bank.entries))
        if retired:
            clients = {client: _without(numbers, set(retired)) for client, numbers in clients.items()}
        trained = time.perf_counter()
        measured, lines = self._measure(state, bank, now)
        after = State(number, bank, clients, measured, state.metrics_bytes)
        ended = time.perf_counter()
        return Played(after, now.lines + lines, ended - began, ended - trained)

    def trial(self, state: State) -> int | None:
        """Runs the first client of the next round, throws its answer away, and gives the number of participants.

        For estimating the time: a client program is a pure function, so trying it changes nothing.
        """
        number = max(1, state.round + 1)
        selected = self._select(number)
        for s in selected:
            held = self.setup.stream.holding(s.client, number)
            if len(held.train):
                when, given = self._first_asked(state.bank, number, [self._seat(s, held)])
                jobs = [
                    self._job(a, when, state.clients, {s.client: held}, {s.client: Selected(s.client)}) for a in given
                ]
                self.engine.run(self._train, jobs)
                return len(selected)
        return None

    def _first_asked(self, bank: Bank, number: int, seats: Sequence[Participant]) -> tuple[Moment, list[Assignment]]:
        """The first exchange of a round in which these participants are asked for something."""
        for exchange in range(self.exchanges):
            when = Moment(self.setup.config.seed, number, exchange)
            given = self._assigned(self.setup.method.assign(bank, when, seats), bank, seats)
            if given:
                break
        return when, given

    def asking(self, state: State) -> int:
        """In how many exchanges of the next round anybody is asked for something, as far as is known before it."""
        number = max(1, state.round + 1)
        held = [(s, self.setup.stream.holding(s.client, number)) for s in self._select(number)]
        seats = [self._seat(s, rows) for s, rows in held if len(rows.train)]
        moments = [Moment(self.setup.config.seed, number, exchange) for exchange in range(self.exchanges)]
        return sum(bool(list(self.setup.method.assign(state.bank, when, seats))) for when in moments)

    # ---- select ---------------------------------------------------------------------------------------------

    def _select(self, number: int) -> list[Selected]:
        if number == 0:  # the warm-up: every client gets its first model
            return [Selected(c) for c in range(self.setup.stream.clients)]
        return self.setup.selection.draw(Moment(self.setup.config.seed, number))

    # ---- assign, train, merge -------------------------------------------------------------------------------

    @property
    def _train(self) -> Train:
        """The clients' program, with the compression of what they send if there is any."""
        method, compression = self.setup.method, self.setup.method.learner.compression
        return method.train if compression is None else Compressed(method.train, compression, self.setup.world)

    def _seat(self, s: Selected, held: Holding) -> Participant:
        """A participant as the method sees it."""
        told = [held.truth[label] for label in self.setup.method.needs_truth if label in held.truth]
        return Participant(s.client, held.task, s.times, told[0] if told else None)

    def _exchange(
        self,
        when: Moment,
        bank: Bank,
        clients: dict[int, Mapping[str, Value]],
        present: Sequence[Selected],
        now: _Round,
    ) -> Bank:
        method = self.setup.method
        seats = [self._seat(s, now.holdings[s.client]) for s in present]
        assignments = self._assigned(method.assign(bank, when, seats), bank, seats)
        if seats and not assignments and when.exchange + 1 < self.exchanges:
            return bank  # nothing to ask for before the exchange in which everybody trains
        fates = {s.client: s for s in present}
        probed = self._probed(when.round)
        jobs = [self._job(given, when, clients, now.holdings, fates, probed) for given in assignments]
        accepted, outcomes = self._answers(bank, jobs, fates, now)
        now.assignments += assignments
        now.outcomes += outcomes
        needed = self.setup.config.participation.minimum
        if len(assignments) < len(seats):  # of an exchange that asks some of them no more than those can answer
            needed = min(needed, len(assignments))
        if len(accepted) < max(1, needed):
            now.note("unchanged", exchange=when.exchange, updates=len(accepted), needed=needed)
            return bank
        merged = method.merge(bank, accepted, when)
        if not isinstance(merged, Bank):
            raise TypeError(f"merge must give a Bank; got {type(merged).__name__}")
        merged = bank.followed_by(merged)
        for key, entry in merged.entries.items():
            if bank.entries.get(key) is entry:
                continue
            if entry.vector.dtype != torch.float32 or entry.vector.dim() != 1:
                raise TypeError(
                    f"merge made entry {key!r} {entry.vector.dtype} of shape {tuple(entry.vector.shape)}; "
                    f"vectors are flat float32 (look at the mean and the server optimiser)"
                )
        lost = diverged(bank.entries, merged.entries)
        if lost:
            why = "not finite after the merge; it is undone"
            now.note("diverged", entries=lost, exchange=when.exchange, reason=why)
            return bank
        now.accepted += accepted
        for update in accepted:
            if update.state:
                clients[update.client] = {**clients.get(update.client, {}), **update.state}
            for key, part in update.parts.items():
                if part.trained:  # a first exchange may only ask for numbers
                    now.trained.setdefault(key, set()).add(update.client)
        for line in method.records(bank, merged, accepted, when):
            now.note(**line)
        return merged

    def _answers(
        self, bank: Bank, jobs: Sequence[Job], fates: Mapping[int, Selected], now: _Round
    ) -> tuple[list[Update], list[Outcome]]:
        """The updates that reach the server, and what the engine gave; without vectors where those are added up."""
        method = self.setup.method
        screen = Screen(method.births, method.newborn)
        keep = any(measure.reads_vectors for measure in self.setup.measures.values())
        sums = adding(method, bank, jobs, fates, keep)
        accepted: list[Update] = []
        outcomes: list[Outcome] = []
        most = len(jobs) if sums is None else held(jobs, self.engine.workers)
        with contextlib.closing(self.engine.stream(self._train, jobs, most)) as answers:
            for job in jobs:  # no zip, which would hold the last outcome while the next one is trained
                outcome = next(answers)
                update = self._answer(job, outcome, fates[outcome.client], screen, now)
                if sums is not None:
                    update, outcome = sums.take(update, outcome)
                if update is not None:
                    accepted.append(update)
                outcomes.append(outcome)
        return accepted, outcomes

    def _assigned(self, given: Iterable[Assignment], bank: Bank, seats: Sequence[Participant]) -> list[Assignment]:
        """The assignments sorted by client, each with its entries from the bank as it is now."""
        expected = {seat.id for seat in seats}
        found: dict[int, Assignment] = {}
        for assignment in given:
            if assignment.client in found or assignment.client not in expected:
                raise ValueError(
                    f"assign must name each participant at most once and nobody else; got client {assignment.client} "
                    f"for the participants {sorted(expected)}"
                )
            keys = dict.fromkeys((*assignment.keys, *assignment.own))
            if self.setup.method.births:  # what will be born at the client, and stay there
                keys = {key: None for key in keys if key in bank.entries or key not in assignment.own}
            unknown = [key for key in keys if key not in bank.entries]
            if unknown:
                raise ValueError(f"assign names {unknown}, but the bank has {list(bank.entries)[:10]}")
            found[assignment.client] = changed(assignment, entries={key: bank.entries[key] for key in keys})
        return [found[client] for client in sorted(found)]

    @staticmethod
    def _job(
        given: Assignment,
        when: Moment,
        clients: Mapping[int, Mapping[str, Value]],
        holdings: Mapping[int, Holding],
        fates: Mapping[int, Selected],
        probed: bool = False,
    ) -> Job:
        held = holdings[given.client]
        fate, state = fates[given.client], clients.get(given.client, {})
        client = Client(given.client, when, held.train, held.validation, state, held.task, fate.work)
        test = held.test if probed else held.test[:0]  # measuring nothing costs next to nothing
        return Job(given, client, test, fate.crash)

    def _probed(self, number: int) -> bool:
        """Whether what programs ask to have measured in this round is measured."""
        config = self.setup.config
        return due(number, config.evaluate.every, config.rounds, self.setup.stream.boundaries)

    @staticmethod
    def _answer(job: Job, outcome: Outcome, fate: Selected, screen: Screen, now: _Round) -> Update | None:
        """The update that reaches the server, or ``None`` with a record of why there is none."""
        client = outcome.client
        if isinstance(outcome.answer, Failure):
            now.note("failed", "failed", client=client, reason=outcome.answer.error)
            return None
        if fate.straggler:
            now.note("straggler", "stragglers", client=client, reason="trained, but its update came too late")
            return None
        if outcome.fits and not any(fit.steps for fit in outcome.fits):
            why = "took no training step (with BatchNorm a batch of a single row is left out)"
            now.note("skipped", "skipped", client=client, reason=why)
            return None
        parts = {k: changed(p, client=client, times=job.given.times) for k, p in outcome.answer.parts.items()}
        update = changed(outcome.answer, parts=parts, client=client, times=job.given.times)
        reason, doubt = screen(update, job.given)
        if reason is not None:
            now.note("rejected", "rejected", client=client, reason=reason)
            return None
        if doubt is not None:
            now.note("warning", client=client, reason=doubt)
        return update

    def _record(self, now: _Round, present: Sequence[Selected]) -> None:
        """The record of the round: who took part in what, and which entries were trained by whom."""
        tasks: dict[str, list[int]] = {}
        reached: dict[str, list[int]] = {}
        held: dict[str, dict[str, list[int]]] = {}  # by concept or domain, where there are no tasks
        answered = {client for who in now.trained.values() for client in who}
        for s in present:
            task = now.holdings[s.client].truth.get("task")
            if task is not None:
                tasks.setdefault(str(task), []).append(s.client)
                if s.client in answered:
                    reached.setdefault(str(task), []).append(s.client)
                continue
            for label, value in now.holdings[s.client].truth.items():
                if label != "phase":
                    held.setdefault(label, {}).setdefault(str(value), []).append(s.client)
        now.note(
            "round",
            phase=self.setup.stream.phase(max(1, now.number)),
            participants=[s.client for s in present],
            tasks=tasks,
            trained={key: sorted(who) for key, who in now.trained.items()},
            trained_tasks=reached,
        )
        if held:
            now.lines[-1]["held"] = held
        now.lines[-1].update({name: len(clients) for name, clients in now.counts.items()})
        now.lines[-1]["partial"] = sum(s.work < 1 for s in present)  # drawn for it; a single step is never cut

    # ---- measure --------------------------------------------------------------------------------------------

    def _measure(self, state: State, bank: Bank, now: _Round) -> tuple[dict[str, Any], list[Line]]:
        config = self.setup.config
        seen = Seen(
            Moment(config.seed, now.number),
            state.bank,
            bank,
            now.assignments,
            now.outcomes,
            now.accepted,
            now.holdings,
            {key: tuple(sorted(who)) for key, who in now.trained.items()},
            self.engine.score,
            now.number >= config.rounds,
        )
        measured: dict[str, Any] = {}
        lines: list[Line] = []
        for name, measure in self.setup.measures.items():
            new, memory = measure.observe(seen, state.measured.get(name, {}))
            lines += [{"round": now.number, **line} for line in new]
            if memory:
                measured[name] = memory
        return measured, lines


def _without(numbers: Mapping[str, Value], retired: Collection[Key]) -> Mapping[str, Value]:
    """A client's private numbers but for those of retired entries, ``PREFIX/KEY``, which nobody would read again."""
    gone = [name for name in numbers if name.partition("/")[2] in retired]
    return {name: value for name, value in numbers.items() if name not in gone} if gone else numbers


def play_all(experiment: Experiment, state: State, store: Callable[[Played], State]) -> State:
    """Plays to the last round. ``store`` keeps each round and gives the state to go on with."""
    while state.round < experiment.setup.config.rounds:
        state = store(experiment.play(state))
    return state
