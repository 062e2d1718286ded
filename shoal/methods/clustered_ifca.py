"""IFCA: each client trains the model with the lowest loss, and each model is the mean of those who chose it.

Paper: Ghosh, Chung, Yin and Ramchandran, "An Efficient Framework for Clustered Federated Learning" (NeurIPS 2020),
algorithm 1 with model averaging (option II).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import Field

from ..bank import Bank, Value
from ..learners.base import Learner
from ..messages import Assignment, Client, Part, Participant, Update, World
from ..randomness import Moment
from ..server.base import Mean, ServerOptimizer
from .base import Program
from .clustered import DECIDED, Clustered, Count, by_choice, choice_of, keys_of

DRAWS, SETTLED = "ifca/draws", "ifca/settled"


class Ifca(Clustered):
    """``concepts`` models that start independently; everyone receives all of them.

    ``rows``: see `Clustered`. With ``redraw`` nothing is trained before each model attracts at least this share of a
    round's clients: a round in which one does not only measures, and all models are drawn anew, at most ``redraws``
    times; then training begins with what there is. That is the authors' way for images, where a model that starts
    badly is never chosen.

    Deviations: the mean is that of ``method.mean`` (by rows; the authors' image code takes the plain mean), and the
    authors' redrawing is done before the first round, on clients that cost nothing.
    """

    def __init__(
        self,
        world: World,
        learner: Learner,
        mean: Mean,
        server: ServerOptimizer,
        *,
        concepts: Count,
        rows: Count | None = None,
        redraw: Annotated[float, Field(gt=0, le=1)] | None = None,
        redraws: Count = 20,
    ) -> None:
        super().__init__(world, learner, mean, server, rows=rows)
        if redraw is not None and not 0 < redraw * concepts <= 1:
            raise ValueError(
                f"redraw is the least share of the clients for each of {concepts} models and at most 1/{concepts}; "
                f"got {redraw}"
            )
        self.concepts = concepts
        self.redraw = redraw
        self.redraws = redraws

    def start(self) -> Bank:
        """The models. ``ifca/draws``: how often they were drawn anew; ``ifca/settled``: in which round that ended."""
        entries = {f"concept/{k}": self.fresh(k) for k in range(self.concepts)}
        return Bank().put(entries, **{DRAWS: 0, SETTLED: 0 if self.redraw is None else None})

    def assign(self, bank: Bank, when: Moment, clients: Sequence[Participant]) -> Iterable[Assignment]:
        """All models to everyone, with a note where they are only looked at."""
        keys = tuple(keys_of(bank))
        # To the end of the round: a learner with two exchanges begins with the first of them.
        note = {"looking": True} if bank.memory[SETTLED] in (None, when.round) else {}
        return [Assignment(c.id, keys, times=c.times, note=note) for c in clients]

    def train(self, given: Assignment, client: Client) -> Program:
        """The choice alone, or with one local fit of the model chosen."""
        if not given.note.get("looking"):
            return (yield from super().train(given, client))
        key, _ = yield from self.choose(given, client)
        return Update({key: Part(None)}, weight=len(client.train), note=given.note)

    def merge(self, bank: Bank, updates: Sequence[Update], when: Moment) -> Bank:
        """Each model from the answers of those who chose it; or new models."""
        draws, settled = bank.memory[DRAWS], bank.memory[SETTLED]
        assert isinstance(draws, int)
        if settled is not None:
            return bank.put(self.merged(bank, updates, when), **{DECIDED: by_choice(when, updates)})
        assert self.redraw is not None
        chosen = Counter(choice_of(update)[0] for update in updates)
        keys = keys_of(bank)
        enough = all(chosen[key] >= self.redraw * len(updates) for key in keys)
        if enough or draws >= self.redraws:
            done: dict[str, Value] = {SETTLED: when.round, DECIDED: by_choice(when, updates, redrawn=False)}
            return bank.put({}, **done)
        fresh = {key: self.fresh(k, draws + 1) for k, key in enumerate(keys)}
        again: dict[str, Value] = {DRAWS: draws + 1, DECIDED: by_choice(when, updates, redrawn=True)}
        return bank.put(fresh, **again)
