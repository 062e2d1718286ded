"""Charts: lines with bands, legends, and the frame that the page's script draws.

Colours are names of CSS variables (``var(--series-1)``), so the style sheet alone decides them, in light and dark.
Legends are HTML: they wrap on a phone and switch lines on and off in all charts of their group.
"""

from __future__ import annotations

import bisect
import html
import itertools
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from .parts import esc
from .series import Spread, thinned

SERIES = 8
"""How many colours there are; from there on they come again with another dash."""
DASHES = ("solid", "dash", "dot", "dashdot")
ROUNDS = 8
"""Over no more rounds than this each has a tick of its own."""
NAME = 22
"""How much of a name stands on an axis."""


class Chart(NamedTuple):
    """One chart with its heading; ``wide`` ones take the whole width of their group."""

    title: str
    figure: go.Figure
    wide: bool = False


class Choice(NamedTuple):
    """What a reader can choose above charts: its name, and the options, of which the first is shown at the start."""

    label: str
    options: Sequence[str]


View = Sequence[int | None]
"""When a trace shows: the number of the chosen option of each choice; ``None`` is any of them."""


class Key(NamedTuple):
    """One item of a legend: the lines that it switches (``group``; empty: none), its name, and its look."""

    group: str
    label: str
    place: int
    shape: str = "line"


def colour(place: int) -> str:
    """The colour of the n-th series."""
    return f"var(--series-{place % SERIES + 1})"


def dash(place: int) -> str:
    """The dash of the n-th series."""
    return DASHES[place // SERIES % len(DASHES)]


def plain(text: str) -> str:
    """Text that a chart shows literally: charts read a little HTML in names."""
    return html.escape(text, quote=False)


def axis_names(names: Sequence[str]) -> list[str]:
    """Names for an axis: short, and different from each other, as equal ones would share a row."""
    found: list[str] = []
    for place, name in enumerate(names):
        short = plain(name if len(name) <= NAME else f"{name[: NAME - 3]}...")
        found.append(short if short not in found else f"{short} #{place}")
    return found


def lines(
    spread: Spread,
    name: str,
    group: str,
    place: int,
    scale: float = 1.0,
    boundaries: Collection[int] = (),
    digits: str = ".1f",
    dashed: str | None = None,
    floor: float | None = None,
    view: View | None = None,
    gaps: bool = False,
) -> list[go.Scatter]:
    """The traces of one curve: its mean over seeds, and a band of one standard deviation where there are seeds.

    The band ends at ``floor``, if the number cannot be lower. With a ``view`` the curve shows only in that one.
    With ``gaps`` two rounds are joined only if no round lies between them: what was not measured is a gap.
    """
    chosen = thinned(spread.rounds, boundaries)
    rounds = [spread.rounds[i] for i in chosen]
    mean = [_short(spread.mean[i] * scale) for i in chosen]
    sd = [_short(spread.sd[i] * scale) for i in chosen]
    meta = None if view is None else {"view": list(view)}
    traces = []
    if any(sd):
        low = [m - s if floor is None else max(floor, m - s) for m, s in zip(mean, sd, strict=True)]
        edges = [_short(m + s) for m, s in zip(mean, sd, strict=True)] + [_short(v) for v in reversed(low)]
        traces.append(
            go.Scatter(
                x=rounds + rounds[::-1],
                y=edges,
                fill="toself",
                fillcolor=f"var(--band-{place % SERIES + 1})",
                line={"width": 0},
                mode="lines",
                hoverinfo="skip",
                legendgroup=group,
                showlegend=False,
                meta=meta,
            )
        )
    x, y = (rounds, mean) if not gaps else _with_gaps(rounds, mean, spread.rounds)
    more = f" ± %{{customdata:{digits}}}" if any(sd) else ""
    traces.append(
        go.Scatter(
            x=x,
            y=y,
            name=plain(name),
            legendgroup=group,
            showlegend=False,
            meta=meta,
            customdata=sd if any(sd) else None,
            mode="lines+markers" if len(rounds) <= 60 or gaps else "lines",
            marker={"size": 4, "color": colour(place)},
            line={"color": colour(place), "width": 2, "dash": dashed or dash(place)},
            hovertemplate=f"%{{y:{digits}}}{more}",
        )
    )
    return traces


def _with_gaps(rounds: list[int], values: list[float], measured: Sequence[int]) -> tuple[list[int], list[float | None]]:
    """The curve with an empty point wherever a round is missing between two; those that were thinned out are not."""
    step = min((b - a for a, b in itertools.pairwise(measured)), default=1)
    holes = [a + step for a, b in itertools.pairwise(measured) if b - a > step]
    x: list[int] = rounds[:1]
    y: list[float | None] = [*values[:1]]
    for (before, round), value in zip(itertools.pairwise(rounds), values[1:], strict=True):
        place = bisect.bisect_right(holes, before)
        if place < len(holes) and holes[place] < round:
            x.append(holes[place])
            y.append(None)
        x.append(round)
        y.append(value)
    return x, y


def figure(
    traces: Iterable[Any],
    y: str,
    x: str = "round",
    boundaries: Sequence[int] = (),
    y_range: tuple[float, float] | None = None,
    from_zero: bool = False,
    logarithmic: bool = False,
    height: int = 280,
    whole: bool = True,
) -> go.Figure:
    """A figure in the page's style, with a dashed line at each phase boundary; ``whole``: x are whole numbers."""
    axis = {"gridcolor": "var(--grid)", "zerolinecolor": "var(--axis)", "linecolor": "var(--axis)", "automargin": True}
    layout: dict[str, Any] = {
        "template": go.layout.Template(),
        "height": height,
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "var(--text)"},
        "hovermode": "x unified",
        "hoverlabel": {"bgcolor": "var(--card)", "bordercolor": "var(--axis)", "font": {"color": "var(--text)"}},
        "showlegend": False,
        "xaxis": {**axis, "title": {"text": x, "standoff": 6}, "showgrid": False, "zeroline": False,
                  "tickformat": "d" if whole else None, "hoverformat": "d" if whole else None},
        "yaxis": {**axis, "title": {"text": y, "standoff": 8}},
        "shapes": [
            {"type": "line", "x0": b + 0.5, "x1": b + 0.5, "y0": 0, "y1": 1, "yref": "paper", "layer": "below",
             "line": {"color": "var(--boundary)", "width": 1, "dash": "3px,3px"}}
            for b in boundaries
        ],
    }  # fmt: skip
    traces = list(traces)
    xs = (
        [x for trace in traces for x in (trace.x if trace.x is not None else ()) if isinstance(x, int)] if whole else []
    )
    if xs and max(xs) - min(xs) <= ROUNDS:
        layout["xaxis"]["dtick"] = 1  # else there are ticks between the rounds, and every number stands there twice
    if y_range is not None:
        layout["yaxis"]["range"] = list(y_range)
    if from_zero:
        layout["yaxis"]["rangemode"] = "tozero"
    if logarithmic:
        layout["yaxis"].update(type="log", exponentformat="power")
    return go.Figure(traces, layout)


def group(charts: Sequence[Chart], legend: Sequence[Key] = (), choices: Sequence[Choice] = (), beside: str = "") -> str:
    """Charts that belong together, under one legend, as many side by side as the page is wide.

    With ``choices`` the reader chooses what all the charts show, see `View`. ``beside`` is HTML of further boxes.
    """
    choice = "".join(_choice(one) for one in choices if len(one.options) > 1 or len(choices) > 1)
    keys = "".join(_key(key) for key in legend)
    legend_html = f'<div class="legend" role="group" aria-label="Legend">{keys}</div>' if keys else ""
    frames = "".join(_frame(chart) for chart in charts)
    return f'<div class="charts">{choice}{legend_html}<div class="grid">{frames}{beside}</div></div>'


def _choice(choice: Choice) -> str:
    options = "".join(f'<option value="{i}">{esc(option)}</option>' for i, option in enumerate(choice.options))
    only = " hidden" if len(choice.options) == 1 else ""
    return f'<label class="views"{only}>{esc(choice.label)} <select autocomplete="off">{options}</select></label>'


def _key(key: Key) -> str:
    swatch = f'<span class="swatch {key.shape} {dash(key.place)}" style="--c:{colour(key.place)}"></span>'
    if not key.group:
        return f'<span class="item">{swatch}{esc(key.label)}</span>'
    return f'<button type="button" aria-pressed="true" data-group="{esc(key.group)}">{swatch}{esc(key.label)}</button>'


def _frame(chart: Chart) -> str:
    wide = " wide" if chart.wide else ""
    height = int(chart.figure.layout.height)
    return (
        f'<figure class="plot{wide}"><figcaption>{esc(chart.title)}</figcaption>'
        f'<div class="chart" role="img" aria-label="Chart: {esc(chart.title)}" style="height:{height}px"></div>'
        f'<script type="application/json">{embedded(chart.figure.to_plotly_json())}</script></figure>'
    )


def embedded(value: Mapping[str, Any]) -> str:
    """JSON that is safe inside a script element."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"), cls=_Encoder).replace("<", "\\u003c")


class _Encoder(json.JSONEncoder):
    def default(self, value: Any) -> Any:
        return value.to_plotly_json() if hasattr(value, "to_plotly_json") else value.tolist()


def _short(value: float) -> float:
    """Six significant digits are more than a screen shows."""
    return float(f"{value:.6g}")


def span(values: Iterable[float], low: float, high: float, least: float = 10.0) -> tuple[float, float] | None:
    """A common range for charts side by side: the values with a margin, inside ``low`` and ``high``."""
    found = list(values)
    if not found:
        return None
    margin = max(least, max(found) - min(found)) * 0.05
    bottom, top = max(low, min(found) - margin), min(high, max(found) + margin)
    if top - bottom < least:
        bottom = max(low, top - least)
        top = max(top, bottom + least)
    return bottom, top
