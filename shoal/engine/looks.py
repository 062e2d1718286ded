"""Stacked requests that train nothing: scores and gradients of many clients at once.

As in a stack of fits, rows are padded with weight 0 to a size that depends on the client alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..data.dataset import inputs
from ..losses import loss_of
from ..requests import Evaluate, Gradient, Score
from .columns import blank, stacked
from .dense import Dense
from .kernel import EVALUATION_ROWS, Kernel
from .keys import block_sizes, measured_with, most_rows


class _Rows:
    """The rows of several clients in blocks of equal sizes, each padded with its client's last row."""

    def __init__(self, kernel: Kernel, dense: Dense, rows: Sequence[Tensor]) -> None:
        self.kernel = kernel
        self.dense = dense
        self.rows = rows
        self.counts = [len(own) for own in rows]

    def blocks(self, most: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Inputs ``[clients, n, features]``, targets, and which rows are real, ``most`` rows of each client at once."""
        data = self.kernel.dataset
        for i, size in enumerate(block_sizes(self.counts[0], most, self.dense)):
            counts = torch.tensor([min(most, count - i * most) for count in self.counts])
            place = torch.arange(size)
            rows = torch.stack(
                [own[i * most + place.clamp(max=min(most, len(own) - i * most) - 1)] for own in self.rows]
            )
            flat = rows.reshape(-1)
            x, y = inputs(data.batch(flat)).flatten(1).view(*rows.shape, -1), data.wanted(flat)
            yield self.dense.lead(x), y.view(*rows.shape, *y.shape[1:]), place < counts[:, None]


@torch.no_grad()
def evaluate(kernel: Kernel, dense: Dense, requests: Sequence[Evaluate]) -> list[list[Score]]:
    """The scores of each request's models on its rows."""
    loss = loss_of(requests[0].loss or kernel.loss)
    args = measured_with(kernel, requests[0])
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
    result = blank(len(requests), dense.space.size)
    part = blank(len(requests), dense.space.size)
    by_row = first.per == "row"
    for x, y, real in rows.blocks(most_rows(first)):
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
    return [one.clone() for one in result.div_(torch.tensor(rows.counts)[:, None])]
