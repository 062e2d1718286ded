"""The commands that show something: ``show``, ``methods``, ``recipes``, ``report``, ``compare``, ``check``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import registry
from ..errors import ConfigError
from ..loading import expand, is_many, load, overridden, parse_overrides, parse_value, read_yaml, recipes
from ..report.load import distinct
from ..report.page import write_report
from ..running import dumped
from ..setup import Setup, assemble, resolve_config
from .app import Changes, Source, app
from .tables import out, print_line, print_table, show_comparison


@app.command()
def show(config: Source, changes: Changes = None) -> None:
    """Print the resolved configuration and the stream: who holds what when."""
    import yaml

    from ..streams.describe import describe

    raw = overridden(load(config), parse_overrides(changes or []))
    singles = expand(raw)
    resolved = resolve_config(singles[0].raw)
    if is_many(raw):
        print_line(
            f"{len(singles)} runs; shown is {singles[0].place}. Others: " + ", ".join(str(s.place) for s in singles[1:])
        )
        for single in singles[1:]:
            resolve_config(single.raw)
    out.print(yaml.safe_dump(dumped(resolved), sort_keys=False, width=100), markup=False, soft_wrap=True, end="")
    setup = assemble(resolved)
    out.print("")
    for name, model in setup.world.models.items():
        about = f"{model.space.size:,} trainable parameters; segments {_segments(model.space)}"
        out.print(f"model{_whose(name, setup)}: {about}", markup=False, soft_wrap=True)
    for line in setup.notes:
        print_line(f"note: {line}")
    for table in describe(setup.stream, resolved.rounds):
        print_table(table.title, table.columns, table.rows)


def _whose(name: str, setup: Setup) -> str:
    """The tasks whose model it is, where they have several models."""
    names = setup.stream.task_names
    own = [
        names[t] if t < len(names) else f"task {t}" for t, model in enumerate(setup.world.task_models) if model == name
    ]
    return f" of {', '.join(own)}" if len(setup.world.models) > 1 and own else ""


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
            more = {part: meaning, **registry.SYSTEMS[alias]} if alias in registry.SYSTEMS else meaning
            table.append([alias, f"alias of {json.dumps(more)}", ""])
        print_table(part, ["kind", "what it is", "settings"], table)


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
    print_table("recipes", ["name", "what it shows", "runs"], table)


@app.command()
def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of a run, of several, or of one variant among several.")
    ],
) -> None:
    """Write report.html anew and print where it is."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} holds no run (there is no such folder)")
    print_line(write_report(folder))


@app.command()
def compare(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR DIR ...", help="The folders of runs, two or more.")],
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="Where the comparison is written; default runs/compare-NAME-NAME.")
    ] = None,
    force: Annotated[bool, typer.Option(help="Replace a comparison that is there already.")] = False,
) -> None:
    """Lay runs side by side: a table, what can be said of it, comparison.json and report.html."""
    from ..report.side_by_side import write_comparison

    if len(folders) < 2:
        raise ConfigError("shoal compare: give two folders or more; of one run there is the report: shoal report DIR")
    place = out_dir or Path("runs") / _name(folders)
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder} holds no run (there is no such folder)")
    page = write_comparison(folders, place, force)
    comparison = json.loads((place / "comparison.json").read_text(encoding="utf-8"))
    show_comparison(comparison)
    for sentence in comparison.get("findings", []):
        print_line(sentence)
    print_line(f"report: {page}")


def _name(folders: list[Path]) -> str:
    """The default folder of a comparison; long ones end in a hash."""
    name = "-".join(["compare", *(name.replace("/", "-") for name in distinct(folders))])
    key = hashlib.sha256("\n".join(str(folder.resolve()) for folder in folders).encode()).hexdigest()[:8]
    return name if len(name) <= 80 else f"{name[:71]}-{key}"


@app.command()
def check(
    target: Annotated[str, typer.Argument(help="Your own part by import path, such as my_methods:MyMethod.")],
    learner: Annotated[
        str | None, typer.Option(help="Try a method with this learner: a kind, or a mapping in YAML with its settings.")
    ] = None,
) -> None:
    """Run the laws on your own method, learner, stream, mean or server optimiser."""
    from ..checks.runner import check_target

    said: list[str] = []
    results = check_target(target, parse_value("--learner", learner or ""), said.append)
    print_table(
        f"laws for {target}",
        ["law", "result", "detail"],
        [[r.law, "holds" if r.passed else "BROKEN", r.detail] for r in results],
    )
    for line in said:
        print_line(line)
    if not all(r.passed for r in results):
        raise typer.Exit(1)
