"""What is said of hand-made numbers: one case for each verdict, on both sides of each threshold."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from scipy import stats

from shoal.report.comparison import findings, run_findings

KEYS = {"net": "bwt_f.seen_per_event", "worst1": "bwt_f.worst@1", "worst5": "bwt_f.worst@5"}
LOSE = "tasks that were trained before and are trained again lose"


def variant(unfinished: int = 0, **numbers: list[float]) -> dict[str, Any]:
    """A variant of a comparison; one value per seed, accuracies and changes in points."""
    n = len(next(iter(numbers.values()), []))
    found = {}
    for name, points in numbers.items():
        values = [value / 100 for value in points]
        found[KEYS.get(name, name)] = {
            "mean": statistics.fmean(values),
            "sd": statistics.stdev(values) if n > 1 else None,
            "n": n,
            "values": {str(seed): value for seed, value in enumerate(values)},
        }
    seeds = [str(seed) for seed in range(n)]
    return {"seeds": seeds, "unfinished": [str(n + i) for i in range(unfinished)], "numbers": found}


def every(missing: int = 0, **variants: dict[str, Any]) -> list[str]:
    return findings({"variants": variants, "missing": ["x"] * missing})


def said(missing: int = 0, **variants: dict[str, Any]) -> list[str]:
    """What is said beside the first two sentences."""
    return every(missing, **variants)[2:]


def test_a_drop_a_later_dip_and_the_best() -> None:
    a = variant(net=[-4, -6, -8], worst1=[-5, -7, -9], worst5=[-5, -7, -9], acc=[91, 92, 93])
    b = variant(net=[1, 0, 2], worst1=[-0.2, -0.3, 0], worst5=[-0.4, -0.5, -0.6], acc=[87, 88, 89.2])
    c = variant(net=[2, 1, 1], worst1=[0, 0, 0], worst5=[-8, -9, -10], acc=[91.5, 92, 90.5])
    assert said(a=a, b=b, c=c) == [
        f"In the first round after a phase boundary, {LOSE} 6.0 points with a (4.0 to 8.0; in three of three seeds); "
        "less than one point in every seed with b and c.",
        "A later dip without a drop at the boundary: at the lowest of five rounds those tasks have lost 9.0 points "
        "with c (8.0 to 10.0; in three of three seeds).",
        # scipy.stats.ttest_rel: p = 0.00029 against b, times three pairs, and 0.55 against c, the largest.
        "a ends with the highest accuracy, 92.0 ± 1.0 % (mean ± standard deviation of three seeds), 3.9 points above "
        "b (p < 0.001); three seeds cannot separate a from c: difference +0.7 points, 95 % interval -3.3 to +4.7, "
        "p = 0.55.",
    ]


@pytest.mark.parametrize(("net", "drops"), [(-0.99, False), (-1.0, True), (0.0, False), (1.0, False)])
def test_a_drop_begins_at_one_point(net: float, drops: bool) -> None:
    (sentence,) = said(a=variant(net=[net, net], worst1=[net, net]))
    if drops:
        assert sentence.endswith(f"{LOSE} 1.0 point with a (in two of two seeds).")
    else:
        assert sentence == (
            f"No drop at the phase boundaries: in the first round after one, {LOSE} less than one point in every seed."
        )


def test_a_drop_in_half_of_the_seeds_is_not_most_of_them() -> None:
    (half,) = said(a=variant(net=[-3, -2, 0, 1], worst1=[-3, -2, 0, 0]))
    assert half.endswith(f"{LOSE} one point or more in only two of four seeds with a (at most 3.0 points).")
    (most,) = said(a=variant(net=[-3, -2, -2, 1], worst1=[-3, -2, -2, 0]))
    assert most.endswith(f"{LOSE} 1.5 points with a (-1.0 to 3.0; in three of four seeds).")


def test_noise_around_no_change_is_no_drop() -> None:
    noisy = variant(net=[2, 1], worst1=[-4, -5], worst5=[-5, -6])
    assert said(a=noisy) == [
        "In the first round after a phase boundary some tasks lose and others gain: a mean loss of 4.5 points, "
        "but a mean change of +1.5 points with a."
    ]
    both = said(a=noisy, b=variant(net=[-9, -9], worst1=[-9, -9]))
    assert both[0].endswith(f"{LOSE} 9.0 points with b (in two of two seeds).")
    assert both[1].startswith("There some tasks lose and others gain: a mean loss of 4.5 points")


def test_less_than_one_point_on_average() -> None:
    (sentence,) = said(a=variant(net=[2, 2, 2], worst1=[-1.2, -0.4, -0.5]))
    assert sentence.endswith(f"{LOSE} less than one point on average.")


@pytest.mark.parametrize(
    ("worst1", "worst5", "dips"),
    [(-0.5, -2.4, False), (-0.5, -2.5, True), (-6, -8.5, False), (-6, -9, True), (-8, -8, False), (0, 0, False)],
)
def test_a_later_dip_is_two_points_and_by_half_deeper(worst1: float, worst5: float, dips: bool) -> None:
    found = said(a=variant(net=[0, 0], worst1=[worst1] * 2, worst5=[worst5] * 2))
    assert any("dip" in sentence for sentence in found[1:]) is dips


def test_a_loss_that_grows_after_a_drop() -> None:
    found = said(a=variant(net=[-3, -3], worst1=[-3, -3], worst5=[-9, -7]))
    assert found[1] == (
        "The loss grows further: at the lowest of five rounds those tasks have lost 8.0 points with a "
        "(7.0 to 9.0; in two of two seeds)."
    )


def test_without_the_mean_change_the_losses_decide() -> None:
    (sentence,) = said(a=variant(**{"bwt_f.negative_per_event": [-3, -5]}))
    assert sentence.endswith(f"{LOSE} 4.0 points with a (3.0 to 5.0; in two of two seeds).")


def test_few_seeds_separate_large_differences_only() -> None:
    a, b = [87.0, 90.0, 93.0], [89.0, 85.0, 81.0]
    assert stats.ttest_rel(a, b).pvalue == pytest.approx(0.341, abs=1e-3)
    assert said(a=variant(acc=a), b=variant(acc=b)) == [
        "Final accuracy: a 90.0 ± 3.0 % and b 85.0 ± 4.0 % (mean ± standard deviation of three seeds); three seeds "
        "cannot separate a from b: difference +5.0 points, 95 % interval -12.4 to +22.4, p = 0.34."
    ]
    interval = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert (round(interval.low, 1), round(interval.high, 1)) == (-12.4, 22.4)
    # The same numbers in the order of the seeds: now every seed says the same.
    assert stats.ttest_rel(a, b[::-1]).pvalue == pytest.approx(0.0131, abs=1e-4)
    (far,) = said(a=variant(acc=a), b=variant(acc=b[::-1]))
    assert far == (
        "a ends with the highest accuracy, 90.0 ± 3.0 % (mean ± standard deviation of three seeds), 5.0 points above b "
        "(p = 0.013)."
    )


def test_without_two_common_seeds_the_spread_decides() -> None:
    # Sample deviations 3 and 4: the spread of a difference is 5. The seeds are other ones.
    def of(acc: list[float]) -> dict[str, Any]:
        found = variant(acc=acc)
        found["numbers"]["acc"]["values"] = {str(9 + seed): value / 100 for seed, value in enumerate(acc)}
        return found

    near = said(a=variant(acc=[87, 90, 93]), b=of([81, 85, 89]))
    assert near[0].endswith("; no difference between a and b is larger than the spread of the seeds.")
    (far,) = said(a=variant(acc=[87, 90, 93]), b=of([80.9, 84.9, 88.9]))
    assert far.endswith("5.1 points above b.")


def test_the_last_five_rounds_may_name_another() -> None:
    a, b = variant(acc=[90, 90], acc_last5=[80, 80]), variant(acc=[85, 85], acc_last5=[84, 84])
    assert said(a=a, b=b)[1] == "Over the last five rounds, though, b is 4.0 points above a."
    close = variant(acc=[85, 85], acc_last5=[75, 86])  # 80.5 on average, but far apart
    assert len(said(a=a, b=close)) == 1


def test_one_seed_says_so() -> None:
    found = said(a=variant(net=[-4], worst1=[-4], acc=[90]), b=variant(net=[0], worst1=[0], acc=[80]))
    assert found == [
        f"In the first round after a phase boundary, {LOSE} 4.0 points with a; less than one point with b.",
        "a ends with the highest accuracy, 90.0 %, 10.0 points above b.",
    ]
    noise = "with one seed per variant the differences may be noise: no test can separate them"
    assert noise in every(a=variant(acc=[90]), b=variant(acc=[80]))[1].lower()
    mixed = said(a=variant(acc=[90, 90]), b=variant(acc=[80]))
    assert mixed[-1] == "One seed only for b: how far another seed would differ is not known."


def test_equal_accuracies_of_one_seed() -> None:
    assert said(a=variant(acc=[90]), b=variant(acc=[90]))[0] == (
        "Final accuracy: a 90.0 % and b 90.0 %; there is no difference between a and b."
    )


def test_many_variants_are_not_all_named() -> None:
    found = said(**{f"v{i}": variant(net=[-i, -i], worst1=[-i, -i], acc=[90 - 5 * i] * 2) for i in range(8)})
    assert "4.0 points with v4" in found[0]
    assert "3.0 points with v3" not in found[0]
    assert "one point or more with three others; less than one point in every seed with v0." in found[0]
    assert found[1].endswith("20.0 points above v4 (p < 0.001) and more above three others.")


def test_what_is_not_counted() -> None:
    assert said(missing=1, a=variant(unfinished=2, acc=[90, 90]))[-1] == (
        "Not counted: two unfinished runs and one run not yet started."
    )
    assert said(a=variant(unfinished=1)) == ["Not counted: one unfinished run."]
    assert said() == []


def test_one_run() -> None:
    summary = {
        "seed": 3, "rounds": 30, "acc": 0.912, "accuracy_by_target": {"task=0": 0.95, "task=1": 0.874},
        "bwt_f": {"seen_per_event": -0.06, "worst@1": -0.06, "worst@5": -0.065, "literal": None},
    }  # fmt: skip
    expected = [
        "This run for 30 rounds, seed 3, ended with an accuracy of 91.2 %, from 87.4 % (task=1) to 95.0 % (task=0).",
        "In the first round after a phase boundary, tasks that were trained before lose 6.0 points on average; with "
        "one seed it is not known how far another seed would differ.",
        f"In the first round after a phase boundary, {LOSE} 6.0 points.",
    ]
    assert run_findings(summary) == expected
    assert findings(summary) == expected


def test_one_run_that_only_dips() -> None:
    found = run_findings({"seed": 0, "bwt_f": {"seen_per_event": 0.01, "worst@1": -0.001, "worst@5": -0.08}})
    assert found[2].startswith("No drop at the phase boundaries")
    assert found[3] == (
        "A later dip without a drop at the boundary: at the lowest of five rounds those tasks have lost 8.0 points."
    )


def test_a_run_that_measured_nothing() -> None:
    assert run_findings({"seed": 0, "acc": None, "bwt_f": {"events": 0, "worst@1": None}}) == [
        "This run, seed 0, ended with no accuracy measured.",
        "With one seed it is not known how far another seed would differ.",
    ]
