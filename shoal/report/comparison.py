"""Several runs side by side: numbers over seeds, a table, and plain sentences that say what is seen in them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .load import Run, Runs, read
from .numbers import describe, flat, written
from .sentences import SKIPPED, findings, run_findings

__all__ = ["COLUMNS", "SHORT", "compare", "compare_runs", "findings", "rows", "run_findings"]

COLUMNS = (
    "acc",
    "acc_last5",
    "bwt_f.seen",
    "bwt_f.worst@1",
    "bwt_f.worst@5",
    "client_drift",
    "bytes_down_per_round",
    "bytes_up_per_round",
    "seconds",
)
"""The numbers of the full table, as far as the runs have them."""
SHORT = ("acc", "bwt_f.seen", "bwt_f.worst@1", "bwt_f.worst@5", "client_drift")
"""Those that fit a terminal of 80 columns."""
_HEADINGS = {
    "acc": "accuracy %",
    "acc_last5": "last 5 %",
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
    folder yet, ``findings`` are the sentences of `findings`. Raises `RunError` if there is no run.
    """
    return compare_runs(read(folder, *more))


def compare_runs(runs: Runs) -> dict[str, Any]:
    """The same for runs that are already read."""
    variants = {variant: _variant(members, runs.single) for variant, members in runs.variants.items()}
    comparison: dict[str, Any] = {"name": runs.name, "variants": variants, "missing": runs.missing}
    return {**comparison, "findings": findings(comparison)}


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
    wanted = COLUMNS if full else SHORT
    keys = [key for key in wanted if any(key in v["numbers"] for v in variants.values())]
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
            row[_HEADINGS[key]] = written(key, found.get("mean"), sd, unit=not share)
        table.append(row)
    return table
