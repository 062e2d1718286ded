"""Paired tests against scipy and by hand, Holm's correction, and ranks that are shared where nothing separates."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path

import pytest
from report_folders import write_run, write_sweep
from scipy import stats

from shoal.metrics.functions import lower_is_better
from shoal.report.comparison import compare
from shoal.report.load import read
from shoal.report.page import page
from shoal.report.pairs import holm, paired_tests
from shoal.report.ranking import ranking
from shoal.report.verdicts import difference, p_text

A = [0.91, 0.88, 0.93, 0.90, 0.86, 0.95, 0.89]
B = [0.90, 0.89, 0.90, 0.86, 0.85, 0.91, 0.87]
C = [0.70, 0.72, 0.69, 0.71, 0.73, 0.70, 0.70]


def by_seed(values: list[float], first: int = 0) -> dict[str, float]:
    return {str(first + seed): value for seed, value in enumerate(values)}


def ranks(values: Mapping[str, list[float]], key: str = "acc") -> list[tuple[str, str]]:
    seeds = {name: by_seed(some) for name, some in values.items()}
    return [(row["variant"], row["rank"]) for row in ranking(key, seeds, paired_tests(seeds))["rows"]]


@pytest.mark.parametrize(
    ("a", "b"), [(A, B), (B, A), (A[:2], B[:2]), (A[:6], C[:6]), ([-1.0, 2.0, 0.5], [1.0, 0.0, 3.0])]
)
def test_the_paired_test_is_that_of_scipy(a: list[float], b: list[float]) -> None:
    (found,) = paired_tests({"a": by_seed(a), "b": by_seed(b)})
    expected = stats.ttest_rel(a, b)
    assert found["p"] == pytest.approx(expected.pvalue, rel=1e-9)
    assert found["p_holm"] == found["p"]
    interval = expected.confidence_interval(0.95)
    assert found["ci"] == pytest.approx([interval.low, interval.high])
    assert found["difference"] == pytest.approx(sum(x - y for x, y in zip(a, b, strict=True)) / len(a))
    assert found["n"] == len(a)
    assert ("wilcoxon" in found) is (len(a) >= 6)
    if len(a) >= 6:
        signed = [round(x - y, 10) for x, y in zip(a, b, strict=True)]
        assert found["wilcoxon"] == pytest.approx(stats.wilcoxon(signed).pvalue)


def test_only_common_seeds_are_paired() -> None:
    (found,) = paired_tests({"a": by_seed(A), "b": {"2": 0.9, "4": 0.85, "9": 0.1}})
    assert found["seeds"] == ["2", "4"]
    assert found["p"] == pytest.approx(stats.ttest_rel([A[2], A[4]], [0.9, 0.85]).pvalue)
    assert paired_tests({"a": by_seed(A), "b": {"2": 0.9}}) == []
    assert paired_tests({"a": by_seed(A[:3]), "b": by_seed(B[:3], first=3)}) == []


def test_differences_without_variance_give_no_nan_and_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        equal, shifted = (
            paired_tests({"a": by_seed(A), "b": by_seed(A)}),
            paired_tests({"a": by_seed(A), "b": by_seed([v - 0.04 for v in A])}),
        )
    assert (equal[0]["p"], equal[0]["difference"], equal[0]["ci"]) == (1.0, 0.0, [0.0, 0.0])
    assert equal[0]["wilcoxon"] is None
    assert shifted[0]["p"] == 0.0
    assert shifted[0]["constant"] is True
    assert shifted[0]["difference"] == pytest.approx(0.04)
    # Seven equal signs: two of the 2**7 ways to draw them are as extreme.
    assert shifted[0]["wilcoxon"] == pytest.approx(2 / 2**7)
    json.dumps([equal, shifted], allow_nan=False)


def test_holm_by_hand() -> None:
    """Four p of 0.01, 0.04, 0.03, 0.005: times 3, 1, 2, 4 in the order of size, and never falling."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


def test_ranks_are_shared_where_no_test_separates() -> None:
    assert ranks({"c": C, "b": B, "a": B[::-1]}) == [("b", "1-2"), ("a", "1-2"), ("c", "3")]
    assert ranks({"c": C, "a": A}) == [("a", "1"), ("c", "2")]
    assert ranks({"a": A, "b": A, "c": A}) == [("a", "1-3"), ("b", "1-3"), ("c", "1-3")]


def test_of_losses_the_lowest_is_first() -> None:
    assert ranks({"a": A, "c": C}, key="loss") == [("c", "1"), ("a", "2")]
    assert [lower_is_better(name) for name in ("loss", "rmse", "mae", "acc", "r2", "f1")] == [True] * 3 + [False] * 3


def test_with_one_seed_nothing_is_separated() -> None:
    values = {"a": {"0": 0.9}, "b": {"0": 0.1}}
    found = ranking("acc", values, paired_tests(values))
    assert found["separable"] is False
    assert [row["rank"] for row in found["rows"]] == ["1-2", "1-2"]
    assert [row["sd"] for row in found["rows"]] == [None, None]


def test_a_large_sweep_is_corrected_for_all_its_pairs() -> None:
    values = {f"v{i}": by_seed([0.5 + 0.001 * i + 0.01 * ((7 * i + 3 * s) % 5) for s in range(3)]) for i in range(60)}
    found = paired_tests(values)
    assert len(found) == 60 * 59 // 2
    assert max(test["p_holm"] for test in found) == 1.0
    smallest = min(found, key=lambda test: test["p"])
    assert smallest["p_holm"] == pytest.approx(min(1, smallest["p"] * len(found)))


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [("acc", 0.0371, "+3.7"), ("acc", -0.0004, "0.0"), ("acc", -0.051, "-5.1"), ("loss", 0.25, "+0.250"),
     ("loss", -0.25, "-0.250"), ("loss", 0.0, "0")],
)  # fmt: skip
def test_differences_have_their_sign(key: str, value: float, text: str) -> None:
    assert difference(key, value) == text


def test_p_is_never_written_as_zero() -> None:
    assert [p_text(p) for p in (0.0, 0.0009, 0.0123, 0.5, 1.0)] == ["< 0.001", "< 0.001", "0.012", "0.50", "1.00"]


def accuracies(folder: Path, values: Mapping[str, list[float]]) -> Path:
    write_sweep(folder, {name: {} for name in values}, range(len(next(iter(values.values())))), rounds=2, boundaries=())
    for name, some in values.items():
        for seed, value in enumerate(some):
            path = folder / name / str(seed) / "summary.json"
            path.write_text(json.dumps({**json.loads(path.read_text()), "acc": value}))
    return folder


def test_the_comparison_and_its_page_say_what_a_test_leaves_open(tmp_path: Path) -> None:
    folder = accuracies(tmp_path / "x", {"a": A, "b": A[::-1], "c": C})
    found = compare(folder)
    assert found["lead"] == "acc"
    assert [(row["variant"], row["rank"]) for row in found["ranking"]["rows"]] == [
        ("a", "1-2"),
        ("b", "1-2"),
        ("c", "3"),
    ]
    interval = stats.ttest_rel(A, A[::-1]).confidence_interval(0.95)
    assert interval.high == pytest.approx(0.0539, abs=5e-5)  # far wider than two points: nothing is "within noise"
    assert found["findings"][1] == (
        "The test does not separate a from b: difference 0.0 points, 95 % interval -5.4 to +5.4, p = 1.00 "
        "(paired t-test, corrected)."
    )
    assert found["warnings"] == []
    text = page(read(folder), found)
    assert "1\N{EN DASH}2" in text
    assert "Holm&#x27;s correction" in text
    assert "Pairing by seed" in text


def test_one_run_has_no_ranking(tmp_path: Path) -> None:
    assert 'id="ranking"' not in page(read(write_run(tmp_path / "run", rounds=3, boundaries=())))
