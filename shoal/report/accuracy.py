"""Accuracy over rounds: the mean over the targets by variant, every target, and where they end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .charts import Chart, Key, figure, group, lines, span
from .load import Runs
from .numbers import written
from .parts import Section, note, paragraph, table
from .series import Spread, Target, by_target, mean_curve, over_seeds, quantile, title_of

MANY = 10
"""With more targets than this (a hundred clients, say) their range is drawn instead of every one."""
Curves = Mapping[str, Sequence[Mapping[Target, Mapping[int, float]]]]
"""Variant -> for each seed: target -> round -> accuracy."""
LISTED = 60
"""How many targets the table lists."""
PANELS = 12
"""How many variants get a chart of their own."""


def section(runs: Runs, comparison: Mapping[str, Any]) -> Section:
    """Charts of the accuracy per target with the phase boundaries, and the final accuracy of each target."""
    curves = {variant: [by_target(run) for run in members] for variant, members in runs.variants.items()}
    targets = list(dict.fromkeys(t for found in curves.values() for one in found for t in one))
    if not targets:
        return Section("accuracy", "Accuracy", paragraph("No accuracy was measured (yet)."))
    several = len(runs.variants) > 1
    body = _overall(runs, targets) if several else ""
    body += _few(runs, curves, targets) if len(targets) <= MANY else _range(runs, curves)
    if len(runs.variants) > PANELS:
        body += note(f"Charts of the first {PANELS} of {len(runs.variants)} variants.")
    body += note(_explain(runs, targets))
    body += _final(runs, curves, targets)
    return Section("accuracy", "Accuracy over rounds", body)


def _overall(runs: Runs, targets: Sequence[Target]) -> str:
    traces, legend, edges = [], [], _boundaries(runs)
    for place, (variant, members) in enumerate(runs.variants.items()):
        mean = over_seeds(mean_curve(run) for run in members)
        traces += lines(mean, variant, variant, place, 100, edges)
        legend.append(Key(variant, variant, place))
    chart = figure(traces, "accuracy (%)", boundaries=edges, height=340)
    return group([Chart(f"Mean over the {_noun(targets)}s, by variant", chart, wide=True)], legend)


def _few(runs: Runs, curves: Curves, targets: Sequence[Target]) -> str:
    """A chart per variant with every target: of one seed, or the mean over seeds, as the reader chooses."""
    names = _names(runs)
    seeds = list(dict.fromkeys(run.seed for members in runs.variants.values() for run in members))
    mean = "mean over the seeds"
    # One seed comes first: every seed has an order of its own, and the mean smears what happens at a boundary.
    views = [*(f"seed {seed}" for seed in seeds), mean] if len(seeds) > 1 else []
    panels = []
    for variant, members in list(runs.variants.items())[:PANELS]:
        shown = [(mean if views else None, range(len(members)))]
        shown += [(f"seed {run.seed}", range(i, i + 1)) for i, run in enumerate(members)] if views else []
        spreads = [
            (view, place, over_seeds(curves[variant][i].get(target, {}) for i in chosen))
            for view, chosen in shown
            for place, target in enumerate(targets)
        ]
        panels.append((variant, members[0].boundaries, spreads))
    common = span([100 * v for _, _, spreads in panels for _, _, s in spreads for v in s.mean], 0, 100)
    charts = []
    for variant, edges, spreads in panels:
        traces = []
        for view, place, spread in spreads:
            title = title_of(targets[place], names)
            traces += lines(spread, title, str(place), place, 100, edges, view=view)
        chart = figure(traces, "accuracy (%)", boundaries=edges, y_range=common)
        title = f"By {_noun(targets)}" + ("" if runs.single else f": {variant}")
        charts.append(Chart(title, chart, wide=len(panels) == 1))
    legend = [Key(str(place), title_of(target, names), place) for place, target in enumerate(targets)]
    return group(charts, legend if len(legend) > 1 else [], views)


def _range(runs: Runs, curves: Curves) -> str:
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
            traces += lines(level, name, name, place, 100, dashed=style)
        edges = runs.variants[variant][0].boundaries
        chart = figure(traces, "accuracy (%)", boundaries=edges, y_range=(0, 100))
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


def _explain(runs: Runs, targets: Sequence[Target]) -> str:
    noun, few = _noun(targets), 1 < len(targets) <= MANY
    said = f"Accuracy on the test rows of each {noun}."
    if any(run.boundaries for run in runs.runs):
        said += " Dashed vertical lines are phase boundaries: there the clients go on to their next task."
    if any(len(members) > 1 for members in runs.variants.values()):
        if len(targets) <= MANY:
            said += f" The charts by {noun} show one seed, or the mean over the seeds: choose above them."
        said += " Around a mean over seeds, bands are one standard deviation to either side."
    if few or len(runs.variants) > 1:
        said += " Click or tap a name above a chart to hide or show its line."
    return said


def _final(runs: Runs, curves: Curves, targets: Sequence[Target]) -> str:
    names = _names(runs)

    def cell(variant: str, target: Target) -> str:
        ends = [one[target][max(one[target])] for one in curves[variant] if one.get(target)]
        spread = over_seeds({0: value} for value in ends)
        if not ends:
            return "-"
        return written("acc", spread.mean[0], spread.sd[0] if len(ends) > 1 else None, unit=False)

    rows = [[title_of(target, names), *(cell(variant, target) for variant in curves)] for target in targets[:LISTED]]
    heading = "Accuracy %" if runs.single else ""
    result = table(
        "Last measured accuracy of each target, in percent", ["Target", *(heading or v for v in curves)], rows
    )
    if len(targets) > LISTED:
        result += note(f"The first {LISTED} of {len(targets)} targets; all are in metrics.jsonl.")
    return result


def _noun(targets: Sequence[Target]) -> str:
    labels = {label for target in targets for label, _ in target}
    return labels.pop() if len(labels) == 1 else "target"


def _names(runs: Runs) -> Sequence[str]:
    return next((run.stream["task_names"] for run in runs.runs if run.stream.get("task_names")), ())


def _boundaries(runs: Runs) -> tuple[int, ...]:
    """The boundaries, where all runs have the same."""
    found = {run.boundaries for run in runs.runs if run.lines}
    return found.pop() if len(found) == 1 else ()
