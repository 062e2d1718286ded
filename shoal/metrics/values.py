"""Numbers that may be missing: ``None`` is what was not measured or is not finite (JSON knows no NaN)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def finite(value: float | None) -> float | None:
    """The value as a Python float; ``None`` if it is missing, NaN or infinite."""
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def mean(values: Iterable[float | None], weights: Sequence[float] | None = None) -> float | None:
    """The mean of the values that are numbers, plain or weighted; ``None`` if there are none, or no weight.

    The sums are exact (`math.fsum`), so the order of the values does not matter. Raises ``ValueError`` if
    there are not as many weights as values.
    """
    numbers = [finite(value) for value in values]
    shares = [1.0] * len(numbers) if weights is None else weights
    known = [(number, share) for number, share in zip(numbers, shares, strict=True) if number is not None]
    total = math.fsum(share for _, share in known)
    return math.fsum(number * share for number, share in known) / total if total else None
