"""Every law, for every registered part and for parts that use every corner of the core."""

from __future__ import annotations

from typing import Any

import pytest

from shoal import registry
from shoal.checks.law import Law
from shoal.checks.runner import CHECKED, laws_of

GOOD = {
    "learner": ["good_parts:Control", "good_parts:Anchored"],
    "method": ["good_parts:Gossip", "good_parts:Parted", "good_parts:Fresh"],
}


ALWAYS = (
    "any number of workers",
    "resume at every round",
    "stacked agrees with serial",
    "private states stay with their client",
)
"""Of a kind with several examples the first is tried on every law, the others on these (and in long tests on all)."""


def _cases() -> list[Any]:
    found = []
    for part in CHECKED:
        for kind in [*registry.PARTS[part], *GOOD.get(part, [])]:
            tried = set[str]()
            for law, subject, example in laws_of(part, kind):
                name = f"{part}-{kind.rpartition(':')[2]}-{example}-{law.name}".replace(" ", "_")
                late = law.name in tried and law.name not in ALWAYS
                tried.add(law.name)
                found.append(pytest.param(law, subject, id=name, marks=[pytest.mark.long] if late else []))
    return found


@pytest.mark.parametrize(("law", "subject"), _cases())
def test_law_holds(law: Law, subject: Any) -> None:
    result = law.on(subject)
    assert result.passed, f"{law.statement}\n{result.detail}"
