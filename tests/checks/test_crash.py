"""A run that is killed at any moment goes on to the very bytes of an uninterrupted one."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from test_split import spoil

from shoal.checks.fingerprint import difference
from shoal.errors import RunError
from shoal.folder import RunFolder
from shoal.progress import Quiet
from shoal.running import resume_run

HERE = Path(__file__).parent
CONFIG: dict[str, Any] = {
    "name": "tiny",
    "rounds": 6,
    "data": {"kind": "digits", "limit": 200},
    "stream": {"kind": "tasks", "tasks": 2, "by": "class", "order": "asynchronous", "clients": 4, "validation": 0.1},
    "model": {"kind": "mlp", "hidden": [8]},
    "method": {"kind": "fedavg", "server": {"kind": "adam"}},
    "local": {"lr": 0.1, "batch_size": 16, "learner": {"kind": "good_parts:Control"}},
    "participation": {"fraction": 0.5, "crash_probability": 0.1},
    "execution": {"kind": "workers", "workers": 2},
}
FULL = {"always": True, "plain": True}
"""Every round is saved, and no report is written."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs fork and /proc")


class Ended(NamedTuple):
    """How a command ended: its exit code, or minus the signal; and what it printed."""

    code: int
    printed: str


class Server:
    """The process that forks; see crash_server.py."""

    def __init__(self, folder: Path) -> None:
        self.out = folder / "printed.txt"
        path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "crash_server.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )

    def begin(self, *arguments: str | Path, **hooks: Any) -> int:
        """Starts ``shoal ARGUMENTS`` and gives its process id."""
        command = {"arguments": [str(a) for a in arguments], "out": str(self.out), "hooks": hooks}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return int(self._line())

    def end(self) -> Ended:
        """Waits for it."""
        return Ended(int(self._line()), self.out.read_text())

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the server died"
        return line

    def run(self, *arguments: str | Path, **hooks: Any) -> Ended:
        """Runs ``shoal ARGUMENTS`` to its end."""
        self.begin(*arguments, **hooks)
        return self.end()

    def close(self) -> None:
        """Lets the server end."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("server"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "tiny.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return path


@pytest.fixture(scope="module")
def whole(server: Server, config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    ended = server.run("run", config, "--out", folder, plain=True)
    assert ended.code == 0, ended.printed
    return folder


@pytest.fixture(scope="module")
def killed(server: Server, config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed in its fifth round, with the checkpoints of rounds 3 and 4 and the lines of round 5."""
    folder = tmp_path_factory.mktemp("killed") / "run"
    # Nine events before the first round, five in each, and the second of round 5.
    assert server.run("run", config, "--out", folder, **FULL, die=9 + 4 * 5 + 2).code == -signal.SIGKILL
    assert RunFolder(folder).checkpoints.rounds() == [4, 3]
    assert RunFolder(folder).lines()[-1]["round"] == 5
    return folder


def wait_for(condition: Any, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.002)


def assert_same(folder: Path, whole: Path) -> None:
    for name in ("metrics.jsonl", "model.safetensors", "config.yaml"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes(), name
    states = [RunFolder(path).checkpoints.load()[0] for path in (folder, whole)]
    assert difference(*states) is None
    summaries = [RunFolder(path).summary() for path in (folder, whole)]
    timed = {"seconds", "evaluation_seconds", "client_steps_per_second", "peak_memory_mb"}
    a, b = ({k: v for k, v in summary.items() if k not in timed} for summary in summaries)
    assert a == b
    assert a["finished"]
    assert not list(folder.rglob("*.tmp"))


def go_on(server: Server, config: Path, folder: Path, **hooks: Any) -> Ended:
    """Resumes; a run that was killed before it was begun is started again."""
    if RunFolder(folder).exists:
        return server.run("resume", folder, **hooks)
    return server.run("run", config, "--out", folder, **hooks)


# ---- kill -9 -----------------------------------------------------------------------------------------------------


def kill_at_random(server: Server, config: Path, whole: Path, folder: Path, seed: int, kills: int) -> None:
    print(f"kill -9 at random moments, seed {seed}")
    rng = random.Random(seed)
    slow = 0.03
    hit = 0
    for _ in range(kills):
        arguments: list[Any] = ["resume", folder] if RunFolder(folder).exists else ["run", config, "--out", folder]
        pid = server.begin(*arguments, always=rng.random() < 0.7, plain=True, slow=slow)
        time.sleep(rng.uniform(0.0, slow * CONFIG["rounds"]))
        with contextlib.suppress(ProcessLookupError):  # it may have ended, on a busy machine
            os.kill(pid, signal.SIGKILL)
        hit += server.end().code == -signal.SIGKILL
    ended = go_on(server, config, folder, plain=True)
    assert ended.code == 0, ended.printed
    assert hit
    assert_same(folder, whole)


@pytest.mark.parametrize("seed", [1])
def test_kills_at_random_moments(server: Server, config: Path, whole: Path, tmp_path: Path, seed: int) -> None:
    kill_at_random(server, config, whole, tmp_path / "run", seed, kills=4)


@pytest.mark.long
@pytest.mark.parametrize("seed", [2, 3, *range(100, 130)])
def test_many_kills_at_random_moments(server: Server, config: Path, whole: Path, tmp_path: Path, seed: int) -> None:
    kill_at_random(server, config, whole, tmp_path / "run", seed, kills=7)


def die_at(server: Server, config: Path, whole: Path, folder: Path, event: int, half: bool) -> bool:
    """Kills a run at one event of writing and finishes it; false if there was no such event."""
    ended = server.run("run", config, "--out", folder, **FULL, die=event, half=half)
    if ended.code == 0:
        return False
    assert ended.code == -signal.SIGKILL, ended.printed
    ended = go_on(server, config, folder, **FULL)
    assert ended.code == 0, f"killed at event {event}: {ended.printed}"
    assert_same(folder, whole)
    return True


def test_kills_while_a_checkpoint_is_written(server: Server, config: Path, whole: Path, tmp_path: Path) -> None:
    # Nine events come first: three each for the configuration, the environment and the times. A round syncs the
    # metrics and their folder, then writes a checkpoint: fsync, rename, fsync of the folder. These are round 2's.
    for event, half in ((15, False), (17, False), (17, True), (18, True), (18, False), (19, False)):
        assert die_at(server, config, whole, tmp_path / f"{event}{half}", event, half)


def test_kills_while_the_run_is_begun(server: Server, config: Path, whole: Path, tmp_path: Path) -> None:
    for event, half in ((1, True), (2, True), (2, False), (4, True)):
        assert die_at(server, config, whole, tmp_path / f"{event}{half}", event, half)


@pytest.mark.long
@pytest.mark.parametrize("half", [False, True])
def test_a_kill_at_every_event_of_writing(
    server: Server, config: Path, whole: Path, tmp_path: Path, half: bool
) -> None:
    event = 1
    while die_at(server, config, whole, tmp_path / str(event), event, half):
        event += 1
    assert event > 40


@pytest.mark.long
def test_kills_of_the_real_command(config: Path, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    command = [sys.executable, "-m", "shoal"]
    arguments = [*command, "run", str(config), "--out", str(folder)]
    with subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL) as process:
        wait_for(lambda: (folder / "metrics.jsonl").exists())
        process.kill()
    assert process.returncode == -signal.SIGKILL
    subprocess.run([*command, "resume", str(folder)], env=environment, check=True, capture_output=True)
    assert_same(folder, whole)


# ---- interrupts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_saves_and_says_how_to_go_on(
    server: Server, config: Path, whole: Path, tmp_path: Path, number: int
) -> None:
    folder = tmp_path / "run"
    pid = server.begin("run", config, "--out", folder, plain=True, slow=0.3)
    times = folder / "timings.jsonl"
    # The lines of the first round come before: a run that is interrupted between the two has no round yet.
    wait_for(lambda: times.exists() and times.stat().st_size)
    os.kill(pid, number)
    ended = server.end()
    assert ended.code == 130, ended.printed
    saved = RunFolder(folder).checkpoints.rounds()[0]
    assert saved >= 1
    assert f"interrupted after round {saved}; go on with: shoal resume {folder}" in ended.printed
    assert server.run("resume", folder, plain=True).code == 0
    assert_same(folder, whole)


# ---- damaged files -----------------------------------------------------------------------------------------------


class Listener(Quiet):
    """Remembers what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def broken(killed: Path, tmp_path: Path) -> RunFolder:
    shutil.copytree(killed, tmp_path / "run")
    return RunFolder(tmp_path / "run")


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.running.write_report", lambda folder: folder)


@pytest.mark.parametrize("damage", ["cut", "flipped", "garbage", "empty"])
def test_a_damaged_checkpoint_leads_back_to_the_one_before(broken: RunFolder, whole: Path, damage: str) -> None:
    newest, before = broken.checkpoints.rounds()
    spoil(broken.checkpoints.path(newest), damage)
    listener = Listener()
    resume_run(broken.path, progress=listener)
    said = [text for text in listener.said if "damaged" in text or "falling back" in text]
    assert len(said) == 1, listener.said
    assert f"checkpoint of round {newest}" in said[0]
    assert "falling back to the one before it" in said[0]
    assert before == newest - 1
    assert_same(broken.path, whole)


def test_two_damaged_checkpoints_are_an_error_that_names_them(broken: RunFolder) -> None:
    for round in broken.checkpoints.rounds():
        spoil(broken.checkpoints.path(round), "cut")
    before = (broken.path / "metrics.jsonl").read_bytes()
    with pytest.raises(RunError, match="no checkpoint can be read") as error:
        resume_run(broken.path)
    for round in broken.checkpoints.rounds():
        assert f"checkpoint of round {round}: " in str(error.value)
    assert (broken.path / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("tail", [b'{"round": 5, "metric": "accu', b"\x00" * 700, b'{"round": 5, "record": "odd"}\n'])
def test_what_was_written_after_the_checkpoint_is_cut(broken: RunFolder, whole: Path, tail: bytes) -> None:
    with (broken.path / "metrics.jsonl").open("ab") as file:
        file.write(tail)
    with (broken.path / "timings.jsonl").open("ab") as file:
        file.write(tail[:10])
    resume_run(broken.path)
    assert_same(broken.path, whole)


def test_metrics_that_were_cut_from_outside_are_an_error(broken: RunFolder) -> None:
    os.truncate(broken.path / "metrics.jsonl", 100)
    with pytest.raises(RunError, match="has 100 bytes, but the checkpoint was written when it had"):
        resume_run(broken.path)
