"""Clients that meet concepts: which rows they hold when, by counting and by hand."""

import itertools
import pickle
from collections import Counter

import pytest
import torch
from stream_data import images, laws

from shoal.errors import ConfigError
from shoal.registry import build, resolve
from shoal.streams.concepts import ConceptStream
from shoal.streams.describe import concept_table, describe, meeting_table

# 40 training and 10 test rows of each of six labels.
DATA = images([0, 1, 2, 3, 4, 5] * 40, [0, 1, 2, 3, 4, 5] * 10)
TWO = {"classes": [[0, 1], [2, 3, 4]]}


def stream(data=DATA, rounds=12, seed=0, **changes):
    return ConceptStream(data, seed, rounds, **{"concepts": TWO, "clients": 4, "window": 5, **changes})


def everything(s, rounds=12):
    return {
        (c, r): [t.tolist() for t in (h.train, h.validation, h.test)]
        for c, r in itertools.product(range(s.clients), range(1, rounds + 1))
        for h in [s.holding(c, r)]
    }


def parts(s, concept):
    uses = s.concept_rows(concept)
    return uses.train, uses.validation, uses.test


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"split": "given", "validation": 0.3},
        {"order": "cyclic", "step": 2},
        {"concepts": {"by": "transform", "groups": ["identity", "rotate90", "invert"]}},
        {"concepts": {"by": "swap", "groups": [[], [0, 1]]}, "weights": {"dirichlet": 0.5}},
        {"concepts": {"classes": [[0, 1], [1, 2]]}},
        {"concepts": [{"classes": [0, 1], "transform": "mirror"}, [{"classes": 2}, {"classes": 3}]]},
    ],
)
def test_uses_stay_apart_also_under_other_transforms(changes):
    s = stream(**changes)
    laws(s, 12)
    n = len(s.dataset)
    trained = {row % n for held in everything(s).values() for row in held[0]}
    for concept in range(len(s.concept_names)):
        train, validation, test = ({row % n for row in some.tolist()} for some in parts(s, concept))
        assert not trained & validation
        assert not trained & test
        assert not train & validation


def test_the_split_is_seven_two_one_of_all_rows():
    s = stream()
    # Concepts of 100 and 150 rows, each label of 50 alike.
    for concept, labels in enumerate([[0, 1], [2, 3, 4]]):
        for rows, each in zip(parts(s, concept), (35, 5, 10), strict=True):
            assert Counter(DATA.labels[rows].tolist()) == dict.fromkeys(labels, each)
    merged = {row for concept in (0, 1) for row in parts(s, concept)[2].tolist()}
    assert merged & set(DATA.train.tolist())
    assert not merged >= set(DATA.test[:20].tolist())
    # The data's own test rows of no concept stay what they are.
    assert set(s.dataset.test.tolist()) == merged | {r for r in DATA.test.tolist() if DATA.labels[r] == 5}
    assert set(s.dataset.train.tolist()) | set(s.dataset.test.tolist()) == set(range(len(DATA)))
    # The same test rows for every seed, other validation rows.
    other = stream(seed=1)
    assert torch.equal(parts(other, 0)[2], parts(s, 0)[2])
    assert not torch.equal(parts(other, 0)[1], parts(s, 0)[1])


def test_given_test_rows_are_kept():
    s = stream(split="given", validation=0.25)
    for concept, labels in enumerate([[0, 1], [2, 3, 4]]):
        for rows, each in zip(parts(s, concept), (30, 10, 10), strict=True):
            assert Counter(DATA.labels[rows].tolist()) == dict.fromkeys(labels, each)
        assert set(parts(s, concept)[2].tolist()) <= set(DATA.test.tolist())
    assert torch.equal(s.dataset.test, DATA.test.sort().values)
    assert s.notes() == ["rows of no concept: 50"]


def test_shares_of_a_few_rows():
    # Three rows: one of each use. Two: both for training. 13 rows: 2.6 and 1.3.
    for rows, sizes in ((3, (1, 1, 1)), (2, (2, 0, 0)), (13, (9, 1, 3))):
        data = images([0] * rows + [1] * 20, [1] * 10)
        s = stream(data, concepts={"classes": [[0], [1]]}, clients=1)
        assert tuple(len(some) for some in parts(s, 0)) == sizes


def test_large_shares_leave_a_row_for_training():
    data = images([0] * 3 + [1] * 20, [1] * 10)
    s = stream(data, concepts={"classes": [[0], [1]]}, clients=1, test=0.6, validation=0.3)
    assert tuple(len(some) for some in parts(s, 0)) == (1, 0, 2)


def test_concepts_with_rows_in_common_are_split_alike():
    # Of each of the two single-label parts and of the common one a fifth is tested, a tenth validated.
    data = images([0] * 400 + [1] * 40 + [2] * 400, [0])
    s = stream(data, concepts=[{"classes": [0, 1]}, {"classes": [1, 2]}])
    for concept in (0, 1):
        sizes = [int((data.labels[some] == 1).sum()) for some in parts(s, concept)]
        assert sizes == [28, 4, 8]
    # Stratified by who has a row too: one label, of which the second concept has the rows of one domain.
    domains = ["far"] * 40 + ["near"] * 10 + ["near"]
    one = images([0] * 50, [0], columns={"domain": domains})
    for seed in range(5):
        s = stream(one, seed=seed, concepts=[{"classes": 0}, {"domain": "near"}], clients=1)
        assert [len(some) for some in parts(s, 1)] == [8, 1, 2]


def test_chunks_are_disjoint_and_lose_no_row():
    s = stream(clients=3)
    for concept, total in ((0, 70), (1, 105)):
        chunks = [s.chunk(client, concept).tolist() for client in range(3)]
        assert sorted(map(len, chunks), reverse=True) == [total // 3 + (i < total % 3) for i in range(3)]
        assert sorted(itertools.chain(*chunks)) == parts(s, concept)[0].tolist()
        held = [s.holding(c, r).validation for c in range(3) for r in range(1, 30) if s.concept(c, r) == concept]
        assert {row for some in held for row in some.tolist()} == set(parts(s, concept)[1].tolist())


@pytest.mark.parametrize(("size", "step"), [(5, None), (5, 2), (4, 7), (17, None), (18, 3), (40, None), (40, 1)])
def test_the_window_goes_round_the_chunk(size, step):
    # Chunks of 17 or 18 rows; the m-th meeting begins at row m * step.
    s = stream(window=size, step=step)
    step = size if step is None else step
    for client in range(4):
        met = [0, 0]
        for round in range(1, 20):
            concept = s.concept(client, round)
            chunk = s.chunk(client, concept).tolist()
            wanted = [chunk[(met[concept] * step + i) % len(chunk)] for i in range(min(size, len(chunk)))]
            assert s.holding(client, round).train.tolist() == wanted
            met[concept] += 1


def test_a_concept_is_drawn_uniformly_or_by_weights():
    s = stream(clients=30, concepts={"classes": [[0], [1], [2], [3]]}, window=1)
    drawn = torch.tensor([s.concepts_met(client, 200).tolist() for client in range(30)])
    # 6,000 draws: the standard deviation of a share of 1/4 is 0.0056.
    assert (torch.bincount(drawn.ravel(), minlength=4) / 6000 - 0.25).abs().max() < 0.025
    assert len({tuple(line) for line in drawn.tolist()}) == 30
    weighted = stream(concepts={"classes": [[0], [1], [2]]}, clients=30, window=1, weights=[1, 0, 3])
    drawn = torch.tensor([weighted.concepts_met(client, 200).tolist() for client in range(30)])
    shares = torch.bincount(drawn.ravel(), minlength=3) / 6000
    assert shares[1] == 0
    assert abs(shares[2] - 0.75) < 0.025
    # The rows of the concept that nobody meets are dealt to nobody, and said.
    assert "concept 1 (1): no client ever meets it, its 35 training rows are held by nobody" in weighted.notes()
    # Rounds to come change nothing of those that were.
    assert torch.tensor(weighted.concepts_met(3, 50)).tolist() == drawn[3, :50].tolist()


def test_weights_of_each_client():
    s = stream(clients=3, weights=[[1, 0], [0, 2], [1, 1]])
    assert {s.concept(0, r) for r in range(1, 20)} == {0}
    assert {s.concept(1, r) for r in range(1, 20)} == {1}
    assert {s.concept(2, r) for r in range(1, 20)} == {0, 1}
    # Chunks are those of the clients that may meet the concept.
    assert [len(s.chunk(client, 0)) for client in range(3)] == [35, 0, 35]
    assert s.chunk_sizes(1) == (52, 53, 2)
    skewed = stream(clients=40, weights={"dirichlet": 0.01}, window=1)
    mixes = [Counter(skewed.concepts_met(client, 50).tolist()) for client in range(40)]
    assert sum(max(mix.values()) == 50 for mix in mixes) > 30
    assert {max(mix, key=mix.__getitem__) for mix in mixes} == {0, 1}
    even = stream(clients=40, weights={"dirichlet": float("inf")}, window=1)
    assert all(10 < Counter(even.concepts_met(c, 50).tolist())[0] < 40 for c in range(40))


def test_cyclic_and_listed_orders_by_hand():
    s = stream(order="cyclic", concepts={"classes": [[0], [1], [2]]})
    assert [s.concepts_met(c, 5).tolist() for c in range(4)] == [
        [0, 1, 2, 0, 1],
        [1, 2, 0, 1, 2],
        [2, 0, 1, 2, 0],
        [0, 1, 2, 0, 1],
    ]
    two = stream(order="cyclic", concepts={"classes": [[0], [1], [2]]}, weights=[2, 0, 1])
    assert two.concepts_met(1, 4).tolist() == [2, 0, 2, 0]
    listed = stream(clients=2, order="listed", sequence=[[0, 1], [None, 1], [1, 0]])
    assert listed.concepts_met(0, 7).tolist() == [0, -1, 1, 0, -1, 1, 0]
    assert listed.concepts_met(1, 4).tolist() == [1, 1, 0, 1]
    held = listed.holding(0, 2)
    assert [len(rows) for rows in (held.train, held.validation, held.test)] == [0, 0, 0]
    assert held.truth == {"concept": -1, "phase": 0}
    # The second meeting with concept 0 begins where the first one ended.
    assert listed.holding(0, 4).train.tolist() == listed.chunk(0, 0)[5:10].tolist()


def test_concepts_that_come_go_and_come_back():
    schedule = [
        {"concept": 0, "until": 3},
        {"concept": 0, "from": 8, "until": 9},
        {"concept": "2", "from": 5},
    ]
    s = stream(concepts={"classes": [[0], [1], [2]]}, schedule=schedule, weights=[[1, 0, 0]] + [[1, 1, 1]] * 3)
    for round in range(1, 13):
        there = {1} | ({0} if round <= 3 or round in (8, 9) else set()) | ({2} if round >= 5 else set())
        assert {s.concept(c, round) for c in (1, 2, 3)} <= there
        assert s.concept(0, round) == (0 if 0 in there else -1)
    assert s.boundaries == (3, 4, 7, 9)
    assert [s.holding(1, r).truth["phase"] for r in (3, 4, 5, 8, 10)] == [0, 1, 2, 3, 4]
    assert s.schedule.spans(0) == [(1, 3), (8, 9)]
    assert s.schedule.spans(2) == [(5, None)]
    # A concept is measured from its first round on, also after its last one.
    measured = [[t.labels["concept"] for t in s.targets(r)] for r in (0, 1, 4, 5, 12)]
    assert measured == [[0, 1], [0, 1], [0, 1], [0, 1, 2], [0, 1, 2]]
    # The window goes on where it was when the concept went.
    assert s.holding(0, 8).train.tolist() == torch.cat([s.chunk(0, 0)] * 2)[15 % len(s.chunk(0, 0)) :][:5].tolist()
    cyclic = stream(concepts={"classes": [[0], [1], [2]]}, schedule=schedule, order="cyclic")
    assert cyclic.concepts_met(0, 8).tolist() == [0, 1, 0, 1, 1, 2, 1, 1]


def test_a_concept_of_a_single_round():
    for rounds, boundaries in ((3, ()), (4, (3,)), (5, (3, 4))):
        s = stream(schedule=[{"concept": 1, "from": 4, "until": 4}], rounds=rounds)
        assert s.boundaries == boundaries
        assert s.schedule.spans(1) == [(4, 4)]
        assert {s.concept(c, r) for c in range(4) for r in (3, 5)} == {0}
    only = stream(schedule=[{"concept": 0, "from": 5}, {"concept": 1, "from": 4, "until": 4}])
    assert [only.concept(2, r) for r in (3, 4, 5)] == [-1, 1, 0]


def test_rounds_without_any_concept():
    s = stream(schedule=[{"concept": k, "from": 3} for k in (0, 1)], rounds=4)
    assert s.targets(2) == []
    assert [s.concept(0, r) >= 0 for r in (1, 2, 3)] == [False, False, True]
    assert "there are rounds in which no concept exists, the first is round 1" in s.notes()
    assert [table.title for table in describe(s, 4)][1] == "Concept of each client by round"
    late = stream(schedule=[{"concept": 1, "from": 13}])
    assert any("does not exist in any round of the run" in note for note in late.notes())
    assert late.boundaries == ()


def test_targets_have_all_rows_of_their_concept():
    s = stream()
    for concept, target in enumerate(s.targets(1)):
        assert target.labels == {"concept": concept}
        assert torch.equal(target.test, parts(s, concept)[2])
        assert torch.equal(target.validation, parts(s, concept)[1])
    clients = stream(targets="client")
    known = {}
    for round in range(1, 13):
        for client, target in enumerate(clients.targets(round)):
            held = clients.holding(client, round)
            assert target.labels == {"client": client}
            assert torch.equal(target.test, held.test)
            assert torch.equal(target.validation, held.validation)
            rows = known.setdefault((client, target.stamp), target.validation.tolist())
            assert rows == target.validation.tolist()
    assert {stamp for _, stamp in known} == {1, 2}


def test_labels_within_concepts():
    s = stream(head="concept")
    assert (s.outputs, s.head) == (3, "concept")
    for concept, labels in enumerate([[0, 1], [2, 3, 4]]):
        rows = torch.cat(parts(s, concept))
        assert torch.equal(s.dataset.wanted(rows), DATA.labels[rows] - labels[0])
        assert torch.equal(s.dataset.labels_of(rows), DATA.labels[rows])
    assert s.classes_of({"concept": 0}) == ("0", "1", "unused output 2")
    assert s.classes_of({"concept": 1}) == ("2", "3", "4")
    assert stream(head="concept", targets="client").classes_of({"client": 1}) == ("0", "1", "2")
    assert stream().outputs == 6
    assert stream().classes_of({"concept": 0}) == DATA.classes
    # The same numbers everywhere, so nothing contradicts.
    turned = stream(head="concept", concepts={"by": "transform", "groups": ["identity", "mirror"]})
    assert turned.outputs == 6


def test_small_chunks_and_few_validation_rows_are_said():
    s = stream(clients=12, window=320)
    # 70 rows of the first concept for 12 clients, ten validation rows.
    assert (
        "concept 0 (0, 1): a client's chunk has 5 or 6 rows, less than the window of 320: it is held whole" in s.notes()
    )
    assert "concept 0 (0, 1): clients without a validation row of it: 2 of 12" in s.notes()
    held = s.holding(0, 1)
    assert sorted(held.train.tolist()) == sorted(s.chunk(0, s.concept(0, 1)).tolist())
    assert any("has 17 or 18 rows, less than the window of 18" in note for note in stream(window=18).notes())
    assert not any("less than the window" in note for note in stream(window=17).notes())
    shared = stream(concepts={"classes": [[0, 1], [1, 2]]})
    assert any("two clients may hold the same row" in note for note in shared.notes())
    assert not any("two clients may hold" in note for note in s.notes())


def test_the_order_of_asking_is_no_matter_and_seeds_differ():
    changes = {"weights": {"dirichlet": 1.0}, "schedule": [{"concept": 0, "until": 6}]}
    s, other = stream(**changes), stream(**changes)
    places = list(itertools.product(range(4), range(1, 13)))
    found = everything(s)
    assert {p: everything(other)[p] for p in reversed(places)} == found
    assert everything(pickle.loads(pickle.dumps(s))) == found
    assert everything(stream(seed=1, **changes)) != found
    assert s.holding(0, 0).train.tolist() == s.holding(0, 1).train.tolist()
    with pytest.raises(IndexError, match="no client -1"):
        s.holding(-1, 1)


def test_ten_thousand_clients():
    data = images([0, 1] * 8000, [0, 1] * 10, shape=(1, 1))
    s = stream(data, concepts={"classes": [[0], [1]]}, clients=5_000, rounds=1000, window=2)
    assert len(s.holding(4_999, 1000).train) == 1
    # Some numbers per client and concept, and the rows themselves; nothing per round.
    assert len(pickle.dumps(s)) < 2_000_000
    table = meeting_table(s, 1000)
    assert table.note == "clients not shown: 4950; rounds not shown: 980"
    assert len(table.rows) == 50
    with pytest.raises(ConfigError, match="10,000 at most; there are 10,001"):
        stream(data, clients=10_001, targets="client")


def test_the_tables_of_a_stream():
    s = stream(order="cyclic", schedule=[{"concept": 1, "from": 2, "until": 3}])
    assert [table.title for table in describe(s, 12)] == [
        "Concepts (head: shared)",
        "Concept of each client by round",
        "Rows by label and client",
    ]
    assert concept_table(s).rows == [
        ("0", "0, 1", "70", "10", "20", "0, 1", "4", "17 to 18", "1 to the end"),
        ("1", "2, 3, 4", "105", "15", "30", "2, 3, 4", "4", "26 to 27", "2 to 3"),
    ]
    table = meeting_table(s, 4)
    assert table.columns == ("client", "1", "2", "3", "4")
    assert table.rows[:2] == [("0", "0", "1", "0", "0"), ("1", "0", "0", "1", "0")]
    assert table.rows[4:] == [("clients of 0", "4", "2", "2", "4"), ("clients of 1", "0", "2", "2", "0")]
    none = stream(clients=1, order="listed", sequence=[[None], [1]])
    assert meeting_table(none, 2).rows[0] == ("0", "-", "1")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clients": 71}, r"71 clients may meet concept 0 \(0, 1\), which has only 70 training rows"),
        ({"clients": 0}, "stream.clients: one at least"),
        ({"window": 0}, "stream.window: one at least"),
        ({"step": 0}, "stream.step: one at least"),
        ({"test": 0.6, "validation": 0.4}, "leave some for training; got 0.6 and 0.4"),
        ({"order": "listed"}, "stream.sequence: goes with order: listed"),
        ({"sequence": [[0] * 4]}, "stream.sequence: goes with order: listed"),
        ({"order": "listed", "sequence": []}, "needs one list at least"),
        ({"order": "listed", "sequence": [[0] * 3]}, r"sequence\[0\]: .* for each of 4 clients; got 3 of them"),
        ({"order": "listed", "sequence": [[0] * 4, [0, 0, 0, 2]]}, r"sequence\[1\]: a concept from 0 to 1.*; got 2"),
        ({"order": "listed", "sequence": [[0, 0, 0, -1]]}, "got -1"),
        ({"order": "listed", "sequence": [[0] * 4], "weights": [1, 1]}, "nothing is drawn with order: listed"),
        ({"weights": [1]}, "a number for each of 2 concepts"),
        ({"weights": [[1, 1]] * 3}, "for each of 4 clients"),
        ({"weights": [[1, 1]] * 3 + [[1]]}, "a number for each of 2 concepts"),
        ({"weights": []}, "a number for each of 2 concepts"),
        ({"weights": [1, -1]}, "none below 0"),
        ({"weights": [[1, 1]] * 3 + [[0, 0]]}, "for client 3"),
        ({"weights": [1, float("nan")]}, "finite numbers"),
        ({"weights": {"dirichlet": 0}}, "an alpha above 0"),
        ({"weights": {"dirichlet": float("nan")}}, "an alpha above 0"),
        ({"weights": {"gamma": 1.0}}, "dirichlet: alpha"),
        ({"schedule": [{"concept": 2}]}, r"schedule\[0\].concept: a number from 0 to 1 or one of 0, 1"),
        ({"schedule": [{"concept": True}]}, "got True"),
        ({"schedule": [{"from": 2}]}, "got None"),
        ({"schedule": [{"concept": 0, "to": 2}]}, "no such setting 'to'"),
        ({"schedule": [{"concept": 0, "from": 0}]}, r"schedule\[0\].from: a round, from 1 on; got 0"),
        ({"schedule": [{"concept": 0}, {"concept": 1, "until": 2.5}]}, r"schedule\[1\].until"),
        ({"schedule": [{"concept": 0, "from": 5, "until": 4}]}, "which is no round"),
        ({"head": "concept", "concepts": {"classes": [[0, 1], [1, 2]]}}, "shares rows with another concept"),
        ({"head": "concept", "concepts": {"by": "swap", "groups": [[], [0, 1]]}}, "swapped labels are those of one"),
    ],
)
def test_what_cannot_be_built(changes, message):
    with pytest.raises(ConfigError, match=message):
        stream(**changes)


def test_a_concept_without_training_rows():
    data = images([0] * 10, [0, 0, 1, 1, 1])
    with pytest.raises(ConfigError, match=r"concept 1 \(1\) has no training row: it has 3 rows, of which 3 are tested"):
        stream(data, concepts={"classes": [[0], [1]]}, split="given", clients=1)
    # Of merged rows there are some.
    assert len(parts(stream(data, concepts={"classes": [[0], [1]]}, clients=1), 1)[0]) == 1


def test_settings_go_through_the_registry():
    settings = resolve(
        "stream",
        {"kind": "concepts", "concepts": TWO, "clients": 4, "window": 6, "schedule": [{"concept": 1, "from": 2}],
         "weights": [[1, 2]] * 4},
    )  # fmt: skip
    s = build("stream", settings, DATA, 0, 6, False)
    assert s.concept(0, 1) == 0
    assert settings["test"] == 0.2
    for wrong in ({"order": "some"}, {"window": 0}, {"clients": True}, {"weights": "most"}, {"split": "none"}):
        with pytest.raises(ConfigError, match=f"stream.{next(iter(wrong))}"):
            resolve("stream", {"kind": "concepts", "concepts": TWO, "clients": 4, **wrong})


def test_clients_that_know_their_concept():
    schedule = [{"concept": 1, "from": 3}]
    told, silent = (stream(known=known, weights=[[0, 1], [1, 1], [1, 0], [1, 1]], schedule=schedule)
                    for known in (True, False))  # fmt: skip
    laws(stream(known=True), 12)
    assert (told.tasks, told.task_names, told.outputs) == (2, told.concept_names, silent.outputs)
    assert everything(told) == everything(silent)
    for client, round in itertools.product(range(4), range(1, 13)):
        ours, theirs = told.holding(client, round), silent.holding(client, round)
        concept = theirs.truth["concept"]
        assert ours.task == (None if concept < 0 else concept)
        assert ours.truth == {**theirs.truth, **({} if concept < 0 else {"task": concept})}
        assert theirs.task is None
    assert told.holding(0, 1).task is None
    assert silent.tasks == 0
