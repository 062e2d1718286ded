"""Federated averaging and, with an adaptive server optimiser, every member of the FedOpt family.

Paper: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (2017);
with a server optimiser Reddi et al., "Adaptive Federated Optimization" (ICLR 2021), algorithm 1. With
``per: task`` one entry per task, as in "Addressing Client Drift in Federated Continual Learning with Adaptive
Optimization" (arXiv 2203.13321), section 3: an entry advances only in rounds in which somebody trained its task.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from ..bank import Bank, Key
from ..learners.base import Learner
from ..messages import Assignment, Client, Participant, Update, World
from ..randomness import Moment
from ..server.base import Mean, ServerOptimizer
from .base import Method, Program


class FedAvg(Method):
    """Everyone trains the entry that it gets, and the server averages what comes back.

    ``per``: ``all`` keeps one entry for everyone, ``task`` one for each task. Entries start independently.
    """

    def __init__(
        self,
        world: World,
        learner: Learner,
        mean: Mean,
        server: ServerOptimizer,
        *,
        per: Literal["all", "task"] = "all",
    ) -> None:
        super().__init__(world, learner, mean, server)
        if per == "task" and not world.tasks:
            raise ValueError(
                "per: 'task' needs a stream with tasks; this stream has none. Use per: all, or stream.kind: tasks"
            )
        self.per = per

    @classmethod
    def keeps_task_models(cls, settings: Mapping[str, Any]) -> bool:
        """With ``per: task``."""
        return settings.get("per") == "task"

    def key(self, task: int | None) -> Key:
        """The key of the entry that a client with this task trains."""
        return "global" if self.per == "all" else f"task/{task}"

    def start(self) -> Bank:
        """One entry for all, or one per task."""
        if self.per == "all":
            return Bank().put({"global": self.initial("global")})
        names = self.world.task_models or ("main",) * self.world.tasks
        return Bank().put({f"task/{t}": self.initial(f"task/{t}", name) for t, name in enumerate(names)})

    def assign(self, bank: Bank, when: Moment, clients: Sequence[Participant]) -> Iterable[Assignment]:
        """The entry of the client's task."""
        return [Assignment(c.id, (self.key(c.task),), times=c.times) for c in clients]

    def train(self, given: Assignment, client: Client) -> Program:
        """One local fit of the entry received."""
        ((key, entry),) = given.entries.items()
        start = self.join([entry])
        note = yield from self.report(start, client)
        part, state = yield from self.learner.fit(key, start, entry, client)
        return Update({key: part}, weight=len(client.train), state=state, note=note)

    def candidates(self, bank: Bank, target: Mapping[str, Any]) -> Sequence[tuple[Key, ...]]:
        """The task's entry, or the one for all."""
        if self.per == "task" and "task" not in target:
            return [(key,) for key in bank.entries]
        return [(self.key(target.get("task")),)]
