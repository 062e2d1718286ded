"""Several runs side by side: numbers over seeds, a table, and plain sentences that say what is seen in them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .groups import groups_of
from .load import Run, Runs, read
from .numbers import describe, flat, metric, written
from .sentences import SKIPPED, findings, run_findings
from .twins import twins
from .unlike import unlike

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
    "step_end_accuracy",
    "drop_after_shift.changed.after",
    "recovery_rounds.changed.mean",
    "contact_purity.similar",
    "ari_mean",
    "concept_matching_accuracy.accepted",
    "concepts_lost",
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
    "step_end_accuracy": "step ends %",
    "drop_after_shift.changed.after": "drop after shift",
    "recovery_rounds.changed.mean": "rounds to recover",
    "contact_purity.similar": "purity %",
    "ari_mean": "ARI",
    "concept_matching_accuracy.accepted": "matched %",
    "concepts_lost": "concepts lost",
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
    learned. ``tests`` are the paired tests of `pairs.paired_tests` on it, ``ranking`` is that of `ranking.ranking`.
    Where the final numbers are not of one quantity (`groups.differences`) these are ``None`` and empty;
    ``incomparable`` says in what the runs differ, and ``groups`` has the three for each group of comparable
    ``variants``. ``same`` names runs that are the same twice (`twins.twins`),
    ``warnings`` say what is unlike in the runs beside what was to be compared, ``about`` says what was run, and
    ``findings`` are the sentences of `findings`. Raises `RunError` if there is no run.
    """
    return compare_runs(read(folder, *more))


def compare_runs(runs: Runs) -> dict[str, Any]:
    """The same for runs that are already read."""
    variants = {variant: _variant(members, runs.single) for variant, members in runs.variants.items()}
    groups, reasons = groups_of(runs, variants)
    only = groups[0] if len(groups) == 1 else {"lead": None, "tests": [], "ranking": {}}
    comparison: dict[str, Any] = {
        "name": runs.name, "variants": variants, "missing": runs.missing, "lead": only["lead"], "about": about(runs),
        "tests": only["tests"], "ranking": only["ranking"], "groups": groups, "incomparable": reasons,
        "same": twins(runs, groups), "warnings": unlike(runs, reasons),
    }  # fmt: skip
    return {**comparison, "findings": findings(comparison)}


def about(runs: Runs) -> dict[str, Any]:
    """What was run, as far as it is the same for all runs: data, model, method, rounds, clients, tasks, concepts."""
    sources: dict[str, set[Any]] = {}
    for run in runs.runs:
        parts = {name: run.config.get(name) for name in ("data", "model", "method")}
        kinds = {name: part.get("kind") if isinstance(part, Mapping) else part for name, part in parts.items()}
        stream = {name: run.stream.get(name) for name in ("clients", "tasks", "order")}
        if run.environment.get("data_name"):  # such as the folder's name: it says more than the kind
            kinds["data"] = run.environment["data_name"]
        for name, value in {**kinds, **stream, "rounds": run.planned}.items():
            if isinstance(value, str | int):
                sources.setdefault(name, set()).add(value)
    found: dict[str, Any] = {name: next(iter(values)) for name, values in sources.items() if len(values) == 1}
    concepts = {tuple(run.names["concept"]) for run in runs.runs if run.lines}
    if len(concepts) == 1 and (names := concepts.pop()):
        found["names"] = {"concept": list(names)}
    return found


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
    leads = {name: group["lead"] for group in comparison.get("groups") or () for name in group["variants"]}
    mixed = len(set(leads.values())) > 1
    table = []
    for name, variant in variants.items():
        row = {"variant": str(name)}
        if seeds:
            unfinished = f" (+{len(variant['unfinished'])} unfinished)" if variant["unfinished"] else ""
            row["seeds"] = f"{len(variant['seeds'])}{unfinished}"
        for key in keys:
            found = variant["numbers"].get(key, {})
            if mixed and key == "loss" and leads.get(str(name)) != "loss":
                found = {}  # the cross entropy of others in one column with errors of values would invite to compare
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
    leads = {group["lead"] for group in comparison.get("groups") or ()} | {comparison.get("lead")}
    if "loss" in leads:
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
