"""FedProx: local steps that are pulled back to the model that was received.

Paper: Li et al., "Federated Optimization in Heterogeneous Networks" (MLSys 2020), algorithm 2 and eq. 2.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Annotated, Any

import pydantic

from ..bank import Entry, Key, Value
from ..config import Local
from ..messages import Client, Part, World
from ..requests import Request, Served, Term
from ..terms import Hold, Pull
from .base import Learner


class Proximal(Learner):
    """Each client minimises ``F_i(w) + mu / 2 |w - x|^2``, where ``x`` is the model that it received.

    ``mu``: 0 is the plain learner, to the bit. By default the penalty is part of the gradient, ``g + mu (w - x)``,
    as in the authors' code. ``implicit`` solves it exactly after each step instead, ``w <- (w + k x) / (1 + k)``
    with ``k = mu lr`` at the rate of the round: stable at any ``mu``, and not scaled by momentum or Adam.

    Raises ``ValueError`` for an explicit penalty that plain SGD cannot follow, ``mu lr >= 2 (1 + momentum)``: its
    steps overshoot ``x`` by more each time (unless ``local.clip`` bounds them). Of a program that fits twice,
    ``x`` is what the first fit started from (`Fit.since`).
    """

    def __init__(
        self,
        world: World,
        local: Local,
        *,
        mu: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)] = 0.01,
        implicit: bool = False,
    ) -> None:
        super().__init__(world, local)
        limit = 2 * (1 + local.momentum)
        if local.optimizer == "sgd" and local.clip is None and not implicit and mu * local.lr >= limit:
            raise ValueError(
                f"mu times local.lr must be below {limit:g} in explicit steps, or they grow without bound; got "
                f"{mu:g} * {local.lr:g} = {mu * local.lr:g}. Set implicit: true, which is stable at any mu"
            )
        self.mu = mu
        self.implicit = implicit

    def fit(
        self, key: Key, start: Served, entry: Entry, client: Client, **request: Any
    ) -> Generator[Request, Any, tuple[Part, dict[str, Value]]]:
        """The plain fit with the penalty as one more term."""
        since = request.get("since")
        received = start.vector if since is None else since
        if self.mu:
            term: Term = Hold(self.mu, received) if self.implicit else Pull(self.mu, received)
            request = {**request, "terms": (*request.get("terms", ()), term)}
        return (yield from super().fit(key, start, entry, client, **request))
