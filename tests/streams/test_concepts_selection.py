"""What belongs to a concept: columns, labels, transforms, swapped labels, and mixtures of them."""

import dataclasses

import numpy as np
import pytest
import torch
from stream_data import images

import shoal
from shoal.data.arrays import from_arrays
from shoal.errors import ConfigError
from shoal.streams.concepts import ConceptStream
from shoal.streams.concepts_selection import make_concepts

DOMAINS = ["sea", "town", "wood"] * 20 + ["sea", "town", "wood"] * 10
DATA = images(["a", "b", "c", "d"] * 15, ["a", "b", "c", "d", "a", "b"] * 5, columns={"domain": DOMAINS})


def made(given, data=DATA):
    moved, concepts = make_concepts(data, given)
    return moved, {c.name: c for c in concepts}


def wanted(labels="abcd", domains=("sea", "town", "wood")):
    return [
        row for row, domain in enumerate(DOMAINS) if DATA.classes[int(DATA.labels[row])] in labels and domain in domains
    ]


def test_every_value_of_a_column_or_groups_of_them():
    _, found = made({"by": "domain"})
    assert {name: c.base.tolist() for name, c in found.items()} == {
        domain: wanted(domains=[domain]) for domain in ("sea", "town", "wood")
    }
    _, found = made({"by": "domain", "groups": [["sea", "wood"], "town"]})
    assert {name: c.base.tolist() for name, c in found.items()} == {
        "sea, wood": wanted(domains=["sea", "wood"]),
        "town": wanted(domains=["town"]),
    }


def test_groups_of_labels_by_name_or_number():
    for given in ({"classes": [["a", "c"], ["b"]]}, {"by": "class", "groups": [[0, 2], 1]}):
        moved, found = made(given)
        assert moved is DATA
        assert {name: c.base.tolist() for name, c in found.items()} == {"a, c": wanted("ac"), "b": wanted("b")}


def test_transforms_are_layers_of_the_same_rows():
    moved, found = made({"by": "transform", "groups": ["identity", "rotate180"]})
    every = list(range(len(DATA)))
    assert [c.base.tolist() for c in found.values()] == [every, every]
    assert moved.features.data_ptr() == DATA.features.data_ptr()
    rows = torch.arange(5) + len(DATA)
    assert torch.equal(moved.batch(rows), DATA.batch(torch.arange(5)).rot90(2, (1, 2)))
    assert set(found["rotate180"].layer.tolist()) == {1}
    alone, found = made([{"transform": "invert", "classes": "a"}])
    assert torch.equal(alone.batch(torch.arange(5)), DATA.with_transforms("invert").batch(torch.arange(5)))
    assert set(found["a / invert"].layer.tolist()) == {0}


def test_swapped_labels_with_and_without_a_transform():
    given = [{"domain": "sea"}, {"domain": "sea", "swap": ["a", "b"]}, {"swap": [2, 3], "transform": "mirror"}]
    moved, found = made(given)
    assert list(found) == ["sea", "sea / a <-> b", "mirror / c <-> d"]
    n = len(DATA)
    plain = DATA.labels
    assert torch.equal(moved.wanted(torch.arange(n)), plain)
    assert torch.equal(moved.wanted(torch.arange(n) + n), torch.tensor([1, 0, 2, 3])[plain])
    assert torch.equal(moved.wanted(torch.arange(n) + 2 * n), torch.tensor([0, 1, 3, 2])[plain])
    assert torch.equal(moved.batch(torch.arange(3) + n), DATA.batch(torch.arange(3)))
    assert torch.equal(moved.batch(torch.arange(3) + 2 * n), DATA.batch(torch.arange(3)).flip(2))
    _, plainly = made({"by": "swap", "groups": [[], ["a", "d"]]})
    assert list(plainly) == ["no swap", "a <-> d"]


def test_selectors_restrict_and_lists_of_them_join():
    given = [
        {"domain": ["sea", "town"], "classes": ["a", "b"], "name": "first"},
        [{"domain": "sea", "classes": "c"}, {"domain": "town", "classes": "d", "transform": "invert"}],
        [{"classes": "d"}, {"classes": ["c", "d"], "domain": "wood"}],
    ]
    _, found = made(given)
    assert list(found) == ["first", "sea / c, town / d / invert", "d, wood / c, d"]
    first, mixed, overlapping = found.values()
    assert first.base.tolist() == wanted("ab", ["sea", "town"])
    pairs = sorted(zip(mixed.layer.tolist(), mixed.base.tolist(), strict=True))
    assert pairs == [(0, r) for r in wanted("c", ["sea"])] + [(1, r) for r in wanted("d", ["town"])]
    # A row that two selectors have is there once.
    assert overlapping.base.tolist() == sorted(set(wanted("d")) | set(wanted("cd", ["wood"])))


def test_rows_that_a_limit_left_out_belong_to_no_concept():
    x = np.arange(60, dtype=np.float32).reshape(60, 1)
    data = from_arrays(x[:40], [0, 1] * 20, x[40:], [0, 1] * 10)
    short = dataclasses.replace(data, train=data.train[:10])
    _, concepts = make_concepts(short, {"classes": [[0], [1]]})
    assert sum(len(c.base) for c in concepts) == 10 + 20


def test_labels_of_a_union_are_those_of_the_source():
    data = shoal.data.load(
        {"kind": "union", "sources": [{"kind": "digits", "limit": 300, "limit_test": 60}] * 2, "labels": "separate"}
    )
    source = data.columns["source"]
    assert source.names == ("digits", "digits-2")
    _, found = make_concepts(
        data,
        [
            {"source": "digits-2", "classes": [3, 4]},
            {"source": ["digits", "digits-2"], "classes": [7]},
            {"classes": ["digits:1", "digits-2:2"]},
            {"source": "digits", "classes": ["digits:5"], "name": "five"},
        ],
    )
    names = [sorted({data.classes[int(data.labels[row])] for row in c.base}) for c in found]
    assert names == [["digits-2:3", "digits-2:4"], ["digits-2:7", "digits:7"], ["digits-2:2", "digits:1"], ["digits:5"]]
    assert [c.name for c in found] == ["digits-2 / 3, 4", "digits, digits-2 / 7, 7", "digits:1, digits-2:2", "five"]
    with pytest.raises(ConfigError, match=r"concepts\[0\].classes: class of digits has no value 12"):
        make_concepts(data, [{"source": "digits", "classes": [12]}])
    s = ConceptStream(data, 0, 5, concepts={"by": "source"}, clients=3, window=20)
    assert s.concept_names == ("digits", "digits-2")
    for round in range(1, 6):
        held = s.holding(1, round)
        assert {int(source.codes[row]) for row in held.train} == {held.truth["concept"]}


def test_values_have_columns_and_no_labels():
    x = torch.arange(60.0).reshape(60, 1)
    data = from_arrays(x, x[:, 0], columns={"site": ["n", "s"] * 30}, learn="values")
    s = ConceptStream(data, 0, 4, concepts={"by": "site"}, clients=2, window=5)
    held = s.holding(0, 1)
    assert s.dataset.wanted(held.train).dtype == torch.float32
    assert set(data.columns["site"].codes[held.train].tolist()) == {held.truth["concept"]}
    assert s.outputs == 1
    for given in ({"classes": [[0]]}, [{"swap": [0, 1]}]):
        with pytest.raises(ConfigError, match="arrays has no classes, it learns values"):
            make_concepts(data, given)
    with pytest.raises(ConfigError, match="values have no labels"):
        ConceptStream(data, 0, 4, concepts={"by": "site"}, clients=2, head="concept")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "a list with a selector per concept; got {}"),
        ([], "needs one concept at least"),
        ({"by": "domain", "classes": [[0]]}, "a selector per concept"),
        ({"classes": [[0]], "groups": [[0]]}, "a selector per concept"),
        ({"by": "domain", "values": [["sea"]]}, "a selector per concept"),
        ({"by": "domains"}, "the data have no column 'domains'; did you mean 'domain'"),
        ({"by": "class"}, r"by: class needs a list with an item per concept, such as \[\[0, 1\], \[2, 3\]\]"),
        ({"by": "transform"}, "such as .identity, rotate90."),
        ({"by": "domain", "groups": "sea"}, "got 'sea'"),
        ({"by": "domain", "groups": []}, "needs one concept at least"),
        ({"by": "domain", "groups": [["sky"]]}, r"stream.concepts\[0\].domain: domain has no value 'sky'"),
        ({"by": "domain", "groups": [["sea", "sea"]]}, "a value stands in one concept twice"),
        ({"by": "domain", "groups": [["sea"], "sea"]}, "several are called 'sea'"),
        ({"by": "domain", "groups": [[]]}, "no row of the data is in this concept"),
        ({"classes": [["a"], ["e"]]}, r"stream.concepts\[1\].classes: class has no value 'e'"),
        ({"classes": [[True]]}, "a value or a list of values; got .True."),
        ({"by": "transform", "groups": ["rotate10"]}, r"transform: none is called 'rotate10'"),
        ({"by": "swap", "groups": [["a"]]}, "labels are swapped in pairs; got 1"),
        ([{"domain": "sea", "class": "a"}], "no selector and no column is called 'class'; did you mean 'classes'"),
        ([[]], r"a concept is a selector.*got \[\]"),
        (["sea"], "a concept is a selector.*got 'sea'"),
        ([{"domain": "sea"}, {"domain": {"town": 1}}], r"stream.concepts\[1\].domain: a value or a list"),
        ([{"domain": "sea", "name": "x"}, {"domain": "town", "name": "x"}], "several are called 'x'"),
    ],
)
def test_what_is_no_concept(given, message):
    with pytest.raises(ConfigError, match=message):
        make_concepts(DATA, given)


def test_data_under_transforms_and_quarter_turns_of_oblong_images():
    with pytest.raises(ConfigError, match="under transforms already"):
        make_concepts(DATA.with_transforms("identity", "mirror"), {"by": "domain"})
    with pytest.raises(ConfigError, match="needs square images"):
        make_concepts(images([0, 1] * 5, shape=(2, 3)), {"by": "transform", "groups": ["rotate90"]})
