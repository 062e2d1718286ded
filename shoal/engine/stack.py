"""Fits of many clients in lock-step, on one stacked matrix of parameters.

The steps, terms, optimisers and losses are those of the reference kernel, applied to ``[clients, P]`` at once; the
result agrees with it to rounding. Rows are padded with weight 0. Everything that a client's numbers are made of, the
padded size of its batch included, depends on that client alone, so the company in a stack changes nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..data.dataset import inputs
from ..losses import has_derivative, loss_of
from ..messages import Client
from ..requests import Drift, Fit, FitResult, Optimizer
from .batches import GATHER_BYTES
from .dense import Dense, Masks
from .kernel import Kernel, between
from .plan import steps_per_epoch, total_steps
from .steppers import Stepper

VARYING = ("lr", "momentum", "weight_decay", "clip")
"""Settings of the local optimiser that may differ inside a stack."""
ROW_STEP = 8
"""A batch of fewer rows than asked for is padded to a multiple of this."""


class Member(NamedTuple):
    """One fit of a stack: what was asked for, and by whom."""

    fit: Fit
    client: Client


def padded(rows: int, batch: int) -> int:
    """How many rows a step of this fit has in a stack, padding included."""
    return batch if rows >= batch else min(batch, -(-rows // ROW_STEP) * ROW_STEP)


def fit_key(kernel: Kernel, dense: Dense, fit: Fit) -> Hashable | None:
    """Fits with equal keys may share a stack; ``None``: this one can only be done by the reference kernel."""
    count = total_steps(len(fit.rows), fit.batch, fit.epochs, fit.steps, False)
    plain = not fit.augment and not fit.start.constants and all(isinstance(v, float | int) for v in _values(fit))
    if not (count and plain) or not has_derivative(loss_of(fit.loss or kernel.loss)):
        return None
    terms = [_term_key(term, dense.space.size) for term in fit.terms]
    if None in terms or any(t.shape != (dense.space.size,) for t in _vectors(fit)):
        return None
    optimizer = fit.optimizer
    rest = dataclasses.replace(optimizer, lr=0.0, momentum=0.0, weight_decay=0.0, clip=None)
    used = (bool(optimizer.momentum), bool(optimizer.weight_decay), optimizer.clip is None)
    slots = None if fit.slots is None else (tuple(sorted(fit.slots)), int(fit.slots.get("steps", torch.tensor(0))))
    args = tuple(sorted(fit.loss_args.items()))
    size = padded(len(fit.rows), fit.batch)
    return (
        (size, fit.segments, fit.loss or kernel.loss, args),
        (tuple(terms), fit.anchor is None, fit.since is None, rest, used, slots),
    )


def _values(fit: Fit) -> list[Any]:
    return list(fit.loss_args.values())


def _vectors(fit: Fit) -> list[Tensor]:
    found = [fit.start.vector, fit.anchor, fit.since, *(v for n, v in (fit.slots or {}).items() if n != "steps")]
    return [t for t in found if t is not None]


def _term_key(term: Any, size: int) -> Hashable | None:
    if not dataclasses.is_dataclass(term):
        return None
    kinds: list[Hashable] = []
    for value in vars(term).values():
        if isinstance(value, Tensor) and value.shape == (size,):
            kinds.append("vector")
        elif isinstance(value, float | int) and not isinstance(value, bool):
            kinds.append("number")
        else:
            return None
    return (type(term), tuple(kinds))


class Order(NamedTuple):
    """Which rows a fit's steps take: positions among its rows, ``[steps, size]``, -1 for padding."""

    positions: np.ndarray
    per_epoch: int


Orders = dict[Hashable, Order]
"""The orders that are known already: runs of a sweep draw the same ones."""


def order_of(fit: Fit, client: Client, known: Orders) -> Order:
    """The order of the reference kernel (`plan`), with each batch padded."""
    client.claim(fit.purpose)
    rows, size = len(fit.rows), padded(len(fit.rows), fit.batch)
    key = (client.when, client.id, fit.purpose, rows, fit.batch, fit.epochs, fit.steps)
    if key not in known:
        per_epoch = steps_per_epoch(rows, fit.batch, False)
        total = total_steps(rows, fit.batch, fit.epochs, fit.steps, False)
        rng = client.when.random(fit.purpose, client.id)
        positions = np.full((-(-total // per_epoch), per_epoch * size), -1, dtype=np.int64)
        for epoch in positions:
            epoch[:rows] = rng.permutation(rows)
        known[key] = Order(positions.reshape(-1, size)[:total], per_epoch)
    return known[key]


class FitStack:
    """The fits of one stack, longest first."""

    def __init__(self, kernel: Kernel, dense: Dense, members: Sequence[Member], known: Orders | None = None) -> None:
        self.kernel, self.dense, self.space = kernel, dense, dense.space
        known = {} if known is None else known
        orders = [order_of(member.fit, member.client, known) for member in members]
        self.places = sorted(range(len(members)), key=lambda i: -len(orders[i].positions))
        self.members = [members[i] for i in self.places]
        self.orders = [orders[i] for i in self.places]
        self.steps = [len(order.positions) for order in self.orders]
        self.fits = [member.fit for member in self.members]
        first = self.fits[0]
        self.loss, self.args = loss_of(first.loss or kernel.loss), first.loss_args
        self.slices = self.space.slices(first.segments)
        self.wanted = dense.wanted(self.slices)
        self._gather()
        count, size = len(members), self.space.size
        self.vectors = torch.empty(count, size)
        for row, fit in zip(self.vectors, self.fits, strict=True):
            row.copy_(fit.start.vector)
        self.gradients = torch.zeros(count, size)
        self.since = stacked([f.start.vector if f.since is None else f.since for f in self.fits])
        self.anchor = None if first.anchor is None else stacked([f.anchor for f in self.fits if f.anchor is not None])
        self.columns = _columns([fit.optimizer for fit in self.fits])
        self.stepper = Stepper(
            first.optimizer, self.space, self.slices, torch.device("cpu"), self._slots(), count, self.columns
        )
        self.terms = [_term([f.terms[i] for f in self.fits], size) for i in range(len(first.terms))]
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
        """The pool of rows of all members, and for every step the places in it and the weights of its rows."""
        pools: dict[bytes, int] = {}
        rows: list[Tensor] = []
        size, longest = self.orders[0].positions.shape[1], self.steps[0]
        places = np.zeros((longest, len(self.members), size), dtype=np.int64)
        weights = np.zeros(places.shape, dtype=np.float32)
        self.counts = np.zeros(places.shape[:2], dtype=np.int64)
        total = 0
        for i, (fit, order) in enumerate(zip(self.fits, self.orders, strict=True)):
            own = fit.rows.numpy().tobytes()
            if own not in pools:  # a client's rows are the same in all cells of a sweep
                pools[own] = total
                rows.append(fit.rows)
                total += len(fit.rows)
            begin, positions = pools[own], order.positions
            real = positions >= 0
            counts = real.sum(1)
            # Padding repeats the client's own first row: nobody else's numbers may come near it.
            places[: len(positions), i] = np.where(real, positions, 0) + begin
            weights[: len(positions), i] = real / counts[:, None]
            self.counts[: len(positions), i] = counts
        self.rows = torch.cat(rows)
        self.at, self.weights = torch.from_numpy(places), torch.from_numpy(weights)
        small = 4 * total * int(np.prod(self.kernel.dataset.features.shape[1:])) <= GATHER_BYTES
        self.pool = self._inputs(self.rows) if small else None

    def _inputs(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        data = self.kernel.dataset
        return self.dense.lead(inputs(data.batch(rows)).flatten(1)), data.wanted(rows)

    def _batch(self, step: int, active: int) -> tuple[Tensor, Tensor]:
        at = self.at[step, :active].reshape(-1)
        if self.pool is None:
            x, y = self._inputs(self.rows.index_select(0, at))
        else:
            x, y = self.pool[0].index_select(0, at), self.pool[1].index_select(0, at)
        return x.view(active, -1, x.shape[1]), y.view(active, -1, *y.shape[1:])

    def run(self) -> list[FitResult]:
        """The results, in the order of the members that were given."""
        active = 0
        terms: tuple[Any, ...] = ()
        extra = None if self.anchor is None else torch.empty_like(self.gradients)
        for step in range(self.steps[0]):
            now = sum(1 for steps in self.steps if steps > step)
            if now != active:
                active = now
                terms = tuple(_cut(term, active) for term in self.terms)
                w, g = self.vectors[:active], self.gradients[:active]
                lr = self.columns.get("lr", self.fits[0].optimizer.lr)
                lr = lr[:active] if isinstance(lr, Tensor) else lr
            x, y = self._batch(step, active)
            masks = self._masks(step, active, x.shape[1])
            self.losses[step, :active] = self._backward(w, g, x, y, step, masks)
            if extra is not None and self.anchor is not None:
                self._backward(self.anchor[:active], extra[:active], x, y, step, masks)
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

    def _backward(self, w: Tensor, g: Tensor, x: Tensor, y: Tensor, step: int, masks: Masks) -> Tensor:
        """The gradients of one batch of each client into ``g``; gives the losses ``[clients]``."""
        kept: list[Tensor] = []
        outputs = self.dense.forward(w, x, masks, kept)
        rows, d = self.loss.derivative(outputs, y, **self.args)
        weights = self.weights[step, : len(w)]
        self.dense.backward(w, g, kept, d.mul_(weights.unsqueeze(-1)), masks, self.wanted)
        return (rows * weights).sum(1)

    def _masks(self, step: int, active: int, size: int) -> list[Tensor | None]:
        masks: list[Tensor | None] = []
        for i, (layer, width) in enumerate(zip(self.dense.dropouts, self.dense.dropout_widths, strict=True)):
            mask = torch.zeros(active, size, width)
            for c, member in enumerate(self.members[:active]):
                count = int(self.counts[step, c])
                rng = member.client.when.random(f"{member.fit.purpose}/dropout/{i}/{step}", member.client.id)
                kept = rng.random((count, width), dtype=np.float32) >= layer.p
                mask[c, :count] = torch.from_numpy(kept).float().mul_(1 / (1 - layer.p))
            masks.append(mask if layer.p else None)
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
        pairs = torch.stack([_dots(away, away), _dots(away[:, self.space.head], away[:, self.space.head])], 1)
        for c, (whole, inside) in zip(ends, pairs.tolist(), strict=True):
            self.squared[c].append((whole, inside))

    def _results(self) -> list[FitResult]:
        away = torch.sub(self.vectors, self.since, out=self.gradients)
        head = self.space.head
        numbers = [
            [_dots(start, start).tolist(), _dots(part, start).tolist()]
            for part, start in ((away, self.since), (away[:, head], self.since[:, head]))
        ]
        fresh = self.kernel.workspace(self.fits[0].start.model).defaults
        seen = torch.from_numpy(self.counts).double()
        means = ((self.losses * seen).sum(0) / seen.sum(0)).tolist()
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
            rows = int(self.counts[:, c].sum())
            found[place] = FitResult(self.vectors[c].clone(), fresh, self.steps[c], rows, means[c], drift, slots)
        return [result for result in found if result is not None]


def _dots(a: Tensor, b: Tensor) -> Tensor:
    """The inner product of each row of ``a`` with the row of ``b``."""
    found: Tensor = torch.linalg.vecdot(a, b)
    return found


def stacked(vectors: Sequence[Tensor]) -> Tensor:
    """``[clients, P]``; a vector that all share is not copied."""
    if all(vector is vectors[0] for vector in vectors):
        return vectors[0].expand(len(vectors), -1)
    return torch.stack(list(vectors))


def _term(terms: Sequence[Any], size: int) -> Any:
    """One term for a stack, from the same term of each client."""
    first = terms[0]
    fields: dict[str, Any] = {}
    for name, value in vars(first).items():
        values = [getattr(term, name) for term in terms]
        if isinstance(value, Tensor):
            fields[name] = stacked(values)
        elif all(v == value for v in values):
            fields[name] = value
        else:
            fields[name] = torch.tensor(values, dtype=torch.float32)[:, None].expand(len(terms), size)
    return dataclasses.replace(first, **fields)


def _cut(term: Any, count: int) -> Any:
    """The term for the first clients of a stack."""
    tensors = {name: value[:count] for name, value in vars(term).items() if isinstance(value, Tensor)}
    return dataclasses.replace(term, **tensors)


def _columns(optimizers: Sequence[Optimizer]) -> dict[str, Tensor]:
    """The settings that are not the same for all, as columns ``[clients, 1]``."""
    found = {}
    for name in VARYING:
        values = [getattr(optimizer, name) for optimizer in optimizers]
        if any(value != values[0] for value in values):
            found[name] = torch.tensor(values, dtype=torch.float32)[:, None]
    return found
