"""`ParameterSpace`: the trainable parameters of a module as one flat vector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .bank import Buffers, Entry


class _Slot(NamedTuple):
    offset: int
    size: int
    shape: tuple[int, ...]


def default_segments(module: nn.Module) -> dict[str, list[str]]:
    """``features`` and ``classifier``: the submodule called ``classifier``, else the last linear layer.

    Frozen parameters are left out. A segment without parameters does not exist.
    """
    trainable = [name for name, p in module.named_parameters() if p.requires_grad]
    prefix = "classifier" if isinstance(getattr(module, "classifier", None), nn.Module) else _last_linear(module)
    inside = [n for n in trainable if prefix is not None and _under(n, prefix)]
    outside = [n for n in trainable if n not in inside]
    return {name: names for name, names in (("features", outside), ("classifier", inside)) if names}


def _last_linear(module: nn.Module) -> str | None:
    found = [
        name
        for name, m in module.named_modules()
        if isinstance(m, nn.Linear) and any(p.requires_grad for p in m.parameters())
    ]
    return found[-1] if found else None


def _under(name: str, prefix: str) -> bool:
    return prefix == "" or name == prefix or name.startswith(prefix + ".")


class ParameterSpace:
    """Maps a module's parameters to one flat float32 vector with named, contiguous segments.

    Parameters with ``requires_grad=False`` at build time are constants: in no vector, never sent. 4-d weights
    lie channels-last in the vector. ``segments`` maps each top-level segment to its slice, in order; together
    they cover the vector. ``head``, the last linear layer, lies at the end of the segment that holds it and is
    a slice of its own, but not a top-level segment.

    ``groups`` maps segment names to parameter names or prefixes of them; default `default_segments`.
    Raises ``ValueError`` if the groups do not cover the trainable parameters exactly once.
    """

    def __init__(self, module: nn.Module, groups: Mapping[str, Sequence[str]] | None = None) -> None:
        if groups is None:
            groups = getattr(module, "segments", None) or default_segments(module)
        shapes = {n: tuple(p.shape) for n, p in module.named_parameters() if p.requires_grad}
        order = self._ordered(shapes, groups, _last_linear(module))
        self.slots: dict[str, _Slot] = {}
        self.segments: dict[str, slice] = {}
        offset = 0
        for segment, names in order.items():
            begin = offset
            for name in names:
                size = int(torch.Size(shapes[name]).numel())
                self.slots[name] = _Slot(offset, size, shapes[name])
                offset += size
            self.segments[segment] = slice(begin, offset)
        self.size = offset
        self.head = self._head(module)

    @staticmethod
    def _ordered(
        shapes: Mapping[str, tuple[int, ...]], groups: Mapping[str, Sequence[str]], head: str | None
    ) -> dict[str, list[str]]:
        order: dict[str, list[str]] = {}
        taken: dict[str, str] = {}
        for segment, prefixes in groups.items():
            names = [n for n in shapes if any(_under(n, prefix) for prefix in prefixes)]
            for name in names:
                if name in taken:
                    raise ValueError(f"parameter {name!r} is in segment {taken[name]!r} and in {segment!r}; each belongs to one")
                taken[name] = segment
            # The head comes last in its segment, so that it is contiguous with nothing behind it.
            last = [n for n in names if head is not None and _under(n, head)]
            order[segment] = [n for n in names if n not in last] + last
        missing = [n for n in shapes if n not in taken]
        if missing:
            raise ValueError(
                f"segments {sorted(groups)} leave out {missing[:5]}; every trainable parameter belongs to one segment"
            )
        empty = [segment for segment, names in order.items() if not names]
        if empty:
            raise ValueError(f"segments {empty} hold no trainable parameter; the module has {list(shapes)[:10]}")
        return order

    def _head(self, module: nn.Module) -> slice:
        prefix = _last_linear(module)
        inside = [s for n, s in self.slots.items() if prefix is not None and _under(n, prefix)]
        if not inside:
            return slice(self.size, self.size)
        return slice(min(s.offset for s in inside), max(s.offset + s.size for s in inside))

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters' names, in the order of the vector."""
        return tuple(self.slots)

    def slice_of(self, segment: str) -> slice:
        """The slice of a segment, ``head`` included."""
        if segment == "head":
            return self.head
        if segment not in self.segments:
            raise KeyError(f"no segment {segment!r}; this model has {[*self.segments, 'head']}")
        return self.segments[segment]

    def slices(self, segments: Sequence[str] | None) -> list[slice]:
        """The slices of these segments with neighbours joined, in order; ``None`` is the whole vector."""
        if segments is None:
            return [slice(0, self.size)]
        joined: list[slice] = []
        for s in sorted((self.slice_of(name) for name in segments), key=lambda s: s.start):
            if joined and s.start <= joined[-1].stop:
                joined[-1] = slice(joined[-1].start, max(joined[-1].stop, s.stop))
            else:
                joined.append(s)
        return joined

    def read(self, module: nn.Module) -> Tensor:
        """A copy of the module's parameters as a vector."""
        vector = torch.empty(self.size)
        parameters = dict(module.named_parameters())
        for name in self.slots:
            self.view(vector, name).copy_(parameters[name].detach())
        return vector

    def bind(self, module: nn.Module, vector: Tensor, gradient: Tensor) -> None:
        """Makes the module's parameters and their ``.grad`` views into ``vector`` and ``gradient``, for good."""
        parameters = dict(module.named_parameters())
        for name in self.slots:
            parameter = parameters[name]
            parameter.data = self.view(vector, name)
            parameter.grad = self.view(gradient, name)

    def view(self, vector: Tensor, name: str) -> Tensor:
        """One parameter of a vector ``[..., P]`` -> ``[..., *shape]``; 4-d weights are channels-last views."""
        slot = self.slots[name]
        flat = vector.narrow(-1, slot.offset, slot.size)
        lead = vector.shape[:-1]
        if len(slot.shape) == 4:
            o, i, h, w = slot.shape
            return flat.view(*lead, o, h, w, i).movedim(-1, -3)
        return flat.view(*lead, *slot.shape)

    def join(self, parts: Mapping[str, Tensor]) -> Tensor:
        """A whole vector from values for every segment, each exactly once."""
        if set(parts) != set(self.segments):
            raise ValueError(f"join needs each of {list(self.segments)} exactly once; got {list(parts)}")
        for segment, where in self.segments.items():
            if parts[segment].shape[-1] != where.stop - where.start:
                raise ValueError(
                    f"segment {segment!r} has {where.stop - where.start} parameters; got {parts[segment].shape[-1]}"
                )
        return torch.cat([parts[segment] for segment in self.segments], dim=-1)

    def part(self, entry: Entry, segment: str) -> Tensor:
        """One segment of an entry, whole or partial. A view."""
        if entry.segments is None:
            return entry.vector[..., self.slice_of(segment)]
        offset = 0
        for name in entry.segments:
            size = self.segments[name].stop - self.segments[name].start
            if name == segment:
                return entry.vector[..., offset : offset + size]
            offset += size
        raise KeyError(f"the entry covers {list(entry.segments)}, not {segment!r}")

    def size_of(self, segments: Sequence[str] | None) -> int:
        """The number of parameters of an entry that covers these segments."""
        if segments is None:
            return self.size
        return sum(self.segments[s].stop - self.segments[s].start for s in segments)


class BufferSpace:
    """The persistent buffers of a module as two flat vectors: floats, and integer counters.

    Buffers of frozen submodules (all their parameters are constants) are constants themselves. Non-persistent
    buffers never travel: they are the places that ``Served.constants`` fills.
    """

    def __init__(self, module: nn.Module) -> None:
        kept = set(module.state_dict())
        frozen = frozen_modules(module)
        self.floats: list[str] = []
        self.counters: list[str] = []
        for name, value in module.named_buffers():
            if name in kept and not any(_under(name, prefix) for prefix in frozen):
                (self.floats if value.is_floating_point() else self.counters).append(name)

    def __bool__(self) -> bool:
        return bool(self.floats or self.counters)

    def read(self, module: nn.Module) -> Buffers:
        """A copy of the module's buffers, on the CPU."""
        values = dict(module.named_buffers())
        floats = [values[n].detach().reshape(-1).to("cpu", torch.float32) for n in self.floats]
        counters = [values[n].detach().reshape(-1).to("cpu", torch.int64) for n in self.counters]
        return Buffers(torch.cat(floats) if floats else None, torch.cat(counters) if counters else None)

    def write(self, module: nn.Module, buffers: Buffers) -> None:
        """Copies these buffers into the module; a vector that is missing leaves the module's values."""
        values = dict(module.named_buffers())
        for names, vector in ((self.floats, buffers.floats), (self.counters, buffers.counters)):
            if vector is not None:
                for name, value in zip(names, self._cut(vector, [values[n] for n in names]), strict=True):
                    values[name].copy_(value)

    @staticmethod
    def _cut(vector: Tensor, like: Sequence[Tensor]) -> Iterator[Tensor]:
        offset = 0
        for value in like:
            yield vector[offset : offset + value.numel()].view(value.shape)
            offset += value.numel()


def frozen_modules(module: nn.Module) -> list[str]:
    """The outermost submodules that have parameters, none of them trainable (a frozen backbone)."""
    found: list[str] = []
    for name, sub in module.named_modules():
        parameters = list(sub.parameters())
        if parameters and not any(p.requires_grad for p in parameters) and not any(_under(name, f) for f in found):
            found.append(name)
    return found
