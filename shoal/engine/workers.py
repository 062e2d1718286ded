"""The workers engine: persistent threads, each with a resident kernel and one torch thread.

torch releases the interpreter's lock inside its operations, so two threads train a convolutional network 1.9
times as fast as one. The bits are the serial engine's: every job runs alone in one thread.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from ..messages import Job, Outcome
from ..requests import Score, Served
from .base import Engine, Pair
from .kernel import Kernel
from .program import Train, run_job


class Workers(Engine):
    """``workers`` threads; ``None`` is one per core that this process may use."""

    def __init__(self, *args: Any, workers: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.workers = workers or usable_cores()
        self._local = threading.local()
        self._kernels: list[Kernel] = []
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(self.workers, thread_name_prefix="shoal", initializer=self._start)

    def _start(self) -> None:
        # The number of torch threads is a setting of each thread.
        torch.set_num_threads(1)
        self._local.kernel = self.kernel()
        self._kernels.append(self._local.kernel)

    def _own(self) -> Kernel:
        kernel = self._local.kernel
        assert isinstance(kernel, Kernel)
        return kernel

    def _run(self, train: Train, job: Job) -> Outcome:
        return run_job(self._own(), train, job, self._stop.is_set)

    def _score(self, models: Sequence[Served], rows: Tensor, metrics: Sequence[str]) -> list[Score]:
        return self._own().evaluate(models, rows, metrics=metrics)

    def run(self, train: Train, jobs: Sequence[Job]) -> list[Outcome]:
        return list(self.stream(train, jobs, len(jobs)))

    def stream(self, train: Train, jobs: Sequence[Job], most: int) -> Generator[Outcome, None, None]:
        left = iter(jobs)
        futures = deque(self._pool.submit(self._run, train, job) for job in itertools.islice(left, max(1, most)))
        with self._given_up_together(futures):
            while futures:
                outcome = futures[0].result()
                futures.popleft()
                futures += [self._pool.submit(self._run, train, job) for job in itertools.islice(left, 1)]
                yield outcome

    def score(self, pairs: Sequence[Pair], metrics: Sequence[str] = ()) -> list[list[Score]]:
        futures = [self._pool.submit(self._score, models, rows, metrics) for models, rows in pairs]
        with self._given_up_together(futures):
            return [future.result() for future in futures]

    @contextlib.contextmanager
    def _given_up_together(self, futures: Iterable[Future[Any]]) -> Iterator[None]:
        """Where one is given up, by an interrupt or because nobody takes any more, all are."""
        try:
            yield
        except BaseException:
            # The round is given up, but the threads stay fit for the next one.
            self._stop.set()
            for future in futures:
                future.cancel()
            for future in futures:
                if not future.cancelled():
                    future.exception()  # waits for it
            self._stop.clear()
            raise

    def forget(self) -> None:
        for kernel in self._kernels:
            kernel.forget()

    def close(self) -> None:
        self._stop.set()
        self._pool.shutdown(cancel_futures=True)

    def describe(self) -> str:
        return f"workers on {self.device}, {self.precision}"


def usable_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
