"""The command line's application, and the arguments that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .. import __version__
from .tables import out

app = typer.Typer(
    help="Federated and decentralised learning while the clients' data drifts.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Source = Annotated[str, typer.Argument(help="A YAML file, or the name of a recipe (see: shoal recipes).")]
Changes = Annotated[list[str] | None, typer.Argument(help="Settings to change, such as local.lr=0.1 rounds=5.")]
Force = Annotated[bool, typer.Option(help="Replace a run that is there already.")]
RunDirectory = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run.")]


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        out.print(__version__)
        raise typer.Exit
