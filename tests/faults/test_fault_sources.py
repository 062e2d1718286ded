"""Fault: the same rows through two ways of building the data, or the tasks, give different numbers."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fault_lab import config, images
from PIL import Image

import shoal

X, Y = images(60, 4)
X_TEST, Y_TEST = images(20, 4, seed=1)
TASKS = {"kind": "tasks", "tasks": 2, "by": "class", "clients": 3, "order": "asynchronous"}
CONFIG = config(stream=TASKS, method={"kind": "fedavg", "per": "task"}, local={"batch_size": 8})
SPLITS = {"train": (X, Y), "test": (X_TEST, Y_TEST)}


def run(folder: Path, data: Any, **changes: Any) -> list[bytes]:
    """The lines of a run's metrics; ``data`` is rows made in Python, or the settings of a source."""
    made, settings = (None, {"data": data}) if isinstance(data, dict) else (data, {})
    result = shoal.run({**CONFIG, **settings, **changes}, out=folder, data=made)
    assert result.summary["updates"] == 6
    return (result.folder / "metrics.jsonl").read_bytes().splitlines()


def write_idx(folder: Path) -> dict[str, Any]:
    folder.mkdir()
    for split, name in (("train", "train"), ("test", "t10k")):
        x, y = SPLITS[split]
        head = struct.pack(">BBBBIII", 0, 0, 8, 3, *x.shape)
        (folder / f"{name}-images-idx3-ubyte").write_bytes(head + x.tobytes())
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(
            struct.pack(">BBBBI", 0, 0, 8, 1, len(y)) + y.astype(np.uint8).tobytes()
        )
    return {"kind": "idx", "path": str(folder), "cache": None}


def write_parquet(folder: Path) -> dict[str, Any]:
    folder.mkdir()
    for split, (x, y) in SPLITS.items():
        pngs = []
        for picture in x:
            file = io.BytesIO()
            Image.fromarray(picture).save(file, "PNG")
            pngs.append({"bytes": file.getvalue(), "path": None})
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        pq.write_table(pa.table({"image": pa.array(pngs, type=kind), "label": y}), folder / f"{split}.parquet")
    return {"kind": "parquet", "path": str(folder), "cache": None}


@pytest.mark.parametrize("write", [write_idx, write_parquet])
def test_files_and_arrays_of_the_same_rows_give_the_same_metrics(tmp_path: Path, write: Any) -> None:
    arrays = run(tmp_path / "arrays", shoal.from_arrays(X, Y, X_TEST, Y_TEST))
    assert run(tmp_path / "files", write(tmp_path / "data")) == arrays


def test_digits_and_arrays_of_the_same_rows_give_the_same_metrics(tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    data = shoal.from_arrays(bunch.images.astype(np.uint8), bunch.target, test=0.2, seed=3)
    arrays = run(tmp_path / "arrays", data)
    assert run(tmp_path / "digits", {"kind": "digits", "normalize": "channel", "split_seed": 3}) == arrays


def test_tasks_by_class_by_a_list_and_by_a_column_of_the_same_rows_give_the_same_metrics(tmp_path: Path) -> None:
    half = [["low", "high"][label // 2] for label in [*Y, *Y_TEST]]
    column = {"half": [{"low": "a", "high": "b"}[name] for name in half]}
    data = shoal.from_arrays(X, Y, X_TEST, Y_TEST, columns=column)
    by_class = run(tmp_path / "class", data)
    listed = run(tmp_path / "list", data, stream={**TASKS, "classes": [[0, 1], [2, 3]]})
    by_column = run(tmp_path / "column", data, stream={**TASKS, "by": "half"})
    assert listed == by_class
    assert by_column[1:] == by_class[1:]  # but for the names of the tasks, in the first line
