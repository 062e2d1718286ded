"""Fits of many clients in lock-step, on one stacked matrix of parameters.

The steps, terms, optimisers and losses are those of the reference kernel, applied to ``[clients, P]`` at once; the
result agrees with it to rounding. Rows are padded with weight 0. Everything that a client's numbers are made of, the
padded size of its batch included, depends on that client alone, so the company in a stack changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..losses import loss_of
from ..messages import Client
from ..placing import placed
from ..records import changed
from ..requests import Drift, Fit, FitResult
from .chain import Chain, Masks, Pass
from .columns import Memory, blank, columns, cut, dots, joined, stacked
from .drift import between
from .kernel import Kernel
from .keys import batch_size
from .orders import Orders, order_of
from .steppers import Stepper

CPU = torch.device("cpu")


class Member(NamedTuple):
    """One fit of a stack: what was asked for, and by whom."""

    fit: Fit
    client: Client


def descends(chain: Chain, fit: Fit) -> bool:
    """Whether the steps of a fit subtract the gradient times the rate from the whole vector, and that is all: no
    gradient is written then."""
    settings = fit.optimizer
    plain = settings.kind == "sgd" and not settings.momentum and not settings.weight_decay and settings.clip is None
    return chain.descends and plain and fit.segments is None and not fit.terms and fit.anchor is None


class FitStack:
    """The fits of one stack, longest first."""

    def __init__(
        self,
        kernel: Kernel,
        chain: Chain,
        members: Sequence[Member],
        known: Orders | None = None,
        memory: Memory | None = None,
    ) -> None:
        self.kernel, self.chain, self.space, self.device = kernel, chain, chain.space, kernel.device
        known = {} if known is None else known
        self.size = batch_size(chain, members[0].fit)
        orders = [order_of(fit, client, self.size, known, chain.coupled) for fit, client in members]
        self.places = sorted(range(len(members)), key=lambda i: -len(orders[i].positions))
        self.members = [members[i] for i in self.places]
        self.orders = [orders[i] for i in self.places]
        self.steps = [len(order.positions) for order in self.orders]
        self.fits = [member.fit for member in self.members]
        first = self.fits[0]
        self.loss, self.args = loss_of(first.loss or kernel.loss), first.loss_args
        self.slices = self.space.slices(first.segments)
        self.wanted = chain.wanted(self.slices)
        self._gather()
        count, size, device = len(members), self.space.size, self.device
        starts = stacked([fit.start.vector for fit in self.fits], device)
        memory = memory or Memory()
        self.vectors = memory.room("vectors", count, size, device).copy_(starts)
        self.gradients = memory.room("gradients", count, size, device).zero_()
        own = any(fit.since is not None for fit in self.fits)
        since = [fit.start.vector if fit.since is None else fit.since for fit in self.fits]
        self.since = stacked(since, device) if own else starts
        anchors = [fit.anchor for fit in self.fits if fit.anchor is not None]
        self.anchor = stacked(anchors, device) if anchors else None
        self.columns = columns(self.fits, device)
        self.stepper = Stepper(first.optimizer, self.space, self.slices, device, self._slots(), count, self.columns)
        self.terms = [joined([f.terms[i] for f in self.fits], size, device) for i in range(len(first.terms))]
        self.statistics = chain.statistics([fit.start for fit in self.fits]).to(device)
        self.before = self.stepper.steps
        self.descends = descends(chain, first)
        self.losses = torch.zeros(self.steps[0], count, dtype=torch.float64, device=device)
        self.ended: list[tuple[list[int], Tensor]] = []
        """Which clients' epochs ended with a step, and their squared distances, over all and over the head."""

    def _slots(self) -> dict[str, Tensor] | None:
        first = self.fits[0].slots
        if first is None:
            return None
        kept = [fit.slots or {} for fit in self.fits]
        return {n: first[n] if n == "steps" else torch.stack([slots[n] for slots in kept]) for n in first}

    def _gather(self) -> None:
        """The rows of all members, and for every step the places among them and how many of these count."""
        pools: dict[bytes, int] = {}
        rows: list[Tensor] = []
        places = np.zeros((self.steps[0], len(self.members), self.size), dtype=np.int64)
        self.counts = np.zeros(places.shape[:2], dtype=np.int64)
        total = 0
        for i, (fit, order) in enumerate(zip(self.fits, self.orders, strict=True)):
            own = fit.rows.numpy().tobytes()
            if own not in pools:  # a client's rows are the same in all cells of a sweep
                pools[own] = total
                rows.append(fit.rows)
                total += len(fit.rows)
            np.add(order.positions, pools[own], out=places[: self.steps[i], i])
            self.counts[: self.steps[i], i] = order.counts
        self.source = self.chain.source(self.kernel, rows, again=True)
        # All of it before the first step, so that none moves anything to a device.
        self.at, self.real = (
            self.source.ready(torch.from_numpy(places)),
            placed(torch.from_numpy(self.counts), self.device),
        )
        # By the number of rows that count: each has its part of the mean, padding has none.
        weights = torch.ones(self.size + 1, self.size).tril(-1) / torch.arange(self.size + 1).clamp(min=1)[:, None]
        self.weights = placed(weights, self.device)

    def run(self) -> list[FitResult]:
        """The results, in the order of the members that were given."""
        chain, before = self.chain, 0
        extra = None if self.anchor is None else blank(len(self.gradients), self.space.size, self.device)
        full = ((self.counts == self.size) | (self.counts == 0)).all(1).tolist()
        for step, active in enumerate((self.counts > 0).sum(1).tolist()):
            if active != before:
                before = active
                terms = tuple(cut(term, active) for term in self.terms)
                w, g = self.vectors[:active], self.gradients[:active]
                weights, gradients = chain.opened(w), None if self.descends else chain.opened(g)
                if extra is not None and self.anchor is not None:
                    anchor, there = chain.opened(self.anchor[:active]), chain.opened(extra[:active])
                statistics = self.statistics.first(active)
                lr = self.columns.get("lr", self.fits[0].optimizer.lr)
                lr = lr[:active] if isinstance(lr, Tensor) else lr
            # Without padding all batches of a step are of one size.
            rows = int(self.counts[step, 0]) if chain.exact else self.size
            x, y = self.source.take(self.at[step, :active, :rows])
            masks = self._masks(step, active, x) if chain.dropouts else ()
            how = Pass(self.real[step, :active], masks, statistics, full=chain.exact or full[step])
            self.losses[step, :active] = self._backward(weights, gradients, x, y, how, lr)
            if self.descends:
                self._measure(step, active)
                continue
            if extra is not None:
                self._backward(anchor, there, x, y, changed(how, follow=False))
                g.sub_(extra[:active])
            for s in self.slices:
                for term in terms:
                    term.gradient(w[..., s], g[..., s], s)
            self.stepper.clip(g)
            self.stepper.step(w, g)
            for s in self.slices:
                for term in terms:
                    term.after(w[..., s], s, lr)
            self._measure(step, active)
        return self._results()

    def _backward(self, w: Any, g: Any, x: Tensor, y: Tensor, how: Pass, rate: float | Tensor = 0.0) -> Tensor:
        """The gradients of one batch of each client into ``g``, without it a step by them; the losses ``[clients]``."""
        kept: list[Tensor] = []
        with self.kernel.cast():
            outputs = self.chain.forward(w, x, how, kept)
        rows, d = self.loss.derivative(outputs, y, **self.args)
        assert how.counts is not None
        weights = self.weights[:, : x.shape[1]].index_select(0, how.counts)
        d.mul_(weights.unsqueeze(-1))
        if g is None:
            self.chain.descend(w, kept, d, how, rate)
        else:
            self.chain.backward(w, g, kept, d, how, self.wanted)
        return (rows * weights).sum(1)

    def _masks(self, step: int, active: int, x: Tensor) -> Masks:
        masks: list[Tensor | None] = []
        for i, (layer, shape) in enumerate(zip(self.chain.dropouts, self.chain.dropout_shapes(x), strict=True)):
            if not layer.p or shape is None:
                masks.append(None)
                continue
            mask = torch.zeros(*x.shape[:2], *shape)
            for c, member in enumerate(self.members[:active]):
                count = int(self.counts[step, c])
                rng = member.client.when.random(f"{member.fit.purpose}/dropout/{i}/{step}", member.client.id)
                kept = rng.random((count, *shape), dtype=np.float32) >= layer.p
                mask[c, :count] = torch.from_numpy(kept).float().mul_(1 / (1 - layer.p))
            masks.append(placed(mask, self.device))
        return masks

    def _measure(self, step: int, active: int) -> None:
        """Squared distances of the clients whose epoch (or fit) ends with this step; overwrites the gradients."""
        done = step + 1
        ends = [c for c in range(active) if done % self.orders[c].per_epoch == 0 or done == self.steps[c]]
        if not ends:
            return
        both = self.vectors[:active], self.since[:active]
        if len(ends) < active:
            at = placed(torch.tensor(ends), self.device)
            both = both[0].index_select(0, at), both[1].index_select(0, at)
        # There, because a sum's rounding may depend on where memory begins, as that of products does.
        away = torch.sub(*both, out=self.gradients[: len(ends)])
        inside = away[:, self.space.head]
        self.ended.append((ends, torch.stack([dots(away, away), dots(inside, inside)], 1)))

    def _results(self) -> list[FitResult]:
        # The last measurement may have left it there, for all.
        last = self.gradients if len(self.ended[-1][0]) == len(self.members) else None
        away = torch.sub(self.vectors, self.since, out=self.gradients) if last is None else last
        head = self.space.head
        shared = self.since.stride(0) == 0
        numbers = [
            [dots(*(start[: 1 if shared else None],) * 2).expand(len(away)).tolist(), dots(part, start).tolist()]
            for part, start in ((away, self.since), (away[:, head], self.since[:, head]))
        ]
        # As the reference does: a tensor's sum would depend on how many steps and clients there are in all.
        sums = [math.fsum(own) for own in (self.losses * self.real).t().tolist()]
        rows = self.counts.sum(0).tolist()
        squared: list[list[tuple[float, float]]] = [[] for _ in self.members]
        read = iter(torch.cat([pairs for _, pairs in self.ended]).tolist())
        for c in (c for ends, _ in self.ended for c in ends):
            squared[c].append(tuple(next(read)))
        vectors = [vector.clone() for vector in self.vectors.cpu().unbind()]
        statistics, self.stepper.slots = self.statistics.to(CPU), {n: v.cpu() for n, v in self.stepper.slots.items()}
        found: list[FitResult | None] = [None] * len(self.members)
        for c, place in enumerate(self.places):
            (length, dot), (length_head, dot_head) = ((a[c], b[c]) for a, b in numbers)
            whole, inside = zip(*squared[c], strict=True)
            drift = Drift(
                whole,
                inside,
                whole[-1] ** 0.5,
                inside[-1] ** 0.5,
                between(length, dot, whole[-1]),
                between(length_head, dot_head, inside[-1]),
            )
            slots = None if self.fits[c].slots is None else self.stepper.kept(c, self.before + self.steps[c])
            loss = sums[c] / rows[c]
            found[place] = FitResult(vectors[c], statistics.of(c), self.steps[c], rows[c], loss, drift, slots)
        return [result for result in found if result is not None]
