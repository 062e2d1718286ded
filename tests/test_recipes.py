"""The recipes for real data, cut short: they load, train, and beat chance on a task that was just trained."""

from __future__ import annotations

from pathlib import Path

import pytest

import shoal

FASHION = Path("/usr/share/datasets/fashion-mnist")
SHORT = {
    "rounds": 5,
    "stream.tasks": 1,
    "stream.clients": 3,
    "method.per": "all",
    "execution.workers": 2,
    "data.limit": 600,
    "data.limit_test": 300,
    "data.cache": None,
}


def accuracy(recipe: str, tmp_path: Path, **more: object) -> float:
    result = shoal.run(recipe, {**SHORT, **more}, out=tmp_path / "run")
    problems = result.summary["problems"]
    assert problems["rejected"] == problems["failed"] == problems["skipped"] == 0
    assert len(result.frame()) > 0
    return float(result.summary["acc"])


def test_fashion_mnist_from_its_idx_folder(tmp_path: Path) -> None:
    if not FASHION.is_dir():
        pytest.skip(f"{FASHION} is not there: install the package dataset-fashion-mnist")
    # Ten classes: chance is 0.1, with 300 test rows a standard error of 0.02.
    more = {"data.path": str(FASHION), "model": {"kind": "lenet", "width": 0.4}}
    assert accuracy("fashion-async", tmp_path, **more) > 0.4


def test_cifar_10_from_parquet(real_data: Path, tmp_path: Path) -> None:
    more = {"data.root": str(real_data), "rounds": 8, "local.epochs": 4}
    assert accuracy("cifar10-async", tmp_path, **more) > 0.2


@pytest.mark.long
def test_mnist_has_the_columns_of_the_hub_too(real_data: Path, tmp_path: Path) -> None:
    data = {"kind": "parquet", "path": str(real_data / "mnist"), "image": "image", "label": "label"}
    assert accuracy("cifar10-async", tmp_path, data={**data, "limit": 600, "limit_test": 300, "cache": None}) > 0.5


def test_the_domains_of_pacs_are_tasks(real_data: Path, tmp_path: Path) -> None:
    data = {
        "kind": "parquet",
        "path": str(real_data / "pacs"),
        "image": "image",
        "label": "label",
        "columns": ["domain"],
        "size": 32,
        "test": 0.2,
        "limit": 1200,
        "cache": None,
    }
    stream = {"kind": "tasks", "by": "domain", "tasks": 4, "order": "synchronous", "clients": 2}
    changes = {"data": data, "stream": stream, "rounds": 4, "local.epochs": 1}
    result = shoal.run("cifar10-async", changes, out=tmp_path / "run")
    assert set(result.summary["accuracy_by_target"]) == {f"task={t}" for t in range(4)}
    (first,) = [line for line in shoal.api.RunFolder(result.folder).lines() if line.get("record") == "stream"]
    assert sorted(first["task_names"]) == ["art_painting", "cartoon", "photo", "sketch"]


@pytest.mark.long
def test_the_fashion_recipe_as_it_is(tmp_path: Path) -> None:
    if not FASHION.is_dir():
        pytest.skip(f"{FASHION} is not there: install the package dataset-fashion-mnist")
    result = shoal.run("fashion-async", {"data.path": str(FASHION)}, out=tmp_path / "run")
    assert result.summary["rounds"] == 20
    # Two classes a task: chance is 0.5.
    assert min(result.summary["accuracy_by_target"].values()) > 0.85


@pytest.mark.long
def test_the_cifar_recipe_as_it_is(real_data: Path, tmp_path: Path) -> None:
    result = shoal.run("cifar10-async", {"data.root": str(real_data)}, out=tmp_path / "run")
    assert result.summary["rounds"] == 20
    assert min(result.summary["accuracy_by_target"].values()) > 0.55
