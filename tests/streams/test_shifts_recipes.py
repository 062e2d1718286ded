"""The recipes of shifts on real data: what the papers' settings give, and a run that is cut short."""

from collections import Counter
from pathlib import Path

import pytest

import shoal
from shoal.loading import expand, load, overridden, recipes
from shoal.registry import build
from shoal.setup import build_stream, resolve_config


def built(recipe, real_data, **changes):
    raw = overridden(load(recipe), {"data.root": str(real_data), **changes})
    config = resolve_config(expand(raw)[0].raw)
    return config, build_stream(config, build("data", config.data).load())


@pytest.mark.parametrize("recipe", [name for name in recipes() if name.startswith("hast-")])
def test_every_method_contacts_six_and_dac_is_there_as_released(recipe: str) -> None:
    configs = {single.variant: resolve_config(single.raw) for single in expand(load(recipe))}
    methods = {variant: config.method for variant, config in configs.items()}
    contacts = {v: m["contacts"] * (2 if v == "hast" else 1) for v, m in methods.items() if v != "local"}
    assert set(contacts.values()) == {6}
    first = {variant: methods[variant]["first_contact"] for variant in ("dac", "dac-released")}
    assert first == {"dac": "kept", "dac-released": "overwritten"}
    if "pens" in methods:  # nobody is told when a shift comes
        stream, every = configs["pens"].stream, methods["pens"]["reselect_every"]
        shifts = {step * stream["rounds_per_step"] for step in range(1, stream["steps"])}
        assert not shifts & set(range(every, configs["pens"].rounds, every))


def test_cifar_has_vehicles_and_animals(real_data: Path) -> None:
    config, stream = built("hast-cifar10", real_data, **{"data.limit": 12_000, "data.limit_test": 4_000})
    assert config.rounds == stream.steps * stream.rounds_per_step == 2000
    assert stream.boundaries == tuple(range(200, 2000, 200))
    for round in (1, 200, 201, 2000):
        assert Counter(stream.cluster(c, round) for c in range(50)) == {0: 25, 1: 25}
    labels = [{0, 1, 8, 9}, {3, 4, 5, 7}]
    for client in (0, 49):
        held = stream.holding(client, 500)
        assert (len(held.train), len(held.validation), len(held.test)) == (250, 75, 500)
        wanted = labels[stream.cluster(client, 500)]
        for rows in (held.train, held.validation, held.test):
            assert set(stream.dataset.wanted(rows).tolist()) == wanted


@pytest.mark.parametrize("method", ["hast", "oracle"])
def test_a_short_run_on_cifar(real_data: Path, tmp_path: Path, method: str) -> None:
    changes = {
        "data.root": str(real_data), "data.limit": 3000, "data.limit_test": 1500, "rounds": 4,
        "variants": {}, "seeds": [], "method": {"kind": method, "contacts": 1, "probes": True},
        "local.epochs": 1, "local.lr": 0.001,
        "stream.clients": 4, "stream.steps": 2, "stream.rounds_per_step": 2, "stream.rows": 40, "stream.test_rows": 40,
    }  # fmt: skip
    result = shoal.run("hast-cifar10-small", changes, out=tmp_path / "run")
    problems = result.summary["problems"]
    assert problems["rejected"] == problems["failed"] == problems["skipped"] == 0
    assert set(result.summary["accuracy_by_target"]) == {f"client={c}" for c in range(4)}


@pytest.mark.long
@pytest.mark.parametrize(("recipe", "side"), [("hast-pacs-small", 32), ("hast-pacs", 227)])
def test_pacs_holds_250_of_every_domain_out(real_data: Path, recipe: str, side: int) -> None:
    config, stream = built(recipe, real_data)
    data = stream.dataset
    assert data.shape == (3, side, side)
    codes = data.columns["domain"].codes
    names = stream.cluster_names
    assert sorted(names) == ["art_painting", "cartoon", "photo", "sketch"]
    assert Counter(names[int(code)] for code in codes[data.test]) == dict.fromkeys(names, 250)
    whole = {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}
    assert Counter(names[int(code)] for code in codes[data.train]) == {n: count - 250 for n, count in whole.items()}
    assert set(data.labels[data.test].tolist()) == set(range(7))
    for client in range(20):
        held = stream.holding(client, config.rounds)
        assert (len(held.train), len(held.validation), len(held.test)) == (175, 75, 250)
        for rows in (held.train, held.validation, held.test):
            assert set(codes[rows].tolist()) == {stream.cluster(client, config.rounds)}
