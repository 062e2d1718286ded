"""The commands that run something: ``run``, ``sweep``, ``resume``, ``pretrain``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .. import api
from ..grid import parse_grid, parse_seeds
from ..loading import parse_overrides
from ..progress import Bar
from ..sweeps import sweep as run_sweep
from .app import Changes, Force, Source, app
from .tables import print_line, show_result


@app.command()
def run(
    config: Source,
    changes: Changes = None,
    out_dir: Annotated[Path | None, typer.Option("--out", help="The run's folder; default runs/NAME.")] = None,
    force: Force = False,
) -> None:
    """Run a configuration, with all its variants and seeds."""
    result = api.run(config, parse_overrides(changes or []), out=out_dir, force=force, progress=Bar())
    show_result(result)


@app.command()
def sweep(
    config: Source,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            help="Settings with the values to try, such as local.lr=0.1,0.2 method.server=sgd,adam; one with a single "
            "value is the same for all. A comma inside brackets, braces or quotes separates nothing."
        ),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="How many seeds (3: the seeds 0, 1, 2), or which (0,4,7).")] = None,
    best: Annotated[
        str | None,
        typer.Option(
            help="Choose the cell with the best mean of this number: validation_accuracy, validation_loss, or min:NAME "
            "or max:NAME for another number of summary.json. Numbers of test rows are refused."
        ),
    ] = None,
    out_dir: Annotated[Path | None, typer.Option("--out", help="The sweep's folder; default runs/NAME-sweep.")] = None,
    force: Annotated[bool, typer.Option(help="Replace a sweep that is there already.")] = False,
) -> None:
    """Run every combination of some settings, and choose the best.

    The same command again goes on where an interrupted sweep stopped, and so does shoal resume DIR. More values or
    seeds add to a sweep. DIR/CELL/SEED is a run like any other; with --best, DIR/best.yaml is the best cell as a
    configuration.
    """
    grid, single = parse_grid(settings or [])
    chosen = None if seeds is None else parse_seeds(seeds)
    show_result(
        run_sweep(config, grid, seeds=chosen, best=best, out=out_dir, overrides=single, force=force, progress=Bar())
    )


@app.command()
def resume(folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of an unfinished run.")]) -> None:
    """Go on with an interrupted run or sweep; the numbers are those of an uninterrupted one."""
    show_result(api.resume(folder, progress=Bar()))


@app.command()
def pretrain(
    config: Source,
    changes: Changes = None,
    out_file: Annotated[
        Path | None, typer.Option("--out", help="The weights file; default NAME.safetensors in the working directory.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="The run's folder; default runs/ and the file's name without its ending.")
    ] = None,
    force: Annotated[bool, typer.Option(help="Replace a run and a file that are there already.")] = False,
) -> None:
    """Train a model centrally, and write it as a file for model.weights or a backbone's weights.

    CONFIG has a stream with one client, which holds all rows that are trained on. The same command again goes on where
    an interrupted one stopped.
    """
    from ..models.pretraining import read_about, sentence
    from ..pretraining import pretrain as pretrained

    path, found = pretrained(
        config, parse_overrides(changes or []), out=out_file, folder=folder, force=force, progress=Bar()
    )
    show_result(found)
    print_line(f"weights: {path} ({sentence(read_about(path) or {})})")
