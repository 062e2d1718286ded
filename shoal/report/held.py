"""Which classes each client holds: the counts that the stream's record has, as a heat map."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import plotly.graph_objects as go

from .charts import Chart, axis_names, figure, group, plain
from .clients import called, name_of
from .load import Run, Runs
from .parts import note

CHARTS = 6
"""How many different streams are drawn."""
CELLS = 60_000
"""How many cells all of these charts may have together."""
NAMED = 40
"""So many clients at most are named on the axis, where they have names."""


def classes_held(run: Run) -> list[list[int]]:
    """Client -> class -> training rows in round 1; empty where the stream does not tell them."""
    found, classes = run.stream.get("client_classes"), run.stream.get("classes")
    if not isinstance(found, list) or not isinstance(classes, list) or not classes:
        return []
    whole = all(
        isinstance(counts, list) and len(counts) == len(classes) and all(isinstance(n, int) and n >= 0 for n in counts)
        for counts in found
    )
    return found if whole else []


def held_charts(runs: Runs, heading: Callable[[Runs, Run, Sequence[str]], str]) -> str:
    """A heat map for each different stream; ``heading`` calls the runs that share one. Empty without counts."""
    found: dict[str, tuple[Run, list[str]]] = {}
    for variant, members in runs.variants.items():
        for run in members:
            counts = classes_held(run)
            if counts:
                mark = repr((counts, run.stream["classes"], run.names["client"]))
                found.setdefault(mark, (run, []))[1].append(f"{variant}, seed {run.seed}")
    drawn: list[Chart] = []
    room = CELLS
    for run, who in found.values():
        counts = classes_held(run)
        room -= len(counts) * len(counts[0])
        if len(drawn) < CHARTS and (room >= 0 or not drawn):
            drawn.append(Chart(f"{heading(runs, run, who)}: which classes each client holds", _chart(run, counts)))
    if not drawn:
        return ""
    drawn = [drawn[0]._replace(wide=True)] if len(drawn) == 1 else drawn
    said = (
        "Darker: a larger share of the client's own training rows in round 1 is of the class. Pointing at a cell, or "
        "touching it, tells the rows."
    )
    if len(drawn) < len(found):
        said += f" {len(drawn)} of {len(found)} different streams are drawn."
    return group(drawn) + note(said)


def _chart(run: Run, counts: Sequence[Sequence[int]]) -> go.Figure:
    classes = [str(name) for name in run.stream["classes"]]
    clients = range(len(counts))
    named = len(counts) <= NAMED and any(name_of(run, client) for client in clients)
    rows: list[Any] = axis_names([name_of(run, client) or str(client) for client in clients]) if named else [*clients]
    sums = [sum(some) for some in counts]
    shares = [[round(n / sums[c], 3) if sums[c] else 0 for n in some] for c, some in enumerate(counts)]
    hover = [
        [f"{plain(called(run, c))}, class {plain(name)}<br>{n:,} of {sums[c]:,} training rows"
         for name, n in zip(classes, counts[c], strict=True)]
        for c in clients
    ]  # fmt: skip
    gap = 1 if len(counts) <= 60 and len(classes) <= 40 else 0
    trace = go.Heatmap(
        x=axis_names(classes), y=rows, z=shares, hovertext=hover, zmin=0, zmax=1, showscale=False, xgap=gap, ygap=gap,
        colorscale=[[0, "var(--heat-0)"], [1, "var(--heat-1)"]], hovertemplate="%{hovertext}<extra></extra>",
    )  # fmt: skip
    row = 26 if len(counts) <= 12 else 14 if len(counts) <= 50 else 8
    drawn = figure([trace], "client", x="class", whole=False, height=110 + row * len(counts))
    drawn.update_layout(hovermode="closest")
    drawn.update_xaxes(type="category", tickangle=-45 if max(map(len, classes)) > 3 else 0)
    drawn.update_yaxes(type="category", autorange="reversed", showgrid=False, zeroline=False)
    return drawn
