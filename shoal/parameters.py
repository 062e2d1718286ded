"""`ParameterSpace`: the trainable parameters of a module as one flat vector; `BufferSpace`: its buffers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .bank import Buffers, Entry
from .errors import nearest
from .placing import placed


class _Slot(NamedTuple):
    offset: int
    size: int
    shape: tuple[int, ...]


def default_segments(module: nn.Module) -> dict[str, list[str]]:
    """``features`` and ``classifier``: the submodule called ``classifier``, else the last linear layer.

    Frozen parameters are left out. A segment without parameters does not exist. A parameter that is shared by
    both belongs to ``classifier``.
    """
    names = _trainable_names(module)
    prefix = "classifier" if _trainable_part(module, "classifier") else head_layer(module)
    inside = [n for n, aliases in names.items() if prefix is not None and _any_under(aliases, [prefix])]
    outside = [n for n in names if n not in inside]
    return {name: found for name, found in (("features", outside), ("classifier", inside)) if found}


def _trainable_names(module: nn.Module) -> dict[str, list[str]]:
    """The trainable parameters by their first name, each with all its names (a tied parameter has several)."""
    first: dict[int, str] = {}
    names: dict[str, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            names.setdefault(first.setdefault(id(parameter), name), []).append(name)
    return names


def _trainable_part(module: nn.Module, name: str) -> bool:
    part = getattr(module, name, None)
    return isinstance(part, nn.Module) and any(p.requires_grad for p in part.parameters())


def head_layer(module: nn.Module) -> str | None:
    """The last linear layer by the order of definition: in ``classifier``, if there is one, else anywhere."""
    found = [
        name
        for name, m in module.named_modules()
        if isinstance(m, nn.Linear) and any(p.requires_grad for p in m.parameters())
    ]
    found = [name for name in found if is_under(name, "classifier")] or found
    return found[-1] if found else None


def is_under(name: str, prefix: str) -> bool:
    """Whether a dotted name is ``prefix`` or lies under it; everything lies under ``""``."""
    return prefix == "" or name == prefix or name.startswith(prefix + ".")


def check_prefix(where: str, prefix: str, names: Sequence[str]) -> None:
    """Raises ``ValueError`` if none of these parameters lies under the prefix; ``where`` says who asked."""
    if not _any_under(names, [prefix]):
        known = {".".join(n.split(".")[:i]) for n in names for i in range(1, n.count(".") + 2)}
        raise ValueError(f"{where}: no parameter lies under {prefix!r}; {nearest(prefix, known)}")


def _any_under(names: Iterable[str], prefixes: Sequence[str]) -> bool:
    return any(is_under(name, prefix) for name in names for prefix in prefixes)


class ParameterSpace:
    """Maps a module's parameters to one flat float32 vector with named, contiguous segments.

    Parameters with ``requires_grad=False`` at build time are constants: in no vector, never sent. 4-d weights
    lie channels-last in the vector. ``segments`` maps each top-level segment to its slice, in order; together
    they cover the vector. ``head``, the last linear layer, lies at the end of the segment that holds it and is
    a slice of its own, but not a top-level segment. A tied parameter (one parameter, several names) lies in the
    vector once, under its first name.

    ``groups`` maps segment names to parameter names or prefixes of them; default: the module's attribute
    ``segments`` if that is a mapping, else `default_segments`.

    Raises ``ValueError`` if the groups do not cover the trainable parameters exactly once, for a prefix that
    fits no parameter, for a segment ``head`` that is not the last linear layer, and for parameters that are not
    float32, not initialised (lazy) or share memory without being the same.
    """

    def __init__(self, module: nn.Module, groups: Mapping[str, Sequence[str]] | None = None) -> None:
        _check_parameters(module)
        if groups is None:
            declared = getattr(module, "segments", None)
            groups = declared if isinstance(declared, Mapping) else default_segments(module)
        names = _trainable_names(module)
        head = head_layer(module)
        inside = [n for n, aliases in names.items() if head is not None and _any_under(aliases, [head])]
        every = [n for n, _ in module.named_parameters(remove_duplicate=False)]
        order = _ordered(names, every, groups, inside)
        parameters = dict(module.named_parameters())
        self.slots: dict[str, _Slot] = {}
        self.segments: dict[str, slice] = {}
        offset = 0
        for segment, members in order.items():
            begin = offset
            for name in members:
                shape = tuple(parameters[name].shape)
                self.slots[name] = _Slot(offset, math.prod(shape), shape)
                offset += self.slots[name].size
            self.segments[segment] = slice(begin, offset)
        self.size = offset
        self._first = {alias: name for name, aliases in names.items() for alias in aliases}
        self.head = self._slice(inside)
        given = getattr(module, "undecayed", ())
        prefixes = [p for p in given if isinstance(p, str)] if isinstance(given, tuple | list) else []
        self.undecayed = tuple(name for name in self.slots if _any_under([name], prefixes))
        """Parameters that no weight decay pulls, whatever the configuration says: the module's ``undecayed``."""
        if "head" in self.segments and self.segments["head"] != self.head:
            raise ValueError(
                f"segment 'head' is always the last linear layer ({head!r} here); give this segment another name"
            )

    def _slice(self, names: Sequence[str]) -> slice:
        slots = [self.slots[n] for n in names]
        if not slots:
            return slice(self.size, self.size)
        return slice(min(s.offset for s in slots), max(s.offset + s.size for s in slots))

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
        """A copy of the module's parameters as a vector, on the CPU."""
        vector = torch.empty(self.size, dtype=torch.float32)
        for name, parameter in self._parameters(module):
            self.view(vector, name).copy_(parameter.detach())
        return vector

    def bind(self, module: nn.Module, vector: Tensor, gradient: Tensor) -> None:
        """Makes the module's parameters and their ``.grad`` views into ``vector`` and ``gradient``, for good.

        Both are ``[P]`` and float32. They stay views as long as gradients are zeroed in place
        (``gradient.zero_()``), never set to ``None``: autograd adds into a gradient that is there.
        """
        for what, flat in (("vector", vector), ("gradient", gradient)):
            if flat.shape != (self.size,) or flat.dtype != torch.float32:
                raise ValueError(
                    f"bind needs a float32 {what} of shape ({self.size},); got {flat.dtype} {tuple(flat.shape)}"
                )
        for name, parameter in self._parameters(module):
            parameter.data = self.view(vector, name)
            parameter.grad = self.view(gradient, name)

    def _parameters(self, module: nn.Module) -> list[tuple[str, nn.Parameter]]:
        parameters = dict(module.named_parameters())
        for name, slot in self.slots.items():
            shape = tuple(parameters[name].shape) if name in parameters else None
            if shape != slot.shape:
                raise ValueError(f"this space has {name!r} of shape {slot.shape}; the module has {shape}")
        more = [n for n, p in parameters.items() if p.requires_grad and n not in self.slots]
        if more:
            raise ValueError(f"the module has trainable parameters that are not in this space: {more[:5]}")
        return [(name, parameters[name]) for name in self.slots]

    def view(self, vector: Tensor, name: str) -> Tensor:
        """One parameter of a vector ``[..., P]`` -> ``[..., *shape]``; 4-d weights are channels-last views."""
        if name not in self._first:
            raise KeyError(f"no parameter {name!r}; {nearest(name, self._first)}")
        if vector.dim() == 0 or vector.shape[-1] != self.size:
            raise ValueError(f"this space has {self.size} parameters; got a vector of {tuple(vector.shape)}")
        offset, size, shape = self.slots[self._first[name]]
        flat = vector.narrow(-1, offset, size)
        lead = vector.shape[:-1]
        if len(shape) == 4:
            o, i, h, w = shape
            return flat.view((*lead, o, h, w, i)).movedim(-1, -3)
        return flat.view((*lead, *shape))

    def join(self, parts: Mapping[str, Tensor]) -> Tensor:
        """A whole vector ``[..., P]`` from values ``[..., size]`` for every segment, each exactly once."""
        if set(parts) != set(self.segments):
            raise ValueError(f"join needs each of {list(self.segments)} exactly once; got {list(parts)}")
        for segment, where in self.segments.items():
            if parts[segment].dim() == 0 or parts[segment].shape[-1] != where.stop - where.start:
                raise ValueError(
                    f"segment {segment!r} has {where.stop - where.start} parameters; "
                    f"got values of shape {tuple(parts[segment].shape)}"
                )
        return torch.cat([parts[segment] for segment in self.segments], dim=-1)

    def part(self, entry: Entry, segment: str) -> Tensor:
        """One segment (or ``head``) of an entry, whole or partial. A view."""
        wanted = self.slice_of(segment)
        covers = tuple(self.segments) if entry.segments is None else entry.segments
        # An entry of no segment holds loose numbers, of any size.
        if covers and entry.vector.shape[-1] != self.size_of(covers):
            raise ValueError(
                f"an entry for {list(covers)} has {self.size_of(covers)} parameters; "
                f"got a vector of {tuple(entry.vector.shape)}"
            )
        offset = 0
        for name in covers:
            here = self.segments[name]
            if name == segment or (segment == "head" and here.start <= wanted.start < wanted.stop <= here.stop):
                begin = offset + wanted.start - here.start
                return entry.vector[..., begin : begin + wanted.stop - wanted.start]
            offset += here.stop - here.start
        raise KeyError(f"the entry covers {list(covers)}, not {segment!r}")

    def shapes(self, segments: Sequence[str] | None) -> list[tuple[int, ...]]:
        """The shapes of the parameters of an entry that covers these top-level segments, in the order of its vector."""
        where = [slice(0, self.size)] if segments is None else [self.slice_of(name) for name in segments]
        return [slot.shape for s in where for slot in self.slots.values() if s.start <= slot.offset < s.stop]

    def size_of(self, segments: Sequence[str] | None) -> int:
        """The number of parameters of an entry that covers these top-level segments."""
        if segments is None:
            return self.size
        unknown = [s for s in segments if s not in self.segments]
        if unknown:
            raise KeyError(f"an entry covers segments of {list(self.segments)}; got {unknown}")
        return sum(self.segments[s].stop - self.segments[s].start for s in segments)


def _check_parameters(module: nn.Module) -> None:
    spans: list[tuple[int, int, str, bool]] = []
    for name, p in module.named_parameters():
        if nn.parameter.is_lazy(p):
            raise ValueError(f"parameter {name!r} is lazy, of unknown shape; use layers with all sizes given")
        if p.requires_grad and p.dtype != torch.float32:
            raise ValueError(f"parameter {name!r} is {p.dtype}; trainable parameters must be float32")
        if p.numel() and p.device.type != "meta":
            extent = 1 + sum((n - 1) * s for n, s in zip(p.shape, p.stride(), strict=True))
            spans.append((p.data_ptr(), p.data_ptr() + extent * p.element_size(), name, p.requires_grad))
    reach, last, trained = 0, "", False
    for begin, end, name, trains in sorted(spans):
        if begin < reach and (trains or trained):
            raise ValueError(
                f"parameters {last!r} and {name!r} share memory but are two parameters, so training would part "
                f"them; tie them by using one nn.Parameter in both places"
            )
        if end > reach:
            reach, last, trained = end, name, trains


def _ordered(
    names: Mapping[str, Sequence[str]],
    every: Sequence[str],
    groups: Mapping[str, Sequence[str]],
    head: Sequence[str],
) -> dict[str, list[str]]:
    """The parameters of each segment in their order, ``head`` last."""
    order: dict[str, list[str]] = {}
    taken: dict[str, str] = {}
    for segment, given in groups.items():
        prefixes = [given] if isinstance(given, str) else list(given)
        for prefix in prefixes:
            check_prefix(f"segment {segment!r}", prefix, every)
        members = [n for n, aliases in names.items() if _any_under(aliases, prefixes)]
        for name in members:
            if name in taken:
                tied = f" (tied: {list(names[name])} are one parameter)" if len(names[name]) > 1 else ""
                raise ValueError(
                    f"parameter {name!r}{tied} is in segment {taken[name]!r} and in {segment!r}; each belongs to one"
                )
            taken[name] = segment
        # The head comes last in its segment, so that it is contiguous with nothing behind it.
        order[segment] = [n for n in members if n not in head] + [n for n in members if n in head]
    missing = [n for n in names if n not in taken]
    if missing:
        raise ValueError(
            f"segments {sorted(groups)} leave out {missing[:5]}; every trainable parameter belongs to one segment"
        )
    empty = [segment for segment, members in order.items() if not members]
    if empty:
        raise ValueError(f"segments {empty} hold no trainable parameter; the module has {list(names)[:10]}")
    holders = {taken[n] for n in head}
    if len(holders) > 1:
        raise ValueError(
            f"the last linear layer {list(head)} lies in segments {sorted(holders)}; it belongs to one segment"
        )
    return order


_NO_BUFFERS = Buffers()


class BufferSpace:
    """The persistent buffers of a module as two flat vectors: floats, and integer counters.

    Buffers of frozen submodules (all their parameters are constants) are constants themselves. Non-persistent
    buffers never travel: they are the places that ``Served.constants`` fills. Half-precision buffers travel as
    float32, booleans as 0 and 1; the module's own types stay as they are.

    Raises ``ValueError`` for buffers that float32 or int64 cannot hold exactly (float64, complex).
    """

    def __init__(self, module: nn.Module) -> None:
        frozen = frozen_modules(module)
        self.floats: list[str] = []
        self.counters: list[str] = []
        for name, value in _persistent_buffers(module):
            if any(is_under(name, prefix) for prefix in frozen):
                continue
            if value.is_complex() or value.dtype == torch.float64:
                raise ValueError(
                    f"buffer {name!r} is {value.dtype}; buffers that travel are float32 or integers: register it "
                    f"as float32, or with persistent=False if it is a constant"
                )
            (self.floats if value.is_floating_point() else self.counters).append(name)

    def __bool__(self) -> bool:
        return bool(self.floats or self.counters)

    def read(self, module: nn.Module) -> Buffers:
        """A copy of the module's buffers, on the CPU: float32 and int64, ``None`` where there are none."""
        if not self:
            return _NO_BUFFERS
        values = dict(module.named_buffers())
        # Together before they leave a device: each transfer waits for it.
        floats = [values[n].detach().reshape(-1).to(torch.float32) for n in self.floats]
        counters = [values[n].detach().reshape(-1).to(torch.int64) for n in self.counters]
        return Buffers(*(torch.cat(all).cpu() if all else None for all in (floats, counters)))

    @torch.no_grad()
    def write(self, module: nn.Module, buffers: Buffers) -> None:
        """Copies these buffers into the module; a vector that is missing leaves the module's values.

        Raises ``ValueError`` for a vector of another size.
        """
        if buffers.floats is None and buffers.counters is None:
            return
        values = dict(module.named_buffers())
        for names, vector in ((self.floats, buffers.floats), (self.counters, buffers.counters)):
            if vector is not None:
                like = [values[n] for n in names]
                size = sum(v.numel() for v in like)
                if vector.shape != (size,):
                    raise ValueError(
                        f"the buffers {names[:3]}... take {size} numbers; got a tensor of {tuple(vector.shape)}"
                    )
                for buffer, value in zip(like, _cut(placed(vector, like[0].device), like), strict=True):
                    buffer.copy_(value)


def _persistent_buffers(module: nn.Module) -> list[tuple[str, Tensor]]:
    kept = {
        f"{path}.{leaf}" if path else leaf
        for path, sub in module.named_modules()
        for leaf in sub._buffers
        if leaf not in sub._non_persistent_buffers_set
    }
    return [(name, value) for name, value in module.named_buffers() if name in kept]


def _cut(vector: Tensor, like: Sequence[Tensor]) -> Iterator[Tensor]:
    offset = 0
    for value in like:
        yield vector[offset : offset + value.numel()].view(value.shape)
        offset += value.numel()


def frozen_modules(module: nn.Module) -> list[str]:
    """The outermost submodules that have parameters, none of them trainable (a frozen backbone)."""
    return _frozen(module, "")[1]


def _frozen(module: nn.Module, path: str) -> tuple[set[bool], list[str]]:
    """Whether the parameters here and below are trainable, and the frozen modules. One pass: it runs in every fit."""
    trainable = {p.requires_grad for p in module._parameters.values() if p is not None}
    found: list[str] = []
    for name, child in module._modules.items():
        if child is not None:
            theirs, below = _frozen(child, f"{path}.{name}" if path else name)
            trainable |= theirs
            found += below
    return trainable, [path] if trainable == {False} else found
