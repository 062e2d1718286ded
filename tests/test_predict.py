"""Predictions from a run's folder: they are the run's own, to the bit, and need none of its data."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from conftest import Shoal
from prediction_helpers import CONFIG, TASKS, logged, raw_test_rows, right
from safetensors.torch import load_file
from torch import nn

import shoal as library
from shoal.data.dataset import Dataset
from shoal.data.digits import Digits
from shoal.errors import ConfigError, RunError, ShoalError
from shoal.folder import RunFolder
from shoal.prediction import Predictor
from shoal.progress import Quiet
from shoal.setup import assemble, resolve_config


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a head for each of five tasks of two digits."""
    out = tmp_path_factory.mktemp("tasks") / "run"
    return library.run({**CONFIG, "rounds": 5, "stream": TASKS}, {"method.per": "task"}, out=out).folder


@pytest.mark.parametrize("task", [0, 3])
def test_a_task_with_a_head_of_its_own(tasks: Path, tmp_path: Path, task: int) -> None:
    setup = assemble(resolve_config(RunFolder(tasks).config()))
    rows = setup.stream.targets(1)[task].test
    images, truth = raw_test_rows(setup.dataset, rows)
    np.save(tmp_path / "rows.npy", images[..., 0])
    frame = library.predict(tasks, tmp_path / "rows.npy", target=f"task={task}")
    assert right(frame, truth) == logged(tasks, task=task)
    digits = [str(2 * task), str(2 * task + 1)]
    assert list(frame.columns) == ["row", "prediction", "confidence", f"p:{digits[0]}", f"p:{digits[1]}"]
    assert list(frame["row"]) == list(range(len(rows)))
    np.testing.assert_allclose(frame[[f"p:{d}" for d in digits]].sum(axis=1), 1)
    np.testing.assert_allclose(frame["confidence"], frame[[f"p:{d}" for d in digits]].max(axis=1))
    assert frame.attrs == {"entry": f"task/{task}", "round": 5, "rounds": 5, "notes": []}
    by_entry = library.predict(tasks, images, entry=f"task/{task}")
    pd.testing.assert_frame_equal(by_entry, frame)
    by_name = library.predict(tasks, images, target={"task": setup.stream.task_names[task]})
    pd.testing.assert_frame_equal(by_name, frame)


def test_probabilities_are_the_softmax_of_the_module(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(90, 4)).astype(np.float32), np.repeat(["b", "a", "c"], 30)
    run = library.run(CONFIG, data=library.from_arrays(x, y), out=tmp_path / "run").folder
    # Independently: the exported tensors in a module made by hand, and the normalisation of the training rows.
    data = library.from_arrays(x, y)
    tensors = {k.removeprefix("global/"): v for k, v in load_file(run / "model.safetensors").items()}
    weights = [v for k, v in tensors.items() if v.dim() == 2]
    biases = [v for k, v in tensors.items() if v.dim() == 1]
    order = sorted(range(2), key=lambda i: weights[i].shape[0] != 8)
    first, second = nn.Linear(4, 8), nn.Linear(8, 3)
    for layer, at in ((first, order[0]), (second, order[1])):
        layer.weight.data, layer.bias.data = weights[at], next(b for b in biases if len(b) == len(weights[at]))
    with torch.no_grad():
        inputs = (torch.from_numpy(x) - torch.from_numpy(x)[data.train].mean(0)) / torch.from_numpy(x)[data.train].std(
            0, unbiased=False
        )
        expected = nn.functional.softmax(second(first(inputs).relu()), 1).numpy()
    frame = library.predict(run, x)
    np.testing.assert_allclose(frame[["p:a", "p:b", "p:c"]].to_numpy(), expected, atol=1e-5)
    assert list(frame["prediction"]) == ["abc"[i] for i in expected.argmax(1)]
    assert right(library.predict(run, x[data.test]), list(y[data.test])) == logged(run)
    for given in (torch.from_numpy(x), pd.DataFrame(x), x.tolist(), x.astype(np.float64), data):
        pd.testing.assert_frame_equal(library.predict(run, given), frame)
    empty = library.predict(run, x[:0])
    assert list(empty.columns) == list(frame.columns)
    assert len(empty) == 0


def colours(seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    return library.from_arrays(rng.integers(0, 256, (700, 8, 8, 3), dtype=np.uint8), np.arange(700) % 3, test=600)


def test_a_model_with_batch_normalisation(tmp_path: Path) -> None:
    data = colours()
    config = {**CONFIG, "model": {"kind": "resnet20", "width": 2}, "rounds": 1}
    run = library.run(config, data=data, out=tmp_path / "run").folder
    images, truth = raw_test_rows(data)
    frame = library.predict(run, images)
    assert right(frame, truth) == logged(run)
    tensors = {k: v for k, v in load_file(run / "model.safetensors").items() if not k.startswith("_")}
    module = assemble(resolve_config({**config, "data": "arrays"}), data).world.models["main"].build()
    module.load_state_dict({k.removeprefix("global/"): v for k, v in tensors.items()}, strict=True)
    assert (
        tensors["global/bn.running_mean" if "global/bn.running_mean" in tensors else _running(tensors)].abs().sum() > 0
    )
    module.eval()
    with torch.no_grad():
        plain = module((torch.from_numpy(images) * data.scale + data.offset).permute(0, 3, 1, 2)).softmax(1)
    np.testing.assert_allclose(frame[["p:0", "p:1", "p:2"]].to_numpy(), plain.numpy(), atol=1e-4)


def _running(tensors: dict[str, torch.Tensor]) -> str:
    return next(name for name in tensors if name.endswith("running_mean"))


FROZEN = '''
import torch
from torch import nn

class Frozen(nn.Module):
    """A random backbone that is never trained, with a constant, and a head."""
    def __init__(self, shape, outputs, noise=0.0):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(shape[0], 6), nn.BatchNorm1d(6))
        self.register_buffer("shift", torch.randn(6) + noise, persistent=False)
        self.classifier = nn.Linear(6, outputs)

    def forward(self, x):
        return self.classifier(self.backbone(x) + self.shift)
'''


def test_constants_are_exported_once_and_put_back_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "frozen_backbone.py").write_text(FROZEN)
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 5
    data = library.from_arrays(x, y)
    model = {"kind": "frozen_backbone:Frozen", "freeze": ["backbone"]}
    config = {**CONFIG, "model": model, "stream": {**TASKS, "tasks": 2, "classes": [[0, 1], [2, 3, 4]]}}
    run = library.run(config, {"method.per": "task"}, data=data, out=tmp_path / "run").folder
    tensors = load_file(run / "model.safetensors")
    constants = sorted(name for name in tensors if name.startswith("_constants/"))
    leaves = ["backbone.0.bias", "backbone.0.weight", "backbone.1.bias", "backbone.1.num_batches_tracked"]
    leaves += ["backbone.1.running_mean", "backbone.1.running_var", "backbone.1.weight", "shift"]
    own = [name for name in constants if not name.startswith("_constants/main/")]
    assert [name for name in constants if name not in own] == [f"_constants/main/{leaf}" for leaf in leaves]
    assert {name.rsplit("/", 1)[1] for name in own} <= {"shift"}  # the backbone is the same in both
    rows = assemble(resolve_config({**config, "data": "arrays", "method": {"per": "task"}}), data).stream.targets(1)
    for task in (0, 1):
        images, truth = raw_test_rows(data, rows[task].test)
        before = library.predict(run, images, target=f"task={task}")
        assert right(before, truth) == logged(run, task=task)
        # Another initialisation (another version of torch, another seed) must not change what the run had.
        raw = RunFolder(run).config()
        other = tmp_path / f"other{task}"
        shutil.copytree(run, other)
        RunFolder(other).write_yaml("config.yaml", {**raw, "seed": 99, "model": {**raw["model"], "noise": 7.0}})
        pd.testing.assert_frame_equal(library.predict(other, images, target=f"task={task}"), before)


def test_the_file_that_a_model_started_from_may_be_gone(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    data = library.from_arrays(rng.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3)
    first = library.run(CONFIG, data=data, out=tmp_path / "first").folder
    weights = tmp_path / "start.safetensors"
    shutil.copy(first / "model.safetensors", weights)
    changes = {"model.weights": str(weights), "model.freeze": ["features"]}
    run = library.run(CONFIG, changes, data=data, out=tmp_path / "second").folder
    rows = rng.normal(size=(5, 4)).astype(np.float32)
    before = library.predict(run, rows)
    weights.unlink()
    pd.testing.assert_frame_equal(library.predict(run, rows), before)


# ---- which model ---------------------------------------------------------------------------------------------------


def test_several_models_need_a_name(tasks: Path) -> None:
    rows = np.zeros((1, 8, 8), np.uint8)
    for more, message in (
        ({}, r"several models; --entry KEY, one of task/0, .*--target, one of task=0"),
        ({"entry": "task/9"}, "no entry is called 'task/9'; --entry KEY"),
        ({"target": "task=9"}, "no target 'task=9'"),
        ({"target": "client=0"}, "no target 'client=0'"),
        ({"target": "task"}, "looks like task=3"),
        ({"target": "task=0", "entry": "task/0"}, "not both"),
    ):
        with pytest.raises(ConfigError, match=message):
            library.predict(tasks, rows, **more)


def test_a_target_takes_the_entry_that_served_it_last(tasks: Path, tmp_path: Path) -> None:
    shutil.copytree(tasks, tmp_path / "run")
    lines = [dict(line) for line in RunFolder(tasks).lines()]
    for line in lines:
        if line.get("metric") == "accuracy" and line["round"] == 5 and line["task"] == 0:
            line["entry"] = "task/3"
        if line.get("metric") == "loss" and line["round"] == 5 and line["task"] == 0:
            line["entry"] = "task/3"
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    frame = library.predict(tmp_path / "run", np.zeros((1, 8, 8), np.uint8), target="task=0")
    assert frame.attrs["entry"] == "task/3"
    assert list(frame.columns[3:]) == ["p:0", "p:1"]  # the classes are those of the target


def test_a_target_that_was_never_measured_is_served_by_the_only_candidate(tmp_path: Path) -> None:
    config = {**CONFIG, "stream": TASKS, "evaluate": {"every": 0}, "rounds": 5}
    run = library.run(config, {"method.per": "task"}, out=tmp_path / "run").folder
    frame = library.predict(run, np.zeros((1, 8, 8), np.uint8), target="task=4")
    assert frame.attrs["entry"] == "task/4"


SPLIT = '''
from shoal.bank import Bank
from shoal.messages import Part, Update
from shoal.methods.base import Method
from shoal.requests import Served
from shoal.messages import Assignment

class Halves(Method):
    """A body for all and a head per task; the model is the body with the head."""
    @classmethod
    def keeps_task_models(cls, settings):
        return True

    def start(self):
        whole = self.initial("start")
        space = self.world.models["main"].space
        body = whole.new(vector=space.part(whole, "features"), segments=("features",))
        head = whole.new(vector=space.part(whole, "classifier"), segments=("classifier",))
        return Bank().put({"body": body, **{f"head/{t}": head for t in range(self.world.tasks)}})

    def assign(self, bank, when, clients):
        return [Assignment(c.id, ("body", f"head/{c.task}")) for c in clients]

    def train(self, given, client):
        body, head = given.entries.values()
        start = self.join([body, head])
        part, state = yield from self.learner.fit("body", start, body, client)
        space = self.world.models["main"].space
        key = list(given.entries)[1]
        cut = {name: part.vector[space.segments[name]] for name in ("features", "classifier")}
        return Update({"body": Part(cut["features"]), key: Part(cut["classifier"])}, weight=len(client.train))

    def candidates(self, bank, target):
        return [("body", f"head/{target['task']}")]

class Doubled(Halves):
    """The same, but the composed model has twice the parameters' values, from a number in the bank's memory."""
    def start(self):
        return super().start().put({}, factor=2.0)

    def compose(self, bank, keys):
        joined = super().compose(bank, keys)
        return Served(joined.model, joined.vector * bank.memory["factor"], joined.buffers)
'''


@pytest.mark.parametrize("kind", ["Halves", "Doubled"])
def test_a_model_of_several_entries_is_composed_by_its_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "split_method.py").write_text(SPLIT)
    config = {**CONFIG, "rounds": 5, "stream": TASKS, "method": f"split_method:{kind}"}
    run = library.run(config, out=tmp_path / "run").folder
    setup = assemble(resolve_config(RunFolder(run).config()))
    for task in (0, 4):
        images, truth = raw_test_rows(setup.dataset, setup.stream.targets(1)[task].test)
        frame = library.predict(run, images, target=f"task={task}")
        assert frame.attrs["entry"] == f"body+head/{task}"
        assert right(frame, truth) == logged(run, task=task)
        pd.testing.assert_frame_equal(library.predict(run, images, entry=f"body+head/{task}"), frame)
    with pytest.raises(ConfigError, match="only a part of a model"):
        library.predict(run, images, entry="body")
    with pytest.raises(ConfigError, match="several models"):
        library.predict(run, images)


# ---- folders -------------------------------------------------------------------------------------------------------


class Stop(Quiet):
    """Interrupts after two rounds."""

    def played(self, round: int, lines: list[dict[str, Any]]) -> None:
        if round == 2:
            raise KeyboardInterrupt


def test_an_unfinished_run_predicts_with_its_last_checkpoint(tmp_path: Path, shoal: Shoal) -> None:
    raw = {**CONFIG, "rounds": 4}
    with pytest.raises(ShoalError, match="interrupted after round 2"):
        library.run(raw, out=tmp_path / "run", progress=Stop())
    images, truth = raw_test_rows(Digits().load())
    frame = library.predict(tmp_path / "run", images)
    assert right(frame, truth) == logged(tmp_path / "run")
    assert frame.attrs["round"] == 2
    np.save(tmp_path / "rows.npy", images)
    said = shoal("predict", str(tmp_path / "run"), str(tmp_path / "rows.npy"))
    assert said.code == 0
    assert "unfinished: this is its model after round 2 of 4" in said.err
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    with pytest.raises(RunError, match="no round is finished yet"):
        library.predict(tmp_path / "run", images)


def test_a_finished_run_needs_neither_checkpoint_nor_metrics(tmp_path: Path) -> None:
    library.run(CONFIG, out=tmp_path / "run")
    images, _ = raw_test_rows(Digits().load())
    before = library.predict(tmp_path / "run", images)
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    for name in ("metrics.jsonl", "environment.json"):
        (tmp_path / "run" / name).unlink()
    pd.testing.assert_frame_equal(library.predict(tmp_path / "run", images), before)


def test_folders_that_hold_no_model(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no run"):
        library.predict(tmp_path, np.zeros((1, 8, 8)))
    library.run(CONFIG, {"rounds": 1, "seeds": [0]}, out=tmp_path / "many")
    with pytest.raises(RunError, match="several runs; give one of them"):
        library.predict(tmp_path / "many", np.zeros((1, 8, 8)))
    single = tmp_path / "many" / "small" / "0"
    assert len(library.predict(single, np.zeros((1, 8, 8)))) == 1
    raw = RunFolder(single).config()
    (single / "config.yaml").write_text(yaml.safe_dump({**raw, "model": {"kind": "gone_module:Net"}}))
    with pytest.raises(RunError, match=r"the run's model cannot be built: .*gone_module"):
        library.predict(single, np.zeros((1, 8, 8)))


def test_the_same_content_gives_the_same_file(tasks: Path, tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys, shoal; from pathlib import Path\n"
        "from shoal.export import export, read_serving; from shoal.prediction import Predictor\n"
        "p = Predictor(Path(sys.argv[1])); about = dict(p.serving); about.pop('entries')\n"
        "world = p.method.world; export(Path(sys.argv[2]), p.bank, world, about)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tasks), str(tmp_path / "again")], check=True)
    content = (tasks / "model.safetensors").read_bytes()
    assert (tmp_path / "again").read_bytes() == content
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert list(header["__metadata__"]) == ["models", "serving"]  # the library has another order in each process


def test_the_entries_come_back_to_the_bit(tasks: Path) -> None:
    state, _ = RunFolder(tasks).checkpoints.load()
    assert state is not None
    bank = Predictor(tasks).bank
    assert list(bank.entries) == list(state.bank.entries)
    for key, entry in state.bank.entries.items():
        assert torch.equal(bank[key].vector, entry.vector)
        assert bank[key].segments == entry.segments


def test_the_command(tasks: Path, tmp_path: Path, shoal: Shoal) -> None:
    np.save(tmp_path / "rows.npy", raw_test_rows(Digits().load())[0][:30])
    said = shoal("predict", str(tasks), str(tmp_path / "rows.npy"), "--target", "task=1")
    assert said.code == 0, said.err
    assert "model task/1" in said.out
    assert "20 of 30 rows" in said.out
    out = tmp_path / "new" / "p.csv"
    said = shoal("predict", str(tasks), str(tmp_path / "rows.npy"), "--entry", "task/1", "--out", str(out))
    assert said.code == 0, said.err
    read = pd.read_csv(out, dtype={"prediction": str})
    expected = library.predict(tasks, tmp_path / "rows.npy", entry="task/1")
    pd.testing.assert_frame_equal(read, expected, check_dtype=False)
    said = shoal("predict", str(tasks), str(tmp_path / "rows.npy"))
    assert (said.code, "several models" in said.err) == (2, True)
