"""`Graph`: who is whose neighbour, in one round."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Graph:
    """An undirected graph of clients. Without ``edges`` every client is everybody's neighbour.

    ``edges`` is an int array ``[E, 2]``; doubles, both directions of one edge and loops are the same as one edge, or
    none. Raises ``ValueError`` for an edge to a client that does not exist.
    """

    clients: int
    edges: np.ndarray | None = None
    _starts: npt.NDArray[np.int64] = field(init=False, repr=False, compare=False)
    _ends: npt.NDArray[np.int64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        given = np.zeros((0, 2), np.int64) if self.edges is None else np.asarray(self.edges, np.int64).reshape(-1, 2)
        if len(given) and (given.min() < 0 or given.max() >= self.clients):
            wrong = given[((given < 0) | (given >= self.clients)).any(1)][0].tolist()
            raise ValueError(f"an edge joins two of the clients 0 to {self.clients - 1}; got {wrong}")
        given = given[given[:, 0] != given[:, 1]]
        both = np.unique(np.concatenate([given, given[:, ::-1]]) @ np.array([self.clients, 1]))
        starts = np.searchsorted(both, np.arange(self.clients + 1) * self.clients)
        object.__setattr__(self, "_starts", starts)
        object.__setattr__(self, "_ends", both % max(1, self.clients))

    def neighbours(self, client: int) -> np.ndarray:
        """Its neighbours, sorted (int64); the client itself is never among them."""
        if self.edges is None:
            return np.delete(np.arange(self.clients), client)
        near: np.ndarray = self._ends[self._starts[client] : self._starts[client + 1]]
        return near

    def among(self, client: int, present: np.ndarray) -> np.ndarray:
        """Its neighbours that are in ``present`` (sorted client ids)."""
        if self.edges is None:
            others: np.ndarray = present[present != client]
            return others
        near = self.neighbours(client)
        if len(present) == self.clients:
            return near
        there: np.ndarray = near[belong(near, present)]
        return there

    def degree(self, client: int) -> int:
        """How many neighbours it has."""
        return self.clients - 1 if self.edges is None else int(self._starts[client + 1] - self._starts[client])


def belong(ids: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Which of these ids are among the others, a sorted array; bool, one for each id."""
    if not len(others):
        return np.zeros(len(ids), bool)
    place = np.minimum(np.searchsorted(others, ids), len(others) - 1)
    return np.asarray(others[place] == ids)


def edge_array(pairs: Iterable[tuple[int, int]]) -> np.ndarray:
    """Pairs of clients as the edges of a `Graph`."""
    return np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
