"""Topologies: which clients can contact each other at all. A method draws its contacts among a client's neighbours."""

from __future__ import annotations

import functools
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from .. import registry
from ..randomness import generator
from .graphs import Graph, edge_array

Redraw = Annotated[int, Field(ge=1)] | None
SWITCHES = 10
"""Attempts per edge with which a regular graph is shuffled."""


class Topology:
    """Who is whose neighbour. Undirected; a client may have no neighbour at all, and then trains alone.

    ``fixed``: the graph is the same in every round. Attributes never change after ``__init__``.
    """

    part: ClassVar[str] = "topology"
    fixed: bool = True

    def graph(self, clients: int, seed: int, round: int) -> Graph:
        """The graph of a round (from 1), a function of these three alone.

        Raises ``ValueError`` where there is none of so many clients; method and run are then refused before any
        training.
        """
        raise NotImplementedError


class Complete(Topology):
    """Everyone is everybody's neighbour."""

    def graph(self, clients: int, seed: int, round: int) -> Graph:
        """The complete graph."""
        return Graph(clients)


class Ring(Topology):
    """Clients in a circle by number, each with its ``reach`` neighbours on either side."""

    def __init__(self, *, reach: Annotated[int, Field(ge=1)] = 1) -> None:
        self.reach = reach

    def graph(self, clients: int, seed: int, round: int) -> Graph:
        """The ring; with few clients everyone may be everybody's neighbour."""
        return Graph(clients, circulant(clients, range(1, min(self.reach, clients) + 1)))


class Torus(Topology):
    """A grid whose borders are joined: neighbours above, below, left and right. Client c is in row ``c // columns``.

    ``rows`` must divide the number of clients; default: the divisor that makes the grid most nearly a square.
    """

    def __init__(self, *, rows: Annotated[int, Field(ge=1)] | None = None) -> None:
        self.rows = rows

    def graph(self, clients: int, seed: int, round: int) -> Graph:
        """The torus; of a prime number of clients without ``rows`` it is a ring."""
        rows = self.rows or max(r for r in range(1, int(clients**0.5) + 1) if clients % r == 0)
        if clients % rows:
            fit = [r for r in range(1, clients + 1) if clients % r == 0]
            near = [*[r for r in fit if r < rows][-1:], *[r for r in fit if r > rows][:1]]
            raise ValueError(
                f"a torus of {rows} rows needs a multiple of {rows} clients; got {clients}, which have rows: "
                f"{' or '.join(map(str, near))}, or rows: null, the most nearly square"
            )
        grid = np.arange(clients).reshape(rows, clients // rows)
        pairs = [np.stack([grid, np.roll(grid, -1, axis)], -1).reshape(-1, 2) for axis in (0, 1)]
        return Graph(clients, np.concatenate(pairs))


class _Drawn(Topology):
    """A random graph: one for the whole run, or a new one every ``redraw`` rounds."""

    def __init__(self, redraw: int | None) -> None:
        self.redraw = redraw
        self.fixed = redraw is None

    def _random(self, seed: int, round: int) -> np.random.Generator:
        era = 0 if self.redraw is None else (round - 1) // self.redraw
        return generator(seed, "topology", type(self).__name__, era)


class RandomRegular(_Drawn):
    """A random graph in which every client has exactly ``degree`` neighbours.

    From a circulant graph with shuffled names by random switches of two edges, `SWITCHES` attempts for each edge: time
    is bounded, and every step is a simple regular graph (nearly uniform among all; not always connected). ``redraw``: a
    new graph every so many rounds. ``degree`` must be below the number of clients, and one of the two numbers even.
    """

    def __init__(self, *, degree: Annotated[int, Field(ge=0)] = 4, redraw: Redraw = None) -> None:
        super().__init__(redraw)
        self.degree = degree

    def graph(self, clients: int, seed: int, round: int) -> Graph:
        """The graph of the round's era."""
        d = self.degree
        if d >= clients or d * clients % 2:
            raise ValueError(
                f"random-regular: degree must be below the number of clients, and degree times clients even; got "
                f"degree {d} for {clients} clients"
            )
        rng = self._random(seed, round)
        steps = [*range(1, d // 2 + 1), *([clients // 2] if d % 2 else [])]
        names = rng.permutation(clients)
        return Graph(clients, _switched(names[circulant(clients, steps)], clients, rng))


class ErdosRenyi(_Drawn):
    """Every pair of clients are neighbours with ``probability``, independently; anew every ``redraw`` rounds."""

    def __init__(self, *, probability: Annotated[float, Field(ge=0, le=1)], redraw: Redraw = None) -> None:
        super().__init__(redraw)
        self.probability = probability

    def graph(self, clients: int, seed: int, round: int) -> Graph:
        """The graph of the round's era."""
        rng = self._random(seed, round)
        later = np.arange(clients - 1, -1, -1)
        counts = rng.binomial(later, self.probability)
        rows = [
            np.stack([np.full(k, i), i + 1 + rng.choice(n, k, replace=False, shuffle=False)], -1)
            for i, (n, k) in enumerate(zip(later.tolist(), counts.tolist(), strict=True))
            if k
        ]
        return Graph(clients, np.concatenate(rows) if rows else edge_array([]))


class Listed(Topology):
    """A graph that is written down: ``edges``, pairs of clients by number, or ``adjacency``, a matrix of 0 and 1.

    Raises ``ValueError`` unless exactly one is given, for a matrix that is not square, symmetric and zero on its
    diagonal, and for an edge of a client to itself.
    """

    def __init__(self, *, edges: list[tuple[int, int]] | None = None, adjacency: list[list[int]] | None = None) -> None:
        if (edges is None) == (adjacency is None):
            raise ValueError("topology listed needs either edges or adjacency; give one of them")
        self.size: int | None = None
        if adjacency is not None:
            self.size = len(adjacency)
            edges = _edges_of(adjacency)
        self.edges = [(int(a), int(b)) for a, b in edges or ()]
        loops = [pair for pair in self.edges if pair[0] == pair[1]]
        if loops:
            raise ValueError(f"topology listed: an edge joins two different clients; got {list(loops[0])}")

    def graph(self, clients: int, seed: int, round: int) -> Graph:
        """The listed graph; clients that no edge names have no neighbour."""
        if self.size is not None and self.size != clients:
            raise ValueError(f"topology listed: adjacency has {self.size} rows for {clients} clients")
        return Graph(clients, edge_array(self.edges))


class Sequence(Topology):
    """Several topologies one after another, each for so many ``rounds``, and from the start again.

    ``graphs`` is a list of topologies, ``rounds`` a list of as many numbers, or one number for all of them.
    """

    fixed = False

    def __init__(
        self,
        *,
        graphs: Annotated[list[dict[str, Any] | str], Field(min_length=1)],
        rounds: Annotated[int, Field(ge=1)] | list[Annotated[int, Field(ge=1)]] = 1,
    ) -> None:
        self.graphs: list[Topology] = [
            registry.build("topology", registry.resolve("topology", each, where), where=where)
            for where, each in ((f"topology.graphs[{i}]", each) for i, each in enumerate(graphs))
        ]
        self.rounds = [rounds] * len(graphs) if isinstance(rounds, int) else list(rounds)
        if len(self.rounds) != len(self.graphs):
            raise ValueError(
                f"topology sequence: rounds has one number for each of graphs, or is one number; got "
                f"{len(self.rounds)} for {len(self.graphs)} graphs"
            )

    def graph(self, clients: int, seed: int, round: int) -> Graph:
        """The graph that is on in this round. Those with an era of their own count the rounds of the run."""
        at = (round - 1) % sum(self.rounds)
        which = int(np.searchsorted(np.cumsum(self.rounds), at, side="right"))
        # Two random graphs of the list are two graphs.
        own = int(generator(seed, "topology", "sequence", which).integers(2**62))
        return self.graphs[which].graph(clients, own, round)


class Rounds:
    """The graph of every round of a run; a fixed one is made once. Raises ``ValueError`` where a round has none."""

    def __init__(self, topology: Topology, clients: int, seed: int) -> None:
        self.topology = topology
        self.clients = clients
        self.seed = seed
        try:
            self._fixed = topology.graph(clients, seed, 1) if topology.fixed else None
            for each in getattr(topology, "graphs", ()):  # all of a sequence, before any training
                each.graph(clients, seed, 1)
        except ValueError as error:
            raise ValueError(f"topology: {error}") from error

    def at(self, round: int) -> Graph:
        """The graph of a round (from 1)."""
        return self._fixed or _of_round(self, round)


@functools.lru_cache(maxsize=4)
def _of_round(rounds: Rounds, round: int) -> Graph:
    """A pure function, which every client of a round may ask for: keeping some graphs changes nothing but the time."""
    return rounds.topology.graph(rounds.clients, rounds.seed, round)


def circulant(clients: int, steps: Any) -> np.ndarray:
    """The edges from every client to those so many places further on."""
    here = np.arange(clients)
    pairs = [np.stack([here, (here + step) % max(1, clients)], -1) for step in steps]
    edges = np.concatenate(pairs) if pairs else edge_array([])
    return np.unique(np.sort(edges, axis=1), axis=0)


def _switched(edges: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
    """The edges after random switches, ``ab, cd -> ad, cb``, that leave the graph simple."""
    pairs: list[tuple[int, int]] = [(a, b) for a, b in edges.tolist()]

    def name(a: int, b: int) -> int:
        return a * clients + b if a < b else b * clients + a

    there = {name(a, b) for a, b in pairs}
    attempts = SWITCHES * len(pairs)
    chosen = rng.integers(0, max(1, len(pairs)), size=(attempts, 2)).tolist()
    turned = rng.integers(0, 2, size=attempts).tolist()
    for (i, j), turn in zip(chosen, turned, strict=True):
        (a, b), (c, d) = pairs[i], pairs[j]
        if turn:
            c, d = d, c
        # One end in common would give a loop or the old edges back.
        if a == d or c == b:
            continue
        one, other = name(a, d), name(c, b)
        if one in there or other in there or one == other:
            continue
        there.remove(name(a, b))
        there.remove(name(c, d))
        there.add(one)
        there.add(other)
        pairs[i], pairs[j] = (a, d), (c, b)
    return edge_array(pairs)


def _edges_of(adjacency: list[list[int]]) -> list[tuple[int, int]]:
    size = len(adjacency)
    odd = [i for i, row in enumerate(adjacency) if len(row) != size or not set(row) <= {0, 1}]
    if odd:
        raise ValueError(f"topology listed: adjacency is a square matrix of 0 and 1; look at row {odd[0]}")
    matrix = np.array(adjacency, dtype=np.int64).reshape(size, size)
    wrong = np.argwhere(matrix != matrix.T)
    if len(wrong):
        i, j = wrong[0].tolist()
        raise ValueError(f"topology listed: adjacency must be symmetric; [{i}][{j}] and [{j}][{i}] differ")
    return [(int(i), int(j)) for i, j in np.argwhere(matrix) if i <= j]
