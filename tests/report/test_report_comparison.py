"""`compare` and `rows` on hand-made folders: means, deviations, what counts, and how numbers are written."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from report_folders import write_run, write_sweep

from shoal.errors import RunError
from shoal.report.comparison import compare, rows
from shoal.report.load import read
from shoal.report.numbers import NUMBERS, describe, flat, written


def sweep(folder: Path, accuracies: dict[str, list[float]], **more: object) -> Path:
    """A folder of runs whose summaries have these final accuracies, seed by seed."""
    write_sweep(folder, {name: {} for name in accuracies}, range(len(next(iter(accuracies.values())))), rounds=2,
                boundaries=())  # fmt: skip
    for name, values in accuracies.items():
        for seed, value in enumerate(values):
            path = folder / name / str(seed) / "summary.json"
            summary = {"seed": seed, "rounds": 2, "method": "fedavg", "acc": value, **more}
            path.write_text(json.dumps(summary))
    return folder


def test_mean_sample_deviation_and_values(tmp_path: Path) -> None:
    bwt = {"seen": -0.01, "events": 11, "literal": None}
    found = compare(sweep(tmp_path / "x", {"b": [0.8, 0.9, 0.85], "a": [0.7, 0.7, 0.7]}, bwt_f=bwt))
    assert list(found["variants"]) == ["b", "a"]  # the order of the configuration
    acc = found["variants"]["b"]["numbers"]["acc"]
    assert acc["mean"] == pytest.approx(0.85)
    assert acc["sd"] == pytest.approx(0.05)  # sqrt((0.0025 + 0.0025 + 0) / 2)
    assert acc["n"] == 3
    assert acc["values"] == {"0": 0.8, "1": 0.9, "2": 0.85}
    assert found["variants"]["a"]["numbers"]["acc"]["sd"] == 0
    assert found["variants"]["a"]["numbers"]["bwt_f.events"]["mean"] == 11
    assert "bwt_f.literal" not in found["variants"]["a"]["numbers"]
    assert "seed" not in found["variants"]["a"]["numbers"]
    assert found["variants"]["a"]["method"] == "fedavg"
    assert found["name"] == "x"
    json.dumps(found, allow_nan=False)


def test_one_seed_has_no_deviation(tmp_path: Path) -> None:
    found = compare(sweep(tmp_path / "x", {"a": [0.5]}))
    assert found["variants"]["a"]["numbers"]["acc"] == {"mean": 0.5, "sd": None, "n": 1, "values": {"0": 0.5}}
    assert rows(found)[0]["accuracy %"] == "50.0"


def test_unfinished_and_missing_runs_do_not_count(tmp_path: Path) -> None:
    folder = sweep(tmp_path / "x", {"a": [0.5, 0.7, 0.9], "b": [0.1, 0.2, 0.3]})
    (folder / "a" / "1" / "summary.json").unlink()
    (folder / "a" / "2" / "summary.json").write_text(json.dumps({"seed": 2, "acc": 0.1, "finished": False}))
    for path in (folder / "b" / "2").iterdir():
        path.unlink()
    found = compare(folder)
    assert found["variants"]["a"]["seeds"] == ["0"]
    assert found["variants"]["a"]["unfinished"] == ["1", "2"]
    assert found["variants"]["a"]["numbers"]["acc"]["mean"] == 0.5
    assert found["variants"]["b"]["seeds"] == ["0", "1"]
    assert found["missing"] == ["b/2"]
    assert [row["seeds"] for row in rows(found)] == ["1 (+2 unfinished)", "2"]


def test_a_single_run_is_one_variant(tmp_path: Path) -> None:
    found = compare(write_run(tmp_path / "run", name="alone", seed=7, rounds=3, boundaries=()))
    assert list(found["variants"]) == ["alone"]
    assert found["variants"]["alone"]["seeds"] == ["7"]
    assert found["missing"] == []


def test_seeds_are_sorted_as_numbers(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "x", {"a": {}}, [10, 9, 100], rounds=1, boundaries=())
    assert compare(folder)["variants"]["a"]["seeds"] == ["9", "10", "100"]


def test_folders_side_by_side(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", rounds=1, boundaries=())
    two = sweep(tmp_path / "two", {"a": [0.5], "b": [0.6]})
    assert list(compare(one, two)["variants"]) == ["one", "two/a", "two/b"]
    twin = write_run(tmp_path / "deep" / "one", rounds=1, boundaries=())
    assert len(compare(one, twin)["variants"]) == 2


def test_no_run_below_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("variants: {a: {}}\n")
    with pytest.raises(RunError, match="found neither"):
        compare(tmp_path)


def test_reports_and_checkpoints_are_not_runs(tmp_path: Path) -> None:
    folder = sweep(tmp_path / "x", {"a": [0.5]})
    (folder / "a" / "0" / "checkpoint").mkdir()
    (folder / "a" / "0" / "checkpoint" / "summary.json").write_text("{}")
    assert len(read(folder).runs) == 1


def test_the_table(tmp_path: Path) -> None:
    more = {"bwt_f": {"seen": -0.0312, "worst@5": -0.0004}, "client_drift": 6.084, "seconds": 1.824,
            "bytes_down_per_round": 19240.0}  # fmt: skip
    found = compare(sweep(tmp_path / "x", {"a": [0.9, 0.92]}, **more))
    row = {"variant": "a", "accuracy %": "91.0 ± 1.4", "BWT_f seen": "-3.1 ± 0.0", "worst@5": "0.0 ± 0.0"}
    assert rows(found) == [{**row, "drift": "6.08"}]
    full = rows(found, full=True)[0]
    assert full["seeds"] == "2"
    assert full["time"] == "1.82 ± 0.00 s"
    assert full["down/round"] == "19.24 kB"
    assert full["drift"] == "6.08 ± 0"
    assert "up/round" not in full


@pytest.mark.parametrize(
    ("key", "mean", "sd", "text"),
    [
        ("acc", 0.8125, None, "81.2 %"),
        ("acc", 1.0, 0.0, "100.0 ± 0.0 %"),
        ("acc", None, None, "-"),
        ("bwt_f.seen", 0.012, 0.003, "+1.2 ± 0.3 points"),
        ("bwt_f.seen", -0.0001, None, "0.0 points"),
        ("bwt_f.worst@5", -0.0951, None, "-9.5 points"),
        ("bwt_f.events", 11.0, 0.0, "11 ± 0"),
        ("client_drift", 0.0, None, "0"),
        ("client_drift", 0.0426, 0.0036, "0.0426 ± 0.0036"),
        ("client_drift", 1234.5, None, "1,234"),
        ("client_drift", 2.5e-9, None, "2.50e-09"),
        ("client_drift", -15.63, None, "-15.6"),
        ("client_drift", 1.456208279e30, 3.2e28, "1.46e30 ± 3.20e28"),
        ("client_drift", -2.5e9, 4.0, "-2.50e9 ± 4"),
        ("client_drift", 12.0, 1e10, "12.0 ± 1.00e10"),
        ("client_drift", 999_999_999.0, None, "999,999,999"),
        ("model_bytes", 0, None, "0 B"),
        ("model_bytes", 999, None, "999 B"),
        ("model_bytes", 4_603_548, None, "4.60 MB"),
        ("total_bytes_up", 2.5e11, None, "250 GB"),
        ("seconds", 123.4, None, "123 s"),
        ("seconds", 12.34, 0.5, "12.3 ± 0.5 s"),
        ("trainable_parameters", 1_150_887, None, "1,150,887"),
        ("peak_memory_mb", 431.2, None, "431 MB"),
        ("my_own_number", 0.5, None, "0.500"),
    ],
)
def test_numbers_are_written_with_their_units(key: str, mean: float | None, sd: float | None, text: str) -> None:
    assert written(key, mean, sd) == text


def test_flat_numbers_of_a_summary() -> None:
    summary = {
        "acc": 0.5,
        "n": 3,
        "on": True,
        "name": "x",
        "a": {"b": {"c": 1.5}, "d": None},
        "list": [1],
        "bad": math.nan,
    }
    assert flat(summary) == {"acc": 0.5, "n": 3.0, "a.b.c": 1.5}


def test_numbers_have_names() -> None:
    assert describe("client_drift_by.cosine.head").label == "Drift, cosine (head)"
    assert describe("accuracy_by_target.domain=a.b").label == "Final accuracy, domain=a.b"
    assert describe("some_thing.of_mine").label == "some thing, of mine"
    assert all(number.label for number in NUMBERS.values())
