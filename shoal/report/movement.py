"""How far the entries of the bank turn in the rounds that train them: a gap is a round that did not train the entry."""

from __future__ import annotations

import math

from .charts import Chart, Choice, Key, figure, group, lines
from .load import Run, Runs
from .parts import note
from .series import curve, number, over_seeds

SCOPES = {"head": "the head", "all": "all parameters"}
FEW = 12
"""With more entries than this their mean is drawn instead of every one."""
PANELS = 6
"""How many variants get a chart of their own."""
METRIC = "entry_cosine"


def charts(runs: Runs) -> str:
    """A chart per variant with a line for each entry, with a choice of scope and seed; empty if nothing is logged."""
    found = {variant: [m for m in members if m.metrics.get(METRIC)] for variant, members in runs.variants.items()}
    found = {variant: members for variant, members in list(found.items())[:PANELS] if members}
    if not found:
        return ""
    entries = list(dict.fromkeys(e for members in found.values() for run in members for e in entries_of(run)))
    few = 0 < len(entries) <= FEW
    lines_of = [line for members in found.values() for run in members for line in run.metrics[METRIC]]
    scopes = [scope for scope in SCOPES if any(line.get("over") == scope for line in lines_of)]
    seeds = list(dict.fromkeys(run.seed for members in found.values() for run in members))
    drawn = []
    for variant, members in found.items():
        traces = []
        for i, scope in enumerate(scopes):
            for run in members:
                view = (i, seeds.index(run.seed))
                named = [(place, name, curves(run, scope, name)) for place, name in enumerate(entries)] if few else []
                for place, name, one in named or [(0, "mean over the entries", mean(run, scope))]:
                    if one:
                        edges = run.boundaries
                        traces += lines(over_seeds([one]), name, name, place, 1, edges, ".3g", view=view, gaps=True)
        chart = figure(traces, "1 - cosine", boundaries=members[0].boundaries, from_zero=True, height=260)
        what = "Every entry" if few else f"Mean over {len(entries) or 'the'} entries"
        drawn.append(Chart(what + ("" if runs.single else f": {variant}"), chart, wide=len(found) == 1))
    legend = [Key(name, name, place) for place, name in enumerate(entries)] if few and len(entries) > 1 else []
    choices = [Choice("Over", [SCOPES[s] for s in scopes]), Choice("Run", [f"seed {seed}" for seed in seeds])]
    return "<h3>Movement of the entries</h3>" + group(drawn, legend, choices) + note(
        "1 minus the cosine of the angle between an entry before and after a round that trained it. A gap: rounds in "
        "which nobody trained the entry. High at first and behind a boundary, low where the entry has settled."
    )  # fmt: skip


def entries_of(run: Run) -> list[str]:
    """The entries that are logged by name."""
    return list(dict.fromkeys(str(line["entry"]) for line in run.metrics.get(METRIC, []) if "entry" in line))


def curves(run: Run, scope: str, entry: str) -> dict[int, float]:
    """One entry's movement by round; rounds that did not train it are missing."""
    found = curve(run.metrics[METRIC], over=scope, entry=entry)
    return {round: value for round, value in found.items() if round > 0}


def mean(run: Run, scope: str) -> dict[int, float]:
    """The mean over the entries of a round; a line over several ``entries`` counts as many times."""
    parts: dict[int, list[tuple[float, float]]] = {}
    for line in run.metrics[METRIC]:
        round, value, count = line.get("round"), number(line.get("value")), number(line.get("entries", 1))
        if line.get("over") != scope or not isinstance(round, int) or round < 1:
            continue
        if value is not None and count is not None:
            parts.setdefault(round, []).append((value, count))
    return {
        round: math.fsum(v * n for v, n in some) / total
        for round, some in sorted(parts.items())
        if (total := math.fsum(n for _, n in some))
    }
