"""Checkpoints: a `State` in one file, written atomically, the one before it kept.

A file is safetensors: the tensors, and in its header the rest of the state as JSON with a digest of both. Nothing
is ever unpickled. Above `SPLIT_BYTES` of tensors, each entry and each client's private state is a file of its own
that is written only when it changed, and the checkpoint is the manifest that names them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from .bank import Bank, Buffers, Entry, State
from .errors import RunError
from .files import write_atomically

SPLIT_BYTES = 100 * 2**20
FORMAT = "shoal-state-1"
_NAME = re.compile(r"^round-(-?\d+)\.safetensors$")


# ---- one file -------------------------------------------------------------------------------------------------


def pack(value: Any, tensors: dict[str, Tensor], path: str = "", known: dict[Any, str] | None = None) -> Any:
    """A JSON value in which each tensor stands as ``{"tensor": name}``; the tensors go into ``tensors``.

    One tensor in several places (an anchor that many clients keep) is stored once; ``known`` remembers them.
    """
    known = {} if known is None else known
    if isinstance(value, Tensor):
        place = (value.device, value.data_ptr(), value.dtype, tuple(value.shape), value.stride())
        if place not in known:
            name = f"{len(tensors)}{path}"  # numbered: two paths may read alike, since keys may contain slashes
            stored = value.detach().cpu().contiguous()
            # safetensors refuses tensors that share memory, such as two views of one tensor.
            memory = stored.untyped_storage().data_ptr()
            tensors[name] = stored.clone() if memory in known else stored
            known[memory] = known[place] = name
        return {"tensor": known[place]}
    if isinstance(value, Mapping):
        if "tensor" in value or not all(isinstance(k, str) for k in value):
            raise TypeError(f"{path}: keys of a state are strings other than 'tensor'; got {list(value)[:5]}")
        return {k: pack(v, tensors, f"{path}/{k}", known) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [pack(v, tensors, f"{path}/{i}", known) for i, v in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"{path}: a state may hold tensors, numbers, strings, lists and mappings; got {type(value).__name__}"
    )


def unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The value that `pack` packed."""
    if isinstance(value, dict):
        if set(value) == {"tensor"}:
            return tensors[value["tensor"]]
        return {k: unpack(v, tensors) for k, v in value.items()}
    if isinstance(value, list):
        return [unpack(v, tensors) for v in value]
    return value


def _digest(tree: str, tensors: Mapping[str, Tensor]) -> str:
    h = hashlib.blake2b(tree.encode(), digest_size=16)
    for name in sorted(tensors):
        t = tensors[name]
        h.update(f"{name}{t.dtype}{tuple(t.shape)}".encode())
        if t.numel():
            h.update(t.reshape(-1).view(torch.uint8).numpy().tobytes())
    return h.hexdigest()


def write_file(path: Path, value: Any) -> None:
    """Writes a value atomically: a temporary file, fsync, rename, fsync of the folder."""
    tensors: dict[str, Tensor] = {}
    tree = json.dumps(pack(value, tensors))
    header = {"format": FORMAT, "tree": tree, "digest": _digest(tree, tensors)}
    write_atomically(path, save(tensors, header))


def read_file(path: Path) -> Any:
    """The value in a file; raises ``ValueError`` if it is damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(f"{path.name} is damaged: {error}") from None
    if header.get("format") != FORMAT or "tree" not in header:
        raise ValueError(f"{path.name} is not a checkpoint of this version of Shoal")
    if header.get("digest") != _digest(header["tree"], tensors):
        raise ValueError(f"{path.name} is damaged: its digest does not match its content")
    return unpack(json.loads(header["tree"]), tensors)


# ---- a state --------------------------------------------------------------------------------------------------


def entry_value(entry: Entry) -> dict[str, Any]:
    """An entry as a value for `write_file`."""
    return {
        "vector": entry.vector,
        "model": entry.model,
        "segments": None if entry.segments is None else list(entry.segments),
        "floats": entry.buffers.floats,
        "counters": entry.buffers.counters,
        "extra": dict(entry.extra),
        "server": dict(entry.server),
        "weight": entry.weight,
        "version": entry.version,
    }


def entry_of(value: Mapping[str, Any]) -> Entry:
    """The entry that `entry_value` wrote."""
    segments = value["segments"]
    return Entry(
        value["vector"],
        value["model"],
        None if segments is None else tuple(segments),
        Buffers(value["floats"], value["counters"]),
        value["extra"],
        value["server"],
        value["weight"],
        value["version"],
    )


def tensors_of(state: State) -> list[Tensor]:
    """All tensors of a state; one that stands in several places comes once, as it is stored."""
    tensors: dict[str, Tensor] = {}
    known: dict[Any, str] = {}
    for entry in state.bank.entries.values():
        pack(entry_value(entry), tensors, "", known)
    for values in (state.bank.memory, *state.clients.values()):
        pack(dict(values), tensors, "", known)
    return list(tensors.values())


class Checkpoints:
    """The checkpoints in one folder; the last two are kept. Remembers which parts are on disk already."""

    def __init__(self, folder: Path, split_bytes: int = SPLIT_BYTES) -> None:
        self.folder = folder
        self.split_bytes = split_bytes
        self._written: dict[str, tuple[object, str]] = {}
        self._damaged: list[int] = []

    def rounds(self) -> list[int]:
        """The rounds that have a checkpoint, newest first."""
        if not self.folder.is_dir():
            return []
        found = (_NAME.match(path.name) for path in self.folder.iterdir())
        return sorted((int(m.group(1)) for m in found if m), reverse=True)

    def path(self, round: int) -> Path:
        """The file of a round's checkpoint."""
        return self.folder / f"round-{round:08d}.safetensors"

    def save(self, state: State) -> None:
        """Writes a checkpoint, and removes all but this one and the one before it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        split = sum(t.numel() * t.element_size() for t in tensors_of(state)) > self.split_bytes
        names = {*(f"entry/{key}" for key in state.bank.entries), *(f"client/{c}" for c in state.clients)}
        # Parts that this checkpoint does not name may be gone when a later one would.
        self._written = {name: part for name, part in self._written.items() if split and name in names}
        entries = {
            key: self._part(f"entry/{key}", entry, entry_value(entry), state.round) if split else entry_value(entry)
            for key, entry in state.bank.entries.items()
        }
        clients = {
            str(c): self._part(f"client/{c}", values, dict(values), state.round) if split else dict(values)
            for c, values in state.clients.items()
        }
        write_file(
            self.path(state.round),
            {
                "round": state.round,
                "split": split,
                "clock": state.bank.clock,
                "order": list(state.bank.entries),
                "entries": entries,
                "memory": dict(state.bank.memory),
                "clients": clients,
                "measured": dict(state.measured),
                "metrics_bytes": state.metrics_bytes,
            },
        )
        self._damaged = [round for round in self._damaged if round != state.round]
        self._prune()

    def _part(self, name: str, identity: object, value: Any, round: int) -> str:
        """The file of one part, written only if the part is not the object that was written last."""
        known = self._written.get(name)
        if known is not None and known[0] is identity:
            return known[1]
        code = hashlib.blake2b(name.encode(), digest_size=12).hexdigest()
        file = f"{code}@{round}.safetensors"
        parts = self.folder / "parts"
        parts.mkdir(exist_ok=True)
        write_file(parts / file, value)
        self._written[name] = (identity, file)
        return file

    def _prune(self) -> None:
        for damaged in self._damaged:  # first, because a damaged checkpoint is not one of the two that are kept
            self.path(damaged).unlink(missing_ok=True)
        self._damaged = []
        for old in self.rounds()[2:]:
            self.path(old).unlink(missing_ok=True)
        for path in self.folder.glob(".round-*.tmp"):  # of a process that was killed
            path.unlink(missing_ok=True)
        parts = self.folder / "parts"
        if parts.is_dir():
            used: set[str] = set()
            for round in self.rounds():
                with contextlib.suppress(ValueError):
                    value = read_file(self.path(round))
                    if value["split"]:
                        used |= {*value["entries"].values(), *value["clients"].values()}
            for path in parts.iterdir():
                if path.name not in used:
                    path.unlink(missing_ok=True)

    def load(self, metrics_bytes: int | None = None) -> tuple[State | None, list[str]]:
        """The newest state that is whole, and what was wrong with the ones after it. ``None`` without any.

        With ``metrics_bytes`` a state that counts on more lines than there are is passed over, if the one before it
        does not. Raises `RunError` where there are checkpoints and none can be read.
        """
        complaints: list[str] = []
        long: State | None = None
        for round in self.rounds():
            try:
                state = self._read(round)
            except (ValueError, KeyError) as error:
                complaints.append(f"checkpoint of round {round}: {error}")
                self._damaged.append(round)
                continue
            if metrics_bytes is None or state.metrics_bytes <= metrics_bytes:
                if long is not None:
                    complaints.append(f"checkpoint of round {long.round}: counts on lines that metrics.jsonl has lost")
                return state, complaints
            long = long or state
        if long is not None:
            return long, complaints
        if complaints:
            raise RunError(
                "no checkpoint can be read: " + "; ".join(complaints) + ". Start again with: shoal run ... --force"
            )
        return None, complaints

    def _read(self, round: int) -> State:
        value = read_file(self.path(round))
        entries: dict[str, Entry] = {}
        clients: dict[int, dict[str, Any]] = {}
        for key in value["order"]:
            stored = value["entries"][key]
            if value["split"]:
                entries[key] = entry_of(read_file(self.folder / "parts" / stored))
                self._written[f"entry/{key}"] = (entries[key], stored)
            else:
                entries[key] = entry_of(stored)
        for name, stored in value["clients"].items():
            if value["split"]:
                clients[int(name)] = read_file(self.folder / "parts" / stored)
                self._written[f"client/{name}"] = (clients[int(name)], stored)
            else:
                clients[int(name)] = stored
        bank = Bank(entries, value["memory"], value["clock"])
        return State(value["round"], bank, clients, value["measured"], value["metrics_bytes"])
