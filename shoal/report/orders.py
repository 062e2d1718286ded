"""The orders of the tasks side by side: accuracy, and beside it how far the classifiers turn, in one chart each.

As figures 3 and 4 of "Addressing Client Drift in Federated Continual Learning with Adaptive Optimization" (arXiv
2203.13321) show multi-task, synchronous and asynchronous training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .charts import Chart, Key, figure, group, lines
from .lead import lead_metric
from .load import Run, Runs
from .movement import METRIC, SCOPES, mean
from .numbers import axis, axis_scale, metric
from .parts import Section, note
from .series import mean_curve, over_seeds

ORDERS = ("multi-task", "synchronous", "asynchronous")


def section(runs: Runs, comparison: Mapping[str, Any]) -> Section:
    """Two charts with a line for each variant; empty unless the variants have several orders of the same tasks."""
    orders = {name: {str(run.stream.get("order")) for run in members} for name, members in runs.variants.items()}
    shown = [name for name, found in orders.items() if len(found) == 1 and found <= set(ORDERS)]
    if len({order for name in shown for order in orders[name]}) < 2:
        return Section("orders", "Orders of the tasks", "")
    shown.sort(key=lambda name: ORDERS.index(next(iter(orders[name]))))
    lead = lead_metric(runs.runs)
    scope = next((s for s in SCOPES if any(_moved(run, s) for name in shown for run in runs.variants[name])), None)
    digits = ".4g" if lead == "loss" else ".1f"
    title = f"{metric(lead).label}, mean over the tasks"
    charts = [_chart(runs, shown, title, axis(lead), lambda run: mean_curve(run, lead), axis_scale(lead), digits)]
    if scope is not None:
        what = f"Movement of {SCOPES[scope]}, mean over the tasks"
        charts.append(_chart(runs, shown, what, "1 - cosine", lambda run: _moved(run, scope), 1, ".3g"))
    legend = [Key(name, _label(name, orders[name]), place) for place, name in enumerate(shown)]
    said = (
        "Multi-task: every client draws a task anew in each round. Synchronous: all clients train the same task in a "
        "phase. Asynchronous: in each phase every client trains a task of its own. Dashed vertical lines are phase "
        "boundaries; in multi-task order nothing changes there."
    )
    if scope is not None:
        said += (
            " Movement is 1 minus the cosine of the angle between a task's weights before and after a round that "
            "trained them: peaks behind a boundary are drift."
        )
    return Section("orders", "Orders of the tasks", group(charts, legend) + note(said))


def _label(name: str, orders: set[str]) -> str:
    """The variant, with its order where its name does not say it."""
    order = next(iter(orders))
    return name if order in name else f"{name} ({order})"


def _moved(run: Run, scope: str) -> Mapping[int, float]:
    return mean(run, scope) if run.metrics.get(METRIC) else {}


def _chart(
    runs: Runs,
    shown: list[str],
    title: str,
    y: str,
    of: Callable[[Run], Mapping[int, float]],
    scale: float,
    digits: str,
) -> Chart:
    edges = next((run.boundaries for name in shown for run in runs.variants[name] if run.boundaries), ())
    traces = []
    for place, name in enumerate(shown):
        found = over_seeds(of(run) for run in runs.variants[name])
        if found.rounds:
            traces += lines(found, name, name, place, scale, edges, digits=digits, floor=0)
    return Chart(title, figure(traces, y, boundaries=edges, height=340))
