"""Runs the command line in forked processes that can be killed; started once, because importing torch takes seconds.

Reads a JSON command a line: ``arguments``, ``out`` (a file for what is printed) and ``hooks``. Answers with the
process's id at once, and with how it ended when it ended (the exit code, or minus the signal).

Hooks: ``always`` saves every round; ``plain`` leaves out the report; ``die`` kills the process at the n-th event of
writing (an fsync, a rename), ``half`` leaves only half of the temporary file then; ``slow`` seconds before each round.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import sklearn.datasets  # noqa: F401  (what a run imports late, imported once)

from shoal import __main__, experiment, running


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Deaths:
    """Counts the events of writing, and dies at one."""

    def __init__(self, at: int, half: bool) -> None:
        self.left = at
        self.half = half
        self.fsync, self.replace = os.fsync, Path.replace

    def event(self) -> bool:
        self.left -= 1
        return self.left == 0

    def synced(self, handle: int) -> None:
        if self.event():
            name = os.readlink(f"/proc/self/fd/{handle}")
            if self.half and name.endswith(".tmp"):
                os.ftruncate(handle, os.fstat(handle).st_size // 2)
            die()
        self.fsync(handle)

    def replaced(self, path: Path, target: Any) -> Path:
        if self.event():
            if not self.half:  # once before the rename, once after it
                self.replace(path, target)
            die()
        return self.replace(path, target)


def prepare(hooks: dict[str, Any]) -> None:
    if hooks.get("always"):
        running.CHECKPOINT_SHARE = 1e9
    if hooks.get("plain"):
        running.write_report = lambda folder: folder  # type: ignore[assignment]
    if "die" in hooks:
        deaths = Deaths(hooks["die"], hooks.get("half", False))
        os.fsync = deaths.synced
        Path.replace = lambda path, target: deaths.replaced(path, target)  # type: ignore[assignment,method-assign]
    if hooks.get("slow"):
        play = experiment.Experiment.play

        def slowly(self: Any, state: Any) -> Any:
            time.sleep(hooks["slow"])
            return play(self, state)

        experiment.Experiment.play = slowly  # type: ignore[method-assign]


def run(command: dict[str, Any]) -> int:
    with Path(command["out"]).open("w") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    prepare(command["hooks"])
    sys.argv = ["shoal", *command["arguments"]]
    try:
        __main__.main()
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                code = run(json.loads(line))
            finally:
                os._exit(code)
        print(pid, file=answers, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)


if __name__ == "__main__":
    serve()
