"""Further rows for a prediction: tables, images and arrays are read as the run's own data were."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import Shoal
from PIL import Image
from prediction_helpers import CONFIG, logged, right

import shoal as library
from shoal.errors import DataError
from shoal.setup import assemble, resolve_config


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on images that came as arrays."""
    return library.run({**CONFIG, "rounds": 0}, out=tmp_path_factory.mktemp("digits") / "run").folder


def test_a_table(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"size": rng.normal(size=80).round(3), "kind": rng.choice(["x", "y", "z"], 80)})
    frame["label"] = np.where(frame["size"] + (frame["kind"] == "x") > 0.3, "big", "small")
    frame.to_csv(tmp_path / "rows.csv", index=False)
    data = {"kind": "table", "path": str(tmp_path / "rows.csv"), "label": "label"}
    run = library.run({**CONFIG, "data": data}, out=tmp_path / "run").folder
    loaded = assemble(resolve_config({**CONFIG, "data": data})).dataset
    (tmp_path / "rows.csv").unlink()  # the data are gone
    further = frame.iloc[loaded.test.numpy()].drop(columns="label")
    further[["kind", "size"]].to_csv(tmp_path / "further.csv", index=False)  # in another order
    found = library.predict(run, tmp_path / "further.csv")
    assert right(found, [str(label) for label in frame["label"].iloc[loaded.test.numpy()]]) == logged(run)
    assert list(found.columns) == ["row", "prediction", "confidence", "p:big", "p:small"]
    further.to_parquet(tmp_path / "further.parquet", index=False)
    for same in (tmp_path / "further.parquet", further):
        pd.testing.assert_frame_equal(library.predict(run, same), found)
    with pytest.raises(DataError, match="size"):
        library.predict(run, further.drop(columns="size"))
    for wrong, message in ((np.zeros((2, 4)), "DataFrame"), (tmp_path / "run", "ends in .csv")):
        with pytest.raises(DataError, match=message):
            library.predict(run, wrong)


def test_what_is_missing_or_new_in_a_table_is_told(tmp_path: Path, shoal: Shoal) -> None:
    rows = {"size": [1.0, 5.0] * 20, "kind": ["a", "b"] * 20, "label": ["low", "high"] * 20}
    pd.DataFrame(rows).to_csv(tmp_path / "rows.csv", index=False)
    data = {"kind": "table", "path": str(tmp_path / "rows.csv"), "label": "label", "missing": "mean"}
    run = library.run({**CONFIG, "data": data}, out=tmp_path / "run").folder
    whole = pd.DataFrame({"size": [1.0, 5.0], "kind": ["a", "b"]})
    assert library.predict(run, whole).attrs["notes"] == []
    gaps = pd.DataFrame({"size": [None, 5.0, None], "kind": ["a", "c", "b"]})
    assert library.predict(run, gaps).attrs["notes"] == [
        "missing numbers, filled in, of 3 rows: size (2)",
        "values of a category that no training row has, of 3 rows: kind (1)",
    ]
    whole[["kind"]].to_csv(tmp_path / "few.csv", index=False)
    said = shoal("predict", str(run), str(tmp_path / "few.csv"))
    assert said.code == 0
    assert "note: columns that are not there, taken as missing: size\n" in said.out
    assert "note: missing numbers, filled in, of 2 rows: size (2)\n" in said.out


def test_a_regression_is_in_the_units_of_its_source(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(80, 3)).astype(np.float32)
    y = (1000 + 50 * x[:, 0]).astype(np.float32)
    data = library.from_arrays(x, y, learn="values")
    config = {
        **CONFIG,
        "rounds": 15,
        "local": {"loss": "mse", "lr": 0.1, "epochs": 3},
        "model": {"kind": "mlp", "hidden": [16]},
    }
    run = library.run(config, data=data, out=tmp_path / "run").folder
    frame = library.predict(run, x)
    assert list(frame.columns) == ["row", "prediction"]
    error = np.abs(frame["prediction"].to_numpy() - y)
    assert error.mean() < 10  # the deviation of y is 50
    assert 900 < frame["prediction"].mean() < 1100


def save_images(folder: Path, images: np.ndarray, labels: list[str]) -> list[str]:
    names = []
    for i, (pixels, label) in enumerate(zip(images, labels, strict=True)):
        path = folder / label / f"{i:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(path)
        names.append(f"{label}/{i:03}.png")
    return names


def test_images_from_a_folder_a_file_and_parquet(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    images = rng.integers(0, 256, (40, 6, 5, 3), dtype=np.uint8)
    labels = ["cat" if i % 2 else "dog" for i in range(40)]
    images[1::2] //= 2
    save_images(tmp_path / "train", images, labels)
    data = {"kind": "folder", "path": str(tmp_path / "train"), "cache": None}
    run = library.run({**CONFIG, "data": data}, out=tmp_path / "run").folder
    shutil.rmtree(tmp_path / "train")
    names = save_images(tmp_path / "further" / "deep", images[:7], labels[:7])
    (tmp_path / "further" / "notes.txt").write_text("no image")
    found = library.predict(run, tmp_path / "further")
    assert list(found["file"]) == sorted(f"deep/{name}" for name in names)
    assert list(found.columns) == ["file", "prediction", "confidence", "p:cat", "p:dog"]
    by_name = found.set_index("file")
    plain = library.predict(run, images[:7])
    for row, name in enumerate(names):
        assert by_name.loc[f"deep/{name}", "p:cat"] == pytest.approx(plain.loc[row, "p:cat"], abs=1e-6)
    one = library.predict(run, tmp_path / "further" / "deep" / names[0])
    assert list(one["file"]) == ["000.png"]
    listed = library.predict(run, [tmp_path / "further" / "deep" / name for name in names[:2]])
    assert len(listed) == 2
    encoded = [(tmp_path / "further" / "deep" / name).read_bytes() for name in names]
    table = pd.DataFrame({"id": range(7), "picture": [{"bytes": b, "path": None} for b in encoded], "raw": encoded})
    table.to_parquet(tmp_path / "further.parquet")
    packed = library.predict(run, tmp_path / "further.parquet", column="picture")
    pd.testing.assert_frame_equal(packed, plain)
    pd.testing.assert_frame_equal(library.predict(run, tmp_path / "further.parquet", column="raw"), plain)
    with pytest.raises(DataError, match=r"\['picture', 'raw'\].*--column"):
        library.predict(run, tmp_path / "further.parquet")
    with pytest.raises(DataError, match="no column 'id' with encoded images"):
        library.predict(run, tmp_path / "further.parquet", column="id")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no image in it"):
        library.predict(run, tmp_path / "empty")
    Image.fromarray(images[0, :3, :3]).save(tmp_path / "empty" / "tiny.png")
    with pytest.raises(DataError, match=r"tiny\.png.*3x3"):
        library.predict(run, tmp_path / "empty")


def grey_folder(path: Path, seed: int = 5) -> np.ndarray:
    """Grey images of two classes, which decode to the same pixels as ``L`` and as grey ``RGB``."""
    images = np.random.default_rng(seed).integers(0, 256, (20, 4, 4, 1), dtype=np.uint8)
    images[1::2] //= 2
    save_images(path, images, ["cat" if i % 2 else "dog" for i in range(20)])
    return images


def test_colours_are_no_rows_of_a_model_of_grey_images_unless_the_rule_made_them_grey(tmp_path: Path) -> None:
    images = grey_folder(tmp_path / "train")
    colours = np.random.default_rng(6).integers(0, 256, (3, 4, 4, 3), dtype=np.uint8)
    save_images(tmp_path / "colours", colours, ["x"] * 3)
    save_images(tmp_path / "grey", images[:3], ["x"] * 3)
    data = {"kind": "folder", "path": str(tmp_path / "train"), "cache": None}
    as_they_are = library.run({**CONFIG, "data": data}, out=tmp_path / "a").folder
    declared = library.run({**CONFIG, "data": {**data, "channels": 1}}, out=tmp_path / "b").folder
    with pytest.raises(DataError, match=r"x/000\.png: an image with colours, .* train with data\.channels: 1"):
        library.predict(as_they_are, tmp_path / "colours")
    assert len(library.predict(declared, tmp_path / "colours")) == 3
    of_grey = [library.predict(run, tmp_path / "grey") for run in (as_they_are, declared)]
    pd.testing.assert_frame_equal(*of_grey)
    # The other way round grey images among colours were repeated in training, and are here.
    save_images(tmp_path / "train", colours, ["cat"] * 3)
    mixed = library.run({**CONFIG, "data": data}, out=tmp_path / "c").folder
    assert len(library.predict(mixed, tmp_path / "grey")) == 3


@pytest.mark.parametrize("unreadable", ["error", "skip"])
def test_images_that_cannot_be_read_are_treated_as_in_training(tmp_path: Path, shoal: Shoal, unreadable: str) -> None:
    images = grey_folder(tmp_path / "train")
    data = {"kind": "folder", "path": str(tmp_path / "train"), "cache": None, "unreadable": unreadable}
    run = library.run({**CONFIG, "data": data}, out=tmp_path / "run").folder
    save_images(tmp_path / "further", images[:4], ["x"] * 4)
    whole = library.predict(run, tmp_path / "further")
    good = [(tmp_path / "further" / "x" / f"{i:03}.png").read_bytes() for i in range(4)]
    (tmp_path / "further" / "x" / "001.png").write_bytes(good[1][:40])
    pd.DataFrame({"image": [good[0], b"no image", None, good[3]]}).to_parquet(tmp_path / "packed.parquet")
    if unreadable == "error":
        with pytest.raises(DataError, match=r"^x/001\.png: no image that pillow can read"):
            library.predict(run, tmp_path / "further")
        with pytest.raises(DataError, match=r"^row 1: no image"):
            library.predict(run, tmp_path / "packed.parquet")
        return
    found = library.predict(run, tmp_path / "further")
    assert list(found["file"]) == ["x/000.png", "x/002.png", "x/003.png"]
    pd.testing.assert_frame_equal(found, whole.drop(index=1).reset_index(drop=True), atol=1e-6)
    note = "1 of 4 images cannot be read and are left out: x/001.png"
    assert found.attrs["notes"] == [note]
    assert f"note: {note}\n" in shoal("predict", str(run), str(tmp_path / "further")).out
    packed = library.predict(run, tmp_path / "packed.parquet")
    assert list(packed["row"]) == [0, 3]  # the numbers of the rows in the file
    assert packed.attrs["notes"] == ["2 of 4 images cannot be read and are left out: row 1, row 2"]
    with pytest.raises(DataError, match=r"none of 1 images can be read; the first: 001\.png: no image"):
        library.predict(run, tmp_path / "further" / "x" / "001.png")


def test_what_to_do_with_a_table_that_does_not_fit_is_said_of_the_rows_not_of_the_run(tmp_path: Path) -> None:
    rows = {"size": [1.0, 5.0] * 20, "kind": ["a", "b"] * 20, "label": ["low", "high"] * 20}
    pd.DataFrame(rows).to_csv(tmp_path / "rows.csv", index=False)
    rules = {"missing_category": "error", "unseen": "error"}
    data = {"kind": "table", "path": str(tmp_path / "rows.csv"), "label": "label", **rules}
    run = library.run({**CONFIG, "data": data}, out=tmp_path / "run").folder
    for changes, message in (
        ({"size": [None, 5.0]}, r"'size': 1 of 2 rows have no value, .* row 1; fill them in, or leave those rows out"),
        ({"size": ["1,5", "5"]}, r"'size': 1 of 2 values are no numbers, such as '1,5' .* with a decimal point"),
        ({"kind": [None, "b"]}, r"'kind': 1 of 2 rows have no category, .* fill them in, or leave those rows out"),
        ({"kind": ["c", "b"]}, r"'kind': 1 of 2 rows have a category that no training row has, .*; leave them out"),
    ):
        with pytest.raises(DataError, match=message) as caught:
            library.predict(run, pd.DataFrame({"size": [1.0, 5.0], "kind": ["a", "b"], **changes}))
        assert "set data." not in str(caught.value)
        assert "data.categorical" not in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros((2, 9, 8), np.uint8), r"uint8 images of the shape \[rows, 8, 8, 1\].*got the shape \(2, 9, 8\)"),
        (np.full((2, 8, 8), 17), "has the value 17.*0 to 16"),
        (np.full((2, 8, 8), 0.5), "whole numbers"),
        (np.full((2, 8, 8), -1), "whole numbers"),
        (np.full((2, 8, 8), np.nan), "whole numbers"),
        (np.array([["a"]]), "needs numbers"),
        ([[1], [1, 2]], "do not make an array"),
    ],
)
def test_rows_that_do_not_fit_are_explained(digits: Path, rows: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        library.predict(digits, rows)


def test_files_that_do_not_fit_are_explained(digits: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    (tmp_path / "rows.csv").write_text("a\n1\n")
    for name, message in (("objects.npy", "cannot be read"), ("rows.csv", "an .npy file"), ("no.npy", "there is no")):
        with pytest.raises(DataError, match=message):
            library.predict(digits, tmp_path / name)
