"""Fault: classes are numbered anew by the order of the tasks, and whoever reads the numbers takes them for labels.

Here a user gives the order 5, 4, 3, 2, 1, 0: everything that is printed or written names the original labels.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import Shoal
from fault_lab import config, images, lines

import shoal as library

ORDER = [[5, 4], [3, 2], [1, 0]]
STREAM = {"kind": "tasks", "tasks": 3, "by": "class", "classes": ORDER, "order": "synchronous", "clients": 2}
DATA = {"kind": "digits", "limit": 600, "limit_test": 200}


@pytest.fixture
def reversed_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    own = config(rounds=3, data=DATA, stream=STREAM, method={"kind": "fedavg", "per": "task"}, local={"epochs": 5})
    (tmp_path / "reversed.yaml").write_text(yaml.safe_dump(own))
    return tmp_path


def test_show_prints_the_original_labels_in_the_order_given(reversed_digits: Path, shoal: Shoal) -> None:
    said = shoal("show", "reversed.yaml")
    assert said.code == 0, said.err
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in said.out.splitlines() if "│" in line]
    # Tasks by number and name; their rows' labels are listed in the order of the data.
    assert [row[:2] + row[4:5] for row in cells if row[0] in "012" and len(row) == 6] == [
        ["0", "5, 4", "4, 5"],
        ["1", "3, 2", "2, 3"],
        ["2", "1, 0", "0, 1"],
    ]
    held = [row for row in cells if len(row) == 7 and row[0] in "012"]
    assert [(row[3], row[6]) for row in held if row[2] == "0"] == [
        ("0 (5, 4)", "4, 5"),
        ("1 (3, 2)", "2, 3"),
        ("2 (1, 0)", "0, 1"),
    ]


def test_the_report_and_the_metrics_name_the_original_labels(reversed_digits: Path, shoal: Shoal) -> None:
    assert shoal("run", "reversed.yaml", "--out", "run").code == 0
    (header,) = lines(reversed_digits / "run", record="stream")
    assert header["task_names"] == ["5, 4", "3, 2", "1, 0"]
    assert header["classes"] == list("0123456789")
    page = (reversed_digits / "run" / "report.html").read_text(encoding="utf-8")
    assert "0, 1, 2, 3, 4, 5, 6, 7, 8, 9" in page
    for name in header["task_names"]:
        assert name in page


def test_outputs_of_a_head_are_named_by_original_labels(tmp_path: Path) -> None:
    """Task 0 has the labels 5 and 4 in this order: its first output is 5, wherever outputs are named."""
    x, y = images(60, 6)
    data = library.from_arrays(x, y, x, y)
    own = {**config(), "rounds": 3, "stream": STREAM, "method": {"kind": "fedavg", "per": "task"}}
    own |= {"evaluate": {"measures": ["accuracy", "confusion"]}}
    result = library.run(own, {"local.lr": 0.5, "local.epochs": 20}, out=tmp_path / "run", data=data)
    records = lines(result, record="confusion", round=3)
    assert [record["classes"] for record in records] == [["5", "4"], ["3", "2"], ["1", "0"]]
    for record in records:
        counts = np.zeros((2, 2), dtype=int)
        for true, predicted, rows in record["counts"]:
            counts[true, predicted] = rows
        assert counts.sum(1).tolist() == [10, 10]  # ten test rows of each class, in the order of the classes
        (accuracy,) = lines(result, metric="accuracy", round=3, task=record["task"])
        assert np.trace(counts) / 20 == pytest.approx(accuracy["value"])


def test_labels_with_gaps_are_not_counted_from_zero(tmp_path: Path) -> None:
    x, y = images(60, 3)
    labels = np.array([41, 7, 3])[y]
    stream = {"kind": "tasks", "tasks": 2, "by": "class", "classes": [[41], [7, 3]], "clients": 2}
    data = library.from_arrays(x, labels, x, labels)
    result = library.run(config(stream=stream), out=tmp_path / "run", data=data)
    (header,) = lines(result, record="stream")
    assert (header["classes"], header["task_names"]) == (["3", "7", "41"], ["41", "7, 3"])
