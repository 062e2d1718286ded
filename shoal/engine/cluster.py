"""The cluster engine: persistent Ray actors on one machine or several, each with a resident kernel.

Entries travel once per version, through Ray's object store. Jobs go out in chunks; those of an actor that was lost are
run again by the others. A job says everything that its answer depends on, so the bits are the serial engine's, whoever
runs it and however often.
"""

from __future__ import annotations

import importlib.util
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from ..errors import ConfigError, RunError
from ..messages import Job, Outcome
from ..requests import Score
from .actor import Actor, Message, origin
from .base import Engine, Pair
from .program import Train
from .sent import LARGE, Sent
from .session import Session, in_short
from .wire import Parcel, flat, for_the_client, owned, pack, unpack

AHEAD = 2
"""Chunks that an actor has at a time: while it runs one, the next one is on its way."""
CHUNKS = 4
"""Chunks for each actor: with fewer some stand idle at the end of a round, and each costs a message."""
START_SECONDS = 300.0
"""An actor that is not ready after so long, the data set received, is given up."""
T = TypeVar("T")


@dataclass(eq=False)
class _Place:
    """An actor: Ray's handle, the machine that it is on, and the chunks that it has, by the references of their
    answers."""

    handle: Any
    machine: str = "this machine"
    chunks: dict[Any, int] = field(default_factory=dict)


class Cluster(Engine):
    """``actors`` of a Ray cluster; ``None`` is one for each of its processors. For ``address`` see `Session`.

    Nothing is built by the actors from the configuration: data set and architectures are sent to them once. Raises
    `RunError` where actors do not start, have other versions than this process, or are all lost; after that, or an
    interrupt, the next call starts new ones.
    """

    def __init__(self, *args: Any, actors: int | None = None, address: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._session = Session(address, actors)
        self._ray = self._session.ray
        self._wanted = actors
        self._sent = Sent(self._ray.put)
        self._places: list[_Place] = []
        self._program: tuple[int, Parcel, tuple[Any, ...]] = (0, Parcel(b"", []), ())
        self._remarks: list[str] = []
        self._processors: set[str] = set()
        try:
            # Held as long as the engine lives, for actors that are started later.
            self._data, self._data_references = self._message(pack(self.dataset))
            self._fixed = {token for token in self._data.tokens if token is not None}
            own = self._packed((self.models, (self.precision, self.loss, self.loss_args)), {}, "the model")
            self._rest, self._rest_references = self._message(own)
            self._start()
        except BaseException:
            self.close()
            raise

    # ---- the actors -----------------------------------------------------------------------------------------

    def _start(self) -> None:
        count = self._wanted or self._session.processors
        if not 0 < count <= self._session.processors:
            raise RunError(
                f"execution.actors: each needs a processor, and the cluster has {self._session.processors}; got "
                f"{count}; ask for fewer, or let more machines join (docs/cluster.md)"
            )
        made = self._ray.remote(Actor).options(
            num_cpus=1, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD"
        )
        self._places = [_Place(made.remote()) for _ in range(count)]
        large = (*self._data_references, *self._rest_references)
        path = [str(Path(place).absolute()) for place in sys.path]  # an empty one is the folder of the call
        answers = [place.handle.begin.remote(path, self._data, self._rest, *large) for place in self._places]
        try:
            ready, _ = self._ray.wait(answers, num_returns=count, timeout=START_SECONDS)
            if len(ready) < count:
                raise RunError(
                    f"only {len(ready)} of {count} actors were ready after {START_SECONDS:.0f} s; are the cluster's "
                    f"processors taken by another run? Ask for fewer with execution.actors"
                )
            for place, answer in zip(self._places, answers, strict=True):
                self._welcome(place, answer)
            self.workers = count
        except BaseException:
            self._end()
            raise

    def _welcome(self, place: _Place, answer: Any) -> None:
        """Hears what bits depend on at an actor; raises `RunError` where it is not what it is here."""
        try:
            place.machine, theirs = self._ray.get(answer)
        except self._ray.exceptions.RayTaskError as error:
            _raise(error)
        except self._ray.exceptions.RayError as error:
            raise RunError(
                f"an actor did not start: {in_short(error)}; every machine needs this Shoal with the extra cluster, "
                f"and modules of your own where Python finds them (docs/cluster.md)"
            ) from error
        ours = origin()
        self._processors |= {ours.pop("processor"), theirs.pop("processor")}
        odd = [f"{name} {theirs.get(name)} (here {ours.get(name)})" for name in ours if theirs.get(name) != ours[name]]
        if odd:
            raise RunError(
                f"{place.machine} has {', '.join(odd)}: numbers would depend on who trains whom; install the same "
                f"versions on all machines"
            )

    def _end(self) -> None:
        for place in self._places:
            self._ray.kill(place.handle)
        self._places = []

    def close(self) -> None:
        self._end()
        self._session.close()

    # ---- what they are sent ---------------------------------------------------------------------------------

    def _packed(self, thing: object, known: Mapping[str, object], what: str) -> Parcel:
        try:
            return pack(thing, known)
        except Exception as error:
            raise RunError(
                f"execution.kind: cluster sends {what} to other processes, and that is not possible: "
                f"{type(error).__name__}: {error}; keep locks, files and threads out of it, or use kind: workers"
            ) from error

    def _message(self, parcel: Parcel, known: Set[int] = frozenset()) -> tuple[Message, list[Any]]:
        """A parcel as it is sent, and the references of its large tensors, but for those with ``known`` tokens."""
        tokens: list[int | None] = []
        small, references = [], []
        for tensor in parcel.tensors:
            if tensor.nbytes < LARGE:
                tokens.append(None)
                small.append(flat(tensor).numpy())
                continue
            token, reference = self._sent.of(tensor)
            tokens.append(token)
            if token not in known:
                references.append(reference)
        return Message(parcel.data, tuple(tokens), tuple(small)), references

    def _sent_program(self, train: Train) -> tuple[Any, ...]:
        """The program's number, its message in the store, and its large tensors; sent again only if it changed."""
        parcel = self._packed(train, self.models, "the clients' program")
        number, last, sent = self._program
        if not number or parcel.data != last.data or list(map(id, parcel.tensors)) != list(map(id, last.tensors)):
            message, references = self._message(parcel, self._fixed)
            sent = (number + 1, self._ray.put(message), *references)
            self._program = (number + 1, parcel, sent)
        return sent

    # ---- the calls ------------------------------------------------------------------------------------------

    def run(self, train: Train, jobs: Sequence[Job]) -> list[Outcome]:
        program = self._sent_program(train)

        def call(place: _Place, chunk: Sequence[Job]) -> Any:
            parcel = self._packed([for_the_client(job) for job in chunk], self.models, "the clients' private states")
            message, references = self._message(parcel, self._fixed)
            number, sent, *large = program
            return place.handle.run.remote(number, sent, message, *large, *references)

        def names(chunk: Sequence[Job]) -> str:
            return f"clients {', '.join(str(job.client.id) for job in chunk)}"

        return self._gather(jobs, call, names)

    def score(self, pairs: Sequence[Pair], metrics: Sequence[str] = ()) -> list[list[Score]]:
        def call(place: _Place, chunk: Sequence[Pair]) -> Any:
            parcel = self._packed((list(chunk), tuple(metrics)), self.models, "what is measured")
            message, references = self._message(parcel, self._fixed)
            return place.handle.score.remote(message, *references)

        return self._gather(pairs, call, lambda chunk: f"{len(chunk)} measurements")

    def _gather(
        self, things: Sequence[T], call: Callable[[_Place, Sequence[T]], Any], names: Callable[[Sequence[T]], str]
    ) -> list[Any]:
        """The answers for these things, in their order, whoever gave them."""
        if not things:
            return []
        if not self._places:
            self._start()
        size = -(-len(things) // (CHUNKS * len(self._places)))
        chunks = [things[begin : begin + size] for begin in range(0, len(things), size)]
        answers: list[list[Any]] = [[] for _ in chunks]
        waiting = deque(range(len(chunks)))
        try:
            while waiting or any(place.chunks for place in self._places):
                for _ in range(AHEAD):  # one for everybody before a second one for anybody
                    for place in self._places:
                        if waiting and len(place.chunks) < AHEAD:
                            number = waiting.popleft()
                            place.chunks[call(place, chunks[number])] = number
                owners = {answer: place for place in self._places for answer in place.chunks}
                (answer, *_), _ = self._ray.wait(list(owners))
                place = owners[answer]
                error = self._collect(place, answer, answers)
                if error is not None:
                    # What it had finished counts, whichever of its answers was looked at first.
                    for other in self._ray.wait(list(place.chunks), num_returns=len(place.chunks), timeout=0)[0]:
                        self._collect(place, other, answers)
                    waiting.extendleft(self._lost(place, error, lambda n: names(chunks[n])))
        except BaseException:
            self._end()  # nobody waits any more for what they are at
            raise
        return [answer for found in answers for answer in found]

    def _collect(self, place: _Place, answer: Any, answers: list[list[Any]]) -> Exception | None:
        """Puts an answer where it belongs; gives the error where there is none because the actor was lost."""
        try:
            data, memory = self._ray.get(answer)
        except self._ray.exceptions.RayTaskError as error:
            _raise(error)
        except self._ray.exceptions.RayError as error:
            found: Exception = error
            return found
        answers[place.chunks.pop(answer)] = unpack(data, [owned(array) for array in memory])
        return None

    def _lost(self, place: _Place, error: Exception, names: Callable[[int], str]) -> list[int]:
        """Goes on without an actor; gives the chunks that it had, the last one first."""
        numbers = sorted(place.chunks.values(), reverse=True)
        self._ray.kill(place.handle)  # Ray may have lost an answer and not the actor
        self._places.remove(place)
        self.workers = max(1, len(self._places))
        at_work = names(next(iter(place.chunks.values())))  # it takes them in the order in which it got them
        if not self._places:
            raise RunError(
                f"all actors of the cluster were lost, the last one on {place.machine} with {at_work}: "
                f"{in_short(error)}"
            )
        self._remarks.append(
            f"warning: an actor on {place.machine} was lost with {at_work}; the other {len(self._places)} run them "
            f"again ({in_short(error)})"
        )
        return numbers

    def forget(self) -> None:
        for place in self._places:
            place.handle.forget.remote()

    def remarks(self) -> list[str]:
        found, self._remarks = self._remarks, []
        return found

    def describe(self) -> str:
        several = f"; processors differ ({', '.join(sorted(self._processors))})" if len(self._processors) > 1 else ""
        return f"cluster on {self.device}, {self.precision}{several}"


def check_cluster() -> None:
    """Raises `ConfigError` without the package ray."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(
            "execution.kind: cluster needs the package ray; install it with: pip install 'shoal[cluster]', or use "
            "kind: workers"
        )


def _raise(error: Any) -> NoReturn:
    """Raises what an actor raised."""
    cause = error.cause
    if isinstance(cause, ModuleNotFoundError):
        raise RunError(
            f"an actor cannot import {cause.name!r}: modules of your own must be where Python finds them on every "
            f"machine of the cluster (docs/cluster.md)"
        ) from error
    raise cause from error
