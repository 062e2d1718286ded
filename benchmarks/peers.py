"""Shoal beside other simulators of federated averaging: the same rounds over the same rows, taking turns.

Every system plays in a process of its own, the peers in virtual environments that are made here: pfl-research (two
processes by torchrun), fluke (one loop), Flower's simulation (two Ray actors). All load the same rows and the same
first model (`peers/work.py`), shuffle each client's rows anew in every round, measure nothing while the clock runs, and
have both cores, with one torch thread a process or worker. They are started before, and take turns whose order
alternates; the first turn warms up. At the end the loss of each one's last model on all rows, and its distance from the
first model, tell whether the work was the same.

- ``cnn``: 62,006 parameters, 10 of 100 clients, 50 rows, batch 10, one epoch;
- ``simple_cnn``: 1,626,442 parameters, pfl-research's own benchmark: 50 clients a round, 50 rows, batch 10, dropout;
- ``mlp``: 784-100-10, 50 of 1,000 clients. Here also the bare stack: batched products that know no Shoal.

A peer that cannot be installed or started is left out, and the table says why. The last line is one JSON object with
the milliseconds of a round and the ratios peer / Shoal (above 1: Shoal is faster), median, lowest and highest.

    python benchmarks/peers.py [--venvs DIR] [--repetitions 3] [--workloads cnn mlp] [--peers pfl] [--quick]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parent / "peers"
sys.path.insert(0, str(SCRIPTS))

from work import SOCKET, Work  # noqa: E402

PATIENCE = 600.0
"""Seconds in which a system must have started, or have played a turn."""
WORKLOADS: dict[str, tuple[dict[str, Any], int]] = {
    "cnn": ({"model": "cnn", "clients": 100, "sampled": 10, "shape": (32, 32, 3), "lr": 0.05}, 10),
    "simple_cnn": ({"model": "simple_cnn", "clients": 100, "sampled": 50, "shape": (32, 32, 3), "lr": 0.05}, 1),
    "mlp": ({"model": "mlp", "clients": 1000, "sampled": 50, "shape": (784,)}, 40),
}
"""What is played, and how many rounds a turn has."""
SHOAL: dict[str, dict[str, Any]] = {
    "cnn": {"kind": "workers", "workers": 2},
    "simple_cnn": {"kind": "workers", "workers": 2},
    "mlp": {"kind": "stacked", "workers": 2},
}
"""The lines ``execution:`` of Shoal's configuration."""
OURS = ("shoal", "bare stack")


@dataclass(frozen=True)
class Peer:
    """A peer: what pip installs for it, one call each, and how its script is started."""

    packages: tuple[tuple[str, ...], ...]
    command: tuple[str, ...]
    """Behind the folder of the programs of its virtual environment."""
    models: tuple[str, ...] = tuple(WORKLOADS)


PEERS = {
    "pfl": Peer((("pfl==0.6.0",),), ("torchrun", "--standalone", "--nproc_per_node=2", "on_pfl.py")),
    "flower": Peer((("flwr[simulation]==1.42.0",),), ("python", "on_flower.py")),
    "fluke": Peer(
        (
            ("--no-deps", "fluke-fl==0.8.1"),
            # What it imports, less torchvision and services for tracking: see `peers/on_fluke.py`.
            (
                *("rich", "typer", "psutil", "diskcache", "cerberus", "hydra-core", "omegaconf", "pyyaml", "networkx"),
                *("pandas", "scikit-learn", "torchmetrics", "matplotlib", "seaborn", "requests", "datasets", "pillow"),
            ),
        ),
        ("python", "on_fluke.py"),
    ),
}


class Skipped(Exception):
    """Why a system does not play."""


def environment(name: str, folder: Path, torch: str, install: bool) -> Path:
    """The folder of the programs of a peer's virtual environment, which is made if it is not there.

    ``torch`` is what pip is told to install first. Raises `Skipped`.
    """
    place = folder / name
    wanted = [torch.split(), *map(list, PEERS[name].packages)]
    mark = place / "installed.json"
    if mark.is_file() and json.loads(mark.read_text(encoding="utf-8")) == wanted:
        return place / "bin"
    if not install:
        raise Skipped("not installed")
    print(f"{name}: installing into {place}", flush=True)
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in ([sys.executable, "-m", "venv", str(place)], *([*pip, *packages] for packages in wanted)):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
            raise Skipped(f"not installed: {said[0] if said else 'pip gave no reason'}")
    mark.write_text(json.dumps(wanted), encoding="utf-8")
    return place / "bin"


def processor_seconds(root: int) -> float:
    """The processor time of a process and all that it started and that still runs, where there is a ``/proc``."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):  # it has ended in between
            values = entry.read_text().rpartition(")")[2].split()
            process = int(entry.parent.name)
            parents[process] = int(values[1])
            used[process] = sum(map(int, values[11:15])) / os.sysconf("SC_CLK_TCK")
    family = {root}
    while more := {process for process, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(used.get(process, 0.0) for process in family)


class Player:
    """A system in its process, which plays a turn when it is told to. Raises `Skipped` when it does not."""

    def __init__(self, name: str, command: Sequence[str], folder: Path) -> None:
        self.name = name
        path = folder / f"{name.replace(' ', '-')}.socket"
        self.log = path.with_suffix(".log")
        self._wire: socket.socket | None = None
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(path))
        self._server.listen(1)
        settings = {SOCKET: str(path), "OMP_NUM_THREADS": "1", "PFL_PYTORCH_DEVICE": "cpu", "PYTHONPATH": str(SCRIPTS)}
        began = time.perf_counter()
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                cwd=SCRIPTS,
                env={**os.environ, **settings},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._lines = self._connected()
            self._read("ready")
        except BaseException:
            self.close()
            raise
        self.started = time.perf_counter() - began

    def _connected(self) -> Any:
        self._server.settimeout(1.0)
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(TimeoutError):
                self._wire, _ = self._server.accept()
                self._wire.settimeout(PATIENCE)
                return self._wire.makefile("r", encoding="utf-8")
        raise Skipped(self._why())

    def _why(self) -> str:
        code = self.process.poll()
        how = f"no answer in {PATIENCE:.0f} s" if code is None else f"ended with status {code}"
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if "Error" in line]
        return f"{how}: {lines[-1].strip()[:200]}" if lines else how

    def _read(self, name: str) -> dict[str, Any]:
        try:
            line = self._lines.readline()
        except OSError:
            line = ""
        found = json.loads(line) if line else {}
        if name not in found:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)  # a reason comes with its end
            raise Skipped(self._why())
        return dict(found)

    def turn(self, last: bool = False) -> tuple[float, float]:
        """The seconds of a turn, and the processor seconds."""
        before = processor_seconds(self.process.pid)
        assert self._wire is not None
        self._wire.sendall(b"go\n")
        seconds = self._read("seconds")["seconds"]
        used = processor_seconds(self.process.pid) - before
        if not last:
            self._read("ready")
        return seconds, used

    def end(self) -> dict[str, float]:
        """What came out."""
        return self._read("loss")

    def close(self) -> None:
        """Ends the process and what it has started."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._server.close()
        if self._wire is not None:
            self._lines.close()
            self._wire.close()


@dataclass
class Case:
    """What was seen of one workload: for each system the seconds of a round, in every repetition."""

    rounds: int
    started: dict[str, float] = field(default_factory=dict)
    """Seconds to the end of the first turn."""
    seconds: dict[str, list[float]] = field(default_factory=dict)
    processor: dict[str, list[float]] = field(default_factory=dict)
    ended: dict[str, dict[str, float]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def ratio(self, other: str, base: str = "shoal", processor: bool = False) -> list[float]:
        """Time of one / time of another in the same repetition: median, lowest, highest."""
        times = self.processor if processor else self.seconds
        least = 1 / os.sysconf("SC_CLK_TCK")  # processor time is counted in such ticks, and may be none
        ratios = sorted(
            a / max(b, least) if processor else a / b for a, b in zip(times[other], times[base], strict=True)
        )
        return [round(r, 3) for r in (statistics.median(ratios), ratios[0], ratios[-1])]

    @property
    def fastest(self) -> str | None:
        """The peer with the shortest rounds."""
        peers = [name for name in self.seconds if name not in OURS]
        return min(peers, key=lambda name: statistics.median(self.seconds[name]), default=None)

    def same(self) -> bool:
        """Whether all did the same work, within what other shuffles and other clients make of it."""
        losses = [ended["loss"] for ended in self.ended.values()]
        moved = [ended["distance"] for ended in self.ended.values()]
        return max(losses) < 1.25 * min(losses) and max(moved) < 1.5 * min(moved)

    def found(self) -> dict[str, Any]:
        """For the JSON line."""
        ms = {f"{name}, ms": round(1e3 * statistics.median(times), 2) for name, times in self.seconds.items()}
        others = [name for name in self.seconds if name != "shoal"]
        found: dict[str, Any] = {**ms, **{f"{name} / shoal": self.ratio(name) for name in others}}
        found |= {f"{name} / shoal, processor time": self.ratio(name, processor=True) for name in others}
        if self.fastest is not None:
            found["fastest peer"] = self.fastest
            if "bare stack" in self.seconds:
                found[f"{self.fastest} / bare stack"] = self.ratio(self.fastest, "bare stack")
        rounded = {name: {what: round(n, 4) for what, n in each.items()} for name, each in self.ended.items()}
        started = {name: round(seconds, 1) for name, seconds in self.started.items()}
        return {**found, "started, s": started, "ended": rounded, "same work": self.same(), "skipped": self.skipped}

    def table(self) -> str:
        """For people."""
        lines = [f"{'':12}{'ms a round':>12}{'cpu ms':>9}{'/ shoal':>24}{'start, s':>10}{'loss':>8}{'moved':>8}"]
        for name, times in self.seconds.items():
            wall, cpu = (1e3 * statistics.median(each) for each in (times, self.processor[name]))
            middle, low, high = self.ratio(name)
            ratio = f"{middle:.2f} ({low:.2f} to {high:.2f})"
            loss, moved = self.ended[name]["loss"], self.ended[name]["distance"]
            lines.append(f"{name:12}{wall:12.1f}{cpu:9.1f}{ratio:>24}{self.started[name]:10.1f}{loss:8.3f}{moved:8.3f}")
        return "\n".join([*lines, *(f"{name:12}skipped: {reason}" for name, reason in self.skipped.items())])


def play(case: Case, commands: Mapping[str, Callable[[], Sequence[str]]], folder: Path, repetitions: int) -> None:
    """Starts the systems one after another, then lets them take turns. One that fails is left out."""
    players: dict[str, Player] = {}
    times: dict[str, list[tuple[float, float]]] = {}
    try:
        for name, command in commands.items():
            try:
                players[name] = Player(name, command(), folder)
            except Skipped as reason:
                case.skipped[name] = str(reason)
        for turn in range(1 + repetitions):
            for name in list(players)[:: -1 if turn % 2 else 1]:
                try:
                    times.setdefault(name, []).append(players[name].turn(last=turn == repetitions))
                    if turn == 0:  # not before is everything there, such as Ray's actors
                        case.started[name] = players[name].started + times[name][0][0]
                    if turn == repetitions:
                        case.ended[name] = players[name].end()
                except Skipped as reason:
                    case.skipped[name] = str(reason)
                    players.pop(name).close()
    finally:
        for player in players.values():
            player.close()
    for name in players:
        case.seconds[name] = [wall / case.rounds for wall, _ in times[name][1:]]
        case.processor[name] = [cpu / case.rounds for _, cpu in times[name][1:]]


def commands_of(workload: str, folder: Path, options: argparse.Namespace) -> dict[str, Callable[[], Sequence[str]]]:
    """How each system is started for a workload."""
    execution = json.dumps(options.execution or SHOAL[workload])
    found: dict[str, Callable[[], Sequence[str]]] = {
        "shoal": lambda: (sys.executable, "on_shoal.py", str(folder), execution)
    }
    if workload == "mlp":
        found["bare stack"] = lambda: (sys.executable, "bare_stack.py", str(folder))

    def command(name: str) -> Sequence[str]:
        programs = environment(name, options.venvs, options.torch, options.install)
        first, *others = PEERS[name].command
        return (str(programs / first), *others, str(folder))

    return found | {name: lambda name=name: command(name) for name in options.peers}  # type: ignore[misc]


def compare(workload: str, options: argparse.Namespace) -> Case:
    """Plays one workload on all systems."""
    settings, rounds = WORKLOADS[workload]
    rounds = 1 if options.quick else rounds
    if options.quick:
        settings = {**settings, "clients": 20, "sampled": min(4, settings["sampled"])}
    case = Case(rounds)
    with tempfile.TemporaryDirectory(prefix="peers-") as name:
        folder = Path(name)
        Work(workload, turns=(rounds,) * (1 + options.repetitions), **settings).make(folder)
        play(case, commands_of(workload, folder, options), folder, options.repetitions)
    return case


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--venvs", type=Path, default=Path(".venv-peers"), help="where the peers are installed")
    parser.add_argument("--no-install", dest="install", action="store_false", help="leave out what is not installed")
    default = os.environ.get("TORCH", "torch==2.13.0")
    parser.add_argument("--torch", default=default, help="what pip installs as PyTorch (default: TORCH, as for make)")
    parser.add_argument("--execution", type=json.loads, help="another execution for Shoal, as JSON")
    parser.add_argument("--quick", action="store_true", help="fewer clients, one repetition of one round")
    options = parser.parse_args(arguments)
    options.venvs = options.venvs.absolute()
    options.repetitions = 1 if options.quick else options.repetitions
    return options


def main() -> None:
    options = options_of()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing is left behind
    results: dict[str, Any] = {}
    print(f"load of the last minute: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    for workload in options.workloads:
        case = compare(workload, options)
        print(f"{workload}, Shoal with {options.execution or SHOAL[workload]}\n{case.table()}", flush=True)
        if not case.same():
            print(f"{workload}: not the same work: losses differ by a quarter, or distances by a half", flush=True)
        results[workload] = case.found()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
