"""Whom clients meet in peer-to-peer learning: how many of them are in the same cluster, and how many models move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ..gossip.graphs import Graph
from ..messages import Update
from .base import Context, Line, Measure, Seen
from .values import mean

DRAWN = ("similar", "random", "truth")
"""How a contact may have been drawn: the lists in the notes of assignments or updates that hold clients' numbers."""
CHANCE = "chance"
LABELS = ("cluster", "concept", "task")
"""What clients have in common, the first of these that the stream's truth has."""


class Contacts(Measure):
    """``contact_purity`` of a round: the share of contacts whose current cluster is the client's own.

    A line for each way in which contacts are ``drawn``: ``similar`` (by similarity), ``random`` and ``truth`` (by an
    oracle, from the true label), with the number of ``contacts`` behind it, and one for ``chance``: what a uniform draw
    among the other clients would give, ``(size of the client's cluster - 1) / (K - 1)``, as the mean over the clients
    that drew somebody (``clients``). K counts the clients that can be met: the participants of the round; all clients
    where somebody else was met, too. Where the method has a topology only the client's neighbours among them count.

    ``messages``: how many peers' models clients received in the round, all together, with the number of
    ``clients`` that took part. Their bytes are ``total_bytes_down``, see `shoal.metrics.costs`.

    Read from ``Assignment.note`` and ``Update.note``: lists of clients' numbers called ``similar``, ``random`` and
    ``truth``. No lines in rounds without them, and no purity where the stream's truth has no cluster, concept or task.
    The warm-up is left out.
    """

    lines: ClassVar[tuple[str, ...]] = ("contact_purity", "messages")

    def observe(self, seen: Seen, memory: Mapping[str, Any]) -> tuple[list[Line], Mapping[str, Any]]:
        """Up to five lines; it remembers nothing."""
        found: dict[str, list[tuple[int, int]]] = {}
        noted = False
        for given, outcome in zip(seen.assignments, seen.outcomes, strict=True):
            note = {**given.note, **(outcome.answer.note if isinstance(outcome.answer, Update) else {})}
            for drawn in DRAWN:
                if isinstance(note.get(drawn), list | tuple):
                    noted = True
                    peers = (int(peer) for peer in note[drawn])
                    found.setdefault(drawn, []).extend((given.client, peer) for peer in peers if peer != given.client)
        if not noted or seen.when.round < 1:
            return [], memory
        lines = self._purities(seen, found)
        received = sum(len(set(given.keys) - set(given.own)) for given in seen.assignments)
        clients = len({given.client for given in seen.assignments})
        return [*lines, {"metric": "messages", "value": received, "clients": clients}], memory

    def _purities(self, seen: Seen, found: Mapping[str, Sequence[tuple[int, int]]]) -> list[Line]:
        met = {peer for pairs in found.values() for _, peer in pairs}
        pool = set(seen.holdings)
        if not met <= pool:
            pool = set(range(self.context.stream.clients))
        clusters = {client: cluster_of(self.context, seen, client) for client in sorted(pool)}
        if any(cluster is None for cluster in clusters.values()):
            return []
        sizes = Counter(clusters.values())
        lines: list[Line] = []
        for drawn in DRAWN:
            if pairs := found.get(drawn):
                same = sum(clusters[client] == clusters[peer] for client, peer in pairs)
                lines.append(
                    {"metric": "contact_purity", "value": same / len(pairs), "drawn": drawn, "contacts": len(pairs)}
                )
        who = sorted({client for pairs in found.values() for client, _ in pairs})
        graph = self._graph(seen.when.round)
        if graph is None:
            chances = [(sizes[clusters[client]] - 1) / (len(pool) - 1) for client in who]
        else:
            there = np.array(sorted(pool), dtype=np.int64)
            near = [(client, graph.among(client, there).tolist()) for client in who]
            chances = [sum(clusters[p] == clusters[c] for p in peers) / len(peers) for c, peers in near if peers]
        if chances:
            lines.append({"metric": "contact_purity", "value": mean(chances), "drawn": CHANCE, "clients": len(chances)})
        return lines

    def _graph(self, round: int) -> Graph | None:
        """Who could be met in a round, of a method that has a topology; ``None``: everybody."""
        graph_of = getattr(self.context.method, "graph", None)
        graph = None if graph_of is None else graph_of(round)
        return graph if isinstance(graph, Graph) and graph.edges is not None else None

    @staticmethod
    def summarise(lines: Sequence[Line]) -> dict[str, Any]:
        """``contact_purity``: the share of all contacts of the run, by the way of drawing; and ``chance``, the
        mean over rounds and clients. ``messages_per_round``: mean per participating client and round. Nothing where no
        contact was noted."""
        purity = {}
        for drawn in (*DRAWN, CHANCE):
            own = [line for line in lines if line.get("metric") == "contact_purity" and line["drawn"] == drawn]
            if own:
                weights = [float(line["clients" if drawn == CHANCE else "contacts"]) for line in own]
                purity[drawn] = mean([line["value"] for line in own], weights)
        rounds = [line for line in lines if line.get("metric") == "messages"]
        clients = sum(line["clients"] for line in rounds)
        summary: dict[str, Any] = {"contact_purity": purity} if purity else {}
        if clients:
            summary["messages_per_round"] = sum(line["value"] for line in rounds) / clients
        return summary


def cluster_of(context: Context, seen: Seen, client: int) -> int | str | None:
    """What a client has in common with others in this round, see `LABELS`; ``None`` if the stream's truth has none."""
    held = seen.holdings.get(client)
    truth = (context.stream.holding(client, max(1, seen.when.round)) if held is None else held).truth
    return next((truth[label] for label in LABELS if label in truth), None)
