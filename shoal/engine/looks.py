"""Stacked requests that train nothing: scores and gradients of many clients at once.

As in a stack of fits, rows are padded with weight 0 to a size that depends on the client alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import torch
from torch import Tensor

from ..data.dataset import inputs
from ..losses import has_derivative, loss_of
from ..requests import Evaluate, Gradient, Score
from .dense import Dense
from .kernel import EVALUATION_ROWS, Kernel
from .stack import ROW_STEP, stacked


def evaluate_key(kernel: Kernel, dense: Dense, request: Evaluate) -> Hashable | None:
    """Requests with equal keys may share a stack; ``None``: only the reference kernel can do it."""
    name = request.models[0].model
    if not len(request.rows) or any(m.model != name or not _fits(dense, m.vector) for m in request.models):
        return None
    if any(m.constants for m in request.models):
        return None
    return ("evaluate", request.loss or kernel.loss, str(kernel.loss_args), len(request.models), _size(request.rows))


def gradient_key(kernel: Kernel, dense: Dense, request: Gradient) -> Hashable | None:
    """The same for gradients."""
    plain = all(isinstance(value, float | int) for value in request.loss_args.values())
    closed = has_derivative(loss_of(request.loss or kernel.loss))
    if not (len(request.rows) and plain and closed and _fits(dense, request.at.vector)) or request.at.constants:
        return None
    if request.per not in ("row", "batch") or request.power not in (1, 2):
        return None
    args = tuple(sorted(request.loss_args.items()))
    shape = (request.power, request.per, request.batch if request.per == "batch" else None, _size(request.rows))
    return ("gradient", request.loss or kernel.loss, args, shape)


def _fits(dense: Dense, vector: Tensor) -> bool:
    return vector.shape == (dense.space.size,)


def _size(rows: Tensor) -> int:
    return -(-len(rows) // ROW_STEP) * ROW_STEP


class _Rows:
    """The rows of several clients, padded to one size with the client's own first row."""

    def __init__(self, kernel: Kernel, dense: Dense, rows: Sequence[Tensor]) -> None:
        self.kernel = kernel
        self.dense = dense
        self.counts = [len(own) for own in rows]
        self.size = _size(rows[0])
        self.rows = torch.stack([torch.cat([own, own[:1].expand(self.size - len(own))]) for own in rows])
        self.real = torch.arange(self.size) < torch.tensor(self.counts)[:, None]

    def blocks(self, most: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Inputs ``[clients, n, features]``, targets, and which rows are real, ``most`` rows of each client at once."""
        data = self.kernel.dataset
        for begin in range(0, self.size, most):
            rows = self.rows[:, begin : begin + most]
            flat = rows.reshape(-1)
            x, y = self.dense.lead(inputs(data.batch(flat)).flatten(1)), data.wanted(flat)
            yield x.view(*rows.shape, -1), y.view(*rows.shape, *y.shape[1:]), self.real[:, begin : begin + most]


@torch.no_grad()
def evaluate(kernel: Kernel, dense: Dense, requests: Sequence[Evaluate]) -> list[list[Score]]:
    """The scores of each request's models on its rows."""
    loss = loss_of(requests[0].loss or kernel.loss)
    args = kernel.loss_args if requests[0].loss in (None, kernel.loss) else {}
    rows = _Rows(kernel, dense, [request.rows for request in requests])
    count = len(requests[0].models)
    vectors = [stacked([request.models[k].vector for request in requests]) for k in range(count)]
    sums = torch.zeros(2, count, len(requests), dtype=torch.float64)
    for x, y, real in rows.blocks(EVALUATION_ROWS):
        for k in range(count):
            outputs = dense.forward(vectors[k], x)
            scores = loss.score(outputs.flatten(0, 1), y.flatten(0, 1), **args)
            for i, each in enumerate(scores):
                # Not a product: a row of padding may be infinite, and 0 times that is no number.
                sums[i, k] += each.view(real.shape).double().masked_fill(~real, 0.0).sum(1)
    found = (sums / torch.tensor(rows.counts, dtype=torch.float64)).tolist()
    return [[Score(found[0][k][c], found[1][k][c], n) for k in range(count)] for c, n in enumerate(rows.counts)]


@torch.no_grad()
def gradient(kernel: Kernel, dense: Dense, requests: Sequence[Gradient]) -> list[Tensor]:
    """The gradient that each request asks for."""
    first = requests[0]
    loss = loss_of(first.loss or kernel.loss)
    rows = _Rows(kernel, dense, [request.rows for request in requests])
    vectors = stacked([request.at.vector for request in requests])
    result = torch.zeros(len(requests), dense.space.size)
    part = torch.zeros_like(result)
    by_row = first.per == "row"
    for x, y, real in rows.blocks(EVALUATION_ROWS if by_row else first.batch):
        kept: list[Tensor] = []
        _, d = loss.derivative(dense.forward(vectors, x, (), kept), y, **first.loss_args)
        d.masked_fill_(~real.unsqueeze(-1), 0.0)
        counts = real.sum(1, keepdim=True)
        if not by_row:
            d.div_(counts.clamp(min=1).unsqueeze(-1))
        dense.backward(vectors, part, kept, d, power=first.power if by_row else 1)
        if by_row:
            result.add_(part)
        else:
            result.addcmul_(part if first.power == 1 else part.pow(first.power), counts.to(part.dtype))
    return list(result.div_(torch.tensor(rows.counts)[:, None]))
