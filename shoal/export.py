"""``model.safetensors``: the final models by key and parameter name, readable without Shoal."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from .bank import Bank, Buffers, Entry
from .errors import RunError
from .files import write_atomically
from .messages import World
from .models.base import Model

CONSTANTS = "_constants"
"""``_constants/MODEL/NAME``: what a model has beside its entries, frozen parameters and buffers that never travel."""


def export(path: Path, bank: Bank, world: World, serving: Mapping[str, Any]) -> None:
    """Writes every entry: ``KEY/NAME`` for its parameters and buffers, in the module's own names, shapes and types.

    Entries that cover only some segments hold the parameters of those segments. Constants are written once, under
    ``_constants/MODEL/NAME``; those of a further model that equal ``main``'s are not repeated. The metadata has, as
    JSON, ``models`` (the architecture of each key) and ``serving``: `shoal.serving.serving`, and ``entries`` with the
    architecture and the segments of each key. The same content gives the same bytes.
    """
    tensors: dict[str, Tensor] = {}
    about: dict[str, Any] = {}
    complete: dict[str, bool] = {}
    modules: dict[str, nn.Module] = {}
    for key, entry in bank.entries.items():
        if entry.model not in world.models:
            continue
        model = world.models[entry.model]
        if entry.model not in modules:
            modules[entry.model] = model.build()
        module = modules[entry.model]
        about[key] = {"model": entry.model, "segments": None if entry.segments is None else list(entry.segments)}
        tensors |= {f"{key}/{name}": value for name, value in _parameters(model, entry)}
        tensors |= {f"{key}/{name}": value for name, value in _buffers(model, module, entry.buffers)}
        missing = (model.buffers.floats and entry.buffers.floats is None) or (
            model.buffers.counters and entry.buffers.counters is None
        )
        complete[entry.model] = complete.get(entry.model, True) and not missing
    for name in sorted(complete, key=lambda name: (name != "main", name)):
        for leaf, value in _constants(world.models[name], complete[name]):
            known = tensors.get(f"{CONSTANTS}/main/{leaf}")
            if known is None or known.dtype != value.dtype or not torch.equal(known, value):
                tensors[f"{CONSTANTS}/{name}/{leaf}"] = value.contiguous().clone()
    metadata = {
        "models": json.dumps({key: found["model"] for key, found in about.items()}),
        "serving": json.dumps({**serving, "entries": about}, ensure_ascii=False),
    }
    write_atomically(path, _ordered(save(tensors, metadata)))


def _parameters(model: Model, entry: Entry) -> Iterator[tuple[str, Tensor]]:
    """The parameters that an entry covers, by name."""
    space = model.space
    whole = torch.zeros(space.size)
    for segment in space.segments if entry.segments is None else entry.segments:
        whole[space.segments[segment]] = space.part(entry, segment)
    for name in _covered(model, entry.segments):
        yield name, space.view(whole, name).contiguous().clone()


def _covered(model: Model, segments: Sequence[str] | None) -> list[str]:
    space = model.space
    spans = [space.segments[name] for name in (space.segments if segments is None else segments)]
    return [n for n, slot in space.slots.items() if any(s.start <= slot.offset < s.stop for s in spans)]


def _buffers(model: Model, module: nn.Module, buffers: Buffers) -> Iterator[tuple[str, Tensor]]:
    """The buffers that an entry brings, by name."""
    if buffers.empty:
        return
    model.buffers.write(module, buffers)
    values = dict(module.named_buffers())
    for names, vector in ((model.buffers.floats, buffers.floats), (model.buffers.counters, buffers.counters)):
        if vector is not None:
            yield from ((name, values[name].detach().contiguous().clone()) for name in names)


def _constants(model: Model, complete: bool) -> Iterator[tuple[str, Tensor]]:
    """Frozen parameters and buffers that are in no entry; buffers that an entry should have, if one has not."""
    module = model.build()
    travelling = {*model.buffers.floats, *model.buffers.counters}
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            yield name, parameter.detach()
    for name, buffer in module.named_buffers():
        if name not in travelling or not complete:
            yield name, buffer.detach()


def _ordered(content: bytes) -> bytes:
    """A safetensors file with its metadata in order; the library writes them in any, another one in each process."""
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + content[8 + size :]


def read_serving(path: Path) -> dict[str, Any]:
    """What `export` wrote beside the tensors. Raises `RunError` for a file without it."""
    try:
        with safe_open(str(path), framework="pt") as file:
            found = json.loads((file.metadata() or {})["serving"])
    except (OSError, KeyError, ValueError, RuntimeError) as error:
        raise RunError(
            f"{path}: not a model that this version of Shoal can use again ({type(error).__name__}: {error}); "
            f"finish or repeat the run with this version"
        ) from None
    assert isinstance(found, dict)
    return found


def read_bank(path: Path, entries: Mapping[str, Any], models: Mapping[str, Model]) -> Bank:
    """The entries of a file that `export` wrote, for these models: vectors and buffers, to the bit."""
    found: dict[str, Entry] = {}
    with safe_open(str(path), framework="pt") as file:
        present = set(file.keys())
        for key, about in entries.items():
            model = models[about["model"]]
            segments = None if about["segments"] is None else tuple(about["segments"])
            whole = torch.zeros(model.space.size)
            for name in _covered(model, segments):
                model.space.view(whole, name).copy_(file.get_tensor(f"{key}/{name}"))
            if segments is not None:
                pieces = [whole[model.space.segments[name]] for name in segments]
                whole = torch.cat(pieces) if pieces else whole[:0]

            def flat(names: Sequence[str], kind: torch.dtype, key: str = key) -> Tensor | None:
                if not names or any(f"{key}/{name}" not in present for name in names):
                    return None
                return torch.cat([file.get_tensor(f"{key}/{name}").reshape(-1).to(kind) for name in names])

            buffers = Buffers(flat(model.buffers.floats, torch.float32), flat(model.buffers.counters, torch.int64))
            found[key] = Entry(whole, about["model"], segments, buffers)
    return Bank(found)


def read_constants(path: Path, model: str) -> dict[str, Tensor]:
    """The constants of a model, by their names in the module; those of ``main`` where it has none of its own."""
    found: dict[str, Tensor] = {}
    with safe_open(str(path), framework="pt") as file:
        for name in ("main", model):
            prefix = f"{CONSTANTS}/{name}/"
            found |= {key.removeprefix(prefix): file.get_tensor(key) for key in file.keys() if key.startswith(prefix)}  # noqa: SIM118
    return found
