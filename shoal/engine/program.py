"""Drives client programs: sends each request to a kernel and the answer back to the program."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import torch

from ..bank import Buffers
from ..messages import Assignment, Client, Failure, Job, Outcome, Update
from ..records import changed
from ..requests import Evaluate, Fit, FitResult, Gradient, Probe, Request, Score
from .answers import check_answer
from .kernel import Kernel, SimulatedCrash

Train = Callable[[Assignment, Client], Any]
"""`Method.train`: a generator function, or a plain function that gives the update."""
_NOTHING, _NO_BUFFERS = torch.empty(0), Buffers()


class Stopped(Exception):
    """The run was interrupted; the round is given up."""


class Running:
    """One client program while it runs: what it asks for, and at its end what it answered.

    An exception of the program, or of what it asked for, becomes a `Failure` that names it: a client may fail in
    any way, and the round goes on without it.
    """

    def __init__(self, train: Train, job: Job) -> None:
        self.job = job
        # A copy of its own, so that a job can be run twice: purposes may be used once per program.
        self.client = changed(job.client, used=set())
        self.request: Request | None = None
        """What the program waits for; ``None`` when it has ended."""
        self._answer: Update | Failure | None = None
        self._fits: list[FitResult] = []
        self._probes: list[tuple[str, Score]] = []
        self._program: Generator[Any, Any, Any] | None = None
        self._began = time.perf_counter()
        try:
            self._begin(train)
        except (Exception, SystemExit) as error:
            self.fail(error)

    def _begin(self, train: Train) -> None:
        program = train(self.job.given, self.client)
        if isinstance(program, Generator):
            self._program = program
            self._advance(None)
        else:
            self._end(program)

    def _advance(self, result: Any) -> None:
        assert self._program is not None
        try:
            asked = self._program.send(result)
        except StopIteration as stop:
            self._end(stop.value)
            return
        if not isinstance(asked, Fit | Evaluate | Gradient | Probe):
            raise TypeError(f"a program may yield Fit, Evaluate, Gradient or Probe; got {type(asked).__name__}")
        self.request = asked

    def _end(self, answer: Any) -> None:
        self.request = None
        check_answer(answer)
        if self.job.crash:  # a fit would have crashed half-way
            raise SimulatedCrash("simulated crash of a client that trained nothing")
        self._answer = answer

    def give(self, result: Any) -> None:
        """The answer to the request; the program goes on to its next one."""
        if isinstance(result, FitResult):
            self._fits.append(changed(result, vector=_NOTHING, buffers=_NO_BUFFERS, slots=None))
        if isinstance(self.request, Probe):
            self._probes.append((self.request.label, result[0]))
            result = None
        try:
            self._advance(result)
        except (Exception, SystemExit) as error:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Ends the program with this error."""
        self.request = None
        self._answer = Failure(describe_error(error))
        self.close()

    def close(self) -> None:
        """Ends the program early."""
        if self._program is not None:
            with contextlib.suppress(Exception):  # what a program does while it is closed is of no interest
                self._program.close()

    def outcome(self) -> Outcome:
        """What the client answered, and what was seen on the way."""
        assert self._answer is not None
        seconds = time.perf_counter() - self._began
        return Outcome(self.job.client.id, self._answer, tuple(self._fits), tuple(self._probes), seconds)


def run_job(kernel: Kernel, train: Train, job: Job, stopped: Callable[[], bool] = lambda: False) -> Outcome:
    """What one client answers."""
    program = Running(train, job)
    while program.request is not None:
        if stopped():
            program.close()
            raise Stopped
        step(kernel, program)
    return program.outcome()


def step(kernel: Kernel, program: Running) -> None:
    """Does what one program asks for on the kernel, and gives it the answer."""
    try:
        result = answered(kernel, program)
    except (Exception, SystemExit) as error:
        program.fail(error)
    else:
        program.give(result)


def answered(kernel: Kernel, program: Running) -> Any:
    """The kernel's answer to what a program asks for."""
    request = program.request
    if isinstance(request, Fit):
        return kernel.fit(request, program.client, crash=program.job.crash)
    if isinstance(request, Evaluate):
        return kernel.evaluate(request.models, request.rows, request.loss)
    if isinstance(request, Gradient):
        return kernel.gradient(request)
    assert isinstance(request, Probe)
    return kernel.evaluate((request.model,), program.job.test)


def describe_error(error: BaseException) -> str:
    """The error with the place where it was raised, without machine paths (they differ between machines)."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"
