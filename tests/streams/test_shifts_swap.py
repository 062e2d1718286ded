"""Labels that are swapped in some clusters, without copies of the rows; and whole runs over clients that shift."""

import json
from pathlib import Path

import pytest
import torch
from stream_data import images

import shoal
from shoal.data.arrays import from_arrays
from shoal.engine.stacked import _origin
from shoal.errors import ConfigError
from shoal.streams.shifts import ShiftStream

DATA = images(["a", "b", "c", "d"] * 30, ["a", "b", "c", "d"] * 5)


def swapped(clusters, **changes):
    given = {"clients": len(clusters), "steps": 1, "rounds_per_step": 4, "rows": 20, "validation_rows": 4}
    return ShiftStream(DATA, 0, 4, clusters=clusters, by="swap", pattern="keep", **{**given, **changes})


def test_labels_are_those_of_the_cluster():
    s = swapped([[], ["a", "b"], ["a", "c", "b", "d"]])
    assert s.cluster_names == ("no swap", "a <-> b", "a <-> c, b <-> d")
    for client, labels in enumerate([[0, 1, 2, 3], [1, 0, 2, 3], [2, 3, 0, 1]]):
        held = s.holding(client, 1)
        for rows in (held.train, held.validation, held.test):
            plain = DATA.labels[rows % len(DATA)]
            wanted = torch.tensor([labels[int(label)] for label in plain])
            assert torch.equal(s.dataset.wanted(rows), wanted)
            assert torch.equal(s.dataset.labels_of(rows), wanted)
            assert torch.equal(s.dataset.batch(rows), DATA.batch(rows % len(DATA)))
        assert set(held.test.tolist()) == {row + client * len(DATA) for row in DATA.test.tolist()}


def test_it_costs_a_table_of_clusters_by_classes():
    s = swapped([[], ["a", "b"]])
    assert s.dataset.features.data_ptr() == DATA.features.data_ptr()
    assert s.dataset.labels.data_ptr() == DATA.labels.data_ptr()
    assert s.dataset.label_maps is not None
    assert s.dataset.label_maps.tolist() == [[0, 1, 2, 3], [1, 0, 2, 3]]
    # Stacks of several runs must not take one for the other, although their inputs are the same.
    assert _origin(s.dataset) != _origin(swapped([[], ["a", "c"]]).dataset)


@pytest.mark.parametrize("maps", [[[0, 1, 2]], [[0, 1, 2, 4]], [[0, 1, 2, -1]], []])
def test_maps_that_are_none(maps):
    with pytest.raises(ConfigError, match="label maps"):
        DATA.with_label_maps(torch.tensor(maps, dtype=torch.int64))


@pytest.mark.parametrize("by", ["swap", "class"])
def test_values_have_no_labels(by):
    x = torch.arange(40.0).reshape(40, 1)
    data = from_arrays(x, x[:, 0], columns={"site": ["n", "s"] * 20}, learn="values")
    given = {"clients": 2, "steps": 1, "rounds_per_step": 4, "rows": 8, "validation_rows": 2}
    with pytest.raises(ConfigError, match=f"by: {by} .*, but arrays has none, it learns values"):
        ShiftStream(data, 0, 4, clusters=[[0], [1]], by=by, **given)
    s = ShiftStream(data, 0, 4, by="site", pattern="keep", **given)
    assert set(data.columns["site"].codes[s.holding(1, 1).train].tolist()) == {1}
    assert s.dataset.wanted(s.holding(1, 1).train).dtype == torch.float32


RUN = {
    "name": "shifting",
    "rounds": 6,
    "data": {"kind": "digits"},
    "stream": {"kind": "shifts", "clients": 4, "steps": 2, "rounds_per_step": 3, "rows": 60, "validation_rows": 20},
    "model": {"kind": "mlp", "hidden": [16]},
    "local": {"lr": 0.1, "epochs": 2, "batch_size": 10},
}


def lines(folder: Path, **record):
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if all(line.get(name) == value for name, value in record.items())]


def test_a_model_follows_the_labels_of_its_cluster(tmp_path):
    # One client, alone: right labels for three rounds, then 0 and 1 exchanged, 2 and 3, 4 and 5, 6 and 7.
    stream = {**RUN["stream"], "clients": 1, "rows": 800, "validation_rows": 40, "by": "swap",
              "clusters": [[], list(range(8))], "pattern": [[0], [1]]}  # fmt: skip
    result = shoal.run(
        {**RUN, "stream": stream, "local": {"lr": 0.1, "epochs": 8, "batch_size": 10}, "rounds": 8},
        out=tmp_path / "run",
    )
    accuracy = {line["round"]: line["value"] for line in lines(tmp_path / "run", metric="accuracy")}
    assert accuracy[3] > 0.85
    assert accuracy[8] > 0.85
    # A model of the old labels is right on the digits 8 and 9 alone; the new ones cannot be learned without a trace.
    assert result.summary["acc"] == accuracy[8]


def test_engines_agree_on_swapped_labels(tmp_path):
    stream = {**RUN["stream"], "by": "swap", "clusters": [[], [0, 1], [3, 4, 8, 9]], "gradual": 1}
    found = {}
    for engine in ("serial", "workers", "stacked"):
        execution = {"kind": engine, "workers": 2} if engine == "workers" else {"kind": engine}
        folder = tmp_path / engine
        shoal.run({**RUN, "stream": stream, "execution": execution}, out=folder)
        found[engine] = [line["value"] for line in lines(folder, metric="loss")]
    assert found["serial"] == found["workers"]
    assert found["stacked"] == pytest.approx(found["serial"], rel=1e-3)


def test_a_run_tells_the_clusters(tmp_path, shoal):
    folder = tmp_path / "run"
    file = tmp_path / "shifting.yaml"
    stream = {**RUN["stream"], "clusters": [[0, 1, 2], [7, 8]], "pattern": [[0, 0, 1, 1], [1, 0, 1, 0]]}
    file.write_text(json.dumps({**RUN, "stream": stream}))
    assert shoal("run", str(file), "--out", str(folder)).code == 0
    (header,) = lines(folder, record="stream")
    assert header["cluster_names"] == ["0, 1, 2", "7, 8"]
    assert header["boundaries"] == [3]
    held = [line["held"] for line in lines(folder, record="round")]
    assert held == [{"cluster": {"0": [0, 1], "1": [2, 3]}}] * 3 + [{"cluster": {"1": [0, 2], "0": [1, 3]}}] * 3
    assert {line["client"] for line in lines(folder, metric="accuracy")} == {0, 1, 2, 3}
    shown = shoal("show", str(file)).out
    assert "Cluster of each client by time step" in shown
    assert "step 1: 4 to the end" in shown
