"""The recipes of decathlons, on rows with the schemas that they state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import weights_files
from image_files import encoded, write_idx, write_table
from safetensors.torch import save_file

import shoal
import shoal.data
from shoal.loading import expand, load, overridden
from shoal.models.resnet import resnet20
from shoal.setup import assemble, resolve_config

RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def pictures(rows: int, *shape: int) -> list[bytes]:
    """Encoded images, of which every fourth is the same."""
    few = [encoded(RNG.integers(0, 256, shape, dtype=np.uint8)) for _ in range(4)]
    return [few[i % 4] for i in range(rows)]


# ---- decathlon-small ----------------------------------------------------------------------------------------------


def small_folder(root: Path) -> None:
    """The four sets of a folder, with few rows."""
    for split, rows in (("train", 40), ("test", 20)):
        labels = [i % 10 for i in range(rows)]
        write_table(root / "cifar10" / f"{split}.parquet", pictures(rows, 32, 32, 3), image="img", label=labels)
        write_table(root / "mnist" / f"{split}.parquet", pictures(rows, 28, 28), label=labels)
        name = "train" if split == "train" else "t10k"
        images = RNG.integers(0, 256, (rows, 28, 28), dtype=np.uint8)
        write_idx(root / "fashion-mnist" / f"{name}-images-idx3-ubyte", images)
        write_idx(root / "fashion-mnist" / f"{name}-labels-idx1-ubyte", np.array(labels, dtype=np.uint8))
    domains = ["art_painting", "cartoon", "photo", "sketch"]
    labels = [i // 4 % 7 for i in range(112)]
    where = [domains[i % 4] for i in range(112)]
    write_table(root / "pacs" / "train.parquet", pictures(112, 70, 66, 3), label=labels, domain=where)


def test_the_small_one_has_eight_tasks_on_one_backbone(tmp_path: Path) -> None:
    small_folder(tmp_path / "data")
    raw = load("decathlon-small")
    pretrained = load("pretrain-cifar10")
    backbone = raw["model"]["backbone"]
    assert {name: backbone[name] for name in pretrained["model"]} == pretrained["model"]
    assert backbone["weights"] == f"{pretrained['name']}.safetensors"
    assert raw["data"]["normalize"] == pretrained["data"]["normalize"]
    sources = [dict(source) for source in raw["data"]["sources"]]
    assert pretrained["data"]["rows"][1] <= sources[0]["rows"][0]
    module = resnet20((3, 32, 32), 10, **{k: v for k, v in pretrained["model"].items() if k != "kind"})
    save_file({n: t for n, t in module.state_dict().items() if not n.startswith("classifier")}, backbone["weights"])
    sources[0]["rows"] = None
    sources[3]["test"] = 7
    for source in sources:
        source["limit"] = source["limit"] and min(source["limit"], 84)
        source |= {} if source["kind"] == "digits" else {"cache": None}
    short = {"data.root": "data", "data.sources": sources, "rounds": 8, "local.steps": 1, "stream.clients": 2,
             "execution.kind": "serial", "evaluate.every": 8}  # fmt: skip
    raw = overridden(raw, short)
    (single,) = [single for single in expand(raw) if single.variant == "fedadam-0.5"]
    setup = assemble(resolve_config(single.raw))
    names = (
        "cifar10",
        "mnist",
        "fashion-mnist",
        *(f"pacs/{d}" for d in ("art_painting", "cartoon", "photo", "sketch")),
    )
    assert setup.stream.task_names == (*names, "digits")
    assert setup.stream.task_outputs == (10, 10, 10, 7, 7, 7, 7, 10)
    sides = [shape[1] for shape in setup.stream.task_shapes]
    assert sides == [32, 28, 28, 64, 64, 64, 64, 8]
    frozen = [
        {n: p for n, p in m.build().named_parameters() if not p.requires_grad} for m in setup.world.models.values()
    ]
    for name, parameter in frozen[0].items():
        assert len({other[name].data_ptr() for other in frozen}) == 1, name
        assert parameter.isfinite().all()
    assert not any("random" in note for note in setup.notes)
    result = shoal.run(single.raw, out=tmp_path / "run")
    problems = result.summary["problems"]
    assert problems["rejected"] == problems["failed"] == problems["skipped"] == 0
    assert len(result.summary["accuracy_by_target"]) == 8


def test_the_small_one_trains_its_phases_as_the_other_small_recipes() -> None:
    raw, other = load("decathlon-small"), load("nettailor-pacs-small")
    assert raw["local"] == other["local"]
    assert raw["rounds"] / raw["stream"]["tasks"] == other["rounds"] / other["stream"]["tasks"] == 12
    for variant, changes in raw["variants"].items():
        assert changes == other["variants"][variant]


# ---- nettailor-decathlon ------------------------------------------------------------------------------------------


def hub_folder(folder: Path, source: dict[str, Any]) -> None:
    """A local folder in the hub's layout with the splits and columns that a source names, of four classes."""
    splits = source.get("train", "train").split("+")
    test = source.get("test", "test")
    splits += [test] if isinstance(test, str) else []
    for split in dict.fromkeys(splits):
        labels = [i % 4 for i in range(12)]
        names = {source["label"]: [f"class {i}" for i in range(4)]}
        path = folder / "data" / f"{split}-00000-of-00001.parquet"
        write_table(path, pictures(12, 70, 80, 3), names, image=source["image"], **{source["label"]: labels})


def test_the_large_one_on_stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    raw = load("nettailor-decathlon")
    sources = []
    for given in raw["data"]["sources"]:
        place = tmp_path / "hub" / given["name"].split("/")[1]
        hub_folder(place, given)
        own = {"name": str(place), "config": None, "revision": None, "expect": None, "cache": None}
        sources.append({**given, **own})
    model = {"kind": "nettailor", "backbone": {"kind": "resnet20", "width": 2}}
    short = {"data.sources": sources, "rounds": 8, "local.steps": 1, "local.batch_size": 4, "stream.clients": 1,
             "execution.kind": "serial", "evaluate.every": 8, "variants": {}, "seeds": [], "model": model}  # fmt: skip
    result = shoal.run("nettailor-decathlon", short, out=tmp_path / "run")
    assert result.summary["problems"]["failed"] == result.summary["problems"]["rejected"] == 0
    assert len(result.summary["accuracy_by_target"]) == 8
    # Omniglot's two splits are one, a quarter of which is held out; Flowers has three.
    data = shoal.data.load({**raw["data"], "sources": sources})
    assert data.shape == (3, 64, 64)
    assert data.members is not None
    sizes = {part.name: (len(part.train), len(part.test)) for part in data.members.parts}
    assert sizes["omniglot"] == (18, 6)
    assert sizes["oxford_flowers102"] == (24, 12)
    assert sizes["imagenet-1k-64x64"] == (12, 12)


def test_the_large_one_says_what_it_has_and_what_is_missing(tmp_path: Path) -> None:
    raw, table = load("nettailor-decathlon"), load("nettailor-cifar100")
    text = " ".join(raw["description"].split())
    for source in raw["data"]["sources"]:
        assert source["name"] in text
        assert (source["size"], source["channels"]) == (64, 3)
    assert all(word in text for word in ("Daimler", "UCF101", "Not tried"))
    # The decathlon of Rebuffi et al. (2017), table 1, without Daimler (2 classes) and UCF101 (101).
    assert [source["expect"]["classes"] for source in raw["data"]["sources"]] == [1000, 100, 100, 47, 43, 1623, 10, 102]
    for part in ("model", "method", "local", "variants"):
        assert raw[part] == table[part]
    assert raw["rounds"] / raw["stream"]["tasks"] == table["rounds"] / table["stream"]["tasks"]
    for file in weights_files(raw):
        torch.save({}, tmp_path / file)
    assert len([resolve_config(single.raw) for single in expand(raw)]) == 36
