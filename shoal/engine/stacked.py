"""The stacked engine: the requests of many clients at once, where the model is dense, or a tail that is tailored.

Every program runs until it asks for something; equal-shaped requests are then answered in one stack, and so on until
the last program has ended. What cannot be stacked is done by the reference kernel, one request after another.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from torch import Tensor

from ..data.dataset import Dataset
from ..messages import Job, Outcome
from ..models.base import Model
from ..requests import Evaluate, Fit, Gradient, Request
from .chain import Chain
from .dense import dense_of
from .keys import evaluate_key, fit_key, gradient_key
from .looks import evaluate, gradient
from .orders import Orders
from .program import Running, Train, step
from .serial import Serial
from .stack import FitStack, Member
from .tailored import tailored_of

KINDS: tuple[Callable[[Model], Chain | None], ...] = (dense_of, tailored_of)
"""What finds the stacked form of a model, each of one kind of architecture."""


class Stacked(Serial):
    """Stacks of models that have a stacked form; measuring and everything else is the serial engine's."""

    stack_bytes: int = 2**20
    """About how many bytes of parameters a stack has; more fall out of the cache, fewer waste calls."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        plain = self.device.type == "cpu" and self.precision == "float32"
        found = {name: chain_of(model) if plain else None for name, model in self.models.items()}
        self.chains: dict[str, Chain] = {name: chain for name, chain in found.items() if chain is not None}
        self.origin = _origin(self.dataset)
        self.fits: Counter[tuple[str, bool]] = Counter()
        """How many fits of each model were answered, in a stack or not."""

    def run(self, train: Train, jobs: Sequence[Job]) -> list[Outcome]:
        programs = [Running(train, job) for job in jobs]
        answer_all([(self, program) for program in programs], {})
        return [program.outcome() for program in programs]

    def key(self, program: Running) -> Hashable | None:
        """Programs with equal keys, of any engine, may be answered in one stack; ``None``: this one is on its own."""
        chain = self.chains.get(_model_of(program.request))
        if chain is None or program.job.crash:
            return None
        try:
            found = self._key(chain, program)
            # Models of one signature may take rows of several shapes.
            row = None if found is None else self.dataset.row_shape(program.request.rows)  # type: ignore[union-attr]
            hash(found)
        except Exception:  # whatever is wrong with a request, the reference kernel says what, and to this client alone
            return None
        return None if found is None else (chain.signature, self.origin, found, row)

    def _key(self, chain: Chain, program: Running) -> Hashable | None:
        request = program.request
        if isinstance(request, Fit):
            return None if request.purpose in program.client.used else fit_key(self._kernel, chain, request)
        if isinstance(request, Evaluate):
            return evaluate_key(self._kernel, chain, request)
        return gradient_key(self._kernel, chain, request) if isinstance(request, Gradient) else None

    def alone(self, program: Running) -> None:
        """Answers one program by the reference kernel."""
        if isinstance(program.request, Fit) and not program.job.crash:
            self.fits[program.request.start.model, False] += 1
        step(self._kernel, program)

    def together(self, programs: Sequence[Running], known: Orders) -> list[Running]:
        """Answers these programs, whose requests have one key; ``known`` are the orders of rows drawn so far.

        Gives those that could not be answered: one client's fault, such as a label that its head does not have, must
        not be that of the others. Each of them is left to its own engine, see `alone`.
        """
        chain = self.chains[_model_of(programs[0].request)]
        most = max(1, self.stack_bytes // (4 * chain.space.size))
        left: list[Running] = []
        for begin in range(0, len(programs), most):
            chosen = programs[begin : begin + most]
            try:
                results = self._results(chain, chosen, known)
            except Exception:
                for program in chosen:
                    if isinstance(program.request, Fit):  # it was free before, or there were no key
                        program.client.used.discard(program.request.purpose)
                left += chosen
                continue
            for program, result in zip(chosen, results, strict=True):
                if isinstance(program.request, Fit):
                    self.fits[program.request.start.model, True] += 1
                program.give(result)
        return left

    def _results(self, chain: Chain, programs: Sequence[Running], known: Orders) -> Sequence[Any]:
        kernel, requests = self._kernel, [program.request for program in programs]
        if isinstance(requests[0], Evaluate):
            return evaluate(kernel, chain, [r for r in requests if isinstance(r, Evaluate)])
        if isinstance(requests[0], Gradient):
            return gradient(kernel, chain, [r for r in requests if isinstance(r, Gradient)])
        pairs = zip(requests, programs, strict=True)
        return FitStack(kernel, chain, [Member(r, p.client) for r, p in pairs if isinstance(r, Fit)], known).run()

    def describe(self) -> str:
        alone = {name for name in self.models if self.fits[name, False]} | (set(self.models) - set(self.chains))
        partly = {name for name in alone if self.fits[name, True]}
        others = "".join(
            f"; {', '.join(sorted(names))} {how}by the reference kernel"
            for names, how in ((alone - partly, ""), (partly, "partly "))
            if names
        )
        return f"stacked on {self.device}, {self.precision}{others}"


def chain_of(model: Model) -> Chain | None:
    """The stacked form of a model; ``None`` where there is none."""
    return next((chain for kind in KINDS if (chain := kind(model)) is not None), None)


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
    parts = (data,) if data.members is None else data.members.parts
    tensors = (data.targets, data.label_maps, data.values, *(t for part in parts for t in (part.scale, part.offset)))
    return (
        data.fingerprint,
        tuple(part.features.data_ptr() for part in parts),
        data.transforms,
        data.peak,
        *(None if t is None else _digest(t) for t in tensors),
    )


def _digest(values: Tensor) -> str:
    return hashlib.sha256(values.contiguous().numpy().data).hexdigest()
