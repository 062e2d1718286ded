"""The command that uses a model: ``predict``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import ConfigError
from ..folder import LOCK, RunFolder
from .app import RunDirectory, app
from .tables import err, plain, print_line, print_table

SHOWN = 20
"""How many rows are printed."""


@app.command()
def predict(
    folder: RunDirectory,
    data: Annotated[
        Path,
        typer.Argument(
            help="Further rows: a CSV, TSV or parquet file for a run on a table; a folder of images, an image or a "
            "parquet file for one on images; an .npy file for all others."
        ),
    ],
    entry: Annotated[str | None, typer.Option(help="The key of the model, such as task/3.")] = None,
    target: Annotated[
        str | None, typer.Option(help="The model that serves this target, such as task=3 or client=17.")
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="The column with the images, if a parquet file has several.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(help="Read the rows as those of this source, if the model serves several of different kinds."),
    ] = None,
    out_file: Annotated[
        Path | None, typer.Option("--out", help="A CSV file for the predictions; its folder is made if it is missing.")
    ] = None,
) -> None:
    """Predict further rows with a run's model. Needs the run's folder, and none of its data."""
    from ..prediction import predict as predicted

    if out_file is not None:
        check_out(out_file, data, folder)
    frame = predicted(folder, data, entry=entry, target=target, column=column, source=source)
    about = frame.attrs
    if about["round"] < about["rounds"]:
        err.print(
            f"the run is unfinished: this is its model after round {about['round']} of {about['rounds']}",
            soft_wrap=True,
        )
    for note in about["notes"]:
        print_line(f"note: {note}")
    if out_file is not None:
        if not out_file.parent.exists():
            out_file.parent.mkdir()
            print_line(f"note: the folder {out_file.parent} is new")
        frame.to_csv(out_file, index=False)
        print_line(f"{len(frame)} predictions of the model {about['entry']}: {out_file}")
        return
    columns = [str(name) for name in frame.columns]
    shown = columns if len(columns) <= 12 else [name for name in columns if not name.startswith("p:")]
    body = [[plain(value) for value in row] for row in frame[shown].head(SHOWN).itertuples(index=False)]
    print_table(f"model {about['entry']}", shown, body)
    if len(frame) > SHOWN or len(shown) < len(columns):
        print_line(f"{min(SHOWN, len(frame))} of {len(frame)} rows; all of them, and every column, with --out FILE.csv")


def check_out(out: Path, data: Path, run: Path) -> None:
    """Raises `ConfigError` for a file that predictions must not be written to, before anything is predicted.

    It must not be the data or lie in their folder, nor be one of a run's own files; of the folders above it only the
    last one may be missing.
    """
    place = out.resolve()
    source = data.expanduser().resolve()
    if place == source or source in place.parents or (place.exists() and source.exists() and place.samefile(source)):
        raise ConfigError(
            f"--out {out}: that is {'in ' if place != source else ''}{data}, the rows to predict; give another file"
        )
    for folder in (run.resolve(), *place.parents):
        kept = RunFolder(folder)
        # A configuration alone makes no run: the folder where one works may hold one, too.
        if kept.owns(place) and (folder == run.resolve() or (kept.exists and (folder / LOCK).exists())):
            raise ConfigError(f"--out {out}: that is one of the files of the run in {folder}; give another file")
    if out.is_dir():
        raise ConfigError(f"--out {out}: that is a folder; give a file in it, such as {out / 'predictions.csv'}")
    if not place.parent.exists() and not place.parent.parent.is_dir():
        raise ConfigError(
            f"--out {out}: there is no folder {out.parent.parent}; make it first, or look for a typing error"
        )
    if place.parent.exists() and not place.parent.is_dir():
        raise ConfigError(f"--out {out}: {out.parent} is a file, not a folder")
