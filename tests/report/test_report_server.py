"""The server's step in the report: bands of quantiles, the constant, the sentence on its range; and a real run."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from report_folders import write_run, write_sweep

import shoal
from shoal.report.load import read
from shoal.report.page import page

STEP = "median_sqrt_v"
EPSILON = {"class": "Adam", "tau": None, "calibration": {"class": "Epsilon", "epsilon": "auto", "window": 10}}


def lines_of(metric: str, by_round: dict[int, Sequence[float]], entry: str = "global") -> list[dict[str, Any]]:
    return [
        {"round": r, "metric": metric, "value": q[2], "quantiles": list(q), "entry": entry} for r, q in by_round.items()
    ]


def constant(value: float, rounds: Sequence[int]) -> list[dict[str, Any]]:
    return [{"round": r, "metric": "calibration_constant", "value": value, "entry": "global"} for r in rounds]


def server(folder: Path, **settings: Any) -> Path:
    """Puts what a server optimiser says of itself into the run's record."""
    path = folder / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    next(line for line in records if line.get("record") == "model")["server"] = settings
    path.write_text("".join(json.dumps(line) + "\n" for line in records))
    return folder


def part_of(folder: Path) -> tuple[str, dict[str, dict[str, Any]]]:
    """The HTML of the section, and its charts by heading."""
    found = re.search(r'<section id="server".*?</section>', page(read(folder)), re.S)
    assert found
    frames = re.findall(
        r'<figcaption>(.*?)</figcaption>.*?<script type="application/json">(.*?)</script>', found[0], re.S
    )
    return found[0], {title: json.loads(chart) for title, chart in frames}


def bands(chart: dict[str, Any]) -> list[dict[str, Any]]:
    return [trace for trace in chart["data"] if trace.get("fill") == "toself"]


def curves(chart: dict[str, Any]) -> list[dict[str, Any]]:
    return [trace for trace in chart["data"] if trace.get("fill") != "toself"]


ONE = {1: (1.0, 2.0, 3.0, 4.0, 5.0), 2: (2.0, 4.0, 6.0, 8.0, 10.0)}


def test_a_line_with_two_bands_on_a_logarithmic_axis(tmp_path: Path) -> None:
    # Two entries: the chart shows the mean of each quantile over them.
    more = [*lines_of(STEP, ONE, "a"), *lines_of(STEP, {1: (3.0, 4.0, 5.0, 6.0, 7.0)}, "b"), *constant(0.5, (1, 2))]
    _, charts = part_of(server(write_run(tmp_path / "run", more=more), tau=0.5))
    assert list(charts) == ["sqrt(v)"]
    chart = charts["sqrt(v)"]
    assert chart["layout"]["yaxis"]["type"] == "log"
    outer, inner = bands(chart)
    assert (outer["x"], outer["y"]) == ([1, 2, 2, 1], [6.0, 10.0, 2.0, 2.0])
    assert inner["y"] == [5.0, 8.0, 4.0, 3.0]
    median, tau = curves(chart)
    assert median["y"] == [4.0, 6.0]
    assert (tau["y"], tau["mode"], tau["line"]["dash"]) == ([0.5, 0.5], "lines", "dot")
    assert tau["name"].endswith("tau")


def test_every_number_has_a_chart_and_only_the_second_moment_the_constant(tmp_path: Path) -> None:
    more = [line for kind in (STEP, "median_abs_delta", "effective_step") for line in lines_of(kind, ONE)]
    text, charts = part_of(write_run(tmp_path / "run", more=[*more, *constant(0.5, (1, 2))]))
    assert list(charts) == ["sqrt(v)", "|Delta|", "Effective step (rate / denominator)"]
    assert [len(curves(chart)) for chart in charts.values()] == [2, 1, 1]
    assert [len(bands(chart)) for chart in charts.values()] == [2, 2, 2]
    assert "Bands go from 25 to 75 %" in text


def test_a_band_that_reaches_zero_is_cut_at_the_smallest_number(tmp_path: Path) -> None:
    more = lines_of("median_abs_delta", {1: (0.0, 0.0, 3.0, 4.0, 5.0), 2: (0.0, 0.5, 3.0, 4.0, 9.0), 3: (0.0,) * 5})
    _, charts = part_of(write_run(tmp_path / "run", more=more))
    outer, inner = bands(charts["|Delta|"])
    assert (outer["x"], outer["y"]) == ([1, 2, 2, 1], [5.0, 9.0, 0.5, 0.5])
    assert inner["y"] == [4.0, 4.0, 0.5, 0.5]
    (median,) = curves(charts["|Delta|"])
    assert median["x"] == [1, 2]  # a median of 0 is not on the axis


def test_runs_without_quantiles_have_the_line_alone(tmp_path: Path) -> None:
    more = [{"round": r, "metric": STEP, "value": 0.01 * r, "entry": "task/0"} for r in (1, 2)]
    text, charts = part_of(write_run(tmp_path / "run", more=more))
    assert len(charts["sqrt(v)"]["data"]) == 1
    assert "Bands" not in text


def test_bands_of_several_variants_are_shown_on_demand(tmp_path: Path) -> None:
    more = [*lines_of(STEP, ONE), *constant(0.5, (1, 2))]
    text, charts = part_of(write_sweep(tmp_path / "s", {"a": {"more": more}, "b": {"more": more}, "c": {}}, [0, 1]))
    assert '<option value="0">medians</option><option value="1">medians and bands</option>' in text
    assert [trace["meta"] for trace in bands(charts["sqrt(v)"])] == [{"view": [1]}] * 4
    assert all(trace.get("meta") is None for trace in curves(charts["sqrt(v)"]))
    assert [trace["legendgroup"] for trace in curves(charts["sqrt(v)"])] == ["a", "a", "b", "b"]
    assert 'data-group="c"' not in text


TOO_LARGE = (
    "out of range, too large; the denominators of 95 % of them differ by less than a fifth, and the server is nearly "
    "momentum with another rate."
)
TOO_SMALL = "out of range, too small; in 95 % of them it adds less than a fifth to sqrt(v), and does next to nothing."


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        # Denominators from 1 to 1.19 times the constant, and up to 1.21 times.
        (0.0, 0.19, TOO_LARGE),
        (0.0, 0.21, "in range."),
        # All of sqrt(v) is below the constant, and denominators still differ by a factor of 1.9.
        (0.01, 0.9, "in range."),
        (1.1, 30.0, "in range."),
        # sqrt(v) from 4.9 or 5.1 times the constant on: it adds 20.4 % or 19.6 %.
        (4.9, 30.0, "in range."),
        (5.1, 30.0, TOO_SMALL),
    ],
)
def test_one_sentence_says_whether_the_constant_is_in_range(
    tmp_path: Path, low: float, high: float, verdict: str
) -> None:
    share = float(high < 1)
    summary = {"calibration_constant": 0.02, "below_constant": share}
    last = tuple(0.02 * q for q in (low, low, (low + high) / 2, high, high))
    # What was before the last step does not count.
    more = [*lines_of(STEP, {1: (0.02,) * 5, 2: last}), *constant(0.02, (1, 2))]
    text, _ = part_of(server(write_run(tmp_path / "run", more=more, summary=summary), **EPSILON))
    below = f"sqrt(v) is below it in {100 * share:.0f} % of the coordinates at the end"
    assert f"<p>epsilon (auto) is 0.02, and {below}: {verdict}</p>" in text
    assert "calibration epsilon auto" in text


@pytest.mark.parametrize(
    ("quantiles", "verdict"),
    [
        # Dead pixels: a twentieth of the coordinates, or more than a quarter of them, never moved.
        ((0.0, 5.1, 9.0, 20.0, 30.0), TOO_SMALL.replace("in 95 %", "in at least 75 %")),
        ((0.0, 4.9, 9.0, 20.0, 30.0), "in range."),
        ((0.0, 0.0, 5.1, 20.0, 30.0), TOO_SMALL.replace("in 95 %", "in at least 50 %")),
        ((0.0, 0.0, 0.0, 0.0, 0.19), TOO_LARGE),
    ],
)
def test_coordinates_that_never_moved_do_not_make_a_constant_look_large(
    tmp_path: Path, quantiles: tuple[float, ...], verdict: str
) -> None:
    step = lines_of(STEP, {1: tuple(1e-8 * q for q in quantiles)})
    more = [*lines_of("median_abs_delta", ONE), *step, *constant(1e-8, (1,))]
    summary = {"calibration_constant": 1e-8, "below_constant": 0.3}
    text, _ = part_of(server(write_run(tmp_path / "run", more=more, summary=summary), **EPSILON))
    assert f"sqrt(v) is below it in 30 % of the coordinates at the end: {verdict}</p>" in text


def test_where_nothing_ever_moved_there_is_no_verdict(tmp_path: Path) -> None:
    more = [*lines_of("median_abs_delta", ONE), *lines_of(STEP, {1: (0.0,) * 5}), *constant(1e-8, (1,))]
    summary = {"calibration_constant": 1e-8, "below_constant": 1.0}
    text, _ = part_of(server(write_run(tmp_path / "run", more=more, summary=summary), **EPSILON))
    assert "sqrt(v) is below it in 100 % of the coordinates at the end.</p>" in text


def test_of_several_entries_the_median_counts_and_without_quantiles_there_is_no_verdict(tmp_path: Path) -> None:
    summary = {"calibration_constant": 1.0, "below_constant": 1.0}
    flat = [(c, lines_of(STEP, {1: (0.1, 0.1, 0.1, 0.1, q)}, c)) for c, q in (("a", 0.1), ("b", 0.15), ("c", 0.9))]
    more = [{"round": 1, "metric": "calibration_constant", "value": 1.0, "entry": c} for c, _ in flat]
    text, _ = part_of(write_run(tmp_path / "a", more=[*more, *(x for _, own in flat for x in own)], summary=summary))
    assert "at the end: out of range, too large" in text
    old = [{name: v for name, v in x.items() if name != "quantiles"} for _, own in flat for x in own]
    text, _ = part_of(write_run(tmp_path / "b", more=[*more, *old], summary=summary))
    assert "sqrt(v) is below it in 100 % of the coordinates at the end.</p>" in text


def test_where_there_is_no_constant_no_sentence_is_said(tmp_path: Path) -> None:
    text, charts = part_of(write_run(tmp_path / "run", more=lines_of("median_abs_delta", ONE)))
    assert list(charts) == ["|Delta|"]
    assert "range" not in text
    assert "tau" not in text


SMALL = {
    "rounds": 4,
    "data": {"kind": "digits", "limit": 120, "limit_test": 40},
    "stream": {"kind": "static", "clients": 3},
    "model": {"kind": "mlp", "hidden": [6]},
}


def test_a_real_run_of_federated_averaging_has_the_change(tmp_path: Path) -> None:
    result = shoal.run({**SMALL, "method": "fedsgd"}, out=tmp_path / "run")
    assert result.summary["median_abs_delta"] > 0
    assert "median_sqrt_v" not in result.summary
    _, charts = part_of(result.folder)
    assert list(charts) == ["|Delta|"]
    assert [len(trace["x"]) for trace in bands(charts["|Delta|"])] == [8, 8]


def test_a_real_run_with_an_automatic_constant_has_all_charts(tmp_path: Path) -> None:
    softplus = {"kind": "softplus", "beta": "auto", "window": 2}
    method = {"kind": "fedamsgrad", "server": {"lr": 0.01, "calibration": softplus}}
    result = shoal.run({**SMALL, "method": method}, out=tmp_path / "run")
    text, charts = part_of(result.folder)
    assert list(charts) == ["sqrt(v)", "|Delta|", "Effective step (rate / denominator)"]
    frame = result.frame()
    logged = frame[frame["metric"] == "calibration_constant"]["value"].tolist()
    _, drawn = curves(charts["sqrt(v)"])
    assert drawn["y"] == pytest.approx(logged, rel=1e-5)
    assert len(set(logged)) == 4
    assert "log(2) / beta (auto) is" in text
    assert "in range." in text  # it is the median of those that moved
    assert result.summary["calibration_constant"] == logged[-1]
    assert 0.4 < result.summary["below_constant"] < 0.9
