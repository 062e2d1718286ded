"""The command line: ``shoal run``, ``resume``, ``show``, ``methods``, ``recipes``, ``report``, ``check``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from rich.console import Console
from rich.table import Table

from . import __version__, api, registry
from .errors import ConfigError, ShoalError
from .folder import RunFolder
from .loading import expand, is_many, load, overridden, parse_overrides, read_yaml, recipes
from .progress import Bar
from .report.comparison import findings, rows
from .report.page import write_report
from .report.sentences import NOTHING
from .running import Interrupted, dumped
from .setup import assemble, resolve_config

app = typer.Typer(
    help="Federated and decentralised learning while the clients' data drifts.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
INTERRUPTED = 130
"""The exit code of a command that was interrupted."""
# Where nobody's terminal sets the width, tables may be wider than the 80 columns that rich assumes.
out = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
err = Console(stderr=True, highlight=False)

Source = Annotated[str, typer.Argument(help="A YAML file, or the name of a recipe (see: shoal recipes).")]
Changes = Annotated[list[str] | None, typer.Argument(help="Settings to change, such as local.lr=0.1 rounds=5.")]


@app.command()
def run(
    config: Source,
    changes: Changes = None,
    out_dir: Annotated[Path | None, typer.Option("--out", help="The run's folder; default runs/NAME.")] = None,
    force: Annotated[bool, typer.Option(help="Replace a run that is there already.")] = False,
) -> None:
    """Run a configuration, with all its variants and seeds."""
    result = api.run(config, parse_overrides(changes or []), out=out_dir, force=force, progress=Bar())
    _show_result(result)


@app.command()
def resume(folder: Annotated[Path, typer.Argument(help="The folder of an unfinished run.")]) -> None:
    """Go on with an interrupted run; the numbers are those of an uninterrupted one."""
    _show_result(api.resume(folder, progress=Bar()))


@app.command()
def show(config: Source, changes: Changes = None) -> None:
    """Print the resolved configuration and the stream: who holds what when."""
    import yaml

    from .streams.describe import describe

    raw = overridden(load(config), parse_overrides(changes or []))
    singles = expand(raw)
    resolved = resolve_config(singles[0].raw)
    if is_many(raw):
        out.print(
            f"{len(singles)} runs; shown is {singles[0].place}. Others: " + ", ".join(str(s.place) for s in singles[1:])
        )
        for single in singles[1:]:
            resolve_config(single.raw)
    out.print(yaml.safe_dump(dumped(resolved), sort_keys=False, width=100), markup=False, soft_wrap=True, end="")
    setup = assemble(resolved)
    model = setup.world.models["main"]
    out.print(f"\nmodel: {model.space.size:,} trainable parameters; segments " + _segments(model.space))
    for line in (*setup.dataset.notes, *setup.stream.notes()):
        out.print(f"note: {line}", markup=False)
    for table in describe(setup.stream, resolved.rounds):
        _print_table(table.title, table.columns, table.rows)


def _segments(space: Any) -> str:
    sizes = {name: where.stop - where.start for name, where in space.segments.items()}
    sizes["head"] = space.head.stop - space.head.start
    return ", ".join(f"{name} {size:,}" for name, size in sizes.items())


@app.command()
def methods() -> None:
    """List what a configuration can choose from: methods, learners, means, servers and all other parts."""
    for part, kinds in registry.PARTS.items():
        table: list[list[str]] = []
        for kind in kinds:
            target = registry.find(part, kind)
            settings = ", ".join(_setting(name, s) for name, s in registry.settings_of(target).items())
            table.append([kind, _first_sentence(target), settings])
        for alias, meaning in registry.ALIASES.get(part, {}).items():
            table.append([alias, f"alias of {json.dumps(meaning)}", ""])
        _print_table(part, ["kind", "what it is", "settings"], table)


def _setting(name: str, setting: registry.Setting) -> str:
    return name if setting.default is ... else f"{name}={setting.default!r}"


def _first_sentence(target: Callable[..., Any]) -> str:
    text = " ".join((target.__doc__ or "").split())
    return text.split(". ")[0].rstrip(".")


@app.command(name="recipes")
def list_recipes() -> None:
    """List the recipes that come with Shoal."""
    table = []
    for name, path in recipes().items():
        raw = read_yaml(path)
        table.append([name, " ".join(str(raw.get("description", "")).split()), str(len(expand(raw)))])
    _print_table("recipes", ["name", "what it shows", "runs"], table)


@app.command()
def report(folder: Annotated[Path, typer.Argument(help="The folder of a run or of several.")]) -> None:
    """Write report.html anew and print where it is."""
    if not RunFolder(folder).exists:
        raise ConfigError(f"{folder} holds no run (there is no config.yaml in it)")
    out.print(str(write_report(folder)), markup=False, soft_wrap=True)


@app.command()
def check(
    target: Annotated[str, typer.Argument(help="Your own part by import path, such as my_methods:MyMethod.")],
) -> None:
    """Run the laws on your own method, learner, stream, mean or server optimiser."""
    from .checks.runner import check_target

    results = check_target(target)
    _print_table(
        f"laws for {target}",
        ["law", "result", "detail"],
        [[r.law, "holds" if r.passed else "BROKEN", r.detail] for r in results],
    )
    if not all(r.passed for r in results):
        raise typer.Exit(1)


def _show_result(result: api.Result) -> None:
    summary = result.summary
    if result.runs:
        table = rows(summary)
        if table:
            _print_table(
                str(summary.get("name", "")),
                list(table[0]),
                [[str(v) for v in row.values()] for row in table],
            )
    else:
        keys = ["rounds", "acc", "acc_last5", "client_drift", "seconds", "client_steps_per_second"]
        server = (summary.get("server") or {}).get("class")
        values = [["method", f"{summary.get('method')}, server {server}"], ["seed", _plain(summary.get("seed"))]]
        values += [[key, _plain(summary.get(key))] for key in keys]
        bwt = summary.get("bwt_f") or {}
        values += [[f"bwt_f {name}", _plain(value)] for name, value in bwt.items()]
        problems = summary.get("problems") or {}
        values += [[name, _plain(value)] for name, value in problems.items() if value and name != "clients"]
        values += [[f"{name} clients", _few(clients)] for name, clients in problems.get("clients", {}).items()]
        _print_table(result.folder.name, ["", ""], values)
    said = findings(summary)
    for sentence in said:
        out.print(sentence, markup=False, soft_wrap=True)
    out.print(f"report: {result.report}", markup=False, soft_wrap=True)
    if any(sentence.startswith(NOTHING) for sentence in said):
        raise typer.Exit(1)


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else str(value)


def _few(clients: list[int]) -> str:
    shown = ", ".join(str(client) for client in clients[:10])
    return shown if len(clients) <= 10 else f"{shown} and {len(clients) - 10} others"


def _print_table(title: str, columns: Sequence[str], body: Sequence[Sequence[str]]) -> None:
    table = Table(title=title, title_justify="left", show_header=any(columns))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in body:
        table.add_row(*[_escape(cell) for cell in row])
    out.print(table)


def _escape(text: object) -> str:
    from rich.markup import escape

    return escape(str(text))


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        out.print(__version__)
        raise typer.Exit


def main() -> int:
    """Runs a command and gives its exit code; errors of ours are one message and 2, an interrupt is 130."""
    sys.path.insert(0, str(Path.cwd()))  # parts of one's own by import path, as with python -m
    try:
        code = app(standalone_mode=False)
        if code != INTERRUPTED:  # what typer makes of a KeyboardInterrupt
            return code if isinstance(code, int) else 0
        err.print("interrupted; if a run had begun, go on with: shoal resume DIR")
    except click.exceptions.ClickException as error:
        error.show()
        return error.exit_code
    except Interrupted as error:
        err.print(str(error), markup=False, soft_wrap=True)
    except (ShoalError, OSError) as error:
        err.print(f"error: {error}", markup=False, soft_wrap=True)
        return 2
    return INTERRUPTED
