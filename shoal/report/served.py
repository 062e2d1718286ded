"""How the clients fare: the spread over them, the worst served first, and what went wrong with each by name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from ..metrics.functions import lower_is_better
from .charts import Chart, Key, colour, dash, figure, group, plain
from .clients import COUNTS, called, client_table
from .lead import lead_metric
from .load import Run, Runs
from .numbers import OVER_TARGETS, axis, axis_scale, in_unit, metric, written
from .parts import Section, folded, note, paragraph, table
from .series import quantile

FOLDED = 20
"""A longer table is folded."""
LISTED = 500
"""How many clients the page lists; ``clients.csv`` has all of a single run."""
BARS = 1500
"""How many clients the chart of one run draws; of more, every k-th in the order of their accuracy."""
STATISTICS = ("mean", "by_rows", "sd", "worst_decile", "worst", "best", "n", "excluded")


def section(runs: Runs, comparison: Mapping[str, Any]) -> Section:
    """Of one run a row per client; of several the spread over the clients by variant, and a column per variant."""
    title = "Clients"
    tables = {variant: [client_table(run) for run in members] for variant, members in runs.variants.items()}
    lead = lead_metric(runs.runs)
    measured = any(row.get(lead) is not None for found in tables.values() for rows in found for row in rows)
    if not runs.single and not measured:
        return Section("clients", title, "")
    rows = next(iter(tables.values()))[0]
    if runs.single and not rows:
        return Section("clients", title, "")
    body = ""
    if measured:
        body += _over(comparison, [lead, *_metrics(tables, lead)])
        body += _bars(runs.runs[0], rows, lead) if runs.single else _sorted(runs, tables, lead)
    if runs.single:
        body += _left_out(runs.runs[0], rows, lead) + _one(runs.runs[0], rows)
    else:
        body += _each(runs, tables, lead)
    return Section("clients", title, body)


def _metrics(tables: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]], lead: str) -> list[str]:
    fixed = {"client", "name", "rounds", "trained", "train_rows", "test_rows", lead, *COUNTS.values()}
    rows = (row for found in tables.values() for rows in found for row in rows[:1])
    return [name for name in dict.fromkeys(name for row in rows for name in row) if name not in fixed]


def _over(comparison: Mapping[str, Any], metrics: Sequence[str]) -> str:
    """The ``over_targets`` of the summaries: each metric's mean, worst decile and spread over the clients."""
    variants = comparison["variants"]
    known = {key for variant in variants.values() for key in variant["numbers"]}
    shown = [s for s in STATISTICS if any(f"over_targets.{one}.{s}" in known for one in metrics)]
    rows = []
    for name, variant in variants.items():
        for one in metrics:
            found = [variant["numbers"].get(f"over_targets.{one}.{s}", {}) for s in shown]
            if any(found):
                cells = [written(f"over_targets.{one}.{s}", f.get("mean"), f.get("sd") or None)
                         for s, f in zip(shown, found, strict=True)]  # fmt: skip
                rows.append([*([name] if len(variants) > 1 else []), metric(one).label, *cells])
    if not rows:
        return ""
    head = [*(["Variant"] if len(variants) > 1 else []), "Metric", *(OVER_TARGETS[s][0].capitalize() for s in shown)]
    return table("Over the clients, after the last round", head, rows, (0, 1) if len(variants) > 1 else (0,)) + note(
        "Mean: each client counts the same. By rows: each test row counts the same, so that large clients weigh more. "
        "Worst decile: the mean over the worst tenth of the clients. Spread: the standard deviation over the clients. "
        "Clients without a number are left out of all of these."
    )


def _bars(run: Run, rows: Sequence[Mapping[str, Any]], lead: str) -> str:
    known = [row for row in rows if row.get(lead) is not None]
    worst = math.ceil(len(known) / 10)
    step = math.ceil(len(known) / BARS)
    drawn = [(i, row) for i, row in enumerate(known) if i % step == 0 or i == len(known) - 1]
    scale = axis_scale(lead)
    bars = go.Bar(
        x=[i + 1 for i, _ in drawn],
        y=[round(scale * row[lead], 4) for _, row in drawn],
        hovertext=[plain(called(run, row["client"])) for _, row in drawn],
        marker={"color": [colour(1) if i < worst else colour(0) for i, _ in drawn], "line": {"width": 0}},
        hovertemplate="%{hovertext}: %{y:.4g}<extra></extra>",
        showlegend=False,
    )
    chart = figure([bars], axis(lead), x="clients, worst first", from_zero=True, height=260)
    chart.update_layout(hovermode="closest", bargap=0.15 if len(drawn) <= 60 else 0)
    legend = [Key("", "the worst tenth", 1, "box"), Key("", "the others", 0, "box")]
    return group([Chart(f"{metric(lead).label} of every client", chart, wide=True)], legend)


def _sorted(runs: Runs, tables: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]], lead: str) -> str:
    """A line per variant: the clients of each seed from worst to best, then the mean over the seeds place by place."""
    scale = axis_scale(lead)
    traces, legend = [], []
    for place, (variant, found) in enumerate(tables.items()):
        known = [[row[lead] for row in rows if row.get(lead) is not None] for rows in found]
        # `quantile` sorts upwards: losses are turned round, so that the worst come first.
        sign = -1.0 if lower_is_better(lead) else 1.0
        values = [[sign * value for value in some] for some in known if some]
        if not values:
            continue
        shares = [i / 40 for i in range(41)]
        y = [sign * scale * math.fsum(quantile(some, share) for some in values) / len(values) for share in shares]
        traces.append(
            go.Scatter(
                x=[100 * share for share in shares], y=[float(f"{v:.6g}") for v in y], name=plain(variant),
                mode="lines", legendgroup=variant, showlegend=False, hovertemplate="%{y:.4g}",
                line={"color": colour(place), "width": 2, "dash": dash(place)},
            )
        )  # fmt: skip
        legend.append(Key(variant, variant, place))
    chart = figure(traces, axis(lead), x="% of the clients, worst first", height=280)
    return group([Chart(f"{metric(lead).label} over the clients, from worst to best", chart, wide=True)], legend)


def _left_out(run: Run, rows: Sequence[Mapping[str, Any]], lead: str) -> str:
    """The clients without a number, by name, where others have one."""
    if not any(row.get(lead) is not None for row in rows):
        return ""
    without = [called(run, row["client"]) for row in rows if row.get(lead) is None and "test_rows" in row]
    if not without:
        return ""
    shown = ", ".join(without[:10]) + (f" and {len(without) - 10} others" if len(without) > 10 else "")
    why = "because there are no test rows, no model yet, or a number that is not finite"
    return paragraph(f"Without {metric(lead).label.lower()}, {why}: {shown}.")


def _one(run: Run, rows: Sequence[Mapping[str, Any]]) -> str:
    lead = lead_metric([run])
    counts = [name for name in ("rounds", "trained", *COUNTS.values())
              if name in ("rounds", "trained") or any(row[name] for row in rows)]  # fmt: skip
    metrics = [name for name in rows[0] if name not in ("client", "name", "rounds", "trained", *COUNTS.values())]
    order = [lead, *(name for name in metrics if name != lead)] if lead in metrics else metrics
    words = {"rounds": "Took part", "trained": "Trained", "train_rows": "Training rows", "test_rows": "Test rows"}
    head = ["Client", *(words.get(name, name.capitalize()) for name in counts)]
    head += [words.get(name) or metric(name).label for name in order]
    body = []
    for row in rows[:LISTED]:
        cells = [f"{row[name]:,}" for name in counts]
        for name in order:
            value = row[name]
            count = name in ("train_rows", "test_rows") and value is not None
            cells.append(f"{value:,}" if count else in_unit(metric(name).unit, value))
        body.append([called(run, row["client"]), *cells])
    measured = any(row.get(lead) is not None for row in rows)
    title = "Every client, worst served first" if measured else "Every client"
    found = table(title, head, body)
    about = "Took part and trained: in how many rounds, the latter with an update that reached the bank."
    if len(rows) > LISTED:
        about += f" The first {LISTED} of {len(rows):,} clients."
    about += " All of this is in clients.csv."
    return (folded(f"The {len(rows):,} clients one by one", found) if len(rows) > FOLDED else found) + note(about)


def _each(runs: Runs, tables: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]], lead: str) -> str:
    """A row per client and a column per variant, the mean over the seeds."""
    values: dict[int, dict[str, list[float]]] = {}
    for variant, found in tables.items():
        for row in (row for rows in found for row in rows if row.get(lead) is not None):
            values.setdefault(row["client"], {}).setdefault(variant, []).append(row[lead])

    def worst(client: int) -> float:
        every = [v for some in values[client].values() for v in some]
        mean = math.fsum(every) / len(every)
        return -mean if lower_is_better(lead) else mean

    clients = sorted(values, key=lambda client: (worst(client), client))
    run = runs.runs[0]
    body = [
        [called(run, client), *(_mean(values[client].get(variant), lead) for variant in tables)]
        for client in clients[:LISTED]
    ]
    caption = f"{metric(lead).label} of every client, mean over the seeds, worst served first"
    listed = table(caption, ["Client", *tables], body)
    return folded(f"The {len(clients):,} clients one by one", listed) if len(clients) > FOLDED else listed


def _mean(values: Sequence[float] | None, lead: str) -> str:
    return in_unit(metric(lead).unit, math.fsum(values) / len(values) if values else None)
