"""Sweeps over variants: a grid of its own for each, the best cell of each on validation rows, a tuned configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from conftest import Shoal

import shoal as library
from shoal.choice import conclude
from shoal.errors import ConfigError
from shoal.folder import RunFolder
from shoal.grid import grids_of
from shoal.loading import expand

BASE: dict[str, Any] = {
    "name": "tuned",
    "rounds": 2,
    "data": {"kind": "digits", "limit": 200, "limit_test": 60},
    "stream": {"kind": "static", "clients": 3, "validation": 0.2},
    "model": {"kind": "mlp", "hidden": [4]},
    "execution": {"kind": "serial"},
    "local": {"lr": 0.1},
    "variants": {
        "plain": None,
        "adam": {"method.server": {"kind": "adam", "calibration": {"kind": "epsilon", "epsilon": 1e-4}}},
        "fixed": {"local.lr": 0.01},
    },
    "grid": {
        "plain": {"local.lr": [0.05, 0.5]},
        "adam": {"method.server.lr": [0.0001, 0.03], "method.server.calibration.epsilon": [0.01]},
    },
}
ADAM = {"lr=0.0001": 0.0001, "lr=0.03": 0.03}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> library.Sweep:
    out = tmp_path_factory.mktemp("tuned") / "s"
    return library.sweep(BASE, {}, seeds=2, best="validation_accuracy", out=out)


def mean(sweep: library.Sweep, cell: str, number: str) -> float:
    """The mean of a number over the seeds of a cell, read from its summaries."""
    found = [json.loads((sweep.folder / cell / s / "summary.json").read_text())[number] for s in "01"]
    return (found[0] + found[1]) / 2


def test_every_variant_is_run_with_its_own_grid(swept: library.Sweep) -> None:
    cells = ["plain,lr=0.05", "plain,lr=0.5", "adam,lr=0.0001,epsilon=0.01", "adam,lr=0.03,epsilon=0.01", "fixed"]
    assert [cell["cell"] for cell in swept.sweep["cells"]] == cells
    config = RunFolder(swept.folder / cells[3] / "1").config()
    assert config["method"]["server"]["lr"] == 0.03
    assert config["method"]["server"]["kind"] == "adam"
    assert config["method"]["server"]["calibration"]["epsilon"] == 0.01
    assert RunFolder(swept.folder / "fixed" / "0").config()["local"]["lr"] == 0.01
    assert "grid" not in RunFolder(swept.folder).config()
    assert swept.sweep["grid"] == BASE["grid"]


def test_the_best_cell_of_each_variant_is_chosen_on_validation_rows(swept: library.Sweep) -> None:
    table = swept.by_variant().set_index("variant")
    assert list(table.index) == ["plain", "adam", "fixed"]
    assert dict(table["cells"]) == {"plain": 2, "adam": 2, "fixed": 1}
    for variant, row in table.iterrows():
        cells = [cell["cell"] for cell in swept.sweep["cells"] if cell["variant"] == variant]
        means = {cell: mean(swept, cell, "validation_accuracy") for cell in cells}
        assert row["chosen"] == max(means, key=lambda cell, means=means: means[cell])  # type: ignore[misc]
        assert row["mean"] == pytest.approx(means[row["chosen"]])
        assert row["acc"] == pytest.approx(mean(swept, row["chosen"], "acc"))
        assert row["n"] == 2
    assert table.loc["fixed", "settings"] == {}
    assert table.loc["plain", "settings"] == {"local.lr": float(table.loc["plain", "chosen"].partition("=")[2])}
    # The best of all is one of these.
    assert swept.chosen in set(table["chosen"])


def test_the_tuned_configuration_runs_every_variant_with_its_best_settings(
    swept: library.Sweep, tmp_path: Path
) -> None:
    assert swept.tuned == swept.folder / "tuned.yaml"
    raw = yaml.safe_load(swept.tuned.read_text())
    assert raw["variants"]["fixed"] == {"local.lr": 0.01}
    adam = raw["variants"]["adam"]
    lr = ADAM[swept.by_variant().set_index("variant").loc["adam", "chosen"].split(",")[1]]
    server = {"kind": "adam", "calibration": {"kind": "epsilon", "epsilon": 0.01}, "lr": lr}
    assert adam == {"method.server": server}
    chosen = {row["variant"]: row["chosen"] for row in swept.by_variant().to_dict("records")}
    cells = {single.place: single.raw for single in expand(RunFolder(swept.folder).config())}
    for single in expand(raw):
        assert single.raw == cells[Path(chosen[single.variant]) / str(single.seed)]
    again = library.run(swept.tuned, out=tmp_path / "again")
    for variant, cell in chosen.items():
        ours, theirs = (f / "1" / "metrics.jsonl" for f in (again.folder / variant, swept.folder / cell))
        assert ours.read_bytes() == theirs.read_bytes()


def test_a_grid_that_was_given_takes_the_place_of_the_configurations(tmp_path: Path) -> None:
    raw = {**BASE, "rounds": 1}
    found = library.sweep(raw, {"local.batch_size": [16, 32], "adam": {"method.server.lr": [0.1]}}, out=tmp_path / "a")
    names = [cell["cell"] for cell in found.sweep["cells"]]
    assert names == [
        "plain,batch_size=16",
        "plain,batch_size=32",
        "adam,batch_size=16,lr=0.1",
        "adam,batch_size=32,lr=0.1",
        "fixed,batch_size=16",
        "fixed,batch_size=32",
    ]
    assert found.by_variant().empty
    assert found.tuned is None
    without = library.sweep(raw, {}, overrides={"grid": {}}, out=tmp_path / "b", best="validation_loss")
    assert list(without.runs) == ["plain/0", "adam/0", "fixed/0"]
    assert "variants" not in without.sweep
    assert without.tuned is None


def test_a_sweep_over_variants_may_grow_and_keeps_the_order_of_names(tmp_path: Path) -> None:
    raw = {**BASE, "rounds": 1}
    out = tmp_path / "s"
    library.sweep(raw, {}, out=out)
    grown = {
        "adam": {"method.server.calibration.epsilon": [0.01], "method.server.lr": [0.03, 0.0001, 0.5]},
        "plain": BASE["grid"]["plain"],
    }
    found = library.sweep({**raw, "grid": grown}, {}, out=out, best="validation_accuracy")
    assert [cell["cell"] for cell in found.sweep["cells"]][2:5] == [
        "adam,lr=0.03,epsilon=0.01",
        "adam,lr=0.0001,epsilon=0.01",
        "adam,lr=0.5,epsilon=0.01",
    ]
    assert found.tuned is not None
    again = library.sweep({**raw, "grid": grown}, {}, out=out)
    assert again.tuned is None
    assert not (out / "tuned.yaml").exists()


def test_lists_of_a_variant_take_the_place_of_those_for_all() -> None:
    grids = grids_of({"a.b": [1, 2], "one": {"a.b": (3,), "c": [4, 5]}, "two": {}}, ["one", "two", "three"])
    assert {name: dict(grid.values) for name, grid in grids.items()} == {
        "one": {"a.b": (3,), "c": (4, 5)},
        "two": {"a.b": (1, 2)},
        "three": {"a.b": (1, 2)},
    }


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"admm": {"local.lr": [1]}}, r"grid\.admm: settings with lists .* did you mean 'adam'"),
        ({"adam": {"local.lr": 1}}, r"grid\.adam\.local\.lr: needs a list of values to try; got 1"),
        ({"local.lr": 0.1}, r"grid\.local\.lr: needs a list"),
        ({"adam": {"seed": [1, 2]}}, r"seed: cannot be swept over"),
        ({"adam": {"local.lr": [1, 1]}}, "listed more than once"),
        ({"plain": {"local.lr": [0.1, -1]}}, r"plain,lr=-1: local\.lr: .*greater than 0"),
        ({"plain": {"local.learning_rate": [1]}}, r"plain,learning_rate=1: local\.learning_rate: no such setting"),
    ],
)
def test_mistakes_in_the_grid_of_a_configuration(tmp_path: Path, grid: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        library.sweep({**BASE, "grid": grid}, {}, out=tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_a_grid_is_no_list_and_needs_variants_for_its_names() -> None:
    with pytest.raises(ConfigError, match=r"grid: a mapping of settings .*; got \[1\]"):
        grids_of([1], ["a"])
    with pytest.raises(ConfigError, match=r"grid\.x: .* the configuration has no variants"):
        grids_of({"x": {"local.lr": [1]}}, [""])


def test_names_of_two_cells_that_are_the_same(tmp_path: Path) -> None:
    raw = {**BASE, "variants": {"a": None, "a,lr=1": None}, "grid": {"a": {"local.lr": [1, 2]}}}
    with pytest.raises(ConfigError, match="a,lr=1 would name two cells"):
        library.sweep(raw, {}, out=tmp_path / "s")


def test_a_grid_inside_a_variant_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"variants\.a: \['grid'\] cannot vary by variant"):
        expand({**BASE, "variants": {"a": {"grid": {"local.lr": [1]}}}})


def test_a_run_takes_no_notice_of_the_grid(tmp_path: Path) -> None:
    found = library.run(BASE, {"rounds": 1}, out=tmp_path / "r")
    assert list(found.runs) == ["plain/0", "adam/0", "fixed/0"]
    assert "grid" not in RunFolder(tmp_path / "r" / "plain" / "0").config()


def test_variants_that_lack_the_number_are_left_out_of_the_tuned_configuration(swept: library.Sweep) -> None:
    for cell in ("adam,lr=0.0001,epsilon=0.01", "adam,lr=0.03,epsilon=0.01"):
        run = RunFolder(swept.folder / cell / "0")
        run.write_json("summary.json", {**run.summary(), "updates": 0})
    conclude(swept.folder)
    found = library.Sweep(swept.folder)
    table = found.by_variant().set_index("variant")
    assert pd.isna(table.loc["adam", "chosen"])
    assert found.tuned is not None
    assert list(yaml.safe_load(found.tuned.read_text())["variants"]) == ["plain", "fixed"]


def test_the_table_on_the_command_line(shoal: Shoal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tuned.yaml").write_text(yaml.safe_dump(BASE))
    said = shoal("sweep", "tuned.yaml", "rounds=1", "--best", "validation_accuracy", "--out", "s")
    assert said.code == 0, said.err
    assert "the best cell of each variant" in said.out
    for word in ("best settings", "test accuracy", "plain", "adam", "fixed", "method.server.calibration.epsilon=0.01"):
        assert word in " ".join(said.out.split())
    assert "each variant with its best settings, as a configuration: s/tuned.yaml" in said.out
    assert shoal("run", "s/tuned.yaml", "rounds=0", "--out", "t").code == 0
