"""Confusion matrices: which classes are taken for which, by the names that the data give them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from .charts import Chart, Choice, axis_names, figure, group
from .load import Line, Run, Runs
from .parts import Section, note, table
from .series import Target, number, title_of

TEXT = 30
"""With more classes than this the cells carry no numbers: there would be no room for them."""
DRAWN = 150
"""With more classes than this there is no matrix, only the table of the worst confusions."""
CELLS = 60_000
"""How many cells all matrices of a page may have together: seeds beyond the first and moments before the last are
left out first."""
WORST = 10
_OWN = frozenset({"round", "record", "entry", "entries", "classes", "counts", "targets", "excluded", "rows"})


class Matrix(NamedTuple):
    """One record: what it is of, when, the names of the classes, and the counts by (true, predicted)."""

    who: str
    target: str
    round: int
    moment: str
    classes: tuple[str, ...]
    counts: Mapping[tuple[int, int], int]


def section(runs: Runs, comparison: Mapping[str, Any]) -> Section:
    """A heat map, with a choice of run, target and moment, and the worst confusions after the last round."""
    title = "Confusion matrix"
    every = [m for members in runs.variants.values() for run in members for m in matrices(run, _who(runs, run))]
    if not every:
        return Section("confusion", title, "")
    drawable = [m for m in every if len(m.classes) <= DRAWN]
    drawn = _affordable(drawable)
    body = _chart(drawn) if drawn else ""
    left_out = len(every) - len(drawn)
    said = (
        "Rows are the true classes, columns what the models said. The colour is the share of the true class's test "
        "rows, so that small classes count as much as large ones; the numbers are rows."
    )
    if len(drawable) < len(every):
        said += f" Matrices of more than {DRAWN} classes are not drawn."
    if left_out:
        said += f" {left_out} of {len(every)} matrices are left out; all are in metrics.jsonl."
    return Section("confusion", title, body + _worst(runs, every) + note(said))


def matrices(run: Run, who: str) -> Iterator[Matrix]:
    """The well-formed records of a run, oldest first; ``who`` names the run."""
    last = max((r["round"] for r in run.records.get("confusion", []) if isinstance(r.get("round"), int)), default=0)
    for record in run.records.get("confusion", []):
        classes, counts = record.get("classes"), record.get("counts")
        if not (isinstance(record.get("round"), int) and isinstance(classes, list) and isinstance(counts, list)):
            continue
        found = {
            (int(cell[0]), int(cell[1])): int(cell[2])
            for cell in counts
            if isinstance(cell, list) and len(cell) == 3 and all(number(v) is not None for v in cell)
            and 0 <= cell[0] < len(classes) and 0 <= cell[1] < len(classes)
        }  # fmt: skip
        if not found:
            continue  # a target without a model or test rows
        yield Matrix(
            who, _target(record, run.names), record["round"], _moment(run, record["round"], last),
            tuple(str(name) for name in classes), found,
        )  # fmt: skip


def _target(record: Line, names: Mapping[str, Sequence[str]]) -> str:
    labels = ((k, v) for k, v in record.items() if k not in _OWN)
    target: Target = tuple(sorted((k, v) for k, v in labels if isinstance(v, int | str) and not isinstance(v, bool)))
    count = record.get("targets")
    if not target and isinstance(count, int):
        return f"all {count} targets together"
    return title_of(target, names)


def _moment(run: Run, round: int, last: int) -> str:
    if round == last and round not in run.boundaries:
        return f"the end (round {round})" if run.done == round and run.finished else f"round {round}"
    return f"boundary after round {round}" if round in run.boundaries else f"round {round}"


def _who(runs: Runs, run: Run) -> str:
    return "the run" if runs.single else f"{run.variant}, seed {run.seed}"


def _affordable(every: Sequence[Matrix]) -> list[Matrix]:
    """As many matrices as a page can carry: the ends first, then the moments before, run by run."""
    ends = {who: max(m.round for m in every if m.who == who) for who in dict.fromkeys(m.who for m in every)}
    order = sorted(range(len(every)), key=lambda i: every[i].round != ends[every[i].who])
    room = CELLS
    kept: set[int] = set()
    for i in order:
        room -= len(every[i].classes) ** 2
        if room >= 0 or not kept:
            kept.add(i)
    return [m for i, m in enumerate(every) if i in kept]


def _chart(drawn: Sequence[Matrix]) -> str:
    whos = list(dict.fromkeys(m.who for m in drawn))
    targets = list(dict.fromkeys(m.target for m in drawn))
    # The last moment is the first that is shown.
    moments = [moment for _, moment in sorted({(-m.round, m.moment) for m in drawn})]
    traces = [_trace(m, (whos.index(m.who), targets.index(m.target), moments.index(m.moment))) for m in drawn]
    most = max(len(m.classes) for m in drawn)
    chart = figure(traces, "true class", x="predicted class", whole=False, height=130 + max(160, min(620, 34 * most)))
    chart.update_layout(hovermode="closest")
    for axis in (chart.layout.xaxis, chart.layout.yaxis):
        axis.update(type="category", showgrid=False, zeroline=False, showline=False, ticks="")
    chart.update_xaxes(tickangle=-45 if max(len(n) for m in drawn for n in m.classes) > 3 else 0)
    chart.update_yaxes(autorange="reversed", tickangle=0)
    choices = [Choice("Run", whos), Choice("Target", targets), Choice("After", moments)]
    return group([Chart("Who is taken for whom", chart, wide=True)], choices=choices)


def _trace(matrix: Matrix, view: tuple[int, int, int]) -> go.Heatmap:
    count = len(matrix.classes)
    sums = [sum(n for (true, _), n in matrix.counts.items() if true == row) for row in range(count)]
    cells = [[matrix.counts.get((row, column), 0) for column in range(count)] for row in range(count)]
    shares = [[round(n / sums[row], 3) if sums[row] else 0 for n in line] for row, line in enumerate(cells)]
    names = axis_names(matrix.classes)
    return go.Heatmap(
        z=shares, x=names, y=names, text=cells, zmin=0, zmax=1, showscale=False, xgap=1 if count <= 40 else 0,
        ygap=1 if count <= 40 else 0, colorscale=[[0, "var(--heat-0)"], [1, "var(--heat-1)"]],
        texttemplate="%{text}" if count <= TEXT else None, meta={"view": list(view)}, name="",
        hovertemplate="true %{y}<br>predicted %{x}<br>%{text} rows, %{z:.1%} of the class<extra></extra>",
    )  # fmt: skip


def _worst(runs: Runs, every: Sequence[Matrix]) -> str:
    """The most frequent confusions at the end of each run, added up over targets and seeds."""
    rows = []
    few = WORST if len(runs.variants) == 1 else max(2, WORST // len(runs.variants))
    for variant, members in list(runs.variants.items())[:WORST]:
        pairs: dict[tuple[str, str], int] = {}
        sizes: dict[str, int] = {}
        for who in {_who(runs, run) for run in members}:
            mine = [m for m in every if m.who == who]
            for m in (m for m in mine if m.round == max(one.round for one in mine)):
                for (true, said), count in m.counts.items():
                    sizes[m.classes[true]] = sizes.get(m.classes[true], 0) + count
                    if true != said:
                        pair = m.classes[true], m.classes[said]
                        pairs[pair] = pairs.get(pair, 0) + count
        for (true_name, said_name), count in sorted(pairs.items(), key=lambda item: (-item[1], item[0]))[:few]:
            share = f"{100 * count / sizes[true_name]:.1f} %"
            rows.append([*([] if runs.single else [variant]), true_name, said_name, f"{count:,}", share])
    if not rows:
        return note("No row is taken for another class at the end.")
    head = [*([] if runs.single else ["Variant"]), "True class", "Taken for", "Rows", "Of the class"]
    text_columns = (0, 1) if runs.single else (0, 1, 2)
    return table("The most frequent confusions at the end, all targets and seeds together", head, rows, text_columns)
