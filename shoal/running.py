"""Runs one configuration in its folder, from the start or from a checkpoint, to the summary and the report."""

from __future__ import annotations

import contextlib
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from .bank import State
from .config import Config
from .data.dataset import Dataset
from .engine import Engine, Gathering, make_engine, one_torch_thread
from .errors import RunError, ShoalError, Stopped, in_words
from .estimate import duration, estimate
from .experiment import Experiment, Played, play_all
from .export import export
from .folder import RunFolder, environment, versions
from .loading import leaves
from .progress import Quiet
from .report.page import write_report
from .serving import serving
from .setup import Setup, assemble, resolve_config
from .summary import summarise
from .track.base import Guard, check_tracker

LONG_SECONDS = 30.0
"""A run that will take longer than this says so before it starts."""
CHECKPOINT_SHARE = 0.05
"""A checkpoint that is due is put off while checkpoints took more than this share of the run's time."""


class Interrupted(ShoalError):
    """A run that was interrupted; everything up to its last finished round (if it is known) is saved."""

    def __init__(self, folder: Path, round: int | None = None) -> None:
        after = "" if round is None else f" after round {round}"
        super().__init__(f"interrupted{after}; go on with: shoal resume {folder}")
        self.folder = folder
        self.round = round


@contextlib.contextmanager
def going_on(folder: Path) -> Iterator[None]:
    """Says how to go on when what happens inside is interrupted, or the disk fails."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(folder) from None
    except OSError as error:
        raise Stopped(in_words(error), folder) from error


def dumped(config: Config) -> dict[str, Any]:
    """A resolved configuration of one run as it is written to ``config.yaml``."""
    return config.model_dump(mode="json", exclude={"variants", "seeds", "grid"})


def start_run(
    config: Config,
    path: Path,
    *,
    force: bool = False,
    dataset: Dataset | None = None,
    progress: Quiet | None = None,
    report: bool = True,
    gathering: Gathering | None = None,
) -> RunFolder:
    """Runs a resolved configuration in a new folder. Raises `ShoalError`; `Interrupted` on Ctrl-C.

    Without ``report`` there is no ``report.html`` at the end: one of many runs gets it when somebody asks. With a
    ``gathering`` the run shares its stacks with others that are played at the same time.
    """
    folder = RunFolder(path)
    # Everything that can be wrong with the configuration or the data fails before the folder is touched.
    check_tracker(config)
    setup = assemble(config, dataset)
    with folder.locked():
        folder.prepare(dumped(setup.config), force)  # with what execution: auto was decided to be
        with going_on(path):
            _write_environment(folder, setup)
            progress = progress or Quiet()
            for warning in setup.warnings:
                progress.say(warning)
            _go(setup, folder, None, progress, report, gathering)
    return folder


def _write_environment(folder: RunFolder, setup: Setup) -> None:
    found = environment(setup.dataset.fingerprint)
    known: dict[str, Any] = {"configuration": leaves(dumped(setup.config)), "serving": serving(setup)}
    known["data_name"] = setup.dataset.name
    folder.write_json("environment.json", {**found, **known})


def resume_run(
    path: Path,
    *,
    dataset: Dataset | None = None,
    progress: Quiet | None = None,
    report: bool = True,
    gathering: Gathering | None = None,
) -> RunFolder:
    """Goes on with the run in a folder, from its last checkpoint; a finished one is left as it is.

    A finished one whose ``metrics.jsonl`` was cut since goes on from the last checkpoint that does not count on what
    is lost; one whose lines were changed is an error. ``report`` and ``gathering`` are those of `start_run`.
    """
    folder = RunFolder(path)
    progress = progress or Quiet()
    if not folder.exists:
        raise RunError(f"{path} holds no run (there is no config.yaml in it)")
    if folder.finished:
        progress.say(f"{path} is finished; nothing to do")
        if report and not (path / "report.html").exists():
            write_report(path)
        return folder
    with folder.locked(), going_on(path):
        config = resolve_config(folder.config())
        same_configuration(folder, config)
        check_tracker(config)
        setup = assemble(config, dataset)
        _same_world(folder, setup, progress)
        damage = folder.damage()
        if damage is not None:
            progress.say(damage)
        usable = folder.usable()
        if damage is not None and folder.edited(usable):
            raise RunError(
                f"{path}: {damage}, and nobody can tell which lines are still those of the run. Bring the old file "
                f"back, or start again with --force"
            )
        state, complaints = folder.checkpoints.load(usable)
        for complaint in complaints:
            progress.say(f"{complaint}; falling back to the one before it")
        if state is None:
            progress.say("there is no checkpoint yet; starting from the first round")
        _go(setup, folder, state, progress, report, gathering)
    return folder


FREE = (
    *("name", "description", "execution.workers", "execution.actors", "execution.address"),
    *("checkpoint.every", "track"),
)
"""Settings that may change before a resume: no number depends on them."""
EQUAL = ({"serial", "workers", "cluster", "auto"}, {"stacked", "auto"})
"""Kinds of execution with the same bits; ``auto`` is what it was decided to be when the run was started."""


def is_free(key: str, before: object = None, now: object = None) -> bool:
    """Whether a setting, by its dotted name, may change from one value to another before a resume."""
    if key == "execution.kind":
        return any({before, now} <= kinds for kinds in EQUAL)
    return any(key == name or key.startswith(f"{name}.") for name in FREE)


def changed_settings(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What differs between two configurations (`leaves`) and is not free, as ``local.lr (0.1 -> 0.2)``."""
    return [
        f"{key} ({before.get(key, 'unset')} -> {now.get(key, 'unset')})"
        for key in sorted({*before, *now})
        if before.get(key) != now.get(key) and not is_free(key, before.get(key), now.get(key))
    ]


def same_configuration(folder: RunFolder, config: Config) -> None:
    """Refuses a ``config.yaml`` that was edited: the result would be of two experiments, and look like one."""
    before = folder.environment().get("configuration")
    if not isinstance(before, dict):
        return
    changed = changed_settings(before, leaves(dumped(config)))
    if changed:
        raise RunError(
            f"{folder.path}/config.yaml was changed since the run was started: {', '.join(changed)}. Change it back "
            f"(only {', '.join(FREE)}, and execution.kind among serial, workers and cluster, may differ), or start "
            f"another run"
        )


def _same_world(folder: RunFolder, setup: Setup, progress: Quiet) -> None:
    """Refuses other data; warns of other versions, with which the numbers may differ in their last bits."""
    before = folder.environment()
    if not before:
        _write_environment(folder, setup)
        return
    if before.get("data_fingerprint") != setup.dataset.fingerprint:
        raise RunError(
            f"{folder.path}: the data are not those that the run was started with (another fingerprint); "
            f"bring the old data back, or start again with --force"
        )
    now = versions()
    changed = [
        f"{name} {old} -> {now.get(name)}"
        for name, old in before.get("packages", {}).items()
        if old != now.get(name) and name in ("torch", "numpy", "scikit-learn", "scipy")
    ]
    if changed:
        progress.say(
            f"warning: versions changed since the start ({', '.join(changed)}); the run goes on, "
            f"but its numbers may differ from those of an uninterrupted run"
        )


def _go(
    setup: Setup,
    folder: RunFolder,
    state: State | None,
    progress: Quiet,
    report: bool,
    gathering: Gathering | None,
) -> None:
    config = setup.config
    with one_torch_thread():
        data, local = setup.stream.dataset, config.local
        engine = make_engine(config.execution, setup.world.models, data, local.loss, local.loss_args, gathering)
        try:
            experiment = Experiment(setup, engine)
            if state is None:
                state = experiment.start()
                folder.cut(0, -1)
                state = replace(state, metrics_bytes=folder.append("metrics.jsonl", experiment.header(state)))
            else:
                folder.cut(state.metrics_bytes, state.round)
            # Of a run that had ended, and whose lines were damaged since, it says what is not so any more.
            (folder.path / "summary.json").unlink(missing_ok=True)
            _announce(experiment, state, progress)
            progress.begin(_title(folder, config), config.rounds, max(0, state.round))
            tracker = Guard(folder.path, config, progress.say)
            tracker.begin(state.round, folder.lines() if config.track is not None else [])
            keeper = _Keeper(folder, config, engine, state, progress, tracker)
            try:
                state = play_all(experiment, state, keeper.keep)
                keeper.save(state)
            except KeyboardInterrupt:
                keeper.save(keeper.state)
                raise Interrupted(folder.path, max(0, keeper.state.round)) from None
            except (Interrupted, Stopped):
                raise
            except ShoalError as error:  # not found before the run was begun: a part of one's own that changed its mind
                keeper.save(keeper.state)
                raise Stopped(f"round {keeper.state.round + 1}: {error}", folder.path) from error
            finally:
                progress.end()
                tracker.close()
            export(folder.path / "model.safetensors", state.bank, setup.world, serving(setup))
        finally:
            engine.close()
    folder.seal()
    folder.write_json("summary.json", summarise(folder.path))
    if report:
        write_report(folder.path)


def _title(folder: RunFolder, config: Config) -> str:
    path = folder.path
    return f"{path.parent.name} seed {path.name}" if path.name == str(config.seed) else config.name


def _announce(experiment: Experiment, state: State, progress: Quiet) -> None:
    if not progress.estimates:
        return
    guess = estimate(experiment, state)
    if guess is not None and guess.seconds > LONG_SECONDS:
        progress.say(f"{guess} ({duration(guess.seconds)} left)" if state.round > 0 else str(guess))


class _Keeper:
    """Stores each finished round: its lines, its times, and a checkpoint when one is due."""

    def __init__(
        self, folder: RunFolder, config: Config, engine: Engine, state: State, progress: Quiet, tracker: Guard
    ) -> None:
        self.folder = folder
        self.config = config
        self.engine = engine
        self.state = state
        self.progress = progress
        self.tracker = tracker
        self.saved = state.round if folder.checkpoints.rounds() else None
        self.began = time.perf_counter()
        self.spent = 0.0
        self.memory = PeakMemory()

    def keep(self, played: Played) -> State:
        """Appends the round's lines and gives the state with the file's new length."""
        length = self.folder.append("metrics.jsonl", played.lines)
        state = replace(played.state, metrics_bytes=length)
        self.state = state
        # Before the checkpoint: after a kill between the two the round is played again, and its time written anew.
        self.folder.append(
            "timings.jsonl",
            [
                {
                    "round": state.round,
                    "seconds": round(played.seconds, 6),
                    "evaluation_seconds": round(played.evaluation_seconds, 6),
                    "checkpoint_seconds_so_far": round(self.spent, 6),
                    "peak_memory_mb": round(self.memory.peak_mb(), 1),
                    "engine": self.engine.describe(),
                    "workers": self.engine.workers,
                }
            ],
        )
        if self._due(state.round):
            self.save(state)
        self.tracker.write(state.round, played.lines)
        self.progress.played(state.round, played.lines)
        for remark in self.engine.remarks():
            self.progress.say(remark)
        return state

    def _due(self, number: int) -> bool:
        every = self.config.checkpoint.every
        if not every or number < 1 or number % every:
            return False
        # Of several runs at once each may take its part of that share: the time is that of all of them.
        share = CHECKPOINT_SHARE / self.engine.companions
        return self.spent <= share * (time.perf_counter() - self.began) or self.saved is None

    def save(self, state: State) -> None:
        """Writes a checkpoint of this state, unless it has one."""
        if self.saved == state.round or state.round < 0:
            return
        began = time.perf_counter()
        # The lines must be on disk before the checkpoint that counts on them.
        self.folder.append("metrics.jsonl", [], sync=True)
        self.folder.checkpoints.save(state)
        self.saved = state.round
        self.spent += time.perf_counter() - began


class PeakMemory:
    """The largest memory that this process held since this was made (since its start, where that cannot be told)."""

    def __init__(self) -> None:
        # 5 resets the mark of the resident memory on Linux; elsewhere, or if it is not allowed, the mark stays.
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    @staticmethod
    def peak_mb() -> float:
        """In MB."""
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) / 2**10
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
