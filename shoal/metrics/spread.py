"""How a number is spread over targets (tasks, concepts, clients): means, deviation, and the worst tenth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .values import finite, mean


def spread(values: Sequence[float | None], rows: Sequence[float], lower_is_better: bool = False) -> dict[str, Any]:
    """The numbers of one metric over targets; targets without a value are left out and counted.

    - ``mean``: every target counts the same; ``by_rows``: weighted by ``rows``, the targets' test rows;
    - ``sd``: the sample's standard deviation over targets (by n - 1), ``None`` for fewer than two;
    - ``worst_decile``: the mean of the worst tenth of the targets, rounded up to at least one; ``worst`` and
      ``best``: the single ones. Worst is lowest, unless ``lower_is_better``;
    - ``n``: how many targets have a value; ``excluded``: how many have none.

    All but the counts are ``None`` where no target has a value. Raises ``ValueError`` if there are not as many
    rows as values.
    """
    known = sorted((number for value in values if (number := finite(value)) is not None), reverse=lower_is_better)
    n, middle = len(known), mean(known)
    sd = None
    if middle is not None and n > 1:
        sd = math.sqrt(math.fsum((value - middle) ** 2 for value in known) / (n - 1))
    return {
        "mean": middle,
        "by_rows": mean(values, rows),
        "sd": sd,
        "worst_decile": mean(known[: math.ceil(n / 10)]),
        "worst": known[0] if known else None,
        "best": known[-1] if known else None,
        "n": n,
        "excluded": len(values) - n,
    }
