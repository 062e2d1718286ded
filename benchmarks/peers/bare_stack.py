"""The work as batched matrix products and nothing else: what a stack of clients gives where nothing is managed.

For ``mlp`` alone: two threads, each with half of a round's clients, a few of them at a time. It knows no Shoal; there
is no configuration, no named randomness, no screening, no bank. See `benchmarks/peers.py`.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor
from work import Given, Turns

STACK = 4
"""Clients of a stack: more fall out of the cache."""
THREADS = 2
INPUTS, HIDDEN, OUTPUTS = 784, 100, 10


def views(vectors: Tensor) -> list[Tensor]:
    """The weights and biases of both layers, ``[clients, ...]``, in flat vectors."""
    count = len(vectors)
    w1, b1, w2, b2 = vectors.split([HIDDEN * INPUTS, HIDDEN, OUTPUTS * HIDDEN, OUTPUTS], dim=1)
    return [w1.view(count, HIDDEN, INPUTS), b1.unsqueeze(1), w2.view(count, OUTPUTS, HIDDEN), b2.unsqueeze(1)]


def train(start: Tensor, x: Tensor, y: Tensor, batch: int, lr: float) -> Tensor:
    """One epoch of each client, in the order of its rows: ``x`` ``[clients, rows, inputs]``. Gives the vectors."""
    vectors = start.repeat(len(x), 1)
    w1, b1, w2, b2 = views(vectors)
    for begin in range(0, x.shape[1], batch):
        rows = x[:, begin : begin + batch]
        h = torch.relu_(torch.baddbmm(b1, rows, w1.transpose(1, 2)))
        d = torch.baddbmm(b2, h, w2.transpose(1, 2)).softmax(2)
        d.scatter_add_(2, y[:, begin : begin + batch, None], d.new_tensor(-1.0).expand(d.shape)).div_(rows.shape[1])
        back = torch.bmm(d, w2).mul_(h > 0)
        # The step is added to the weights by the product itself, so that no gradient is written.
        w2.baddbmm_(d.transpose(1, 2), h, alpha=-lr)
        b2.sub_(d.sum(1, keepdim=True), alpha=lr)
        w1.baddbmm_(back.transpose(1, 2), rows, alpha=-lr)
        b1.sub_(back.sum(1, keepdim=True), alpha=lr)
    return vectors


def main(folder: str) -> None:
    torch.set_num_threads(1)
    given = Given(folder)
    work = given.work
    if work.model != "mlp":
        sys.exit(f"the bare stack is a chain of two dense layers; {work.model} is none")
    vector = given.start.clone()
    pool = ThreadPoolExecutor(THREADS, initializer=torch.set_num_threads, initargs=(1,))

    def half(clients: Tensor) -> Tensor:
        total = torch.zeros_like(vector)
        for some in clients.split(STACK):
            order = torch.rand(len(some), work.rows).argsort(1)
            x = given.x[some[:, None], order]
            total += train(vector, x, given.y[some[:, None], order], work.batch, work.lr).sum(0)
        return total

    torch.manual_seed(work.seed)
    turns = Turns(work)
    for _ in range(work.rounds):
        turns.before()
        chosen = torch.randperm(work.clients)[: work.sampled]
        vector = sum(pool.map(half, chosen.chunk(THREADS))) / work.sampled  # type: ignore[operator]
        turns.after()
    module = given.model()
    torch.nn.utils.vector_to_parameters(vector, module.parameters())
    turns.end(**given.ended(module))


if __name__ == "__main__":
    main(sys.argv[1])
