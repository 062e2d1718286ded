"""The command that uses a model: ``predict``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
    out_file: Annotated[Path | None, typer.Option("--out", help="A CSV file for the predictions.")] = None,
) -> None:
    """Predict further rows with a run's model. Needs the run's folder, and none of its data."""
    from ..prediction import predict as predicted

    frame = predicted(folder, data, entry=entry, target=target, column=column)
    about = frame.attrs
    if about["round"] < about["rounds"]:
        err.print(
            f"the run is unfinished: this is its model after round {about['round']} of {about['rounds']}",
            soft_wrap=True,
        )
    for note in about["notes"]:
        print_line(f"note: {note}")
    if out_file is not None:
        out_file.parent.mkdir(parents=True, exist_ok=True)
        frame.to_csv(out_file, index=False)
        print_line(f"{len(frame)} predictions of the model {about['entry']}: {out_file}")
        return
    columns = [str(name) for name in frame.columns]
    shown = columns if len(columns) <= 12 else [name for name in columns if not name.startswith("p:")]
    body = [[plain(value) for value in row] for row in frame[shown].head(SHOWN).itertuples(index=False)]
    print_table(f"model {about['entry']}", shown, body)
    if len(frame) > SHOWN or len(shown) < len(columns):
        print_line(f"{min(SHOWN, len(frame))} of {len(frame)} rows; all of them, and every column, with --out FILE.csv")
