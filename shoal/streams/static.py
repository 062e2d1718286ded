"""`StaticStream`: every client holds the same rows from the first round to the last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import pydantic
import torch
from torch import Tensor

from ..data.dataset import Dataset
from .base import Holding, Stream, Target
from .cells import IID, Array, Cells, Partition, check_client, deal, make_partition

Clients = Annotated[int, pydantic.Field(ge=1)]
Validation = Annotated[float, pydantic.Field(ge=0, lt=1)]


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

    ``validation`` is the share of each client's rows that is held back (at least one row where there are two),
    never trained on. There is one target, all test rows, and its validation rows are those of all clients.
    """

    def __init__(
        self,
        data: Dataset,
        seed: int,
        rounds: int,
        heads_by_task: bool = False,
        *,
        clients: Clients,
        partition: Partition = IID,
        validation: Validation = 0.1,
    ) -> None:
        self.dataset = data
        self.clients = clients
        self.outputs = data.outputs
        names = (seed, "stream", "partition")
        self._cells = deal(data, data.train, make_partition(partition), clients, names, validation)
        self._target = Target({}, data.test, chosen(data.train, self._cells.validation))

    def holding(self, client: int, round: int) -> Holding:
        """The client's rows; the round changes nothing."""
        check_client(client, self.clients)
        return Holding(*hold(self._cells, self.dataset.train, client), self.dataset.test)

    def targets(self, round: int) -> Sequence[Target]:
        """All test rows."""
        return (self._target,)

    def notes(self) -> list[str]:
        """Clients without rows and rows without a client."""
        return remarks(self._cells, self.clients)
