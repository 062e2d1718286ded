"""Heat maps of a sweep over two settings, such as the server's rate and the clients': figure 5 of "Addressing Client
Drift in Federated Continual Learning with Adaptive Optimization" (arXiv 2203.13321)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from ..grid import short_names
from ..loading import leaves
from .charts import Chart, Choice, axis_names, figure, group
from .groups import grouped
from .load import Runs
from .numbers import PERCENT, POINTS, describe, in_unit
from .parts import Section, note
from .words import listed

SKIPPED = frozenset({"name", "seed", "description"})
SHOWN = ("bwt_f.seen", "client_drift", "validation_accuracy", "validation_loss")
"""What is drawn beside the number that the variants are compared by, if it was measured: the first two of them."""
CHARTS = 2
LEAST = 2
"""So many values each of the two settings must have, and there must be more cells than in one row and one column."""
OPTIONS = 12
"""Between so many maps a reader can choose."""
Settings = Mapping[str, Mapping[str, str]]


class Axes(NamedTuple):
    """The two settings of a map (``x`` has more values), and what else is unlike, by which there are several maps."""

    x: str
    y: str
    others: tuple[str, ...]


def section(runs: Runs, comparison: Mapping[str, Any]) -> Section:
    """Maps of final accuracy (or loss) and of what comes with it; empty where no two settings make a grid."""
    settings = {name: leaves(members[0].config) for name, members in runs.variants.items() if members[0].config}
    settings = {name: found for name, found in settings.items() if name in comparison["variants"]}
    found = axes_of(settings)
    groups = grouped(comparison)
    lead = groups[0]["lead"] if len(groups) == 1 else None
    if found is None or not lead:
        return Section("heat", "Two settings", "")
    numbers = {name: comparison["variants"][name]["numbers"] for name in settings}
    wanted = [lead, *[key for key in SHOWN if any(key in one for one in numbers.values())][:CHARTS]]
    panels = list(dict.fromkeys(tuple(one.get(key, "-") for key in found.others) for one in settings.values()))
    keys = [found.x, found.y, *found.others]
    short = short_names([key.removesuffix(".kind") for key in keys])
    names = {key: short[key.removesuffix(".kind")] for key in keys}
    options = [", ".join(f"{names[k]} {v}" for k, v in zip(found.others, panel, strict=True)) for panel in panels]
    charts = []
    for key in wanted:
        traces = [
            _trace(
                settings,
                numbers,
                found,
                key,
                [name for name in settings if _panel(settings, found, name) == p],
                [i] if len(panels) > 1 else None,
            )
            for i, p in enumerate(panels)
        ]
        charts.append(_chart(key, [t for t in traces if t is not None], found, names, settings))
    said = f"A cell is the mean over the seeds with this {names[found.y]} and {names[found.x]}. An empty one was not "
    said += "run, or is not finished."
    if panels[1:]:
        said += f" The runs differ in {listed([names[key] for key in found.others])}, too: choose above the maps."
    body = group(charts, choices=[Choice("Others", options)] if len(panels) > 1 else [])
    return Section("heat", f"{names[found.y]} by {names[found.x]}", body + note(said))


def axes_of(settings: Settings) -> Axes | None:
    """The two settings over which these variants, by name, make the largest grid; ``None`` where they make none.

    Numbers come before words. What is the same wherever the two are (a constant that goes with a rate) is no further
    difference; what else differs makes maps of its own, of which each must be a grid, in which at least half of the
    cells are there.
    """
    every = dict.fromkeys(key for found in settings.values() for key in found if key not in SKIPPED)
    unlike = [key for key in every if len({found.get(key) for found in settings.values()}) > 1]
    unlike = [key for key in unlike if not _goes_with_a_kind(settings, key, unlike)]
    best: tuple[tuple[int, int], Axes] | None = None
    for one, other in itertools.combinations(unlike, 2):
        axes = _axes(settings, one, other, unlike)
        if axes is None:
            continue
        numeric = sum(all(_number(v) is not None for v in _values(settings, key)) for key in (one, other))
        rank = numeric, len(_values(settings, one)) * len(_values(settings, other))
        if best is None or rank > best[0]:
            best = rank, axes
    return None if best is None else best[1]


def _goes_with_a_kind(settings: Settings, key: str, unlike: Sequence[str]) -> bool:
    """Whether each value of a setting is that of one kind of a part: each server with a rate of its own, as an axis of
    rates, would hide that servers are compared."""
    for kind in unlike:
        pairs = {(found.get(key), found.get(kind)) for found in settings.values()}
        counts = {len({found.get(k) for found in settings.values()}) for k in (key, kind)}
        if kind != key and kind.endswith(".kind") and not key.endswith(".kind") and counts == {len(pairs)}:
            return True
    return False


def _axes(settings: Settings, one: str, other: str, unlike: Sequence[str]) -> Axes | None:
    counts = {key: len(_values(settings, key)) for key in (one, other)}
    if min(counts.values()) < LEAST:
        return None
    at = {name: (found.get(one), found.get(other)) for name, found in settings.items()}
    kept: list[str] = []
    # The fewest values first: of a server and a constant that goes with server and rate, the server parts the maps.
    for key in sorted(unlike, key=lambda key: len(_values(settings, key))):
        known = {(at[name], *(found.get(k) for k in kept)) for name, found in settings.items()}
        more = {(at[name], *(found.get(k) for k in (*kept, key))) for name, found in settings.items()}
        if key not in (one, other) and len(more) > len(known):
            kept.append(key)
    panels: dict[tuple[str | None, ...], set[tuple[str | None, str | None]]] = {}
    for name, found in settings.items():
        cells = panels.setdefault(tuple(found.get(key) for key in kept), set())
        if at[name] in cells:
            return None
        cells.add(at[name])
    if len(panels) > OPTIONS:
        return None
    for cells in panels.values():
        sides = [len({cell[i] for cell in cells}) for i in (0, 1)]
        if min(sides) < LEAST or 2 * len(cells) < sides[0] * sides[1] or len(cells) < sum(sides):
            return None
    x, y = (one, other) if counts[one] >= counts[other] else (other, one)
    return Axes(x, y, tuple(kept))


def _panel(settings: Settings, axes: Axes, name: str) -> tuple[str, ...]:
    return tuple(settings[name].get(key, "-") for key in axes.others)


def _values(settings: Settings, key: str) -> list[str]:
    """A setting's values in order: numbers by size, words as they come."""
    found = list(dict.fromkeys(one.get(key, "-") for one in settings.values()))
    sizes = [_number(value) for value in found]
    if any(size is None for size in sizes):
        return found
    return [value for _, value in sorted(zip(sizes, found, strict=True), key=lambda pair: float(pair[0] or 0))]


def _number(value: str) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


def _trace(
    settings: Settings, numbers: Mapping[str, Any], axes: Axes, key: str, names: Sequence[str], view: list[int] | None
) -> go.Heatmap | None:
    columns, lines = _values(settings, axes.x), _values(settings, axes.y)
    at = {(settings[n].get(axes.y, "-"), settings[n].get(axes.x, "-")): numbers[n].get(key, {}) for n in names}
    means = [[at.get((line, column), {}).get("mean") for column in columns] for line in lines]
    known = [value for line in means for value in line if value is not None]
    if not known:
        return None
    unit = describe(key).unit
    cells = [[at.get((line, column), {}) for column in columns] for line in lines]
    text = [[in_unit(unit, c.get("mean"), None, unit=False) if c.get("mean") is not None else "" for c in line]
            for line in cells]  # fmt: skip
    full = [[in_unit(unit, c.get("mean"), c.get("sd")) for c in line] for line in cells]
    return go.Heatmap(
        z=means, x=axis_names(columns), y=axis_names(lines), text=text, customdata=full, showscale=False, xgap=2,
        ygap=2,
        zmin=min(known), zmax=max(known) if max(known) > min(known) else min(known) + 1, hoverongaps=False, name="",
        colorscale=[[0, "var(--heat-0)"], [1, "var(--heat-1)"]], texttemplate="%{text}", textfont={"size": 13},
        meta=None if view is None else {"view": view}, hovertemplate="%{y}, %{x}: %{customdata}<extra></extra>",
    )  # fmt: skip


def _chart(key: str, traces: Sequence[Any], axes: Axes, names: Mapping[str, str], settings: Settings) -> Chart:
    height = 130 + max(150, 46 * len(_values(settings, axes.y)))
    chart = figure(traces, names[axes.y], x=names[axes.x], whole=False, height=height)
    chart.update_layout(hovermode="closest")
    for axis in (chart.layout.xaxis, chart.layout.yaxis):
        axis.update(type="category", showgrid=False, zeroline=False, showline=False, ticks="")
    for axis, setting in ((chart.layout.xaxis, axes.x), (chart.layout.yaxis, axes.y)):
        order = axis_names(_values(settings, setting))
        axis.update(categoryorder="array", categoryarray=order)
    unit = {PERCENT: " (%)", POINTS: " (points)"}.get(describe(key).unit, "")
    return Chart(describe(key).label + unit, chart)
