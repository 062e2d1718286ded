"""Reads a run's folder, or a folder of runs, as far as they have come."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from ..errors import ConfigError, RunError
from ..files import read_records
from ..folder import RunFolder
from ..loading import expand

Line = Mapping[str, Any]

DEPTH = 4
"""How many folders deep runs are looked for."""
_SEED = re.compile(r"(seed[-_=]?)?\d+")
"""A folder that is called by nothing but a seed."""


@dataclass(frozen=True)
class Run:
    """One run: its files as they are now. What is missing or half-written is empty, and named in ``faults``."""

    folder: Path
    variant: str
    seed: str
    config: Mapping[str, Any] = field(default_factory=dict)
    config_text: str = ""
    summary: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    lines: Sequence[Line] = ()
    timings: Sequence[Line] = ()
    faults: tuple[str, ...] = ()
    damaged: bool = False
    """Whether lines of the metrics are lost, or not those that the run wrote."""
    kept: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """What one section makes of the run and others need again."""

    @cached_property
    def metrics(self) -> dict[str, list[Line]]:
        """The lines that carry a value, by metric."""
        found: dict[str, list[Line]] = {}
        for line in self.lines:
            if isinstance(line.get("metric"), str):
                found.setdefault(line["metric"], []).append(line)
        return found

    @cached_property
    def records(self) -> dict[str, list[Line]]:
        """The structured lines, by record."""
        found: dict[str, list[Line]] = {}
        for line in self.lines:
            if isinstance(line.get("record"), str):
                found.setdefault(line["record"], []).append(line)
        return found

    @property
    def stream(self) -> Line:
        """What the stream said of itself; empty before the first round."""
        return next(iter(self.records.get("stream", [])), {})

    @cached_property
    def names(self) -> dict[str, list[str]]:
        """Label -> the names that its values have in the data, by number, as the stream gives them."""
        labels = ("task", "client", "concept", "cluster")
        return {label: [str(name) for name in self.stream.get(f"{label}_names") or ()] for label in labels}

    @property
    def boundaries(self) -> tuple[int, ...]:
        """The last round of every phase but the last one."""
        return tuple(int(b) for b in self.stream.get("boundaries") or ())

    @property
    def finished(self) -> bool:
        """Whether the run came to its end and wrote its summary, and its metrics are as they were then."""
        return bool(self.summary) and self.summary.get("finished") is not False and not self.damaged

    @property
    def planned(self) -> int | None:
        """How many rounds the run shall have."""
        for source in (self.stream, self.config):
            if isinstance(source.get("rounds"), int):
                return int(source["rounds"])
        return None

    @cached_property
    def done(self) -> int:
        """The last round that is in the files."""
        return max((line["round"] for line in self.lines if isinstance(line.get("round"), int)), default=0)


@dataclass(frozen=True)
class Runs:
    """All runs below a folder; a single run is one variant with one seed."""

    folder: Path
    name: str
    runs: tuple[Run, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    config_text: str = ""
    single: bool = False

    @cached_property
    def variants(self) -> dict[str, list[Run]]:
        """The runs of each variant, in the order of the configuration, seeds ascending."""
        planned = [str(name) for name in self.config.get("variants") or {}]
        order = {name: place for place, name in enumerate(planned)}
        found: dict[str, list[Run]] = {}
        for run in sorted(self.runs, key=lambda r: (order.get(r.variant, len(order)), _natural(r.variant))):
            found.setdefault(run.variant, []).append(run)
        return {name: sorted(runs, key=lambda r: _natural(r.seed)) for name, runs in found.items()}

    @property
    def boundaries(self) -> tuple[int, ...]:
        """The boundaries, where all runs have the same; else none."""
        found = {run.boundaries for run in self.runs if run.lines}
        return found.pop() if len(found) == 1 else ()

    @property
    def missing(self) -> list[str]:
        """The runs of the configuration that have no folder yet, as ``variant/seed``."""
        if self.single:
            return []
        variants = [str(name) for name in self.config.get("variants") or {}] or list(self.variants)
        seeds = [str(seed) for seed in self.config.get("seeds") or ()]
        present = {(run.variant, run.seed) for run in self.runs}
        if not seeds:
            return [variant for variant in variants if variant not in self.variants]
        return [f"{v}/{s}" for v in variants for s in seeds if (v, s) not in present]


def read(folder: Path, *more: Path) -> Runs:
    """The run in a folder, or all runs below it; of several folders, the runs of all of them side by side.

    Raises `RunError` if there is no run.
    """
    if more:
        every = [_one(Path(f)) for f in (folder, *more)]
        names = distinct([Path(f) for f in (folder, *more)])
        runs = tuple(
            replace(run, variant=label if each.single or len(each.variants) == 1 else f"{label}/{run.variant}")
            for label, each in zip(names, every, strict=True)
            for run in each.runs
        )
        return Runs(Path(folder), " / ".join(names), runs)
    return _one(Path(folder))


def _one(folder: Path) -> Runs:
    config, text = _configuration(folder)
    name = str(config.get("name") or folder.resolve().name)
    if _is_run(folder):
        return Runs(folder, _full_name(folder, name), (_run(folder, name, ""),), config, text, single=True)
    found = [path for path in _below(folder, DEPTH) if _is_run(path)]
    if config.get("variants") or config.get("seeds"):
        # What else lies in the folder (a copy, another run) is not one of its variants.
        with contextlib.suppress(ConfigError):
            planned = {folder / single.place for single in expand(config)}
            found = [path for path in found if path in planned]
    runs = []
    for path in found:
        *variant, last = path.relative_to(folder).parts
        if not variant and not _SEED.fullmatch(last):
            variant, last = [last], ""
        runs.append(_run(path, "/".join(variant) or name, last))
    if not runs:
        if config and not (config.get("variants") or config.get("seeds")):
            return Runs(folder, name, (_run(folder, name, ""),), config, text, single=True)
        raise RunError(
            f"{folder}: a report needs a run's folder (with metrics.jsonl) or a folder of such folders; "
            f"found neither. Give the folder that `shoal run` wrote, such as runs/NAME"
        )
    return Runs(folder, name, tuple(runs), config, text)


def _full_name(folder: Path, name: str) -> str:
    """The name of a run on its own; of one among several (``DIR/VARIANT/SEED``), with its variant and seed."""
    variant = folder.resolve().parent
    siblings = _configuration(variant.parent)[0].get("variants")
    known = isinstance(siblings, Mapping) and variant.name in {str(v) for v in siblings}
    return f"{name}: {variant.name}, seed {folder.resolve().name}" if known else name


def _run(folder: Path, variant: str, seed: str) -> Run:
    faults: list[str] = []
    config, text = _configuration(folder, faults)
    summary = _json(folder / "summary.json", faults)
    seed = seed or str(summary.get("seed", config.get("seed", "0")))
    damage = RunFolder(folder).damage()
    if damage is not None:
        faults.append(f"{damage}; go on with: shoal resume {folder}")
    lines, broken = read_records(folder / "metrics.jsonl")
    timings, late = read_records(folder / "timings.jsonl")
    faults += [fault for fault in (broken, late) if fault is not None]
    return Run(
        folder=folder,
        variant=variant,
        seed=re.sub(r"^seed[-_=]?(?=\d)", "", seed),
        config=config,
        config_text=text,
        summary=summary,
        environment=_json(folder / "environment.json", faults),
        lines=tuple(lines),
        timings=tuple(timings),
        faults=tuple(faults),
        damaged=damage is not None or broken is not None,
    )


def _is_run(folder: Path) -> bool:
    return (folder / "metrics.jsonl").is_file() or (folder / "summary.json").is_file()


def _below(folder: Path, depth: int) -> Iterator[Path]:
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir(), key=lambda p: _natural(p.name)):
        if path.is_dir() and not path.is_symlink():
            yield path
            if depth > 1 and not _is_run(path):
                yield from _below(path, depth - 1)


def distinct(folders: Sequence[Path]) -> list[str]:
    """A name for each folder: the shortest end of its path that no other has and that is more than a seed.

    The run ``s/lr=0.2/0`` is called ``lr=0.2/0``: ``0`` alone says nothing.
    """
    every = [folder.resolve().parts for folder in folders]
    return [_tail(parts, [other for i, other in enumerate(every) if i != place]) for place, parts in enumerate(every)]


def _tail(parts: Sequence[str], others: Sequence[Sequence[str]]) -> str:
    for length in range(1, len(parts)):
        tail = parts[-length:]
        seeds = all(_SEED.fullmatch(part) for part in tail)
        if not seeds and not any(tuple(other[-length:]) == tuple(tail) for other in others):
            return "/".join(tail)
    return "/".join(parts[1:])


def _natural(text: str) -> list[tuple[int, int, str]]:
    """A key that sorts ``2`` before ``10``."""
    parts = re.findall(r"\d+|\D+", text)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]


def _configuration(folder: Path, faults: list[str] | None = None) -> tuple[Mapping[str, Any], str]:
    path = folder / "config.yaml"
    try:
        text = path.read_text(encoding="utf-8")
        found = yaml.safe_load(text)
    except FileNotFoundError:
        return {}, ""
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        if faults is not None:
            faults.append(f"{path.name} cannot be read: {type(error).__name__}")
        return {}, ""
    return (found if isinstance(found, dict) else {}), text


def _json(path: Path, faults: list[str]) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        faults.append(f"{path.name} cannot be read: {type(error).__name__}")
        return {}
    return found if isinstance(found, dict) else {}
