"""`summarise`: the numbers of ``summary.json``, from the files of a run's folder alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from .errors import RunError
from .folder import RunFolder, read_lines
from .metrics.base import Line, Measure
from .registry import find

NUMBERS = (
    "method",
    "seed",
    "rounds",
    "finished",
    "acc",
    "trainable_parameters",
    "model_bytes",
    "entries",
    "server",
    "seconds",
    "evaluation_seconds",
    "client_steps_per_second",
    "engine",
    "peak_memory_mb",
    "updates",
    "first_problem",
    "problems",
)
"""What every summary has, whatever was measured."""
_NEEDED = ("method", "seed", "rounds", "evaluate")
_PROBLEMS = {"rejected": "rejected", "failed": "failed", "stragglers": "straggler", "skipped": "skipped"}
"""The counts of a round's record, and the records that name the clients."""


def summarise(folder: str | Path) -> dict[str, Any]:
    """The summary of a run, finished or not; ``None`` where something was not measured.

    Reads ``config.yaml`` (resolved), ``metrics.jsonl`` and ``timings.jsonl``; the last two may be missing or end
    in a broken line, as after a power cut. ``rounds`` is how many rounds were done (the warm-up is none),
    ``finished`` whether these are all, and no line was lost or changed since the end. ``seconds`` is the time of all
    rounds, ``evaluation_seconds`` included, and ``client_steps_per_second`` refers to it. ``problems`` counts, over all
    rounds, clients that were
    rejected, failed, straggled or were skipped, and names them under ``clients``; ``updates`` counts those that
    reached the bank from round 1 on (in a run of no rounds: in its warm-up), ``warmup_updates`` those of a warm-up, and
    ``first_problem`` has the first reason. The rest comes from the
    measures that ``evaluate.measures`` names, each by its own definition; a measure cannot replace the numbers
    named here.

    Raises `RunError` if the folder holds no run, `ConfigError` if a measure cannot be imported.
    """
    run = RunFolder(Path(folder))
    if not run.exists:
        raise RunError(f"{folder} holds no run (no config.yaml); give the folder that shoal run has written")
    config = run.config()
    missing = [name for name in _NEEDED if name not in config]
    if missing:
        raise RunError(
            f"{folder}: the config.yaml of a run is fully resolved, but this one lacks {missing}; "
            f"a sweep has a folder for each of its runs: give one of those"
        )
    lines = run.lines()
    measured: dict[str, Any] = {}
    for kind in config["evaluate"]["measures"]:
        # A number belongs to the measure that gave it first: a later one cannot replace it.
        measured = {**cast("type[Measure]", find("measure", kind)).summarise(lines), **measured}
    done = max((line["round"] for line in lines if line.get("record") == "round"), default=0)
    started = any(line.get("record") == "stream" for line in lines)
    model = next((line for line in lines if line.get("record") == "model"), {})
    summary = {
        "method": config["method"]["kind"],
        "seed": config["seed"],
        "rounds": done,
        "finished": started and done >= config["rounds"] and run.damage() is None,
        "acc": measured.get("acc"),
        "trainable_parameters": model.get("trainable_parameters"),
        "model_bytes": model.get("model_bytes"),
        "entries": next((x["entries"] for x in reversed(lines) if x.get("record") == "entries"), model.get("entries")),
        "server": model.get("server"),
        **_speed(read_lines(run.path / "timings.jsonl"), measured.get("client_steps")),
        "updates": _accepted(lines, warmup=config["rounds"] == 0),
        **_warmed_up(lines),
        "first_problem": _first_problem(lines),
        "problems": _problems(lines),
    }
    return {**summary, **{name: value for name, value in measured.items() if name not in summary}}


def _speed(times: Sequence[Line], steps: float | None) -> dict[str, Any]:
    """Times, memory and engine. Of a round done twice, before and after a resume, the last time counts."""
    rounds = list({line["round"]: line for line in times}.values())
    seconds = math.fsum(line["seconds"] for line in rounds) if rounds else None
    memory = [line["peak_memory_mb"] for line in rounds if line.get("peak_memory_mb") is not None]
    return {
        "seconds": seconds,
        "evaluation_seconds": math.fsum(line["evaluation_seconds"] for line in rounds) if rounds else None,
        "client_steps_per_second": steps / seconds if steps is not None and seconds else None,
        "engine": next((line["engine"] for line in reversed(times) if line.get("engine")), None),
        "peak_memory_mb": max(memory, default=None),
    }


def _accepted(lines: Sequence[Line], warmup: bool) -> int:
    """How many updates reached the bank, over all rounds, or in the warm-up alone (round 0)."""
    rounds = (x for x in lines if x.get("record") == "round" and (x["round"] == 0) == warmup)
    every = [line.get("trained", {}) for line in rounds]
    return sum(len({client for clients in trained.values() for client in clients}) for trained in every)


def _warmed_up(lines: Sequence[Line]) -> dict[str, int]:
    """``warmup_updates``, of runs with a warm-up."""
    warmed = any(line.get("record") == "round" and line["round"] == 0 for line in lines)
    return {"warmup_updates": _accepted(lines, warmup=True)} if warmed else {}


def _first_problem(lines: Sequence[Line]) -> str | None:
    """The first client that was rejected, failed or skipped, with the reason, or the first round that diverged."""
    for line in lines:
        if line.get("record") in ("rejected", "failed", "skipped"):
            return f"client {line['client']}, {line['record']} in round {line['round']}: {line['reason']}"
        if line.get("record") == "diverged":
            return f"round {line['round']} diverged: {line['reason']}"
    return None


def _problems(lines: Sequence[Line]) -> dict[str, Any]:
    """The counts of the round records, and the clients that the single records name."""
    problems: dict[str, Any] = {}
    clients: dict[str, list[int]] = {}
    for name, record in _PROBLEMS.items():
        problems[name] = sum(line.get(name, 0) for line in lines if line.get("record") == "round")
        known = {line["client"] for line in lines if line.get("record") == record and "client" in line}
        if known:
            clients[name] = sorted(known)
    return {**problems, "clients": clients}
