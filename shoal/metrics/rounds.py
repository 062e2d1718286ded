"""Which rounds are measured: one rule for everything that runs models on test rows."""

from __future__ import annotations

from collections.abc import Sequence

TAIL = 5
"""How many last rounds are measured whatever ``evaluate.every`` says, for the mean over them."""
NEAR = 5
"""How many rounds after a boundary are measured whatever ``evaluate.every`` says."""


def due(round: int, every: int, rounds: int, boundaries: Sequence[int] = ()) -> bool:
    """Whether models are measured after this round of a run of ``rounds`` rounds.

    Every ``every``-th round, the last five, every boundary (the last round of a phase) and the five rounds after it.
    Never with ``every`` 0, and never the warm-up (round 0).
    """
    if not every or round < 1:
        return False
    if round % every == 0 or round > rounds - TAIL:
        return True
    return any(last <= round <= last + NEAR for last in boundaries)
