"""How time and memory grow: with the clients registered, those sampled in a round, the parameters, and the rounds.

Each point is a run of its own in a fresh process: folder, measures, checkpoints, everything but the report. Clients
draw their 20 rows (`partition: draw`) from a table of 64 features; the network has one hidden layer. Time is the median
processor time from the end of one round to the end of the next, memory the most that the process held, and what of it
came after the data were there. The axes are drawn into one HTML file. At the end the most registered clients of their
axis and the fewest that are more than are sampled take turns, round by round in one process; the last line is one JSON
object, with the median of the ratios of their times, the lowest and the highest tenth, and the ratio of their memories.

    python benchmarks/growth.py [--clients 1000 1000000] [--sampled 10] [--hidden 64] [--rounds 10] [--repetitions 1]
                                [--turns 40] [--out runs/growth.html] [--wall]

An axis that is given has these points instead of its own; `--axes clients sampled` leaves the others out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

import shoal
from shoal.bank import State
from shoal.config import Config
from shoal.data.dataset import Dataset
from shoal.engine import make_engine, one_torch_thread
from shoal.experiment import Experiment
from shoal.progress import Quiet
from shoal.running import PeakMemory, start_run
from shoal.setup import assemble, resolve_config

Clock = Callable[[], float]
ROWS, FEATURES, CLASSES = 5000, 64, 10
BASE = {"clients": 10_000, "sampled": 100, "hidden": 64, "rounds": 12}
"""What a point has where its axis says nothing else."""
AXES: dict[str, list[int]] = {
    "clients": [100, 1000, 10_000, 100_000, 1_000_000],
    "sampled": [10, 30, 100, 300, 1000],
    "hidden": [16, 128, 1024, 8192],
    "rounds": [10, 100, 1000],
}
OF_AXIS = {"hidden": {"sampled": 10}, "rounds": {"sampled": 10}}
"""What else the points of an axis have, so that they take seconds."""
TITLES = {"clients": "clients registered", "sampled": "clients a round", "hidden": "parameters", "rounds": "rounds"}
SKIPPED = 3
"""Rounds at the beginning that are not counted."""


def table() -> Dataset:
    """Random rows in ten classes."""
    features = np.random.default_rng(0).normal(size=(ROWS + 500, FEATURES)).astype(np.float32)
    return shoal.from_arrays(features, np.arange(ROWS + 500) % CLASSES, test=500)


def configuration(point: dict[str, Any]) -> Config:
    """The run of a point."""
    return resolve_config(
        {
            "rounds": point["rounds"],
            "data": "arrays",
            "stream": {"kind": "static", "clients": point["clients"], "partition": {"kind": "draw", "rows": 20}},
            "model": {"kind": "mlp", "hidden": [point["hidden"]]},
            "local": {"batch_size": 10, "lr": 0.02},
            "participation": {"count": point["sampled"]},
            "evaluate": {"every": 10},
            "execution": {"kind": "stacked"},
        }
    )


def measure(point: dict[str, Any], clock: Clock) -> dict[str, float]:
    """Milliseconds a round, megabytes and parameters of one run, in this process."""
    data, config = table(), configuration(point)

    ends: list[float] = []

    class Watch(Quiet):
        def played(self, round: int, lines: list[dict[str, Any]]) -> None:
            ends.append(clock())

    before = PeakMemory.peak_mb()
    with tempfile.TemporaryDirectory() as folder:
        run = start_run(config, Path(folder) / "run", dataset=data, progress=Watch(), report=False)
        parameters = int(run.summary()["trainable_parameters"])
    each = np.diff(ends)[SKIPPED:] if len(ends) > SKIPPED + 1 else np.diff(ends)
    memory = PeakMemory.peak_mb()
    return {
        "milliseconds": round(1e3 * float(np.median(each)), 2),
        "memory_mb": round(memory, 1),
        "of_the_run_mb": round(memory - before, 1),
        "parameters": parameters,
    }


def take_turns(fewer: int, more: int, turns: int, clock: Clock) -> list[float]:
    """The time of a round with ``more`` clients over one with ``fewer``: the median, the lowest and highest tenth."""
    data = table()
    played: list[tuple[Experiment, State]] = []
    for clients in (fewer, more):
        point = {**BASE, "clients": clients, "sampled": min(BASE["sampled"], fewer), "rounds": turns + SKIPPED}
        setup = assemble(configuration(point), data)
        execution, models = setup.config.execution, setup.world.models
        experiment = Experiment(setup, make_engine(execution, models, setup.stream.dataset))
        played.append((experiment, experiment.start()))
    ratios = []
    with one_torch_thread():
        for turn in range(turns + SKIPPED):
            seconds = {}
            for which in (0, 1) if turn % 2 else (1, 0):
                experiment, state = played[which]
                began = clock()
                played[which] = experiment, experiment.play(state).state
                seconds[which] = clock() - began
            ratios.append(seconds[1] / seconds[0])
    return [round(float(ratio), 3) for ratio in np.quantile(ratios[SKIPPED:], [0.5, 0.1, 0.9])]


def in_a_process(wall: bool, *arguments: str) -> Any:
    """What this file prints last with these arguments, in a fresh process."""
    command = [sys.executable, __file__, *arguments, *(["--wall"] if wall else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{arguments}: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def draw(found: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Two charts for each axis, time and memory, into one HTML file."""
    figure = make_subplots(rows=len(found), cols=2, vertical_spacing=0.35 / max(1, len(found)))
    for row, (axis, points) in enumerate(found.items(), start=1):
        x = [point["parameters"] if axis == "hidden" else point[axis] for point in points]
        for column, (number, title) in enumerate(
            (("milliseconds", "ms a round"), ("memory_mb", "MB at most")), start=1
        ):
            y = [point[number] for point in points]
            figure.add_trace(go.Scatter(x=x, y=y, mode="lines+markers", showlegend=False), row=row, col=column)
            figure.update_xaxes(title=TITLES[axis], type="log", row=row, col=column)
            figure.update_yaxes(title=title, rangemode="tozero", row=row, col=column)
    figure.update_layout(title="How time and memory grow", height=320 * len(found))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.write_html(path, include_plotlyjs=True)


def along(axis: str, values: list[int], options: argparse.Namespace) -> list[dict[str, Any]]:
    """The points of one axis; of several repetitions the median of each number."""
    found = []
    for value in values:
        point = {**BASE, **OF_AXIS.get(axis, {}), axis: value}
        point["sampled"] = min(point["sampled"], point["clients"])
        runs = [in_a_process(options.wall, "--point", json.dumps(point)) for _ in range(options.repetitions)]
        numbers = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        found.append({**point, **numbers})
        print(f"{axis} {value:,}: {numbers}", flush=True)
    return found


def main() -> None:
    """Measures all axes, draws them, and prints the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for axis in AXES:
        parser.add_argument(f"--{axis}", type=int, nargs="+")
    parser.add_argument("--axes", nargs="+", choices=AXES, default=list(AXES))
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/growth.html"))
    parser.add_argument("--wall", action="store_true")
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--point", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--pair", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    clock = time.perf_counter if options.wall else time.process_time
    if options.point is not None:
        print(json.dumps(measure(options.point, clock)))
        return
    if options.pair is not None:
        print(json.dumps(take_turns(*options.pair, options.turns, clock)))
        return
    found = {axis: along(axis, getattr(options, axis) or AXES[axis], options) for axis in options.axes}
    draw(found, options.out)
    print(f"drawn: {options.out}")
    result: dict[str, Any] = dict(found)
    memory = {point["clients"]: point["memory_mb"] for point in found.get("clients", [])}
    enough = [clients for clients in memory if clients > BASE["sampled"]] or list(memory)
    if len(enough) > 1:
        fewer, more = min(enough), max(enough)
        turns = ["--turns", str(options.turns)]
        result[f"time, {more} / {fewer} clients"] = in_a_process(options.wall, "--pair", str(fewer), str(more), *turns)
        result[f"memory, {more} / {fewer} clients"] = round(memory[more] / memory[fewer], 3)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
