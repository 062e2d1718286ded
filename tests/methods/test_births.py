"""Concept Matching with an unknown number of concepts: models that are born, joined and retired."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from clustered_lab import Run, data_of, like, loss, perfect, play

from shoal.clustering.births import columns
from shoal.errors import ConfigError
from shoal.setup import assemble, resolve_config

NINE: dict[str, Any] = {"sizes": [12] * 9}


def method(**more: Any) -> dict[str, Any]:
    return {"kind": "concept-matching", "concepts": "auto", **more}


def claimed(run: Run, round: int = -1) -> list[str]:
    """The models that were trained."""
    bank = run.states[round].bank
    flags: Any = bank.memory["matching/claimed"]
    return [key for key, one in zip(bank.entries, flags.tolist(), strict=True) if one]


def test_a_model_is_born_for_each_concept_as_it_appears() -> None:
    plan = [[0, 1, 0, 1, 0, 1, 0, 1, 0]] * 6 + [[0, 1, 2] * 3] * 6
    run = play(method(), stream={**NINE, "plan": plan}, rounds=12)
    assert run.states[0].bank.entries.keys() == {"concept/0"}
    first, new = run.decided()[0], run.decided()[6]
    assert first["born"] == ["concept/0", "concept/1"]
    assert first["labels"] == [0, 1, 0, 1, 0, 1, 0, 1, 0]
    assert len(new["born"]) == 1
    assert sum(len(told["born"]) for told in run.decided()) == 3
    assert len(claimed(run)) == 3
    assert min(run.accuracies().values()) > 0.8
    # One untrained model is always there for those who find all others bad, and nobody is served by it.
    assert len(run.bank.entries) == 4
    assert {key for (key,) in run.setup.method.candidates(run.bank, {})} == set(claimed(run))


def test_what_it_costs() -> None:
    run = play(method(), stream={**NINE, "plan": [[0, 1, 2] * 3]}, rounds=5)
    for old, lines, asked in zip(run.states, run.lines, run.asked, strict=False):
        models = len(old.bank.entries)
        size = 4 * 12
        told = {line["metric"]: line["value"] for line in lines if "metric" in line}
        assert told["total_bytes_down"] == 9 * models * size
        losses = 4 * models if models > 1 else 0  # one loss of each model
        assert told["total_bytes_up"] == 9 * (size + losses)
        assert all(kinds == (["Evaluate", "Fit"] if models > 1 else ["Fit"]) for kinds in asked.values())


def test_a_missing_concept_bears_nothing_and_its_model_is_left_alone() -> None:
    plan = [[0, 1, 2] * 3] * 6 + [[0, 1, 1] * 3] * 3 + [[0, 1, 2] * 3]
    run = play(method(), stream={**NINE, "plan": plan}, rounds=10)
    owner = run.decided()[5]["models"][2]
    assert len(claimed(run, 6)) == 3
    assert all(state.bank[owner] is run.states[6].bank[owner] for state in run.states[6:10])
    assert run.decided()[9]["models"][2] == owner
    assert not any(told["born"] for told in run.decided()[6:])


def trained(models: dict[str, np.ndarray], untrained: bool = True) -> dict[str, Any]:
    """The memory of a matching in which these models were updated before, and one more was not."""
    count = len(models) + untrained
    flags = [*([True] * len(models)), *([False] * untrained)]
    return {
        "matching/claimed": torch.tensor(flags),
        "matching/usual": torch.full((count,), 2.0, dtype=torch.float64) * torch.tensor(flags),
    }


def twins() -> dict[str, np.ndarray]:
    """Two models of concept 0, one of concept 1."""
    found = {"concept/0": perfect(0, 2.0), "concept/1": perfect(0, 2.0), "concept/2": perfect(1, 2.0)}
    found["concept/1"] = found["concept/1"] + 0.25 * np.random.default_rng(6).normal(size=12)
    return found


def test_two_models_of_one_concept_are_joined_after_as_many_rounds_as_asked_for() -> None:
    parts: dict[str, Any] = {"local": {"lr": 0.01}, "rounds": 4}
    parts["stream"] = {"sizes": [*[20] * 6, 26, 20], "plan": [[0, 0, 1, 0, 0, 0, 0, 1]]}

    def after(**more: Any) -> Run:
        wanted = method(most=3, **more)
        return play(wanted, state=like(wanted, twins(), trained(twins(), untrained=False)), **parts)

    apart = after(agree=99)
    assert all(sorted(told["models"]) == ["concept/0", "concept/1", "concept/2"] for told in apart.decided())
    assert not any(told["joined"] for told in after(agree=1, gap=0.0).decided())
    for agree in (1, 3):
        run = after(agree=agree)
        assert [told["joined"] for told in run.decided()[:agree]] == [{}] * (agree - 1) + [{"concept/1": "concept/0"}]
        assert claimed(run)[:2] == ["concept/0", "concept/2"]
        one, other = (apart.states[agree].bank[key] for key in ("concept/0", "concept/1"))
        expected = (one.weight * one.vector + other.weight * other.vector) / (one.weight + other.weight)
        torch.testing.assert_close(run.states[agree].bank["concept/0"].vector, expected)
        assert one.weight != other.weight
        # Its place is free for an untrained model, which has another number.
        assert run.states[agree].bank.entries.keys() == {"concept/0", "concept/2", "concept/3"}


def test_twins_are_joined_beside_a_model_that_nobody_trained() -> None:
    models = {**twins(), "concept/3": np.zeros(12)}
    parts: dict[str, Any] = {"local": {"lr": 0.01}, "rounds": 3}
    parts["stream"] = {"sizes": [*[20] * 6, 26, 20], "plan": [[0, 0, 1, 0, 0, 0, 0, 1]]}
    for agree in (1, 3):
        wanted = method(most=4, agree=agree)
        run = play(wanted, state=like(wanted, models, trained(twins())), **parts)
        assert [told["joined"] for told in run.decided()[:agree]] == [{}] * (agree - 1) + [{"concept/1": "concept/0"}]


def test_models_that_know_nothing_yet_are_not_joined() -> None:
    """At a small rate the losses of all models stay near those of an untrained one, and near each other's."""
    run = play(method(), stream={**NINE, "plan": [[0, 1, 2] * 3]}, rounds=8, local={"lr": 0.01})
    assert len(run.decided()[0]["born"]) == 3
    assert not any(told["joined"] for told in run.decided())
    assert run.decided()[-1]["labels"] == [0, 1, 2] * 3
    x, y = data_of(run, 0, 8)
    losses = [loss(entry.vector.double().numpy(), x, y) for entry in run.bank.entries.values()]
    assert max(losses) - min(losses) < 0.1  # the gap


def test_different_models_are_not_joined_though_one_is_bad_at_everything() -> None:
    models = {"concept/0": perfect(0, 2.0), "concept/1": perfect(1, 0.3)}
    wanted = method(agree=1, most=2)
    state = like(wanted, models, trained(models, untrained=False))
    run = play(wanted, state=state, stream={"plan": [[0, 1] * 3]}, rounds=2, local={"lr": 0.01})
    assert all(len(told["models"]) == 2 and not told["joined"] for told in run.decided())


def test_the_distance_of_twins_is_that_of_their_clients_losses() -> None:
    parts: dict[str, Any] = {"rounds": 1, "stream": {"sizes": [20] * 8, "plan": [[0, 0, 1, 0, 0, 0, 0, 1]]}}
    wanted = method(most=3)
    run = play(wanted, state=like(wanted, twins(), trained(twins(), untrained=False)), local={"lr": 0.01}, **parts)
    lives: Any = run.bank.memory["births"]
    (told,) = run.decided()
    models = twins()
    assert sorted(told["models"]) == list(models)
    cross = np.zeros((3, 3))
    for j, key in enumerate(models):
        own = [c for c, label in zip(told["clients"], told["labels"], strict=True) if told["models"][label] == key]
        x, y = (np.concatenate(parts) for parts in zip(*(data_of(run, c, 1) for c in own), strict=True))
        cross[:, j] = [loss(w, x, y) for w in models.values()]
        np.testing.assert_allclose(lives["loss"][key], cross[j, j], rtol=1e-5)
    close = {
        f"concept/{i} concept/{j}": 1
        for i, j in ((0, 1), (0, 2), (1, 2))
        if max(cross[i, j] - cross[i, i], cross[j, i] - cross[j, j], 0) < 0.1
    }
    assert lives["close"] == close == {"concept/0 concept/1": 1}


def test_models_that_are_not_used_are_retired_but_for_the_last_one() -> None:
    models = {f"concept/{k}": perfect(k, 2.0) for k in range(3)}
    lives = {"loss": {}, "used": dict.fromkeys(models, 0), "close": {}, "next": 3}
    memory = {**trained(models, untrained=False), "births": lives}
    parts: dict[str, Any] = {"stream": {**NINE, "plan": [[1] * 9]}, "rounds": 5}
    for unused in (3, None):
        wanted = method(unused=unused, least=1.0, most=3)
        run = play(wanted, state=like(wanted, models, memory), **parts)
        retired = [told["retired"] for told in run.decided()]
        assert retired == [[], [], [] if unused is None else ["concept/0", "concept/2"], [], []]
        assert claimed(run) == (list(models) if unused is None else ["concept/1"])
    nobody = play(method(unused=1, most=1), stream={**NINE, "plan": [[0] * 9]}, rounds=3)
    assert claimed(nobody) == ["concept/0"]


def test_private_numbers_of_retired_models_go_with_them() -> None:
    models = {f"concept/{k}": perfect(k, 2.0) for k in range(3)}
    lives = {"loss": {}, "used": dict.fromkeys(models, 0), "close": {}, "next": 3}
    state = like(method(unused=2, least=1.0, most=3), models, {**trained(models, untrained=False), "births": lives})
    local = {"compression": {"kind": "topk", "share": 0.1}, "keep": True, "momentum": 0.5}
    stream = {**NINE, "plan": [[0] * 9, [1] * 9]}
    run = play(method(unused=2, least=1.0, most=3), state=state, stream=stream, rounds=4, local=local)
    told = [line["retired"] for line in run.decided()]
    assert [("concept/0" in keys, "concept/2" in keys) for keys in told] == [
        (False, False),
        (False, True),
        (True, False),
        (False, False),
    ]
    kinds = ("compression", "optimizer")
    both = {f"{kind}/concept/{k}" for kind in kinds for k in (0, 1)}
    for client in range(9):
        names = [set(after.clients[client]) for after in run.states[1:]]
        assert names == [{f"{kind}/concept/0" for kind in kinds}, both, *[{f"{kind}/concept/1" for kind in kinds}] * 2]


def test_there_are_never_more_than_so_many() -> None:
    run = play(method(most=2), stream={**NINE, "plan": [[0, 1, 2] * 3]}, rounds=5)
    assert all(len(state.bank.entries) <= 2 for state in run.states)
    # A cluster that is far away from both, and whose clients lose more than usual.
    models = {"concept/0": perfect(0, 2.0), "concept/1": perfect(1, 2.0)}
    near = {**trained(models, untrained=False), "matching/usual": torch.full((2,), 1e-6, dtype=torch.float64)}
    lives = {"loss": dict.fromkeys(models, 0.1), "used": dict.fromkeys(models, 0), "close": {}, "next": 2}
    for most, fate, refused in ((2, "rejected", 1), (3, "claimed", 0)):
        wanted = method(most=most, least=1.0)
        state = like(wanted, models, {**near, "births": lives})
        (told,) = play(wanted, state=state, stream={"plan": [[2] * 6]}, rounds=1).decided()
        assert (told["fates"], told["refused"]) == ([fate], refused)
        assert told["born"] == ([] if refused else ["concept/2"])


def test_a_cluster_that_is_far_away_is_new_only_if_its_clients_lose_more() -> None:
    """One model, one cluster outside its gate: a concept that moves is rejected, one that is new gets a model."""
    models = {"concept/0": perfect(0, 2.0), "concept/1": np.zeros(12)}
    near = trained({"concept/0": models["concept/0"]})
    near["matching/usual"] = torch.tensor([1e-6, 0.0], dtype=torch.float64)
    for concept, usual, born in ((0, 0.05, 1), (0, 10.0, 0), (1, 0.3, 1)):
        lives = {"loss": {"concept/0": usual}, "used": {"concept/0": 0}, "close": {}, "next": 2}
        state = like(method(), models, {**near, "births": lives})
        run = play(method(least=1.0), state=state, stream={"sizes": [20] * 4, "plan": [[concept] * 4]}, rounds=1)
        (told,) = run.decided()
        assert len(told["born"]) == born
        assert told["fates"] == (["claimed"] if born else ["rejected"])
        if concept == 1:  # they lose less with the untrained model, and train that one
            assert {*told["choices"]} == {"concept/1"}


def test_a_learner_and_moments_start_afresh_with_a_model_that_is_born() -> None:
    plan = [[0] * 9] * 4 + [[0, 1, 2] * 3] * 4
    parts: dict[str, Any] = {"local": {"learner": "scaffold", "lr": 0.3}}
    run = play(method(server="momentum"), stream={**NINE, "plan": plan}, rounds=8, **parts)
    born = [(round, key) for round, told in enumerate(run.decided(), 1) for key in told["born"] if round > 1]
    assert born
    for round, key in born:
        assert "control/c" not in run.states[round].bank[key].extra or key in run.states[round - 1].bank.entries
        assert set(run.states[round].bank[key].server) == {"m", "step/change"}


def test_numbers_of_other_models() -> None:
    past = {"matching/usual": torch.tensor([1.0, 2.0]), "matching/claimed": torch.tensor([True, False]), "births": {}}
    found = columns(past, [1, None, 0, 7])
    assert found["matching/usual"].tolist() == [2.0, 0.0, 1.0, 0.0]
    assert found["matching/claimed"].tolist() == [False, False, True, False]
    assert set(found) == {"matching/usual", "matching/claimed"}
    assert columns(past, [])["matching/usual"].shape == (0,)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"unused": 4}, "most, gap, agree and unused say when models are born"),
        ({"gap": 0.2}, "most, gap, agree and unused say when models are born"),
        ({"clusterer": "dbscan", "number": "fixed"}, "number: fixed, but this clusterer finds the number by itself"),
    ],
)
def test_settings_without_effect_are_refused(settings: dict[str, Any], told: str) -> None:
    method = {"kind": "concept-matching", "concepts": 2, **settings}
    with pytest.raises(ConfigError, match=told):
        assemble(resolve_config({"stream": {"kind": "static", "clients": 4}, "method": method}))
