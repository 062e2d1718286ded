"""What is sent to another process: an object as bytes, its tensors apart, and by name what both sides have.

Tensors are left out of the bytes, so that whoever sends them decides which ones travel, and how often. Functions that
cannot be imported by name (a closure, a class of a notebook) are sent with their code, by cloudpickle.
"""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import torch
from torch import Tensor

from ..messages import Job
from ..records import changed


class Parcel(NamedTuple):
    """An object on its way: its bytes, and its tensors, each once, in the order in which the bytes name them."""

    data: bytes
    tensors: list[Tensor]


def pack(thing: object, known: Mapping[str, object] | None = None) -> Parcel:
    """Takes an object apart. What ``known`` holds by name is not sent: the other side has its own.

    Raises what pickling raises for something that exists in this process alone, such as a lock.
    """
    file = io.BytesIO()
    pickler = _Pickler(file, known or {})
    pickler.dump(thing)
    return Parcel(file.getvalue(), pickler.tensors)


def unpack(data: bytes, memory: Sequence[Tensor], known: Mapping[str, object] | None = None) -> Any:
    """The object. ``memory`` is what `flat` made of each tensor: the object's tensors lie in it, copied by nobody.

    Only for bytes that `pack` made in a process of the same run: unpickling runs whatever the bytes say.
    """
    before = getattr(_context, "now", None)
    _context.now = _Context(memory, known or {}, {})
    try:
        return pickle.loads(data)
    finally:
        _context.now = before


def flat(tensor: Tensor) -> Tensor:
    """The bytes of a tensor in the order in which they lie in memory, uint8 ``[bytes]``; shares its memory."""
    whole = tensor.detach().as_strided((tensor.numel(),), (1,), tensor.storage_offset())
    return whole.view(torch.uint8)


def owned(memory: np.ndarray) -> Tensor:
    """A copy of received bytes, in memory of torch's own: it may be written to, and begins where torch's kernels
    expect it (with another alignment a sum may round otherwise)."""
    copy = torch.empty(memory.size, dtype=torch.uint8)
    copy.numpy()[:] = memory
    return copy


def for_the_client(job: Job) -> Job:
    """The job as it leaves the server: ``Entry.server`` stays there."""
    entries = {key: changed(e, server={}) if e.server else e for key, e in job.given.entries.items()}
    return changed(job, given=changed(job.given, entries=entries))


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, known: Mapping[str, object]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: list[Tensor] = []
        self._known = {id(thing): name for name, thing in known.items()}
        self._places: dict[int, int] = {}

    def reducer_override(self, thing: Any) -> Any:
        """What stands in the bytes for a tensor or something known.

        Not as persistent ids: those are asked for of every number and every name, of which a job has a hundred.
        """
        name = self._known.get(id(thing))
        if name is not None:
            return _known, (name,)
        if type(thing) is not Tensor:  # a Parameter says by itself which tensor it holds
            return super().reducer_override(thing)
        place = self._places.get(id(thing))
        if place is None:
            place = self._places[id(thing)] = len(self.tensors)
            # Kept as it is where it can be: the sender knows what it sent before by the tensor itself.
            self.tensors.append(thing if _fills_its_memory(thing) else thing.detach().cpu().contiguous())
        kept = self.tensors[place]
        return _tensor, (place, kept.dtype, tuple(kept.shape), kept.stride())


class _Context(NamedTuple):
    """What the bytes that are being unpickled refer to."""

    memory: Sequence[Tensor]
    known: Mapping[str, object]
    made: dict[int, Tensor]


_context = threading.local()


def _known(name: str) -> object:
    return _context.now.known[name]


def _tensor(place: int, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    now: _Context = _context.now
    if place not in now.made:
        now.made[place] = now.memory[place].view(dtype).as_strided(shape, stride)
    return now.made[place]


def _fills_its_memory(tensor: Tensor) -> bool:
    """Whether it is on the CPU and its elements lie side by side, each once, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return tensor.device.type == "cpu" and tensor.layout is torch.strided
