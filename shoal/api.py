"""The Python interface: ``shoal.run``, ``shoal.resume`` and what they give."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from . import registry
from .data.dataset import Dataset
from .errors import RunError
from .folder import RunFolder
from .loading import Single, expand, is_many, load, overridden
from .progress import Quiet
from .report.comparison import compare
from .report.page import write_report
from .running import Interrupted, resume_run, same_configuration, start_run
from .setup import resolve_config

Source = str | Path | Mapping[str, Any]


@dataclass(frozen=True)
class Result:
    """A finished run, or several of one configuration. Reads everything from its folder."""

    folder: Path

    @cached_property
    def runs(self) -> dict[str, Result]:
        """The runs below this folder by ``VARIANT/SEED``; empty for a single run."""
        raw = RunFolder(self.folder).config()
        if not is_many(raw):
            return {}
        return {str(single.place): Result(self.folder / single.place) for single in expand(raw)}

    @cached_property
    def summary(self) -> dict[str, Any]:
        """``summary.json`` of a single run, ``comparison.json`` of several."""
        name = "comparison.json" if self.runs else "summary.json"
        value = json.loads((self.folder / name).read_text(encoding="utf-8"))
        assert isinstance(value, dict)
        return value

    def frame(self) -> pd.DataFrame:
        """The lines of ``metrics.jsonl`` that have a ``metric``; of several runs with ``variant`` and ``seed``."""
        if self.runs:
            frames = []
            for place, run in self.runs.items():
                variant, _, seed = place.rpartition("/")
                frames.append(run.frame().assign(variant=variant, seed=int(seed)))
            return pd.concat(frames, ignore_index=True)
        lines = [line for line in RunFolder(self.folder).lines() if "metric" in line]
        return pd.DataFrame(lines, columns=None if lines else ["round", "metric", "value"])

    @property
    def report(self) -> Path:
        """The report, one HTML file."""
        return self.folder / "report.html"


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
    raw = overridden(load(source), overrides or {})
    if data is not None and raw.get("data", "arrays") not in ("arrays", {"kind": "arrays"}):
        raise RunError(f"data= was given, but the configuration asks for data {raw['data']}; leave one of them out")
    if data is not None:
        raw["data"] = {"kind": "arrays"}
    path = Path(out) if out is not None else Path("runs") / str(raw.get("name", "run"))
    if is_many(raw):
        _run_many(raw, path, force, data, progress)
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
            _all_singles(raw, path, data, progress)
    else:
        resume_run(path, dataset=data, progress=progress)
    return Result(path)


def _run_many(raw: dict[str, Any], path: Path, force: bool, data: Dataset | None, progress: Quiet | None) -> None:
    for single in expand(raw):  # every variant is checked before the first one runs
        resolve_config(single.raw)
    folder = RunFolder(path)
    with folder.locked():
        if force:
            before = expand(folder.config()) if folder.exists else []
            for place in {single.place for single in (*before, *expand(raw))}:
                RunFolder(path / place).clear()
        folder.prepare(raw, force)
        _all_singles(raw, path, data, progress)


def _all_singles(raw: Mapping[str, Any], path: Path, data: Dataset | None, progress: Quiet | None) -> None:
    parent = RunFolder(path)
    loaded: dict[str, Dataset] = {}
    for single in expand(raw):
        with _of_all(path):
            _one_of_many(single, path, loaded, data, progress)
    parent.write_json("comparison.json", {**compare(path), "finished": True})
    write_report(path)


@contextlib.contextmanager
def _of_all(path: Path) -> Iterator[None]:
    """An interrupt of one of several runs: all of them go on with one command."""
    try:
        yield
    except (Interrupted, KeyboardInterrupt):
        raise Interrupted(path) from None


def _one_of_many(
    single: Single, path: Path, loaded: dict[str, Dataset], data: Dataset | None, progress: Quiet | None
) -> None:
    """Runs one of several, or goes on with it; a finished one is left as it is. ``loaded`` keeps data for the next."""
    config = resolve_config(single.raw)
    name = json.dumps(config.data, sort_keys=True)
    if data is not None:
        loaded[name] = data
    elif name not in loaded:
        loaded[name] = registry.build("data", config.data).load()
    folder = RunFolder(path / single.place)
    if folder.exists:
        same_configuration(folder, config)
        if not folder.finished:
            resume_run(folder.path, dataset=loaded[name], progress=progress)
    else:
        start_run(config, folder.path, dataset=loaded[name], progress=progress)
