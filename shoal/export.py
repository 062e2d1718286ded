"""``model.safetensors``: the final models by key and parameter name, readable without Shoal."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from .bank import Bank
from .files import write_atomically
from .messages import World


def export(path: Path, bank: Bank, world: World) -> None:
    """Writes every entry: ``KEY/PARAMETER`` in the module's own names and shapes, and its float buffers flat.

    Entries that cover only some segments hold the parameters of those segments.
    """
    tensors: dict[str, Tensor] = {}
    models: dict[str, str] = {}
    for key, entry in bank.entries.items():
        if entry.model not in world.models:
            continue
        space = world.models[entry.model].space
        models[key] = entry.model
        for segment in space.segments if entry.segments is None else entry.segments:
            where = space.segments[segment]
            values = space.part(entry, segment)
            for name, slot in space.slots.items():
                if where.start <= slot.offset < where.stop:
                    piece = values[slot.offset - where.start : slot.offset - where.start + slot.size]
                    if len(slot.shape) == 4:
                        o, i, h, w = slot.shape
                        piece = piece.view(o, h, w, i).permute(0, 3, 1, 2)
                    tensors[f"{key}/{name}"] = piece.reshape(slot.shape).contiguous().clone()
        if entry.buffers.floats is not None:
            tensors[f"{key}/buffers"] = entry.buffers.floats.clone()
    write_atomically(path, save(tensors, {"models": json.dumps(models)}))
