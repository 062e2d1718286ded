"""`summarise`: the numbers of ``summary.json``, from the files of a run's folder alone."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import yaml

from .errors import RunError
from .metrics.base import Line, Measure
from .metrics.values import finite
from .registry import find

_PROBLEMS = ("rejected", "failed", "stragglers", "skipped")


def summarise(folder: str | Path) -> dict[str, Any]:
    """The summary of a run, finished or not: JSON values only, null where something was not measured.

    Reads ``config.yaml`` (resolved), ``metrics.jsonl`` and ``timings.jsonl``; the last two may be missing or
    end in a broken line, as after a power cut. ``rounds`` is how many rounds were done, ``finished`` whether
    these are all. ``seconds`` is the time of all rounds, ``evaluation_seconds`` included. ``problems``
    counts, over all rounds, clients that were rejected, failed, straggled or were skipped. The rest comes
    from the measures that ``evaluate.measures`` names, each by its own definition.

    Raises `RunError` if the folder holds no configuration of a run, `ConfigError` if a measure cannot be
    imported.
    """
    folder = Path(folder)
    config = _config(folder)
    lines, times = _records(folder / "metrics.jsonl"), _records(folder / "timings.jsonl")
    rounds = [line for line in lines if line.get("record") == "round" and line["round"] > 0]
    done = max((line["round"] for line in rounds), default=0)
    started = any(line.get("record") == "stream" for line in lines)
    model = next((line for line in lines if line.get("record") == "model"), {})
    measured: dict[str, Any] = {}
    for kind in config["evaluate"]["measures"]:
        measured |= cast("type[Measure]", find("measure", kind)).summarise(lines)
    summary = {
        "method": config["method"]["kind"],
        "seed": config["seed"],
        "rounds": done,
        "finished": started and done >= config["rounds"],
        "acc": measured.get("acc"),
        "trainable_parameters": model.get("trainable_parameters"),
        "model_bytes": model.get("model_bytes"),
        "entries": model.get("entries"),
        "server": model.get("server"),
        **_speed(times, measured.get("client_steps")),
    }
    summary |= {name: value for name, value in measured.items() if name not in summary}
    summary["problems"] = _problems(lines)
    return cast("dict[str, Any]", _plain(summary))


def _config(folder: Path) -> Mapping[str, Any]:
    path = folder / "config.yaml"
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        known = isinstance(config, Mapping) and {"kind"} <= set(config["method"]) and bool(config["evaluate"])
        known = known and {"seed", "rounds"} <= set(config)
    except OSError as error:
        raise RunError(f"{folder}: a run's folder has a config.yaml; {error}. Is this the folder of a run?") from error
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise RunError(f"{path}: not the resolved configuration of a run: {error}") from error
    if not known:
        raise RunError(f"{path}: not the resolved configuration of a run (method, seed, rounds and evaluate)")
    return cast("Mapping[str, Any]", config)


def _records(path: Path) -> list[Line]:
    """The JSON lines of a file; none if it is missing. A broken last line is left out."""
    if not path.exists():
        return []
    raw = path.read_bytes().split(b"\n")
    found: list[Line] = []
    for number, line in enumerate(raw, start=1):
        if not line.strip():
            continue
        try:
            found.append(json.loads(line))
        except ValueError as error:
            if number == len(raw):
                break
            raise RunError(f"{path}, line {number}: not JSON ({error}); was the file edited by hand?") from error
    return found


def _speed(times: Sequence[Line], steps: float | None) -> dict[str, Any]:
    """Times, memory and engine. Of a round done twice, before and after a resume, the last time counts."""
    rounds = {line["round"]: line for line in times}
    seconds = math.fsum(line["seconds"] for line in rounds.values()) if rounds else None
    evaluation = math.fsum(line.get("evaluation_seconds") or 0.0 for line in rounds.values()) if rounds else None
    memory = [line["peak_memory_mb"] for line in rounds.values() if line.get("peak_memory_mb") is not None]
    return {
        "seconds": seconds,
        "evaluation_seconds": evaluation,
        "client_steps_per_second": steps / seconds if steps is not None and seconds else None,
        "engine": next((line["engine"] for line in reversed(times) if line.get("engine")), None),
        "peak_memory_mb": max(memory, default=None),
    }


def _problems(lines: Sequence[Line]) -> dict[str, dict[str, Any]]:
    """How often each kind of problem came up, as the round records count it, and at which clients.

    The clients are those of the records ``rejected``, ``failed``, ``straggler`` and ``skipped``.
    """
    problems = {}
    for name in _PROBLEMS:
        count = sum(int(line.get(name) or 0) for line in lines if line.get("record") == "round")
        of_kind = (line for line in lines if line.get("record") in (name, name.removesuffix("s")))
        problems[name] = {"count": count, "clients": sorted({x["client"] for x in of_kind if "client" in x})}
    return problems


def _plain(value: Any) -> Any:
    """The value as JSON knows it: no NaN, no infinity, no numpy scalars, strings as keys."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return finite(value) if isinstance(value, float) else value
