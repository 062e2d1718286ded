"""Drives one client program: sends each request to the kernel and the answer back to the program."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..bank import Buffers
from ..messages import Assignment, Client, Failure, Job, Outcome, Update
from ..requests import Evaluate, Fit, FitResult, Gradient, Probe, Score
from .kernel import Kernel, SimulatedCrash

Train = Callable[[Assignment, Client], Any]
"""`Method.train`: a generator function, or a plain function that gives the update."""
_NOTHING = torch.empty(0)


class Stopped(Exception):
    """The run was interrupted; the round is given up."""


def run_job(kernel: Kernel, train: Train, job: Job, stopped: Callable[[], bool] = lambda: False) -> Outcome:
    """What one client answers. An exception of its program becomes a `Failure` that names it."""
    began = time.perf_counter()
    fits: list[FitResult] = []
    probes: list[tuple[str, Score]] = []
    # A copy of its own, so that a job can be run twice: purposes may be used once per program.
    client = replace(job.client, used=set())
    answer: Update | Failure
    try:
        program = train(job.given, client)
        if isinstance(program, Generator):
            answer = _drive(kernel, program, job, client, fits, probes, stopped)
        else:
            answer = program
        if not isinstance(answer, Update):
            raise TypeError(f"train must give an Update; got {type(answer).__name__}")
        if job.crash:  # a fit would have crashed half-way
            raise SimulatedCrash("simulated crash of a client that trained nothing")
    except Stopped:
        raise
    except (Exception, SystemExit) as error:  # a client may fail in any way; the round goes on without it
        answer = Failure(describe_error(error))
    return Outcome(job.client.id, answer, tuple(fits), tuple(probes), time.perf_counter() - began)


def _drive(
    kernel: Kernel,
    program: Generator[Any, Any, Any],
    job: Job,
    client: Client,
    fits: list[FitResult],
    probes: list[tuple[str, Score]],
    stopped: Callable[[], bool],
) -> Any:
    result: Any = None
    while True:
        if stopped():
            program.close()
            raise Stopped
        try:
            request = program.send(result)
        except StopIteration as stop:
            return stop.value
        if isinstance(request, Fit):
            result = kernel.fit(request, client, crash=job.crash)
            fits.append(replace(result, vector=_NOTHING, buffers=Buffers(), slots=None))
        elif isinstance(request, Evaluate):
            result = kernel.evaluate(request.models, request.rows, request.loss)
        elif isinstance(request, Gradient):
            result = kernel.gradient(request)
        elif isinstance(request, Probe):
            probes.append((request.label, kernel.evaluate((request.model,), job.test)[0]))
            result = None
        else:
            raise TypeError(f"a program may yield Fit, Evaluate, Gradient or Probe; got {type(request).__name__}")


def describe_error(error: BaseException) -> str:
    """The error with the place where it was raised, without machine paths (they differ between machines)."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"
