"""Rows that come twice: test rows of a table that are training rows, too, and rows of another run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

Array = np.ndarray


def repeated(features: Array, labels: Array, values: Array | None, train: Array, test: Array) -> list[str]:
    """A note on the test rows that equal a training row in all features and in what is learned; empty for images.

    ``features`` is ``[n, features]`` (or images), ``labels`` ``[n]``, ``values`` ``[n, outputs]`` or ``None``;
    ``train`` and ``test`` are positions. A model that learned such a row by heart is right there, so the score of the
    test rows says less of new ones.
    """
    if features.ndim != 2 or not len(test):
        return []
    wanted = labels[:, None] if values is None else values
    tested = list(_digests(features, wanted, test))  # few: the training rows may be millions
    among = set(tested)
    known = {digest for digest in _digests(features, wanted, train) if digest in among}
    equal = sum(digest in known for digest in tested)
    return [f"{equal} of {len(test)} test rows are equal, label included, to a training row"] if equal else []


def _digests(features: Array, wanted: Array, rows: Array) -> Iterator[bytes]:
    for begin in range(0, len(rows), 1024):
        part = rows[begin : begin + 1024]
        # Plus 0: the bits of -0.0 are not those of 0.0.
        block = np.concatenate([features[part], wanted[part]], axis=1).astype(np.float64) + 0.0
        for row in block:
            yield hashlib.blake2b(row.tobytes(), digest_size=16).digest()


def marks(features: Array, rows: Array) -> Array:
    """A number for each row, by its raw values, their type and its shape alone: int64 ``[rows]``.

    Equal rows have equal marks, in every run and whatever the normalisation. That two different ones of a million have
    the same one has a chance of 3e-8. ``features`` is ``[n, ...]``, as decoded; ``rows`` are positions.
    """
    kind = f"{features.dtype.str}{features.shape[1:]}".encode()
    found = np.empty(len(rows), dtype=np.int64)
    for place, row in enumerate(rows):
        digest = hashlib.blake2b(np.ascontiguousarray(features[row]).data, digest_size=8, person=b"row mark", key=kind)
        found[place] = int.from_bytes(digest.digest(), "little", signed=True)
    return found
