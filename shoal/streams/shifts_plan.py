"""Which rows of its cluster each client holds at which time step, and when its time steps begin."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ..errors import ConfigError
from ..randomness import Name, generator
from .cells import Array

Fresh = Literal["all", "changed", "never"]
Stagger = int | list[list[int]]


@functools.lru_cache(maxsize=32)
def _order(names: tuple[Name, ...], count: int) -> Array:
    """A shuffled pool. A pure function, so keeping some of them changes nothing but the time."""
    found = generator(*names).permutation(count)
    found.flags.writeable = False
    return found


class Slices:
    """Consecutive slices of ``size`` rows of a shuffled pool, by number; when it is used up it is shuffled anew.

    A rest of the pool that is no whole slice is left out of that pass.
    """

    def __init__(self, pool: Tensor, size: int, names: tuple[Name, ...]) -> None:
        self._pool = pool
        self._size = size
        self._names = names
        self.passes = len(pool) // size
        """How many slices one pass over the pool has."""

    def rows(self, number: int) -> Tensor:
        """The rows of a slice, int64 ``[size]``, in the order of the shuffle."""
        turn, place = divmod(number, self.passes)
        order = _order((*self._names, turn), len(self._pool))
        return self._pool[torch.from_numpy(order[place * self._size : (place + 1) * self._size].copy())]


class Plan:
    """Clusters, slices and beginnings, ``[steps, clients]`` each: some bytes per client and step, no rows.

    ``slices`` numbers the slices of each cluster as they are taken: step after step, and in a step client after client.
    ``since`` is the step at which the client took what it holds.
    """

    def __init__(self, clusters: Array, count: int, fresh: Fresh, starts: Array) -> None:
        """``clusters`` is the cluster of each client at each step, ``count`` how many clusters there are, ``starts``
        the first round of each step, ``[steps, clients]`` or, if it is the same for all, ``[steps, 1]``."""
        steps, clients = clusters.shape
        self.clusters = clusters.astype(np.int32)
        self.starts = starts
        self.slices = np.zeros((steps, clients), dtype=np.int32)
        self.since = np.zeros((steps, clients), dtype=np.int32)
        self.taken = np.zeros((steps, count), dtype=np.int64)
        """How many slices of each cluster were taken up to and with each step."""
        first = np.full((clients, count) if fresh == "never" else (0, 0), -1, dtype=np.int64)
        everyone = np.arange(clients)
        cursor = np.zeros(count, dtype=np.int64)
        for step, now in enumerate(clusters):
            before = self.slices[step - 1]
            stays = np.zeros(clients, dtype=bool) if step == 0 else now == clusters[step - 1]
            if fresh == "never":
                before = first[everyone, now]
                takes = before < 0
            else:
                takes = ~stays if fresh == "changed" else np.ones(clients, dtype=bool)
            given = cursor[now[takes]] + _ranks(now[takes], count)
            cursor = cursor + np.bincount(now[takes], minlength=count)
            self.slices[step] = before
            self.slices[step, takes] = given
            if fresh == "never":
                first[everyone, now] = self.slices[step]
            self.since[step] = np.where(stays & ~takes, self.since[step - 1], step)
            self.taken[step] = cursor

    def step(self, client: int, round: int) -> int:
        """The time step of a client in a round (from 1)."""
        starts = self.starts[:, client % self.starts.shape[1]]
        return int(np.searchsorted(starts, round, side="right")) - 1

    def start(self, client: int, step: int) -> int:
        """The first round of a client's time step."""
        return int(self.starts[step, client % self.starts.shape[1]])


def _ranks(groups: Array, count: int) -> Array:
    """The how-manieth of its group each one is, from 0."""
    sizes = np.bincount(groups, minlength=count)
    order = np.argsort(groups, kind="stable")
    ranks = np.empty(len(groups), dtype=np.int64)
    ranks[order] = np.arange(len(groups)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return ranks


def first_rounds(steps: int, rounds_per_step: int, clients: int, stagger: Stagger, gradual: int, seed: int) -> Array:
    """The first round of each time step, int64 ``[steps, clients]``, or ``[steps, 1]`` where all change at once.

    ``stagger`` is the largest delay, drawn anew for every client and boundary from 0 to it, or a list for each client
    of the rounds in which its steps 1, 2, ... begin. Raises `ConfigError` where a change would not be over, with
    ``gradual`` rounds of a mixture, before the next one.
    """
    usual = np.arange(steps)[:, None] * rounds_per_step + 1
    if isinstance(stagger, int):
        if stagger < 0:
            raise ConfigError(f"stream.stagger: a number of rounds, 0 or more; got {stagger}")
        if steps > 1 and stagger + max(1, gradual) > rounds_per_step:
            guilty = "gradual" if gradual > rounds_per_step else "stagger"  # the one that is too long by itself
            raise ConfigError(
                f"stream.{guilty}: a change must be over before the next one: stagger + gradual, {stagger} + {gradual} "
                f"rounds, must fit into rounds_per_step, {rounds_per_step}; lower {guilty}, or raise rounds_per_step"
            )
        if stagger == 0:
            return usual
        late = [
            generator(seed, "stream", "stagger", step).integers(stagger + 1, size=clients) for step in range(1, steps)
        ]
        return np.asarray(usual + np.stack([np.zeros(clients, dtype=np.int64), *late]))
    _check_listed(stagger, steps, clients, gradual)
    return np.array([[1, *rounds] for rounds in stagger], dtype=np.int64).reshape(clients, steps).T


def _check_listed(stagger: Sequence[Sequence[int]], steps: int, clients: int, gradual: int) -> None:
    if len(stagger) != clients:
        raise ConfigError(
            f"stream.stagger: needs a list of rounds for each of {clients} clients, or one number; got {len(stagger)}"
        )
    for client, rounds in enumerate(stagger):
        if len(rounds) != steps - 1:
            raise ConfigError(
                f"stream.stagger: with {steps} time steps a client changes {steps - 1} times; client {client} has "
                f"{len(rounds)} rounds listed"
            )
        gaps = np.diff([1, *rounds])
        # The first step needs a round of its own, but has nothing to mix with.
        if (gaps < 1).any() or (gaps[1:] < gradual).any():
            raise ConfigError(
                f"stream.stagger: the rounds of a client's changes rise from 2 on, and lie {max(1, gradual)} or more "
                f"apart (stream.gradual); client {client} has {list(rounds)}"
            )
