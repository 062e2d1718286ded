"""All measures together in whole runs: names in the documentation, evaluation off, and numbers from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import shoal
from shoal import registry
from shoal.data.arrays import from_arrays
from shoal.errors import ConfigError
from shoal.folder import RunFolder
from shoal.metrics.functions import name_of

HERE = "test_measured_runs"
DOCS = Path(__file__).parents[2] / "docs" / "metrics"
PAGES = "\n".join(page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("*.md")))
QUICK = {
    "rounds": 6,
    "data": {"kind": "digits", "limit": 300, "limit_test": 90},
    "stream": {"kind": "tasks", "tasks": 3, "by": "transform", "clients": 3, "order": "synchronous"},
    "model": {"kind": "mlp", "hidden": [8]},
    "method": {"kind": "fedavg", "per": "all", "server": {"kind": "adam", "lr": 0.1, "tau": 0.01}},
    "local": {"lr": 0.1, "momentum": 0.9},
    "evaluate": {"metrics": ["f1", "auc", "balanced_accuracy", f"{HERE}:fragile"]},
    "execution": {"workers": 2},
}


def fragile(outputs, targets):
    if float(outputs[0, 0]) > -1e9:
        raise ZeroDivisionError("after hundreds of rounds")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return shoal.run(QUICK, out=tmp_path_factory.mktemp("measured") / "run")


def lines_of(result, **wanted):
    found = RunFolder(result.folder).lines()
    return [line for line in found if all(line.get(name) == value for name, value in wanted.items())]


def told(names):
    return {name for name in names if f"`{name}`" not in PAGES}


def test_every_kind_is_documented():
    assert not told([*registry.PARTS["measure"], *registry.PARTS["metric"]])


def test_every_declared_line_is_documented():
    kinds = [registry.find("measure", kind) for kind in registry.PARTS["measure"]]
    assert not told(line for kind in kinds for line in kind.lines)


def test_every_line_of_a_run_is_declared_and_documented(run):
    lines = lines_of(run)
    written = {line["metric"] for line in lines if "metric" in line} - {"fragile"}
    declared = {line for kind in registry.PARTS["measure"] for line in registry.find("measure", kind).lines}
    assert written <= declared | set(registry.PARTS["metric"])
    records = {line["record"] for line in lines if "record" in line}
    assert {"confusion", "metric_failed"} <= records
    assert not told(written | {"confusion", "metric_failed"})


def test_every_number_of_the_summary_that_a_measure_gives_is_documented(run):
    lines = lines_of(run)
    names = set()
    for kind in registry.PARTS["measure"]:
        found = registry.find("measure", kind).summarise(lines)
        names |= set(found)
        for value in found.values():
            if isinstance(value, dict):
                names |= {name for name in value if "=" not in name and not isinstance(value[name], dict)}
    assert not told(names - {"fragile"})


def test_links_and_names_of_the_index():
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    assert {page.name for page in DOCS.glob("*.md")} - {"README.md"} == set(re.findall(r"\((\w+\.md)\)", index))


def test_the_example_of_a_metric_of_ones_own():
    (block,) = re.findall(r"```python\n(.*?)```", (DOCS / "clients.md").read_text(encoding="utf-8"), re.DOTALL)
    namespace = {}
    exec(block, namespace)
    outputs = torch.tensor([[4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0]])
    assert [float(namespace["top3"](outputs, torch.tensor(y))) for y in ([0, 1], [3, 3], [3, 0])] == [1.0, 0.5, 0.0]


def test_a_metric_that_fails_is_null_and_the_run_goes_on(run):
    assert {line["value"] for line in lines_of(run, metric="fragile")} == {None}
    (record,) = lines_of(run, record="metric_failed")
    assert record["round"] == 1
    assert record["kind"] == f"{HERE}:fragile"
    assert record["reason"].startswith(f"ZeroDivisionError: after hundreds of rounds ({HERE}.py:")
    assert run.summary["finished"]


def test_confusion_agrees_with_the_accuracy_and_the_metrics(run):
    for line in lines_of(run, record="confusion"):
        matrix = np.zeros((10, 10))
        for true, predicted, n in line["counts"]:
            matrix[true, predicted] = n
        where = {"round": line["round"], "task": line["task"]}
        (accuracy,) = lines_of(run, metric="accuracy", **where)
        (f1,) = lines_of(run, metric="f1", **where)
        (balanced,) = lines_of(run, metric="balanced_accuracy", **where)
        right = np.diag(matrix)
        assert accuracy["value"] == pytest.approx(right.sum() / matrix.sum())
        assert f1["value"] == pytest.approx(np.mean(2 * right / (matrix.sum(0) + matrix.sum(1))))
        assert balanced["value"] == pytest.approx(np.mean(right / matrix.sum(1)))
    assert [(x["round"], x["task"]) for x in lines_of(run, record="confusion")] == [
        (r, t) for r in (2, 4, 6) for t in range(3)
    ]


def test_a_shared_model_has_a_forward_transfer_of_its_own(run):
    found = run.summary["forward_transfer"]
    assert (found["tasks"], found["excluded"], found["own_entries"]) == (2, 1, False)
    cells = {(x["round"], x["task"]): x["value"] for x in lines_of(run, metric="accuracy")}
    start = {x["task"]: x["value"] for x in lines_of(run, metric="accuracy_untrained")}
    assert found["mean"] == pytest.approx((cells[2, 1] - start[1] + cells[4, 2] - start[2]) / 2)


def test_forgetting_from_the_lines_of_the_run(run):
    cells = {(x["round"], x["task"]): x["value"] for x in lines_of(run, metric="accuracy")}
    found = run.summary["forgetting"]
    assert found["first"] == pytest.approx((cells[2, 0] - cells[6, 0] + cells[4, 1] - cells[6, 1]) / 2)
    best = [max(cells[r, t] for r in range(2 * t + 1, 6)) - cells[6, t] for t in (0, 1)]
    assert found["best"] == pytest.approx(sum(best) / 2)


def test_movement_is_that_of_the_saved_model(run):
    assert {line["round"] for line in lines_of(run, metric="entry_cosine", over="head")} == {1, 2, 3, 4, 5, 6}
    assert 0 < run.summary["entry_cosine"]["head"] < 2


def test_validation_in_the_last_five_rounds(run):
    assert {line["round"] for line in lines_of(run, metric="validation_loss")} == {2, 3, 4, 5, 6}
    plain = [x["value"] for x in lines_of(run, metric="mean_validation_accuracy", weighting="targets")]
    assert run.summary["validation_accuracy"] == pytest.approx(np.mean(plain))


@pytest.mark.parametrize("changes", [{"evaluate.every": 0}, {"rounds": 0, "stream": {"kind": "static", "clients": 3}}])
def test_evaluation_off_or_no_rounds(tmp_path, changes):
    result = shoal.run(QUICK, changes, out=tmp_path / "run")
    names = {line.get("metric") or line["record"] for line in lines_of(result)}
    assert not names & {"accuracy", "f1", "accuracy_untrained", "validation_accuracy", "confusion"}
    assert (result.summary["acc"], result.summary["validation_accuracy"], result.summary["over_targets"]) == (
        None,
        None,
        {},
    )
    assert "forgetting" not in result.summary
    assert "forward_transfer" not in result.summary
    assert result.summary["finished"]


def test_an_interval_longer_than_the_run(tmp_path):
    result = shoal.run(QUICK, {"evaluate.every": 100, "rounds": 3}, out=tmp_path / "run")
    assert result.summary["acc"] is not None
    assert result.summary["forgetting"]["tasks"] == 2


class Poisoned(torch.nn.Module):
    """Gives NaN for rows whose second feature is above 2."""

    def __init__(self, shape, outputs):
        super().__init__()
        self.linear = torch.nn.Linear(2, outputs)

    def forward(self, x):
        out = self.linear(x)
        return torch.where(x[:, 1:] > 2, torch.nan, out)


def test_a_target_whose_outputs_hold_nan_is_told_and_the_run_goes_on(tmp_path):
    x = np.random.default_rng(0).uniform(-1, 1, size=(80, 2))
    y = (x[:, 0] > 0).astype(np.int64)
    x[70:, 1] = 5.0
    data = from_arrays(x[:50], y[:50], x[50:], y[50:], normalize="none")
    parts = {"data": "arrays", "model": {"kind": f"{HERE}:Poisoned"}, "evaluate": {"metrics": ["f1"]}, "rounds": 2}
    config = {**QUICK, "stream": {"kind": "static", "clients": 2}, **parts}
    result = shoal.run(config, out=tmp_path / "run", data=data)
    assert [line["value"] for line in lines_of(result, metric="f1")] == [None, None]
    (record,) = lines_of(result, record="metric_failed")
    assert (record["round"], record["reason"]) == (1, "the model's outputs hold NaN")
    (confusion,) = lines_of(result, record="confusion")
    assert (confusion["counts"], confusion["excluded"]) == ([], 1)
    assert result.summary["over_targets"]["f1"]["excluded"] == 1
    assert result.summary["finished"]


def test_a_regression_has_metrics_in_its_own_units(tmp_path):
    x = np.linspace(-1, 1, 60)[:, None]
    y = 1000 + 500 * x[:, 0]
    data = from_arrays(x[::2], y[::2], x[1::2], y[1::2], learn="values")
    parts = {"data": "arrays", "model": {"kind": "mlp", "hidden": []}, "rounds": 2}
    config = {
        **QUICK,
        "stream": {"kind": "static", "clients": 2},
        **parts,
        "evaluate": {"metrics": ["mae", "r2", "rmse"]},
    }
    config["local"] = {"lr": 1e-9, "loss": "mse"}
    result = shoal.run(config, out=tmp_path / "run", data=data)
    found = result.summary["over_targets"]
    # The model hardly moves from its start: values of about the mean of y, give or take its own size in deviations.
    assert found["rmse"]["mean"] >= found["mae"]["mean"] > 10
    spread = np.sqrt(np.mean((y[1::2] - y[1::2].mean()) ** 2))
    assert found["r2"]["mean"] == pytest.approx(1 - (found["rmse"]["mean"] / spread) ** 2, rel=1e-5)
    assert lines_of(result, record="confusion") == []
    assert found["accuracy"] | {"excluded": 0} == dict.fromkeys(found["accuracy"]) | {"n": 0, "excluded": 0}


def test_metrics_need_the_accuracy_and_data_that_fit(tmp_path):
    with pytest.raises(ConfigError, match="add accuracy"):
        shoal.run(QUICK, {"evaluate.measures": ["costs"]}, out=tmp_path / "a")
    with pytest.raises(ConfigError, match="metric of values"):
        shoal.run(QUICK, {"evaluate.metrics": ["rmse"]}, out=tmp_path / "b")
    assert name_of(f"{HERE}:fragile") == "fragile"


def test_serial_and_workers_give_the_same_lines(run, tmp_path):
    other = shoal.run(QUICK, {"execution.kind": "serial"}, out=tmp_path / "run")
    assert (other.folder / "metrics.jsonl").read_bytes() == (run.folder / "metrics.jsonl").read_bytes()
