"""Heat maps of the similarities that clients keep of each other: rows and columns sorted by cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import plotly.graph_objects as go

from .charts import Chart, Choice, figure, group, plain
from .load import Line, Run, Runs
from .parts import note
from .series import number, quantile

CELLS = 120_000
"""How many cells all heat maps of a page may have together; the first runs come first."""
NAMED = 20
"""Up to so many clusters are named below the heat map."""
TOP = 0.98
"""The darkest colour is that of this quantile of a matrix: a few huge similarities would leave the others blank."""


class Matrix(NamedTuple):
    """One record: of which run, after which round, the rows' names, their clusters, and the values."""

    who: str
    moment: str
    round: int
    names: list[str]
    clusters: list[str]
    values: list[list[float | None]]


def heat_maps(runs: Runs) -> str:
    """A heat map with a choice of run and round; nothing without records."""
    every = [m for members in runs.variants.values() for run in members for m in matrices(run, _who(runs, run))]
    room = CELLS
    drawn: list[Matrix] = []
    for one in every:
        room -= len(one.values) ** 2
        if room >= 0 or not drawn:
            drawn.append(one)
    if not drawn:
        return ""
    whos = list(dict.fromkeys(m.who for m in drawn))
    moments = [moment for _, moment in sorted({(m.round, m.moment) for m in drawn})]
    traces = [_trace(m, [whos.index(m.who), moments.index(m.moment)]) for m in drawn]
    side = max(len(m.values) for m in drawn)
    height = 130 + max(200, min(620, 12 * side))
    chart = figure(traces, "whose view: client [cluster]", x="of whom: client [cluster]", whole=False, height=height)
    chart.update_layout(hovermode="closest")
    for axis in (chart.layout.xaxis, chart.layout.yaxis):
        axis.update(
            type="category", showgrid=False, zeroline=False, showline=False, ticks="", showticklabels=side <= 40
        )
    chart.update_yaxes(autorange="reversed")
    choices = [Choice("Run", whos), Choice("After", moments)]
    said = (
        "Rows and columns are clients, sorted by their cluster after that round: if similarities find the clusters, "
        "dark squares lie along the diagonal. The colour is the similarity from 0 to the largest (but for the top 2 %) "
        "of each matrix; an empty cell is a pair that has no number."
    )
    if any(m.names and m.names[0].startswith("block") for m in drawn):
        said += " Where there are many clients a row stands for several of one cluster, with the mean of their numbers."
    named = list(dict.fromkeys(tuple(run.names.get("cluster", ())) for run in runs.runs))
    if len(named) == 1 and 0 < len(named[0]) <= NAMED:
        said += " Clusters: " + "; ".join(f"{place}: {name}" for place, name in enumerate(named[0])) + "."
    if len(drawn) < len(every):
        said += f" {len(every) - len(drawn)} of {len(every)} matrices are left out; all are in metrics.jsonl."
    return group([Chart("Similarities among the clients", chart, wide=True)], choices=choices) + note(said)


def matrices(run: Run, who: str) -> Iterator[Matrix]:
    """The well-formed records of a run, oldest first; ``who`` names the run."""
    for record in run.records.get("similarity", []):
        values, clusters = record.get("values"), record.get("clusters")
        if not (isinstance(values, list) and isinstance(clusters, list) and len(values) == len(clusters) > 0):
            continue
        if not all(isinstance(row, list) and len(row) == len(values) for row in values):
            continue
        if not isinstance(record.get("round"), int):
            continue
        cells = [[number(value) for value in row] for row in values]
        names = _names(record, len(values))
        whose = ["" if cluster is None else str(cluster) for cluster in clusters]
        yield Matrix(who, _moment(run, record["round"]), record["round"], names, whose, cells)


def _names(record: Line, count: int) -> list[str]:
    clients, sizes = record.get("clients"), record.get("sizes")
    if isinstance(clients, list) and len(clients) == count:
        return [str(client) for client in clients]
    if isinstance(sizes, list) and len(sizes) == count:
        return [f"block {place}, {size} clients" for place, size in enumerate(sizes)]
    return [str(place) for place in range(count)]


def _moment(run: Run, round: int) -> str:
    if round in run.boundaries:
        return f"round {round}, the last before a shift"
    since = [round - b for b in run.boundaries if b < round]
    return f"round {round}, the {_ordinal(min(since))} after a shift" if since and min(since) <= 5 else f"round {round}"


def _ordinal(place: int) -> str:
    return ("first", "second", "third", "fourth", "fifth")[place - 1]


def _who(runs: Runs, run: Run) -> str:
    return "the run" if runs.single else f"{run.variant}, seed {run.seed}"


def _trace(matrix: Matrix, view: list[int]) -> Any:
    known = [value for row in matrix.values for value in row if value is not None]
    top = quantile(known, TOP) if known else 1.0
    names = [
        plain(f"{name} [{cluster}]" if cluster else name)
        for name, cluster in zip(matrix.names, matrix.clusters, strict=True)
    ]
    return go.Heatmap(
        z=matrix.values, x=names, y=names, zmin=0, zmax=top if top > 0 else 1.0, showscale=False,
        colorscale=[[0, "var(--heat-0)"], [1, "var(--heat-1)"]], meta={"view": view}, name="", hoverongaps=False,
        hovertemplate="%{y} on %{x}: %{z:.3g}<extra></extra>",
    )  # fmt: skip
