"""Tasks by source, each with its own classes, size and channels: streams, models, engines, predictions, resuming."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import shoal
import shoal.data
from shoal.data.arrays import from_arrays
from shoal.data.dataset import Dataset
from shoal.engine.kernel import Kernel
from shoal.engine.stacked import chain_of
from shoal.errors import ConfigError
from shoal.folder import RunFolder
from shoal.messages import Client
from shoal.progress import Quiet
from shoal.randomness import Moment, generator
from shoal.requests import Fit, Optimizer, Served
from shoal.running import Interrupted, start_run
from shoal.setup import Setup, assemble, resolve_config
from shoal.streams.describe import describe
from shoal.streams.tasks import TaskStream

SHAPES = {"grey": (6, 6), "flat": (4, 9), "colour": (8, 4, 3), "sites": (8, 8)}
CLASSES = {"grey": 2, "flat": 2, "colour": 3, "sites": 3}
"""``grey`` and ``flat`` have as many pixels; ``sites`` has two sites, of which one has two of its classes alone."""


def arrays(name: str) -> tuple[Any, ...]:
    """Training and test rows of a source: images whose brightness tells their class."""
    rng = np.random.default_rng(len(name))
    found: list[Any] = []
    for rows in (48, 24):
        y = np.arange(rows) % CLASSES[name]
        x = 40 + 60 * y.reshape(-1, *[1] * len(SHAPES[name])) + rng.integers(0, 30, (rows, *SHAPES[name]))
        found += [x.astype(np.uint8), y]
    return tuple(found)


def source(name: str) -> Dataset:
    x, y, x_test, y_test = arrays(name)
    columns = None
    if name == "sites":
        columns = {
            "site": [*("ab"[int(i % 2 and c < 2)] for i, c in enumerate(y)), *("ab"[int(c < 1)] for c in y_test)]
        }
    return from_arrays(x, y, x_test, y_test, name=name, columns=columns)


def union(sources: list[Dataset], **settings: Any) -> Dataset:
    """A union of data sets that no kind of source gives."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shoal.data.digits.Digits.load", lambda self: sources.pop(0))
        return shoal.data.load({"kind": "union", "sources": ["digits"] * len(sources), **settings})


@pytest.fixture(scope="module")
def data() -> Dataset:
    return union([source(name) for name in SHAPES])


def config(**more: Any) -> dict[str, Any]:
    return {
        "rounds": 5,
        "stream": {"kind": "tasks", "tasks": 5, "by": ["source", "site"], "clients": 2, "order": "asynchronous"},
        "model": {"kind": "nettailor", "backbone": {"kind": "resnet20", "width": 2}, "first_tailored_block": 8},
        "method": {"kind": "fedavg", "per": "task"},
        "local": {"lr": 0.1, "batch_size": 8},
        "execution": {"kind": "serial"},
        **more,
    }


def setup(data: Dataset, **more: Any) -> Setup:
    return assemble(resolve_config({**config(**more), "data": "arrays"}), data)


def stream(data: Dataset, heads_by_task: bool = True, **more: Any) -> TaskStream:
    given = {"tasks": 4, "by": "source", "clients": 2, "order": "synchronous", **more}
    return TaskStream(data, 0, 8, heads_by_task, **given)


# ---- the stream ---------------------------------------------------------------------------------------------------


def test_tasks_have_the_shapes_and_classes_of_their_sources(data: Dataset) -> None:
    s = stream(data)
    assert s.task_names == tuple(SHAPES)
    assert s.task_shapes == ((1, 6, 6), (1, 4, 9), (3, 8, 4), (1, 8, 8))
    assert s.task_outputs == tuple(CLASSES.values())
    for task, name in enumerate(SHAPES):
        rows = s.targets(1)[task].test
        assert s.dataset.wanted(rows).tolist() == arrays(name)[3].tolist()
        assert s.classes_of({"task": task}) == tuple(f"{name}:{c}" for c in range(CLASSES[name]))
    table = describe(s, 8)[0]
    assert table.columns[-1] == "inputs"
    assert [row[-1] for row in table.rows] == ["1x6x6", "1x4x9", "3x8x4", "1x8x8"]
    # Of one shape there is nothing to say.
    assert stream(shoal.data.load("digits"), by="class").task_shapes == ()


def test_several_columns_make_a_task_of_each_combination(data: Dataset) -> None:
    s = stream(data, by=["source", "site"], tasks=5)
    assert s.task_names == ("grey", "flat", "colour", "sites/a", "sites/b")
    assert s.task_outputs == (2, 2, 3, 3, 2)
    _, y, _, y_test = arrays("sites")
    assert len(s.targets(1)[4].test) == int((y_test < 1).sum())
    held = torch.cat([torch.cat(s.cell(c, 4)) for c in range(2)])
    assert len(held) == sum(1 for i, c in enumerate(y) if i % 2 and c < 2)
    assert s.holding(0, 8).truth["domain"] == "sites/b"
    assert stream(data, by=["site", "source"], tasks=5).task_names[:3] == ("grey", "flat", "colour")
    with pytest.raises(ConfigError, match="no column 'sight'; did you mean 'site'"):
        stream(data, by=["source", "sight"])
    with pytest.raises(ConfigError, match="6 tasks out of 5 values of 'source', 'site'"):
        stream(data, by=["source", "site"], tasks=6)


def test_a_task_of_several_shapes_is_refused(data: Dataset) -> None:
    with pytest.raises(ConfigError, match=r"those of 'grey, flat' have 1x6x6 and 1x4x9 .* stream\.tasks: 4"):
        stream(data, tasks=2)


# ---- the models ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [{"method": "fedavg"}, {"stream.head": "shared"}, {"method": {"kind": "local"}}])
def test_one_model_for_all_is_refused(data: Dataset, change: dict[str, Any]) -> None:
    given = config(**{k: v for k, v in change.items() if "." not in k})
    given["stream"] = {**given["stream"], **({"head": "shared"} if "stream.head" in change else {})}
    with pytest.raises(ConfigError, match=r"grey 1x6x6, flat 1x4x9, colour 3x8x4, sites 1x8x8; bring all to one"):
        assemble(resolve_config({**given, "data": "arrays"}), data)


def test_a_model_for_each_shape_and_head_on_one_backbone(data: Dataset) -> None:
    made = setup(data)
    names, models = made.world.task_models, made.world.models
    assert sorted(names) == sorted(models)
    assert names == ("main-2-1x6x6", "main-2-1x4x9", "main", "main-3-1x8x8", "main-2-1x8x8")
    frozen = {n: {k: p for k, p in m.build().named_parameters() if not p.requires_grad} for n, m in models.items()}
    main = frozen["main"]
    for task, name in enumerate(names):
        for leaf, parameter in frozen[name].items():
            # Everything but the stem that sees the colours is the same memory.
            same = parameter.shape == main[leaf].shape
            assert same or leaf.startswith("front.stem")
            assert (parameter.data_ptr() == main[leaf].data_ptr()) == same
        x = made.stream.dataset.batch(made.stream.targets(1)[task].test[:2]).permute(0, 3, 1, 2)
        assert models[name].build()(x).shape == (2, made.stream.task_outputs[task])


def test_weights_for_three_channels_say_whose_images_have_one(data: Dataset, tmp_path: Path) -> None:
    from shoal.models.resnet import resnet20

    torch.save(resnet20((3, 8, 4), 3, width=2).state_dict(), tmp_path / "w.pth")
    model = {**config()["model"], "backbone": {"kind": "resnet20", "width": 2, "weights": str(tmp_path / "w.pth")}}
    with pytest.raises(ConfigError, match=r"the file has .*for inputs of 1x\dx\d; .* data\.channels: 3"):
        setup(data, model=model)


# ---- the engines --------------------------------------------------------------------------------------------------


def test_a_fit_and_a_score_are_those_of_the_source_alone(data: Dataset) -> None:
    made = setup(data, model={"kind": "mlp", "hidden": [5]})
    s = made.stream
    for task, name in ((0, "grey"), (2, "colour")):
        alone = source(name)
        model = made.world.models[made.world.task_models[task]]
        whole = Kernel(made.world.models, s.dataset, torch.device("cpu"))
        part = Kernel({model.name: model}, alone, torch.device("cpu"))
        start = Served.of(model.initial(generator(0, "a")))
        rows = s.cell(0, task)[0]
        inside = s.dataset.part(rows)[1]
        fits, scores = [], []
        for kernel, own in ((whole, rows), (part, inside)):
            request = Fit(start, own, Optimizer("sgd", lr=0.1, momentum=0.9), epochs=3, batch=8)
            fits.append(kernel.fit(request, Client(0, Moment(0, 1), own, own[:0])))
            test = s.targets(1)[task].test if kernel is whole else alone.test
            scores.append(kernel.evaluate([Served(model.name, fits[-1].vector)], test)[0])
        assert torch.equal(fits[0].vector, fits[1].vector)
        assert scores[0] == scores[1]
        assert scores[0].accuracy > 0.8  # brightness tells the class


@pytest.fixture(scope="module")
def run(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shoal.run(config(), out=tmp_path_factory.mktemp("decathlon") / "serial", data=data).folder


def test_workers_and_a_resumed_run_give_the_same_bits(run: Path, data: Dataset, tmp_path: Path) -> None:
    workers = {"kind": "workers", "workers": 2}
    other = shoal.run(config(execution=workers), out=tmp_path / "workers", data=data).folder
    assert (other / "metrics.jsonl").read_bytes() == (run / "metrics.jsonl").read_bytes()

    class Stop(Quiet):
        def played(self, round: int, lines: list[dict[str, Any]]) -> None:
            if round == 2:
                raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        start_run(resolve_config({**config(), "data": "arrays"}), tmp_path / "cut", dataset=data, progress=Stop())
    shoal.resume(tmp_path / "cut", data=data)
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (tmp_path / "cut" / name).read_bytes() == (run / name).read_bytes()
    assert (run / "report.html").is_file()


def test_dense_models_are_stacked_by_the_shape_of_their_rows(data: Dataset, tmp_path: Path) -> None:
    # The models of ``grey`` and ``flat`` have the same layers: 36 pixels, two classes.
    dense = {"model": {"kind": "mlp", "hidden": [5]}, "local": {"lr": 0.1, "batch_size": 8, "epochs": 2}}
    found = {}
    for kind in ("serial", "stacked"):
        result = shoal.run(config(**dense, execution={"kind": kind}), out=tmp_path / kind, data=data)
        found[kind] = result.summary["accuracy_by_target"]
        assert result.summary["problems"]["failed"] == 0
    assert found["stacked"] == pytest.approx(found["serial"])
    last = (tmp_path / "stacked" / "timings.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["engine"] == "stacked on cpu, float32"  # nothing by the reference kernel
    models = setup(data, **dense).world.models
    chains = [chain_of(models[name]) for name in ("main-2-1x6x6", "main-2-1x4x9")]
    assert chains[0].signature == chains[1].signature  # type: ignore[union-attr]


def test_tailored_models_are_stacked_too(run: Path, data: Dataset, tmp_path: Path) -> None:
    result = shoal.run(config(execution={"kind": "stacked"}), out=tmp_path / "stacked", data=data)
    assert result.summary["problems"]["failed"] == 0
    assert {f"task={t}": logged(run, t) for t in range(5)} == pytest.approx(result.summary["accuracy_by_target"])
    last = (tmp_path / "stacked" / "timings.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["engine"].startswith("stacked on cpu, float32")


def test_augmentations_and_gossip(data: Dataset, tmp_path: Path) -> None:
    cnn = {"kind": "cnn", "channels": [2], "kernel": 3, "padding": 1, "pool": 2, "hidden": [4]}
    local = {"augment": ["flip", "crop"], "batch_size": 8, "epochs": 1}
    for name, method in (("fedavg", {"kind": "fedavg", "per": "task"}), ("dac", {"kind": "dac", "per": "task"})):
        given = config(model=cnn, local=local, method=method, execution={"kind": "workers", "workers": 2})
        result = shoal.run(given, out=tmp_path / name, data=data)
        assert result.summary["problems"]["failed"] == result.summary["problems"]["rejected"] == 0


# ---- predictions --------------------------------------------------------------------------------------------------


def logged(folder: Path, task: int) -> float:
    lines = [x for x in RunFolder(folder).lines() if x.get("metric") == "accuracy" and x.get("task") == task]
    return float(lines[-1]["value"])


def test_predictions_read_rows_as_those_of_the_task(run: Path) -> None:
    for task, name in enumerate(("grey", "flat", "colour")):
        x, y = arrays(name)[2:]
        frame = shoal.predict(run, x, target=f"task={name}")
        right = np.mean([f"{name}:{c}" == p for c, p in zip(y, frame["prediction"], strict=True)])
        assert right == pytest.approx(logged(run, task))
        assert frame.equals(shoal.predict(run, x, entry=f"task/{task}"))
        assert list(frame.columns[3:]) == [f"p:{name}:{c}" for c in range(CLASSES[name])]
        assert frame.equals(shoal.predict(run, x, entry=f"task/{task}", source=name))
    with pytest.raises(shoal.ShoalError, match=r"\[rows, 8, 4, 3\].*got the shape \(24, 6, 6\)"):
        shoal.predict(run, arrays("grey")[2], target="task=colour")
    with pytest.raises(ConfigError, match="this model has no rows of 'grey'; it serves colour"):
        shoal.predict(run, arrays("grey")[2], target="task=colour", source="grey")


def test_a_model_of_several_sources_is_told_whose_rows_they_are(tmp_path: Path) -> None:
    x, y, x_test, y_test = arrays("grey")
    sources = [
        from_arrays(x + shift, y, x_test + shift, y_test, name=name) for name, shift in (("low", 0), ("high", 90))
    ]
    data = union(sources, normalize="source", labels="shared")
    given = {
        **config(model={"kind": "mlp", "hidden": [5]}, method="fedavg"),
        "stream": {"kind": "static", "clients": 2},
        "local": {"lr": 0.1, "epochs": 3, "batch_size": 8},
    }
    folder = shoal.run(given, out=tmp_path / "run", data=data).folder
    low = shoal.predict(folder, x_test, source="low")
    high = shoal.predict(folder, x_test + 90, source="high")
    # Each is normalised by itself: the same images 90 steps brighter are the same inputs.
    np.testing.assert_allclose(low["confidence"], high["confidence"], rtol=1e-4)
    with pytest.raises(ConfigError, match="rows of several sources; give --source, one of low, high"):
        shoal.predict(folder, x_test)
    with pytest.raises(ConfigError, match="it serves low, high"):
        shoal.predict(folder, x_test, source="lo")


def test_a_source_is_refused_where_all_rows_are_read_in_one_way(tmp_path: Path) -> None:
    given = {"rounds": 1, "stream": {"kind": "static", "clients": 2}, "execution": {"kind": "serial"}}
    x, y, x_test, y_test = arrays("grey")
    folder = shoal.run(given, out=tmp_path / "run", data=from_arrays(x, y, x_test, y_test)).folder
    with pytest.raises(ConfigError, match="reads all rows in one way; leave it out"):
        shoal.predict(folder, x_test, source="grey")
