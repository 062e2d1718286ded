"""Purity and chance, counted by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from measure_fakes import EMPTY, FakeStream, context, entry, seen

from shoal.gossip.graphs import Graph
from shoal.messages import Assignment, Failure, Outcome, Update
from shoal.metrics.contacts import Contacts
from shoal.streams.base import Holding


class Clusters(FakeStream):
    def __init__(self, clusters: list[Any], label: str = "cluster") -> None:
        super().__init__([])
        self.clusters, self.label, self.clients = clusters, label, len(clusters)

    def holding(self, client: int, round: int) -> Holding:
        return Holding(EMPTY, EMPTY, EMPTY, truth={self.label: self.clusters[client]})


def given(client: int, random: list[int] | None = None, similar: list[int] | None = None) -> Assignment:
    note = {name: peers for name, peers in (("random", random), ("similar", similar)) if peers is not None}
    peers = dict.fromkeys(f"client/{j}" for j in [*(random or []), *(similar or [])])
    own = (f"client/{client}",)
    return Assignment(client, tuple(peers), own, note=note, entries={key: entry(0.0) for key in (*peers, *own)})


def observe(
    stream: Clusters, *assignments: Assignment, round: int = 1, present: list[int] | None = None, method: Any = None
) -> Any:
    who = range(stream.clients) if present is None else present
    truths = {c: stream.holding(c, round).truth for c in who}
    outcomes = [Outcome(one.client, Update({}, 1.0)) for one in assignments]
    return Contacts(context(stream, method)).observe(
        seen(round, assignments=assignments, outcomes=outcomes, truths=truths), {}
    )[0]


def purity(lines: list[dict[str, Any]]) -> dict[str, tuple[float, int]]:
    found = [line for line in lines if line["metric"] == "contact_purity"]
    return {line["drawn"]: (line["value"], line.get("contacts", line.get("clients"))) for line in found}


# Six clients: four of cluster 0, two of cluster 1.
SIX = Clusters([0, 0, 0, 0, 1, 1])


def test_purity_by_way_of_drawing_and_chance() -> None:
    lines = observe(SIX, given(0, random=[1, 4], similar=[1, 2, 3]), given(5, random=[0, 1], similar=[4, 3]))
    found = purity(lines)
    assert found["similar"] == (4 / 5, 5)
    assert found["random"] == (1 / 4, 4)
    # Client 0: 3 of 5 others are like it; client 5: 1 of 5.
    assert found["chance"] == (pytest.approx((3 / 5 + 1 / 5) / 2), 2)


def test_an_oracles_contacts_have_a_line_of_their_own() -> None:
    told = Assignment(0, ("client/1", "client/4"), ("client/0",), note={"random": [], "similar": [], "truth": [1, 4]})
    told = replace(told, entries={key: entry(0.0) for key in ("client/0", "client/1", "client/4")})
    lines = observe(SIX, told)
    assert purity(lines) == {"truth": (1 / 2, 2), "chance": (3 / 5, 1)}
    assert Contacts.summarise(lines)["contact_purity"] == {"truth": 1 / 2, "chance": 3 / 5}


def test_messages_count_each_peer_of_a_client_once() -> None:
    lines = observe(SIX, given(0, random=[1, 4], similar=[1, 2]), given(5, random=[], similar=[]))
    (line,) = [line for line in lines if line["metric"] == "messages"]
    assert line == {"metric": "messages", "value": 3, "clients": 2}


def test_clients_that_never_draw_have_no_chance_and_no_purity() -> None:
    lines = observe(SIX, given(0, random=[], similar=[]), given(1, random=[], similar=[]))
    assert lines == [{"metric": "messages", "value": 0, "clients": 2}]


def test_only_those_that_can_be_met_count() -> None:
    # Clients 0, 1, 4 take part: of the two others one is like client 0.
    assert purity(observe(SIX, given(0, random=[1]), present=[0, 1, 4]))["chance"][0] == 1 / 2
    # Client 5 is met although it takes no part: everybody can be.
    assert purity(observe(SIX, given(0, random=[5]), present=[0, 1, 4]))["chance"][0] == 3 / 5


class Meeting:
    """A method in which clients 0 to 5 stand in a row: each can meet those beside it."""

    def graph(self, round: int) -> Graph:
        return Graph(6, np.array([[i, i + 1] for i in range(5)]))


def test_with_a_topology_chance_is_that_of_the_neighbours() -> None:
    # Of cluster 0 are 0, 1, 2 and 3. Client 0 has 1 beside it; 3 has 2 and 4; 5 has 4. One, a half, and one.
    given_to = [given(0, similar=[1]), given(3, similar=[4]), given(5, random=[4])]
    assert purity(observe(SIX, *given_to, method=Meeting()))["chance"] == (pytest.approx(2.5 / 3), 3)
    # Client 4 takes no part: 3 has 2 alone.
    some = observe(SIX, given_to[0], given(3, similar=[2]), present=[0, 1, 2, 3, 5], method=Meeting())
    assert purity(some)["chance"] == (1.0, 2)


def test_the_current_cluster_decides_and_may_have_another_name() -> None:
    named = Clusters(["photo", "sketch", "photo"], label="concept")
    assert purity(observe(named, given(0, similar=[2, 1])))["similar"] == (1 / 2, 2)
    unknown = Clusters([1, 1], label="phase")
    assert purity(observe(unknown, given(0, similar=[1]))) == {}


def test_the_update_may_have_the_note_and_the_warm_up_is_left_out() -> None:
    one = Assignment(0, ("client/1",), ("client/0",))
    answers = [Outcome(0, Update({}, 1.0, note={"random": [1]}))]
    truths = {0: {"cluster": 0}, 1: {"cluster": 1}}
    measure = Contacts(context(Clusters([0, 1])))
    look = {"assignments": [one], "outcomes": answers, "truths": truths}
    assert purity(measure.observe(seen(1, **look), {})[0])["random"] == (0.0, 1)
    assert measure.observe(seen(0, **look), {})[0] == []
    # A client that failed drew its contacts all the same, if the server drew them.
    failed = [Outcome(0, Failure("lost"))]
    lines, _ = measure.observe(seen(1, assignments=[given(0, random=[1])], outcomes=failed, truths=truths), {})
    assert purity(lines)["random"] == (0.0, 1)


def test_methods_without_contacts_have_no_lines() -> None:
    assert observe(SIX, Assignment(0, ("global",))) == []
    assert Contacts.summarise([{"record": "round", "round": 1}]) == {}


def test_the_summary_weighs_by_contacts_and_by_clients() -> None:
    first = observe(SIX, given(0, random=[1], similar=[1, 2, 3, 4]), given(4, random=[0], similar=[5]))
    second = observe(SIX, given(5, random=[4], similar=[0]))
    lines = [{"round": r, **line} for r, found in ((1, first), (2, second)) for line in found]
    summary = Contacts.summarise(lines)
    # By similarity 3 of 4, 1 of 1, 0 of 1; at random 1, 0, 1; chance 3/5, 1/5 and 1/5.
    assert summary["contact_purity"] == {
        "similar": pytest.approx(4 / 6), "random": pytest.approx(2 / 3), "chance": pytest.approx(1 / 3),
    }  # fmt: skip
    # Four (1 is met twice over), two and two models, for three clients.
    assert summary["messages_per_round"] == pytest.approx(8 / 3)
