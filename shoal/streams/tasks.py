"""`TaskStream`: tasks that come one after another, at the same time everywhere or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
import torch

from ..data.dataset import Dataset
from ..data.members import in_words
from ..errors import ConfigError
from ..randomness import generator
from .base import Holding, Stream, Target
from .cells import IID, Partition, check_client, count_clients, deal, make_partition
from .grouping import Task, by_class, by_column, by_transform
from .static import MOST_TARGETS, Clients, Validation, chosen, hold, remarks

Order = Literal["multi-task", "synchronous", "asynchronous"]
Head = Literal["auto", "task", "shared"]


def phases(rounds: int, tasks: int) -> tuple[int, ...]:
    """The last round of each of ``tasks`` phases; their lengths differ by at most one, the longer ones first."""
    if rounds < tasks:
        raise ConfigError(
            f"rounds: {tasks} tasks need at least one round each, but there are {rounds}; raise rounds or lower "
            f"stream.tasks"
        )
    return tuple(p * (rounds // tasks) + min(p, rounds % tasks) for p in range(1, tasks + 1))


class TaskStream(Stream):
    """``tasks`` tasks in as many phases of equal length (``rounds / tasks``; the first ones longer by one otherwise).

    ``order`` says which task a client trains in a round:

    - ``multi-task``: a uniformly random one, drawn anew by every client in every round;
    - ``synchronous``: task ``p`` in phase ``p``, everywhere;
    - ``asynchronous``: a permutation of the tasks of the client's own, one task a phase. (The tasks come
      asynchronously; aggregation stays synchronous.)

    ``by`` says what a task is: ``class`` (consecutive classes, or ``classes``: one list of original labels per task;
    ``shuffle_classes`` permutes them first, with the run's seed), ``transform`` (all rows under a transform of its
    own; ``transforms`` names them, by default identity, rotate90, rotate180, rotate270, mirror, invert), or the name
    of a column of the data (``domain``, ``source``: one value a task, consecutive ones where there are fewer tasks), or
    a list of columns (``[source, domain]``: one combination of values a task).

    Each task's training rows are dealt to the clients by ``partition``, independently of the other tasks; a client
    that comes back to a task finds the same rows. ``clients`` may be left out with ``partition: {kind: column}``.
    ``validation`` is the share of the client's rows of a task that is held back, never trained on. ``head: task`` gives
    every task a head of its own with labels of its own (``dataset.targets``), ``shared`` is one head over all labels;
    ``auto`` is ``task`` where the method keeps a model per task. Images of several shapes (`Dataset.members`) need
    that, and those of each task must have one shape. Round 0, the warm-up, has the rows of round 1.

    ``targets: task``: every task, on all its test rows, with the validation rows of all clients. ``client``: every
    client on each of its tasks, from the phase on in which it begins with it (``multi-task``: on all from the start),
    on all test rows of the task, with its own validation rows; 10,000 clients at most.

    Source of the orders: Venkatesha et al., "Addressing Client Drift in Federated Continual Learning with Adaptive
    Optimization", arXiv:2203.13321, cases 1 to 3. Deviation: the paper's phase index ``ceil(r // Q)`` takes ``T + 1``
    values; here phase ``p`` (from 0) is the rounds ``pQ + 1`` to ``(p + 1) Q``. Raises `ConfigError`.
    """

    def __init__(
        self,
        data: Dataset,
        seed: int,
        rounds: int,
        heads_by_task: bool = False,
        *,
        tasks: Annotated[int, pydantic.Field(ge=1)],
        by: str | Annotated[list[str], pydantic.Field(min_length=1)] = "class",
        order: Order = "asynchronous",
        clients: Clients | None = None,
        partition: Partition = IID,
        validation: Validation = 0.1,
        head: Head = "auto",
        classes: list[list[int | str]] | None = None,
        transforms: list[str] | None = None,
        shuffle_classes: bool = False,
        targets: Literal["task", "client"] = "task",
    ) -> None:
        if head == "task" and not heads_by_task:
            raise ConfigError(
                "stream.head: task needs a model per task, but this method keeps one for all; set method.per: task, "
                "or stream.head: shared"
            )
        for name, given, owner in (
            ("classes", classes is not None, "class"),
            ("shuffle_classes", shuffle_classes, "class"),
            ("transforms", transforms is not None, "transform"),
        ):
            if given and by != owner:
                raise ConfigError(f"stream.{name}: belongs to by: {owner}; got by: {by}")
        ends = phases(rounds, tasks)
        made: list[Task]
        if by == "transform":
            data, made = by_transform(data, tasks, transforms)
        elif by == "class":
            made = by_class(data, tasks, seed, classes, shuffle_classes)
        else:
            made = by_column(data, tasks, by)
        self.order = order
        self.by = by
        self.seed = seed
        self.rounds = rounds
        dealt = make_partition(partition)
        self.clients, self.client_names = count_clients(data, dealt, clients)
        if targets == "client" and self.clients > MOST_TARGETS:
            raise ConfigError(
                f"stream.targets: client measures every client by itself, {MOST_TARGETS:,} at most; there are "
                f"{self.clients:,}. Use targets: task, or fewer clients"
            )
        self._by_client = targets == "client"
        self.tasks = tasks
        self.task_names = tuple(task.name for task in made)
        self.boundaries = ends[:-1]
        self.outputs = data.outputs
        self.head = "task" if heads_by_task and head != "shared" else "shared"
        self.task_classes = tuple(task.classes for task in made)
        """The classes of each task, as internal labels, in the order of its head's outputs."""
        if self.head == "task":
            self.task_outputs = tuple(data.outputs if data.is_regression else len(task.classes) for task in made)
            self.outputs = max(self.task_outputs)
            self.task_shapes = _shapes(data, made)
            if by != "transform" and not data.is_regression:
                data = replace(data, targets=_local(data, made))
        self.dataset = data
        self._made = made
        self._cells = [
            deal(data, task.train, dealt, self.clients, (seed, "stream", "partition", t), validation)
            for t, task in enumerate(made)
        ]
        self._targets = tuple(
            Target({"task": t}, task.test, chosen(task.train, cells.validation))
            for t, (task, cells) in enumerate(zip(made, self._cells, strict=True))
        )

    def task(self, client: int, round: int) -> int:
        """The task that a client trains in a round."""
        check_client(client, self.clients)
        round = max(1, round)
        if self.order == "multi-task":
            return int(generator(self.seed, "stream", "task", client, round).integers(self.tasks))
        phase = self.phase(round)
        if self.order == "synchronous":
            return phase
        return int(generator(self.seed, "stream", "order", client).permutation(self.tasks)[phase])

    def holding(self, client: int, round: int) -> Holding:
        """The client's rows of its task in this round."""
        number = self.task(client, round)
        task, (train, validation) = self._made[number], self.cell(client, number)
        truth: dict[str, int | str] = {"task": number, "phase": self.phase(max(1, round))}
        if task.domain is not None:
            truth["domain"] = task.domain
        return Holding(train, validation, task.test, number, truth)

    def sizes(self) -> np.ndarray | None:
        """The clients' training rows of their tasks in round 1."""
        each = [sizes for cells in self._cells if (sizes := cells.sizes(self.clients)) is not None]
        if len(each) < len(self._cells):
            return None
        if all(np.array_equal(each[0], other) for other in each[1:]):  # whatever task it is
            return each[0]
        return np.fromiter((each[self.task(c, 1)][c] for c in range(self.clients)), np.int64, self.clients)

    def cell(self, client: int, task: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The client's training and validation rows of a task, whenever it trains it."""
        check_client(client, self.clients)
        return hold(self._cells[task], self._made[task].train, client)

    def targets(self, round: int) -> Sequence[Target]:
        """One per task, all of them in every round; or one for each client and task that it has begun with."""
        if not self._by_client:
            return self._targets
        begun = range(self.tasks) if self.order == "multi-task" else range(self.phase(max(1, round)) + 1)
        firsts = (1, *(last + 1 for last in self.boundaries))
        found = []
        for client in range(self.clients):
            for phase in begun:
                task = phase if self.order == "multi-task" else self.task(client, firsts[phase])
                rows = self._targets[task].test, self.cell(client, task)[1]
                found.append(Target({"task": task, "client": client}, *rows))
        return found

    def classes_of(self, labels: Mapping[str, Any]) -> tuple[str, ...]:
        """The classes of the task's own head, where it has one; else all."""
        task = labels.get("task")
        if self.head != "task" or not isinstance(task, int):
            return self.dataset.classes
        return tuple(self.dataset.classes[place] for place in self.task_classes[task])

    def notes(self) -> list[str]:
        """Phases of unequal length, rows that no task or no client holds, clients and tasks without rows."""
        notes = []
        short, longer = divmod(self.rounds, self.tasks)
        if longer:
            first = "the first phase has" if longer == 1 else f"the first {longer} phases have"
            notes.append(
                f"{self.rounds} rounds are no multiple of {self.tasks} tasks: {first} one round more than {short}"
            )
        used = torch.cat([task.train for task in self._made])
        outside = len(self.dataset.transforms) * len(self.dataset.train) - len(used)
        if outside:
            notes.append(f"training rows of no task, because stream.classes leaves their labels out: {outside}")
        for number, (task, cells) in enumerate(zip(self._made, self._cells, strict=True)):
            where = f"task {number} ({task.name}): "
            for rows, what in ((task.train, "training"), (task.test, "test")):
                if not len(rows):
                    notes.append(f"{where}there is no {what} row")
            if len(task.train):
                notes += remarks(cells, self.clients, where)
        return notes


def _shapes(data: Dataset, made: Sequence[Task]) -> tuple[tuple[int, ...], ...]:
    """The shape of each task's inputs, nothing where all rows have one. Raises `ConfigError` for a task of several."""
    if data.members is None or len(set(data.members.shapes)) == 1:
        return ()
    found: list[tuple[int, ...]] = []
    for task in made:
        shapes = data.shapes_of(torch.cat([task.train, task.test]))
        if len(shapes) > 1:
            raise ConfigError(
                f"stream.by: the rows of a task need one shape; those of {task.name!r} have "
                f"{' and '.join(map(in_words, shapes))} (channels x height x width); give every source a task of its "
                f"own, stream.by: source with stream.tasks: {len(data.members.parts)}, or set data.size and "
                f"data.channels"
            )
        found += shapes or data.members.shapes[:1]
    return tuple(found)


def _local(data: Dataset, made: Sequence[Task]) -> torch.Tensor:
    """Each row's label within the head of its task, int64, one per base row; -1 for rows of no task."""
    targets = torch.full((len(data),), -1, dtype=torch.int64)
    labels = data.labels.cpu()
    for task in made:
        places = np.full(len(data.classes), -1)
        places[list(task.classes)] = np.arange(len(task.classes))
        rows = torch.cat([task.train, task.test])
        targets[rows] = torch.from_numpy(places)[labels[rows]]
    return targets
