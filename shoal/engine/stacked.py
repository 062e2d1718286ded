"""The stacked engine: the requests of many clients at once, where the model has a stacked form that gains by it.

Every program runs until it asks for something; equal-shaped requests are then answered in one stack, and so on until
the last program has ended. What cannot be stacked is done by the reference kernel, one request after another.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, deque
from collections.abc import Callable, Generator, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..data.dataset import Dataset
from ..messages import Job, Outcome
from ..models.base import Model
from ..requests import Evaluate, Fit, Gradient, Request
from .chain import Chain
from .columns import Memory
from .dense import dense_of
from .general import general_of
from .keys import evaluate_key, fit_key, gradient_key
from .looks import evaluate, gradient
from .orders import Orders
from .program import Running, Train, step
from .serial import Serial
from .stack import FitStack, Member, descends
from .tailored import tailored_of
from .workers import usable_cores

Kind = Callable[[Model], Chain | None]
"""What finds the stacked form of a model, where it is one of an architecture."""
WRITTEN: tuple[Kind, ...] = (dense_of, tailored_of)
"""What is written by hand, for a CPU."""
STACK_BYTES, STACK_BYTES_DEVICE = 2**20, 2**31
"""About how many bytes of parameters a stack has: on a CPU, where more fall out of the cache and fewer waste calls; and
on a GPU, where only memory is a limit, see `Stacked.together`."""

LIGHT = 8
"""How many times as large a stack may be whose steps write no gradients: they go through half of the memory, twice."""
THREADED_BYTES = 2**17
"""From so many bytes of parameters on, several threads work on the stacks of a CPU: those of smaller models are all
calls, and would wait for Python's lock."""


def kinds_of(device: torch.device, precision: str, stack: str) -> tuple[Kind, ...]:
    """What may be stacked, the best form first; ``stack`` is `Execution.stack`.

    What is written by hand is done in float32. NetTailor's tail calls larger convolutions for each client alone, which
    a GPU would be idle for: there it is one of any models.
    """
    general = partial(general_of, device=device)
    if precision != "float32":
        return (general,) if stack == "any" or device.type != "cpu" else ()
    if device.type != "cpu":
        return (partial(_dense_on, device=device), general)
    return (*WRITTEN, general) if stack == "any" else WRITTEN


def _dense_on(model: Model, device: torch.device) -> Chain | None:
    dense = dense_of(model)
    return None if dense is None else dense.on(device)


class Stacked(Serial):
    """Stacks of models that have a stacked form; measuring and everything else is the serial engine's."""

    def __init__(
        self,
        *args: Any,
        stack: str = "auto",
        kinds: tuple[Kind, ...] | None = None,
        workers: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.threads = workers or usable_cores()
        # It starts no thread before there is work. The number of torch threads is a setting of each thread.
        self._pool = ThreadPoolExecutor(self.threads, "shoal-stack", torch.set_num_threads, (1,))
        self._memory = Memory()
        kinds = kinds_of(self.device, self.precision, stack) if kinds is None else kinds
        found = {name: chain_of(model, kinds) for name, model in self.models.items()}
        self.chains: dict[str, Chain] = {name: chain for name, chain in found.items() if chain is not None}
        self.origin = _origin(self.dataset)
        self.fits: Counter[tuple[str, bool]] = Counter()
        """How many fits of each model were answered, in a stack or not."""
        self.stack_bytes = STACK_BYTES if self.device.type == "cpu" else STACK_BYTES_DEVICE
        self.most: dict[str, int] = {}
        """Of models for whose stacks memory was too small: how many clients a stack has at most since then."""
        self._remarks: list[str] = []

    def run(self, train: Train, jobs: Sequence[Job]) -> list[Outcome]:
        return list(self.stream(train, jobs, len(jobs)))

    def stream(self, train: Train, jobs: Sequence[Job], most: int) -> Generator[Outcome, None, None]:
        for begin in range(0, len(jobs), max(1, most)):
            programs = deque(Running(train, job) for job in jobs[begin : begin + max(1, most)])
            for _ in answering([(self, program) for program in programs], {}):
                while programs and programs[0].request is None:
                    yield programs.popleft().outcome()

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

    def together(self, programs: Sequence[Running], known: Orders) -> Generator[None, None, list[Running]]:
        """Answers these programs, whose requests have one key; ``known`` are the orders of rows drawn so far.

        Stops after each stack. Gives those that could not be answered: one client's fault, such as a label that its
        head does not have, must not be that of the others. Each of them is left to its own engine, see `alone`.
        """
        name = _model_of(programs[0].request)
        chain = self.chains[name]
        request = programs[0].request
        light = self.device.type == "cpu" and isinstance(request, Fit) and descends(chain, request)
        most = max(1, self.stack_bytes * (LIGHT if light else 1) // (4 * chain.space.size))
        left: list[Running] = []
        begin = 0
        most = self._shared(chain, len(programs), most)
        ahead = self._ahead(chain, programs, min(most, self.most.get(name, most)), known)
        while begin < len(programs):
            chosen = programs[begin : begin + min(most, self.most.get(name, most))]
            results: Sequence[Any] | None = None
            again = False
            try:
                given = ahead.pop((begin, len(chosen)), None)
                results = self._results(chain, chosen, known) if given is None else given.result()
            except torch.OutOfMemoryError:
                again = len(chosen) > 1
            except Exception:
                pass
            if results is None:
                # Not where the error is handled: it holds all that the stack held.
                for program in chosen:
                    if isinstance(program.request, Fit):  # it was free before, or there were no key
                        program.client.used.discard(program.request.purpose)
                if again:
                    self._shrink(name, len(chosen))
                    continue
                left += chosen
            else:
                for program, result in zip(chosen, results, strict=True):
                    if isinstance(program.request, Fit):
                        self.fits[program.request.start.model, True] += 1
                    program.give(result)
                yield
            begin += len(chosen)
        return left

    def _shared(self, chain: Chain, programs: int, most: int) -> int:
        """How many clients a stack has, so that as many stacks go to every thread; who is with whom changes no bit."""
        if not self._threaded(chain):
            return most
        return min(most, math.ceil(programs / (self.threads * math.ceil(programs / (self.threads * most)))))

    def _threaded(self, chain: Chain) -> bool:
        large = 4 * chain.space.size >= THREADED_BYTES
        return self.device.type == "cpu" and chain.threaded and large and self.threads > 1

    def _ahead(
        self, chain: Chain, programs: Sequence[Running], most: int, known: Orders
    ) -> dict[tuple[int, int], Future[Sequence[Any]]]:
        """The results of all stacks, by their first program and their size, where threads work on them."""
        if not self._threaded(chain) or len(programs) <= most:
            return {}
        stacks = {begin: programs[begin : begin + most] for begin in range(0, len(programs), most)}
        return {(b, len(s)): self._pool.submit(self._results, chain, s, known) for b, s in stacks.items()}

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _shrink(self, name: str, clients: int) -> None:
        """Stacks of half as many clients from now on, because memory was too small for these."""
        self.most[name] = clients // 2
        self._remarks.append(
            f"memory of {self.device} is too small for a stack of {clients} clients of model {name!r}: stacks have at "
            f"most {clients // 2} from now on"
        )
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def remarks(self) -> list[str]:
        found, self._remarks = self._remarks, []
        return found

    def _results(self, chain: Chain, programs: Sequence[Running], known: Orders) -> Sequence[Any]:
        kernel, requests = self._kernel, [program.request for program in programs]
        if isinstance(requests[0], Evaluate):
            return evaluate(kernel, chain, [r for r in requests if isinstance(r, Evaluate)])
        if isinstance(requests[0], Gradient):
            return gradient(kernel, chain, [r for r in requests if isinstance(r, Gradient)])
        pairs = zip(requests, programs, strict=True)
        members = [Member(r, p.client) for r, p in pairs if isinstance(r, Fit)]
        return FitStack(kernel, chain, members, known, self._memory).run()

    def describe(self) -> str:
        alone = {name for name in self.models if self.fits[name, False]} | (set(self.models) - set(self.chains))
        partly = {name for name in alone if self.fits[name, True]}
        others = "".join(
            f"; {', '.join(sorted(names))} {how}by the reference kernel"
            for names, how in ((alone - partly, ""), (partly, "partly "))
            if names
        )
        small = "".join(f"; at most {most} clients of {name} at once, for memory" for name, most in self.most.items())
        return f"stacked on {self.device}, {self.precision}{others}{small}"


def chain_of(model: Model, kinds: Sequence[Kind] = WRITTEN) -> Chain | None:
    """The stacked form of a model, the first that there is of these; ``None`` where there is none."""
    return next((chain for kind in kinds if (chain := kind(model)) is not None), None)


def answer_all(programs: Sequence[tuple[Stacked, Running]], known: Orders) -> None:
    """Runs programs, each with its engine, to their ends. ``known`` is filled with the orders of rows drawn."""
    for _ in answering(programs, known):
        pass


def answering(programs: Sequence[tuple[Stacked, Running]], known: Orders) -> Generator[None, None, None]:
    """`answer_all`, which stops where some programs may have ended, and at the end."""
    while waiting := [(engine, program) for engine, program in programs if program.request is not None]:
        groups: dict[Hashable, list[tuple[Stacked, Running]]] = {}
        for engine, program in waiting:
            key = engine.key(program)
            if key is None:
                engine.alone(program)
            else:
                groups.setdefault(key, []).append((engine, program))
        for group in groups.values():
            left = yield from group[0][0].together([program for _, program in group], known)
            for engine, program in group if left else ():
                if any(program is other for other in left):
                    engine.alone(program)
    yield


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
    return hashlib.sha256(values.cpu().contiguous().numpy().data).hexdigest()
