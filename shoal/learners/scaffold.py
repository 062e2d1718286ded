"""SCAFFOLD: control variates that take the clients' drift out of every local step.

Paper: Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning" (ICML 2020), algorithm 1.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from ..bank import Entry, Key, Value
from ..config import Local
from ..messages import Client, Group, Part, World
from ..randomness import Moment
from ..requests import FitResult, Gradient, Optimizer, Request, Served
from ..terms import Shift
from .base import Learner

SHARED, CHANGE = "control/c", "control/delta"
"""Names in ``Entry.extra`` and in ``Part.extra``; a client's own variate is ``control/KEY`` of its state."""


class Scaffold(Learner):
    """Local steps ``y <- y - lr (g(y) - c_i + c)``; ``c`` travels with the entry, ``c_i`` stays with the client.

    ``option`` says what a client's next variate is, of a fit of K steps from x to y:

    - ``I``: the gradient of the mean loss over its rows at x (a second look at the rows in every round);
    - ``II``: ``c_i - c + (x - y) / (K lr)``, with the steps K that were really taken, at the rate of this round.

    All variates start at zero, one for each entry. The server adds the changes of those who answered, divided by
    the number of *all* clients: ``c += (1/N) sum (c_i' - c_i)``. So c is the mean of all ``c_i``, of clients that
    never took part too, and a client that was drawn twice counts once. The paper's eta_g is ``method.server.lr``.

    Option II holds for plain SGD steps only, as in the paper: with momentum or Adam ``(x - y) / (K lr)`` is no mean
    gradient. Raises ``ValueError`` for those. Parameters that a fit does not train keep their variates.

    It needs a server: of an entry that a single client trains c is ``c_i / N``, and the correction ``c - c_i`` takes
    all but an N-th of the client's own gradient away. An entry that n of the N clients ever train, of a cluster,
    likewise learns at about n / N of the rate.
    """

    needs_server = True
    reads_answers = False

    def __init__(self, world: World, local: Local, *, option: Literal["I", "II"] = "II") -> None:
        super().__init__(world, local)
        self.option = option
        if option == "II":
            _require_plain_steps(local.request())

    def fit(
        self, key: Key, start: Served, entry: Entry, client: Client, **request: Any
    ) -> Generator[Request, Any, tuple[Part, dict[str, Value]]]:
        """A fit with the correction ``c - c_i``; sends the change of ``c_i`` along with the model."""
        fit = self.request(start, client, **request)
        name = f"control/{key}"
        zeros = torch.zeros_like(start.vector)
        shared, own = entry.extra.get(SHARED, zeros), client.state.get(name, zeros)
        assert isinstance(own, Tensor)
        if self.option == "I":
            fresh = yield Gradient(start, fit.rows, batch=fit.batch, loss=fit.loss, loss_args=fit.loss_args)
        else:
            _require_plain_steps(fit.optimizer)
        result: FitResult = yield replace(fit, terms=(*fit.terms, Shift(shared - own)))
        if self.option == "II":
            fresh = own  # without a step, or at a rate of zero, there is nothing to read
            if result.steps and fit.optimizer.lr > 0:
                fresh = own - shared + (start.vector - result.vector) / (result.steps * fit.optimizer.lr)
        new = own.clone()
        for s in self.world.models[start.model].space.slices(fit.segments):
            new[s] = fresh[s]
        part = Part(result.vector, result.buffers, {CHANGE: new - own}, steps=result.steps, loss=result.loss)
        return part, {name: new}

    def extra(self, key: Key, old: Entry, new: Entry, group: Group, when: Moment) -> Mapping[str, Tensor | None]:
        """``c``, with the changes that the parts brought; nothing where no part brought one."""
        changes = [part.extra[CHANGE] for part in group.parts if CHANGE in part.extra]
        if not changes:
            return {}
        before = old.extra.get(SHARED, torch.zeros_like(changes[0]))
        return {SHARED: before + torch.stack(changes).sum(0) / self.world.clients}


def _require_plain_steps(optimizer: Optimizer) -> None:
    """Raises ``ValueError`` for an optimiser whose steps are not ``lr`` times a gradient."""
    if optimizer.kind != "sgd" or optimizer.momentum:
        came = optimizer.kind if optimizer.kind != "sgd" else f"sgd with momentum {optimizer.momentum:g}"
        raise ValueError(
            f"option II of SCAFFOLD reads the mean gradient from (x - y) / (K lr), which holds for plain SGD steps; "
            f"got {came}. Use local.optimizer: sgd without momentum, or local.learner: {{kind: scaffold, option: I}}"
        )
