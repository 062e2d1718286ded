"""Tables and plain lines on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..choice import written
from ..report.comparison import compare_runs, findings, rows
from ..report.findings import lead
from ..report.load import read
from ..report.numbers import written as numbered
from ..report.words import NOTHING
from ..results import Result, Sweep

# Where nobody's terminal sets the width, tables may be wider than the 80 columns that rich assumes.
out = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
err = Console(stderr=True, highlight=False)


def print_line(text: object) -> None:
    """A line that is never wrapped, as it is."""
    out.print(str(text), markup=False, soft_wrap=True)


def print_table(title: str, columns: Sequence[str], body: Sequence[Sequence[str]]) -> None:
    """A table; without headings where all of them are empty."""
    table = Table(title=escape(title), title_justify="left", show_header=any(columns))
    for column in columns:
        table.add_column(escape(column), overflow="fold")
    for row in body:
        table.add_row(*[escape(str(cell)) for cell in row])
    out.print(table)


def plain(value: Any) -> str:
    """A number with four digits; ``-`` for what is missing."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else str(value)


def show_result(result: Result) -> None:
    """The table and the sentences of a run or of several; leaves with 1 if nothing was trained at all."""
    summary = result.summary
    said = _sentences(result)
    if isinstance(result, Sweep) and result.sweep.get("best"):
        show_choice(result)
        # Sentences that rank all cells by their test rows would invite to choose by those.
        said = [sentence for sentence in said if sentence.startswith(NOTHING)]
    elif result.runs:
        show_comparison(summary)
    else:
        _show_run(result)
    for sentence in said:
        print_line(sentence)
    print_line(f"report: {result.report}")
    if any(sentence.startswith(NOTHING) for sentence in said):
        raise typer.Exit(1)


def _sentences(result: Result) -> list[str]:
    """What is seen in the numbers: of one run as its report says it, with the names of tasks and clients."""
    if result.runs:
        return findings(result.summary)
    runs = read(result.folder)
    first, more = lead(runs, compare_runs(runs))
    return [*first, *more]


def show_comparison(comparison: dict[str, Any]) -> None:
    """The table of several runs."""
    table = rows(comparison)
    if table:
        print_table(str(comparison.get("name", "")), list(table[0]), [[str(v) for v in row.values()] for row in table])


def show_choice(result: Sweep) -> None:
    """The cells of a sweep by the number that was chosen by, and the choice."""
    number, take = result.sweep["best"]["number"], result.sweep["best"]["take"]
    cells = result.sweep["cells"]
    title = f"{number}, the {'largest' if take == 'max' else 'smallest'} is best"
    if result.sweep.get("variants"):
        _show_variants(result, title)
        cells = []  # of many variants with many settings nobody reads a table; sweep.json has it
    keys = list(dict.fromkeys(key for cell in cells for key in cell["changes"]))
    body = []
    for cell in cells:
        settings = [written(cell["changes"][key]) if key in cell["changes"] else "" for key in keys]
        mark = "best" if cell["cell"] == result.chosen else ""
        body.append([cell["cell"], *settings, *(plain(cell.get(name)) for name in ("mean", "sd", "n")), mark])
    if cells:
        print_table(title, ["cell", *keys, "mean", "sd", "n", ""], body)
    untrained = result.sweep.get("untrained", [])
    missing = [name for name in result.sweep["left_out"] if name not in untrained]
    if untrained:
        print_line("left out, because nothing was trained: " + ", ".join(untrained))
    if missing:
        print_line(f"left out, because {number} is missing: " + ", ".join(missing))
    if result.tuned is not None:
        print_line(f"each variant with its best settings, as a configuration: {result.tuned}")
    print_line(f"best: {result.chosen}, as a configuration: {result.best}")
    found = result.summary["variants"].get(result.chosen, {}).get("numbers", {}).get("acc")
    if found:
        print_line(f"its final accuracy on the test rows: {numbered('acc', found.get('mean'), found.get('sd'))}")


def _show_variants(result: Sweep, title: str) -> None:
    """The best cell of each variant, chosen by the number in the title, and its accuracy on the test rows."""
    body = []
    for row in result.by_variant().astype(object).to_dict("records"):
        row = {name: None if value != value else value for name, value in row.items()}
        settings = ", ".join(f"{key}={written(value)}" for key, value in (row["settings"] or {}).items())
        numbers = [plain(row[name]) for name in ("mean", "sd", "n", "cells")]
        tested = "-" if row["acc"] is None else numbered("acc", row["acc"], row["acc_sd"])
        body.append([row["variant"], settings, *numbers, tested])
    names = ["variant", "best settings", "mean", "sd", "n", "cells", "test accuracy"]
    print_table(f"{title}; the best cell of each variant", names, body)


def _show_run(result: Result) -> None:
    summary = result.summary
    main = ["acc", "acc_weighted", "acc_last5"] if summary.get("acc") is not None else ["loss"]
    keys = ["rounds", *main, "client_drift", "seconds", "client_steps_per_second"]
    server = (summary.get("server") or {}).get("class")
    values = [["method", f"{summary.get('method')}, server {server}"], ["seed", plain(summary.get("seed"))]]
    values += [[key, plain(summary.get(key))] for key in keys]
    bwt = summary.get("bwt_f") or {}
    values += [[f"bwt_f {name}", plain(value)] for name, value in bwt.items()]
    for name, spread in (summary.get("over_targets") or {}).items():
        if name == "loss" and "loss" not in main:
            continue
        if name not in ("accuracy", "loss"):
            values.append([name, plain(spread.get("mean"))])
        if spread.get("n", 0) > 1:
            values.append([f"{name}, worst tenth", f"{plain(spread.get('worst_decile'))} (over {spread['n']} targets)"])
    forgetting, forward = summary.get("forgetting") or {}, summary.get("forward_transfer") or {}
    if forgetting.get("best") is not None:
        values.append(["forgetting, best", plain(forgetting["best"])])
    if forward.get("mean") is not None and not forward.get("own_entries"):  # 0 by construction with own entries
        values.append(["forward transfer", plain(forward["mean"])])
    problems = summary.get("problems") or {}
    values += [[name, plain(value)] for name, value in problems.items() if value and name != "clients"]
    values += [[f"{name} clients", _few(clients)] for name, clients in problems.get("clients", {}).items()]
    print_table(result.folder.name, ["", ""], values)


def _few(clients: list[int]) -> str:
    shown = ", ".join(str(client) for client in clients[:10])
    return shown if len(clients) <= 10 else f"{shown} and {len(clients) - 10} others"
