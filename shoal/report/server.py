"""The adaptive server's step over rounds; empty for servers without a second moment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .charts import Chart, Key, figure, group, lines
from .load import Runs
from .parts import Section, note
from .series import curve, over_seeds

KINDS = {"median_sqrt_v": "sqrt(v)", "effective_step": "Effective step (rate / denominator)"}


def section(runs: Runs, comparison: Mapping[str, Any]) -> Section:
    """Two charts on a logarithmic scale: medians over an entry's coordinates, means over the entries of the round."""
    charts, legend = [], {}
    for metric, title in KINDS.items():
        traces = []
        for place, (variant, members) in enumerate(runs.variants.items()):
            curves = [curve(run.metrics.get(metric, [])) for run in members]
            spread = over_seeds({r: v for r, v in one.items() if v > 0} for one in curves)
            if spread.rounds:
                # No band: mean minus deviation may be negative, which a logarithmic scale cannot show.
                bare = spread._replace(sd=[0.0] * len(spread.sd))
                traces += lines(bare, variant, variant, place, 1, members[0].boundaries, digits=".3g")
                legend[variant] = Key(variant, variant, place)
        if traces:
            label = title.partition(" (")[0].lower()
            drawn = figure(traces, label, boundaries=runs.boundaries, logarithmic=True, height=240)
            charts.append(Chart(title, drawn))
    if not charts:
        return Section("server", "Server step", "")
    body = group(charts, [] if len(runs.variants) == 1 else list(legend.values()))
    settings = [
        f"{variant}: {step}"
        for variant, members in runs.variants.items()
        if variant in legend and (step := _settings(members[0].records.get("model", [])))
    ]
    body += note(
        "Medians over the coordinates of an entry, means over the entries. Where sqrt(v) is far below tau (or the "
        "calibration's constant), the server is plain momentum with another rate; where it is far above, the "
        "constant does nothing. " + "; ".join(settings)
    )
    return Section("server", "Server step", body)


def _settings(records: list[Mapping[str, Any]]) -> str:
    server = records[0].get("server") if records else None
    if not isinstance(server, Mapping):
        return ""
    return ", ".join(
        f"{name} {value}"
        for name, value in server.items()
        if isinstance(value, int | float | str) and value is not False
    )
