"""SVRG: local steps whose gradient is corrected by an anchor, the gradient at the model that was received.

Papers: Johnson and Zhang, "Accelerating Stochastic Gradient Descent using Predictive Variance Reduction" (NeurIPS
2013); as the inner loop of federated adaptive methods "Effective Federated Adaptive Gradient Methods with Non-IID
Decentralized Data" (arXiv 2009.06557), which does it as SCAFFOLD does.
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
from ..requests import Fit, FitResult, Gradient, Request, Served
from ..server.base import shares
from ..terms import Shift
from .base import Learner
from .scaffold import Scaffold

COMMON = "svrg/gradient"
"""The gradient at the received model: in ``Part.extra`` a client's, in ``Entry.extra`` the mean of all."""


class Svrg(Learner):
    """Local steps ``y <- y - lr (g(y; b) - g(x; b) + a)`` from x, with the same batch b in both gradients.

    ``anchor`` says what ``a`` is:

    - ``local``: the gradient of the client's own mean loss at x. The noise of the batches goes, the drift stays.
    - ``global``: the mean of the participants' gradients at x. The drift goes too. It takes a second exchange in
      every round: first everyone sends a gradient, then everyone trains. ``weights``: ``rows`` (times draws, as
      ``mean: weighted`` does) or ``uniform`` (the plain mean over draws, with ``mean: uniform``).
    - ``scaffold``: the step of `Scaffold` with option II, which keeps variates instead of gradients at x.

    ``global`` and ``scaffold`` need a method with a server. A client that trains an entry for which no gradient arrived
    in the first exchange fails by name: training it without the correction would be another method.
    """

    reads_answers = False

    def __init__(
        self,
        world: World,
        local: Local,
        *,
        anchor: Literal["scaffold", "local", "global"] = "scaffold",
        weights: Literal["rows", "uniform"] = "rows",
    ) -> None:
        super().__init__(world, local)
        if weights != "rows" and anchor != "global":
            raise ValueError(
                f"weights: {weights} goes with anchor: global, which joins gradients; got anchor: {anchor}"
            )
        self.anchor = anchor
        self.weights = weights
        self.scaffold = Scaffold(world, local) if anchor == "scaffold" else None
        self.exchanges = 2 if anchor == "global" else 1
        self.needs_server = anchor != "local"

    def fit(
        self, key: Key, start: Served, entry: Entry, client: Client, **request: Any
    ) -> Generator[Request, Any, tuple[Part, dict[str, Value]]]:
        """A fit along the corrected gradients; in the first of two exchanges the gradient alone."""
        if self.scaffold is not None:
            return (yield from self.scaffold.fit(key, start, entry, client, **request))
        fit = self.request(start, client, **request)
        if self.anchor == "local":
            gradient = yield _at_start(fit)
        elif client.when.exchange == 0:
            gradient = yield _at_start(fit)
            return Part(None, extra={COMMON: gradient}), {}
        elif COMMON in entry.extra:
            gradient = entry.extra[COMMON]
        else:
            raise RuntimeError(
                f"no gradient for entry {key!r} reached the server in the first exchange of this round: its clients "
                f"were late, rejected, or given other entries then"
            )
        result: FitResult = yield replace(fit, anchor=start.vector, terms=(*fit.terms, Shift(gradient)))
        return Part(result.vector, result.buffers, steps=result.steps, loss=result.loss), {}

    def extra(self, key: Key, old: Entry, new: Entry, group: Group, when: Moment) -> Mapping[str, Tensor | None]:
        """The mean gradient after the first exchange; afterwards it is taken away, so that it is not sent again."""
        if self.scaffold is not None:
            return self.scaffold.extra(key, old, new, group, when)
        if self.anchor == "local":
            return {}
        if when.exchange:
            return {COMMON: None}
        weighed = zip(group.parts, group.weights, strict=True)
        sent = [(p.extra[COMMON], w if self.weights == "rows" else p.times) for p, w in weighed if COMMON in p.extra]
        if not sent:
            return {}
        parts = zip(sent, shares([weight for _, weight in sent]), strict=True)
        return {COMMON: torch.stack([gradient * float(share) for (gradient, _), share in parts]).sum(0)}


def _at_start(fit: Fit) -> Gradient:
    """The gradient of the mean loss over the fit's rows, at its start."""
    return Gradient(fit.start, fit.rows, batch=fit.batch, loss=fit.loss, loss_args=fit.loss_args)
