"""Grids: lists of values on the command line, cells, and the names of their folders."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.errors import ConfigError
from shoal.grid import LONGEST, Grid, parse_grid, parse_seeds
from shoal.loading import expand


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0.1,0.2", [0.1, 0.2]),
        ("sgd,adam", ["sgd", "adam"]),
        ("[1,2],[3]", [[1, 2], [3]]),
        (
            "{kind: adam, lr: 0.1},{kind: sgd, betas: [1, 2]}",
            [{"kind": "adam", "lr": 0.1}, {"kind": "sgd", "betas": [1, 2]}],
        ),
        ("'a,b',c", ["a,b", "c"]),
        ('"x, [y",null', ["x, [y", None]),
        (r'"a\",b",c', ['a",b', "c"]),
        ("'it''s,',b", ["it's,", "b"]),
        ("it's,b", ["it's", "b"]),
        ("true,false", [True, False]),
        ("0.1, 0.2", [0.1, 0.2]),
        ("-1,1", [-1, 1]),
    ],
)
def test_a_comma_separates_values_outside_of_brackets_and_quotes(text: str, values: list[Any]) -> None:
    assert parse_grid([f"a.b={text}"]) == ({"a.b": values}, {})


@pytest.mark.parametrize(
    ("text", "value"),
    [("[1,2]", [1, 2]), ("0.1", 0.1), ("", None), ("{a: 1, b: 2}", {"a": 1, "b": 2}), ("'a,b'", "a,b")],
)
def test_one_value_is_an_override(text: str, value: Any) -> None:
    assert parse_grid([f"k={text}"]) == ({}, {"k": value})


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (["local.lr"], "a setting looks like"),
        (["=1,2"], "a setting looks like"),
        (["a=1,,2"], "empty value"),
        (["a=1,2,"], "empty value"),
        (["a=1", "a=2,3"], "given more than once"),
        (["a=[1,2"], "not valid YAML"),
    ],
)
def test_mistakes_in_a_grid(items: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_grid(items)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"seed": (0, 1)}, "use --seeds"),
        ({"seeds": (0, 1)}, "use --seeds"),
        ({"variants": (0, 1)}, "cannot be swept"),
        ({"name": ("a", "b")}, "cannot be swept"),
        ({"local.lr": (0.1, 0.2, 0.1)}, "0.1 listed more than once"),
        ({"local.lr": ()}, "at least one value"),
    ],
)
def test_what_cannot_be_swept(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Grid(values)


def test_cells_are_all_combinations_in_order_with_the_shortest_distinct_names() -> None:
    cells = Grid({"local.lr": (0.1, 1), "method.server.lr": (0.5, None), "method.server.tau": (1e-3,)}).cells()
    assert list(cells) == [
        "local.lr=0.1,server.lr=0.5,tau=0.001",
        "local.lr=0.1,server.lr=null,tau=0.001",
        "local.lr=1,server.lr=0.5,tau=0.001",
        "local.lr=1,server.lr=null,tau=0.001",
    ]
    assert cells["local.lr=1,server.lr=null,tau=0.001"] == {
        "local.lr": 1,
        "method.server.lr": None,
        "method.server.tau": 1e-3,
    }
    assert Grid({}).cells() == {"": {}}


def test_a_setting_inside_another_of_the_same_ending_keeps_a_name_of_its_own() -> None:
    assert list(Grid({"lr": (1,), "local.lr": (2,)}).cells()) == ["lr=1,local.lr=2"]


HARD = [
    1,
    1.0,
    True,
    "1",
    "true",
    "True",
    "a b",
    "a-b",
    "a/b",
    "../x",
    "ä",
    "Adam",
    "adam",
    "",
    " ",
    None,
    "null",
    "x:Y",
]
HARD += [[1], [1, 2], {"kind": "adam", "lr": 1}, {"kind": "adam"}, "z" * 300, "z" * 299]


def test_names_are_safe_and_distinct_whatever_the_values_are() -> None:
    names = list(Grid({"a.b": tuple(v for v in HARD if v != {"kind": "adam"})}).cells())
    assert len({name.lower() for name in names}) == len(HARD) - 1
    assert max(map(len, names)) <= LONGEST
    runs = expand({"variants": {name: {} for name in names}})  # refuses names that are no folders
    assert len(runs) == len(names)


def test_the_name_of_a_cell_does_not_depend_on_the_other_values() -> None:
    few = Grid({"m": ("my_parts:Mine", "../x", [1, 2])}).cells()
    more = Grid({"m": ("adam", "my_parts:Mine", "../x", "x", [1, 2], [1, 3])}).cells()
    assert set(few) < set(more)
    assert all(more[name] == changes for name, changes in few.items())


def test_long_names_are_cut_and_stay_distinct() -> None:
    keys = {f"method.server.setting_{i}": ("a" * 12, "b" * 12) for i in range(6)}
    names = list(Grid(keys).cells())
    assert len(set(names)) == 64
    assert {len(name) for name in names} == {LONGEST}


@pytest.mark.parametrize(("text", "seeds"), [("3", [0, 1, 2]), ("1", [0]), ("0,4", [0, 4]), ("[7]", [7]), ("7,", [7])])
def test_seeds(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["0", "-1", "x", "true", "1.5", "[]", "1,x", ""])
def test_seeds_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="--seeds"):
        parse_seeds(text)
