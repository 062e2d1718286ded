"""Accuracy over rounds (the test loss where real values are learned): the mean over the targets by variant, every
target, further metrics, and where they end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .charts import Chart, Choice, Key, figure, group, lines, span
from .groups import grouped
from .lead import lead_metric
from .load import Runs
from .numbers import PERCENT, axis, axis_scale, in_unit, metric
from .parts import Section, note, paragraph, table
from .series import (
    Names,
    Spread,
    Target,
    by_target,
    further_metrics,
    mean_curve,
    over_seeds,
    quantile,
    title_of,
)
from .words import listed

MANY = 10
"""With more targets than this (a hundred clients, say) their range is drawn instead of every one."""
Curves = Mapping[str, Sequence[Mapping[Target, Mapping[int, float]]]]
"""Variant -> for each seed: target -> round -> value."""
LISTED = 60
"""How many targets the table lists."""
PANELS = 12
"""How many variants get a chart of their own."""


def section(runs: Runs, comparison: Mapping[str, Any]) -> Section:
    """Charts of every target with the phase boundaries, of further metrics, and the final value of each target."""
    shown = lead_metric(runs.runs)
    title = f"{metric(shown).label} over rounds"
    curves = {variant: [by_target(run, shown) for run in members] for variant, members in runs.variants.items()}
    targets = list(dict.fromkeys(t for found in curves.values() for one in found for t in one))
    more = further_metrics(runs.runs)
    if not any(curve for found in curves.values() for one in found for curve in one.values()):
        nothing = paragraph(f"No {metric(shown).label.lower()} was measured (yet).")
        return Section("accuracy", metric(shown).label, nothing + _further(runs, more))
    several = len(runs.variants) > 1
    body = _overall(runs, shown, targets, grouped(comparison)) if several else ""
    if not (several and len(targets) == 1):  # else the first chart has it all
        body += _few(runs, shown, curves, targets) if len(targets) <= MANY else _range(runs, shown, curves)
    if len(runs.variants) > PANELS:
        body += note(f"Charts of the first {PANELS} of {len(runs.variants)} variants.")
    body += note(_explain(runs, shown, targets))
    body += _further(runs, more) + _final(runs, shown, curves, targets, more)
    return Section("accuracy", title, body)


def _digits(name: str) -> str:
    return ".1f" if metric(name).unit == PERCENT else ".4g"


def _limits(name: str, values: Sequence[float]) -> tuple[float, float] | None:
    """A common range for charts side by side."""
    if metric(name).unit == PERCENT:
        return span([100 * v for v in values], 0, 100)
    least = 0.05 * max((abs(v) for v in values), default=0.0) or 1e-9
    return span(values, -float("inf"), float("inf"), least)


def _overall(runs: Runs, shown: str, targets: Sequence[Target], groups: Sequence[Mapping[str, Any]]) -> str:
    """A chart with every variant; a chart for each group of comparable ones where there are several groups."""
    charts, legend, edges = [], [], runs.boundaries
    for found in groups:
        traces = []
        own = lead_metric([run for variant in found["variants"] for run in runs.variants.get(variant, [])])
        name = own if len(groups) > 1 else shown
        for place, (variant, members) in enumerate(runs.variants.items()):
            if variant in found["variants"]:
                mean = over_seeds(mean_curve(run, name) for run in members)
                traces += lines(mean, variant, variant, place, axis_scale(name), edges, digits=_digits(name))
                legend.append(Key(variant, variant, place))
        title = f"Mean over the {_noun(targets)}s, by variant" if len(targets) > 1 else "By variant"
        title += f": {listed(found['variants'])}" if len(groups) > 1 else ""
        charts.append(Chart(title, figure(traces, axis(name), boundaries=edges, height=340), wide=len(groups) == 1))
    return group(charts, legend)


def _further(runs: Runs, more: Sequence[str]) -> str:
    """A small chart for each further metric: the mean over the targets, by variant."""
    charts, legend = [], {}
    for name in more:
        traces = []
        for place, (variant, members) in enumerate(runs.variants.items()):
            mean = over_seeds(mean_curve(run, name) for run in members)
            if mean.rounds:
                edges = members[0].boundaries
                traces += lines(mean, variant, variant, place, axis_scale(name), edges, digits=_digits(name))
                legend[variant] = Key(variant, variant, place)
        if traces:
            drawn = figure(traces, axis(name), boundaries=runs.boundaries, height=240)
            charts.append(Chart(f"{metric(name).label}, mean over the targets", drawn))
    if not charts:
        return ""
    return group(charts, [] if len(runs.variants) == 1 else list(legend.values()))


def _few(runs: Runs, shown: str, curves: Curves, targets: Sequence[Target]) -> str:
    """A chart per variant with every target: of one seed, or the mean over seeds, as the reader chooses."""
    names = _names(runs)
    seeds = list(dict.fromkeys(run.seed for members in runs.variants.values() for run in members))
    # One seed comes first: every seed has an order of its own, and the mean smears what happens at a boundary.
    views = [*(f"seed {seed}" for seed in seeds), "mean over the seeds"] if len(seeds) > 1 else []
    panels = []
    for variant, members in [pair for pair in runs.variants.items() if any(curves[pair[0]])][:PANELS]:
        seen: list[tuple[tuple[int, ...] | None, Sequence[int]]] = [
            ((len(seeds),) if views else None, range(len(members)))
        ]
        seen += [((seeds.index(run.seed),), range(i, i + 1)) for i, run in enumerate(members)] if views else []
        spreads = [
            (view, place, over_seeds(curves[variant][i].get(target, {}) for i in chosen))
            for view, chosen in seen
            for place, target in enumerate(targets)
        ]
        panels.append((variant, members[0].boundaries, spreads))
    common = _limits(shown, [v for _, _, spreads in panels for _, _, s in spreads for v in s.mean])
    charts = []
    for variant, edges, spreads in panels:
        traces = []
        for view, place, spread in spreads:
            title = title_of(targets[place], names)
            traces += lines(
                spread, title, str(place), place, axis_scale(shown), edges, digits=_digits(shown), view=view
            )
        chart = figure(traces, axis(shown), boundaries=edges, y_range=common)
        title = f"By {_noun(targets)}" + ("" if runs.single else f": {variant}")
        charts.append(Chart(title, chart, wide=len(panels) == 1))
    legend = [Key(str(place), title_of(target, names), place) for place, target in enumerate(targets)]
    return group(charts, legend if len(legend) > 1 else [], [Choice("Show", views)] if views else [])


def _range(runs: Runs, shown: str, curves: Curves) -> str:
    """For many targets: the median, and the range from the 10th to the 90th percentile, all seeds together."""
    charts = []
    for place, (variant, found) in enumerate(list(curves.items())[:PANELS]):
        values: dict[int, list[float]] = {}
        for one in found:
            for curve in one.values():
                for round, value in curve.items():
                    values.setdefault(round, []).append(value)
        traces = []
        rounds = sorted(values)
        most = max((list(one) for one in found), key=len)
        for share, style in ((0.9, "dot"), (0.5, "solid"), (0.1, "dot")):
            level = Spread(rounds, [quantile(values[r], share) for r in rounds], [0.0] * len(rounds), 1)
            name = "median" if share == 0.5 else f"{share:.0%} of the targets are below"
            traces += lines(level, name, name, place, axis_scale(shown), digits=_digits(shown), dashed=style)
        edges = runs.variants[variant][0].boundaries
        limits = (0.0, 100.0) if metric(shown).unit == PERCENT else None
        chart = figure(traces, axis(shown), boundaries=edges, y_range=limits)
        charts.append(
            Chart(
                f"Range over {len(most)} {_noun(most)}s" + ("" if runs.single else f": {variant}"),
                chart,
                wide=runs.single,
            )
        )
    return group(charts) + note(
        "Solid: the median over the targets. Dotted: a tenth of the targets lies below the lower line, a tenth "
        "above the upper one."
    )


def _explain(runs: Runs, shown: str, targets: Sequence[Target]) -> str:
    noun, few = _noun(targets), 1 < len(targets) <= MANY
    whose = "all test rows" if len(targets) == 1 and not targets[0] else f"the test rows of each {noun}"
    said = f"{metric(shown).label} on {whose}."
    if any(run.boundaries for run in runs.runs):
        tasks = any(run.stream.get("tasks") for run in runs.runs)
        what = "the clients go on to their next task" if tasks else "what the clients hold changes"
        said += f" Dashed vertical lines are phase boundaries: there {what}."
    if any(len(members) > 1 for members in runs.variants.values()):
        if len(targets) <= MANY and not (len(runs.variants) > 1 and len(targets) == 1):
            said += f" The charts by {noun} show one seed, or the mean over the seeds: choose above them."
        said += " Around a mean over seeds, bands are one standard deviation to either side."
    if few or len(runs.variants) > 1:
        said += " Click or tap a name above a chart to hide or show its line."
    return said


def _final(runs: Runs, shown: str, curves: Curves, targets: Sequence[Target], more: Sequence[str]) -> str:
    if {label for target in targets for label, _ in target} == {"client"}:
        return ""  # the section on the clients has it
    names = _names(runs)
    said = " in percent" if metric(shown).unit == PERCENT and not (runs.single and more) else ""
    label = metric(shown).label.lower()

    def cell(found: Sequence[Mapping[Target, Mapping[int, float]]], target: Target, name: str, unit: bool) -> str:
        ends = [one[target][max(one[target])] for one in found if one.get(target)]
        if not ends:
            return "-"
        spread = over_seeds({0: value} for value in ends)
        return in_unit(metric(name).unit, spread.mean[0], spread.sd[0] if len(ends) > 1 else None, unit)

    listed = targets[:LISTED]
    if runs.single:
        run = runs.runs[0]
        columns = [(name, [by_target(run, name)]) for name in (shown, *more)]
        rows = [[title_of(t, names), *(cell(f, t, name, unit=bool(more)) for name, f in columns)] for t in listed]
        head = ["Target", *(metric(name).label + ("" if more else " %" * bool(said)) for name, _ in columns)]
    else:
        rows = [[title_of(t, names), *(cell(curves[v], t, shown, unit=False) for v in curves)] for t in listed]
        head = ["Target", *curves]
    result = table(f"Last measured {label} of each target" + (f",{said}" if said else ""), head, rows)
    if len(targets) > LISTED:
        result += note(f"The first {LISTED} of {len(targets)} targets; all are in metrics.jsonl.")
    return result


def _noun(targets: Sequence[Target]) -> str:
    labels = {label for target in targets for label, _ in target}
    return labels.pop() if len(labels) == 1 else "target"


def _names(runs: Runs) -> Names:
    return next((run.names for run in runs.runs if any(run.names.values())), {})
