"""`Choice`: by which number of the summaries a sweep chooses its best cell, and the choosing."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from . import registry
from .errors import ConfigError, nearest
from .folder import RunFolder
from .loading import expand, overridden

VALIDATION = "validation"
"""The measure that gives the numbers of validation rows."""
KNOWN: dict[str, Literal["max", "min"]] = {"validation_accuracy": "max", "validation_loss": "min"}
"""Numbers whose better end is known."""
# Numbers of a measure of one's own are not known to come from test rows, and are not refused.
_FROM_TEST_ROWS = frozenset(
    {
        "acc",
        "acc_last5",
        "acc_weighted",
        "accuracy",
        "accuracy_by_target",
        "bwt_f",
        "forgetting",
        "forward_transfer",
        "loss",
        "mean_accuracy",
        "over_targets",
    }
)


class Choice(NamedTuple):
    """The number of ``summary.json``, nested ones with dots, and which end of it is better."""

    number: str
    take: Literal["max", "min"]

    @property
    def needs_validation(self) -> bool:
        """Whether the number comes from the measure of validation rows."""
        return self.number.split(".")[0].startswith(f"{VALIDATION}_")


def parse_choice(text: str) -> Choice:
    """``validation_accuracy`` (the largest), ``validation_loss`` (the smallest), or ``min:NAME``, ``max:NAME``.

    Raises `ConfigError` for a number that comes from test rows.
    """
    given, colon, name = text.partition(":")
    if not colon:
        given, name = "", text
    top = name.split(".")[0]
    if top in _FROM_TEST_ROWS or top in registry.PARTS["metric"] or top.startswith(("acc_", "accuracy_", "test")):
        raise ConfigError(
            f"--best {name}: this number comes from test rows. Settings are chosen on validation rows, or the test "
            f"accuracy of the chosen ones would be too good; use --best validation_accuracy or validation_loss"
        )
    take = given or KNOWN.get(name)
    if not name or take not in ("max", "min"):
        hint = "" if colon else f" ({nearest(name, KNOWN)})"
        raise ConfigError(
            f"--best: validation_accuracy, validation_loss, or any other number of summary.json with its better end, "
            f"min:client_drift or max:NAME; got {text!r}{hint}"
        )
    return Choice(name, cast("Literal['max', 'min']", take))


def number_in(summary: Mapping[str, Any], name: str) -> float | None:
    """A number of a summary, by its dotted name; ``None`` where it is missing or not finite."""
    value: Any = summary
    rest = name.split(".")
    while rest:
        # A name may have dots itself: the longest that is there.
        for count in range(len(rest), 0, -1):
            key = ".".join(rest[:count])
            if isinstance(value, Mapping) and key in value:
                value, rest = value[key], rest[count:]
                break
        else:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def names_in(summary: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The dotted names of all numbers of a summary."""
    found: list[str] = []
    for key, value in summary.items():
        if isinstance(value, Mapping):
            found += names_in(value, f"{prefix}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found.append(f"{prefix}{key}")
    return found


def pick(cells: Sequence[Mapping[str, Any]], take: str) -> str | None:
    """The cell with the best mean, the first of equal ones; ``None`` if no cell has a mean."""
    chosen: Mapping[str, Any] | None = None
    for cell in cells:
        mean = cell.get("mean")
        if mean is None:
            continue
        if chosen is None or (mean > chosen["mean"] if take == "max" else mean < chosen["mean"]):
            chosen = cell
    return None if chosen is None else str(chosen["cell"])


def conclude(path: Path) -> None:
    """Writes what a sweep found: ``sweep.json`` and, if something was to be chosen, ``best.yaml``.

    A cell counts with the mean over its seeds; one that lacks the number for a seed is left out, and named. Does
    nothing in a folder that holds no sweep. Raises `ConfigError` if no cell has the number.
    """
    folder = RunFolder(path)
    sweep = folder.sweep()
    if not sweep:
        return
    raw = folder.config()
    best = sweep.get("best")
    choice = None if best is None else Choice(best["number"], best["take"])
    cells: dict[str, dict[str, Any]] = {}
    summary: dict[str, Any] = {}
    for single in expand(raw):
        cell = cells.setdefault(
            single.variant, {"cell": single.variant, "changes": raw["variants"][single.variant] or {}, "values": {}}
        )
        found = RunFolder(path / single.place).summary()
        summary = summary or found
        if choice is not None:
            cell["values"][str(single.seed)] = number_in(found, choice.number)
    for cell in cells.values():
        if choice is None:
            del cell["values"]
            continue
        known = [value for value in cell["values"].values() if value is not None]
        whole = len(known) == len(cell["values"])
        cell["n"] = len(known)
        cell["mean"] = math.fsum(known) / len(known) if whole else None
        cell["sd"] = statistics.stdev(known) if whole and len(known) > 1 else None
    table = list(cells.values())
    chosen = None if choice is None else pick(table, choice.take)
    left_out = [] if choice is None else [cell["cell"] for cell in table if cell["mean"] is None]
    folder.write_json("sweep.json", {**sweep, "cells": table, "left_out": left_out, "chosen": chosen, "finished": True})
    if choice is not None and chosen is None:
        raise ConfigError(
            f"--best {choice.number}: no cell has this number for all its seeds; the summaries have others: "
            f"{nearest(choice.number, names_in(summary))}. The runs are kept: choose again with the same command and "
            f"another --best"
        )
    if chosen is not None:
        base = {name: value for name, value in raw.items() if name != "variants"}
        folder.write_yaml("best.yaml", overridden(base, raw["variants"][chosen] or {}))


def written(value: Any) -> str:
    """A value of a setting as a table shows it."""
    return value if isinstance(value, str) else json.dumps(value, default=str)
