"""The Python interface: ``shoal.run``, ``shoal.resume`` and what they give."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .data.dataset import Dataset
from .errors import RunError
from .folder import RunFolder
from .loading import Source, is_many, load, overridden
from .many import Data, for_data, play_many, run_many
from .progress import Quiet
from .results import Result, Sweep
from .running import resume_run, start_run
from .setup import resolve_config

__all__ = ["Result", "Sweep", "resume", "run"]


def run(
    source: Source,
    overrides: Mapping[str, Any] | None = None,
    *,
    out: str | Path | None = None,
    force: bool = False,
    data: Dataset | None = None,
    progress: Quiet | None = None,
) -> Result:
    """Runs a configuration: a YAML file, a recipe's name, or a mapping, with dotted ``overrides``.

    ``out`` is the run's folder, by default ``runs/NAME``; a run that is there already is replaced only with
    ``force``. ``data`` hands over rows made in Python (``shoal.from_arrays``). A configuration with ``variants``
    or ``seeds`` becomes several runs below ``out``. Raises `ShoalError` on bad configuration, before any training.
    """
    raw = for_data(overridden(load(source), overrides or {}), data)
    path = Path(out) if out is not None else Path("runs") / str(raw.get("name", "run"))
    if is_many(raw):
        run_many(raw, path, force, data, progress)
    else:
        start_run(resolve_config(raw), path, force=force, dataset=data, progress=progress)
    return Result(path)


def resume(folder: str | Path, *, data: Dataset | None = None, progress: Quiet | None = None) -> Result:
    """Goes on with the run (or the runs) in a folder; what is finished is left as it is."""
    path = Path(folder)
    parent = RunFolder(path)
    if not parent.exists:
        raise RunError(f"{path} holds no run (there is no config.yaml in it)")
    raw = parent.config()
    if is_many(raw):
        with parent.locked():
            play_many(raw, path, Data(data), progress)
    else:
        resume_run(path, dataset=data, progress=progress)
    return Sweep(path) if parent.sweep() else Result(path)
