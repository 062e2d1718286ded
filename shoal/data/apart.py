"""`assemble_apart`: the data set of several sources' rows, which stay where they are; each normalised by itself."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from .dataset import Column, Dataset
from .members import Members, in_words
from .normalisation import normalisation
from .source import Array, Decoded, digest, limited


def assemble_apart(
    rows: Decoded,
    name: str,
    sources: Sequence[Dataset],
    normalize: Sequence[str | None],
    which: Array,
    place: Array,
    *,
    split_seed: int = 0,
    limit: int | None = None,
    limit_test: int | None = None,
) -> Dataset:
    """The data set whose base row ``r`` is row ``place[r]`` of ``sources[which[r]]``; see `Members`.

    ``rows`` has everything but the pixels: labels, classes, columns, and the training rows first. ``normalize`` says
    for each source how its images are normalised, over those of its own training rows that the limit leaves (over all
    of them where it leaves none); ``None``: as the source has done it. What of a source's rows is repeated, the source
    has noted by itself.
    """
    n, count = len(rows.labels), int(rows.train_rows or 0)
    train = limited(np.arange(count), limit, split_seed, "limit")
    held = limited(np.arange(count, n), limit_test, split_seed, "limit_test")
    parts = []
    for number, (source, how) in enumerate(zip(sources, normalize, strict=True)):
        if how is None:
            parts.append(source)
            continue
        used = place[train[which[train] == number]]
        used = used if len(used) else source.train.numpy()
        scale, offset = normalisation(np.asarray(source.features.numpy()), used, how, source.peak)
        scale, offset = scale.astype(np.float32), offset.astype(np.float32)
        parts.append(replace(source, scale=torch.from_numpy(scale), offset=torch.from_numpy(offset)))
    members = Members(tuple(parts), torch.from_numpy(which.astype(np.int64)), torch.from_numpy(place.astype(np.int64)))
    shapes = [f"{part.name} {in_words(part.shape)}" for part in parts]
    own = f"every source keeps its own shape and is normalised by itself: {', '.join(shapes)}"
    known: list[Any] = [rows.classes, [(column, names) for column, (_, names) in rows.columns.items()]]
    known += [[part.fingerprint, part.shape, part.peak, part.scale.tolist(), part.offset.tolist()] for part in parts]
    known += [digest(array) for array in (*rows.arrays().values(), train, held, which, place)]
    return Dataset(
        name=name,
        features=torch.from_numpy(rows.features),
        labels=torch.from_numpy(rows.labels),
        classes=rows.classes,
        train=torch.from_numpy(train),
        test=torch.from_numpy(held),
        scale=torch.zeros(0),
        offset=torch.zeros(0),
        columns={column: Column(torch.from_numpy(codes), names) for column, (codes, names) in rows.columns.items()},
        fingerprint=hashlib.sha256(repr(known).encode()).hexdigest()[:32],
        notes=(*rows.notes, *([own] if len(set(members.shapes)) > 1 else [])),
        members=members,
    )
