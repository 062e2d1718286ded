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


SLOW = ("memory stays flat", "any model can be stacked")
"""Laws that take seconds: every run of the tests tries them on the first example of a kind, long ones on all."""


def _cases() -> list[Any]:
    found = []
    for part in CHECKED:
        for kind in [*registry.PARTS[part], *GOOD.get(part, [])]:
            tried = set()
            for law, subject, example in laws_of(part, kind):
                name = f"{part}-{kind.rpartition(':')[2]}-{example}-{law.name}".replace(" ", "_")
                late = law.name in SLOW and law.name in tried
                tried.add(law.name)
                found.append(pytest.param(law, subject, id=name, marks=[pytest.mark.long] if late else []))
    return found


@pytest.mark.parametrize(("law", "subject"), _cases())
def test_law_holds(law: Law, subject: Any) -> None:
    result = law.on(subject)
    assert result.passed, f"{law.statement}\n{result.detail}"
