"""Numbers that float32 cannot tell apart: they are standardised in float64 first. Beside scikit-learn and fractions."""

import json
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error
from sklearn.preprocessing import StandardScaler

import shoal
import shoal.data
from shoal.data.arrays import from_arrays
from shoal.data.normalisation import constant, moments

RNG = np.random.default_rng(0)
N = 200
NOW = 1.7e9 + RNG.uniform(0, 60, N)
X = np.column_stack([NOW, RNG.normal(3, 2, N), -NOW, 1e-12 * RNG.normal(size=N), NOW / 1e30])
Y = 1e9 + RNG.normal(0, 2.4, N)
ROWS = torch.arange(N)


def standardised(x, train):
    return StandardScaler().fit(x[train]).transform(x)


@pytest.mark.parametrize("given", [X, torch.from_numpy(X)], ids=["numpy", "torch"])
def test_features_far_from_zero(given):
    data = from_arrays(given, np.arange(N) % 2)
    assert data.features.dtype == torch.float32
    assert data.batch(ROWS).dtype == torch.float32
    assert np.allclose(data.batch(ROWS).numpy(), standardised(X, data.train.numpy()), atol=1e-5)
    assert (data.shift != 0).tolist() == [True, False, True, False, True]
    assert np.array_equal(data.features[:, 1].numpy(), X[:, 1].astype(np.float32))  # not far: as it is
    assert from_arrays(X[:, [1, 3]], np.arange(N) % 2).shift is None


def test_test_rows_and_other_data_are_less_the_same_shift():
    data = from_arrays(X[:150], np.arange(150) % 2, X[150:], np.arange(50) % 2)
    assert np.allclose(data.batch(ROWS).numpy(), standardised(X, np.arange(150)), atol=1e-5)
    later = from_arrays(X[:, [0]] + 30, np.arange(N) % 2)
    assert not torch.equal(later.shift, from_arrays(X[:, [0]], np.arange(N) % 2).shift)
    assert later.fingerprint != from_arrays(X[:, [0]], np.arange(N) % 2).fingerprint


def test_the_other_normalisations_of_a_far_feature():
    x = np.array([[1000.0], [1001.0], [1002.0]])
    given = (x, [0, 1, 1], x[:1], [0])
    for how, expected in (("unit", x / 1002), ("half", 2 * x / 1002 - 1), ("none", x), ("channel", [[-1], [0], [1]])):
        scale = np.sqrt(1.5) if how == "channel" else 1.0
        data = from_arrays(*given, normalize=how)
        assert data.batch(torch.arange(3)).numpy() == pytest.approx(np.array(expected) * scale, rel=1e-6, abs=1e-6)
    assert torch.equal(from_arrays(*given, normalize="none").batch(torch.arange(3)), torch.from_numpy(x).float())


def test_moments_are_exact_for_large_numbers():
    values = [10**15 + k for k in (0, 1, 5, 6)]
    mean, spread = moments(np.array(values, dtype=np.float64)[:, None], np.arange(4))
    exact = sum(map(Fraction, values)) / 4
    variance = sum((Fraction(v) - exact) ** 2 for v in values) / 4
    assert mean[0] == float(exact)
    assert spread[0] == pytest.approx(float(variance) ** 0.5, rel=1e-12)


def test_what_counts_as_constant():
    x = np.array([[0.1, 0.3, 1e9, 1e9, 1e-40, 7, -5], [0.1, 0.1 + 0.2, 1e9, 1e9 + 1e-3, 3e-40, 7, 5]] * 2)
    assert constant(x, np.arange(4)).tolist() == [True, True, True, False, True, True, False]
    assert constant(x, np.array([1])).all()
    data = from_arrays(x, [0, 1, 0, 1], x, [0, 1, 0, 1])
    got = data.batch(torch.arange(4)).numpy()
    assert np.isfinite(got).all()
    assert np.allclose(got[:, [0, 1, 2, 4, 5]], 0, atol=1e-6)
    assert np.allclose(got[:, [3, 6]], [[-1, -1], [1, 1]] * 2, atol=1e-3)


CONFIG = {
    "rounds": 2,
    "stream": {"kind": "static", "clients": 3},
    "model": {"kind": "mlp", "hidden": [4]},
    "local": {"loss": "mse", "lr": 0.1, "epochs": 5},
    "evaluate": {"metrics": ["mae", "rmse", "r2"]},
    "execution": {"kind": "serial"},
}


def test_a_regression_on_a_table_from_file_to_prediction(tmp_path):
    frame = pd.DataFrame({"ts": NOW, "z": X[:, 1], "y": 1e9 + (NOW - 1.7e9) / 10 + RNG.normal(0, 0.1, N)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    settings = {"kind": "table", "path": str(tmp_path / "t.csv"), "label": "y", "learn": "values"}
    data = shoal.data.load(settings)
    assert data.notes == ()
    train, test = data.train.numpy(), data.test.numpy()
    assert np.allclose(data.batch(ROWS).numpy(), standardised(frame[["ts", "z"]].to_numpy(), train), atol=1e-5)
    assert np.allclose(data.values.numpy(), standardised(frame[["y"]].to_numpy(), train), atol=1e-5)
    y = frame["y"].to_numpy()
    assert np.allclose(data.in_units(data.wanted(ROWS))[:, 0].numpy(), y, rtol=0, atol=1e-6)
    run = shoal.run({**CONFIG, "rounds": 5, "data": settings}, out=tmp_path / "run")
    told = {
        line["metric"]: line["value"]
        for line in map(json.loads, (run.folder / "metrics.jsonl").read_text().splitlines())
        if line.get("round") == 5 and line.get("metric") in ("mae", "rmse", "r2")
    }
    frame.drop(columns="y").iloc[test, ::-1].to_csv(tmp_path / "new.csv", index=False)
    for rows in (tmp_path / "new.csv", frame.iloc[test]):
        found = shoal.predict(run.folder, rows)["prediction"].to_numpy()
        assert found.dtype == np.float64
        assert told["mae"] == pytest.approx(mean_absolute_error(y[test], found), rel=1e-5)
        assert told["rmse"] == pytest.approx(root_mean_squared_error(y[test], found), rel=1e-5)
        assert told["r2"] == pytest.approx(r2_score(y[test], found), rel=1e-5)
    assert told["r2"] > 0.5
    same = shoal.predict(run.folder, data)["prediction"].to_numpy()
    assert same[test] == pytest.approx(found, rel=0, abs=1e-6)


def test_predictions_for_arrays_and_for_another_data_set(tmp_path):
    data = from_arrays(X[:, :2], Y, learn="values")
    assert np.allclose(data.values.numpy(), standardised(Y[:, None], data.train.numpy()), atol=1e-5)
    run = shoal.run(CONFIG, data=data, out=tmp_path / "run").folder
    np.save(tmp_path / "rows.npy", X[:, :2])
    found = shoal.predict(run, tmp_path / "rows.npy")["prediction"].to_numpy()
    assert len(np.unique(found)) > N / 2
    # A data set whose own shift is another one has the same rows.
    other = from_arrays(np.concatenate([X[:, :2], X[:, :2] + [600, 0]]), np.zeros(2 * N), learn="values")
    assert not torch.equal(other.shift, data.shift)
    assert shoal.predict(run, other)["prediction"].to_numpy()[:N] == pytest.approx(found, rel=0, abs=1e-4)
