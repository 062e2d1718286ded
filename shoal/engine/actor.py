"""The cluster engine's half in a Ray actor: a resident kernel that runs the programs and measurements it is sent."""

from __future__ import annotations

import functools
import hashlib
import platform
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..folder import versions
from ..messages import Failure, Outcome
from ..records import changed
from .batches import ALIGNED
from .kernel import Kernel
from .program import Train, describe_error, run_job
from .wire import Parcel, flat, owned, pack, unpack


class Message(NamedTuple):
    """A parcel as Ray sends it. ``tokens`` name the large tensors, which come beside the message; ``None`` is the
    next one of ``small``."""

    data: bytes
    tokens: tuple[int | None, ...]
    small: tuple[np.ndarray, ...]


Answer = tuple[bytes, list[np.ndarray]]
"""A parcel on its way back: its bytes, and the bytes of its tensors."""


class Actor:
    """A kernel in a process of its own. Ray calls it from one thread, one call after another."""

    def __init__(self) -> None:
        torch.set_num_threads(1)  # as everywhere: two threads split sums differently
        self._data: dict[int, Tensor] = {}
        self._held: dict[int, Tensor] = {}
        self._program: tuple[int, Train] | None = None

    def begin(
        self, path: Sequence[str], data: Message, rest: Message, *large: np.ndarray
    ) -> tuple[str, dict[str, str]]:
        """Sets the kernel up; gives the machine's name, and what bits depend on there. ``path`` is where the run finds
        modules of a user's own.

        The data set's large tensors stay in Ray's memory, of which the actors of one machine share one copy: nobody
        writes to them.
        """
        sys.path += [place for place in path if place not in sys.path]
        arrays = iter(large)
        self._data = {token: _seen(next(arrays)) for token in data.tokens if token is not None}
        dataset = unpack(data.data, list(self._memory(data, iter(()))))
        models, execution = unpack(rest.data, list(self._memory(rest, arrays)))
        self._known: dict[str, object] = dict(models)
        self._kernel = Kernel(models, dataset, torch.device("cpu"), *execution)
        self._held = {}
        return platform.node(), origin()

    def run(self, number: int, program: Message, jobs: Message, *large: np.ndarray) -> Answer:
        """The outcomes of these jobs, in their order; the program with a ``number`` is unpacked once."""
        arrays, before = iter(large), self._held
        self._held = {}
        memory = list(self._memory(program, arrays, before))
        if self._program is None or self._program[0] != number:
            self._program = (number, unpack(program.data, memory, self._known))
        given = unpack(jobs.data, list(self._memory(jobs, arrays, before)))
        outcomes = [run_job(self._kernel, self._program[1], job) for job in given]
        try:
            return _answer(pack(outcomes))
        except Exception:  # one client's answer, such as a note that holds a lock, is not that of the others
            return _answer(pack([_sendable(outcome) for outcome in outcomes]))

    def score(self, pairs: Message, *large: np.ndarray) -> Answer:
        """The scores of these pairs of models and rows."""
        before, self._held = self._held, {}
        wanted, metrics = unpack(pairs.data, list(self._memory(pairs, iter(large), before)))
        return _answer(pack([self._kernel.evaluate(models, rows, metrics=metrics) for models, rows in wanted]))

    def forget(self) -> None:
        """See `Engine.forget`."""
        self._kernel.forget()

    def _memory(
        self, message: Message, large: Iterator[np.ndarray], before: dict[int, Tensor] | None = None
    ) -> Iterator[Tensor]:
        """The bytes of each tensor of a message. What the last call had is not copied again."""
        small = iter(message.small)
        for token in message.tokens:
            if token is None:
                yield owned(next(small))
            elif token in self._data:
                yield self._data[token]
            else:
                array = next(large)
                if token not in self._held:
                    known = (before or {}).get(token)
                    self._held[token] = owned(array) if known is None else known
                yield self._held[token]


def _sendable(outcome: Outcome) -> Outcome:
    try:
        pack(outcome)
    except Exception as error:
        return changed(outcome, answer=Failure(describe_error(error)), fits=(), probes=())
    return outcome


def _answer(parcel: Parcel) -> Answer:
    return parcel.data, [flat(tensor).numpy() for tensor in parcel.tensors]


def _seen(array: np.ndarray) -> Tensor:
    """A tensor over Ray's memory, which is read-only; a copy where it begins at an odd place."""
    if array.ctypes.data % ALIGNED:
        return owned(array)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of memory that must not be written to
        return torch.from_numpy(array)


def origin() -> dict[str, str]:
    """What a number may depend on, of the process that asks: code, packages, and the instructions of the processor."""
    return {"shoal": _code(), **versions(), "processor": torch.backends.cpu.get_cpu_capability()}


@functools.cache
def _code() -> str:
    """A digest of Shoal's own files: two working copies may have one version and differ."""
    digest = hashlib.sha256()
    package = Path(__file__).parent.parent
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]
