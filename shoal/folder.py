"""A run's folder: what is in it, and how it survives a crash."""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from .checkpoint import Checkpoints
from .errors import RunError, in_words
from .files import digest, read_records, sync_folder, whole_bytes, write_atomically
from .loading import read_yaml
from .metrics.base import Line

FILES = (
    "config.yaml",
    "environment.json",
    "metrics.jsonl",
    "timings.jsonl",
    "summary.json",
    "comparison.json",
    "sweep.json",
    "best.yaml",
    "tuned.yaml",
    "model.safetensors",
    "report.html",
    "clients.csv",
)
FOLDERS = ("checkpoint", "arrays", "tensorboard")
LOCK = ".lock"
METRICS = "metrics.jsonl"
PACKAGES = ("shoal", "torch", "numpy", "scipy", "scikit-learn", "safetensors")


class _Plain(yaml.SafeDumper):
    """Writes out what a configuration refers to twice (``*schedule``), so that every place can be copied alone."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def dump(value: Any) -> str:
    """A value as one line of strict JSON; numbers that are not finite become null."""
    return json.dumps(_finite(value), allow_nan=False, ensure_ascii=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if hasattr(value, "item") and not isinstance(value, str | bytes):
        return _finite(value.item())
    return value


def read_lines(path: Path) -> list[Line]:
    """The lines of a JSON-lines file, up to one that is broken."""
    return read_records(path)[0]


class RunFolder:
    """The folder of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = Checkpoints(path / "checkpoint")

    # ---- what is there --------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether a run was started here."""
        return (self.path / "config.yaml").is_file()

    def summary(self) -> dict[str, Any]:
        """The content of ``summary.json``; empty before there is one."""
        return self._json("summary.json")

    @property
    def ended(self) -> bool:
        """Whether the run, or all of several, came to the end at some time."""
        return bool(self.summary().get("finished") or self._json("comparison.json").get("finished"))

    @property
    def finished(self) -> bool:
        """Whether the run came to its end, and its ``metrics.jsonl`` is still the one that it had there."""
        return self.ended and self.damage() is None

    def damage(self) -> str | None:
        """What happened to ``metrics.jsonl`` since the run came to its end; ``None`` where it is as it was.

        Runs of older versions have no record of it: of them nothing is said.
        """
        record = self.environment().get("metrics")
        if not self.ended or not isinstance(record, dict):
            return None
        length = int(record["bytes"])
        size, found = digest(self.path / METRICS, length)
        if size < length:
            return f"{METRICS} was cut since the run ended: it has {size:,} of {length:,} bytes"
        if found != record["sha256"]:
            return f"{METRICS} was changed since the run ended: its content is not the one that was written"
        if size > length:
            return f"{METRICS} was added to since the run ended: it has {size:,} bytes instead of {length:,}"
        return None

    def edited(self, usable: int) -> bool:
        """Whether lines are not those that were written, though none of them is missing or broken."""
        record = self.environment().get("metrics", {})
        length = int(record.get("bytes", 0))
        return usable >= length and digest(self.path / METRICS, length)[1] != record.get("sha256")

    def seal(self) -> None:
        """Keeps the length and the SHA-256 of ``metrics.jsonl`` for `damage`. Call it before the summary is written."""
        size, found = digest(self.path / METRICS)
        self.write_json("environment.json", {**self.environment(), "metrics": {"bytes": size, "sha256": found}})

    def config(self) -> dict[str, Any]:
        """The configuration that the run was started with."""
        return read_yaml(self.path / "config.yaml")

    def environment(self) -> dict[str, Any]:
        """The content of ``environment.json``."""
        return self._json("environment.json")

    def sweep(self) -> dict[str, Any]:
        """The content of ``sweep.json``; empty where no sweep was started."""
        return self._json("sweep.json")

    def serving(self) -> dict[str, Any]:
        """What a prediction must know beside the model, see `shoal.serving`; kept for runs that are unfinished."""
        found = self.environment().get("serving")
        return found if isinstance(found, dict) else {}

    def _json(self, name: str) -> dict[str, Any]:
        try:
            value = json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError):
            return {}
        return value if isinstance(value, dict) else {}

    def lines(self) -> list[Line]:
        """The lines of ``metrics.jsonl``."""
        return read_lines(self.path / METRICS)

    def owns(self, path: Path) -> bool:
        """Whether this is, or lies in, what a run writes into this folder."""
        try:
            first = path.resolve().relative_to(self.path.resolve()).parts[:1]
        except ValueError:
            return False
        return bool(first) and first[0] in (*FILES, *FOLDERS, LOCK)

    # ---- beginning ------------------------------------------------------------------------------------------

    def prepare(self, config: Mapping[str, Any], force: bool) -> None:
        """Makes the folder ready for a new run with this configuration. Call it with the folder locked.

        Raises `RunError` if a run is there already and ``force`` is not given.
        """
        if self.exists and not force:
            if self.finished:
                raise RunError(f"{self.path} holds a finished run; choose another --out, or --force to replace it")
            if self.config() == {name: value for name, value in config.items() if value is not None}:
                raise RunError(
                    f"{self.path} holds an unfinished run of this configuration; go on with: shoal resume {self.path}"
                )
            raise RunError(
                f"{self.path} holds an unfinished run of another configuration; choose another --out, "
                f"go on with it (shoal resume {self.path}), or --force to replace it"
            )
        # A process that was killed before it wrote its configuration leaves the lock and a temporary file.
        others = [p for p in self.path.iterdir() if p.name != LOCK and not p.match(".*.tmp")]
        if not self.exists and not force and others:
            raise RunError(f"{self.path} holds other files; choose an empty or a new folder for --out")
        self.clear()
        self.write_yaml("config.yaml", config)

    def clear(self) -> None:
        """Removes what a run left here, and nothing else."""
        for name in FILES:
            (self.path / name).unlink(missing_ok=True)
        for name in FOLDERS:
            shutil.rmtree(self.path / name, ignore_errors=True)

    def write_yaml(self, name: str, value: Mapping[str, Any]) -> None:
        """Writes a YAML file atomically."""
        text = yaml.dump(dict(value), Dumper=_Plain, sort_keys=False, allow_unicode=True, width=100)
        write_atomically(self.path / name, text.encode())

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Writes a JSON file atomically."""
        text = json.dumps(_finite(value), indent=2, allow_nan=False, ensure_ascii=False)
        write_atomically(self.path / name, (text + "\n").encode())

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps a second process out of the folder while a run is going on (where the system has file locks)."""
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file; a run needs a folder")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / LOCK).open("w")
        except OSError as error:
            raise RunError(f"no run can be kept in {self.path}: {in_words(error)}; choose another folder") from error
        with lock as file:
            try:
                import fcntl
            except ImportError:
                yield
                return
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunError(f"another process is running in {self.path}") from None
            yield

    # ---- going on -------------------------------------------------------------------------------------------

    def cut(self, length: int, round: int) -> None:
        """Cuts ``metrics.jsonl`` to the length that it had at a state, and ``timings.jsonl`` to its round.

        Raises `RunError` where the file lacks lines that the state counts on; see `usable`.
        """
        path = self.path / METRICS
        have = self.usable()
        if have < length:
            size = path.stat().st_size if path.exists() else 0
            whole = "" if have == size else f" (only the first {have} are whole lines)"
            raise RunError(
                f"{path} has {size} bytes, but the checkpoint was written when it had {length}{whole}; "
                f"the file was changed from outside. Remove the folder {self.path} to start this run again; the other "
                f"runs of a sweep are kept"
            )
        if path.exists():
            os.truncate(path, length)
        kept = [
            line
            for line in read_lines(self.path / "timings.jsonl")
            if isinstance(line, dict) and line.get("round", round + 1) <= round
        ]
        text = "".join(json.dumps(line) + "\n" for line in kept)
        write_atomically(self.path / "timings.jsonl", text.encode())

    def usable(self) -> int:
        """How many bytes of ``metrics.jsonl`` can be gone on from: whole lines, from its beginning."""
        return whole_bytes(self.path / METRICS)

    def append(self, name: str, lines: Sequence[Line], sync: bool = False) -> int:
        """Appends lines to a file and gives its new length in bytes; with ``sync`` they are on disk afterwards."""
        with (self.path / name).open("ab") as file:
            file.write("".join(dump(line) + "\n" for line in lines).encode())
            file.flush()
            if sync:
                os.fsync(file.fileno())
                sync_folder(self.path)
            return file.tell()


def environment(fingerprint: str) -> dict[str, Any]:
    """What a run depends on besides its configuration: versions, machine, and the data's fingerprint."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "packages": versions(),
        "data_fingerprint": fingerprint,
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]] if sys.argv else [],
    }


def versions() -> dict[str, str]:
    """The versions of the packages that a run's numbers depend on."""
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
