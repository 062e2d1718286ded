"""What a paired test says in words: separated, within noise, or left open, with the difference and its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .numbers import PERCENT, describe, written
from .pairs import ALPHA
from .words import listed, number

NARROW = 0.02
"""An interval inside plus or minus two points (of a loss: two hundredths of the better one) is narrow."""
FEW = 3
"""So few seeds leave open what is not very large: the 95% interval of two is 9 deviations wide to either side, of
three 2.5, of ten 0.7."""

Test = Mapping[str, Any]


def separated(test: Test) -> bool:
    """Whether the corrected p is below 0.05."""
    return bool(test["p_holm"] < ALPHA)


def within_noise(key: str, test: Test, level: float) -> bool:
    """Whether a test that separates nothing shows that there is little to separate: its 95% interval is narrow.

    ``level`` is the better one's mean, to which a number that is no percentage is measured.
    """
    bound = NARROW if describe(key).unit == PERCENT else NARROW * abs(level)
    low, high = test["ci"]
    return not separated(test) and -bound <= low <= high <= bound


def against(test: Test, best: str) -> dict[str, Any]:
    """The same test with ``best`` first, so that its difference is by how much ``best`` is above."""
    if test["a"] == best:
        return dict(test)
    low, high = test["ci"]
    return {**test, "a": test["b"], "b": test["a"], "difference": -test["difference"], "ci": [-high, -low]}


def open_words(key: str, tests: Sequence[Test], best: str) -> str:
    """``"three seeds cannot separate a from b: difference +5.0 points, 95 % interval -12.6 to +22.6, p = 0.34"``.

    Of several pairs the largest difference is given.
    """
    turned = [against(test, best) for test in tests]
    largest = max(turned, key=lambda test: abs(test["difference"]))
    others = listed([test["b"] for test in turned])
    seeds = max(test["n"] for test in turned)
    said = (
        f"{number(seeds)} seeds cannot separate {best} from {others}"
        if seeds <= FEW
        else f"the test does not separate {best} from {others}"
    )
    return f"{said}: {_largest(key, largest, len(turned))}"


def noise_words(key: str, tests: Sequence[Test], best: str) -> str:
    """``"the difference between a and b is within noise: difference ..."``, or that the two are equal."""
    turned = [against(test, best) for test in tests]
    largest = max(turned, key=lambda test: abs(test["difference"]))
    others = [test["b"] for test in turned]
    if all(test["constant"] and not test["difference"] for test in turned):
        return f"in every common seed {best} and {listed(others)} are equal"
    what = f"the difference between {best} and {others[0]} is" if len(others) == 1 else (
        f"the differences between {best} and {listed(others)} are"
    )  # fmt: skip
    return f"{what} within noise: {_largest(key, largest, len(turned))}"


def _largest(key: str, test: Test, count: int) -> str:
    """``"difference +5.0 points, 95 % interval -12.6 to +22.6, p = 0.34"``; p is the corrected one."""
    low, high = (difference(key, value) for value in test["ci"])
    unit = " points" if describe(key).unit == PERCENT else ""
    size = f"{difference(key, test['difference'])}{unit}"
    what = f"the largest difference, to {test['b']}, is {size}" if count > 1 else f"difference {size}"
    return f"{what}, 95 % interval {low} to {high}, {p_is(test)}"


def p_is(test: Test) -> str:
    """``"p = 0.012"`` or ``"p < 0.001"``, corrected."""
    text = p_text(test["p_holm"])
    return f"p {text}" if text.startswith("<") else f"p = {text}"


def difference(key: str, value: float) -> str:
    """A difference of two values of a number with its sign: points for percentages, else as the number is written."""
    if describe(key).unit == PERCENT:
        text = f"{100 * value:+.1f}"
        return "0.0" if not text.strip("+-0.") else text
    text = written(key, value, unit=False)
    return text if value <= 0 else f"+{text}"


def p_text(p: float) -> str:
    """A p as people write it: two digits, and never a bare zero."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"
