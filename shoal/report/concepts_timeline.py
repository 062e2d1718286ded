"""Concepts down, rounds across: the model that took each concept's clusters, and what became of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from ..metrics.concepts_models import Concept, Met, Models, entry_order
from .charts import SERIES, Chart, Key, axis_names, colour, figure, group, plain
from .load import Run, Runs
from .parts import note

CHARTS = 8
"""How many runs are drawn: the first seed of each variant, then the second, and so on."""
ROUNDS = 500
"""With more rounds than this, every k-th one is drawn."""
MARKS = 400
"""How many marks a chart has at most; of more dropped clusters the paler colour says it alone."""
KEYS = 40
"""How many colours the legend explains."""
SYMBOLS = {"rejected": "x-thin", "overwritten": "line-ne", "claimed": "circle-open", "merged": "cross-thin"}
"""The marks of what became of a cluster; those that were accepted have none."""


def concept_name(run: Run, label: str, concept: Concept) -> str:
    """A concept by its name in the data, where the stream gives one."""
    known = run.names.get(label, ())
    if isinstance(concept, int):
        return known[concept] if 0 <= concept < len(known) else f"{label} {concept}"
    return concept


def charts(runs: Runs, found: Mapping[int, Models]) -> str:
    """A timeline for each run, by ``id``, as far as there is room."""
    rows = [
        (seed, place, run)
        for place, members in enumerate(runs.variants.values())
        for seed, run in enumerate(members)
        if id(run) in found
    ]
    if not rows:
        return ""
    chosen = sorted(sorted(rows, key=lambda row: row[:2])[:CHARTS], key=lambda row: (row[1], row[0]))
    keys: dict[str, None] = {}
    for _, _, run in chosen:
        keys |= dict.fromkeys(_keys(found[id(run)]))
    entries = sorted(keys, key=entry_order)
    drawn = [
        Chart(_title(runs, run), _chart(run, found[id(run)], entries), wide=len(chosen) == 1) for _, _, run in chosen
    ]
    legend = [Key("", entry, place, "box") for place, entry in enumerate(entries[:KEYS])]
    if len(entries) > KEYS:
        legend.append(Key("", f"and {len(entries) - KEYS} others", KEYS, "box"))
    return group(drawn, legend) + note(_remarks(rows, chosen))


def _keys(models: Models) -> list[str]:
    """All models that a cell may show."""
    return [key for one in models.met if (key := shown(one)) is not None]


def shown(one: Met) -> str:
    """The model of a cell: the one that the concept's cluster updated; of a dropped one, which most clients trained."""
    if one.model is not None:
        return one.model
    choices: Counter[str] = Counter()
    for pair in one.pairs:
        choices[pair.choice] += pair.clients
    return min(choices, key=lambda key: (-choices[key], entry_order(key)))


def _chart(run: Run, models: Models, entries: Sequence[str]) -> go.Figure:
    last = max(one.round for one in models.met)
    step = math.ceil(last / ROUNDS)
    rounds = [round for round in range(1, last + 1) if (round - 1) % step == 0]
    concepts = list(models.of)
    cells = {(one.concept, one.round): one for one in models.met}
    names = axis_names([concept_name(run, models.label, concept) for concept in concepts])
    names = [f"{name} (lost)" if c in models.lost else name for name, c in zip(names, concepts, strict=True)]
    number = {entry: place for place, entry in enumerate(entries)}

    def code(one: Met | None) -> int | None:
        # Even: the model was updated; odd, the paler colour: the cluster was dropped.
        return None if one is None else 2 * number[shown(one)] + (one.model is None)

    table = [[cells.get((concept, round)) for round in rounds] for concept in concepts]
    shades = [shade for i in range(len(entries)) for shade in (colour(i), f"var(--band-{i % SERIES + 1})")]
    colours = [[edge, shade] for i, shade in enumerate(shades) for edge in (i / len(shades), (i + 1) / len(shades))]
    gap = 1 if len(rounds) <= 120 else 0
    heat = go.Heatmap(
        x=rounds, y=names, z=[[code(one) for one in row] for row in table], colorscale=colours, zmin=-0.5,
        zmax=len(shades) - 0.5, showscale=False, xgap=gap, ygap=1, hoverongaps=False,
        hovertext=[["" if one is None else _words(one) for one in row] for row in table],
        hovertemplate="%{y}, round %{x}<br>%{hovertext}<extra></extra>",
    )  # fmt: skip
    marks = [(name, one) for name, row in zip(names, table, strict=True) for one in row if one and one.fate in SYMBOLS]
    traces: list[Any] = [heat]
    if 0 < len(marks) <= MARKS:
        traces.append(
            go.Scatter(
                x=[one.round for _, one in marks], y=[name for name, _ in marks], mode="markers", hoverinfo="skip",
                showlegend=False,
                marker={"symbol": [SYMBOLS[one.fate] for _, one in marks], "size": 7, "color": "var(--text)",
                        "line": {"width": 2, "color": "var(--text)"}},
            )
        )  # fmt: skip
    drawn = figure(traces, "", boundaries=run.boundaries, height=90 + 26 * len(concepts))
    drawn.update_layout(hovermode="closest")
    drawn.update_shapes(layer="above", line_color="var(--text)")
    drawn.update_yaxes(type="category", autorange="reversed", showgrid=False, zeroline=False)
    return drawn


def _words(one: Met) -> str:
    """``"4 clients, of which 3 trained concept/1 and 1 concept/0; their cluster updated concept/1 (accepted)"``."""
    choices: Counter[str] = Counter()
    for pair in one.pairs:
        choices[pair.choice] += pair.clients
    trained = ", ".join(f"{count} trained {plain(key)}" for key, count in choices.most_common(3))
    became = f"was {one.fate}" if one.model is None else f"updated {plain(one.model)} ({one.fate})"
    return f"{one.clients} client{'' if one.clients == 1 else 's'}: {trained}<br>cluster {one.cluster} {became}"


def _title(runs: Runs, run: Run) -> str:
    what = "models of the concepts' clusters"
    return f"{run.variant}, seed {run.seed}: {what}" if not runs.single else what.capitalize()


def _remarks(rows: Sequence[Any], chosen: Sequence[Any]) -> str:
    said = (
        "The colour of a cell is the model that was updated by the cluster with most of the concept's clients in that "
        "round; a pale one with a cross is a cluster that was rejected (with a slash: overwritten by a later one), in "
        "the colour of the model that most of the clients had trained. A ring: the model's first update. A plus: "
        "merged with another cluster. An empty cell: nobody met the concept. A lost concept shares another one's "
        "model, or never updated the one that its clients train."
    )
    return said + (f" {len(chosen)} of {len(rows)} runs are drawn." if len(chosen) < len(rows) else "")
