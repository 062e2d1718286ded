"""Who is in which cluster at which time step: dealt patterns, FedDrift's, and listed ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from ..errors import ConfigError
from ..randomness import generator
from .cells import Array, even

Name = Literal["random", "rotate", "keep", "A", "B", "C", "D", "E", "F", "W", "X", "Y", "Z", "R"]
Pattern = Name | list[list[int]]

_A = (
    "00000111111 01111000000 00011100000 00011110000 00000001111 "
    "00011100000 00000111111 00111000000 00001111000 00000001111"
)
_B = (
    "01122233000 01122330000 01112223300 00221113333 00222211333 "
    "00222333111 00022333311 00011122233 00003311222 00000003322"
)
_C = (
    "01122233000 01122330000 01112223300 02211133333 02222113333 "
    "02223331111 00022333311 00011122233 00333311222 00000003322"
)
_D = (
    "11222330000 11223300000 11122233000 22111333333 22221133333 "
    "22233311111 00223333111 00000222333 33300002222 33222211111"
)
_F = (
    "00112223300 00112233000 00111222333 00221113333 00222211333 "
    "00222333111 00002233322 00001112222 00033331122 00000033333"
)
_STEPS, _GROUP = 11, 10
_ONE_WAY = (6, 3, 4, 4, 8, 4, 6, 3, 5, 8)


def _one_way(at: Sequence[int], cluster: int = 1) -> str:
    """Each client leaves cluster 0 for good at its step; 11 is never."""
    return " ".join("0" * step + str(cluster) * (_STEPS - step) for step in at)


FEDDRIFT: dict[str, str] = {
    "A": _A,
    "B": _B,
    "C": _C,
    "D": _D,
    "E": _C.translate(str.maketrans("23", "32")),
    "F": _F,
    "W": _one_way([11, 2, 11, 11, 11, 11, 11, 2, 11, 11]),
    "X": _one_way([11, 1, 11, 11, 11, 11, 11, 11, 11, 11]),
    "Y": _one_way(_ONE_WAY),
    "Z": _one_way(_ONE_WAY, 2),
}
"""One word per client, one digit per time step: 10 clients and 11 steps each.

Source: Jothimurugesan et al., "Federated Learning under Distributed Concept Drift", AISTATS 2023, and the lists of
change points in its code.
"""


def shared_out(weights: Sequence[float] | None, clients: int, clusters: int) -> Array:
    """How many clients each cluster has: in proportion to the weights, by largest remainder, the first of equal ones.

    Equal without weights. Raises `ConfigError` where a cluster would have none.
    """
    if clusters > clients:
        raise ConfigError(
            f"stream.clusters: {clusters} clusters, but only {clients} clients: each cluster needs one at least; raise "
            f"stream.clients, or list a pattern"
        )
    if weights is None:
        return even(clients, clusters)
    given = np.asarray(weights, dtype=np.float64)
    if len(given) != clusters or not np.isfinite(given).all() or (given <= 0).any():
        raise ConfigError(
            f"stream.weights: needs one positive number for each of {clusters} clusters; got {list(weights)}"
        )
    exact = given / given.max()
    exact *= clients / exact.sum()
    # Shares of 70/20/5/5 are not exact in binary; equal remainders must stay equal.
    rest = (exact - np.floor(exact + 1e-9)).round(9)
    sizes: Array = np.floor(exact + 1e-9).astype(np.int64)
    sizes[np.argsort(-rest, kind="stable")[: clients - int(sizes.sum())]] += 1
    if not sizes.all():
        raise ConfigError(
            f"stream.weights: of {clients} clients cluster {int(np.argmin(sizes))} would have none with the weights "
            f"{list(weights)}; raise stream.clients, or its weight"
        )
    return sizes


def _listed(rows: Sequence[Sequence[int]], steps: int, clients: int, clusters: int) -> Array:
    if len(rows) != steps or any(len(row) != clients for row in rows):
        shape = f"{len(rows)} lists of {sorted({len(row) for row in rows})} numbers"
        raise ConfigError(
            f"stream.pattern: a listed pattern has one list per time step, with one cluster per client: {steps} lists "
            f"of {clients} numbers; got {shape}"
        )
    found = np.asarray(rows, dtype=np.int64)
    wrong = found[(found < 0) | (found >= clusters)]
    if len(wrong):
        raise ConfigError(f"stream.pattern: there are clusters 0 to {clusters - 1}; got {int(wrong[0])}")
    return found


def _feddrift(name: str, steps: int, clients: int, clusters: int) -> Array:
    if clients % _GROUP:
        raise ConfigError(
            f"stream.pattern: {name} is made for {_GROUP} clients and repeated for multiples of them; got {clients}"
        )
    if steps > _STEPS:
        raise ConfigError(f"stream.pattern: {name} has {_STEPS} time steps; got stream.steps: {steps}")
    table = np.array([[int(digit) for digit in word] for word in FEDDRIFT[name].split()])
    needed = int(table.max()) + 1
    if clusters < needed:
        raise ConfigError(f"stream.pattern: {name} needs {needed} clusters; got {clusters}")
    return np.tile(table.T[:steps], (1, clients // _GROUP))


def deal_clusters(
    pattern: Pattern, steps: int, clients: int, clusters: int, weights: Sequence[float] | None, seed: int
) -> Array:
    """The cluster of each client at each time step, int64 ``[steps, clients]``.

    Dealt patterns begin with the first clients in cluster 0, the next ones in cluster 1, and so on:

    - ``random``: at every boundary the list of the clients' clusters is permuted, so that the sizes stay;
    - ``rotate``: at every boundary every client goes on to the next cluster, from the last one to the first;
    - ``keep``: nobody ever changes.

    ``A`` to ``F`` and ``W`` to ``Z`` are `FEDDRIFT`'s, repeated for every ten clients. ``R``: at every second step
    every client draws one of all clusters anew. A listed pattern is taken as it is. Raises `ConfigError`.
    """
    dealt = pattern in ("random", "rotate", "keep")
    if weights is not None and not dealt:
        raise ConfigError(
            "stream.weights: sizes of clusters are for the patterns random, rotate and keep; this pattern says itself "
            "who is where, leave weights out"
        )
    if not isinstance(pattern, str):
        return _listed(pattern, steps, clients, clusters)
    if pattern == "R":
        draws = [generator(seed, "stream", "pattern", s).integers(clusters, size=clients) for s in range(0, steps, 2)]
        return np.repeat(np.stack(draws), 2, axis=0)[:steps].astype(np.int64)
    if not dealt:
        return _feddrift(pattern, steps, clients, clusters)
    first = np.repeat(np.arange(clusters), shared_out(weights, clients, clusters))
    if pattern == "random":
        later = [generator(seed, "stream", "pattern", s).permutation(first) for s in range(1, steps)]
        return np.stack([first, *later])
    moved = np.arange(steps)[:, None] if pattern == "rotate" else np.zeros((steps, 1), dtype=np.int64)
    return np.asarray((first + moved) % clusters)
