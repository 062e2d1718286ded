"""Several runs side by side: numbers over seeds, a table, and plain sentences that say what is seen in them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..loading import leaves
from .load import Run, Runs, read
from .numbers import describe, flat, metric, written
from .pairs import paired_tests
from .ranking import ranking
from .sentences import SKIPPED, findings, run_findings

__all__ = ["COLUMNS", "SHORT", "compare", "compare_runs", "findings", "rows", "run_findings"]

COLUMNS = (
    "acc",
    "acc_last5",
    "over_targets.accuracy.worst_decile",
    "over_targets.accuracy.sd",
    "validation_accuracy",
    "validation_loss",
    "bwt_f.seen",
    "bwt_f.worst@1",
    "bwt_f.worst@5",
    "forgetting.first",
    "client_drift",
    "bytes_down_per_round",
    "bytes_up_per_round",
    "seconds",
)
"""The numbers of the full table, as far as the runs have them."""
SHORT = ("acc", "bwt_f.seen", "bwt_f.worst@1", "bwt_f.worst@5", "client_drift")
"""Those that fit a terminal of 80 columns."""
_ABOUT_TARGETS = frozenset({"over_targets.accuracy.worst_decile", "over_targets.accuracy.sd"})
"""Columns that say something only where clients are targets."""
MOST = 12
"""How many differences between runs are named."""
_HEADINGS = {
    "acc": "accuracy %",
    "acc_last5": "last 5 %",
    "loss": "test loss",
    "over_targets.accuracy.worst_decile": "worst decile %",
    "over_targets.accuracy.sd": "spread %",
    "validation_accuracy": "validation %",
    "validation_loss": "validation loss",
    "forgetting.first": "forgetting",
    "bwt_f.seen": "BWT_f seen",
    "bwt_f.worst@1": "worst@1",
    "bwt_f.worst@5": "worst@5",
    "client_drift": "drift",
    "bytes_down_per_round": "down/round",
    "bytes_up_per_round": "up/round",
    "seconds": "time",
}


def compare(folder: Path, *more: Path) -> dict[str, Any]:
    """The content of ``comparison.json`` for a folder of runs (or for several folders side by side).

    ``variants`` maps each variant to its finished ``seeds``, the ``unfinished`` ones, and ``numbers``: for every
    number of the runs' summaries (nested ones joined with dots, such as ``bwt_f.worst@5``) its ``mean``, sample
    standard deviation ``sd`` (``None`` for one seed), ``n``, and ``values`` by seed. Only finished runs count
    (a run on its own counts as far as it has come). ``missing`` names runs of the configuration that have no
    folder yet. ``lead`` is the number that the runs are compared by: ``acc``, or ``loss`` where real values are
    learned. ``tests`` are the paired tests of `pairs.paired_tests` on it, ``ranking`` is that of `ranking.ranking`,
    ``warnings`` say what is unlike in the runs beside what was to be compared, ``about`` says what was run, and
    ``findings`` are the sentences of `findings`. Raises `RunError` if there is no run.
    """
    return compare_runs(read(folder, *more))


def compare_runs(runs: Runs) -> dict[str, Any]:
    """The same for runs that are already read."""
    variants = {variant: _variant(members, runs.single) for variant, members in runs.variants.items()}
    key = "loss" if _learns_values(runs, variants) else "acc"
    values = {name: v["numbers"].get(key, {}).get("values", {}) for name, v in variants.items()}
    found = paired_tests(values)
    comparison: dict[str, Any] = {
        "name": runs.name, "variants": variants, "missing": runs.missing, "lead": key, "about": about(runs),
        "tests": found, "ranking": ranking(key, values, found), "warnings": unlike(runs),
    }  # fmt: skip
    return {**comparison, "findings": findings(comparison)}


def _learns_values(runs: Runs, variants: Mapping[str, Any]) -> bool:
    """Whether losses are compared: some run learns real values, or no run has an accuracy but some have a loss."""
    if any(run.stream.get("learns") == "values" for run in runs.runs):
        return True
    known = {key for variant in variants.values() for key in variant["numbers"]}
    return "acc" not in known and "loss" in known and all(not run.lines for run in runs.runs)


def about(runs: Runs) -> dict[str, Any]:
    """What was run, as far as it is the same for all runs: data, model, method, rounds, clients, tasks."""
    sources: dict[str, set[Any]] = {}
    for run in runs.runs:
        parts = {name: run.config.get(name) for name in ("data", "model", "method")}
        kinds = {name: part.get("kind") if isinstance(part, Mapping) else part for name, part in parts.items()}
        stream = {name: run.stream.get(name) for name in ("clients", "tasks", "order")}
        for name, value in {**kinds, **stream, "rounds": run.planned}.items():
            if isinstance(value, str | int):
                sources.setdefault(name, set()).add(value)
    return {name: next(iter(found)) for name, found in sources.items() if len(found) == 1}


def unlike(runs: Runs) -> list[str]:
    """What differs between variants so that a ranking of them means little: data, stream, rounds, seeds."""
    if runs.single:
        return []
    facts: dict[str, dict[str, list[str]]] = {}
    for variant, members in runs.variants.items():
        prints = sorted({str(p) for run in members if (p := run.environment.get("data_fingerprint"))})
        if prints:
            facts.setdefault("the data (their fingerprint)", {})[variant] = prints
        if members[0].config:
            parts = {k: v for k, v in members[0].config.items() if k in ("stream", "rounds", "data")}
            settings = {k: v for k, v in leaves(parts).items() if k not in ("data.path", "data.root", "data.cache")}
            for name, value in settings.items():
                facts.setdefault(name, {})[variant] = [value]
        if not runs.config.get("seeds"):  # else a run that is not there yet is missing, and named as such
            facts.setdefault("the seeds", {})[variant] = [run.seed for run in members]
    configured = sum(bool(members[0].config) for members in runs.variants.values())
    said, partly = [], []
    for name, by_variant in facts.items():
        if len({tuple(found) for found in by_variant.values()}) > 1:
            said.append(f"{name}: {_unlike(by_variant)}")
        elif len(by_variant) < configured and not name.startswith("the "):
            partly.append(f"{name}: {_unlike(by_variant)} alone")
    # Of other kinds of streams nearly every setting is there only in some: the kinds say it.
    said += [] if any(line.startswith(("stream.kind", "data.kind")) for line in said) else partly
    said = [*said[:MOST], f"and {len(said) - MOST} settings more"] if len(said) > MOST else said
    if not said:
        return []
    return [
        "These runs differ in more than a method: a ranking of runs of other data, streams, rounds or seeds says "
        "little about methods.",
        *said,
    ]


def _unlike(by_variant: Mapping[str, Sequence[str]]) -> str:
    groups: dict[str, list[str]] = {}
    for variant, found in by_variant.items():
        groups.setdefault(", ".join(found[:10]) + (", ..." if len(found) > 10 else ""), []).append(variant)
    shown = [f"{_short(value)} ({_few(names)})" for value, names in list(groups.items())[:6]]
    return "; ".join(shown) + ("; ..." if len(groups) > 6 else "")


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} others"


def _variant(members: Sequence[Run], unfinished_too: bool) -> dict[str, Any]:
    finished = [run for run in members if run.finished or (unfinished_too and run.summary)]
    numbers: dict[str, dict[str, float]] = {}
    for run in finished:
        for key, value in flat(run.summary).items():
            if key not in SKIPPED:
                numbers.setdefault(key, {})[run.seed] = value
    return {
        "method": next((run.summary.get("method") for run in finished), None),
        "first_problem": next((p for run in finished if (p := run.summary.get("first_problem"))), None),
        "rounds": max((int(run.summary.get("rounds") or 0) for run in finished), default=None),
        "seeds": [run.seed for run in finished],
        "unfinished": [run.seed for run in members if not run.finished],
        "numbers": {
            key: {
                "mean": math.fsum(values.values()) / len(values),
                "sd": statistics.stdev(values.values()) if len(values) > 1 else None,
                "n": len(values),
                "values": values,
            }
            for key, values in numbers.items()
        },
    }


def rows(comparison: Mapping[str, Any], full: bool = False) -> list[dict[str, str]]:
    """The final table: one row per variant, accuracies and points as ``"mean ± sd"``, points without their unit.

    Columns that nobody has are left out. ``full`` has all of `COLUMNS` and the deviation of every number;
    otherwise it is `SHORT`, drift is the mean alone, and ``seeds`` appear only where they are not the same for all.
    """
    variants = comparison["variants"]
    keys = [key for key in _wanted(comparison, full) if any(key in v["numbers"] for v in variants.values())]
    counts = {len(variant["seeds"]) for variant in variants.values()}
    seeds = full or len(counts) > 1 or any(variant["unfinished"] for variant in variants.values())
    table = []
    for name, variant in variants.items():
        row = {"variant": str(name)}
        if seeds:
            unfinished = f" (+{len(variant['unfinished'])} unfinished)" if variant["unfinished"] else ""
            row["seeds"] = f"{len(variant['seeds'])}{unfinished}"
        for key in keys:
            found = variant["numbers"].get(key, {})
            share = describe(key).unit in ("percent", "points")
            sd = found.get("sd") if share or full else None
            if describe(key).unit == "bytes":
                sd = sd or None  # the same for every seed, mostly: "± 0" would only take room
            row[_heading(key)] = written(key, found.get("mean"), sd, unit=not share)
        table.append(row)
    return table


def _wanted(comparison: Mapping[str, Any], full: bool) -> list[str]:
    """The columns, further metrics behind the accuracy; where real values are learned the loss comes first."""
    variants = comparison["variants"].values()
    means = dict.fromkeys(key for v in variants for key in v["numbers"] if _is_further_mean(key))
    wanted = list(COLUMNS if full else SHORT)
    clients = any(key.startswith("accuracy_by_target.client=") for v in variants for key in v["numbers"])
    wanted = [key for key in wanted if clients or key not in _ABOUT_TARGETS]
    if comparison.get("lead") == "loss":
        return ["loss", *means, *wanted]
    return [wanted[0], *means, *wanted[1:]] if full else wanted


def _is_further_mean(key: str) -> bool:
    """Whether this is the mean over the targets of a metric other than those that have numbers of their own."""
    parts = key.split(".")
    own = ("accuracy", "loss", "validation_accuracy", "validation_loss")
    return len(parts) == 3 and parts[0] == "over_targets" and parts[2] == "mean" and parts[1] not in own


def _heading(key: str) -> str:
    if key in _HEADINGS:
        return _HEADINGS[key]
    if _is_further_mean(key):
        found = metric(key.split(".")[1])
        return f"{found.label} %" if found.unit == "percent" else found.label
    return describe(key).label
