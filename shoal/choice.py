"""`Choice`: by which number of the summaries a sweep chooses its best cell, and the choosing."""

from __future__ import annotations

import contextlib
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from . import registry
from .errors import ConfigError, nearest
from .folder import RunFolder
from .loading import expand, overridden
from .metrics.base import Measure

VALIDATION = "validation"
"""The measure that gives the numbers of validation rows."""
KNOWN: dict[str, Literal["max", "min"]] = {"validation_accuracy": "max", "validation_loss": "min"}
"""Numbers whose better end is known."""


class Choice(NamedTuple):
    """The number of ``summary.json``, nested ones with dots, and which end of it is better."""

    number: str
    take: Literal["max", "min"]

    @property
    def needs_validation(self) -> bool:
        """Whether the number comes from the measure of validation rows."""
        return self.number.split(".")[0].startswith(f"{VALIDATION}_")


def parse_choice(text: str, measures: Iterable[str] = ()) -> Choice:
    """``validation_accuracy`` (the largest), ``validation_loss`` (the smallest), or ``min:NAME``, ``max:NAME``.

    ``measures`` are the kinds that the runs have. Raises `ConfigError` for a number that comes from test rows
    (`Measure.from_test_rows`), or from a measure of one's own that does not say whether it does.
    """
    given, colon, name = text.partition(":")
    if not colon:
        given, name = "", text
    top = name.split(".")[0]
    own = {kind: _measure(kind) for kind in measures}
    kinds = {**{kind: _measure(kind) for kind in registry.PARTS["measure"]}, **own}
    if top in _from_test_rows(kinds.values()) or top in registry.PARTS["metric"]:
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
    silent = [kind for kind, measure in own.items() if not _says(measure)]
    if silent and top not in _known(measure for measure in kinds.values() if _says(measure)):
        raise ConfigError(
            f"--best {name}: if this is a number of {' or '.join(silent)}, it is not known whether it comes from test "
            f"rows; say it in the class: from_test_rows = () if none of its numbers does, or else their names"
        )
    return Choice(name, cast("Literal['max', 'min']", take))


def _measure(kind: str) -> type[Measure]:
    return cast("type[Measure]", registry.find("measure", kind))


def _from_test_rows(measures: Iterable[type[Measure]]) -> set[str]:
    """The numbers that test rows enter; and the lines that they are made of, which are no numbers of a summary."""
    some = [measure for measure in measures if measure.from_test_rows]
    return {name for measure in some for name in (*measure.from_test_rows, *measure.lines)}


def _says(measure: type[Measure]) -> bool:
    """Whether a measure, or one that it is derived from, says which of its numbers come from test rows."""
    told = next((c for c in measure.__mro__ if "from_test_rows" in vars(c)), Measure)
    return told is not Measure or measure.__module__.partition(".")[0] == __name__.partition(".")[0]


def _known(measures: Iterable[type[Measure]]) -> set[str]:
    """The numbers that come from measures that say it, and those that every summary has."""
    from .summary import NUMBERS

    found = set(NUMBERS)
    for measure in measures:
        found |= set(measure.lines)
        with contextlib.suppress(Exception):  # somebody's own may expect lines
            found |= set(measure.summarise([]))
    return found


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

    With several cells of a variant the best of each variant is chosen too: ``variants`` of ``sweep.json``, and
    ``tuned.yaml``, the configuration with these settings in its variants (without those that had none to choose from).

    A cell counts with the mean over its seeds. One that lacks the number for a seed is left out, and named; so is one
    with a seed in which no update was accepted, whose number is that of an untrained model. Does nothing in a folder
    that holds no sweep. Raises `ConfigError` if no cell is left.
    """
    folder = RunFolder(path)
    sweep = folder.sweep()
    if not sweep:
        return
    raw = folder.config()
    best = sweep.get("best")
    choice = None if best is None else Choice(best["number"], best["take"])
    told = {cell["cell"]: cell for cell in sweep.get("cells", [])}
    cells: dict[str, dict[str, Any]] = {}
    summary: dict[str, Any] = {}
    untrained: list[str] = []
    for single in expand(raw):
        name = single.variant
        fresh = {"cell": name, "changes": raw["variants"][name] or {}, **told.get(name, {}), "values": {}}
        cell = cells.setdefault(name, fresh)
        found = RunFolder(path / single.place).summary()
        summary = summary or found
        idle = found.get("updates") == 0
        if idle and single.variant not in untrained:
            untrained.append(single.variant)
        if choice is not None:
            cell["values"][str(single.seed)] = None if idle else number_in(found, choice.number)
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
    each = {} if choice is None else _best_of_each(table, choice.take)
    end = {
        "cells": table,
        **({"variants": each} if each else {}),
        "left_out": left_out,
        "untrained": untrained,
        "chosen": chosen,
        "finished": True,
    }
    folder.write_json("sweep.json", {**sweep, **end})
    if choice is not None and chosen is None and set(left_out) <= set(untrained):
        raise ConfigError(
            f"--best {choice.number}: in every cell there is a seed in which nothing was trained, so that there is "
            f"nothing to choose; the summaries have the first reason (first_problem). The runs are kept"
        )
    if choice is not None and chosen is None:
        raise ConfigError(
            f"--best {choice.number}: no cell has this number for all its seeds; the summaries have others: "
            f"{nearest(choice.number, names_in(summary))}. The runs are kept: choose again with the same command and "
            f"another --best"
        )
    if chosen is not None:
        base = {name: value for name, value in raw.items() if name != "variants"}
        folder.write_yaml("best.yaml", overridden(base, raw["variants"][chosen] or {}))
        tuned = {variant: _folded(cells[best["chosen"]]["changes"]) for variant, best in each.items() if best["chosen"]}
        if tuned:
            folder.write_yaml("tuned.yaml", {**base, "variants": tuned})


def _best_of_each(cells: Sequence[Mapping[str, Any]], take: str) -> dict[str, dict[str, Any]]:
    """The best cell of each variant, and how many it was chosen from; empty unless a variant has several cells."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for cell in cells:
        if "variant" in cell:
            groups.setdefault(cell["variant"], []).append(cell)
    if all(len(group) < 2 for group in groups.values()):
        return {}
    found = {}
    for variant, group in groups.items():
        best = next((cell for cell in group if cell["cell"] == pick(group, take)), {})
        numbers = {name: best.get(name) for name in ("settings", "mean", "sd", "n")}
        found[variant] = {"chosen": best.get("cell"), **numbers, "cells": len(group)}
    return found


def _folded(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes of a variant, with ``method.server.lr`` put inside an earlier ``method.server: {...}``."""
    found: dict[str, Any] = {}
    for key, value in changes.items():
        names = key.split(".")
        inside = next(
            (i for i in range(len(names) - 1, 0, -1) if isinstance(found.get(".".join(names[:i])), Mapping)), None
        )
        if inside is None:
            found[key] = value
        else:
            outer = ".".join(names[:inside])
            found[outer] = overridden(found[outer], {".".join(names[inside:]): value})
    return found


def written(value: Any) -> str:
    """A value of a setting as a table shows it."""
    return value if isinstance(value, str) else json.dumps(value, default=str)
