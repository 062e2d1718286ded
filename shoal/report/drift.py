"""Client drift over rounds: how far the clients' models go from the model they received."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import movement
from .charts import Chart, Key, figure, group, lines
from .load import Runs
from .numbers import written
from .parts import Section, note, paragraph, table
from .series import curve, over_seeds

KINDS = {
    "client_drift": ("squared", "Squared distance"),
    "client_drift_distance": ("distance", "Final distance"),
    "client_drift_cosine": ("cosine", "1 - cosine"),
}
SCOPES = {"all": "all parameters", "head": "the head"}


def section(runs: Runs, comparison: Mapping[str, Any]) -> Section:
    """One chart for each kind of distance, over all parameters and over the head."""
    charts, legend = [], {}
    for metric, (_, title) in KINDS.items():
        for scope, words in SCOPES.items():
            traces = []
            for place, (variant, members) in enumerate(runs.variants.items()):
                curves = [curve(run.metrics.get(metric, []), over=scope) for run in members]
                spread = over_seeds({r: v for r, v in one.items() if r > 0} for one in curves)
                if spread.rounds:
                    traces += lines(spread, variant, variant, place, 1, members[0].boundaries, digits=".3g", floor=0)
                    legend[variant] = Key(variant, variant, place)
            if traces:
                drawn = figure(traces, title.lower(), boundaries=runs.boundaries, from_zero=True, height=240)
                charts.append(Chart(f"{title}, {words}", drawn))
    moved = movement.charts(runs) + _moved(comparison)
    if not charts:
        title = "Movement" if moved else "Client drift"
        return Section("drift", title, moved or paragraph("Client drift was not measured."))
    body = group(charts, [] if len(runs.variants) == 1 else list(legend.values()))
    said = (
        "Distance between a client's model after local training and the model it received, mean over the clients "
        "that answered: squared after every local epoch, and at the end of the local training."
    )
    if any(run.boundaries for run in runs.runs):
        said += " Peaks behind a dashed line are the clients turning to what they hold from there on."
    body += note(said)
    return Section("drift", "Client drift", body + _table(comparison) + moved)


def _moved(comparison: Mapping[str, Any]) -> str:
    variants = comparison["variants"]
    shown = [s for s in SCOPES if any(f"entry_cosine.{s}" in v["numbers"] for v in variants.values())]
    if not shown:
        return ""
    rows = [[name, *(_cell(f"entry_cosine.{s}", v["numbers"]) for s in shown)] for name, v in variants.items()]
    return table(
        "Movement of the entries, 1 - cosine, mean over entries and rounds",
        ["Variant", *(SCOPES[s].capitalize() for s in shown)],
        rows,
    )


def _table(comparison: Mapping[str, Any]) -> str:
    keys = {
        f"client_drift_by.{kind}.{scope}": f"{title}, {words}"
        for kind, title in KINDS.values()
        for scope, words in SCOPES.items()
    }
    variants = comparison["variants"]
    shown = [key for key in keys if any(key in v["numbers"] for v in variants.values())]
    if not shown:
        return ""
    rows = [[name, *(_cell(key, variant["numbers"]) for key in shown)] for name, variant in variants.items()]
    return table("Client drift, mean over the rounds", ["Variant", *(keys[key] for key in shown)], rows)


def _cell(key: str, numbers: Mapping[str, Any]) -> str:
    found = numbers.get(key, {})
    return written(key, found.get("mean"), found.get("sd"))
