"""`ConceptStream`: clients that meet one concept after another, a window of rows at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
import torch
from torch import Tensor

from ..data.dataset import Dataset
from ..errors import ConfigError
from .base import Holding, Stream, Target
from .cells import check_client
from .concepts_meetings import NONE, Meetings, Order, Schedule, Sequences, Weights
from .concepts_selection import Concept, Given, make_concepts
from .concepts_split import Chunks, Mode, Uses, next_rows, split_uses
from .shifts_clusters import families
from .static import MOST_TARGETS, Clients, Validation

Positive = Annotated[int, pydantic.Field(ge=1)]
Share = Annotated[float, pydantic.Field(ge=0, lt=1)]


class ConceptStream(Stream):
    """In every round a client meets one of several concepts, and holds the next rows of its share of it.

    ``concepts`` says what they are (`shoal.streams.concepts_selection.make_concepts`): ``{by: source}`` or another
    column, ``{classes: [[..], ..]}``, ``{by: transform, groups: [..]}``, or a list of selectors. No client is told its
    concept, unless ``known``: then the concepts are tasks that clients know (the task-incremental scenario).

    The rows of each concept are split once (`shoal.streams.concepts_split.split_uses`). ``split: merged``: training and
    test rows of the data together, ``test`` and ``validation`` are shares of them. ``given``: the data's test rows
    stay, ``validation`` is a share of the training rows. Each concept's training rows are shuffled and cut into a chunk
    for every client that may meet it, all disjoint; so are its validation rows.

    When a client meets a concept for the m-th time (from 0), it holds ``window`` rows of its chunk of it from row
    m times ``step`` on (default: ``window``), going on at the chunk's beginning; a smaller chunk is held whole. Its
    validation rows of the concept are always the same ones.

    Which concept a client meets: ``order: random``, drawn by ``weights`` (one list for all clients, one for each, or
    ``{dirichlet: alpha}``; equal without); ``cyclic``, one after another; ``listed``, by ``sequence``, see
    `shoal.streams.concepts_meetings.Meetings`. ``schedule`` says which concepts exist when: ``[{concept: 2, from: 10,
    until: 30}]``. A client none of whose concepts exists holds no rows. Phases change where the schedule does.

    ``head: shared``: one head over all labels. ``concept``: labels are numbered within the concept, and the head is as
    wide as the largest one has labels.

    ``targets: concept``: every concept that exists or has existed, on all its test rows, with all its validation rows.
    ``client``: every client on the test rows of its concept of the round, with its own validation rows of it.
    ``truth`` has ``concept`` (-1: none) and ``phase``; with ``known`` the concept as ``task``, too.

    Source: "Concept Matching: Clustering-based Federated Continual Learning", arXiv:2311.06921; that training and test
    rows are put together is the way of FedWeIT's code (ICML 2021). Deviations: splits are stratified by label, and test
    rows the same for all seeds. Raises `ConfigError`.
    """

    def __init__(
        self,
        data: Dataset,
        seed: int,
        rounds: int,
        heads_by_task: bool = False,
        *,
        concepts: Given,
        clients: Clients,
        window: Positive = 320,
        step: Positive | None = None,
        split: Mode = "merged",
        test: Share = 0.2,
        validation: Validation = 0.1,
        order: Order = "random",
        weights: Weights | None = None,
        sequence: Sequences | None = None,
        schedule: list[dict[str, Any]] = [],  # noqa: B006  (never changed)
        head: Literal["shared", "concept"] = "shared",
        known: bool = False,
        targets: Literal["concept", "client"] = "concept",
    ) -> None:
        for name, value in (("clients", clients), ("window", window), ("step", 1 if step is None else step)):
            if value < 1:
                raise ConfigError(f"stream.{name}: one at least; got {value}")
        if targets == "client" and clients > MOST_TARGETS:
            raise ConfigError(
                f"stream.targets: client measures every client by itself, {MOST_TARGETS:,} at most; there are "
                f"{clients:,}. Use targets: concept, or fewer clients"
            )
        self.seed = seed
        self.rounds = rounds
        self.clients = clients
        self.window = window
        self.step = window if step is None else step
        self.head = head
        moved, made = make_concepts(data, concepts)
        self.concept_names = tuple(concept.name for concept in made)
        self.known = known
        if known:
            self.tasks, self.task_names = len(made), self.concept_names
        self.dataset, self._uses = split_uses(moved, made, split, test, validation, seed)
        self.schedule = Schedule(schedule, self.concept_names)
        starts = self.schedule.starts
        self.boundaries = tuple(int(start) - 1 for start in starts[1:] if start <= rounds)
        self._meetings = Meetings(order, clients, self.schedule, weights, sequence, seed)
        may_meet = self._meetings.may_meet(clients)
        self._train, self._validation = (
            [
                Chunks(getattr(uses, use), may_meet[:, k], (seed, "stream", f"{use} chunks", k))
                for k, uses in enumerate(self._uses)
            ]
            for use in ("train", "validation")
        )
        self._check_chunks()
        self._classes = [self._labels_of(uses) for uses in self._uses]
        self.outputs = data.outputs
        if head == "concept":
            self.outputs = max(len(classes) for classes in self._classes)
            self.dataset = replace(self.dataset, targets=self._local(made))
        self._by_client = targets == "client"
        self._remarks = self._notes(data, made, split)

    # ---- who meets what ---------------------------------------------------------------------------------------

    def concepts_met(self, client: int, round: int) -> np.ndarray:
        """The concept of a client in each round from 1 to this one, int64 ``[round]``; -1: none."""
        check_client(client, self.clients)
        return self._meetings.until(client, max(1, round))

    def concept(self, client: int, round: int) -> int:
        """The concept of a client in a round; -1: none."""
        return int(self.concepts_met(client, round)[-1])

    def concept_rows(self, concept: int) -> Uses:
        """All training, validation and test rows of a concept."""
        return self._uses[concept]

    def chunk(self, client: int, concept: int) -> Tensor:
        """All training rows that a client may ever hold of a concept, in the order in which it takes them."""
        check_client(client, self.clients)
        return self._train[concept][client]

    def chunk_sizes(self, concept: int) -> tuple[int, int, int]:
        """The smallest and the largest chunk of a concept, and how many clients have one."""
        chunks = self._train[concept]
        return chunks.smallest, chunks.largest, chunks.owners

    def holding(self, client: int, round: int) -> Holding:
        """The window of its chunk that it has come to; no rows where it meets no concept."""
        round = max(1, round)
        met = self.concepts_met(client, round)
        concept = int(met[-1])
        truth: dict[str, int | str] = {"concept": concept, "phase": self.phase(round)}
        if concept == NONE:
            none = torch.empty(0, dtype=torch.int64)
            return Holding(none, none, none, truth=truth)
        if self.known:
            truth["task"] = concept
        before = int((met[:-1] == concept).sum())
        train = next_rows(self._train[concept][client], self.window, before * self.step)
        task = concept if self.known else None
        return Holding(train, self._validation[concept][client], self._uses[concept].test, task, truth)

    def targets(self, round: int) -> Sequence[Target]:
        """The concepts that exist or have existed, or every client on its current one."""
        round = max(1, round)
        if not self._by_client:
            firsts = [self.schedule.first(k) for k in range(len(self._uses))]
            return [
                Target({"concept": k}, uses.test, uses.validation)
                for k, (uses, first) in enumerate(zip(self._uses, firsts, strict=True))
                if first <= round
            ]
        found = []
        for client in range(self.clients):
            held = self.holding(client, round)
            # The rows depend on the concept alone; 0 is none.
            found.append(Target({"client": client}, held.test, held.validation, int(held.truth["concept"]) + 1))
        return found

    # ---- labels -------------------------------------------------------------------------------------------------

    def classes_of(self, labels: Mapping[str, Any]) -> tuple[str, ...]:
        """With ``head: concept`` the concept's classes, then outputs that it does not use; of a client numbers."""
        concept = labels.get("concept")
        if self.head != "concept":
            return self.dataset.classes
        if not isinstance(concept, int):
            return tuple(str(place) for place in range(self.outputs))
        names = [self.dataset.classes[label] for label in self._classes[concept]]
        return (*names, *(f"unused output {place}" for place in range(len(names), self.outputs)))

    def _labels_of(self, uses: Uses) -> list[int]:
        """The labels that a concept has, ascending."""
        rows = torch.cat([uses.train, uses.validation, uses.test])
        found: list[int] = self.dataset.labels_of(rows).unique().tolist()  # type: ignore[no-untyped-call]
        return found

    def _local(self, made: Sequence[Concept]) -> Tensor:
        """Each base row's label within its concept, int64; -1 for rows of no concept."""
        if self.dataset.is_regression or self.dataset.label_maps is not None:
            what = "values have no labels" if self.dataset.is_regression else "swapped labels are those of one head"
            raise ConfigError(f"stream.head: concept numbers the labels of each concept, but {what}; use head: shared")
        targets = np.full(len(self.dataset), -1, dtype=np.int64)
        labels = self.dataset.labels.cpu().numpy()
        for number, (concept, classes) in enumerate(zip(made, self._classes, strict=True)):
            own = np.searchsorted(classes, labels[concept.base])
            before = targets[concept.base]
            if ((before >= 0) & (before != own)).any():
                raise ConfigError(
                    f"stream.head: concept {number} ({concept.name}) shares rows with another concept, in which their "
                    f"labels have other numbers; use head: shared"
                )
            targets[concept.base] = own
        return torch.from_numpy(targets)

    # ---- remarks ------------------------------------------------------------------------------------------------

    def _check_chunks(self) -> None:
        for number, chunks in enumerate(self._train):
            if chunks.owners and not chunks.smallest:
                raise ConfigError(
                    f"stream.clients: {chunks.owners} clients may meet concept {number} "
                    f"({self.concept_names[number]}), which has only {len(self._uses[number].train)} training rows; "
                    f"each needs one at least. Lower stream.clients, or let fewer clients meet it (stream.weights)"
                )

    def notes(self) -> list[str]:
        """What was split anew, rows that nobody holds, small chunks, concepts and rounds that are not reached."""
        return list(self._remarks)

    def _notes(self, data: Dataset, made: Sequence[Concept], split: Mode) -> tuple[str, ...]:
        notes = []
        if split == "merged" and len(data.test):
            notes.append(
                f"the {len(data.train)} training and {len(data.test)} test rows of the data are put together and each "
                f"concept is split anew (stream.split: given keeps the test rows)"
            )
        used = np.unique(np.concatenate([concept.base for concept in made]))
        outside = len(data.train) + len(data.test) - len(used)
        if outside:
            notes.append(f"rows of no concept: {outside}")
        if len(families(len(data), [np.unique(concept.base) for concept in made])) < len(made):
            notes.append("some concepts have rows in common, so two clients may hold the same row, each of its concept")
        for number, name in enumerate(self.concept_names):
            notes += [f"concept {number} ({name}): {note}" for note in self._concept_notes(number)]
        lacking = [
            span
            for span, there in zip(self.schedule.starts.tolist(), self.schedule.exists, strict=True)
            if not there.any()
        ]
        if any(start <= self.rounds for start in lacking):
            notes.append(f"there are rounds in which no concept exists, the first is round {lacking[0]}")
        return tuple(notes)

    def _concept_notes(self, number: int) -> list[str]:
        uses, chunks, first = self._uses[number], self._train[number], self.schedule.first(number)
        notes = [f"there is no {use} row" for use in ("validation", "test") if not len(getattr(uses, use))]
        if not chunks.owners:
            return [*notes, f"no client ever meets it, its {len(uses.train)} training rows are held by nobody"]
        if first > self.rounds:
            notes.append("it does not exist in any round of the run")
        if chunks.smallest < self.window:
            sizes = (
                str(chunks.smallest) if chunks.smallest == chunks.largest else f"{chunks.smallest} or {chunks.largest}"
            )
            notes.append(f"a client's chunk has {sizes} rows, less than the window of {self.window}: it is held whole")
        without = self._validation[number].owners - len(uses.validation)
        if without > 0 and len(uses.validation):
            notes.append(f"clients without a validation row of it: {without} of {chunks.owners}")
        return notes
