"""What a setting may be, in words; and faults of unions, each told once."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic
import pytest
from pydantic import Field

from shoal import registry
from shoal.errors import ConfigError
from shoal.setup import resolve_config
from shoal.wanted import union_at, words

Whole = Annotated[int, Field(ge=1)]
Pair = Annotated[tuple[Whole, Whole], Field(description="[height, width]")]


class Inner(pydantic.BaseModel):
    """A model inside another one."""

    deep: Whole | str = 1


class Model(pydantic.BaseModel):
    """Unions wherever they may stand."""

    size: Whole | Pair | None = None
    amount: Annotated[int | float, Field(gt=0)] = 1
    names: list[Annotated[float, Field(ge=0, lt=1)] | Literal["a", "b"]] = []
    by: dict[str, int | list[str]] = {}
    two: tuple[int, bool | str] = (1, "")
    inner: Inner = Inner()
    plain: int | None = None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"size": 0}, "size: a whole number of 1 or more, or [height, width]; got 0"),
        ({"size": [1, 0]}, "size: a whole number of 1 or more, or [height, width]; got [1, 0]"),
        ({"size": [1]}, "size: a whole number of 1 or more, or [height, width]; got [1]"),
        ({"amount": "x"}, "amount: a number above 0; got 'x'"),
        ({"amount": 0}, "amount: Input should be greater than 0; got 0"),
        ({"names": ["a", 2]}, "names.1: a number of 0 or more and below 1, or 'a' or 'b'; got 2"),
        ({"by": {"k": "x"}}, "by.k: a whole number, or a list; got 'x'"),
        ({"by": {"k": [1, 2]}}, "by.k: a whole number, or a list; got [1, 2]"),
        ({"two": [1, [2]]}, "two.1: true or false, or a text; got [2]"),
        ({"inner": {"deep": []}}, "inner.deep: a whole number of 1 or more, or a text; got []"),
        ({"plain": "x"}, "plain: Input should be a valid integer, unable to parse string as an integer; got 'x'"),
    ],
)
def test_a_fault_of_a_union_is_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(pydantic.ValidationError) as error:
        Model(**given)
    assert str(registry.explain(error.value, "", (), Model)) == message


def test_several_faults_stay_several() -> None:
    with pytest.raises(pydantic.ValidationError) as error:
        Model(size=0, amount=-1, names=[9, 8])
    lines = str(registry.explain(error.value, "data", (), Model)).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["data.size", "data.amount", "data.names.0", "data.names.1"]


def test_an_annotation_alone() -> None:
    assert union_at(int | str, ("int",)) == (0, "a whole number, or a text")
    assert union_at(int | None, ()) is None
    assert union_at(list[int], (3,)) is None
    assert words(Annotated[float, Field(gt=0, le=2)]) == "a number above 0 and of 2 or less"
    assert words(tuple[int, float]) == "[a whole number, a number]"
    assert words(dict[str, int] | Inner | None) == "a mapping"


def test_settings_of_parts_and_of_the_configuration() -> None:
    with pytest.raises(ConfigError) as error:
        registry.resolve("data", {"kind": "folder", "path": "x", "size": 0})
    assert str(error.value) == "data.size: a whole number of 1 or more, or [height, width]; got 0"
    with pytest.raises(ConfigError) as error:
        resolve_config({"stream": {"kind": "static", "clients": 2}, "participation": {"probabilities": "row"}})
    assert str(error.value) == "participation.probabilities: a list, or 'rows'; got 'row'"
