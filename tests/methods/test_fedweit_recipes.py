"""The recipes with FedWeIT: what is said to be the same is the same, and what they send by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import resolved

from shoal.loading import load
from shoal.models.decomposed import BASE, Layout
from shoal.models.factory import build_network, without_files
from shoal.parameters import ParameterSpace


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def points(name: str) -> dict[str, int]:
    """How many rates each variant has to choose from."""
    raw = load(name)
    grid = raw["grid"]
    return {variant: len({**grid, **grid.get(variant, {})}["local.lr"]) for variant in raw["variants"]}


def test_fedweit_beside_nettailor_has_its_data_its_backbone_and_its_steps() -> None:
    own, other = resolved("fedweit-pacs-small"), resolved("nettailor-pacs-small")["fedsgd-1"]
    for config in own.values():
        assert (config.data, config.stream, config.rounds) == (other.data, other.stream, other.rounds)
        assert (config.local.steps, config.local.batch_size) == (other.local.steps, other.local.batch_size)
    assert own["nettailor"].model == other.model
    inside = own["fedweit-proxies"].model["network"]
    assert inside == {name: other.model[name] for name in inside}
    assert own["fedweit"].model["network"] == {
        name: value for name, value in own["finetuned"].model.items() if name in own["fedweit"].model["network"]
    }
    assert own["fedweit"].model["network"]["weights"] == other.model["backbone"]["weights"]
    assert "weights" not in {k for k, v in own["fedweit-scratch"].model["network"].items() if v}
    assert set(points("fedweit-pacs-small").values()) == {3}


def test_fedweit_beside_concept_matching_has_its_concepts_as_tasks() -> None:
    own, other = load("fedweit-concepts-small"), load("concepts-small")
    for part in ("data", "rounds", "local", "seeds"):
        assert own[part] == other[part]
    assert own["stream"] == {**other["stream"], "known": True}
    assert own["variants"]["concept-matching"] == other["variants"]["concept-matching"]
    assert set(points("fedweit-concepts-small").values()) == {3}


# Units and the weights of each: two blocks of two convolutions of 3x3 and a shortcut; two and three proxies.
STAGE = [(128, 64 * 9), (128, 128 * 9), (128, 64), (128, 128 * 9), (128, 128 * 9)]
PROXIES = [(128, 64)] * 2 + [(128, 128)]


@pytest.mark.parametrize(("variant", "layers"), [("fedweit", STAGE), ("fedweit-proxies", PROXIES)])
def test_what_a_round_without_parts_sends(variant: str, layers: list[tuple[int, int]]) -> None:
    settings = without_files(resolved("fedweit-pacs-small")[variant].model)
    space = ParameterSpace(build_network(settings, (3, 32, 32), 7))
    layout = Layout.of(space)
    assert sorted(zip(layout.units, layout.weights, strict=True)) == sorted(layers)
    numbers = sum(units * weights for units, weights in layers)
    assert space.size_of((BASE,)) == numbers
    # floor(0.3 * 128) + 1 = 39 of 128 units stay at the client.
    sent = layout.over(layout.kept(torch.rand(sum(layout.units)), 0.3))
    assert int(sent.sum()) * 128 == numbers * 89
