"""Whole runs on tables: classes and values, with natural clients; and a real market where it is at hand."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LinearRegression

import shoal
import shoal.data
from shoal.setup import assemble, resolve_config

RUN = {
    "rounds": 3,
    "model": {"kind": "mlp", "hidden": [16]},
    "checkpoint": {"every": 0},
    "execution": {"kind": "serial"},
}


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def market(real_data):
    path = real_data / "elec2" / "elec.csv"
    if not path.exists():
        pytest.skip("no elec2/elec.csv there")
    return {"kind": "table", "path": str(path)}


def test_elec2_as_classes(market):
    data = shoal.data.load({**market, "label": "class"})
    frame = pd.read_csv(market["path"])
    assert len(data) == len(frame) == 45_312
    assert data.reader["features"] == [c for c in frame.columns if c != "class"]
    assert np.allclose(data.features.numpy(), frame.drop(columns="class").to_numpy(), rtol=0, atol=1e-6)
    assert np.array_equal(data.labels.numpy(), frame["class"].to_numpy())
    # Stratified: the share of each class in the test rows is that of all rows.
    assert float(data.labels[data.test].double().mean()) == pytest.approx(frame["class"].mean(), abs=1e-4)
    wanted = frame.iloc[data.test.numpy()].merge(frame.iloc[data.train.numpy()].drop_duplicates())
    assert data.notes == (f"{len(wanted)} of 9062 test rows are equal, label included, to a training row",)


def test_elec2_as_values(market):
    data = shoal.data.load({**market, "label": "nswdemand", "learn": "values"})
    frame = pd.read_csv(market["path"])
    assert np.allclose(data.in_units(data.values)[:, 0].numpy(), frame["nswdemand"].to_numpy(), rtol=0, atol=1e-6)
    wanted = data.values[data.train].double()
    assert float(wanted.mean()) == pytest.approx(0, abs=1e-5)
    assert float(wanted.std(correction=0)) == pytest.approx(1, abs=1e-5)


def test_a_run_on_elec2_as_classes(market, tmp_path):
    data = shoal.data.load({**market, "label": "class", "limit": 6000, "limit_test": 1500})
    config = {**RUN, "stream": {"kind": "static", "clients": 5}, "local": {"lr": 0.1}}
    result = shoal.run(config, data=data, out=tmp_path / "run")
    # 57.5% of all rows are "down".
    assert result.summary["acc"] > 0.7


def test_a_run_on_elec2_as_values(market, tmp_path):
    data = shoal.data.load({**market, "label": "nswdemand", "learn": "values", "limit": 6000, "limit_test": 1500})
    config = {**RUN, "stream": {"kind": "static", "clients": 5}, "local": {"lr": 0.05, "loss": "mse"}}
    result = shoal.run(config, data=data, out=tmp_path / "run")
    x, y = data.batch(torch.arange(len(data))).numpy(), data.values[:, 0].numpy()
    line = LinearRegression().fit(x[data.train], y[data.train])
    linear = float(np.mean((line.predict(x[data.test]) - y[data.test]) ** 2))
    assert result.summary["loss"] < linear


def table(path):
    """Three sites with clients of 30, 20 and 10 rows; y follows x and the site."""
    rng = np.random.default_rng(0)
    site = np.repeat(["north", "south", "west"], [30, 20, 10])
    x = rng.normal(size=60)
    y = 50 + 10 * x + 5 * (site == "south") + rng.normal(0, 0.1, 60)
    frame = pd.DataFrame({"site": site, "x": x, "kind": np.where(x > 0, "up", "down"), "y": y})
    frame.to_csv(path, index=False)
    return {"kind": "table", "path": str(path), "label": "y", "learn": "values", "client": "site"}


def test_a_run_of_natural_clients_on_values(tmp_path):
    config = {
        **RUN,
        "rounds": 10,
        "data": {**table(tmp_path / "t.csv"), "test": 12},
        "stream": {"kind": "static", "partition": {"kind": "column", "column": "site"}, "targets": "client"},
        "local": {"loss": "mse", "epochs": 3},
    }
    shoal.run(config, out=tmp_path / "run")
    told = lines(tmp_path / "run")
    (stream,) = (line for line in told if line.get("record") == "stream")
    assert (stream["clients"], stream["client_names"]) == (3, ["north", "south", "west"])
    losses = [line for line in told if line.get("metric") == "loss" and "client" in line]
    last = [line for line in losses if line["round"] == 10]
    assert [line["client"] for line in last] == [0, 1, 2]
    assert all(line["value"] < 0.5 for line in last)
    assert [line["rows"] for line in last] == [6, 4, 2]


def test_clients_that_lack_rows_are_told_once(tmp_path):
    # "c" has one row, which stays for training, and "d" is known to the test file alone.
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "train.csv").write_text("who,x,y\na,1,u\na,2,v\nb,3,u\nb,4,v\nc,5,u\n")
    (tmp_path / "t" / "test.csv").write_text("who,x,y\na,9,u\nb,8,v\nd,7,u\n")
    data = {"kind": "table", "path": str(tmp_path / "t"), "label": "y", "client": "who"}
    stream = {"kind": "static", "partition": {"kind": "column", "column": "who"}, "targets": "client"}
    setup = assemble(resolve_config({"data": data, "stream": stream}))
    assert [note for note in setup.notes if "clients without" in note] == [
        "clients without a training row: 1 of 4",
        "clients without a test row: 1 of 4",
    ]
    # Other clients than those of the column are another matter.
    drawn = {"kind": "static", "clients": 4, "targets": "client"}
    stream_of_drawn = assemble(resolve_config({"data": data, "stream": drawn})).stream
    (note,) = stream_of_drawn.notes()
    without = sum(not len(stream_of_drawn.holding(client, 1).test) for client in range(4))
    assert without in (1, 2)  # three rows for four clients, each with its share to less than a row
    assert note == f"clients without a test row, which are not measured: {without} of 4"
