"""The clients' half of Adaptive-FedAvg: local training at the rate that came with the entry."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..bank import Entry, Key, Value
from ..messages import Client, Group, Part
from ..randomness import Moment
from ..requests import Request, Served
from ..server.adaptive_rate import FACTOR
from .base import Learner


class AdaptiveRate(Learner):
    """Plain local training at ``local.lr`` times the factor of ``server: adaptive-fedavg``.

    The rate travels as one number, ``adaptive-rate/lr``: four bytes. An entry that came without one (in the first
    round, or from another server optimiser) is trained at ``local.lr``. ``local.lr_schedule`` multiplies either of
    them. Paper: Canonaco et al. (IJCNN 2021).
    """

    reads_answers = False

    def fit(
        self, key: Key, start: Served, entry: Entry, client: Client, **request: Any
    ) -> Generator[Request, Any, tuple[Part, dict[str, Value]]]:
        """The plain fit at the rate that came."""
        if "adaptive-rate/lr" in entry.extra:
            optimizer = request.get("optimizer") or self.optimizer(client.when)
            request["optimizer"] = replace(optimizer, lr=float(entry.extra["adaptive-rate/lr"]))
        return (yield from super().fit(key, start, entry, client, **request))

    def extra(self, key: Key, old: Entry, new: Entry, group: Group, when: Moment) -> Mapping[str, Tensor | None]:
        """The rate of the next round."""
        if FACTOR not in new.server:
            return {}
        return {"adaptive-rate/lr": torch.tensor(self.local.lr * float(new.server[FACTOR]), dtype=torch.float32)}
