"""Who held and trained which task, and when: clients down, rounds across, one colour per task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from .charts import Chart, Key, colour, figure, group, plain
from .load import Run, Runs
from .parts import Section, bullets, note, paragraph

CLIENTS = 60
"""How many clients are drawn: those that took part most often."""
ROUNDS = 400
"""With more rounds than this, every k-th one is drawn."""
LABELS = 50
"""How many classes are named."""
CHARTS = 6
"""How many different timelines are drawn."""

Cell = tuple[int, bool]
"""The task held (-1 where the stream has no tasks), and whether the client's update was accepted."""
Cells = Mapping[tuple[int, int], Cell]
"""(client, round) -> cell."""


def section(runs: Runs, comparison: Mapping[str, Any]) -> Section:
    """A chart for each different timeline; runs that share one (the variants of a seed) are drawn once."""
    found: dict[str, tuple[Run, Cells, list[str]]] = {}
    for variant, members in runs.variants.items():
        for run in members:
            cells = cells_of(run)
            if cells:
                mark = repr((sorted(cells.items()), run.stream.get("task_names")))
                found.setdefault(mark, (run, cells, []))[2].append(f"{variant}, seed {run.seed}")
    title = "Who held what, and when"
    if not found:
        return Section("timeline", title, paragraph("No round is recorded (yet)."))
    drawn = list(found.values())[:CHARTS]
    charts = [Chart(_heading(runs, run, who), _chart(run, cells), wide=len(drawn) == 1) for run, cells, who in drawn]
    body = group(charts, _legend([run for run, _, _ in drawn]))
    tasks = any(task >= 0 for _, cells, _ in drawn for task, _ in cells.values())
    remarks = ["A cell is a client in a round" + (", its colour the task of the client's rows." if tasks else ".")]
    remarks.append("An empty cell is a client that did not take part, a cross one whose update did not reach the bank.")
    everyone = max(len({client for client, _ in cells}) for _, cells, _ in drawn)
    if everyone > CLIENTS:
        remarks.append(f"Drawn are the {CLIENTS} clients, of {everyone}, that took part most often.")
    step = max(_step(run) for run, _, _ in drawn)
    if step > 1:
        remarks.append(f"Every {step}th round is drawn.")
    if len(found) > CHARTS:
        remarks.append(f"{CHARTS} of {len(found)} different timelines are drawn.")
    labels = [str(label) for label in runs.runs[0].stream.get("classes") or ()]
    if labels:
        more = f" and {len(labels) - LABELS} others" if len(labels) > LABELS else ""
        remarks.append(f"Classes, by the labels that the data give them: {', '.join(labels[:LABELS])}{more}.")
    body += note(" ".join(remarks))
    notes = list(dict.fromkeys(str(n) for run in runs.runs for n in run.stream.get("notes") or ()))
    if notes:
        body += note("Remarks of the stream:") + bullets(notes)
    return Section("timeline", title, body)


def cells_of(run: Run) -> dict[tuple[int, int], Cell]:
    """Every client in every round in which it took part; the warm-up is left out."""
    cells: dict[tuple[int, int], Cell] = {}
    for record in run.records.get("round", []):
        round = int(record["round"])
        if round < 1:
            continue
        tasks = record.get("tasks") or {}
        held = {int(client): int(task) for task, clients in tasks.items() for client in clients}
        reached = {int(c) for clients in (record.get("trained") or {}).values() for c in clients}
        reached |= {int(c) for clients in (record.get("trained_tasks") or {}).values() for c in clients}
        for client in record.get("participants") or ():
            cells[int(client), round] = held.get(int(client), -1), int(client) in reached
    return cells


def _chart(run: Run, cells: Cells) -> go.Figure:
    times: dict[int, int] = {}
    for client, _ in cells:
        times[client] = times.get(client, 0) + 1
    clients = sorted(sorted(times, key=lambda c: (-times[c], c))[:CLIENTS])
    rounds = [r for r in range(1, max(r for _, r in cells) + 1) if (r - 1) % _step(run) == 0]
    names = _names(run)
    count = max(len(names), 1)
    z = [[_code(cells.get((c, r))) for r in rounds] for c in clients]
    hover = [[_words(cells.get((c, r)), names) for r in rounds] for c in clients]
    gap = 1 if len(rounds) <= 120 else 0
    colours = [[edge, colour(i)] for i in range(count) for edge in (i / count, (i + 1) / count)]
    trace = go.Heatmap(
        x=rounds, y=clients, z=z, hovertext=hover, colorscale=colours, zmin=-0.5, zmax=count - 0.5, showscale=False,
        xgap=gap, ygap=gap, text=_labels(z), texttemplate="%{text}",
        hovertemplate="client %{y}, round %{x}<br>%{hovertext}<extra></extra>",
    )  # fmt: skip
    lost = [(c, r) for c in clients for r in rounds if (c, r) in cells and not cells[c, r][1]]
    crosses = go.Scatter(
        x=[r for _, r in lost], y=[c for c, _ in lost], mode="markers", hoverinfo="skip", showlegend=False,
        marker={"symbol": "x-thin", "size": 6, "line": {"width": 2, "color": "var(--on-series)"}},
    )  # fmt: skip
    row = 26 if len(clients) <= 12 else 14
    drawn = figure([trace, *([crosses] if lost else [])], "client", height=80 + row * len(clients))
    drawn.update_layout(hovermode="closest")
    if clients != list(range(clients[0], clients[0] + len(clients))):
        # Sampled clients are not consecutive: as categories they stand next to each other.
        drawn.update_yaxes(type="category")
    elif len(clients) <= 20:
        drawn.update_yaxes(dtick=1)
    drawn.update_yaxes(autorange="reversed", showgrid=False, zeroline=False)
    return drawn


def _step(run: Run) -> int:
    return math.ceil(max(run.done, 1) / ROUNDS)


def _code(cell: Cell | None) -> int | None:
    return None if cell is None else max(cell[0], 0)


def _words(cell: Cell | None, names: Sequence[str]) -> str:
    if cell is None:
        return "did not take part"
    what = plain(names[cell[0]]) if 0 <= cell[0] < len(names) else "took part"
    return what if cell[1] else f"{what}; its update did not reach the bank"


def _labels(z: Sequence[Sequence[int | None]]) -> list[list[str]]:
    """The task's number in the middle of each stretch of rounds that a client spends on it."""
    labels = [[""] * len(row) for row in z]
    for row, line in zip(z, labels, strict=True):
        start = 0
        for end in range(1, len(row) + 1):
            if end == len(row) or row[end] != row[start]:
                if row[start] is not None and max((v for v in row if v is not None), default=0) > 0:
                    line[(start + end - 1) // 2] = str(row[start])
                start = end
    return labels


def _names(run: Run) -> list[str]:
    names = [str(name) for name in run.stream.get("task_names") or ()]
    held = [cell[0] for cell in cells_of(run).values()]
    count = max([int(run.stream.get("tasks") or 0), len(names), *(task + 1 for task in held)])
    return [names[i] if i < len(names) else f"task {i}" for i in range(count)]


def _legend(drawn: Sequence[Run]) -> list[Key]:
    names = max((_names(run) for run in drawn), key=len)
    return [Key("", f"{i}: {name}", i, "box") for i, name in enumerate(names)]


def _heading(runs: Runs, run: Run, who: Sequence[str]) -> str:
    if runs.single:
        return "The run"
    if len(who) == len(runs.runs):
        return "All runs"
    if len(who) == 1:
        return who[0]
    if len(who) == sum(1 for r in runs.runs if r.seed == run.seed) and all(
        w.endswith(f", seed {run.seed}") for w in who
    ):
        return f"Seed {run.seed}, all variants"
    return f"{who[0]} and {len(who) - 1} more"
