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
from ..records import changed
from ..requests import Drift, Fit, FitResult
from .chain import Chain, Masks, Pass
from .columns import blank, columns, cut, dots, joined, stacked
from .kernel import Kernel, between
from .orders import Orders, order_of, padded
from .steppers import Stepper


class Member(NamedTuple):
    """One fit of a stack: what was asked for, and by whom."""

    fit: Fit
    client: Client


class FitStack:
    """The fits of one stack, longest first."""

    def __init__(self, kernel: Kernel, chain: Chain, members: Sequence[Member], known: Orders | None = None) -> None:
        self.kernel, self.chain, self.space = kernel, chain, chain.space
        known = {} if known is None else known
        self.size = padded(len(members[0].fit.rows), members[0].fit.batch, chain.row_step)
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
        count, size = len(members), self.space.size
        starts = stacked([fit.start.vector for fit in self.fits])
        self.vectors, self.gradients = blank(count, size).copy_(starts), blank(count, size)
        own = any(fit.since is not None for fit in self.fits)
        self.since = stacked([f.start.vector if f.since is None else f.since for f in self.fits]) if own else starts
        self.anchor = None if first.anchor is None else stacked([f.anchor for f in self.fits if f.anchor is not None])
        self.columns = columns(self.fits)
        self.stepper = Stepper(
            first.optimizer, self.space, self.slices, torch.device("cpu"), self._slots(), count, self.columns
        )
        self.terms = [joined([f.terms[i] for f in self.fits], size) for i in range(len(first.terms))]
        self.statistics = chain.statistics([fit.start for fit in self.fits])
        self.before = self.stepper.steps
        self.losses = torch.zeros(self.steps[0], count, dtype=torch.float64)
        self.squared: list[list[tuple[float, float]]] = [[] for _ in members]

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
        self.at, self.real = torch.from_numpy(places), torch.from_numpy(self.counts)
        # By the number of rows that count: each has its part of the mean, padding has none.
        self.weights = torch.ones(self.size + 1, self.size).tril(-1) / torch.arange(self.size + 1).clamp(min=1)[:, None]

    def run(self) -> list[FitResult]:
        """The results, in the order of the members that were given."""
        active = 0
        terms: tuple[Any, ...] = ()
        extra = None if self.anchor is None else blank(*self.gradients.shape)
        for step in range(self.steps[0]):
            now = sum(1 for steps in self.steps if steps > step)
            if now != active:
                active = now
                terms = tuple(cut(term, active) for term in self.terms)
                w, g = self.vectors[:active], self.gradients[:active]
                lr = self.columns.get("lr", self.fits[0].optimizer.lr)
                lr = lr[:active] if isinstance(lr, Tensor) else lr
            x, y = self.source.take(self.at[step, :active])
            how = Pass(self.real[step, :active], self._masks(step, active), self.statistics.first(active))
            self.losses[step, :active] = self._backward(w, g, x, y, how)
            if extra is not None and self.anchor is not None:
                self._backward(self.anchor[:active], extra[:active], x, y, changed(how, follow=False))
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

    def _backward(self, w: Tensor, g: Tensor, x: Tensor, y: Tensor, how: Pass) -> Tensor:
        """The gradients of one batch of each client into ``g``; gives the losses ``[clients]``."""
        kept: list[Tensor] = []
        outputs = self.chain.forward(w, x, how, kept)
        rows, d = self.loss.derivative(outputs, y, **self.args)
        assert how.counts is not None
        weights = self.weights.index_select(0, how.counts)
        self.chain.backward(w, g, kept, d.mul_(weights.unsqueeze(-1)), how, self.wanted)
        return (rows * weights).sum(1)

    def _masks(self, step: int, active: int) -> Masks:
        masks: list[Tensor | None] = []
        for i, (layer, width) in enumerate(zip(self.chain.dropouts, self.chain.dropout_widths, strict=True)):
            if not layer.p or width is None:
                masks.append(None)
                continue
            mask = torch.zeros(active, self.size, width)
            for c, member in enumerate(self.members[:active]):
                count = int(self.counts[step, c])
                rng = member.client.when.random(f"{member.fit.purpose}/dropout/{i}/{step}", member.client.id)
                kept = rng.random((count, width), dtype=np.float32) >= layer.p
                mask[c, :count] = torch.from_numpy(kept).float().mul_(1 / (1 - layer.p))
            masks.append(mask)
        return masks

    def _measure(self, step: int, active: int) -> None:
        """Squared distances of the clients whose epoch (or fit) ends with this step; overwrites the gradients."""
        done = step + 1
        ends = [c for c in range(active) if done % self.orders[c].per_epoch == 0 or done == self.steps[c]]
        if not ends:
            return
        if len(ends) == active:
            away = torch.sub(self.vectors[:active], self.since[:active], out=self.gradients[:active])
        else:
            at = torch.tensor(ends)
            away = self.vectors.index_select(0, at) - self.since.index_select(0, at)
        pairs = torch.stack([dots(away, away), dots(away[:, self.space.head], away[:, self.space.head])], 1)
        for c, (whole, inside) in zip(ends, pairs.tolist(), strict=True):
            self.squared[c].append((whole, inside))

    def _results(self) -> list[FitResult]:
        away = torch.sub(self.vectors, self.since, out=self.gradients)
        head = self.space.head
        numbers = [
            [dots(start, start).tolist(), dots(part, start).tolist()]
            for part, start in ((away, self.since), (away[:, head], self.since[:, head]))
        ]
        # As the reference does: a tensor's sum would depend on how many steps and clients there are in all.
        sums = [math.fsum(own) for own in (self.losses * self.real).t().tolist()]
        rows = self.counts.sum(0).tolist()
        vectors = [vector.clone() for vector in self.vectors.unbind()]
        found: list[FitResult | None] = [None] * len(self.members)
        for c, place in enumerate(self.places):
            (length, dot), (length_head, dot_head) = ((a[c], b[c]) for a, b in numbers)
            whole, inside = zip(*self.squared[c], strict=True)
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
            found[place] = FitResult(vectors[c], self.statistics.of(c), self.steps[c], rows[c], loss, drift, slots)
        return [result for result in found if result is not None]
