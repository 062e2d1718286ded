"""The stacked engine: the requests of many clients at once, where the model is dense.

Every program runs until it asks for something; equal-shaped requests are then answered in one stack, and so on until
the last program has ended. What cannot be stacked is done by the reference kernel, one request after another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from typing import Any

from torch import Tensor

from ..data.dataset import Dataset
from ..messages import Job, Outcome
from ..requests import Evaluate, Fit, Gradient, Request
from .dense import Dense, dense_of
from .keys import evaluate_key, fit_key, gradient_key
from .looks import evaluate, gradient
from .orders import Orders
from .program import Running, Train, step
from .serial import Serial
from .stack import FitStack, Member


class Stacked(Serial):
    """Stacks of dense models; measuring and everything else is the serial engine's."""

    stack_bytes: int = 2**20
    """About how many bytes of parameters a stack has; more fall out of the cache, fewer waste calls."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        plain = self.device.type == "cpu" and self.precision == "float32"
        found = {name: dense_of(model) if plain else None for name, model in self.models.items()}
        self.dense: dict[str, Dense] = {name: dense for name, dense in found.items() if dense is not None}
        self.origin = _origin(self.dataset)

    def run(self, train: Train, jobs: Sequence[Job]) -> list[Outcome]:
        programs = [Running(train, job) for job in jobs]
        answer_all([(self, program) for program in programs], {})
        return [program.outcome() for program in programs]

    def key(self, program: Running) -> Hashable | None:
        """Programs with equal keys, of any engine, may be answered in one stack; ``None``: this one is on its own."""
        dense = self.dense.get(_model_of(program.request))
        if dense is None or program.job.crash:
            return None
        try:
            found = self._key(dense, program)
            hash(found)
        except Exception:  # whatever is wrong with a request, the reference kernel says what, and to this client alone
            return None
        return None if found is None else (dense.signature, self.origin, found)

    def _key(self, dense: Dense, program: Running) -> Hashable | None:
        request = program.request
        if isinstance(request, Fit):
            return None if request.purpose in program.client.used else fit_key(self._kernel, dense, request)
        if isinstance(request, Evaluate):
            return evaluate_key(self._kernel, dense, request)
        return gradient_key(self._kernel, dense, request) if isinstance(request, Gradient) else None

    def alone(self, program: Running) -> None:
        """Answers one program by the reference kernel."""
        step(self._kernel, program)

    def together(self, programs: Sequence[Running], known: Orders) -> list[Running]:
        """Answers these programs, whose requests have one key; ``known`` are the orders of rows drawn so far.

        Gives those that could not be answered: one client's fault, such as a label that its head does not have, must
        not be that of the others. Each of them is left to its own engine, see `alone`.
        """
        dense = self.dense[_model_of(programs[0].request)]
        most = max(1, self.stack_bytes // (4 * dense.space.size))
        left: list[Running] = []
        for begin in range(0, len(programs), most):
            chosen = programs[begin : begin + most]
            try:
                results = self._results(dense, chosen, known)
            except Exception:
                for program in chosen:
                    if isinstance(program.request, Fit):  # it was free before, or there were no key
                        program.client.used.discard(program.request.purpose)
                left += chosen
                continue
            for program, result in zip(chosen, results, strict=True):
                program.give(result)
        return left

    def _results(self, dense: Dense, programs: Sequence[Running], known: Orders) -> Sequence[Any]:
        kernel, requests = self._kernel, [program.request for program in programs]
        if isinstance(requests[0], Evaluate):
            return evaluate(kernel, dense, [r for r in requests if isinstance(r, Evaluate)])
        if isinstance(requests[0], Gradient):
            return gradient(kernel, dense, [r for r in requests if isinstance(r, Gradient)])
        pairs = zip(requests, programs, strict=True)
        return FitStack(kernel, dense, [Member(r, p.client) for r, p in pairs if isinstance(r, Fit)], known).run()

    def describe(self) -> str:
        left = sorted(set(self.models) - set(self.dense))
        others = f"; {', '.join(left)} by the reference kernel" if left else ""
        return f"stacked on {self.device}, {self.precision}{others}"


def answer_all(programs: Sequence[tuple[Stacked, Running]], known: Orders) -> None:
    """Runs programs, each with its engine, to their ends. ``known`` is filled with the orders of rows drawn."""
    while waiting := [(engine, program) for engine, program in programs if program.request is not None]:
        groups: dict[Hashable, list[tuple[Stacked, Running]]] = {}
        for engine, program in waiting:
            key = engine.key(program)
            if key is None:
                engine.alone(program)
            else:
                groups.setdefault(key, []).append((engine, program))
        for group in groups.values():
            left = group[0][0].together([program for _, program in group], known)
            for engine, program in group if left else ():
                if any(program is other for other in left):
                    engine.alone(program)


def _model_of(request: Request | None) -> str:
    """The architecture that a request is about; empty where it is about none."""
    if isinstance(request, Fit):
        return request.start.model
    if isinstance(request, Gradient):
        return request.at.model
    return request.models[0].model if isinstance(request, Evaluate) and request.models else ""


def _origin(data: Dataset) -> Hashable:
    """What tells apart data sets whose rows give other batches; equal for the data of two runs of one sweep."""
    tensors = (data.targets, data.label_maps, data.values, data.scale, data.offset)
    return (
        data.fingerprint,
        data.features.data_ptr(),
        data.transforms,
        data.peak,
        *(None if t is None else _digest(t) for t in tensors),
    )


def _digest(values: Tensor) -> str:
    return hashlib.sha256(values.contiguous().numpy().data).hexdigest()
