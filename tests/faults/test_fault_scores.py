"""Faults of scores: one client's scores that are no numbers end the whole run, and means that do not say of what.

A mean over clients and a mean over rows are different numbers; who prints one without its name is misread.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from conftest import Shoal
from fault_lab import config, lines, table
from torch import Tensor, nn

import shoal as library
from shoal import registry
from shoal.data.dataset import Dataset
from shoal.metrics.functions import metric_of, name_of

NAN = float("nan")


class Fragile(nn.Module):
    """Takes square roots of its inputs: a negative one makes every output NaN."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(2, outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x.sqrt())
        return out


def broken_meter(outputs: Tensor, targets: Tensor) -> float:
    """A metric of a user's own that is NaN where an output is."""
    return float(outputs.sum())


TRAIN = [(owner, label, [4.0 * label, 4.0 * (1 - label)]) for owner in range(3) for label in (0, 1)]
TEST = [*TRAIN, (1, 0, [-1.0, 4.0]), (1, 1, [4.0, -1.0])]
FRAGILE = {"kind": "test_fault_scores:Fragile"}
OWN = ["test_fault_scores:broken_meter"]


def metrics_of(learned: str) -> list[str]:
    """All registered metrics that these targets have."""
    return [k for k in registry.PARTS["metric"] if getattr(metric_of(k), "learns", learned) == learned]


def no_number(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")


@pytest.mark.parametrize("learned", ["classes", "values"])
def test_a_client_whose_scores_are_no_numbers_is_reported_and_the_run_goes_on(tmp_path: Path, learned: str) -> None:
    data, local = table(TRAIN, TEST), {}
    if learned == "values":
        x, y, owner = ([row[i] for row in [*TRAIN, *TEST]] for i in (2, 1, 0))
        n = len(TRAIN)
        x = np.array(x, dtype=np.float32)
        data = library.from_arrays(
            x[:n], y[:n], x[n:], y[n:], columns={"owner": owner}, normalize="none", learn="values"
        )
        local = {"loss": "mse"}
    kinds = [*OWN, *metrics_of(learned)]
    raw = config(rounds=3, model=FRAGILE, evaluate={"metrics": kinds}, local=local)
    result = library.run(raw, out=tmp_path / "a", data=data)
    assert result.summary["finished"]
    assert result.summary["updates"] == 3 * 3
    for round in (1, 2, 3):
        losses = {line["client"]: line["value"] for line in lines(result, metric="loss", round=round)}
        assert losses[1] is None
        assert losses[0] > 0
        assert losses[2] > 0
        for kind in kinds:
            found = [line for line in lines(result, metric=name_of(kind), round=round) if "client" in line]
            known = {line["client"]: line["value"] is not None for line in found}
            assert (known[0], known[1], known[2]) == (True, False, True), kind
    # What could not be measured is recorded with the client's name, once; everyone else has a number.
    failed = [(line["round"], line["kind"], line["client"]) for line in lines(result, record="metric_failed")]
    assert failed == [(1, kind, 1) for kind in kinds]
    assert result.summary["loss"] == pytest.approx(sum(losses[c] for c in (0, 2)) / 2)
    for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=no_number)
    assert "client 1" in result.report.read_text(encoding="utf-8").lower()


def test_an_output_that_is_no_number_is_no_right_answer(tmp_path: Path) -> None:
    """Half of the rows of client 1 give NaN; the arg max of NaNs is the first class, which is no answer."""
    result = library.run(config(rounds=40, model=FRAGILE), out=tmp_path / "a", data=table(TRAIN, TEST))
    values = {line["client"]: line["value"] for line in lines(result, metric="accuracy", round=40)}
    assert (values[0], values[2]) == (1.0, 1.0)
    assert values[1] in (None, 0.5)


class Unequal:
    """Client 0 has one test row, which is wrong, client 1 has 99, which are right: nothing is trained."""

    part = "data"

    def load(self) -> Dataset:
        """All rows have the same features, so one class is the answer to all."""
        rows = [(0, 0, [1.0, 0.0]), (1, 1, [1.0, 0.0])]
        return table(rows, [rows[0], *[rows[1]] * 99])


class SecondClass(nn.Module):
    """Always answers with class 1."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        nn.init.zeros_(self.linear.weight)
        with torch.no_grad():
            self.linear.bias.copy_(torch.tensor([0.0, 9.0]))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x)
        return out


@pytest.fixture
def unequal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    parts: dict[str, Any] = {"data": {"kind": "test_fault_scores:Unequal"}, "local": {"lr": 1e-6}}
    own = config(rounds=1, model={"kind": "test_fault_scores:SecondClass"}, **parts)
    (tmp_path / "unequal.yaml").write_text(yaml.safe_dump(own))
    return tmp_path


def test_both_means_are_written_and_say_what_they_weigh(unequal: Path, shoal: Shoal) -> None:
    assert shoal("run", "unequal.yaml", "--out", "a").code == 0
    means = {line["weighting"]: line["value"] for line in lines(unequal / "a", metric="mean_accuracy")}
    assert means == {"targets": 0.5, "rows": 0.99}
    summary = json.loads((unequal / "a" / "summary.json").read_text())
    assert (summary["acc"], summary["acc_weighted"]) == (0.5, 0.99)
    assert summary["accuracy_by_target"] == {"client=0": 0.0, "client=1": 1.0}


def test_both_means_are_printed_with_their_names(unequal: Path, shoal: Shoal) -> None:
    said = shoal("run", "unequal.yaml", "--out", "a")
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in said.out.splitlines() if "│" in line]
    printed = {row[0]: row[1] for row in cells if len(row) == 2}
    assert printed["acc"] == "0.5"
    assert printed["acc_weighted"] == "0.99"


def test_both_means_are_in_the_report_with_their_names(unequal: Path, shoal: Shoal) -> None:
    from shoal.report.numbers import NUMBERS

    assert shoal("run", "unequal.yaml", "--out", "a").code == 0
    page = (unequal / "a" / "report.html").read_text(encoding="utf-8")
    assert "99.0" in page
    assert "50.0" in page
    assert NUMBERS["acc_weighted"].label in page
    assert NUMBERS["acc_weighted"].label != NUMBERS["acc"].label
