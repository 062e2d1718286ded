"""Several runs of one configuration, one after another: every variant with every seed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from . import registry
from .choice import conclude
from .config import Config
from .data.dataset import Dataset
from .engine import Gathering
from .errors import ConfigError, DataError, RunError, ShoalError, Stopped, in_words
from .folder import RunFolder
from .loading import Single, expand
from .progress import Quiet
from .report.comparison import compare_runs
from .report.load import read
from .report.page import write_report
from .running import Interrupted, resume_run, same_configuration, start_run
from .setup import assemble, resolve_config
from .together import Play, play_together
from .track.base import check_tracker


def for_data(raw: dict[str, Any], data: Dataset | None) -> dict[str, Any]:
    """The configuration for data that were handed over, if some were. Raises `RunError` if it asks for others."""
    if data is None:
        return raw
    if raw.get("data", "arrays") not in ("arrays", {"kind": "arrays"}):
        raise RunError(f"data= was given, but the configuration asks for data {raw['data']}; leave one of them out")
    return {**raw, "data": {"kind": "arrays"}}


class Data:
    """The data sets of several runs, each loaded once; ``given`` is one that was handed over for all."""

    def __init__(self, given: Dataset | None = None) -> None:
        self._given = given
        self._loaded: dict[str, Dataset] = {}

    def of(self, config: Config) -> Dataset:
        """The data of a resolved configuration."""
        if self._given is not None:
            return self._given
        name = json.dumps(config.data, sort_keys=True)
        if name not in self._loaded:
            self._loaded[name] = registry.build("data", config.data).load()
        return self._loaded[name]


def checked(raw: Mapping[str, Any]) -> list[tuple[Single, Config]]:
    """All runs with their resolved configurations. Raises `ConfigError`, naming the variant."""
    found = []
    for single in expand(raw):
        try:
            config = resolve_config(single.raw)
            check_tracker(config)
        except ConfigError as error:
            raise ConfigError(f"{single.variant}: {error}" if raw.get("variants") else str(error)) from None
        found.append((single, config))
    return found


def run_many(raw: dict[str, Any], path: Path, force: bool, data: Dataset | None, progress: Quiet | None) -> None:
    """Runs all of a configuration in a new folder. Raises `ShoalError`; `Interrupted` on Ctrl-C."""
    checked(raw)  # every variant, before the first one runs
    folder = RunFolder(path)
    with folder.locked():
        if force:
            clear_runs(folder, raw)
        folder.prepare(raw, force)
        try:
            play_many(raw, path, Data(data), progress)
        except (ConfigError, DataError):
            # What only the data or the stream can tell. If no run has begun, the mended command finds a free folder.
            if not any(RunFolder(path / single.place).exists for single in expand(raw)):
                folder.clear()
            raise


def clear_runs(folder: RunFolder, raw: Mapping[str, Any]) -> None:
    """Removes the runs of a configuration from a folder, and those that it was started with."""
    before = expand(folder.config()) if folder.exists else []
    for place in {single.place for single in (*before, *expand(raw))}:
        RunFolder(folder.path / place).clear()


def play_many(raw: Mapping[str, Any], path: Path, data: Data, progress: Quiet | None) -> None:
    """Runs what is not finished, then writes the comparison, the report, and what a sweep found.

    Call it with the folder locked. The runs themselves get no report: with many of them it would be most of the disk
    and of the time of short runs.
    """
    with _of_all(path):
        plays: list[tuple[Play, int]] = []
        for single in expand(raw):
            config = resolve_config(single.raw)
            if _execution(config, data) == "stacked":
                plays.append((_play(single, config, path, data), config.rounds))
            else:
                _one_of_many(single, config, path, data, progress)
        play_together(plays, progress or Quiet(), path.name)
    with _of_all(path):
        runs = read(path)
        comparison = compare_runs(runs)
        RunFolder(path).write_json("comparison.json", {**comparison, "finished": True})
        write_report(path, runs, comparison)
        conclude(path)


@contextlib.contextmanager
def _of_all(path: Path) -> Iterator[None]:
    """An interrupt of one of several runs, or a disk that fails: all of them go on with one command."""
    try:
        yield
    except (Interrupted, KeyboardInterrupt):
        raise Interrupted(path) from None
    except Stopped as error:
        raise Stopped(error.reason, path) from error
    except OSError as error:
        raise Stopped(in_words(error), path) from error


def _execution(config: Config, data: Data) -> str:
    """The kind of execution; what ``auto`` will be decided to be depends on the models."""
    if config.execution.kind != "auto":
        return config.execution.kind
    return assemble(config, data.of(config)).config.execution.kind


def _play(single: Single, config: Config, path: Path, data: Data) -> Play:
    return lambda gathering, progress: _one_of_many(single, config, path, data, progress, gathering)


def _one_of_many(
    single: Single,
    config: Config,
    path: Path,
    data: Data,
    progress: Quiet | None,
    gathering: Gathering | None = None,
) -> None:
    """Runs one of several, or goes on with it; a finished one is left as it is."""
    try:
        folder = RunFolder(path / single.place)
        if not folder.exists:
            rows = data.of(config)
            start_run(config, folder.path, dataset=rows, progress=progress, report=False, gathering=gathering)
            return
        same_configuration(folder, config)
        if not folder.finished:
            resume_run(folder.path, dataset=data.of(config), progress=progress, report=False, gathering=gathering)
    except ShoalError:
        raise
    except Exception as error:  # of a part of the user's own: which of the runs it was is the first question
        error.add_note(f"in the run {path / single.place}; when that is mended go on with: shoal resume {path}")
        raise
