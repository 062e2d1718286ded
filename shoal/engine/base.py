"""`Engine`: who runs the jobs of a round."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..data.dataset import Dataset
from ..errors import ConfigError
from ..messages import Job, Outcome
from ..models.base import Model
from ..requests import Score, Served
from .kernel import Kernel
from .program import Train

Pair = tuple[Sequence[Served], Tensor]
"""Models to be measured, and the rows to measure them on."""


class Engine:
    """Runs jobs and measures models. Knows no method: it is given ``method.train``.

    The answers come in the order of the jobs, and their bits do not depend on the engine's size.
    """

    companions: int = 1
    """How many runs are played at the same time, this one included."""
    workers: int = 1
    """How many clients are trained at the same time, each by a kernel of its own."""

    def __init__(
        self,
        models: Mapping[str, Model],
        dataset: Dataset,
        device: torch.device,
        precision: str = "float32",
        loss: str = "cross_entropy",
        loss_args: Mapping[str, Any] | None = None,
    ) -> None:
        self.models = models
        self.dataset = dataset.to(device)
        self.device = device
        self.precision = precision
        self.loss = loss
        self.loss_args = loss_args

    def kernel(self) -> Kernel:
        """A new kernel, for one thread."""
        return Kernel(self.models, self.dataset, self.device, self.precision, self.loss, self.loss_args)

    def run(self, train: Train, jobs: Sequence[Job]) -> list[Outcome]:
        """The outcome of each job, in the order of the jobs."""
        raise NotImplementedError

    def stream(self, train: Train, jobs: Sequence[Job], most: int) -> Generator[Outcome, None, None]:
        """`run` one after another: an outcome may be worked on while others are still being trained. At most about
        ``most`` of them are there and not yet taken. Whoever stops taking them closes the iterator."""
        for begin in range(0, len(jobs), max(1, most)):
            yield from self.run(train, jobs[begin : begin + max(1, most)])

    def score(self, pairs: Sequence[Pair], metrics: Sequence[str] = ()) -> list[list[Score]]:
        """The scores of each pair's models on its rows, with these metrics, in evaluation mode. Changes nothing."""
        raise NotImplementedError

    def forget(self) -> None:
        """Drops what is kept to save work alone; no number of the run depends on it. Only between two calls."""

    def close(self) -> None:
        """Ends the engine's threads."""

    def remarks(self) -> list[str]:
        """What happened since this was last asked that the user should know; changes no number."""
        return []

    def describe(self) -> str:
        """For ``summary.json``: the kind, device and precision. Not the size, which no number depends on."""
        raise NotImplementedError


@contextlib.contextmanager
def one_torch_thread() -> Iterator[None]:
    """Pins torch to one thread. With two, sums are split differently and results lose their last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def find_device(name: str) -> torch.device:
    """The torch device of this name; raises `ConfigError` if this machine or this build of torch has none."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"execution.device: torch knows no device {name!r}; use cpu, cuda or cuda:0") from None
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise ConfigError(
                f"execution.device: {name!r} asked for, but torch {torch.__version__} sees {count} CUDA devices; "
                f"use device: cpu, or install a CUDA build of torch (TORCH= in the Makefile)"
            )
    elif device.type != "cpu":
        raise ConfigError(f"execution.device: {name!r} is not supported; use cpu or cuda")
    return device
