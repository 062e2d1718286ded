"""Who held what and who trained what, and when: clients down, rounds across, one colour per task, concept or entry."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from .charts import SERIES, Chart, Key, axis_names, colour, figure, group, plain
from .clients import called, name_of, reached
from .held import held_charts
from .load import Line, Run, Runs
from .parts import Section, bullets, note, paragraph

CLIENTS = 100
"""How many clients are drawn: those that took part most often."""
ROUNDS = 500
"""With more rounds than this, every k-th one is drawn."""
LABELS = 50
"""How many classes are named."""
CHARTS = 6
"""How many different timelines are drawn."""
CELLS = 60_000
"""How many cells all timelines of a page may have together."""
DETAILED = 12_000
"""In a chart of more cells than this nothing is written into the cells, and the entries are not named."""
NAMED = 40
"""So many clients at most are named on an axis, where they have names."""
CROSSES = 400
"""How many lost updates get a cross; of more, the paler colour says it alone."""
KEYS = 40
"""How many colours the legend explains."""

Cell = tuple[int, bool]
"""The number of what was held (-1 where the stream says nothing), and whether the client's update was accepted."""
Cells = Mapping[tuple[int, int], Cell]
"""(client, round) -> cell."""


class Timeline(NamedTuple):
    """One timeline: the run that it is drawn from, its cells, what a colour is (``task``) and the colours' names."""

    run: Run
    cells: Cells
    label: str
    names: Sequence[str]
    entries: Mapping[tuple[int, int], Sequence[str]]


def section(runs: Runs, comparison: Mapping[str, Any]) -> Section:
    """A chart for each different timeline; runs that share one (the variants of a seed) are drawn once."""
    title = "Who held what, and who trained what"
    found: dict[str, tuple[Timeline, list[str]]] = {}
    for variant, members in runs.variants.items():
        for run in members:
            for line in timelines(run):
                mark = repr((line.label, sorted(line.cells.items()), line.names))
                found.setdefault(mark, (line, []))[1].append(f"{variant}, seed {run.seed}")
    if not found:
        return Section("timeline", title, paragraph("No round is recorded (yet)."))
    kinds = list(dict.fromkeys(line.label for line, _ in found.values()))
    room, body, drawn = CELLS, "", []
    for kind in kinds:
        lines: list[tuple[Timeline, list[str]]] = []
        for line, who in (pair for pair in found.values() if pair[0].label == kind):
            room -= len(_clients(line.cells)) * len(_rounds(line))
            if len(lines) < CHARTS and (room >= 0 or not lines):
                lines.append((line, who))
        charts = [
            Chart(_title(kind, _heading(runs, line.run, who)), _chart(line), wide=len(lines) == 1)
            for line, who in lines
        ]
        body += group(charts, _legend(lines))
        drawn += lines
    body += held_charts(runs, _heading)
    body += note(" ".join(_remarks(runs, [line for line, _ in drawn], len(found))))
    notes = list(dict.fromkeys(str(n) for run in runs.runs for n in run.stream.get("notes") or ()))
    if notes:
        body += note("Remarks of the data and the stream:") + bullets(notes)
    return Section("timeline", title, body)


def timelines(run: Run) -> list[Timeline]:
    """What the clients held, and beside it what they trained, where that is something else."""
    cells = cells_of(run)
    if not cells:
        return []
    entries = _entries(run)
    found = [Timeline(run, cells, held_label(run), _names(run, cells), entries)]
    order = sorted({name for some in entries.values() for name in some}, key=lambda name: (len(name), name))
    number = {name: place for place, name in enumerate(order)}
    trained = {place: (number[some[0]] if (some := entries.get(place)) else -1, ok) for place, (_, ok) in cells.items()}
    pairs = {(cells[place][0], trained[place][0]) for place, (_, ok) in cells.items() if ok and place in entries}
    # An entry per task is the same picture again, and one entry for everyone is none.
    if len({entry for _, entry in pairs}) > 1 and len(pairs) > len({held for held, _ in pairs}):
        found.append(Timeline(run, trained, "entry", order, entries))
    return found


def held_label(run: Run) -> str:
    """What the records say of the clients' rows: ``task``, ``concept``, ``domain``; empty where they say nothing."""
    records = run.records.get("round", [])
    if any(record.get("tasks") for record in records):
        return "task"
    labels = list(dict.fromkeys(label for record in records for label in record.get("held") or ()))
    return "concept" if "concept" in labels else next(iter(labels), "")


def cells_of(run: Run) -> dict[tuple[int, int], Cell]:
    """Every client in every round in which it took part; the warm-up is left out."""
    cells: dict[tuple[int, int], Cell] = {}
    label = held_label(run)
    order = {name: place for place, name in enumerate(_values(run, label))}
    for record in run.records.get("round", []):
        round = int(record["round"])
        if round < 1:
            continue
        held = {int(client): order[str(name)] for name, clients in _held(record, label).items() for client in clients}
        arrived = reached(record)
        for client in record.get("participants") or ():
            cells[int(client), round] = held.get(int(client), -1), int(client) in arrived
    return cells


def _held(record: Line, label: str) -> Mapping[str, Sequence[int]]:
    found = record.get("tasks") if label == "task" else (record.get("held") or {}).get(label)
    return found or {}


def _values(run: Run, label: str) -> list[str]:
    """Every value of a label, by number: numbers stand for themselves, names are sorted."""
    seen = {str(name) for record in run.records.get("round", []) for name in _held(record, label)}
    if all(name.isdecimal() for name in seen):
        count = max([int(run.stream.get("tasks") or 0) if label == "task" else 0, *(int(name) + 1 for name in seen)])
        if count <= 10 * len(seen) + 100:
            return [str(i) for i in range(count)]
    return sorted(seen)


def _entries(run: Run) -> dict[tuple[int, int], list[str]]:
    """(client, round) -> the entries that it trained."""
    found: dict[tuple[int, int], list[str]] = {}
    for record in run.records.get("round", []):
        for name, clients in (record.get("trained") or {}).items():
            for client in clients:
                found.setdefault((int(client), int(record["round"])), []).append(str(name))
    return found


def _names(run: Run, cells: Cells) -> list[str]:
    label = held_label(run)
    values = _values(run, label)
    known = run.names.get(label, ())
    return [
        known[int(value)]
        if value.isdecimal() and int(value) < len(known)
        else f"{label} {value}"
        if value.isdecimal()
        else value
        for value in values
    ]


def _clients(cells: Cells) -> list[int]:
    times: dict[int, int] = {}
    for client, _ in cells:
        times[client] = times.get(client, 0) + 1
    return sorted(sorted(times, key=lambda c: (-times[c], c))[:CLIENTS])


def _rounds(line: Timeline) -> list[int]:
    step = _step(line.run)
    return [r for r in range(1, max(r for _, r in line.cells) + 1) if (r - 1) % step == 0]


def _chart(line: Timeline) -> go.Figure:
    cells, clients, rounds = line.cells, _clients(line.cells), _rounds(line)
    named = len(clients) <= NAMED and any(name_of(line.run, client) for client in clients)
    names = axis_names([name_of(line.run, client) or str(client) for client in clients]) if named else []
    place = dict(zip(clients, names or clients, strict=True))
    detailed = len(clients) * len(rounds) <= DETAILED
    count = max(len(line.names), 1)
    z = [[_code(cells.get((c, r))) for r in rounds] for c in clients]
    hover = [[_words(line, (c, r), detailed) for r in rounds] for c in clients]
    gap = 1 if len(rounds) <= 120 and len(clients) <= 60 else 0
    shades = [shade for i in range(count) for shade in (colour(i), f"var(--band-{i % SERIES + 1})")]
    colours = [[edge, shade] for i, shade in enumerate(shades) for edge in (i / len(shades), (i + 1) / len(shades))]
    trace = go.Heatmap(
        x=rounds, y=list(place.values()), z=z, hovertext=hover, colorscale=colours, zmin=-0.5, zmax=len(shades) - 0.5,
        showscale=False, xgap=gap, ygap=gap, text=_labels(z) if detailed and len(clients) <= 40 else None,
        texttemplate="%{text}" if detailed and len(clients) <= 40 else None,
        hovertemplate="%{hovertext}<br>client %{y}, round %{x}<extra></extra>",
    )  # fmt: skip
    lost = [(c, r) for c in clients for r in rounds if (c, r) in cells and not cells[c, r][1]]
    crosses = go.Scatter(
        x=[r for _, r in lost], y=[place[c] for c, _ in lost], mode="markers", hoverinfo="skip", showlegend=False,
        marker={"symbol": "x-thin", "size": 6, "line": {"width": 2, "color": "var(--text)"}},
    )  # fmt: skip
    row = 26 if len(clients) <= 12 else 14 if len(clients) <= 50 else 8
    traces = [trace, *([crosses] if 0 < len(lost) <= CROSSES else [])]
    drawn = figure(traces, "client", boundaries=line.run.boundaries, height=80 + row * len(clients))
    drawn.update_shapes(layer="above", line_color="var(--text)")
    drawn.update_layout(hovermode="closest")
    if named or clients != list(range(clients[0], clients[0] + len(clients))):
        # Sampled clients are not consecutive: as categories they stand next to each other.
        drawn.update_yaxes(type="category")
    elif len(clients) <= 20:
        drawn.update_yaxes(dtick=1)
    drawn.update_yaxes(autorange="reversed", showgrid=False, zeroline=False)
    return drawn


def _step(run: Run) -> int:
    return math.ceil(max(run.done, 1) / ROUNDS)


def _code(cell: Cell | None) -> int | None:
    """An even number where the update reached the bank, an odd one (the paler colour) where it did not."""
    return None if cell is None else 2 * max(cell[0], 0) + (not cell[1])


def _words(line: Timeline, place: tuple[int, int], detailed: bool) -> str:
    cell = line.cells.get(place)
    if cell is None:
        return "did not take part"
    what = plain(line.names[cell[0]]) if 0 <= cell[0] < len(line.names) else "took part"
    if not cell[1]:
        return f"{what}; its update did not reach the bank"
    entries = line.entries.get(place, ())
    if not detailed or not entries or line.label == "entry":
        return what
    more = f" and {len(entries) - 3} others" if len(entries) > 3 else ""
    whose = f"{plain(called(line.run, place[0]))}: " if line.run.names["client"] else ""
    return f"{whose}{what}, trained {plain(', '.join(entries[:3]))}{more}"


def _labels(z: Sequence[Sequence[int | None]]) -> list[list[str]]:
    """The number of what is held in the middle of each stretch of rounds that a client spends on it."""
    held = [[None if v is None else v // 2 for v in row] for row in z]
    labels = [[""] * len(row) for row in held]
    most = max((v for row in held for v in row if v is not None), default=0)
    for row, line in zip(held, labels, strict=True):
        start = 0
        for end in range(1, len(row) + 1):
            if end == len(row) or row[end] != row[start]:
                if row[start] is not None and most > 0:
                    line[(start + end - 1) // 2] = str(row[start])
                start = end
    return labels


def _legend(drawn: Sequence[tuple[Timeline, Sequence[str]]]) -> list[Key]:
    names = max((line.names for line, _ in drawn), key=len)
    keys = [Key("", f"{i}: {name}", i, "box") for i, name in enumerate(names[:KEYS])]
    return keys + ([Key("", f"and {len(names) - KEYS} others", KEYS, "box")] if len(names) > KEYS else [])


def _title(kind: str, heading: str) -> str:
    what = {"entry": "entry trained", "": "who took part"}.get(kind, f"{kind} held")
    return f"{heading}: {what}"


def _remarks(runs: Runs, drawn: Sequence[Timeline], found: int) -> list[str]:
    label = drawn[0].label
    said = ["A cell is a client in a round" + (f", its colour the {label} of the client's rows." if label else ".")]
    if any(line.label == "entry" for line in drawn):
        said.append("Where the colour is an entry, it is the first one that the client trained.")
    said.append(
        "An empty cell is a client that did not take part; a pale one, with a cross where there are few, one whose "
        "update did not reach the bank."
    )
    if any(line.run.boundaries for line in drawn):
        said.append("Dashed lines are phase boundaries.")
    everyone = max(len({client for client, _ in line.cells}) for line in drawn)
    if everyone > CLIENTS:
        said.append(f"Drawn are the {CLIENTS} clients, of {everyone:,}, that took part most often.")
    step = max(_step(line.run) for line in drawn)
    if step > 1:
        said.append(f"Of every {step} rounds one is drawn.")
    if len(drawn) < found:
        said.append(f"{len(drawn)} of {found} different timelines are drawn.")
    labels = [str(name) for name in runs.runs[0].stream.get("classes") or ()]
    if labels and runs.runs[0].stream.get("learns") != "values":
        more = f" and {len(labels) - LABELS} others" if len(labels) > LABELS else ""
        said.append(f"Classes, by the labels that the data give them: {', '.join(labels[:LABELS])}{more}.")
    return said


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
