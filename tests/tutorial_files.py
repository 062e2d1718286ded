"""What the tutorial's page prints beside its commands, told from what they printed; and tables with faults."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

_NUMBER = r"-?\d+(?:\.\d+)?"


def alike(shown: str, printed: str) -> bool:
    """Whether a line of the page is what was printed: spaces and frames aside, ``...`` for anything.

    Whole numbers are the same, those with a decimal point are near: by 0.12 up to 1.5, by 12 % above and by 10 points
    where a percent sign follows. A standard deviation may be anything.
    """
    pieces = re.split(rf"( ?\.\.\.|{_NUMBER})", _plain(shown))  # texts, and between them dots or numbers
    pattern = "".join(
        re.escape(piece) if place % 2 == 0 else ".*" if piece.endswith("...") else f"({_NUMBER})"
        for place, piece in enumerate(pieces)
    )
    found = re.fullmatch(pattern, _plain(printed))
    if not found:
        return False
    wanted = [place for place in range(1, len(pieces), 2) if not pieces[place].endswith("...")]
    return all(
        _near(pieces[place], given, pieces[place + 1].startswith(" %"))
        for place, given in zip(wanted, found.groups(), strict=True)
    )


def _plain(line: str) -> str:
    return " ".join(re.sub(rf"± {_NUMBER}", "± SD", re.sub("[│┃]", " ", line)).split())


def _near(wanted: str, given: str, percent: bool) -> bool:
    if "." not in wanted:
        return wanted == given
    value = float(wanted)
    return abs(value - float(given)) <= (10 if percent else 0.12 if abs(value) <= 1.5 else 0.12 * abs(value))


def missing_lines(shown: Sequence[str], printed: str) -> list[str]:
    """The lines of the page that were not printed in this order; others may stand between them."""
    rest = printed.splitlines()
    for place, line in enumerate(shown):
        found = next((i for i, candidate in enumerate(rest) if alike(line, candidate)), None)
        if found is None:
            return list(shown[place:])
        rest = rest[found + 1 :]
    return []


Fault = Callable[[pd.DataFrame], None]
"""Puts a fault into the rows of the pumps."""


def _hole(column: str) -> Fault:
    def put(frame: pd.DataFrame) -> None:
        frame.loc[4, column] = None

    return put


def _text(column: str, text: str) -> Fault:
    def put(frame: pd.DataFrame) -> None:
        frame[column] = frame[column].astype(object)
        frame.loc[4, column] = text

    return put


_REGRESSION = ("data.label=days_left", "data.ignore=[state,month]")
_VALUES = (*_REGRESSION, "data.learn=values")
PROVOKED: dict[str, tuple[Fault | None, tuple[str, ...]]] = {
    "rows have no value in 'site'": (_hole("site"), ()),
    "rows have no value in 'state'": (_hole("state"), ()),
    "values are no numbers, such as 'broken'": (_text("temperature", "broken"), ()),
    "no stamp in 'day' that can be read": (_text("day", "May 1st"), ()),
    "more than 100 are hardly meant": (None, ("data.time=null",)),
    "to predict numbers set data.learn: values": (None, _REGRESSION),
    "cross_entropy learns class labels": (None, (*_VALUES, "evaluate.metrics=[]")),
    "is a metric of classes": (None, (*_VALUES, "local.loss=mse")),
    "has no column 'site'; it has none": (None, ("data.client=null",)),
}
"""The messages of the page that come from the data or the configuration, and how to get them."""

REMEDIES: dict[str, tuple[str, ...]] = {
    "rows have no value in 'state'": ("data.missing_label=drop",),
    "values are no numbers, such as 'broken'": ("data.missing_values=[broken]",),
    "more than 100 are hardly meant": ("data.ignore=[days_left,month,day]",),
    "to predict numbers set data.learn: values": ("data.learn=values", "local.loss=mse", "evaluate.metrics=[rmse,r2]"),
    "cross_entropy learns class labels": ("local.loss=mse",),
    "is a metric of classes": ("evaluate.metrics=[rmse,r2]",),
    "has no column 'site'; it has none": ("data.client=site",),
}
"""What the page advises."""


def faulty(source: Path, target: Path, fault: Fault) -> None:
    """A copy of a table with a fault in it."""
    frame = pd.read_csv(source)
    fault(frame)
    frame.to_csv(target, index=False)
