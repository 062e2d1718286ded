"""`Adding`: answers that are added up as they come, where all of a round's together would fill the memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .bank import Bank, Key
from .messages import Group, Job, Outcome, Part, Update, grouped
from .methods.base import Method
from .participation import Selected
from .records import changed
from .server.sums import Sum

HELD_BYTES = 128 * 2**20
"""Answers that may lie in memory at once. Of an exchange with more of them few lie there at a time."""
LEAST_PER_WORKER = 4
"""Answers for each worker of the engine that may lie in memory, whatever their size, so that none stands idle."""


def possible(method: Method) -> bool:
    """Whether the clients' vectors are needed for nothing but the mean of an entry, and that can be added up.

    So it is for a mean that `streams`, under a method that leaves ``merge``, ``merge_entry`` and ``records`` as they
    are, with a learner whose server half does not look at them.
    """
    kind = type(method)
    own = any(getattr(kind, name) is not getattr(Method, name) for name in ("merge", "merge_entry", "records"))
    return method.mean.streams and not own and not method.learner.reads_answers


def size_of(job: Job) -> int:
    """Bytes of the vectors that a client can answer with: one for each entry that it was given."""
    return sum(entry.vector.numel() * entry.vector.element_size() for entry in job.given.entries.values())


class Adding:
    """The sums of one exchange. Updates come in the order of clients, screened already, and go on without vectors.

    Their parts then have the ``total`` that they are in, of which `Method.merge_entry` takes the mean; bytes are
    counted as before. With ``keep`` they keep their vectors too, for a measure that looks at them.
    """

    def __init__(
        self, method: Method, bank: Bank, jobs: Sequence[Job], fates: Mapping[int, Selected], keep: bool = False
    ) -> None:
        self.method = method
        self.keep = keep
        planned: dict[Key, list[tuple[Part, float]]] = {}
        for job in jobs:
            if job.crash or fates[job.given.client].straggler:
                continue
            part = Part(None, client=job.given.client, times=job.given.times)
            for key in job.given.entries:
                planned.setdefault(key, []).append((part, float(len(job.client.train) * job.given.times)))
        self.sums = {key: Sum(bank[key].vector, self._weights(each)) for key, each in planned.items()}

    def _weights(self, each: Sequence[tuple[Part, float]]) -> Sequence[float]:
        return self.method.mean.weights(Group(tuple(part for part, _ in each), tuple(weight for _, weight in each)))

    def take(self, update: Update | None, outcome: Outcome) -> tuple[Update | None, Outcome]:
        """Adds the next update (``None``: not accepted); gives it, and what the engine gave, to go on with."""
        if isinstance(outcome.answer, Update):
            outcome = changed(outcome, answer=self._seen(outcome.answer))
        if update is None:
            return None, outcome
        for key, group in grouped([update]).items():
            (part,) = group.parts
            if self._adds(key, part) and part.vector is not None:
                self.sums[key].add([(part.vector, part.mask)], self._weights([(part, group.weights[0])]))
        return self._added(update), outcome

    def _adds(self, key: Key, part: Part) -> bool:
        # The one answer for an entry that is stepped from its own base is no mean.
        return key in self.sums and part.vector is not None and part.base is None

    def _added(self, update: Update) -> Update:
        """An accepted update, whose vectors are in the sums."""
        parts = {
            key: changed(self._light(part), total=self.sums[key]) if self._adds(key, part) else part
            for key, part in update.parts.items()
        }
        return changed(update, parts=parts)

    def _seen(self, answer: Update) -> Update:
        """An answer for measures alone, accepted or not."""
        return changed(answer, parts={key: self._light(part) for key, part in answer.parts.items()})

    def _light(self, part: Part) -> Part:
        if self.keep or part.vector is None:
            return part
        bare = changed(part, vector=None, mask=None, encoded=None)
        return changed(bare, encoded=part.bytes - bare.bytes)


def held(jobs: Sequence[Job], workers: int = 1) -> int:
    """How many answers may be there at once: as many as take `HELD_BYTES`, or a few for each worker."""
    largest = max(map(size_of, jobs), default=0)
    return max(HELD_BYTES // max(1, largest), LEAST_PER_WORKER * workers)


def adding(
    method: Method, bank: Bank, jobs: Sequence[Job], fates: Mapping[int, Selected], keep: bool = False
) -> Adding | None:
    """The sums of an exchange whose answers would be more than `HELD_BYTES`; ``None`` where all are to be kept.

    It depends on the configuration alone, and on nothing that the engine does.
    """
    if sum(map(size_of, jobs)) <= HELD_BYTES or not possible(method):
        return None
    return Adding(method, bank, jobs, fates, keep)
