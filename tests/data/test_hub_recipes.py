"""Every recipe for the hub, one round of it, on rows with the schema that the recipe states; no network."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_files import encoded, write_table

import shoal
from shoal.errors import DataError
from shoal.loading import load, recipes

HUB = sorted(name for name in recipes() if name.startswith("hub-"))
GROUPS = 4
"""How many values a column has: the domains, the writers."""


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No network, and a cache of this test's own for the hub's package."""
    datasets = pytest.importorskip("datasets")
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def stand_in(folder: Path, data: dict[str, Any]) -> dict[str, int]:
    """A local folder in the hub's layout with the columns, classes and images that a recipe states; rows by split.

    Every class appears in every group, twice in training, once in the test split.
    """
    expect = data["expect"]
    image, label, columns = data.get("image", "image"), data.get("label", "label"), data.get("columns", [])
    assert {image, label, *columns} <= set(expect["columns"])
    height, width = expect["size"]
    if data.get("size"):
        height, width = height + 7, width + 5  # what is resized comes in another size
    shape = (height, width) if expect["channels"] == 1 else (height, width, 3)
    rng = np.random.default_rng(0)
    test = data.get("test", "test")
    splits = {data.get("train", "train"): 2} | ({test: 1} if isinstance(test, str) else {})
    rows = {}
    groups = GROUPS if columns else 1
    for split, each in splits.items():
        labels = np.tile(np.arange(expect["classes"]), groups * each)
        of = np.repeat(np.arange(groups), expect["classes"] * each)
        files = [encoded(rng.integers(0, 256, shape, dtype=np.uint8)) for _ in range(5)]
        values = {label: labels.tolist()}
        values |= {column: [f"group {g}" for g in of] for column in columns}
        values |= {column: of.tolist() for column in expect["columns"] if column not in (image, *values)}
        names = {label: [f"class {i}" for i in range(expect["classes"])]}
        path = folder / "data" / f"{split}-00000-of-00001.parquet"
        write_table(path, [files[i % 5] for i in range(len(labels))], names, image=image, **values)
        rows[split] = len(labels)
    return rows


@pytest.mark.parametrize("name", HUB)
def test_one_round_on_a_stand_in(name: str, tmp_path: Path) -> None:
    raw = load(name)
    data = raw["data"]
    assert data["kind"] == "hub"
    rows = stand_in(tmp_path / "data", data)
    changes: dict[str, Any] = {
        "rounds": 1,
        "data.name": str(tmp_path / "data"),
        "data.config": None,  # of a folder there is only one
        "data.expect.rows": None,
        "data.cache": None,
        "data.limit": 80,
        "data.limit_test": 40,
        "stream.validation": 0.0,
        "local.steps": 1,
        "execution.workers": 1,
        "participation": {},
    }
    if raw["stream"].get("clients"):  # without, the rows say who they are
        changes["stream.clients"] = 2
    if data.get("test_by"):
        changes["data.test"] = data["expect"]["classes"]  # a round number of rows would be more than there are
    if raw["model"]["kind"] == "resnet20":
        changes["model.width"] = 4
    if raw["stream"]["kind"] == "tasks":
        changes["stream.tasks"] = 1
    result = shoal.run(name, changes, out=tmp_path / "run")
    assert result.summary["rounds"] == 1
    problems = result.summary["problems"]
    assert problems["rejected"] == problems["failed"] == 0
    frame = result.frame()
    assert len(frame[frame.metric == "accuracy"]) > 0
    # What the recipe says of the rows is compared.
    if data["expect"].get("rows"):
        with pytest.raises(DataError, match=rf"data\.expect\.rows: .*{next(iter(rows.values()))}"):
            shoal.data.load({**data, "name": str(tmp_path / "data"), "config": None, "cache": None})


@pytest.mark.parametrize("name", HUB)
def test_a_recipe_says_what_it_is(name: str) -> None:
    raw = load(name)
    assert raw["name"] == name
    assert raw["data"]["name"] in raw["description"]
    assert "not tried" in raw["description"].lower()
    assert {"classes", "size", "channels", "columns"} <= set(raw["data"]["expect"])
    for column in raw["data"]["expect"]["columns"]:
        assert column in raw["description"]


def test_there_are_such_recipes() -> None:
    assert "hub-mnist" in HUB
