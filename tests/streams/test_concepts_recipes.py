"""The recipes of concepts: all variants resolve, the concepts are those of the paper, and a short run on real data."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import shoal
from shoal.data.arrays import from_arrays
from shoal.loading import expand, load, overridden, recipes
from shoal.registry import PARTS, build
from shoal.setup import build_stream, resolve_config
from shoal.streams.concepts import ConceptStream

FASHION = Path("/usr/share/datasets/fashion-mnist")
NAMES = sorted(name for name in recipes() if name.startswith("concepts-"))


@pytest.fixture
def root(real_data: Path, tmp_path: Path) -> Path:
    """A folder with all that the small recipes need."""
    if not FASHION.is_dir():
        pytest.skip(f"{FASHION} is not there: install the package dataset-fashion-mnist")
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("cifar10", "mnist", "pacs"):
        (folder / name).symlink_to(real_data / name)
    (folder / "fashion-mnist").symlink_to(FASHION)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_every_variant_resolves_and_all_meet_the_same_stream(name: str) -> None:
    found = [resolve_config(single.raw) for single in expand(load(name))]
    assert len(found) >= 3
    streams = {yaml.safe_dump({**config.stream, "clients": 0}) for config in found}
    assert len(streams) == 1
    for config in found:
        assert config.local.momentum == 0
        assert config.local.lr_schedule == {"kind": "exponential", "gamma": 0.98, "floor": 0.0}
        assert (config.stream["window"], config.stream["test"], config.stream["validation"]) == (320, 0.2, 0.1)


def test_the_small_ones_share_their_data() -> None:
    small = [load(name) for name in NAMES if name.startswith("concepts-small")]
    assert len(small) == 5
    for raw in small[1:]:
        assert (raw["data"], raw["rounds"]) == (small[0]["data"], small[0]["rounds"])
        assert raw["stream"] == small[0]["stream"]


TABLES = ("clients", "clusterers", "distances", "width")


def test_the_super_ones_share_their_data_and_are_the_papers_own_method() -> None:
    whole = load("concepts-super")
    assert [name for name in NAMES if name.startswith("concepts-super-")] == [f"concepts-super-{t}" for t in TABLES]
    for table in TABLES:
        raw, small = load(f"concepts-super-{table}"), load(f"concepts-small-{table}")
        for part in ("data", "stream", "rounds", "seeds", "local", "evaluate", "model"):
            assert raw[part] == whole[part]
        assert raw["method"] == whole["variants"]["concept-matching-paper"]["method"]
        assert raw["variants"].keys() == small["variants"].keys()
        assert "not tried" in raw["description"].lower()
        assert "concepts-super" in raw["description"]
        for single in expand(raw):
            config = resolve_config(single.raw)
            assert config.method["rows"] is None
            assert config.method["matching"]["start"] == "independent"


@pytest.mark.parametrize("size", ["small", "super"])
def test_a_table_changes_one_thing(size: str) -> None:
    found: dict[str, list[Any]] = {}
    for table in TABLES:
        configs = [
            resolve_config(single.raw) for single in expand(load(f"concepts-{size}-{table}")) if single.seed == 0
        ]
        for config in configs:
            # The first variant of "clients" has the settings of the others.
            method = {**config.method, "clusterer": None, "distance": None, "matching": None}
            assert {**config.model, "width": None} == {**configs[0].model, "width": None}
            found.setdefault("rest", []).append(method)
            found.setdefault(f"clusterer {table}", []).append(config.method["clusterer"]["kind"])
            found.setdefault(f"distance {table}", []).append(config.method["distance"])
            found.setdefault(f"corrected {table}", []).append(config.method["matching"]["size_corrected"])
            found.setdefault(f"clients {table}", []).append(config.stream["clients"])
            found.setdefault(f"width {table}", []).append(config.model["width"])
    assert all(method == found["rest"][0] for method in found["rest"])
    assert found["clients clients"] == [20, 40, 80]
    one = 1.0 if size == "super" else 0.5
    assert found["width width"] == pytest.approx([0.8 * one, one, 1.2 * one])
    assert sorted(found["clusterer clusterers"]) == sorted(PARTS["clusterer"])
    assert found["distance distances"] == ["manhattan", "manhattan", "euclidean", "chebyshev", "minkowski", "cosine"]
    assert found["corrected distances"] == [False, True, False, False, False, False]
    for name, table in (("clusterer", "clusterers"), ("distance", "distances"), ("corrected", "distances"),
                        ("clients", "clients"), ("width", "width")):  # fmt: skip
        for other in TABLES:
            assert other == table or len(set(found[f"{name} {other}"])) == 1


def test_the_small_tables_say_how_they_differ_from_the_paper() -> None:
    for table in TABLES:
        raw = load(f"concepts-small-{table}")
        assert (raw["method"]["matching"], raw["method"]["rows"]) == ({"kind": "paper"}, 64)
        assert "start identical" in " ".join(raw["description"].split())
        assert "64 rows" in " ".join(raw["description"].split())


def test_the_wide_rival_has_as_many_parameters_as_five_models() -> None:
    for name, outputs in (("concepts-small", 37), ("concepts-super", 183)):
        sizes = {}
        for single in expand(load(name)):
            model = dict(resolve_config(single.raw).model)
            if single.variant in ("fedavg", "fedavg-wide") and single.seed == 0:
                own = {key: model[key] for key in ("kind", "width")}
                module = build("model", own, shape=(3, 32, 32), outputs=outputs)
                sizes[single.variant] = sum(p.numel() for p in module.parameters())
        # Twice linear in the width but for heads and inputs.
        assert sizes["fedavg-wide"] / sizes["fedavg"] == pytest.approx(5, rel=0.05)


def test_the_super_set_has_183_labels_in_five_concepts() -> None:
    sizes = {"svhn": 10, "cifar100": 100, "mnist": 10, "fashion_mnist": 10, "notMNIST": 10, "gtsrb": 43}
    raw = load("concepts-super")
    named = [Path(source["name"]).name for source in raw["data"]["sources"]]
    assert named == list(sizes)
    assert [source["expect"]["classes"] for source in raw["data"]["sources"]] == list(sizes.values())
    # A stand-in: 60 rows of each class; those of CIFAR-100 have names, which the hub numbers.
    pairs = [(s, f"{s}:thing{c:02d}" if s == "cifar100" else f"{s}:{c}") for s, n in sizes.items() for c in range(n)]
    sources, labels = zip(*(pair for pair in pairs for _ in range(60)), strict=True)
    x = np.zeros((len(labels), 2), dtype=np.float32)
    data = from_arrays(x, list(labels), x[:2], list(labels[:2]), columns={"source": [*sources, *sources[:2]]})
    s = build_stream(resolve_config(expand(raw)[0].raw), data)
    assert isinstance(s, ConceptStream)
    assert s.outputs == 183
    found = [{data.classes[int(label)] for label in data.labels[s.concept_rows(k).train]} for k in range(5)]
    assert [len(names) for names in found] == [10, 50, 50, 30, 43]
    assert found[1] == {f"cifar100:thing{c:02d}" for c in range(50)}
    assert found[2] == {f"cifar100:thing{c:02d}" for c in range(50, 100)}
    assert found[3] == {f"{source}:{c}" for source in ("mnist", "fashion_mnist", "notMNIST") for c in range(10)}


SHORT = {"rounds": 3, "variants": {}, "seeds": [], "model": {"kind": "cnn"}, "local.epochs": 1, "stream.window": 40}
# As many rows as a test has time for.
FEW = {"cifar10": 800, "mnist": 300, "fashion-mnist": 300, "pacs": 300}


@pytest.mark.parametrize("method", ["fedavg", "concept-matching"])
def test_a_short_run_on_real_images(root: Path, tmp_path: Path, method: str) -> None:
    raw = load("concepts-small")
    sources = [{**source, "limit": FEW[source["path"]], "limit_test": 60} for source in raw["data"]["sources"]]
    own = {} if method == "fedavg" else {"concepts": 5, "rows": 20}
    changes = {**SHORT, "data.sources": sources, "data.root": str(root), "stream.clients": 6,
               "method": {"kind": method, **own}}  # fmt: skip
    result = shoal.run("concepts-small", changes, out=tmp_path / "run")
    problems = result.summary["problems"]
    assert problems["rejected"] == problems["failed"] == problems["skipped"] == 0
    assert set(result.summary["accuracy_by_target"]) == {f"concept={k}" for k in range(5)}
    (header,) = [line for line in shoal.api.RunFolder(result.folder).lines() if line.get("record") == "stream"]
    assert header["concept_names"] == ["vehicles", "animals", "digits", "clothes", "pacs"]
    held = [line["held"] for line in shoal.api.RunFolder(result.folder).lines() if line.get("record") == "round"]
    assert [sum(len(who) for who in line["concept"].values()) for line in held] == [6] * 3


@pytest.mark.long
def test_the_concepts_of_the_small_recipe(root: Path) -> None:
    config = resolve_config(overridden(expand(load("concepts-small"))[0].raw, {"data.root": str(root)}))
    data = build("data", config.data).load()
    s = build_stream(config, data)
    assert isinstance(s, ConceptStream)
    assert data.shape == (3, 32, 32)
    totals = []
    for concept, classes in enumerate((4, 6, 10, 10, 7)):
        uses = s.concept_rows(concept)
        total = len(uses.train) + len(uses.validation) + len(uses.test)
        assert [len(uses.test), len(uses.validation)] == [round(0.2 * total), round(0.1 * total)]
        assert len(data.labels[uses.test].unique()) == classes
        totals.append(total)
    assert totals[2:] == [10_000, 10_000, 9991]
    assert sum(totals[:2]) == 24_000
    # Grey images are padded with black, all three channels alike.
    (row,) = s.concept_rows(2).train[:1]
    image = data.features[row]
    assert image[:2].max() == 0
    assert (image[..., 0] == image[..., 2]).all()
    assert all(len(s.holding(client, 1).train) == 320 for client in range(20))
