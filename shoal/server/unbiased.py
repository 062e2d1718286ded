"""The mean that is unbiased for the rows-weighted objective, whatever the drawing of clients.

Sources: Li et al., "On the Convergence of FedAvg on Non-IID Data" (ICLR 2020), schemes I and II; general probabilities
by importance weights, as in Chen et al., "Optimal Client Sampling for Federated Learning" (2020). Deviation: scheme II
weighs the models, here the changes are weighed, which has the same expectation and stands still where nobody moves.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..bank import Entry
from ..errors import ConfigError
from ..messages import Group
from ..participation import Selection
from .base import Mean
from .means import sent
from .sums import BLOCK

MOST_CLIENTS = 100_000
"""Of so many clients the rows are counted one by one; of more only where the stream knows them all at once."""


class Unbiased(Mean):
    """Its expectation over the drawing is the step that all clients together would take, ``sum_i q_i d_i``.

    With the changes ``d_i = x_i - x``, the share ``q_i`` of client i in all training rows of round 1, S draws of N
    clients, client i drawn ``n_i`` times with probability ``p_i`` a draw::

        x + (1/S) sum_i n_i (q_i / p_i) d_i          with replacement (p_i = 1/N without participation.probabilities)
        x + (N/S) sum_i q_i d_i                      without replacement, all equally likely

    With ``probabilities: rows`` every ``q_i / p_i`` is 1: then it is ``uniform``. Its weights sum to one on the average
    only, so answers that are all equal do not come back as they are, and the mean may lie beyond them. A coordinate
    that a client did not send (``Part.mask``) is a change of zero. BatchNorm's statistics are no sum of changes: they
    are averaged by rows, as under ``weighted``.

    An update that is lost (late, failed, rejected) is a term of zero, and the step is shorter for it. An entry that
    some of the clients train, of a task or a cluster, takes a step as long as their share of *all* rows.

    Raises `ConfigError` where no weight makes it unbiased (a client with rows that is never drawn), where the chance to
    be drawn has no closed form (unequal probabilities without replacement), and where the rows of more than 100,000
    clients would have to be counted one by one; ``ValueError`` for an answer that tells no client.
    """

    averages = False
    needs_server = True

    def __init__(self, selection: Selection | None = None) -> None:
        self.factors: np.ndarray | None = None
        """What the change of each client's draw counts; ``None``: the same for all, `common`."""
        self.common = 0.0
        if selection is None:  # as for a prediction, where nothing is merged
            return
        draws, clients, p = selection.count, selection.clients, selection.probabilities
        if p is not None and not selection.replacement:
            raise ConfigError(
                "method.mean: unbiased needs each client's chance to be drawn, which has no closed form with "
                "participation.probabilities and replacement: false; set replacement: true, or leave out probabilities"
            )
        if selection.settings.probabilities == "rows":
            self.common = 1 / draws
            return
        if clients > MOST_CLIENTS and selection.sizes() is None:
            raise ConfigError(
                f"method.mean: unbiased would have to count the rows of all {clients:,} clients one by one, and does "
                f"so up to {MOST_CLIENTS:,}; use mean: uniform, which is unbiased where all clients hold as many rows, "
                f"or draw them with participation.probabilities: rows"
            )
        rows = selection.held()
        if not rows.any():
            raise ConfigError("method.mean: unbiased weighs by the training rows of round 1, but nobody holds any")
        share = rows / rows.sum()
        chance = np.full(clients, 1 / clients) if p is None else p
        never = np.flatnonzero((share > 0) & (chance == 0))
        if len(never):
            raise ConfigError(
                f"method.mean: unbiased needs a chance above 0 for every client with rows; participation.probabilities "
                f"are 0 for {len(never)} of them, the first is client {never[0]}"
            )
        self.factors = np.divide(share, chance * draws, out=np.zeros(clients), where=chance > 0)

    def factor(self, client: int) -> float:
        """What the change of one draw of this client counts."""
        if self.factors is None:
            if not self.common:
                raise ValueError(
                    "mean unbiased was made without a selection of clients, and knows no chance to be drawn"
                )
            return self.common
        if not 0 <= client < len(self.factors):
            raise ValueError(
                f"mean unbiased weighs answers of clients 0 to {len(self.factors) - 1}; got client {client}"
            )
        return float(self.factors[client])

    def combine(self, old: Entry, group: Group) -> Tensor:
        """The old vector and the weighted sum of the changes, float32; summed in float64."""
        parts = sent(old, group)
        weights = [part.times * self.factor(part.client) for part in group.parts]
        out = torch.empty_like(old.vector)
        for begin in range(0, old.vector.numel(), BLOCK):
            s = slice(begin, begin + BLOCK)
            x = old.vector[s].double()
            step = torch.zeros_like(x)
            for (vector, mask), weight in zip(parts, weights, strict=True):
                change = vector[s].double() - x
                step.add_(change if mask is None else torch.where(mask[s], change, 0.0), alpha=weight)
            out[s] = torch.where(step == 0, old.vector[s], (x + step).to(old.vector.dtype))
        return out
