"""Which runs have a number in common: groups of variants whose final numbers are of the same quantity.

An accuracy or a loss can be ranked and subtracted only where it is measured on the same test rows of the same data;
a loss, moreover, only where it is the same function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..loading import leaves
from .lead import METRICS, lead_key
from .load import Run, Runs
from .pairs import paired_tests
from .ranking import ranking
from .series import target_of
from .words import values_of

WHERE = frozenset({"path", "root", "cache"})
"""Settings of ``data`` that say where it lies, not what it is."""
Rows = tuple[Any, ...]


class Basis(NamedTuple):
    """What a variant's final number is of; what is not known is empty and differs from nothing."""

    lead: str
    """``acc`` or ``loss``; empty where nothing says it."""
    loss: str
    """The loss function with its arguments."""
    prints: tuple[str, ...]
    """The fingerprints of the data."""
    data: tuple[tuple[str, str], ...]
    """The settings of the data, for runs without a fingerprint."""
    rows: Mapping[str, Rows]
    """Seed -> the names of the tasks, and the test rows of each target."""
    choices: frozenset[int] = frozenset()
    """From how many classes the models choose: with a head per task it is easier to be right than among all."""


def basis(members: Sequence[Run], numbers: Mapping[str, Any]) -> Basis:
    """What the final number of these runs of one variant is of."""
    learns = [run.stream.get("learns") for run in members]
    lead = lead_key(learns, numbers)
    if not any(learns) and not any(key in numbers for key in METRICS):
        lead = ""
    config = next((run.config for run in members if run.config), {})
    local, data = config.get("local"), config.get("data")
    loss = {k: v for k, v in local.items() if k in ("loss", "loss_args") and v} if isinstance(local, Mapping) else {}
    settings = leaves({k: v for k, v in data.items() if k not in WHERE}) if isinstance(data, Mapping) else {}
    return Basis(
        lead,
        ", ".join(v for _, v in sorted(leaves(loss).items())),
        tuple(sorted({str(p) for run in members if (p := run.environment.get("data_fingerprint"))})),
        tuple(sorted(settings.items())),
        {run.seed: found for run in members if (found := _rows(run))},
        frozenset(
            len(classes)
            for run in members
            for record in run.records.get("confusion", [])
            if isinstance(classes := record.get("classes"), list)
        ),
    )


def _rows(run: Run) -> Rows:
    """The names of the tasks, and each target with its test rows, as they were last measured."""
    lines = run.metrics.get("accuracy") or run.metrics.get("loss") or []
    last = max((line["round"] for line in lines if isinstance(line.get("round"), int)), default=None)
    found = {target_of(line): line.get("rows") for line in lines if line.get("round") == last}
    return (tuple(run.names["task"]), tuple(sorted(found.items(), key=repr))) if found else ()


def differences(a: Basis, b: Basis) -> list[str]:
    """In what two variants' final numbers are of different quantities; empty where they can be compared."""
    said = []
    if a.lead and b.lead and a.lead != b.lead:
        said.append("what is learned")
    elif "loss" in (a.lead, b.lead) and a.loss and b.loss and a.loss != b.loss:
        said.append("the loss function")
    if (a.prints != b.prints) if a.prints and b.prints else (a.data and b.data and a.data != b.data):
        said.append("the data")
    elif _other_rows(a, b):
        said.append("the test rows")
    if a.choices and b.choices and a.choices != b.choices and "the data" not in said:
        said.append("the number of classes to choose from")
    return said


def _other_rows(a: Basis, b: Basis) -> bool:
    common = [seed for seed in a.rows if seed in b.rows]
    if common:
        return any(a.rows[seed] != b.rows[seed] for seed in common)
    # Other seeds may deal the test rows to the targets in another way: how many targets of which kind is all to see.
    kinds = [{_kinds(rows) for rows in one.rows.values()} for one in (a, b)]
    return bool(kinds[0] and kinds[1]) and kinds[0] != kinds[1]


def _kinds(rows: Rows) -> Rows:
    tasks, targets = rows
    return tasks, len(targets), tuple(sorted({label for target, _ in targets for label, _ in target}))


def partition(bases: Mapping[str, Basis]) -> tuple[list[list[str]], list[str]]:
    """The variants in groups of comparable ones, in their order, and in what the groups differ."""
    groups: list[list[str]] = []
    reasons: dict[str, None] = {}
    for name, own in bases.items():
        fitting = None
        for group in groups:
            found = [reason for other in group for reason in differences(bases[other], own)]
            reasons |= dict.fromkeys(found)
            if not found and fitting is None:
                fitting = group
        if fitting is None:
            groups.append([name])
        else:
            fitting.append(name)
    return groups, list(reasons)


def groups_of(runs: Runs, variants: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """The groups of comparable variants, each with its ``lead``, ``tests`` and ``ranking``; and why there are several.

    A group's tests are corrected for the pairs of the group.
    """
    bases = {name: basis(members, variants[name]["numbers"]) for name, members in runs.variants.items()}
    found, reasons = partition(bases)
    groups = []
    for names in found:
        learns = [run.stream.get("learns") for name in names for run in runs.variants[name]]
        groups.append(_group({name: variants[name] for name in names}, learns))
    return groups, reasons if len(groups) > 1 else []


def _group(variants: Mapping[str, Any], learns: Sequence[Any] = ()) -> dict[str, Any]:
    key = lead_key(learns, {key for variant in variants.values() for key in variant["numbers"]})
    values = {str(name): values_of(variant["numbers"], key) for name, variant in variants.items()}
    tests = paired_tests(values)
    return {"variants": list(values), "lead": key, "tests": tests, "ranking": ranking(key, values, tests)}


def grouped(comparison: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The groups of a comparison; of one that was made by hand, or by an older version, all variants together."""
    return list(comparison.get("groups") or ()) or [_group(comparison["variants"])]
