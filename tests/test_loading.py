"""Configurations: overrides, variants and seeds, and what is said about bad ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import weights_files

from shoal.errors import ConfigError
from shoal.loading import expand, is_many, load, merged, overridden, parse_overrides, recipes
from shoal.setup import resolve_config

STREAM = {"kind": "static", "clients": 4}


def test_overrides_are_yaml_values_at_dotted_places() -> None:
    changes = parse_overrides(["local.lr=0.1", "seeds=[0, 1]", "method.server=adam", "model.hidden=", "a.b=x=y"])
    assert changes == {
        "local.lr": 0.1,
        "seeds": [0, 1],
        "method.server": "adam",
        "model.hidden": None,
        "a.b": "x=y",
    }
    raw = {"method": "fedavg", "local": {"lr": 1}}
    result = overridden(raw, {"method.server.lr": 0.5, "local.lr": 2, "participation.count": 3})
    assert result == {
        "method": {"kind": "fedavg", "server": {"lr": 0.5}},
        "local": {"lr": 2},
        "participation": {"count": 3},
    }
    assert raw == {"method": "fedavg", "local": {"lr": 1}}
    with pytest.raises(ConfigError, match="key=value"):
        parse_overrides(["local.lr"])
    with pytest.raises(ConfigError, match="has no settings inside"):
        overridden({"rounds": 3}, {"rounds.x": 1})


def test_variants_times_seeds() -> None:
    raw: dict[str, Any] = {
        "name": "n",
        "local": {"lr": 1},
        "seeds": [3, 4],
        "variants": {"a": {"local.lr": 2}, "b": None},
    }
    assert is_many(raw)
    runs = expand(raw)
    assert [str(r.place) for r in runs] == ["a/3", "a/4", "b/3", "b/4"]
    assert [(r.raw["seed"], r.raw["local"]["lr"]) for r in runs] == [(3, 2), (4, 2), (3, 1), (4, 1)]
    assert all("variants" not in r.raw and "seeds" not in r.raw for r in runs)
    (only,) = expand({"name": "n", "seed": 7})
    assert str(only.place) == "n/7"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"seeds": [1, 1]}, "more than once"),
        ({"seeds": "0"}, "list of whole numbers"),
        ({"variants": {"../x": {}}}, "names become folders"),
        ({"variants": ["a"]}, "mapping of names"),
    ],
)
def test_bad_variants_and_seeds(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        expand(raw)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, "stream: this setting is required"),
        ({"stream": STREAM, "round": 3}, "round: no such setting; did you mean 'rounds'"),
        ({"stream": STREAM, "local": {"learning_rate": 1}}, "local.learning_rate: no such setting"),
        ({"stream": STREAM, "local": {"lr": -1}}, "local.lr: .*greater than 0; got -1"),
        ({"stream": STREAM, "method": {"kind": "fedavgg"}}, "did you mean 'fedavg'"),
        ({"stream": STREAM, "method": {"kind": "fedavg", "server": {"kind": "adamm"}}}, "did you mean 'adam'"),
        ({"stream": STREAM, "method": {"kind": "fedavg", "serverr": 1}}, "did you mean 'server'"),
        ({"stream": STREAM, "method": {"kind": "fedavg", "mean": {"kind": "uniform", "x": 1}}}, "method.mean.x"),
        ({"stream": {"kind": "tsaks"}}, "did you mean 'tasks'"),
        ({"stream": {"clients": 3}}, "needs a mapping with a 'kind'"),
        ({"stream": {**STREAM, "partition": {"kind": "dirichlet", "alfa": 1}}}, "did you mean 'alpha'"),
        ({"stream": STREAM, "model": {"kind": "no_module_here:Net"}}, "cannot import"),
        ({"stream": STREAM, "local": {"augment": ["flop"]}}, "did you mean 'flip'"),
        ({"stream": STREAM, "execution": {"device": "cuda:99"}}, "device"),
        ({"stream": STREAM, "execution": {"device": "abacus"}}, "knows no device"),
        ({"stream": STREAM, "name": "a/b"}, "name"),
        ({"stream": STREAM, "local": {"optimizer": "adam", "momentum": 0.9}}, "momentum belongs to"),
        ({"stream": STREAM, "evaluate": {"measures": ["accurazy"]}}, "did you mean 'accuracy'"),
    ],
)
def test_bad_configurations_are_explained(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_config(raw)


def test_a_resolved_configuration_has_every_default_and_resolves_to_itself() -> None:
    config = resolve_config({"stream": STREAM, "method": {"kind": "fedadam", "server": {"lr": 0.3}}})
    assert config.method["kind"] == "fedavg"
    assert config.method["server"]["kind"] == "adam"
    assert config.method["server"]["lr"] == 0.3
    assert config.method["mean"] == {"kind": "weighted"}
    assert config.stream["partition"]["kind"] == "iid"
    assert config.local.learner == {"kind": "plain"}
    again = config.model_dump(mode="json", exclude={"variants", "seeds"})
    assert resolve_config(again).model_dump(mode="json") == config.model_dump(mode="json")


def test_merged_replaces_a_part_of_another_kind() -> None:
    assert merged({"a": {"kind": "x", "n": 1}}, {"a": {"n": 2}}) == {"a": {"kind": "x", "n": 2}}
    assert merged({"a": {"kind": "x", "n": 1}}, {"a": {"kind": "y"}}) == {"a": {"kind": "y"}}


def test_sources(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("rounds: 3\n")
    assert load(path) == {"rounds": 3}
    assert load("quickstart")["name"] == "quickstart"
    for text in ("[1, 2]", "a: [", "a: !!python/object:os.system {}"):
        path.write_text(text)
        with pytest.raises(ConfigError):
            load(path)
    with pytest.raises(ConfigError, match="did you mean 'quickstart'"):
        load("quikstart")
    with pytest.raises(ConfigError, match="shoal resume"):
        load(tmp_path)


@pytest.mark.parametrize("name", sorted(recipes()))
def test_every_recipe_resolves(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = load(name)
    monkeypatch.chdir(tmp_path)
    for file in weights_files(raw):
        Path(file).touch()  # what is in it is looked at later
    assert raw["name"] == name
    assert raw["description"]
    for single in expand(raw):
        resolve_config(single.raw)


def test_a_variant_changes_the_settings_that_it_names_and_no_others() -> None:
    raw = {
        "local": {"lr": 0.1, "epochs": 2, "learner": {"kind": "plain"}},
        "method": {"kind": "fedavg", "per": "task", "server": {"kind": "adam", "lr": 0.3, "tau": 0.1}},
        "model": "mlp",
        "variants": {
            "nested": {"local": {"lr": 0.5}, "method": {"server": {"tau": 0.2}}},
            "dotted": {"method.server": {"lr": 0.7}, "model": {"hidden": [3]}},
            "another": {"method": {"kind": "fedsgd"}, "method.mean": "uniform"},
            "server": {"method": {"server": {"kind": "sgd"}}},
        },
    }
    found = {single.variant: single.raw for single in expand(raw)}
    assert found["nested"]["local"] == {"lr": 0.5, "epochs": 2, "learner": {"kind": "plain"}}
    assert found["nested"]["method"] == {
        "kind": "fedavg",
        "per": "task",
        "server": {"kind": "adam", "lr": 0.3, "tau": 0.2},
    }
    assert found["dotted"]["method"]["server"] == {"kind": "adam", "lr": 0.7, "tau": 0.1}
    assert found["dotted"]["model"] == {"kind": "mlp", "hidden": [3]}
    assert found["another"]["method"] == {"kind": "fedsgd", "mean": "uniform"}
    assert found["server"]["method"] == {"kind": "fedavg", "per": "task", "server": {"kind": "sgd"}}


def test_a_name_becomes_a_folder() -> None:
    for name in ("Zürich-日本", "a", "0.1_x"):
        assert resolve_config({"name": name, "stream": STREAM}).name == name
    for name in ("a/b", "-a", ".", "", "a b"):
        with pytest.raises(ConfigError, match="becomes a folder"):
            resolve_config({"name": name, "stream": STREAM})
    with pytest.raises(ConfigError, match="quote them"):
        resolve_config({"name": False, "stream": STREAM})


def test_an_alias_may_set_another_part_too() -> None:
    stream = {"kind": "tasks", "tasks": 2, "clients": 2}
    short = {"stream": stream, "rounds": 2, "method": "nettailor", "model": {"skips": 2}}
    long = {**short, "method": {"kind": "fedavg", "per": "task"}, "model": {"kind": "nettailor", "skips": 2}}
    assert resolve_config(short) == resolve_config(long)
    with_server = resolve_config({**short, "method": {"kind": "nettailor", "server": "adam"}})
    assert (with_server.method["per"], with_server.method["server"]["kind"]) == ("task", "adam")
    assert with_server.model["kind"] == "nettailor"
    with pytest.raises(ConfigError, match=r"model.kind: method nettailor means model nettailor, too; got 'mlp'"):
        resolve_config({**short, "model": "mlp"})
