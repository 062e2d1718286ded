"""Who takes whom for similar: the matrix of the similarities that clients keep of each other, at a few rounds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..bank import Bank
from ..gossip.similarities import similarities_of
from .base import Line, Measure, Seen
from .contacts import cluster_of

MOST = 12
"""How many matrices a run has where the rounds are not listed."""
SIDE = 200
"""With more clients than this a row is the mean over several of one cluster."""
DIGITS = 4
_KEY = re.compile(r"client/(\d+)(/.*)?")

Pairs = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64]]
"""Rows, columns and values of the cells that are known."""


class Similarity(Measure):
    """Records ``similarity``: the similarities that the clients keep of each other, as they stand in the bank after the
    round. A row is a client's view, a column whom it looks at; nobody's view of itself is in it.

    ``values``: the matrix, null where a client knows nothing of the other; four significant digits. ``clusters``: the
    current cluster of each row, null where the stream's truth has none; rows are sorted by it. ``clients``: the number
    of each row's client; with more than 200 clients a row stands for several of one cluster, ``values`` are means
    over the known pairs, and ``clients`` has how many each row stands for, under ``sizes`` instead.

    After the rounds in ``evaluate.similarity_rounds``; by default `default_rounds`. No records of methods without
    similarities.
    """

    def observe(self, seen: Seen, memory: Mapping[str, Any]) -> tuple[list[Line], Mapping[str, Any]]:
        """At most one record; it remembers nothing."""
        wanted = self.context.evaluate.similarity_rounds
        if wanted is None:
            wanted = default_rounds(self.context.stream.boundaries, self.context.world.rounds)
        if seen.when.round not in wanted:
            return [], memory
        pairs = published(seen.after)
        if not len(pairs[0]):
            return [], memory
        clients = self.context.stream.clients
        rows, clusters = blocks([cluster_of(self.context, seen, client) for client in range(clients)])
        single = all(len(row) == 1 for row in rows)
        about = {"clients": [row[0] for row in rows]} if single else {"sizes": [len(row) for row in rows]}
        return [{"record": "similarity", **about, "clusters": clusters, "values": matrix(pairs, rows, clients)}], memory


def default_rounds(boundaries: Sequence[int], rounds: int) -> list[int]:
    """The last round of a step, the first and the fifth of the next one, and the last round of all; at most twelve.

    With more than three boundaries those of three: the first, the last, and the one in the middle.
    """
    inside = [b for b in boundaries if 1 <= b < rounds]
    room = (MOST - 1) // 3
    if len(inside) > room:
        inside = [inside[i * (len(inside) - 1) // (room - 1)] for i in range(room)]
    wanted = {b + h for b in inside for h in (0, 1, 5)} | {rounds}
    return sorted(round for round in wanted if 1 <= round <= rounds)


def published(bank: Bank) -> Pairs:
    """All similarities in the entries of clients (``client/17``, ``client/17/task/3``): whose, of whom, how much."""
    i, j, values = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0)]
    for key, entry in bank.entries.items():
        if found := _KEY.fullmatch(key):
            ids, known = similarities_of(entry)
            i.append(np.full(len(ids), int(found[1]), dtype=np.int64))
            j.append(ids)
            values.append(known)
    return np.concatenate(i), np.concatenate(j), np.concatenate(values)


def blocks(clusters: Sequence[int | str | None]) -> tuple[list[list[int]], list[int | str | None]]:
    """The rows of the matrix: which clients each stands for, and their cluster. Sorted by cluster, then by number.

    Up to 200 clients have a row each. Of more, the clients of a cluster share its rows, as evenly as their number
    allows; every cluster has at least one, so that there are more than 200 rows where there are more clusters.
    """
    members: dict[int | str | None, list[int]] = {}
    for client, cluster in enumerate(clusters):
        members.setdefault(cluster, []).append(client)
    rows, whose = [], []
    for cluster in sorted(members, key=lambda value: (value is None, isinstance(value, str), value)):
        own = members[cluster]
        count = len(own) if len(clusters) <= SIDE else max(1, SIDE * len(own) // len(clusters))
        rows += [part.tolist() for part in np.array_split(np.array(own), count)]
        whose += [cluster] * count
    return rows, whose


def matrix(pairs: Pairs, rows: Sequence[Sequence[int]], clients: int) -> list[list[float | None]]:
    """The mean of the known values in each cell, to four significant digits; ``None`` where none is known."""
    block = np.full(clients, -1, dtype=np.int64)
    for place, own in enumerate(rows):
        block[list(own)] = place
    i, j, values = pairs
    known = np.isfinite(values) & (i != j)
    cells = block[i[known]] * len(rows) + block[j[known]]
    sums = np.bincount(cells, weights=values[known], minlength=len(rows) ** 2)
    counts = np.bincount(cells, minlength=len(rows) ** 2)
    means = [
        float(f"{total / count:.{DIGITS}g}") if count else None
        for total, count in zip(sums.tolist(), counts.tolist(), strict=True)
    ]
    return [means[start : start + len(rows)] for start in range(0, len(means), len(rows))]
