"""Early stopping of local training: the clients' half of Flash.

Paper: Panchal et al., "Flash: Concept Drift Adaptation in Federated Learning" (ICML 2023). The server's half
is `shoal.server.flash`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Annotated, Any

import pydantic

from ..bank import Entry, Key, Value
from ..config import Local
from ..engine.plan import steps_per_epoch, total_steps
from ..messages import Client, Part, World
from ..records import changed
from ..requests import Evaluate, Fit, FitResult, Request, Served
from .base import Learner


class EarlyStopping(Learner):
    """Local training that ends after the local epoch e (from 1) whose gain is too small: ``L(e-1) - L(e) < gamma / e``.

    ``L(e)`` is the loss on the client's validation rows after epoch e, ``L(0)`` that of the model received. So the
    early epochs must gain the most, and a loss that rises stops at any ``gamma``; the model of the last epoch is sent,
    that of a rise too. ``gamma: 0`` stops after an epoch in which the loss rose. ``local.epochs`` (or ``local.steps``,
    cut into epochs) is the most that a client trains.

    A client without validation rows trains all its epochs; `Setup.notes` says how many there are. With a single epoch
    there is nothing to stop, nothing is evaluated, and it is the plain learner to the bit. Momentum and Adam's
    moments go on from epoch to epoch, and drift is measured from the model received. Public code compares from the
    second epoch on, as if ``L(0)`` were infinite.
    """

    reads_validation = True

    def __init__(
        self,
        world: World,
        local: Local,
        *,
        gamma: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)] = 0.04,
    ) -> None:
        super().__init__(world, local)
        self.gamma = gamma

    def fit(
        self, key: Key, start: Served, entry: Entry, client: Client, **request: Any
    ) -> Generator[Request, Any, tuple[Part, dict[str, Value]]]:
        """One fit for each epoch, each from where the last one ended, until one gains too little."""
        fit = self.request(start, client, **request)
        coupled = self.world.models[start.model].batch_coupled
        each = steps_per_epoch(len(fit.rows), fit.batch, coupled)
        total = total_steps(len(fit.rows), fit.batch, fit.epochs, fit.steps, coupled)
        if total <= each or not len(client.validation):
            result: FitResult = yield fit
            return _part([result]), {}
        before = yield from self._loss(start, client, fit)
        since = start.vector if fit.since is None else fit.since
        at, slots, results = start, fit.slots or {}, list[FitResult]()
        for epoch in range(1, -(-total // each) + 1):
            steps = min(each, total - each * (epoch - 1))
            purpose = fit.purpose if epoch == 1 else f"{fit.purpose}/{epoch}"
            result = yield changed(fit, start=at, steps=steps, slots=slots, since=since, purpose=purpose)
            results.append(result)
            at = Served(start.model, result.vector, result.buffers, start.constants)
            slots = result.slots or {}
            if each * epoch >= total:
                break
            now = yield from self._loss(at, client, fit)
            if not before - now >= self.gamma / epoch:  # a loss that is no number stops, too
                break
            before = now
        return _part(results), {}

    @staticmethod
    def _loss(served: Served, client: Client, fit: Fit) -> Generator[Request, Any, float]:
        (score,) = yield Evaluate((served,), client.validation, fit.loss)
        return float(score.loss)


def _part(results: list[FitResult]) -> Part:
    """The answer of fits that went on from each other: the last model, all steps, the mean loss over all rows."""
    last, rows = results[-1], sum(result.rows for result in results)
    loss = sum(result.loss * result.rows for result in results) / rows if rows and len(results) > 1 else last.loss
    return Part(last.vector, last.buffers, steps=sum(result.steps for result in results), loss=loss)
