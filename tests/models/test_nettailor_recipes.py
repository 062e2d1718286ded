"""The recipes of NetTailor: what is said to be the same is the same, and each small one runs on real data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import resolved

import shoal
from shoal.data.arrays import from_arrays
from shoal.loading import expand, load, overridden, recipes
from shoal.models.resnet18 import resnet18
from shoal.registry import build
from shoal.setup import build_stream, resolve_config

NAMES = sorted(name for name in recipes() if name.startswith("nettailor-") and "decathlon" not in name)
BASES = ["nettailor-cifar10-small", "nettailor-pacs-small"]
PARTS = ("orders", "conditions", "rivals")
FIGURES = ("clients", "dirichlet", "orders", "rates", "rounds", "stragglers")
FILE = "pretrain-cifar10.safetensors"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_these_are_there() -> None:
    small = {f"{base}-{part}" for base in BASES for part in PARTS} | set(BASES)
    large = {f"nettailor-cifar100-{figure}" for figure in FIGURES} | {"nettailor-cifar100", "nettailor-miniimagenet"}
    assert small | large == set(NAMES)


@pytest.mark.parametrize("base", BASES)
def test_small_ones_share_what_they_say_and_no_row_with_the_backbone(base: str) -> None:
    whole, pretrained = resolved(base)["fedsgd-1"], load("pretrain-cifar10")
    if base == "nettailor-cifar10-small":
        (first, end), (begin, _) = pretrained["data"]["rows"], whole.data["rows"]
        assert first < end <= begin
    assert whole.model["backbone"]["weights"] == FILE == f"{pretrained['name']}.safetensors"
    own = {name: whole.model["backbone"][name] for name in pretrained["model"]}
    assert own == pretrained["model"]
    assert whole.data["normalize"] == pretrained["data"]["normalize"]
    for part in PARTS:
        for variant, config in resolved(f"{base}-{part}").items():
            assert config.data == whole.data
            assert config.local.model_copy(update={"steps": 0, "learner": {}}) == whole.local.model_copy(
                update={"steps": 0, "learner": {}}
            )
            assert config.stream["tasks"] == whole.stream["tasks"]
            if part != "rivals" or variant == "nettailor":
                assert config.model == whole.model
                assert config.method["per"] == "task"
            else:
                assert {name: config.model[name] for name in own} == own
                assert config.model["weights"] == FILE
        text = " ".join(load(f"{base}-{part}")["description"].split())
        assert f"are those of {base}: the backbone is the file that shoal pretrain pretrain-cifar10" in text


@pytest.mark.parametrize("base", BASES)
def test_phases_of_the_orders_are_trained_out(base: str) -> None:
    """Trials: below about 300 local steps a phase the synchronous order comes last."""
    configs = resolved(f"{base}-orders")
    assert len(configs) == 6
    for config in configs.values():
        phase, rest = divmod(config.rounds, config.stream["tasks"])
        assert rest == 0
        assert phase * int(config.local.steps or 0) >= 300
    assert {c.stream["order"] for c in configs.values()} == {"multi-task", "synchronous", "asynchronous"}


@pytest.mark.parametrize("name", [*BASES, "nettailor-cifar100", "nettailor-miniimagenet"])
def test_servers_by_rates(name: str) -> None:
    cells = {variant: config.method["server"] for variant, config in resolved(name).items()}
    rates = {(s["kind"], s["lr"]) for s in cells.values()}
    every = {(kind, rate) for kind in ("sgd", "adam", "yogi", "adagrad") for rate in (1.0, 0.5, 0.1)}
    assert rates == every | ({("sgd", 0.7)} if name in BASES else set())
    for variant, server in cells.items():
        assert variant == f"fed{server['kind']}-{server['lr']:g}"
        if server["kind"] == "sgd":
            continue
        assert (server["beta1"], server["bias_correction"], server["v_init"]) == (
            0.0 if server["kind"] == "adagrad" else 0.9,
            False,
            None,
        )
        small = (0.01 if server["lr"] == 0.1 else 0.1) * (10 if server["kind"] == "adagrad" else 1)
        assert server["tau"] == pytest.approx(small if name in BASES else 0.5)


def test_the_conditions_change_one_thing_each() -> None:
    for base in BASES:
        configs = resolved(f"{base}-conditions")
        plain = configs["clients-5-fedsgd"]
        assert plain.model_copy(update={"name": base, "description": ""}).stream == resolved(base)["fedsgd-1"].stream
        changed = {
            variant: (
                config.stream["clients"],
                config.stream["partition"].get("alpha"),
                config.participation.straggler_probability,
            )
            for variant, config in configs.items()
        }
        one = {
            "clients-5": (5, None, 0.0),
            "clients-10": (10, None, 0.0),
            **{f"dirichlet-{alpha:g}": (5, alpha, 0.0) for alpha in (8, 2, 0.5)},
            "stragglers-0.3": (5, None, 0.3),
        }
        assert changed == {f"{name}-{server}": what for server in ("fedsgd", "fedadam") for name, what in one.items()}


def test_the_tail_of_the_small_backbone() -> None:
    """Blocks 5 and 6 of 128 channels on 2x2 pixels, skips 3, ten classes; in brackets the normalised channels.

    From x_4 (64 channels) into both blocks 2 (64 128 + [256]), from x_5 128 128 + [256], numbers of attention 2 + 3,
    classifier 128 10 + 10: 34,831.
    """
    Path(FILE).touch()
    settings = dict(load(BASES[0])["model"])
    settings["backbone"] = {**settings["backbone"], "weights": None, "weights_sha256": None}
    module = build("model", settings, shape=(3, 32, 32), outputs=10)
    assert sum(p.numel() for p in module.parameters() if p.requires_grad) == 34_831
    assert module(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize("figure", FIGURES)
def test_figures_share_all_but_what_they_vary_with_the_table(figure: str) -> None:
    table = load("nettailor-cifar100")
    raw = load(f"nettailor-cifar100-{figure}")
    for part in ("data", "stream", "model", "local", "rounds"):
        assert raw[part] == table[part]
    assert resolved(f"nettailor-cifar100-{figure}").keys() >= raw.get("variants", {}).keys()
    if figure != "orders":
        varied = {key for changes in raw.get("variants", {}).values() for key in changes} | set(raw.get("grid", {}))
        assert len(varied) == (2 if "grid" in raw else 1)
        assert resolve_config(expand(raw)[0].raw).method == resolved("nettailor-cifar100")["fedadam-0.5"].method
    assert "not tried" in raw["description"].lower()


def test_the_sets_from_the_hub_are_ten_tasks_of_ten_classes() -> None:
    for name, side in (("nettailor-cifar100", 32), ("nettailor-miniimagenet", 84)):
        raw = load(name)
        expect = raw["data"]["expect"]
        assert (expect["classes"], expect["size"], expect["rows"]) == (100, [side, side], [50000, 10000])
        assert raw["data"]["name"] in raw["description"]
        for column in expect["columns"]:
            assert column in raw["description"]
        x = np.zeros((300, 4), dtype=np.float32)
        labels = np.arange(300) % 100
        stream = build_stream(resolved(name)["fedsgd-1"], from_arrays(x, labels, x[:100], labels[:100]))
        assert (stream.tasks, stream.clients, len(stream.boundaries)) == (10, 5, 9)
        assert stream.task_outputs == (10,) * 10
        assert len(stream.classes_of({"task": 3})) == 10
        assert stream.boundaries[0] == 30


def test_the_file_of_torchvision_fits_the_backbone(tmp_path: Path) -> None:
    torch.manual_seed(1)
    torch.save(resnet18((3, 64, 64), 1000).state_dict(), tmp_path / "resnet18-f37072fd.pth")
    data = {"kind": "digits", "limit": 10, "limit_test": 10}
    union = {"kind": "union", "sources": [data], "size": 32, "channels": 3}
    changes = {"data": union, "rounds": 1, "variants": {}, "seeds": [], "stream.tasks": 1, "stream.clients": 1,
               "local.epochs": 1, "evaluate.every": 0}  # fmt: skip
    result = shoal.run("nettailor-cifar100", changes, out=tmp_path / "run")
    assert result.summary["updates"] == 1
    assert result.summary["trainable_parameters"] == 1_150_887
    (header,) = [line for line in shoal.api.RunFolder(result.folder).lines() if line.get("record") == "stream"]
    assert any("backbone: weights from resnet18-f37072fd.pth: " in note for note in header["notes"])


SHORT: dict[str, Any] = {
    "rounds": 4,
    "local.steps": 2,
    "evaluate.every": 0,
    "execution.workers": 1,
    "data.limit": 300,
    "data.limit_test": 60,
    "stream.clients": 2,
    "stream.tasks": 2,
}


def two_tasks(name: str, variant: str, changes: dict[str, Any], out: Path) -> None:
    (single,) = [s for s in expand(load(name)) if s.variant == variant]
    result = shoal.run(overridden(single.raw, {**SHORT, **changes}), out=out)
    problems = result.summary["problems"]
    assert problems["rejected"] == problems["failed"] == problems["skipped"] == 0
    assert result.summary["updates"] + problems["stragglers"] == 8
    (header,) = [line for line in shoal.api.RunFolder(result.folder).lines() if line.get("record") == "stream"]
    assert any("pre-trained on 135 rows of cifar10 (data.rows 0 to 20000)" in note for note in header["notes"])
    assert not any("was pre-trained on" in note for note in header["notes"])


def pretrained(data: dict[str, Any]) -> None:
    path, _ = shoal.pretrain("pretrain-cifar10", {**data, "rounds": 1, "data.limit": 150, "data.limit_test": 50})
    assert path == Path(FILE)


def test_two_tasks_of_cifar_10_behind_a_backbone_of_other_rows(real_data: Path, tmp_path: Path) -> None:
    data = {"data.root": str(real_data), "data.cache": str(tmp_path / "cache")}
    pretrained(data)
    own = {**data, "stream.classes": [[0, 1], [2, 3]]}
    two_tasks(BASES[0], "fedadam-0.5", own, tmp_path / "tailored")
    two_tasks(f"{BASES[0]}-rivals", "ewc", own, tmp_path / "ewc")


@pytest.mark.long
@pytest.mark.parametrize("part", ["", *(f"-{part}" for part in PARTS)])
def test_two_domains_of_pacs(real_data: Path, tmp_path: Path, part: str) -> None:
    data = {"data.root": str(real_data)}
    pretrained(data)
    for variant in resolved(f"{BASES[1]}{part}"):
        two_tasks(f"{BASES[1]}{part}", variant, data, tmp_path / variant)
