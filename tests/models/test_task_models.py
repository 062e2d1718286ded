"""A file for each task: teachers made by federated averaging, pruned structures of their own, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import shoal as library
from shoal.engine import one_torch_thread
from shoal.errors import ConfigError
from shoal.folder import RunFolder
from shoal.models.factory import build_models, resolve_model
from shoal.models.nettailor import Tail
from shoal.running import start_run
from shoal.setup import assemble, resolve_config

TASKS = [[0, 1], [2, 3], [4, 5, 6]]
BACKBONE = {"kind": "resnet20", "width": 2}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """As in a run; on a busy machine two threads mostly wait for each other."""
    with one_torch_thread():
        yield


def config(model: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "rounds": 3,
        "data": {"kind": "digits", "limit": 120},
        "stream": {"kind": "tasks", "clients": 2, "tasks": 3, "by": "class", "classes": TASKS},
        "model": model,
        "method": {"kind": "fedavg", "per": "task"},
        "local": {"lr": 0.05, "batch_size": 16},
        "execution": {"kind": "serial"},
        "evaluate": {"measures": ["accuracy", "costs"]},
        **more,
    }


def student(teacher: Path, **more: Any) -> dict[str, Any]:
    file = f"{teacher}/model.safetensors#task/{{task}}"
    return {"kind": "nettailor", "backbone": BACKBONE, "first_tailored_block": 8, "teacher": file, **more}


def played(raw: dict[str, Any], out: Path) -> Path:
    return start_run(resolve_config(raw), out, report=False).path


TAUGHT = {"lr": 0.05, "batch_size": 16, "loss": "nettailor"}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each task's whole network, fine-tuned by federated averaging."""
    return played(config(BACKBONE), tmp_path_factory.mktemp("task-models") / "teacher")


@pytest.fixture(scope="module")
def taught(teacher: Path) -> Path:
    return played(config(student(teacher), local=TAUGHT), teacher.parent / "student")


def values(run: Path, metric: str) -> list[Any]:
    return [line["value"] for line in RunFolder(run).lines() if line.get("metric") == metric]


def test_each_model_is_compared_with_the_fine_tuned_network_of_its_task(teacher: Path, taught: Path) -> None:
    setup = assemble(resolve_config(RunFolder(taught).config()))
    assert setup.world.task_models == ("main", "main-task1", "main-task2")
    found = load_file(teacher / "model.safetensors")
    for task, name in enumerate(setup.world.task_models):
        network = setup.world.models[name].teacher
        assert network is not None
        tensors = dict(network.named_parameters())
        weight = next(t for n, t in tensors.items() if n.startswith("logits") and n.endswith("weight"))
        assert torch.equal(weight, found[f"task/{task}/classifier.weight"])
        assert weight.shape[0] == len(TASKS[task])
    assert any(note.startswith("teacher: ") for note in setup.notes)


def test_a_teacher_is_never_sent_nor_written(teacher: Path, taught: Path) -> None:
    alone = {"kind": "nettailor", "backbone": BACKBONE, "first_tailored_block": 8}
    plain = played(config(alone, local=TAUGHT), teacher.parent / "plain")
    for metric in ("total_bytes_down", "total_bytes_up"):
        assert values(taught, metric) == values(plain, metric)
    # It changes what is learnt, and the files have no tensor more.
    assert values(taught, "training_loss") != values(plain, "training_loss")
    names = {name for name in load_file(taught / "model.safetensors") if name.startswith("task/")}
    assert names == {name for name in load_file(plain / "model.safetensors") if name.startswith("task/")}
    assert not any("teacher" in name or "logits" in name for name in load_file(taught / "model.safetensors"))


def test_workers_give_the_same_bits(taught: Path, tmp_path: Path) -> None:
    raw = {**RunFolder(taught).config(), "execution": {"kind": "workers", "workers": 2}}
    other = played(raw, tmp_path / "run")
    assert (taught / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()


def test_predictions_need_no_teacher_and_a_resumed_run_needs_the_same(
    teacher: Path, taught: Path, tmp_path: Path
) -> None:
    images = np.random.default_rng(0).integers(0, 17, (3, 8, 8)).astype(np.uint8)
    before = [library.predict(taught, images, target=f"task={task}") for task in range(3)]
    file, kept = teacher / "model.safetensors", tmp_path / "kept"
    shutil.move(file, kept)
    try:
        after = [library.predict(taught, images, target=f"task={task}") for task in range(3)]
        assert all(a.equals(b) for a, b in zip(before, after, strict=True))
        with pytest.raises(ConfigError, match=r"model.teacher: there is no file"):
            resolve_config(RunFolder(taught).config())
        save_file({"a": torch.zeros(1)}, file)
        with pytest.raises(ConfigError, match=r"model.teacher: .* has the SHA-256 .* model.teacher_sha256 says"):
            resolve_config(RunFolder(taught).config())
    finally:
        shutil.move(kept, file)


def test_one_model_for_all_tasks_has_one_teacher(tmp_path: Path) -> None:
    alike = {"method": "fedavg"}
    setup = assemble(resolve_config(config(BACKBONE, **alike)))
    torch.save(setup.world.models["main"].build().state_dict(), tmp_path / "teacher.pth")
    model = {**student(tmp_path), "teacher": str(tmp_path / "teacher.pth")}
    done = played(config(model, local=TAUGHT, **alike), tmp_path / "student")
    setup = assemble(resolve_config(RunFolder(done).config()))
    assert list(setup.world.models) == ["main"]
    assert setup.world.models["main"].teacher is not None
    assert isinstance(RunFolder(done).config()["model"]["teacher_sha256"], str)


# ---- pruned structures ----------------------------------------------------------------------------------------------

SOURCES = {7: [-1, 4, 5, 6], 8: [-1, 7], 9: [-1, 7, 8]}
"""What may lead into the blocks 8 and 9 with ``first_tailored_block`` 8: themselves, and the activations 7 and 8."""


@pytest.fixture(scope="module")
def pruned(taught: Path) -> Path:
    """A run from the entries of another, in which each task has set its attention in its own way."""
    tensors = load_file(taught / "model.safetensors")
    weak = {0: "9.from7", 1: "9.from8", 2: "8.from7"}
    for task, name in weak.items():
        tensors[f"task/{task}/tail.attention.{name}"] = torch.tensor(-9.0)
        low = "8.own" if task == 1 else "9.own"  # the frozen block that this task needs least
        tensors[f"task/{task}/tail.attention.{low}"] = torch.tensor(0.5)
    with safe_open(taught / "model.safetensors", framework="pt") as file:
        metadata = file.metadata()
    source = taught.parent / "attention.safetensors"
    save_file(tensors, source, metadata)
    model = {"kind": "nettailor", "backbone": BACKBONE, "first_tailored_block": 8, "prune": 0.005, "prune_blocks": 1}
    model["weights"] = f"{source}#task/{{task}}"
    return played(config(model, rounds=3), taught.parent / "pruned")


PATHS = [
    {"8": [-1, 7], "9": [8]},
    {"8": [7], "9": [-1, 7]},
    {"8": [-1], "9": [7, 8]},
]
"""What is left of each task, by hand: without the weak proxy, and without the block of the smallest weight."""


def test_each_task_is_pruned_by_its_own_entry(pruned: Path) -> None:
    raw = RunFolder(pruned).config()
    assert raw["model"]["paths"] == PATHS
    setup = assemble(resolve_config(raw))
    for task, name in enumerate(setup.world.task_models):
        tail = setup.world.models[name].build().get_submodule("tail")
        assert isinstance(tail, Tail)
        assert {str(block): sorted(sources) for block, sources in tail.paths.items()} == PATHS[task]
        assert setup.world.models[name].space.view(setup.method.start()[f"task/{task}"].vector, "classifier.bias").shape
    sizes = {name: model.space.size for name, model in setup.world.models.items()}
    record = next(line for line in RunFolder(pruned).lines() if line.get("record") == "model")
    assert record["models"] == sizes


def test_each_task_starts_from_its_own_entry(pruned: Path) -> None:
    setup = assemble(resolve_config(RunFolder(pruned).config()))
    bank = setup.method.start()
    tensors = load_file(pruned.parent / "attention.safetensors")
    for task, name in enumerate(setup.world.task_models):
        space, entry = setup.world.models[name].space, bank[f"task/{task}"]
        for parameter in space.names:
            assert torch.equal(space.view(entry.vector, parameter), tensors[f"task/{task}/{parameter}"])


def test_predictions_of_pruned_models(pruned: Path) -> None:
    images = np.random.default_rng(0).integers(0, 17, (3, 8, 8)).astype(np.uint8)
    source, kept = pruned.parent / "attention.safetensors", pruned.parent / "kept"
    for task, classes in enumerate(TASKS):
        before = library.predict(pruned, images, target=f"task={task}")
        source.rename(kept)
        try:
            after = library.predict(pruned, images, target=f"task={task}")
        finally:
            kept.rename(source)
        assert before.equals(after)
        assert set(before["prediction"].astype(int)) <= set(classes)


def test_a_list_has_one_file_for_each_task(taught: Path, tmp_path: Path) -> None:
    files = [f"{taught}/model.safetensors#task/{task}" for task in (2, 0, 1)]
    given = {"kind": "nettailor", "backbone": BACKBONE, "first_tailored_block": 8, "weights": files}
    models, tasks = build_models(resolve_model(given, 3), (1, 8, 8), 3, (3, 2, 2), 0)
    tensors = load_file(taught / "model.safetensors")
    for name, task in zip(tasks, (2, 0, 1), strict=True):
        bias = models[name].build().get_submodule("classifier").bias
        assert torch.equal(bias, tensors[f"task/{task}/classifier.bias"])  # type: ignore[arg-type]


# ---- what makes no sense --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "fedavg"}, "model.teacher: .* is a file for each task, but there is no model for each task"),
        ({"stream": {"kind": "static", "clients": 2}, "method": "fedavg"}, "there is no model for each task"),
        ({"model": {"teacher": ["a.pth"]}}, r"model.teacher: a list has one for each task .* 3, .* got 1"),
        ({"model": {"weights": ["a.pth"] * 2}}, r"model.weights: a list has one for each task .* 3, .* got 2"),
        ({"model": {"paths": [{}, {}, {}]}}, "model.paths: a list .* model.weights names their files"),
        ({"model": {"backbone": {**BACKBONE, "weights": "{task}.pth"}}}, "the backbone is one and the same for all"),
        ({"model": {"teacher": "nowhere-{task}.pth"}}, "model.teacher: there is no file nowhere-0.pth"),
        ({"local": {}}, "model.teacher: nothing compares .* local.loss is cross_entropy; set local.loss: nettailor"),
        ({"model": {"teacher": None}, "local": {"loss_args": {"teacher": 10}}}, "teacher: 10.0, but there is no"),
        ({"local": {"loss": "nettailor", "loss_args": {"omega": "both"}}}, "loss_args.omega: mean .* or sum .*'both'"),
        ({"model": {"backbone": {**BACKBONE, "width": 4}}}, "model.teacher: model.safetensors does not fit"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], message: str, teacher: Path) -> None:
    raw = config(student(teacher), local=TAUGHT)
    for part, change in changes.items():
        old = raw[part]
        whole = part in ("stream", "method") or not change
        raw[part] = change if whole or not isinstance(change, dict) else {**old, **change}
    with pytest.raises(ConfigError, match=message):
        assemble(resolve_config(raw))


def test_a_task_that_loses_all_paths_is_named(taught: Path) -> None:
    model = {"kind": "nettailor", "backbone": BACKBONE, "first_tailored_block": 8, "prune": 0.9, "prune_blocks": 2}
    with pytest.raises(ConfigError, match=r"no path is left .*\(the model of task 0\)"):
        assemble(resolve_config(config({**model, "weights": f"{taught}/model.safetensors#task/{{task}}"})))


def test_words_among_the_arguments_of_a_loss() -> None:
    raw = config({"kind": "mlp"}, local={"loss_args": {"label_smoothing": "1e-1"}})
    found = resolve_config(raw).local.loss_args
    assert json.dumps(found) == '{"label_smoothing": 0.1}'  # YAML reads 1e-1 as a word
