"""Which requests may share a stack: those with equal keys. ``None``: only the reference kernel can do it.

A key holds everything in which requests of one stack must agree. What is not written here may differ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..losses import has_derivative, loss_of
from ..records import changed
from ..requests import Evaluate, Fit, Gradient, Optimizer
from .chain import Chain, is_vector
from .columns import KNOWN_TERMS
from .kernel import EVALUATION_ROWS, Kernel
from .orders import padded
from .plan import total_steps


def fit_key(kernel: Kernel, chain: Chain, fit: Fit) -> Hashable | None:
    """The key of a fit."""
    args = _arguments(fit.loss or kernel.loss, fit.loss_args)
    if args is None or fit.augment or not (chain.holds(fit.start) and _readable(kernel, chain, fit.rows)):
        return None
    if total_steps(len(fit.rows), fit.batch, fit.epochs, fit.steps, chain.coupled) < 1:
        return None
    slots = fit.slots or {}
    vectors = [fit.anchor, fit.since, *(value for name, value in slots.items() if name != "steps")]
    if not all(vector is None or is_vector(vector, chain.space.size) for vector in vectors):
        return None
    terms = tuple([_term_key(term, chain.space.size) for term in fit.terms])
    optimizer = _optimizer_key(fit.optimizer)
    if None in terms or optimizer is None:
        return None
    own = not all(isinstance(term, KNOWN_TERMS) for term in fit.terms)
    steps = None if fit.slots is None else int(slots.get("steps", torch.tensor(0)))
    kept = None if fit.slots is None else (*sorted(slots), steps)
    # Without padding all batches of a step are of one size.
    size = (batch_size(chain, fit), len(fit.rows) if chain.exact else None)
    return (
        (size, fit.segments, args, fit.anchor is None, kept),
        # A term that we do not know is given the learning rate as the number that it expects.
        (terms, fit.optimizer.lr if own else None, optimizer),
    )


def batch_size(chain: Chain, fit: Fit) -> int:
    """How many rows a batch of this fit has in a stack, padding included."""
    return min(fit.batch, len(fit.rows)) if chain.exact else padded(len(fit.rows), fit.batch, chain.row_step)


def _optimizer_key(optimizer: Optimizer) -> Hashable | None:
    numbers = (optimizer.lr, optimizer.momentum, optimizer.weight_decay)
    if not all(_is_number(n) for n in numbers) or not (optimizer.clip is None or _is_number(optimizer.clip)):
        return None
    rest = changed(optimizer, lr=0.0, momentum=0.0, weight_decay=0.0, clip=None)
    return (rest, bool(optimizer.momentum), bool(optimizer.weight_decay), optimizer.clip is None)


def _term_key(term: Any, size: int) -> Hashable | None:
    """A term is stacked if it is a frozen record of vectors and numbers: one that can change may count its steps."""
    kind = type(term)
    if not dataclasses.is_dataclass(kind) or not kind.__dataclass_params__.frozen or hasattr(kind, "__post_init__"):  # type: ignore[attr-defined]
        return None
    if not hasattr(term, "__dict__"):  # one with slots cannot be copied by its fields
        return None
    known = isinstance(term, KNOWN_TERMS)
    kinds: list[Hashable] = []
    for name, value in vars(term).items():
        if isinstance(value, Tensor) and value.shape == (size,) and value.device.type == "cpu":
            kinds.append((name, value.dtype))
        elif _is_number(value):
            kinds.append((name, None if known else value))
        else:
            return None
    return (kind, tuple(kinds))


def evaluate_key(kernel: Kernel, chain: Chain, request: Evaluate) -> Hashable | None:
    """The key of a request for scores."""
    if not (chain.has_scores and _readable(kernel, chain, request.rows) and all(map(chain.holds, request.models))):
        return None
    if any(served.model != request.models[0].model for served in request.models):
        return None
    args = _arguments(request.loss or kernel.loss, measured_with(kernel, request))
    sizes = block_sizes(len(request.rows), EVALUATION_ROWS, chain)
    return None if args is None else ("evaluate", args, len(request.models), sizes)


def measured_with(kernel: Kernel, request: Evaluate) -> Mapping[str, Any]:
    """The loss's arguments in a measurement: the run's own loss has those that it is trained with."""
    return kernel.loss_args if request.loss in (None, kernel.loss) else {}


def gradient_key(kernel: Kernel, chain: Chain, request: Gradient) -> Hashable | None:
    """The key of a request for a gradient."""
    if not (chain.has_gradients and _readable(kernel, chain, request.rows) and chain.holds(request.at)):
        return None
    if request.per not in ("row", "batch") or request.power not in (1, 2) or request.batch < 1:
        return None
    args = _arguments(request.loss or kernel.loss, request.loss_args)
    most = most_rows(request)
    sizes = block_sizes(len(request.rows), most, chain)
    return None if args is None else ("gradient", args, request.power, request.per, most, sizes)


def most_rows(request: Gradient) -> int:
    """How many rows are done at once."""
    return request.batch if request.per == "batch" else EVALUATION_ROWS


def block_sizes(rows: int, most: int, chain: Chain) -> tuple[int, ...]:
    """How many rows, padding included, are done at once when at most ``most`` real ones may be."""
    full, rest = divmod(rows, most)
    last = (padded(rest, most, chain.row_step),) if rest else ()
    return (padded(most, most, chain.row_step),) * full + last


def _arguments(loss: str, args: Mapping[str, Any]) -> Hashable | None:
    """The loss and its arguments, if it has a derivative for several models at once and they are plain numbers.

    Without one a loss is somebody's own, and may look across the rows of a batch.
    """
    if not has_derivative(loss_of(loss)) or not all(isinstance(value, float | int) for value in args.values()):
        return None
    return (loss, tuple(sorted(args.items())))


def _readable(kernel: Kernel, chain: Chain, rows: Tensor) -> bool:
    return rows.dim() == 1 and rows.dtype == torch.int64 and len(rows) > 0 and chain.reads(kernel, rows)


def _is_number(value: Any) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool)
