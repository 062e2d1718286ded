"""``shoal pretrain``: an ordinary run, its model without the head, and what a run that starts from it is told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Shoal
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import shoal as library
from shoal import running
from shoal.errors import ConfigError, RunError
from shoal.models.pretraining import MARKS, read_about, shared
from shoal.models.weights import Weights
from shoal.registry import build
from shoal.running import Interrupted
from shoal.setup import Setup, assemble, resolve_config

NET = {"kind": "resnet20", "width": 2, "blocks": 1}
PLAIN: dict[str, Any] = {
    "name": "net",
    "rounds": 3,
    "data": {"kind": "digits", "rows": [0, 300], "limit_test": 100},
    "stream": {"kind": "static", "clients": 1, "validation": 0.1},
    "model": NET,
    "local": {"lr": 0.1, "momentum": 0.9},
    "execution": {"kind": "serial"},
}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the file of `PLAIN` and its run."""
    folder = tmp_path_factory.mktemp("once")
    library.pretrain(PLAIN, out=folder / "net.safetensors", folder=folder / "runs/net")
    return folder


@pytest.fixture
def made(once: Path, tmp_path: Path) -> Path:
    """The same in the working directory."""
    shutil.copytree(once, tmp_path, dirs_exist_ok=True)
    return Path("net.safetensors")


def setup_of(**changes: Any) -> Setup:
    raw = {**PLAIN, "stream": {"kind": "static", "clients": 3}, **changes}
    return assemble(resolve_config(raw))


def test_the_file_is_the_model_of_an_ordinary_run_without_its_head(made: Path) -> None:
    path = made
    library.run(PLAIN, out="again")
    run = load_file("again/model.safetensors")
    file = load_file(path)
    names = set(build("model", NET, shape=(1, 8, 8), outputs=10).state_dict())
    assert set(file) == names - {"classifier.weight", "classifier.bias"} | {MARKS}
    for name in set(file) - {MARKS}:
        assert torch.equal(file[name], run[f"global/{name}"])
    about = read_about(path)
    assert about is not None
    summary = json.loads(Path("again/summary.json").read_text())
    assert about["test_accuracy"] == summary["acc"]
    lines = [line for line in library.api.RunFolder(Path("again")).lines() if line["round"] == PLAIN["rounds"]]
    (validated,) = [line["value"] for line in lines if line.get("metric") == "validation_accuracy"]
    assert about["validation_accuracy"] == validated != summary["validation_accuracy"]
    assert (about["data"], about["data_rows"], about["shape"]) == ("digits", [0, 300], [1, 8, 8])
    assert (about["training_rows"], about["classes"]) == (270, [str(digit) for digit in range(10)])
    assert len(file[MARKS]) == len(set(file[MARKS].tolist())) == 270


def test_a_run_starts_from_it_and_is_told_where_it_comes_from(made: Path) -> None:
    own = load_file(made)
    for task_outputs in (10, 4):  # a head of ten classes would fit
        classes = {"classes": [list(range(task_outputs))], "by": "class", "tasks": 1, "kind": "tasks", "clients": 2}
        stream = classes if task_outputs < 10 else {"kind": "static", "clients": 2}
        setup = setup_of(model={**NET, "weights": "net.safetensors"}, stream=stream)
        module = setup.world.models["main"].build()
        assert torch.equal(module.state_dict()["features.stage3.0.conv2.weight"], own["features.stage3.0.conv2.weight"])
        (note,) = [note for note in setup.notes if note.startswith("weights from")]
        assert "pre-trained on 270 rows of digits (data.rows 0 to 300), 10 classes, validation accuracy" in note
        assert "the head is newly initialised" in note
    tailored = {"kind": "nettailor", "backbone": {**NET, "weights": "net.safetensors"}, "skips": 1}
    notes = setup_of(model=tailored, method={"kind": "fedavg"}).notes
    assert any(note.startswith("backbone: weights from") and "pre-trained on 270 rows" in note for note in notes)


def shared_notes(**changes: Any) -> list[str]:
    setup = setup_of(model={**NET, "weights": "net.safetensors"}, **changes)
    return [note for note in setup.notes if "was pre-trained" in note]


def test_rows_that_are_shared_are_counted(made: Path) -> None:
    found = library.Result(Path("runs/net"))
    assert shared_notes(data={"kind": "digits", "rows": [300, 900]}) == []
    # Another split: test rows here are training rows there. Counted by comparing pixels.
    other = {"kind": "digits", "test": 0.5, "split_seed": 1, "rows": [0, 500], "limit_test": 400}
    own = build("data", found_config(found)["data"]).load()
    data = build("data", other).load()
    first = assemble(resolve_config(found_config(found))).stream.holding(0, 1).train
    known = {own.features[row].numpy().tobytes() for row in first}
    tested, trained = (
        sum(data.features[r].numpy().tobytes() in known for r in rows) for rows in (data.test, data.train)
    )
    assert tested > 20
    warning, remark = shared_notes(data=other)
    assert warning.startswith(f"warning: net.safetensors was pre-trained on {tested} of the 400 rows that this run is")
    assert remark == f"net.safetensors was pre-trained on {trained} of the 500 training rows of this run, too"
    # Rows under a transform are the rows all the same, and those that are not measured are not counted.
    tasks = {"kind": "tasks", "by": "transform", "tasks": 2, "clients": 2, "transforms": ["rotate90", "invert"]}
    assert f"on {tested} of the 400 rows" in shared_notes(data=other, stream=tasks)[0]
    classes = {"kind": "tasks", "by": "class", "tasks": 1, "classes": [[3, 7]], "clients": 2}
    few = [row for row in data.test if int(data.labels[row]) in (3, 7)]
    both = sum(data.features[row].numpy().tobytes() in known for row in few)
    assert 0 < both < len(few)
    assert f"on {both} of the {len(few)} rows" in shared_notes(data=other, stream=classes)[0]


@pytest.mark.parametrize(
    "model",
    [
        {"backbone": {"weights": "net.safetensors#part"}},
        {"weights": ["net.safetensors#task/0", "net.safetensors#task/1"]},  # each task its own: still one file
        {"weights": None, "teacher": "net.safetensors#task/{task}"},
    ],
)
def test_files_of_tasks_and_teachers_are_looked_at_too(made: Path, model: dict[str, Any]) -> None:
    data = build("data", {"kind": "digits", "test": 0.5, "split_seed": 1, "rows": [0, 500], "limit_test": 400}).load()
    plain = shared({"weights": "net.safetensors"}, data, lambda: [data.test], None)
    assert len(plain) == 2
    assert shared(model, data, lambda: [data.test], None) == plain


def found_config(found: library.Result) -> dict[str, Any]:
    config = library.api.RunFolder(found.folder).config()
    return {name: value for name, value in config.items() if value is not None}


def test_what_cannot_be_told_is_said(made: Path) -> None:
    assert shared_notes(data={"kind": "digits", "rows": [300, 900], "normalize": "half"}) == [
        "net.safetensors was pre-trained with data.normalize: unit, here it is half"
    ]
    larger = {"kind": "union", "sources": [{"kind": "digits"}], "size": 16, "normalize": "unit"}
    assert shared_notes(data=larger) == [
        "net.safetensors was pre-trained on digits, too, with images of another shape ([1, 8, 8], here [1, 16, 16]): "
        "whether rows are shared cannot be told"
    ]


def test_it_goes_on_where_it_was_interrupted(once: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = running._Keeper.keep

    def interrupted(self: Any, played: Any) -> Any:
        if played.state.round == 2:
            raise KeyboardInterrupt
        return kept(self, played)

    with monkeypatch.context() as patched:
        patched.setattr(running._Keeper, "keep", interrupted)
        with pytest.raises(Interrupted):
            library.pretrain(PLAIN)
    assert not Path("net.safetensors").exists()
    second, found = library.pretrain(PLAIN)
    assert (second, found.folder) == (Path("net.safetensors"), Path("runs/net"))
    assert second.read_bytes() == (once / "net.safetensors").read_bytes()
    rounds = [line["round"] for line in library.api.RunFolder(found.folder).lines() if line.get("record") == "round"]
    assert rounds == [1, 2, 3]


def test_a_file_that_is_there_is_kept_unless_it_shall_be_replaced(made: Path) -> None:
    path = made
    before = path.stat().st_mtime_ns
    library.pretrain(PLAIN)
    assert path.stat().st_mtime_ns == before
    with pytest.raises(RunError, match="not of this configuration; choose another --out, or --force"):
        library.pretrain(PLAIN, {"rounds": 1})
    with pytest.raises(RunError, match="finished run"):
        library.pretrain(PLAIN, {"rounds": 1}, out="new.safetensors", folder="runs/net")
    library.pretrain(PLAIN, {"rounds": 1}, force=True)
    about = read_about(path)
    assert about is not None
    assert about["rounds"] == 1
    path.unlink()
    library.pretrain(PLAIN, {"rounds": 1})  # the run is there, finished: the file is made of it again
    assert path.exists()


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"stream.clients": 2}, "stream.clients is 2; set stream.clients=1"),
        ({"seeds": [0, 1]}, "has variants or seeds"),
        ({"variants": {"a": {}}}, "has variants or seeds"),
        ({"method": {"kind": "ifca", "concepts": 2}}, "method ifca keeps 2 entries"),
        ({"model": {"kind": "mlp", "hidden": []}}, "is nothing else here"),
    ],
)
def test_what_makes_no_single_model_is_refused_before_training(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        library.pretrain(PLAIN, changes)
    assert not Path("runs").exists()


@pytest.mark.parametrize("out", ["net.pth", "nowhere/net.safetensors", "folder.safetensors"])
def test_a_place_where_no_file_can_be_is_refused_before_training(out: str) -> None:
    Path("folder.safetensors").mkdir()
    with pytest.raises(ConfigError, match="--out"):
        library.pretrain(PLAIN, out=out)
    assert not Path("runs").exists()


def test_a_training_that_diverges_writes_no_file() -> None:
    with pytest.raises(RunError, match="no file is written"):
        library.pretrain(PLAIN, {"local.lr": 1e30, "local.momentum": 0.0})
    assert not Path("net.safetensors").exists()


def test_the_command(shoal: Shoal) -> None:
    Path("net.yaml").write_text(json.dumps({**PLAIN, "rounds": 1}))
    said = shoal("pretrain", "net.yaml", "--out", "w.safetensors")
    assert said.code == 0
    assert "weights: w.safetensors (pre-trained on 270 rows of digits (data.rows 0 to 300), 10 classes" in said.out
    shown = shoal("show", "net.yaml", "model.weights=w.safetensors", "stream.clients=2")
    assert "note: weights from w.safetensors" in shown.out
    assert "w.safetensors was pre-trained on" in shown.out.replace("\n", " ")
    missing = shoal("show", "net.yaml", "model.weights=pretrain-cifar10.safetensors")
    assert missing.code == 2
    assert "shoal pretrain pretrain-cifar10" in missing.err


def test_a_file_that_tells_nothing_is_an_ordinary_one(made: Path) -> None:
    for name, metadata in (("plain", {}), ("odd", {"pretraining": "{"}), ("list", {"pretraining": "[1]"})):
        save_file({n: t for n, t in load_file(made).items() if n != MARKS}, f"{name}.safetensors", metadata)
        assert read_about(Path(f"{name}.safetensors")) is None
        assert Weights(f"{name}.safetensors").about is None
    Path("broken.safetensors").write_bytes(b"\x01")
    assert read_about(Path("broken.safetensors")) is None
    with safe_open(made, framework="np") as file:
        assert np.asarray(file.get_tensor(MARKS)).dtype == np.int64
