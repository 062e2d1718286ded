"""What a measure sees of a round, and what it gives: lines of ``metrics.jsonl``, and numbers of the summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from torch import Tensor

from ..bank import Bank, Key
from ..config import Evaluation
from ..messages import Assignment, Outcome, Update, World
from ..methods.base import Method
from ..randomness import Moment
from ..requests import Score, Served
from ..streams.base import Holding, Stream

Line = dict[str, Any]
"""One line of ``metrics.jsonl``: ``round`` and ``metric`` with ``value``, or ``record``; never a time."""


class Scorer(Protocol):
    """Measures models on rows without changing anything, several pairs at once, with further metrics by kind."""

    def __call__(
        self, pairs: Sequence[tuple[Sequence[Served], Tensor]], metrics: Sequence[str] = ()
    ) -> list[list[Score]]: ...


@dataclass(frozen=True)
class Context:
    """What a measure knows of the run from the start."""

    world: World
    stream: Stream
    method: Method
    evaluate: Evaluation


@dataclass(frozen=True)
class Seen:
    """One finished round (all its exchanges together).

    ``outcomes`` are all answers of the engine, one per assignment and in the same order, ``accepted`` the updates
    that reached the bank, ``holdings`` what each participant held. ``trained`` maps an entry to the clients that
    trained it and whose update reached it. ``score`` measures models on rows. ``shared`` is where the measures of this
    one round leave for each other what need not be found out twice, see `shoal.metrics.serving`.
    """

    when: Moment
    before: Bank
    after: Bank
    assignments: Sequence[Assignment]
    outcomes: Sequence[Outcome]
    accepted: Sequence[Update]
    holdings: Mapping[int, Holding]
    trained: Mapping[Key, tuple[int, ...]]
    score: Scorer
    last: bool
    shared: dict[Any, Any] = field(default_factory=dict)


class Measure:
    """One family of numbers. A kind is built as ``Kind(context)``; attributes never change afterwards.

    What must be remembered from round to round is ``memory``: a JSON value that the checkpoint keeps.
    """

    part: ClassVar[str] = "measure"
    lines: ClassVar[tuple[str, ...]] = ()
    """The ``metric`` names of its lines; no metric of ``evaluate.metrics`` may have one of them."""
    from_test_rows: ClassVar[tuple[str, ...]] = ()
    """The numbers of its `summarise`, by their top names, that test rows enter. A sweep does not choose by them; a
    measure of one's own says ``()`` itself, or a sweep does not choose by any of its numbers."""

    reads_vectors: ClassVar[bool] = False
    """Whether it looks at the clients' vectors. Otherwise large rounds have none: they are added up as they come, and
    `Part.vector` is then ``None`` in ``accepted`` and ``outcomes``."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def observe(self, seen: Seen, memory: Mapping[str, Any]) -> tuple[list[Line], Mapping[str, Any]]:
        """The lines after a round, and the next memory. ``round`` is added to each line by the loop."""
        return [], memory

    @staticmethod
    def summarise(lines: Sequence[Line]) -> dict[str, Any]:
        """Numbers for ``summary.json``, from the lines of the whole run alone."""
        return {}
