"""Parquet files in the schema of the Hugging Face hub, written here."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import shoal.data
from shoal.errors import ConfigError, DataError

RNG = np.random.default_rng(1)
PIXELS = RNG.integers(0, 256, (12, 4, 5, 3), dtype=np.uint8)


def png(pixels: np.ndarray, kind: str = "PNG", mode: str | None = None) -> bytes:
    file = io.BytesIO()
    image = Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(file, kind)
    return file.getvalue()


def write(path: Path, images: list[bytes], names: dict[str, list[str]] | None = None, **columns: Any) -> None:
    """``image`` as structs; ``names`` of class labels go to the metadata, as ``datasets`` writes them."""
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"image": pa.array([{"bytes": data, "path": None} for data in images], type=kind), **columns})
    features: dict[str, Any] = {"image": {"_type": "Image"}}
    features |= {c: {"names": given, "_type": "ClassLabel"} for c, given in (names or {}).items()}
    meta = json.dumps({"info": {"features": features}}).encode()
    pq.write_table(table.replace_schema_metadata({b"huggingface": meta}), path)


def load(path: Path, **settings):
    return shoal.data.load({"kind": "parquet", "path": str(path), "cache": None, **settings})


def test_train_and_test_files_with_class_names(tmp_path):
    names = {"label": ["cat", "ant", "bee"]}
    write(tmp_path / "train.parquet", [png(p) for p in PIXELS[:7]], names, label=[0, 2, 2, 0, 0, 2, 0])
    write(tmp_path / "test.parquet", [png(p) for p in PIXELS[7:]], names, label=[2, 0, 2, 2, 0])
    data = load(tmp_path, normalize="half")
    assert np.array_equal(data.features.numpy(), PIXELS)
    assert data.classes == ("cat", "ant", "bee")  # in the source's order; ant has no row
    assert data.labels.tolist() == [0, 2, 2, 0, 0, 2, 0, 2, 0, 2, 2, 0]
    assert (data.train.tolist(), data.test.tolist()) == (list(range(7)), list(range(7, 12)))
    expected = (PIXELS[3] / 255 - 0.5) / 0.5
    assert np.allclose(data.batch(torch.tensor([3]))[0].numpy(), expected, atol=1e-6)


def test_shards_in_order_and_plain_bytes(tmp_path):
    # Written in the wrong order; three shards of training rows and one of test rows.
    for shard in (2, 0, 1):
        part = slice(shard * 3, shard * 3 + 3)
        table = pa.table({"img": pa.array([png(p) for p in PIXELS[part]], pa.binary()), "y": ["b", "a", "b"]})
        pq.write_table(table, tmp_path / f"train-0000{shard}-of-00003.parquet")
    table = pa.table({"img": [png(p) for p in PIXELS[9:]], "y": ["a", "c", "a"]})
    pq.write_table(table, tmp_path / "test-00000-of-00001.parquet")
    data = load(tmp_path, image="img", label="y")
    assert np.array_equal(data.features.numpy(), PIXELS)
    assert data.classes == ("a", "b", "c")
    assert data.labels.tolist() == [1, 0, 1] * 3 + [0, 2, 0]


def test_grey_images_have_one_channel_and_colours_among_them_make_three(tmp_path):
    grey = PIXELS[..., 0]
    write(tmp_path / "train.parquet", [png(p) for p in grey], label=list(range(6)) * 2)
    assert np.array_equal(load(tmp_path).features.numpy()[..., 0], grey)
    late = [*(png(p) for p in grey[:8]), png(PIXELS[8]), *(png(p, mode="P") for p in grey[9:])]
    write(tmp_path / "train.parquet", late, label=list(range(6)) * 2)
    features = load(tmp_path).features.numpy()
    assert features.shape == (12, 4, 5, 3)
    assert np.array_equal(features[8], PIXELS[8])
    assert np.array_equal(features[0], np.repeat(grey[0][..., None], 3, axis=-1))
    assert np.array_equal(features[11], np.repeat(grey[11][..., None], 3, axis=-1))


def test_resizing_averages_over_the_footprint(tmp_path):
    # A fine checkerboard: a resize without antialiasing would pick black or white, a proper one grey.
    board = (np.indices((64, 64)).sum(axis=0) % 2 * 255).astype(np.uint8)
    halves = np.zeros((30, 64), dtype=np.uint8)
    halves[:, 32:] = 200
    write(tmp_path / "train.parquet", [png(board), png(halves), png(board)], label=[0, 0, 0])
    features = load(tmp_path, size=8).features[..., 0].int()
    assert features.shape == (3, 8, 8)
    assert (features[0, 1:-1, 1:-1] - 127.5).abs().max() < 10
    assert features[1, :, 0].tolist() == [0] * 8
    assert features[1, :, -1].tolist() == [200] * 8
    with pytest.raises(DataError, match=r"row 1: 30x64 pixels, but row 0 has 64x64; set data\.size"):
        load(tmp_path)


def many(path: Path, rows: int = 120) -> tuple[np.ndarray, np.ndarray]:
    """A file without a test split: 2 labels and 3 domains of different sizes."""
    domain = np.repeat(["zoo", "air", "mid"], [rows // 2, rows // 3, rows // 6])
    label = np.arange(rows) % 4 // 3
    tiny = [png(np.full((1, 1), i, dtype=np.uint8)) for i in range(rows)]
    write(path, tiny, label=label.tolist(), domain=domain.tolist(), site=[5, 3] * (rows // 2))
    return domain, label


def test_the_hold_out_is_stratified_by_label_and_columns(tmp_path):
    domain, label = many(tmp_path / "all.parquet")
    data = load(tmp_path / "all.parquet", columns=["domain", "site"], test=0.25)
    assert data.name == "all"
    assert (len(data.train), len(data.test)) == (90, 30)
    assert sorted([*data.train.tolist(), *data.test.tolist()]) == list(range(120))
    assert data.columns["domain"].names == ("air", "mid", "zoo")
    assert data.columns["site"].names == ("3", "5")
    assert [data.columns["domain"].names[c] for c in data.columns["domain"].codes] == domain.tolist()
    assert [data.columns["site"].names[c] for c in data.columns["site"].codes] == ["5", "3"] * 60
    site = np.arange(120) % 2
    for key in {(d, y, s) for d, y, s in zip(domain, label, site, strict=True)}:
        cell = (domain == key[0]) & (label == key[1]) & (site == key[2])
        # Within one row of the exact share.
        assert abs(cell[data.test.numpy()].sum() - 0.25 * cell.sum()) < 1


def test_a_number_of_test_rows_out_of_every_domain(tmp_path):
    domain, _ = many(tmp_path / "train.parquet")
    data = load(tmp_path, columns=["domain"], test=7, test_by="domain")
    held = domain[data.test.numpy()].tolist()
    assert [held.count(d) for d in ("zoo", "air", "mid")] == [7, 7, 7]
    assert len(load(tmp_path, test=7).test) == 7
    with pytest.raises(ConfigError, match=r"test_by: .* no column 'domain'; name it in data\.columns"):
        load(tmp_path, test_by="domain")
    with pytest.raises(DataError, match="ask for fewer"):
        load(tmp_path, columns=["domain"], test=21, test_by="domain")


def test_the_test_rows_depend_on_the_split_seed_alone(tmp_path):
    many(tmp_path / "train.parquet")
    first = load(tmp_path, split_seed=1)
    assert torch.equal(first.test, load(tmp_path, split_seed=1, limit=10, normalize="unit").test)
    assert not torch.equal(first.test, load(tmp_path, split_seed=2).test)


def test_limits_keep_rows_of_their_own_side(tmp_path):
    many(tmp_path / "train.parquet")
    whole = load(tmp_path)
    data = load(tmp_path, limit=10, limit_test=5)
    assert (len(data.train), len(data.test)) == (10, 5)
    assert set(data.train.tolist()) < set(whole.train.tolist())
    assert set(data.test.tolist()) < set(whole.test.tolist())
    assert data.train.tolist() != whole.train[:10].tolist()
    # More rows contain fewer rows.
    assert set(data.train.tolist()) < set(load(tmp_path, limit=20).train.tolist())
    assert torch.equal(load(tmp_path, limit=10**6).train, whole.train)
    # Normalised by the rows that are left (their pixel is the row's number), not by those that were cut.
    values = data.train.double()
    assert float(data.offset[0] / data.scale[0]) == pytest.approx(-float(values.mean()), rel=1e-5)
    assert float(1 / data.scale[0]) == pytest.approx(float(values.std(correction=0)), rel=1e-5)


def test_errors_say_what_and_where(tmp_path):
    path = tmp_path / "train.parquet"
    with pytest.raises(DataError, match=r"neither train\.parquet nor"):
        load(tmp_path)
    write(path, [png(PIXELS[0])] * 2, label=[0, 1], other=["x", "y"])
    with pytest.raises(DataError, match=r"data\.label: .* no column 'lable'; did you mean 'label'"):
        load(tmp_path, label="lable")
    with pytest.raises(DataError, match=r"data\.image: .* no column 'img'; did you mean 'image'"):
        load(tmp_path, image="img")
    with pytest.raises(DataError, match=r"data\.columns: .* no column 'domain'"):
        load(tmp_path, columns=["domain"])
    with pytest.raises(DataError, match="holds string; it needs encoded images"):
        load(tmp_path, image="other")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="no readable parquet file"):
        load(tmp_path)
    write(path, [png(PIXELS[0]), b"not an image"], label=[0, 1])
    with pytest.raises(DataError, match="row 1: no image that pillow can read"):
        load(tmp_path)
    write(path, [png(PIXELS[0]), png(PIXELS[1])[:-40]], label=[0, 1])
    with pytest.raises(DataError, match="row 1: no image that pillow can read"):
        load(tmp_path)
    write(path, [png(PIXELS[0]), None], label=[0, 1])
    with pytest.raises(DataError, match="row 1: no image bytes"):
        load(tmp_path)
    write(path, [png(PIXELS[0])] * 2, {"label": ["a", "b"]}, label=[0, -1])
    with pytest.raises(DataError, match=r"1 rows have codes outside the 2 names .* such as -1"):
        load(tmp_path)
    write(path, [png(PIXELS[0])] * 2, label=["a", None])
    with pytest.raises(DataError, match="1 of 2 rows have no value"):
        load(tmp_path)
    write(path, [png(PIXELS[0])] * 2, label=[0.5, 1.0])
    with pytest.raises(DataError, match="needs integers or strings; got float64"):
        load(tmp_path)
    write(path, [png(np.full((2, 2), 40000, dtype=np.uint16))] * 2, label=[0, 1])
    with pytest.raises(DataError, match="pixels of more than 8 bits"):
        load(tmp_path)
    write(path, [], label=pa.array([], pa.int64()))
    with pytest.raises(DataError, match="there is no row"):
        load(tmp_path)


def test_files_that_call_their_classes_differently(tmp_path):
    write(tmp_path / "train.parquet", [png(PIXELS[0])] * 2, {"label": ["cat", "ant"]}, label=[0, 1])
    write(tmp_path / "test.parquet", [png(PIXELS[0])] * 2, {"label": ["ant", "cat"]}, label=[0, 1])
    with pytest.raises(DataError, match=r"test\.parquet, column 'label': the classes are called \['ant', 'cat'\]"):
        load(tmp_path)


def test_the_cache_tells_rules_apart_and_keeps_what_was_left_out(tmp_path):
    write(tmp_path / "train.parquet", [png(PIXELS[0]), b"broken", png(PIXELS[1])], label=[0, 1, 0])
    cache = str(tmp_path / "cache")
    first, again = (load(tmp_path, unreadable="skip", cache=cache, test=1) for _ in range(2))
    assert first.notes == again.notes == ("1 of 3 images cannot be read and are left out: row 1",)
    rule = {"convert": False, "fit": None, "unreadable": "skip"}
    assert first.reader == again.reader == {"kind": "image", "size": [4, 5], "channels": 3, **rule}
    assert first.fingerprint == again.fingerprint
    assert torch.equal(first.features, again.features)
    rules = [{"channels": 1}, {"size": [6, 6]}, {"size": 6, "fit": "pad"}, {"size": 6}]
    found = [load(tmp_path, unreadable="skip", cache=cache, test=1, **rule) for rule in rules]
    assert [data.shape for data in found] == [(1, 4, 5), (3, 6, 6), (3, 6, 6), (3, 6, 6)]
    assert found[1].fingerprint == found[3].fingerprint != found[2].fingerprint
    with pytest.raises(DataError, match="row 1: no image"):
        load(tmp_path, cache=cache)


@pytest.mark.parametrize("wrong", [{"channels": 2}, {"channels": True}, {"size": 0}, {"size": [4]}, {"fit": "crop"}])
def test_settings_that_no_rule_has(tmp_path, wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        load(tmp_path, **wrong)
