"""`StaticStream`: every client holds the same rows from the first round to the last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
import pydantic
import torch
from torch import Tensor

from ..data.dataset import Dataset
from ..errors import ConfigError
from .base import Holding, Stream, Target
from .cells import IID, Array, Cells, Partition, check_client, count_clients, deal, make_partition

Clients = Annotated[int, pydantic.Field(ge=1)]
Validation = Annotated[float, pydantic.Field(ge=0, lt=1)]

MOST_TARGETS = 10_000
"""So many clients can be measured one by one; each of them has a line per number in every round that is measured."""


def hold(cells: Cells, rows: Tensor, client: int) -> tuple[Tensor, Tensor]:
    """The training and validation rows of a client, out of the rows of a pool."""
    train, validation = cells.rows(client)
    return chosen(rows, train), chosen(rows, validation)


def chosen(rows: Tensor, positions: Array) -> Tensor:
    """The rows at these positions of a pool."""
    return rows[torch.from_numpy(positions)]


def remarks(cells: Cells, clients: int, where: str = "") -> list[str]:
    """What a user should know of a partition: clients without rows, rows without a client."""
    notes = []
    if cells.empty:
        notes.append(f"{where}clients without a row, which are skipped: {cells.empty} of {clients}")
    if cells.unused:
        notes.append(f"{where}training rows that no client holds: {cells.unused}")
    return notes


class StaticStream(Stream):
    """A fixed partition of the training rows over the clients.

    ``clients`` may be left out with ``partition: {kind: column}``, where each value of the column is one.
    ``validation`` is the share of each client's rows that is held back (at least one row where there are two),
    never trained on.

    ``targets: all`` measures one target, all test rows, with the validation rows of all clients. ``client`` deals the
    test rows too, such that each client has the mix of its own rows (`Partition.test_split`), and measures every client
    on its own test and validation rows; for 10,000 clients at most. ``test_rows`` gives every client exactly so many
    test rows; without it all are dealt. Raises `ConfigError`.
    """

    def __init__(
        self,
        data: Dataset,
        seed: int,
        rounds: int,
        heads_by_task: bool = False,
        *,
        clients: Clients | None = None,
        partition: Partition = IID,
        validation: Validation = 0.1,
        targets: Literal["all", "client"] = "all",
        test_rows: Annotated[int, pydantic.Field(ge=1)] | None = None,
    ) -> None:
        self.dataset = data
        made = make_partition(partition)
        self.clients, self.client_names = count_clients(data, made, clients)
        self.outputs = data.outputs
        names = (seed, "stream", "partition")
        self._cells = deal(data, data.train, made, self.clients, names, validation)
        self._tests: tuple[Tensor, ...] | None = None
        if targets == "all" and test_rows is not None:
            raise ConfigError(
                f"stream.test_rows: {test_rows} for each client goes with targets: client; with targets: all the model "
                f"is measured on all test rows (data.limit_test takes fewer)"
            )
        if targets == "all":
            self._targets: tuple[Target, ...] = (Target({}, data.test, chosen(data.train, self._cells.validation)),)
            return
        if self.clients > MOST_TARGETS:
            raise ConfigError(
                f"stream.targets: client measures every client by itself, {MOST_TARGETS:,} at most; there are "
                f"{self.clients:,}. Use targets: all, or fewer clients"
            )
        train, test = made.pool(data, data.train), made.pool(data, data.test)
        if test_rows is None:  # a kind of one's own need not know of a number
            split = made.test_split(self._cells, train, test, self.clients, names)
        else:
            split = made.test_split(self._cells, train, test, self.clients, names, rows=test_rows)
        self._tests = tuple(chosen(data.test, np.sort(split.rows(client))) for client in range(self.clients))
        self._targets = tuple(
            Target({"client": client}, test, chosen(data.train, self._cells.held(client)))
            for client, test in enumerate(self._tests)
        )

    def holding(self, client: int, round: int) -> Holding:
        """The client's rows; the round changes nothing."""
        check_client(client, self.clients)
        test = self.dataset.test if self._tests is None else self._tests[client]
        return Holding(*hold(self._cells, self.dataset.train, client), test)

    def sizes(self) -> Array | None:
        """The clients' training rows, the same in every round."""
        return self._cells.sizes(self.clients)

    def targets(self, round: int) -> Sequence[Target]:
        """All test rows, or each client's own."""
        return self._targets

    def notes(self) -> list[str]:
        """Clients without rows and rows without a client."""
        notes = remarks(self._cells, self.clients)
        # A table with a column of clients has counted them itself.
        said = self.dataset.notes if self.client_names else ()
        if f"clients without a training row: {self._cells.empty} of {self.clients}" in said:
            notes = [note for note in notes if not note.startswith("clients without a row")]
        if self._tests is not None:
            without = sum(not len(test) for test in self._tests)
            if without and f"clients without a test row: {without} of {self.clients}" not in said:
                notes.append(f"clients without a test row, which are not measured: {without} of {self.clients}")
            held = len(torch.cat(self._tests).unique())  # type: ignore[no-untyped-call]
            unused = len(self.dataset.test) - held
            if unused:
                notes.append(f"test rows that no client holds: {unused}")
        return notes
