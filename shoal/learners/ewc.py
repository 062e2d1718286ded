"""EWC: local steps that are held where the client has learnt before, each weight by its Fisher information.

Papers: Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks" (PNAS 2017); online, with a running
sum of the Fisher information, Schwarz et al., "Progress & Compress" (ICML 2018).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Annotated, Any, Literal

import pydantic
from torch import Tensor

from ..bank import Entry, Key, Value
from ..config import Local
from ..messages import Client, Part, World
from ..requests import FitResult, Gradient, Request, Served
from ..terms import Hold
from .base import Learner

NOW = "ewc"
"""The task that a client trained last, whatever entry that was, among its private numbers; with ``per: task`` alone."""


class Ewc(Learner):
    """Each client minimises ``F_i(w) + strength / 2 * sum_p F_p (w_p - a_p)^2``.

    ``a`` is the client's own model where it last learnt, and ``F`` the diagonal Fisher information there, the mean of
    the squared gradients over its rows, added to ``decay`` times what it was before. Both are private, for each entry,
    and never sent. ``per``: the penalty is about the model and the rows of the last ``round`` in which the client
    trained the entry, or of the last one before its ``task`` changed; clients must know their task for that. An entry
    for each task is held by what the client knew when it last left that task, if it ever comes back.

    ``fisher``: of every ``row`` by itself (the definition), or of each ``batch``, which costs no more than a local
    epoch and gives smaller numbers.

    The penalty is solved after each step, ``w <- (w + k a) / (1 + k)`` with ``k = lr strength F`` at the rate of the
    round: stable at any strength. As a part of the gradient, as the paper writes it, it explodes where
    ``lr strength F`` exceeds 2, with every number finite for a while; that form is not offered.

    Raises ``ValueError`` for ``per: task`` on a stream without tasks.
    """

    def __init__(
        self,
        world: World,
        local: Local,
        *,
        strength: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)] = 100.0,
        decay: Annotated[float, pydantic.Field(ge=0, le=1)] = 0.9,
        per: Literal["round", "task"] = "round",
        fisher: Literal["row", "batch"] = "row",
    ) -> None:
        super().__init__(world, local)
        if per == "task" and not world.tasks:
            raise ValueError("per: task holds what earlier tasks taught; this stream has no tasks. Use per: round")
        self.strength = strength
        self.decay = decay
        self.per = per
        self.fisher: Literal["row", "batch"] = fisher

    def fit(
        self, key: Key, start: Served, entry: Entry, client: Client, **request: Any
    ) -> Generator[Request, Any, tuple[Part, dict[str, Value]]]:
        """The plain fit with the penalty as one more term, and the Fisher information where it ended."""
        name = f"ewc/{key}"
        kept = client.state.get(name)
        known: Mapping[str, Any] = kept if isinstance(kept, Mapping) else {}
        held: Mapping[str, Any] = known.get("held") or {}
        last: Mapping[str, Any] = known.get("last") or {}
        now = client.state.get(NOW)
        if last and isinstance(now, Mapping) and (now["task"], last["task"]) != (client.task, client.task):
            held = self._joined(held, last["anchor"], last["fisher"])
        if held and self.strength:
            term = Hold(self.strength * held["fisher"], held["anchor"])
            request = {**request, "terms": (*request.get("terms", ()), term)}
        fit = self.request(start, client, **request)
        result: FitResult = yield fit
        at = Served(start.model, result.vector, result.buffers, start.constants)
        fisher: Tensor = yield Gradient(
            at, fit.rows, power=2, per=self.fisher, batch=fit.batch, loss=fit.loss, loss_args=fit.loss_args
        )
        state: dict[str, Value] = {"held": self._joined(held, result.vector, fisher)}
        if self.per == "task":  # which round was the task's last one is known only when the next one begins
            last = {"task": client.task, "anchor": result.vector, "fisher": fisher}
            state = {"held": dict(held), "last": dict(last)}
        own: dict[str, Value] = {name: state} if self.per == "round" else {name: state, NOW: {"task": client.task}}
        return Part(result.vector, result.buffers, steps=result.steps, loss=result.loss), own

    def _joined(self, held: Mapping[str, Any], anchor: Tensor, fisher: Tensor) -> dict[str, Value]:
        """What the penalty is about after one more round or task."""
        return {"anchor": anchor, "fisher": fisher + self.decay * held["fisher"] if held else fisher}
