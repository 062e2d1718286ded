"""Writes run folders by hand, as a run would leave them; nothing here comes from the engine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from shoal.randomness import generator

TASKS = ("identity", "rotate90", "rotate180", "rotate270", "mirror")


def accuracies(
    seed: int, rounds: int, tasks: int, boundaries: Sequence[int], dip: Sequence[float]
) -> list[list[float]]:
    """A rising accuracy per round and task; ``dip[h]`` is lost h rounds into a new phase."""
    rng = generator(seed, "report-test")
    table = []
    for round in range(1, rounds + 1):
        since = round - 1 - max([b for b in boundaries if b < round], default=-99)
        lost = dip[since] if 0 <= since < len(dip) else 0.0
        level = 0.93 - 0.8 * 0.8**round
        noise = rng.normal(0, 0.008, tasks)
        table.append([min(1.0, max(0.0, level - 0.02 * t - lost + float(noise[t]))) for t in range(tasks)])
    return table


def write_run(
    folder: Path,
    name: str = "async-digits",
    seed: int = 0,
    rounds: int = 30,
    done: int | None = None,
    clients: int = 5,
    tasks: Sequence[str] = TASKS,
    boundaries: Sequence[int] = (6, 12, 18, 24),
    dip: Sequence[float] = (),
    config: Mapping[str, Any] | None = None,
    summary: Mapping[str, Any] | None = None,
    more: Sequence[Mapping[str, Any]] = (),
    drift: float = 1.0,
) -> Path:
    """One run's folder; ``done`` fewer than ``rounds`` leaves it unfinished, without a summary."""
    folder.mkdir(parents=True)
    done = rounds if done is None else done
    settings = {
        "name": name, "seed": seed, "rounds": rounds, "data": {"kind": "digits"}, "model": {"kind": "mlp"},
        "stream": {"kind": "tasks", "order": "asynchronous"}, "method": {"kind": "fedavg", "per": "task"},
        "local": {"lr": 0.05, "epochs": 5}, **(config or {}),
    }  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))
    (folder / "environment.json").write_text(json.dumps({"python": "3.11", "packages": {"torch": "2.6"}}))
    lines: list[dict[str, Any]] = [
        {"round": 0, "record": "stream", "boundaries": list(boundaries), "tasks": len(tasks), "task_names": list(tasks),
         "rounds": rounds, "clients": clients, "order": "asynchronous" if tasks else None, "notes": [],
         "classes": ["shirt", "7", "<41>"]},
        {"round": 0, "record": "model", "trainable_parameters": 4810, "model_bytes": 19240, "server": {"kind": "sgd"}},
    ]  # fmt: skip
    values = accuracies(seed, done, max(len(tasks), 1), boundaries, dip)
    order = [list(generator(seed, "order", c).permutation(max(len(tasks), 1))) for c in range(clients)]
    for round in range(1, done + 1):
        phase = sum(1 for b in boundaries if round > b)
        held = {c: int(order[c][phase % len(order[c])]) for c in range(clients)} if tasks else {}
        by_task: dict[str, list[int]] = {}
        for client, task in held.items():
            by_task.setdefault(str(task), []).append(client)
        for task in range(len(tasks)):
            about = {"rows": 360, "entry": f"task/{task}", "task": task}
            lines.append({"round": round, "metric": "accuracy", "value": values[round - 1][task], **about})
        if not tasks:
            lines.append({"round": round, "metric": "accuracy", "value": values[round - 1][0], "rows": 360})
        mean = sum(values[round - 1]) / len(values[round - 1])
        lines.append({"round": round, "metric": "mean_accuracy", "value": mean, "weighting": "targets"})
        since = round - max([b for b in boundaries if b < round], default=0)
        for metric, size in (("client_drift", 1.0), ("client_drift_distance", 1.5), ("client_drift_cosine", 0.02)):
            for over in ("all", "head"):
                value = drift * size * (1 + 2 / since) * (1.0 if over == "all" else 0.6)
                lines.append({"round": round, "metric": metric, "value": value, "over": over})
        trained = {f"task/{t}": who for t, who in by_task.items()} or {"global": list(range(clients))}
        lines.append(
            {"round": round, "record": "round", "participants": list(range(clients)), "tasks": by_task,
             "trained": trained, "trained_tasks": by_task, "rejected": 0, "failed": 0, "stragglers": 0,
             "skipped": 0, "phase": phase}
        )  # fmt: skip
    write_lines(folder / "metrics.jsonl", [*lines, *more])
    write_lines(folder / "timings.jsonl", [{"round": r, "seconds": 0.2 + 0.01 * (r % 3), "evaluation_seconds": 0.02}
                                           for r in range(1, done + 1)])  # fmt: skip
    if done == rounds:
        last = values[-1] if values else []
        numbers = {
            "method": "fedavg", "seed": seed, "rounds": rounds, "acc": sum(last) / len(last) if last else None,
            "trainable_parameters": 4810, "model_bytes": 19240, "bytes_down_per_round": 19240.0,
            "bytes_up_per_round": 19240.0, "seconds": 6.3, "client_drift": drift,
            "client_steps_per_second": 1234.0, "peak_memory_mb": 410.0, "engine": "workers", **(summary or {}),
        }  # fmt: skip
        (folder / "summary.json").write_text(json.dumps(numbers))
    return folder


def targets_of_clients(
    values: Mapping[int, float | None], rounds: Sequence[int], rows: Mapping[int, int] | None = None, **more: float
) -> list[dict[str, Any]]:
    """Lines of accuracy, loss and further metrics per client, the same in each of these rounds."""
    lines = []
    for round in rounds:
        for client, value in values.items():
            about = {"rows": (rows or {}).get(client, 10), "entry": "global", "client": client}
            lines.append({"round": round, "metric": "accuracy", "value": value, **about})
            loss = None if value is None else 2 - value
            for name, one in {"loss": loss, **more}.items():
                lines.append({"round": round, "metric": name, "value": one, **about})
    return lines


def without_accuracy(folder: Path, **stream: Any) -> Path:
    """Takes the accuracy of the one target of a stream without tasks away, and adds to the stream's record."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = [line for line in lines if line.get("metric") not in ("accuracy", "mean_accuracy") or "client" in line]
    kept[0] |= stream
    write_lines(folder / "metrics.jsonl", kept)
    return folder


def confusion(round: int, classes: Sequence[str], counts: Sequence[Sequence[int]], **labels: Any) -> dict[str, Any]:
    """The record of a confusion matrix, from a whole matrix of counts."""
    cells = [[i, j, n] for i, row in enumerate(counts) for j, n in enumerate(row) if n]
    return {"round": round, "record": "confusion", "excluded": 0, "classes": list(classes), "counts": cells, **labels}


def write_lines(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_sweep(folder: Path, variants: Mapping[str, Mapping[str, Any]], seeds: Sequence[int], **more: Any) -> Path:
    """A folder of runs: ``variants`` has the settings of `write_run` for each."""
    folder.mkdir(parents=True)
    config = {
        "name": folder.name,
        "variants": {name: {"method.kind": "fedsgd"} for name in variants},
        "seeds": list(seeds),
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
    for name, settings in variants.items():
        for seed in seeds:
            write_run(folder / name / str(seed), name=folder.name, seed=seed, **{**more, **settings})
    return folder
