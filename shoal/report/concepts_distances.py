"""Distances of the clusters from the models, beside what the models let in: gates and records."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import plotly.graph_objects as go

from ..metrics.concepts_models import Models, entry_order
from .charts import Chart, Choice, Key, colour, figure, group, plain
from .concepts_timeline import concept_name
from .load import Line, Run, Runs
from .parts import note
from .series import number, thinned
from .words import counted

MODELS = 12
"""How many models get a chart: those to which most clusters came."""
POINTS = 20_000
"""How many clusters all charts may have together; the first runs come first."""
SYMBOLS = {"accepted": "circle", "claimed": "circle-open", "merged": "cross", "rejected": "x", "overwritten": "x-open"}
LIMITS = {"usual": ("gate", "gate"), "record": ("record", "slack")}
"""What a matching remembers of a model: what the limit is called, and the setting that it is multiplied by."""


class Point(NamedTuple):
    """A cluster in a round: the model that it updated (the nearest one, if it was dropped), and how far it was away."""

    round: int
    model: str
    distance: float
    fate: str
    clients: int
    concepts: str
    dropped: bool


class Limits(NamedTuple):
    """What a model let in at the start of each round: the limit's name, and its values by round."""

    name: str
    values: Mapping[int, float]


def charts(runs: Runs, found: Mapping[int, Models]) -> str:
    """A chart for each model, with a choice of run; empty where no distances are recorded."""
    room = POINTS
    every: list[tuple[Run, list[Point]]] = []
    for members in runs.variants.values():
        for run in members:
            points = list(points_of(run, found.get(id(run))))
            if points and (room >= len(points) or not every):
                every.append((run, points))
                room -= len(points)
    if not every:
        return ""
    counts: dict[str, int] = {}
    for _, points in every:
        for point in points:
            counts[point.model] = counts.get(point.model, 0) + 1
    shown = sorted(sorted(counts, key=lambda key: (-counts[key], entry_order(key)))[:MODELS], key=entry_order)
    traces: dict[str, list[Any]] = {model: [] for model in shown}
    names: list[str] = []
    for place, (run, points) in enumerate(every):
        meta = {"view": [place]} if len(every) > 1 else None  # without a choice everything is shown
        for model in shown:
            limits = limits_of(run, model)
            names += [one.name for one in limits if one.name not in names]
            own = [point for point in points if point.model == model]
            traces[model] += _traces(own, limits, names, meta)
    edges = runs.boundaries
    drawn = [
        Chart(model, figure(some, "distance", boundaries=edges, logarithmic=True)) for model, some in traces.items()
    ]
    for chart in drawn:
        chart.figure.update_layout(hovermode="closest")
    legend = [Key("", "clusters that updated the model", 0, "box"), Key("", "dropped, and nearest to it", 1, "box")]
    legend += [Key("", f"{name} at the start of the round", 2 + place) for place, name in enumerate(names)]
    who = ["the run" if runs.single else f"{run.variant}, seed {run.seed}" for run, _ in every]
    said = (
        "Every cluster of a round, by its distance from the model that it updated, or, if it was dropped, from the "
        "nearest one. Open marks: first updates of a model, and clusters that were overwritten. A model without a line "
        "in a round is open to all clusters. Distance 0 is not drawn."
    )
    if any(_corrected(run) for run, _ in every):
        said += " Where size_corrected is on, distances are multiplied by the root of the cluster's number of clients."
    if len(counts) > len(shown):
        said += f" {len(shown)} of {len(counts)} models are drawn."
    return group(drawn, legend, [Choice("Distances in", who)]) + note(said)


def points_of(run: Run, models: Models | None) -> Iterator[Point]:
    """The clusters of a run with finite distances; broken records are passed over."""
    whose: dict[tuple[int, int], list[str]] = {}
    for one in models.met if models else ():
        whose.setdefault((one.round, one.cluster), []).append(
            concept_name(run, models.label, one.concept) if models else ""
        )
    for record in run.records.get("clusters", []):
        if not _sound(record):
            continue
        for cluster, row in enumerate(record["distances"]):
            size = record["labels"].count(cluster)
            factor = math.sqrt(size) if _corrected(run) else 1.0
            away = [number(value) for value in row]
            fate, home = str(record["fates"][cluster]), record["models"][cluster]
            near = {key: value for key, value in zip(record["entries"], away, strict=True) if value is not None}
            if not near:
                continue
            model = min(near, key=lambda key: near[key]) if home not in near else home
            about = ", ".join(whose.get((record["round"], cluster), ["no concept's"]))
            yield Point(record["round"], str(model), near[model] * factor, fate, size, about, home is None)


def limits_of(run: Run, model: str) -> list[Limits]:
    """What a model let in, from what its matching remembered after the round before."""
    settings = run.config.get("method", {})
    settings = settings.get("matching") if isinstance(settings, Mapping) else None
    settings = settings if isinstance(settings, Mapping) else {}
    found: dict[str, dict[int, float]] = {}
    for record in run.records.get("clusters", []):
        kept = record.get("kept")
        if not (_sound(record) and isinstance(kept, Mapping) and model in record["entries"]):
            continue
        place = record["entries"].index(model)
        for name, values in kept.items():
            value = number(values[place]) if isinstance(values, list) and place < len(values) else None
            if value:
                title, setting = LIMITS.get(str(name), (str(name), ""))
                factor = number(settings.get(setting, 1.0)) or 1.0
                found.setdefault(title, {})[record["round"] + 1] = value * factor
    return [Limits(name, values) for name, values in found.items()]


def _corrected(run: Run) -> bool:
    method = run.config.get("method")
    matching = method.get("matching") if isinstance(method, Mapping) else None
    return isinstance(matching, Mapping) and bool(matching.get("size_corrected"))


def _sound(record: Line) -> bool:
    lists = [record.get(name) for name in ("labels", "models", "fates", "entries", "distances")]
    if not isinstance(record.get("round"), int) or not all(isinstance(one, list) for one in lists):
        return False
    _, models, fates, entries, distances = (list(one or ()) for one in lists)
    return len(models) == len(fates) == len(distances) and all(
        isinstance(row, list) and len(row) == len(entries) for row in distances
    )


def _traces(points: list[Point], limits: list[Limits], names: list[str], meta: Any) -> list[Any]:
    traces: list[Any] = []
    for limit in limits:
        rounds = sorted(limit.values)
        kept = [rounds[i] for i in thinned(rounds)]
        traces.append(
            go.Scatter(
                x=kept, y=[float(f"{limit.values[round]:.6g}") for round in kept], mode="lines", name=limit.name,
                showlegend=False, meta=meta,
                line={"color": colour(2 + names.index(limit.name)), "width": 2, "shape": "hvh"},
                hovertemplate=f"{limit.name} %{{y:.4g}}, round %{{x}}<extra></extra>",
            )
        )  # fmt: skip
    for place, dropped in enumerate((False, True)):
        some = [point for point in points if point.dropped == dropped and point.distance > 0]
        if some:
            traces.append(
                go.Scatter(
                    x=[point.round for point in some], y=[float(f"{point.distance:.6g}") for point in some],
                    mode="markers", showlegend=False, meta=meta, name="",
                    marker={"color": colour(place), "size": 6, "symbol": [SYMBOLS.get(p.fate, "circle") for p in some]},
                    hovertext=[f"{p.fate}, {counted(p.clients, 'client')}: {plain(p.concepts)}" for p in some],
                    hovertemplate="%{hovertext}<br>distance %{y:.4g}, round %{x}<extra></extra>",
                )
            )  # fmt: skip
    return traces
