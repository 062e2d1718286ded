"""IFCA: FedAvg with one model, a numbering that means nothing, models that are left alone, and redrawing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from clustered_lab import built, data_of, descended, like, loss, perfect, play

from shoal.checkpoint import pack
from shoal.errors import ConfigError

ONE_FOR_ALL: list[dict[str, Any]] = [
    {},
    {"local": {"batch_size": 5, "epochs": 2, "learner": "scaffold"}},
    {"participation": {"count": 3}, "local": {"momentum": 0.9}},
]


def method(concepts: int = 3, **more: Any) -> dict[str, Any]:
    return {"kind": "ifca", "concepts": concepts, **more}


@pytest.mark.parametrize("parts", ONE_FOR_ALL)
@pytest.mark.parametrize("server", ["sgd", {"kind": "adam", "lr": 0.1}])
def test_with_one_model_it_is_fedavg(parts: dict[str, Any], server: Any) -> None:
    ours = play(method(1, server=server), rounds=3, **parts)
    theirs = play({"kind": "fedavg", "server": server}, rounds=3, **parts)
    assert torch.equal(ours.bank["concept/0"].vector, theirs.bank["global"].vector)
    assert not torch.equal(ours.bank["concept/0"].vector, ours.states[0].bank["concept/0"].vector)
    assert all(kinds == ["Fit"] for asked in ours.asked for kinds in asked.values())


def test_each_model_is_the_mean_by_rows_of_those_who_chose_it() -> None:
    models = {f"concept/{k}": perfect(k, 2.0) for k in (0, 1, 2)}
    state = like(method(), models, {"ifca/draws": 0, "ifca/settled": 0})
    run = play(method(), state=state, rounds=1, stream={"plan": [[0, 0, 1, 1, 0, 0]]})
    sizes = [12, 20, 16, 12, 20, 16]
    for key in models:
        clients = [c for c in range(6) if min(models, key=lambda k: loss(models[k], *data_of(run, c, 1))) == key]
        if not clients:
            assert run.bank[key] is state.bank[key]
            continue
        vectors = [descended(models[key], *data_of(run, c, 1)) for c in clients]
        expected = np.average(vectors, axis=0, weights=[sizes[c] for c in clients])
        np.testing.assert_allclose(run.bank[key].vector, expected, atol=1e-5)
    assert run.bank["concept/2"] is state.bank["concept/2"]  # of a concept that nobody has


def test_another_numbering_gives_the_same_models_under_other_numbers() -> None:
    memory = {"ifca/draws": 0, "ifca/settled": 0}
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(3, 12))
    order = [2, 0, 1]
    runs = []
    for places in ([0, 1, 2], order):
        state = like(method(), {f"concept/{k}": vectors[place] for k, place in enumerate(places)}, memory)
        runs.append(play(method(), state=state, rounds=4))
    for k, place in enumerate(order):
        assert torch.equal(runs[1].bank[f"concept/{k}"].vector, runs[0].bank[f"concept/{place}"].vector)
    assert runs[0].decided()[-1]["labels"] == runs[1].decided()[-1]["labels"]


def test_models_start_independent_and_the_first_one_is_everybodys() -> None:
    bank = built(method()).method.start()
    assert len({entry.vector.numpy().tobytes() for entry in bank.entries.values()}) == 3
    assert torch.equal(bank["concept/0"].vector, built("fedavg").method.start()["global"].vector)


def test_models_are_drawn_anew_until_each_attracts_its_share() -> None:
    """Of six clients each model needs two: with labels that mean three things, random models seldom do."""
    wanted = method(redraw=1 / 3)
    run = play(wanted, rounds=20)
    told = run.decided()
    redrawn = [line["redrawn"] for line in told if "redrawn" in line]
    assert redrawn[-1] is False
    assert set(redrawn[:-1]) == {True}
    looked = len(redrawn)
    assert 2 < looked < 20
    for round, line in enumerate(told, start=1):
        shares = [line["choices"].count(f"concept/{k}") for k in range(3)]
        if round <= looked:
            assert (min(shares) < 2) == line["redrawn"]
            assert all(kinds == ["Evaluate"] for kinds in run.asked[round - 1].values())
            vectors = [run.states[at].bank["concept/0"].vector for at in (round - 1, round)]
            assert torch.equal(*vectors) != line["redrawn"]
        else:
            assert all(kinds == ["Evaluate", "Fit"] for kinds in run.asked[round - 1].values())
    # A run that goes on from the middle of the search ends in the same models, with any engine.
    for engine in ({"kind": "serial"}, {"kind": "workers", "workers": 2}):
        rest = play(wanted, rounds=20, state=run.states[2], execution=engine)
        assert rest.lines == run.lines[2:]
    pack(run.states[-1].bank.memory, {})  # what a checkpoint can hold


def test_the_search_ends_after_so_many_draws() -> None:
    run = play(method(redraw=1 / 3, redraws=1), rounds=3)
    assert [line.get("redrawn") for line in run.decided()] == [True, False, None]


def test_two_exchanges_after_the_search() -> None:
    anchored = {"local": {"learner": {"kind": "svrg", "anchor": "global"}}}
    run = play(method(2, redraw=0.01, redraws=1), rounds=3, **anchored)
    looked = sum("redrawn" in told for told in run.decided() if told["exchange"] == 0)
    for round, asked in enumerate(run.asked, start=1):
        whole = ["Evaluate", "Evaluate"] if round <= looked else ["Evaluate", "Gradient", "Evaluate", "Fit"]
        assert all(kinds == whole for kinds in asked.values())
    assert looked < 3


@pytest.mark.parametrize("redraw", [0.5, 0.0])
def test_a_share_that_no_draw_can_reach_is_refused(redraw: float) -> None:
    with pytest.raises(ConfigError, match="redraw"):
        built(method(redraw=redraw))
