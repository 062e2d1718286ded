"""Noticing shifts: what a client does when its own loss jumps, and what it tells the others.

Every client publishes the round of the last alarm of each client that it has heard of, its own among them; so an alarm
goes from contact to contact with the models. Who hears of a new one has numbers about that client that are older than
the shift.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from ..bank import Entry, Key, Value
from ..messages import Client
from .detectors import Detector
from .graphs import belong
from .similarities import Similarities

OnShift = Literal["forget", "age"]
Aging = Annotated[float, Field(ge=0, lt=1)]
ALARMS = "gossip/alarms"
"""In ``Entry.extra``: float32 ``[2, k]``, the ids of k clients in ascending order, and the round of the last alarm of
each that is known here."""
AGED = "gossip/aged"
"""In ``Entry.extra``: float32 ``[k]``, the ids of clients whose number here was aged and is not new since."""
NOTHING: np.ndarray = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Noticed:
    """What a client knows of alarms in a round. Ids are int64 and ascending.

    ``alarm``: its own. ``alarms``: the round of the last alarm of each client, from its entry and its contacts', its
    own included. ``news``: those (but itself) of which it did not know. ``aged``: whose number it aged before.
    """

    alarm: bool
    alarms: Similarities
    news: np.ndarray
    aged: np.ndarray
    state: Mapping[str, Value] = field(default_factory=dict)

    def stale(self, known: np.ndarray) -> np.ndarray:
        """Those of the ``known`` clients whose number is older than a shift: all after an own alarm."""
        return known if self.alarm else known[belong(known, self.news)]

    def after(self, contacts: list[int]) -> list[int]:
        """Those of the contacts that were not chosen by a number from before a shift."""
        return [] if self.alarm else [j for j in contacts if not belong(np.array([j]), self.news)[0]]

    def mute(self, peer: Entry, theirs: Similarities) -> np.ndarray:
        """The clients of whom this contact has nothing to say: its number is older than their last alarm."""
        told = read_alarms(peer)
        older = self.alarms.ids[told.values_of(self.alarms.ids) < self.alarms.values]
        forgotten = told.ids[~belong(told.ids, theirs.ids)]
        return np.unique(np.concatenate([older, forgotten, read_aged(peer)]))


def judged(detector: Detector, client: Client, key: Key, mine: Entry, loss: float) -> tuple[bool, dict[str, Value]]:
    """Whether the ``loss`` is an alarm, and the losses since the last one, for the client's private state.

    A loss that is not finite is passed over, and so is that of a model that was never trained.
    """
    name = f"gossip/losses/{key}"
    stored = client.state.get(name)
    past = [float(one) for one in stored] if isinstance(stored, list) else []
    if not np.isfinite(loss) or not mine.weight > 0:
        return False, {name: list(past)}
    alarm = bool(detector.alarm(past[-detector.window :], loss))
    return alarm, {name: [] if alarm else [*past, loss][-detector.window :]}


def notice(
    detector: Detector, client: Client, key: Key, mine: Entry, peers: Mapping[int, Entry], loss: float, most: int | None
) -> Noticed:
    """What there is to know in a round: an own alarm, from the ``loss``, and those that the peers know of.

    The alarms of at most ``most`` clients are kept, the latest.
    """
    alarm, state = judged(detector, client, key, mine, loss)
    before = read_alarms(mine)
    known = before
    for peer in peers.values():
        heard = read_alarms(peer)
        known = known.joined(heard.within(heard.ids[heard.values > known.values_of(heard.ids)]))
    if alarm:
        known = known.joined(Similarities.of({client.id: float(client.when.round)}))
    known = known.largest(most)
    news = known.ids[(known.values > before.values_of(known.ids)) & (known.ids != client.id)]
    return Noticed(alarm, known, news, read_aged(mine), state)


def watched(detector: Detector, client: Client) -> Tensor:
    """The rows on which the client's loss is watched."""
    return client.validation if detector.rows == "validation" and len(client.validation) else client.train


def read_alarms(entry: Entry) -> Similarities:
    """The alarms that an entry publishes, as a table: who, and in which round."""
    return Similarities.read(entry, name=ALARMS)


def read_aged(entry: Entry) -> np.ndarray:
    """The ids whose numbers an entry says to be aged."""
    stored = entry.extra.get(AGED)
    return NOTHING if stored is None else stored.numpy().astype(np.int64)


def no_alarms() -> dict[str, Tensor]:
    """What is published before anything happened; of no bytes."""
    return {ALARMS: torch.zeros((2, 0)), AGED: torch.zeros(0)}


def told(alarms: Similarities, aged: np.ndarray) -> dict[str, Tensor]:
    """What is published."""
    return {ALARMS: alarms.tensor(), AGED: torch.from_numpy(aged.astype(np.float32))}
