"""The recipes for calibrated adaptive servers: every variant and its grid, and short runs on stand-ins."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_files import encoded, write_table

import shoal
from shoal.folder import RunFolder
from shoal.grid import grids_of
from shoal.loading import expand, load, recipes
from shoal.setup import resolve_config

AGM = sorted(name for name in recipes() if name.startswith("agm-"))
SMALL = [name for name in AGM if name.endswith("-small")]
HUB = [name for name in AGM if name not in SMALL]
VARIANTS = {
    "fedavg": ("sgd", None, "plain"),
    "fedmomentum": ("momentum", None, "plain"),
    "fedprox": ("sgd", None, "proximal"),
    "scaffold": ("sgd", None, "scaffold"),
    "fedadam": ("adam", "epsilon", "plain"),
    "eps-fedadam": ("adam", "epsilon", "plain"),
    "p-fedadam": ("adam", "p", "plain"),
    "s-fedadam": ("adam", "softplus", "plain"),
    "fedamsgrad": ("amsgrad", "epsilon", "plain"),
    "eps-fedamsgrad": ("amsgrad", "epsilon", "plain"),
    "p-fedamsgrad": ("amsgrad", "p", "plain"),
    "s-fedamsgrad": ("amsgrad", "softplus", "plain"),
    "s-fedamsgrad-scaffold": ("amsgrad", "softplus", "scaffold"),
    "s-fedamsgrad-svrg": ("amsgrad", "softplus", "svrg"),
}
"""Server, calibration and learner of each method of the paper."""
AUTO = {
    f"auto-{short}-{alias}": (kind, calibration, "plain")
    for alias, kind in (("fedadam", "adam"), ("fedamsgrad", "amsgrad"))
    for short, calibration in (("eps", "epsilon"), ("s", "softplus"))
}
"""Ours beside them, in the small recipes: with an automatic constant."""


def test_there_are_such_recipes() -> None:
    assert AGM == ["agm-cifar10", "agm-cifar10-small", "agm-cifar100", "agm-mnist", "agm-mnist-small"]


@pytest.mark.parametrize("name", AGM)
def test_all_methods_under_the_same_conditions(name: str) -> None:
    raw = load(name)
    assert raw["name"] == name
    found = {}
    for single in expand(raw):
        config = resolve_config(single.raw)
        server = config.method["server"]
        calibration = server.get("calibration")
        found[single.variant] = (
            server["kind"],
            calibration and calibration["kind"],
            config.local.learner["kind"],
        )
        assert config.local.weight_decay == 1e-3
        if calibration:
            assert (server["beta1"], server["beta2"], server["bias_correction"]) == (0.9, 0.99, False)
            assert server["v_init"] in (None, "zero")
            constants = (calibration.get("epsilon", 1e-8), calibration.get("beta", 200))
            if single.variant.startswith("auto"):
                assert "auto" in constants
            else:
                epsilon = 1e-4 if single.variant.startswith("eps") else 1e-8
                assert constants == (epsilon, 200 if name in SMALL else calibration.get("beta", 200))
        schedule = server["lr_schedule"]
        if "mnist" in name:
            assert schedule["kind"] == "plateau"
            assert config.stream["validation"] > 0
        else:
            assert (schedule["kind"], schedule["at"], schedule["gamma"]) == ("stages", [0.5, 0.75], 0.1)
    assert found == (VARIANTS | AUTO if name in SMALL else VARIANTS)


@pytest.mark.parametrize("name", AGM)
def test_every_value_of_the_grid_is_a_setting(name: str) -> None:
    raw = load(name)
    grids = grids_of(raw["grid"], list(raw["variants"]))
    cells = {variant: list(grid.cells().values()) for variant, grid in grids.items()}
    if name in SMALL:
        assert {len(found) for found in cells.values()} == {9 if "cifar10" in name else 4}
    else:
        # The paper's: six rates for all; beta1 and beta2; the constants of each method.
        assert len(cells["fedavg"]) == 6
        assert len(cells["fedadam"]) == len(cells["fedamsgrad"]) == 6 * 2 * 2
        assert len(cells["p-fedadam"]) == 6 * 2 * 2 * 3
        assert len(cells["s-fedamsgrad-svrg"]) == 6 * 2 * 2 * 4
    for variant, found in cells.items():
        assert len(found) == math.prod(len(values) for values in grids[variant].values.values())
        for cell in (found[0], found[-1]):
            tried = {**raw, "variants": {variant: {**(raw["variants"][variant] or {}), **cell}}}
            (single,) = expand(tried)
            resolve_config(single.raw)
    if name in SMALL:  # what the recipe starts with is one of the points
        for variant, found in cells.items():
            (single,) = expand({**raw, "variants": {variant: raw["variants"][variant]}})
            server = resolve_config(single.raw).method["server"]
            assert server["lr"] in [cell["method.server.lr"] for cell in found]


@pytest.mark.parametrize("name", HUB)
def test_a_recipe_at_full_size_says_what_the_paper_does_not(name: str) -> None:
    raw = load(name)
    words = raw["description"].lower()
    assert raw["data"]["name"] in words
    assert "not given by the paper and assumed" in words
    assert "not tried" in words
    assert set(raw["data"]["expect"]["columns"]) <= {word.strip(",:;()") for word in words.split()}


def write(folder: Path, data: dict[str, Any], classes: int, side: int, shape: tuple[int, ...], each: int) -> None:
    """Rows in the hub's layout: ``each`` of every class to train on, as many to test on."""
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        labels = np.tile(np.arange(classes), each)
        files = [encoded(rng.integers(0, 256, (side, side, *shape), dtype=np.uint8)) for _ in range(classes)]
        values: dict[str, Any] = {data["label"]: labels.tolist()}
        for column in data.get("expect", {}).get("columns", []):
            if column not in (data["image"], data["label"]):
                values[column] = (labels // 5).tolist()
        names = {data["label"]: [f"class {i}" for i in range(classes)]}
        write_table(folder / f"{split}.parquet", [files[c] for c in labels], names, image=data["image"], **values)


FEW = ("fedavg", "s-fedamsgrad-svrg")


@pytest.mark.parametrize("name", HUB)
def test_a_round_at_full_size_on_a_stand_in(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    raw = load(name)
    data, expect = raw["data"], raw["data"]["expect"]
    write(tmp_path / "data", data, expect["classes"], expect["size"][0], (3,) if expect["channels"] == 3 else (), 4)
    few = {variant: raw["variants"][variant] for variant in (FEW if name != "agm-cifar100" else FEW[:1])}
    changes: dict[str, Any] = {
        "rounds": 1,
        "variants": few,
        "data.name": str(tmp_path / "data"),
        "data.expect.rows": None,
        "data.cache": None,
        "stream.clients": 10 if "mnist" in name else 2,
        "participation.count": 2,
        "local.steps": 1,
        "local.batch_size": 4,
        "evaluate.every": 0,
        "execution.workers": 1,
    }
    if raw["stream"]["partition"]["kind"] == "dirichlet":
        changes |= {"stream.partition.rows": 10, "stream.test_rows": 4}
    if raw["model"]["kind"] == "resnet20":
        changes["model.width"] = 4
    result = shoal.run(name, changes, out=tmp_path / "run")
    for run in result.runs.values():
        problems = run.summary["problems"]
        assert problems["rejected"] == problems["failed"] == problems["skipped"] == 0
        assert run.summary["updates"] > 0


@pytest.mark.parametrize("name", SMALL)
def test_a_small_recipe_in_short(name: str, tmp_path: Path) -> None:
    raw = load(name)
    side, shape = (28, ()) if "mnist" in name else (32, (3,))
    write(tmp_path / "data", raw["data"], 10, side, shape, 20)
    changes: dict[str, Any] = {
        "rounds": 2,
        "data.path": str(tmp_path / "data"),
        "data.cache": None,
        "data.limit": None,
        "stream.clients": 10,
        "stream.test_rows": 4,
        "model.width": 0.25,
        "participation.count": 2,
        "local.batch_size": 8,
        "local.steps": 2,
        "evaluate.every": 0,
        "evaluate.measures": ["accuracy"],
        "execution.workers": 1,
    }
    if raw["stream"]["partition"]["kind"] == "dirichlet":
        changes["stream.partition.rows"] = 15
    variants = raw["variants"] if name == "agm-cifar10-small" else {some: raw["variants"][some] for some in FEW}
    changes["variants"] = variants
    result = shoal.run(name, changes, out=tmp_path / "run")
    assert {place.partition("/")[0] for place in result.runs} == set(variants)
    ends = {}
    for place, run in result.runs.items():
        problems = run.summary["problems"]
        assert problems["rejected"] == problems["failed"] == problems["skipped"] == 0, place
        ends[place] = (RunFolder(run.folder).path / "model.safetensors").read_bytes()
    # No two methods are the same; FedAdam and FedAMSGrad differ from the second round on.
    assert len(set(ends.values())) == len(variants)


@pytest.mark.long
@pytest.mark.parametrize(("name", "least"), [("agm-cifar10-small", 0.25), ("agm-mnist-small", 0.6)])
def test_a_small_recipe_as_it_is(name: str, least: float, real_data: Path, tmp_path: Path) -> None:
    changes = {"data.root": str(real_data), "variants": {"p-fedadam": load(name)["variants"]["p-fedadam"]}}
    result = shoal.run(name, changes, out=tmp_path / "run")
    (run,) = result.runs.values()
    assert run.summary["acc"] > least
    assert len(run.summary["accuracy_by_target"]) == 50
