"""Which variant is first, and whether that is more than noise: ranks that are shared where no test separates."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ..metrics.functions import lower_is_better
from .load import Runs
from .numbers import describe, written
from .pairs import ALPHA, Values
from .parts import Section, bullets, folded, note, table
from .verdicts import difference, p_text, separated, within_noise
from .words import listed

SHOWN = 40
"""How many pairs the page lists; all are in comparison.json."""


def ranking(key: str, values: Mapping[str, Values], tests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The variants from best to worst by the mean of a number, in groups that the tests cannot tell apart.

    The best variant opens a group. The next ones belong to it, down to the first that a corrected test (p below
    0.05) separates from the group's best; that one opens the next group. ``rows`` have ``variant``, ``rank``
    (``"1"``, or ``"1-2"`` for a shared one), ``mean``, ``sd``, ``n``, and ``best``, the best of the group.
    ``separable`` is false where no two variants have two common seeds: then no test exists, and all share one rank.
    """
    lower = lower_is_better(key)
    means = {variant: statistics.fmean(found.values()) for variant, found in values.items() if found}
    order = sorted(means, key=lambda v: means[v] if lower else -means[v])
    apart = {frozenset((test["a"], test["b"])) for test in tests if separated(test)}
    groups: list[list[str]] = []
    for variant in order:
        if groups and frozenset((groups[-1][0], variant)) not in apart:
            groups[-1].append(variant)
        else:
            groups.append([variant])
    rows, place = [], 1
    for group in groups:
        rank = str(place) if len(group) == 1 else f"{place}-{place + len(group) - 1}"
        place += len(group)
        for variant in group:
            found = list(values[variant].values())
            sd = statistics.stdev(found) if len(found) > 1 else None
            about = {"mean": means[variant], "sd": sd, "n": len(found)}
            rows.append({"variant": variant, "rank": rank, **about, "best": group[0]})
    return {"key": key, "lower_is_better": lower, "alpha": ALPHA, "separable": bool(tests), "rows": rows}


def section(runs: Runs, comparison: Mapping[str, Any]) -> Section:
    """The ranks, the pairs behind them, and what is unlike in the runs beside what was to be compared.

    Runs without a common number are ranked inside the groups that have one.
    """
    title = "Ranking"
    groups = list(comparison.get("groups") or ())
    ranked = [group for group in groups if len(group["ranking"].get("rows", ())) > 1]
    warnings = comparison.get("warnings") or ()
    if runs.single or not (ranked or (len(groups) > 1 and warnings)):
        return Section("ranking", title, "")
    body = bullets(warnings) if warnings else ""
    for group in ranked:
        body += _group(group, several=len(groups) > 1)
    return Section("ranking", title if ranked else "Nothing is ranked", body)


def _group(group: Mapping[str, Any], several: bool) -> str:
    key, tests, ranked = group["lead"], group["tests"], group["ranking"]
    rows = [
        [
            row["variant"],
            row["rank"].replace("-", "\N{EN DASH}"),
            written(key, row["mean"], row["sd"]),
            _against(row, ranked, tests),
            str(row["n"]),
        ]
        for row in ranked["rows"]
    ]
    better = ", lower is better" if ranked["lower_is_better"] else ""
    whose = f" ({listed(list(group['variants']))}, which can be compared)" if several else ""
    body = table(
        f"By {describe(key).label.lower()}, mean ± standard deviation over seeds{better}{whose}",
        ["Variant", "Rank", describe(key).label, "p against the first", "Seeds"], rows,
    )  # fmt: skip
    body += note(_explain(group))
    if not tests:
        return body
    shown = sorted(tests, key=lambda test: test["p"])[:SHOWN]
    title_of_pairs = "Pairs of variants" if len(tests) <= SHOWN else f"Pairs: the first {SHOWN} of {len(tests)}"
    signed_rank = any("wilcoxon" in test for test in shown)
    wilcoxon = ["p (Wilcoxon)"] if signed_rank else []
    head = ["Pair", "Difference", "95 % interval", "p", "p (Holm)", *wilcoxon, "Seeds"]
    pairs = table(title_of_pairs, head, [_row(key, test, signed_rank) for test in shown])
    return body + (pairs if len(shown) <= 6 else folded(title_of_pairs, pairs))


def _explain(group: Mapping[str, Any]) -> str:
    tests, ranked = group["tests"], group["ranking"]
    rows = ranked["rows"]
    if not ranked["separable"]:
        return (
            "Nothing can be separated: a test needs at least two seeds that two variants have in common. The order is "
            "that of single numbers; run more seeds before believing it."
        )
    first = rows[0]
    own = [test for test in tests if first["variant"] in (test["a"], test["b"])]
    said = ""
    if own and not any(separated(test) for test in own) and len(own) == len(rows) - 1:
        if all(within_noise(ranked["key"], test, first["mean"]) for test in own):
            said = "All differences to the best are within noise. "
        else:
            said = "No test separates the best from the others; how large the differences may be, the intervals say. "
    if len(own) < len(rows) - 1:
        said = "Where p is a dash, no test is possible: the two have fewer than two seeds in common. "
    return said + (
        "Variants share a rank where no paired t-test over the common seeds separates them from the best of the rank "
        "(p below 0.05 after Holm's correction for the number of pairs). Pairing by seed: two variants with the same "
        "seed have the same rows, clients and order of tasks, so that what a seed makes easy or hard for both cancels "
        "out. With few seeds such a test finds large differences only: not separated does not mean equal."
    )


def _against(row: Mapping[str, Any], ranked: Mapping[str, Any], tests: Sequence[Mapping[str, Any]]) -> str:
    """The corrected p of a variant and the first one; a dash for the first itself, and without a test."""
    pair = {row["variant"], ranked["rows"][0]["variant"]}
    return next((p_text(test["p_holm"]) for test in tests if {test["a"], test["b"]} == pair), "-")


def _row(key: str, test: Mapping[str, Any], signed_rank: bool) -> list[str]:
    low, high = (difference(key, value) for value in test["ci"])
    more = [p_text(test["wilcoxon"]) if test.get("wilcoxon") is not None else "-"] if signed_rank else []
    pair = f"{test['a']} minus {test['b']}"
    same = " in every seed" if test["constant"] else ""
    return [pair, difference(key, test["difference"]) + same, f"{low} to {high}", p_text(test["p"]),
            p_text(test["p_holm"]), *more, str(test["n"])]  # fmt: skip
