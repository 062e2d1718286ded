"""How a client trains one entry: the learner's interface, which is the plain learner."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, ClassVar

from torch import Tensor

from ..bank import Entry, Key, Value
from ..config import Local
from ..messages import Client, Group, Part, World
from ..randomness import Moment
from ..requests import Fit, Optimizer, Request, Served


class Learner:
    """Plain local training: ``local.epochs`` (or ``local.steps``) of the local optimiser, fresh every round.

    A learner that corrects the local steps overrides `fit`, and `extra` where the server has a half of it.
    Numbers in ``Entry.extra`` and the client's state are named with the learner's prefix (``control/...``).
    Attributes never change after ``__init__``.
    """

    part: ClassVar[str] = "learner"
    exchanges: int = 1
    """Rounds of communication in one round; the loop takes the larger of the learner's and the method's."""
    needs_server: bool = False
    """Whether it joins numbers of all clients on a server, which no method without one can do."""

    def __init__(self, world: World, local: Local) -> None:
        self.world = world
        self.local = local

    def optimizer(self, when: Moment) -> Optimizer:
        """The local optimiser of this round."""
        return self.local.request()

    def request(self, start: Served, client: Client, **changes: Any) -> Fit:
        """The `Fit` that the configuration asks for; keywords replace its fields."""
        fields: dict[str, Any] = {
            "start": start,
            "rows": client.train,
            "optimizer": self.optimizer(client.when),
            "epochs": self.local.epochs,
            "steps": self.local.steps,
            "batch": self.local.batch_size,
            "loss": self.local.loss,
            "loss_args": self.local.loss_args,
            "augment": tuple(self.local.augment),
        }
        return Fit(**{**fields, **changes})

    def fit(
        self, key: Key, start: Served, entry: Entry, client: Client, **request: Any
    ) -> Generator[Request, Any, tuple[Part, dict[str, Value]]]:
        """Trains ``start``, the model composed of what was received; gives the answer and the new private state.

        ``entry`` is the entry behind ``key``, whose ``extra`` holds what the server half sent along.
        """
        result = yield self.request(start, client, **request)
        return Part(result.vector, result.buffers, steps=result.steps, loss=result.loss), {}

    def extra(self, key: Key, old: Entry, new: Entry, group: Group, when: Moment) -> Mapping[str, Tensor | None]:
        """The server half: which numbers of ``Entry.extra`` change, from those that the parts brought.

        ``new`` is the entry after the mean and the server step; ``None`` takes a number away, so that it is not
        sent any more. Parts without the learner's numbers must be left alone: a method may have answers, or
        whole entries, that it made itself.
        """
        return {}
