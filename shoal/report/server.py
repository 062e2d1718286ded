"""The server's step over rounds: sizes of the pseudo-gradient, and of the second moment against its constant."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from ..server.quantiles import SHARES
from .charts import SERIES, Chart, Choice, Key, figure, group, lines
from .load import Line, Run, Runs
from .parts import Section, note, paragraph
from .series import Spread, curve, number, over_seeds, thinned

KINDS = {
    "median_sqrt_v": "sqrt(v)",
    "median_abs_delta": "|Delta|",
    "effective_step": "Effective step (rate / denominator)",
}
BANDS = ((0, 4), (1, 3))
"""Which of the logged quantiles (5, 25, 50, 75, 95 %) are the edges of a band."""
CONSTANT, BELOW = "calibration_constant", "below_constant"
FIFTH = 0.2
"""A constant is out of range where it, or ``sqrt(v)``, is less than this share of the other in 95% of the coordinates:
the smaller one then changes the denominators by less than a fifth."""


class Band(NamedTuple):
    """A band over the rounds, positive."""

    rounds: list[int]
    low: list[float]
    high: list[float]


def section(runs: Runs, comparison: Mapping[str, Any]) -> Section:
    """Charts on a logarithmic scale: quantiles over an entry's coordinates, means over the entries of the round."""
    charts, legend = [], {}
    several = len(runs.variants) > 1
    for metric, title in KINDS.items():
        least = _least(runs, metric)
        curves: list[go.Scatter] = []
        bands: list[go.Scatter] = []
        for place, (variant, members) in enumerate(runs.variants.items()):
            spread = _positive([curve(run.metrics.get(metric, [])) for run in members])
            if not spread.rounds:
                continue
            edges = members[0].boundaries
            curves += lines(spread, variant, variant, place, 1, edges, digits=".3g")
            if metric == "median_sqrt_v":
                curves += _constant(members, variant, place)
            for low, high in BANDS:
                pairs = [(_quantile(run, metric, low), _quantile(run, metric, high)) for run in members]
                found = _band(pairs, least)
                bands += _drawn(found, variant, place, edges, (1,) if several else None)
            legend[variant] = Key(variant, variant, place)
        if curves:
            label = title.partition(" (")[0].lower()
            drawn = figure([*bands, *curves], label, boundaries=runs.boundaries, logarithmic=True, height=240)
            charts.append(Chart(title, drawn))
    if not charts:
        return Section("server", "Server step", "")
    legend = {variant: legend[variant] for variant in runs.variants if variant in legend}
    choices = [Choice("Show", ("medians", "medians and bands"))] if several else []
    body = group(charts, list(legend.values()) if several else [], choices)
    body += "".join(paragraph(said) for variant in legend if (said := _range(runs, comparison, variant)))
    settings = [f"{variant}: {step}" for variant in legend if (step := _settings(_server(runs.variants[variant][0])))]
    return Section("server", "Server step", body + note(" ".join([_explained(runs), "; ".join(settings)]).strip()))


def _positive(curves: Sequence[Mapping[int, float]]) -> Spread:
    """The mean over seeds of what a logarithmic scale can show."""
    spread = over_seeds({r: v for r, v in one.items() if v > 0} for one in curves)
    # No band of a deviation: mean minus deviation may be negative.
    return spread._replace(sd=[0.0] * len(spread.sd))


def _quantile(run: Run, metric: str, place: int) -> dict[int, float]:
    """A quantile by round, the mean over the entries."""
    found: list[Line] = []
    for line in run.metrics.get(metric, []):
        quantiles = line.get("quantiles")
        if isinstance(quantiles, list) and len(quantiles) > place:
            found.append({**line, "value": quantiles[place]})
    return curve(found)


def _least(runs: Runs, metric: str) -> float:
    """The smallest positive quantile of a chart: where bands end that go down to 0."""
    logged = (q for run in runs.runs for line in run.metrics.get(metric, []) for q in line.get("quantiles") or ())
    return min((value for q in logged if (value := number(q)) is not None and value > 0), default=0.0)


def _band(edges: Sequence[tuple[Mapping[int, float], Mapping[int, float]]], least: float) -> Band:
    """The means over seeds of both edges, at least ``least``."""
    low, high = (over_seeds(side) for side in zip(*edges, strict=True))
    below = dict(zip(low.rounds, low.mean, strict=True))
    kept = {r: v for r, v in zip(high.rounds, high.mean, strict=True) if v > 0 and r in below}
    return Band(list(kept), [max(below[r], least) for r in kept], list(kept.values()))


def _drawn(
    band: Band, name: str, place: int, boundaries: Sequence[int], view: tuple[int, ...] | None
) -> list[go.Scatter]:
    if len(band.rounds) < 2:
        return []
    chosen = thinned(band.rounds, boundaries)
    x = [band.rounds[i] for i in chosen]
    low, high = ([float(f"{side[i]:.6g}") for i in chosen] for side in (band.low, band.high))
    return [
        go.Scatter(
            x=x + x[::-1],
            y=high + low[::-1],
            fill="toself",
            fillcolor=f"var(--band-{place % SERIES + 1})",
            line={"width": 0},
            mode="lines",
            hoverinfo="skip",
            legendgroup=name,
            showlegend=False,
            meta=None if view is None else {"view": list(view)},
        )
    ]


def _constant(members: Sequence[Run], variant: str, place: int) -> list[go.Scatter]:
    """The constant as a dotted line: level, unless it follows sqrt(v)."""
    spread = _positive([curve(run.metrics.get(CONSTANT, [])) for run in members])
    if not spread.rounds:
        return []
    name = _name(_server(members[0]))
    label = f"{variant}: {name}" if variant else name
    return [trace.update(mode="lines") for trace in lines(spread, label, variant, place, digits=".3g", dashed="dot")]


def _range(runs: Runs, comparison: Mapping[str, Any], variant: str) -> str:
    """Whether the constant is in the range of sqrt(v) at the end; empty where there is none."""
    numbers = comparison["variants"][variant]["numbers"]
    share, constant = (number(numbers.get(key, {}).get("mean")) for key in (BELOW, CONSTANT))
    if share is None or constant is None:
        return ""
    name = _name(_server(runs.variants[variant][0]))
    whose = "" if runs.single or not variant else f"{variant}: "
    below = f"sqrt(v) is below it in {100 * share:.0f} % of the coordinates at the end"
    verdict = _verdict(runs.variants[variant])
    return f"{whose}{name} is {constant:.3g}, and {below}{f': {verdict}' if verdict else ''}."


def _verdict(members: Sequence[Run]) -> str:
    """From the last quantiles of each entry; empty where they were not logged."""
    found = [ratio for run in members for ratio in _ratios(run)]
    if not found:
        return ""
    low, share, high = (statistics.median(edge) for edge in zip(*found, strict=True))
    if high < FIFTH:
        return (
            "out of range, too large; the denominators of 95 % of them differ by less than a fifth, and the server is "
            "nearly momentum with another rate"
        )
    if low > 1 / FIFTH:
        where = f"{'' if share == 1 - SHARES[0] else 'at least '}{100 * share:.0f} % of them"
        return f"out of range, too small; in {where} it adds less than a fifth to sqrt(v), and does next to nothing"
    return "in range"


def _ratios(run: Run) -> list[tuple[float, float, float]]:
    """Of each entry's last step the lowest quantile of sqrt(v) that is above 0, over the constant; the share of the
    coordinates that lie above it; and the 95% quantile over the constant.

    A coordinate that never moved (a dead pixel, a frozen layer) has a sqrt(v) of 0 and takes no steps, so it says
    nothing of the constant. An entry of which no quantile is above 0 has no range.
    """
    edges = {line.get("entry"): line.get("quantiles") for line in run.metrics.get("median_sqrt_v", [])}
    constants = {line.get("entry"): number(line.get("value")) for line in run.metrics.get(CONSTANT, [])}
    found = []
    for entry, constant in constants.items():
        quantiles = edges.get(entry)
        if constant is None or constant <= 0 or not isinstance(quantiles, list) or len(quantiles) != len(SHARES):
            continue
        pairs = [(value, 1 - share) for q, share in zip(quantiles, SHARES, strict=True) if (value := number(q))]
        high = number(quantiles[-1])
        if pairs and high is not None:
            found.append((pairs[0][0] / constant, pairs[0][1], high / constant))
    return found


def _explained(runs: Runs) -> str:
    said = "Lines are medians over the coordinates of an entry, means over the entries."
    if any("quantiles" in line for run in runs.runs for kind in KINDS for line in run.metrics.get(kind, [])):
        said += (
            " Bands go from 25 to 75 % and from 5 to 95 % of the coordinates; where they end at 0 they are cut. Delta "
            "is the mean of the clients' answers minus the entry (without a server: minus the mix that was trained)."
        )
    if any(run.metrics.get("median_sqrt_v") for run in runs.runs):
        said += (
            " The dotted line is tau, or the calibration's constant. Where sqrt(v) is far below it, the server is "
            "momentum with another rate; where it is far above, the constant does nothing. Far is a factor of five, in "
            "95 % of the coordinates."
        )
    return said


def _server(run: Run) -> Mapping[str, Any]:
    """What the server optimiser said of itself."""
    records = run.records.get("model", [])
    server = records[0].get("server") if records else None
    return server if isinstance(server, Mapping) else {}


def _name(server: Mapping[str, Any]) -> str:
    """What the constant is called."""
    calibration = server.get("calibration")
    if not isinstance(calibration, Mapping):
        return "tau" if number(server.get("tau")) is not None else "The constant"
    name = next((words for key, words in _NAMES.items() if key in calibration), "The constant")
    return f"{name} (auto)" if "auto" in calibration.values() else name


_NAMES = {"epsilon": "epsilon", "beta": "log(2) / beta"}


def _settings(server: Mapping[str, Any]) -> str:
    calibration = server.get("calibration")
    inside = {f"calibration {k}": v for k, v in calibration.items()} if isinstance(calibration, Mapping) else {}
    return ", ".join(
        f"{name} {value}"
        for name, value in {**server, **inside}.items()
        if isinstance(value, int | float | str) and value is not False
    )
