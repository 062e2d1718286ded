"""What a test allows to be said: separated, within noise, or left open; intervals from scipy."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from scipy import stats

from shoal.report.comparison import findings
from shoal.report.pairs import paired_tests
from shoal.report.verdicts import FEW, against, within_noise


def variant(*points: float, key: str = "acc") -> dict[str, Any]:
    found = [value / 100 for value in points]
    sd = statistics.stdev(found) if len(found) > 1 else None
    one = {
        "mean": statistics.fmean(found),
        "sd": sd,
        "n": len(found),
        "values": {str(i): v for i, v in enumerate(found)},
    }
    return {"seeds": list(one["values"]), "unfinished": [], "numbers": {key: one}}


def said(**variants: dict[str, Any]) -> list[str]:
    return findings({"variants": variants, "missing": []})


def interval(a: tuple[float, ...], b: tuple[float, ...]) -> str:
    found = stats.ttest_rel(a, b).confidence_interval(0.95)
    return f"95 % interval {found.low:+.1f} to {found.high:+.1f}"


@pytest.mark.parametrize(
    ("ends", "narrow"),
    [((-2.0, 2.0), True), ((-2.01, 1.0), False), ((-1.0, 2.01), False), ((0.5, 1.9), True), ((0.0, 0.0), True)],
)
def test_within_two_points_on_both_sides_is_narrow(ends: tuple[float, float], narrow: bool) -> None:
    test = {"ci": [ends[0] / 100, ends[1] / 100], "p_holm": 0.5}
    assert within_noise("acc", test, 0.9) is narrow
    assert within_noise("acc", {**test, "p_holm": 0.01}, 0.9) is False
    # Of a loss two hundredths of the better one are narrow.
    assert within_noise("loss", test, 1.0) is narrow
    assert within_noise("loss", {**test, "ci": [-0.0002, 0.0002]}, 0.01) is True
    assert within_noise("loss", {**test, "ci": [-0.0002, 0.00021]}, 0.01) is False


def test_the_best_comes_first() -> None:
    test = {"a": "x", "b": "y", "difference": -0.1, "ci": [-0.3, 0.1]}
    assert against(test, "y") == {"a": "y", "b": "x", "difference": 0.1, "ci": [-0.1, 0.3]}
    assert against(test, "x") == test


def test_few_seeds_cannot_separate() -> None:
    a, b = (90.0, 93.0, 87.0), (89.0, 85.0, 84.0)
    wanted = f"cannot separate a from b: difference +4.0 points, {interval(a, b)}, p = 0.19"
    assert stats.ttest_rel(a, b).pvalue == pytest.approx(0.19, abs=0.005)
    first, second, more = said(a=variant(*a), b=variant(*b))
    assert second == f"Three seeds {wanted} (paired t-test)."
    assert more.endswith(f"; three seeds {wanted}.")
    assert "noise" not in first + second + more


def test_more_seeds_leave_it_open_without_blaming_their_number() -> None:
    a, b = (90.0, 93.0, 87.0, 91.0), (89.0, 85.0, 84.0, 95.0)
    assert len(a) > FEW
    _, second, more = said(b=variant(*b), a=variant(*a))
    wanted = f"the test does not separate a from b: difference +2.0 points, {interval(a, b)}, p = 0.48"
    assert stats.ttest_rel(a, b).pvalue == pytest.approx(0.48, abs=0.005)
    assert second.lower().startswith(wanted)
    assert more.endswith(f"; {wanted}.")


def test_a_narrow_interval_is_within_noise_even_with_three_seeds() -> None:
    a, b = (90.0, 90.2, 90.1), (90.1, 90.1, 89.9)
    _, second, more = said(a=variant(*a), b=variant(*b))
    wanted = f"he difference between a and b is within noise: difference +0.1 points, {interval(a, b)}, p = 0.53"
    assert stats.ttest_rel(a, b).pvalue == pytest.approx(0.53, abs=0.005)
    assert second == f"T{wanted} (paired t-test)."
    assert more.endswith(f"; t{wanted}.")


def test_of_several_the_largest_difference_is_given() -> None:
    a, b, c = (90.0, 93.0, 87.0), (89.0, 85.0, 84.0), (90.0, 88.0, 89.0)
    second = said(a=variant(*a), b=variant(*b), c=variant(*c))[1]
    # Three pairs: that of b and c has the smallest p; that of a and b is the second, and counts twice.
    assert stats.ttest_rel(b, c).pvalue < stats.ttest_rel(a, b).pvalue < stats.ttest_rel(a, c).pvalue
    assert second == (
        f"Three seeds cannot separate a from b and c: the largest difference, to b, is +4.0 points, {interval(a, b)}, "
        "p = 0.39 (paired t-test, corrected)."
    )
    assert 2 * stats.ttest_rel(a, b).pvalue == pytest.approx(0.39, abs=0.005)


def test_equal_in_every_seed_is_said() -> None:
    second, more = said(a=variant(90.0, 91.0), b=variant(90.0, 91.0))[1:]
    assert second == "In every common seed a and b are equal (paired t-test)."
    assert more.endswith("; in every common seed a and b are equal.")


def test_losses_turn_the_sign_of_what_is_better() -> None:
    a, b = (50.0, 40.0, 60.0), (45.0, 46.0, 44.0)
    more = said(a=variant(*a, key="loss"), b=variant(*b, key="loss"))[2]
    low, high = stats.ttest_rel([v / 100 for v in b], [v / 100 for v in a]).confidence_interval(0.95)
    assert f"separate b from a: difference -0.0500, 95 % interval {low:.3f} to +{high:.3f}" in more


def test_a_separated_pair_has_its_p() -> None:
    a, b = (90.0, 91.0, 92.0, 93.0), (85.0, 86.5, 86.5, 88.0)
    (test,) = paired_tests({"a": {str(i): v for i, v in enumerate(a)}, "b": {str(i): v for i, v in enumerate(b)}})
    assert test["p"] == pytest.approx(stats.ttest_rel(a, b).pvalue)
    _, second, more = said(a=variant(*a), b=variant(*b))
    assert second == "The lead of a over b is more than noise (p < 0.001; paired t-test)."
    assert more.endswith("5.0 points above b (p < 0.001).")
