"""`Stream`: what each client holds, and when. A pure function of (seed, client, round)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from ..data.dataset import Dataset


@dataclass(frozen=True)
class Holding:
    """The rows of one client in one round, as indices into the stream's data set (int64).

    ``task`` is set only where the client knows its task. ``truth`` (task, concept, cluster, domain, phase) is for
    measuring and reports; no method sees it.
    """

    train: Tensor
    validation: Tensor
    test: Tensor
    task: int | None = None
    truth: Mapping[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """Something to be measured: a task, a concept, a client. ``labels`` name it, such as ``{"task": 3}``.

    ``stamp`` changes whenever the target's rows do.
    """

    labels: Mapping[str, Any]
    test: Tensor
    validation: Tensor
    stamp: int = 0


def phase_of(round: int, boundaries: Sequence[int]) -> int:
    """The phase of a round, from 0, where these are the last rounds of all phases but the last."""
    return sum(1 for last in boundaries if round > last)


class Stream:
    """What each client holds, and when.

    A kind of stream is built as ``Kind(data, seed, rounds, heads_by_task, **settings)`` and sets the attributes
    below; they never change afterwards. Nothing is stored per client and round.
    """

    part: ClassVar[str] = "stream"

    dataset: Dataset
    """The rows; may be the data given under several transforms, or with targets of its own."""
    clients: int
    outputs: int
    """The number of outputs of a model's head."""
    tasks: int = 0
    task_outputs: tuple[int, ...] = ()
    """The outputs of each task's head; empty unless tasks have heads of their own."""
    task_shapes: tuple[tuple[int, ...], ...] = ()
    """The shape of each task's inputs; empty unless tasks have models of their own, for inputs of several shapes."""
    head: str = "shared"
    """``task``: local labels, a head per task; ``shared``: global labels, one head."""
    boundaries: tuple[int, ...] = ()
    """The last round of every phase but the last one."""
    task_names: tuple[str, ...] = ()
    client_names: tuple[str, ...] = ()
    """The names that clients have in the data, by number; empty where they have none."""
    cluster_names: tuple[str, ...] = ()
    """The names of the clusters that ``truth["cluster"]`` numbers; empty without clusters."""
    concept_names: tuple[str, ...] = ()
    """The names of the concepts that ``truth["concept"]`` numbers; empty without concepts."""

    def holding(self, client: int, round: int) -> Holding:
        """What a client holds in a round (from 1)."""
        raise NotImplementedError

    def sizes(self) -> np.ndarray | None:
        """The training rows of every client in round 1, int64 ``[clients]``, where they can be had without asking for
        the rows of each; else ``None``."""
        return None

    def targets(self, round: int) -> Sequence[Target]:
        """What is to be measured after a round."""
        raise NotImplementedError

    def classes_of(self, labels: Mapping[str, Any]) -> tuple[str, ...]:
        """The names of the outputs of the model that serves a target with these labels, in their order."""
        return self.dataset.classes

    def phase(self, round: int) -> int:
        """The phase of a round, from 0; phase ``p`` ends with round ``boundaries[p]``."""
        return phase_of(round, self.boundaries)

    def notes(self) -> list[str]:
        """Remarks for the user: what was rounded, dropped or left empty. Shown by ``shoal show`` and in the report."""
        return []
