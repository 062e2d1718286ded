"""Who holds what when, as plain tables for the command line and the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ..data.members import in_words
from .base import Holding, Stream
from .concepts import ConceptStream
from .shifts import ShiftStream
from .tasks import TaskStream

RANDOM = "random each round"
COUNTED = 1000
"""Up to so many clients it is counted how many meet each concept."""


@dataclass(frozen=True)
class Table:
    """A table of text. ``note`` says what was left out, ``""`` if nothing."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    note: str = ""


def describe(stream: Stream, rounds: int, clients: int = 10) -> list[Table]:
    """The tables that fit a stream: what clients hold in each phase, tasks by round, clusters, counts of classes.

    ``clients`` is how many clients are shown at most; in the tables of clusters by time step and of concepts by round,
    which are narrow, it is 50.
    """
    if isinstance(stream, ConceptStream):
        return [concept_table(stream), meeting_table(stream, rounds), class_counts(stream, clients)]
    if isinstance(stream, ShiftStream):
        return [cluster_table(stream), step_table(stream, rounds), class_counts(stream, clients)]
    if not stream.tasks:
        return [class_counts(stream, clients)]
    tables = [task_table(stream), phase_table(stream, clients)]
    if _random(stream):
        tables.append(round_table(stream, rounds, clients))
    return tables


def _random(stream: Stream) -> bool:
    return getattr(stream, "order", "") == "multi-task"


def _shown(stream: Stream, clients: int) -> tuple[range, str]:
    shown = range(min(clients, stream.clients))
    left = stream.clients - len(shown)
    return shown, f"clients not shown: {left}" if left else ""


def client_title(stream: Stream, client: int) -> str:
    """The number of a client and, where the data have one, its name."""
    return f"{client} ({stream.client_names[client]})" if stream.client_names else str(client)


def _counts(stream: Stream, rows: Tensor) -> np.ndarray:
    labels = stream.dataset.labels_of(rows).cpu().numpy()
    return np.bincount(labels, minlength=len(stream.dataset.classes))


def held_classes(stream: Stream, rows: Tensor) -> list[str]:
    """The original labels among these rows."""
    return [stream.dataset.classes[i] for i in np.flatnonzero(_counts(stream, rows))]


def _list(names: Sequence[str], most: int = 10) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "") or "none"


def _spans(stream: Stream) -> list[tuple[int, int | str]]:
    """The first and last round of each phase."""
    ends: list[int | str] = [*stream.boundaries, "the end"]
    return list(zip([1, *(end + 1 for end in stream.boundaries)], ends, strict=True))


def task_table(stream: Stream) -> Table:
    """Each task: its name, test and validation rows, original labels, the outputs of its head, and the shape of its
    inputs where they have several."""
    rows: list[tuple[str, ...]] = []
    for number, target in enumerate(stream.targets(1)):
        name = stream.task_names[number] if number < len(stream.task_names) else ""
        outputs = stream.task_outputs[number] if stream.task_outputs else stream.outputs
        classes = _list(held_classes(stream, target.test), 20)
        sizes = str(len(target.test)), str(len(target.validation))
        shape = (in_words(stream.task_shapes[number]),) if stream.task_shapes else ()
        rows.append((str(number), name, *sizes, classes, str(outputs), *shape))
    title = f"Tasks (head: {stream.head})"
    columns = ("task", "name", "test rows", "validation rows", "labels", "outputs")
    return Table(title, (*columns, "inputs") if stream.task_shapes else columns, rows)


def phase_table(stream: Stream, clients: int = 10, most: int = 20) -> Table:
    """Phase by phase and client by client: the task, the number of rows, the original labels.

    Where tasks are random each round, one line per client covers all of them: the least and the most rows, the
    labels of all tasks. At most ``most`` phases are shown.
    """
    shown, note = _shown(stream, clients)
    notes = [note] if note else []
    rows: list[tuple[str, ...]] = []
    if isinstance(stream, TaskStream) and _random(stream):
        for client in shown:
            cells = [stream.cell(client, task) for task in range(stream.tasks)]
            train, validation = [len(cell[0]) for cell in cells], [len(cell[1]) for cell in cells]
            labels = held_classes(stream, torch.cat([cell[0] for cell in cells]))
            rows.append(
                ("all", "all", client_title(stream, client), RANDOM, _range(train), _range(validation), _list(labels))
            )
    else:
        spans = _spans(stream)
        if len(spans) > most:
            notes.append(f"phases not shown: {len(spans) - most}")
        for phase, (first, last) in enumerate(spans[:most]):
            for client in shown:
                held = stream.holding(client, first)
                sizes = str(len(held.train)), str(len(held.validation))
                labels = held_classes(stream, held.train)
                who = client_title(stream, client)
                rows.append((str(phase), f"{first} to {last}", who, _task(stream, held), *sizes, _list(labels)))
    columns = ("phase", "rounds", "client", "task", "training rows", "validation rows", "labels")
    return Table("Who holds what", columns, rows, "; ".join(notes))


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _task(stream: Stream, held: Holding) -> str:
    number = held.truth.get("task", "")
    named = isinstance(number, int) and number < len(stream.task_names)
    return f"{number} ({stream.task_names[int(number)]})" if named else str(number)


def round_table(stream: Stream, rounds: int, clients: int = 10, most: int = 8) -> Table:
    """The task of each client in some rounds, spread evenly from the first to the last."""
    shown, note = _shown(stream, clients)
    picked = sorted({int(r) for r in np.linspace(1, max(rounds, 1), num=most).round()})
    rows = [
        (client_title(stream, client), *(str(stream.holding(client, r).truth.get("task", "")) for r in picked))
        for client in shown
    ]
    return Table("Tasks by round (a sample)", ("client", *(f"round {r}" for r in picked)), rows, note)


def cluster_table(stream: ShiftStream) -> Table:
    """Each cluster: its name, the rows that its clients take theirs from, and how many clients hold it at each step."""
    rows: list[tuple[str, ...]] = []
    for number, name in enumerate(stream.cluster_names):
        sizes = [int((held == number).sum()) for held in stream.held_clusters()]
        counts = (str(len(pool)) for pool in stream.cluster_rows(number))
        rows.append((str(number), name, *counts, _range(sizes)))
    columns = ("cluster", "name", "training rows", "validation rows", "test rows", "clients at a step")
    return Table("Clusters", columns, rows)


def step_table(stream: ShiftStream, rounds: int, clients: int = 50, most: int = 20) -> Table:
    """The cluster of each client at each time step; with ``from ROUND`` where it changes later than others.

    At most ``clients`` clients and ``most`` steps are shown, and only steps that a run of ``rounds`` rounds reaches.
    """
    shown, note = _shown(stream, clients)
    notes = [note] if note else []
    spans = _spans(stream)
    if len(spans) > most:
        notes.append(f"time steps not shown: {len(spans) - most}")
    steps = range(min(len(spans), most))
    held = stream.held_clusters()
    rows: list[tuple[str, ...]] = []
    for client in shown:
        cells = []
        for step in steps:
            begins = stream.start(client, step)
            late = f" from {begins}" if begins != spans[step][0] and begins <= rounds else ""
            cells.append(f"{held[step, client]}{late}")
        rows.append((str(client), *cells))
    heads = (f"step {step}: {first} to {last}" for step, (first, last) in enumerate(spans[:most]))
    return Table("Cluster of each client by time step (rounds)", ("client", *heads), rows, "; ".join(notes))


def concept_table(stream: ConceptStream) -> Table:
    """Each concept: its name, its rows by use, its labels, the rows of a client's chunk, and when it exists."""
    rows: list[tuple[str, ...]] = []
    for number, name in enumerate(stream.concept_names):
        uses = stream.concept_rows(number)
        sizes = (str(len(some)) for some in (uses.train, uses.validation, uses.test))
        labels = "" if stream.dataset.is_regression else _list(held_classes(stream, uses.train), 20)
        smallest, largest, owners = stream.chunk_sizes(number)
        times = [f"{first} to {'the end' if last is None else last}" for first, last in stream.schedule.spans(number)]
        rows.append((str(number), name, *sizes, labels, str(owners), _range([smallest, largest]), ", ".join(times)))
    columns = ("concept", "name", "training rows", "validation rows", "test rows", "labels")
    return Table(f"Concepts (head: {stream.head})", (*columns, "clients", "rows of a client", "rounds"), rows)


def meeting_table(stream: ConceptStream, rounds: int, clients: int = 50, most: int = 20) -> Table:
    """The concept of each client in the first rounds and, last of all, how many clients meet each of them.

    At most ``clients`` clients and ``most`` rounds are shown; the counts are of all clients up to 1,000, else left out.
    """
    shown, note = _shown(stream, clients)
    picked = min(max(rounds, 1), most)
    notes = [note] if note else []
    if rounds > picked:
        notes.append(f"rounds not shown: {rounds - picked}")
    counted = range(stream.clients) if stream.clients <= COUNTED else shown
    met = np.stack([stream.concepts_met(client, picked) for client in counted])
    rows: list[tuple[str, ...]] = [
        (str(client), *("-" if concept < 0 else str(concept) for concept in met[client])) for client in shown
    ]
    if len(counted) == stream.clients:
        for number in range(len(stream.concept_names)):
            rows.append((f"clients of {number}", *(str(count) for count in (met == number).sum(axis=0).tolist())))
    columns = ("client", *(str(round) for round in range(1, picked + 1)))
    return Table("Concept of each client by round", columns, rows, "; ".join(notes))


def class_counts(stream: Stream, clients: int = 10, round: int = 1) -> Table:
    """How many rows (training and validation) of each original label each client holds in a round.

    Of a regression the rows alone are counted; where every client is measured by itself, its test rows too.
    """
    shown, note = _shown(stream, clients)
    held = [stream.holding(client, round) for client in shown]
    counts = [_counts(stream, h.train) + _counts(stream, h.validation) for h in held]
    rows: list[tuple[str, ...]] = []
    if not stream.dataset.is_regression:
        names = enumerate(stream.dataset.classes)
        rows = [(name, *(str(column[label]) for column in counts)) for label, name in names]
    rows.append(("all", *(str(int(column.sum())) for column in counts)))
    if any("client" in target.labels for target in stream.targets(round)[:1]):
        rows.append(("test rows", *(str(len(h.test)) for h in held)))
    title = "Rows by client" if stream.dataset.is_regression else "Rows by label and client"
    return Table(title, ("label", *(f"client {client_title(stream, c)}" for c in shown)), rows, note)
