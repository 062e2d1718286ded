"""Paired tests: whether two variants differ over the seeds that both have, corrected for how many pairs there are."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

ALPHA = 0.05
"""A corrected p below this separates two variants."""
WILCOXON = 6
"""With fewer pairs the signed-rank test cannot reach 0.05 on two sides: its smallest p is 2 / 2**n."""

Values = Mapping[str, float]
"""A number by seed."""


def paired_tests(values: Mapping[str, Values]) -> list[dict[str, Any]]:
    """A paired t-test for every pair of variants with at least two common seeds, in the order of the variants.

    ``values`` maps each variant to its number by seed. Each test has ``a`` and ``b``, the common ``seeds`` and their
    number ``n``, ``difference`` (the mean of ``a`` minus ``b``), its 95% confidence interval ``ci``, the two-sided
    ``p``, and ``p_holm``, corrected over all the pairs (Holm 1979). From six seeds on ``wilcoxon`` is the p of the
    signed-rank test (``None`` where all differences are 0). Where every seed has the same difference there is no
    variance to test against: ``p`` is 1 if the difference is 0 and else 0, and ``constant`` is true.
    """
    found = [
        pair for a, b in itertools.combinations(values, 2) if (pair := _pair(a, b, values[a], values[b])) is not None
    ]
    _t_tests([pair for pair in found if not pair["constant"]])
    for pair, p in zip(found, holm([pair["p"] for pair in found]), strict=True):
        pair["p_holm"] = p
        del pair["sd"]
    return found


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down correction: the k-th smallest of m times ``m - k + 1``, never falling and at most 1."""
    corrected, highest = [0.0] * len(p), 0.0
    for rank, place in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        highest = max(highest, min(1.0, (len(p) - rank) * p[place]))
        corrected[place] = highest
    return corrected


def _pair(a: str, b: str, first: Values, second: Values) -> dict[str, Any] | None:
    seeds = [seed for seed in first if seed in second]
    n = len(seeds)
    if n < 2:
        return None
    differences = [first[seed] - second[seed] for seed in seeds]
    mean = math.fsum(differences) / n
    sd = math.sqrt(math.fsum((d - mean) ** 2 for d in differences) / (n - 1))
    # 0.84 - 0.80 and 0.94 - 0.90 are the same difference, though not to the last bit.
    dust = 1e-12 * max(abs(v) for seed in seeds for v in (first[seed], second[seed]))
    if abs(mean) <= dust:
        mean = 0.0
    found = {"a": a, "b": b, "n": n, "seeds": seeds, "difference": mean, "sd": sd, "constant": sd <= dust}
    if sd <= dust:
        found |= {"ci": [mean, mean], "p": 0.0 if mean else 1.0}
    if n >= WILCOXON:
        found["wilcoxon"] = _wilcoxon([0.0 if abs(d) <= dust else d for d in differences])
    return found


def _t_tests(pairs: Sequence[dict[str, Any]]) -> None:
    """Fills in ``p`` and ``ci``, all pairs at once: one call of scipy for each pair takes seconds for a large sweep."""
    if not pairs:
        return
    from scipy import stats

    n = np.array([pair["n"] for pair in pairs])
    mean = np.array([pair["difference"] for pair in pairs])
    error = np.array([pair["sd"] for pair in pairs]) / np.sqrt(n)
    p = np.asarray(2 * stats.t.sf(np.abs(mean) / error, n - 1))
    half = np.asarray(stats.t.ppf(0.975, n - 1) * error)
    for i, pair in enumerate(pairs):
        pair |= {"ci": [float(mean[i] - half[i]), float(mean[i] + half[i])], "p": float(p[i])}


def _wilcoxon(differences: Sequence[float]) -> float | None:
    if not any(differences):
        return None
    from scipy import stats

    # Twelve digits: differences that are equal on paper must be ties here, too.
    rounded = [float(f"{d:.12g}") for d in differences]
    return float(stats.wilcoxon(rounded).pvalue)
