"""Stacked requests that train nothing: scores and gradients of many clients at once.

As in a stack of fits, rows are padded with weight 0 to a size that depends on the client alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..losses import loss_of
from ..placing import placed
from ..requests import Evaluate, Gradient, Score
from .chain import Chain, Pass
from .columns import blank, stacked
from .kernel import EVALUATION_ROWS, Kernel
from .keys import block_sizes, measured_with, most_rows


class _Rows:
    """The rows of several clients in blocks of equal sizes, each padded with its client's last row."""

    def __init__(self, kernel: Kernel, chain: Chain, rows: Sequence[Tensor]) -> None:
        self.chain, self.device = chain, kernel.device
        self.counts = [len(own) for own in rows]
        self.source = chain.source(kernel, rows, again=False)

    def blocks(self, most: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Inputs ``[clients, n, values]``, targets, and which rows are real, ``most`` rows of each client at once."""
        begins = torch.tensor([0, *self.counts[:-1]]).cumsum(0)
        for i, size in enumerate(block_sizes(self.counts[0], most, self.chain)):
            counts = torch.tensor([min(most, count - i * most) for count in self.counts])
            place = torch.arange(size)
            at = (begins + i * most)[:, None] + torch.minimum(place, counts[:, None] - 1)
            x, y = self.source.take(self.source.ready(at))
            yield x, y, placed(place < counts[:, None], self.device)


@torch.no_grad()
def evaluate(kernel: Kernel, chain: Chain, requests: Sequence[Evaluate]) -> list[list[Score]]:
    """The scores of each request's models on its rows."""
    loss = loss_of(requests[0].loss or kernel.loss)
    args = measured_with(kernel, requests[0])
    rows = _Rows(kernel, chain, [request.rows for request in requests])
    count = len(requests[0].models)
    models = [[request.models[k] for request in requests] for k in range(count)]
    vectors = [chain.opened(stacked([served.vector for served in each], kernel.device)) for each in models]
    how = [Pass(statistics=chain.statistics(each).to(kernel.device)) for each in models]
    sums = torch.zeros(2, count, len(requests), dtype=torch.float64, device=kernel.device)
    for x, y, real in rows.blocks(EVALUATION_ROWS):
        for k in range(count):
            with kernel.cast():
                outputs = chain.forward(vectors[k], x, how[k])
            scores = loss.score(outputs.flatten(0, 1), y.flatten(0, 1), **args)
            for i, each in enumerate(scores):
                # Not a product: a row of padding may be infinite, and 0 times that is no number.
                sums[i, k] += each.view(real.shape).double().masked_fill(~real, 0.0).sum(1)
    found = (sums.cpu() / torch.tensor(rows.counts, dtype=torch.float64)).tolist()
    return [[Score(found[0][k][c], found[1][k][c], n) for k in range(count)] for c, n in enumerate(rows.counts)]


@torch.no_grad()
def gradient(kernel: Kernel, chain: Chain, requests: Sequence[Gradient]) -> list[Tensor]:
    """The gradient that each request asks for."""
    first = requests[0]
    loss = loss_of(first.loss or kernel.loss)
    rows = _Rows(kernel, chain, [request.rows for request in requests])
    vectors = chain.opened(stacked([request.at.vector for request in requests], kernel.device))
    result, part = (blank(len(requests), chain.space.size, kernel.device) for _ in range(2))
    by_row, into = first.per == "row", chain.opened(part)
    for x, y, real in rows.blocks(most_rows(first)):
        kept: list[Tensor] = []
        _, d = loss.derivative(chain.forward(vectors, x, Pass(), kept), y, **first.loss_args)
        d.masked_fill_(~real.unsqueeze(-1), 0.0)
        counts = real.sum(1, keepdim=True)
        if not by_row:
            d.div_(counts.clamp(min=1).unsqueeze(-1))
        chain.backward(vectors, into, kept, d, Pass(), power=first.power if by_row else 1)
        if by_row:
            result.add_(part)
        else:
            result.addcmul_(part if first.power == 1 else part.pow(first.power), counts.to(part.dtype))
    return [one.clone() for one in result.cpu().div_(torch.tensor(rows.counts)[:, None])]
