"""FedDrift: FedAvg while nothing drifts, who owns which rows, births, joins, and the faults of the authors' code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from clustered_lab import Run, built, data_of, descended, like, loss, perfect, play

from shoal.clustering.births import alike, cross_losses, distances
from shoal.errors import ConfigError
from shoal.methods.clustered import joined

NINE: dict[str, Any] = {"sizes": [12] * 9}
STARTED = {"feddrift/born": {"concept/0": -1, "concept/1": -1, "concept/2": -1}}
INFINITE = float("inf")


def method(**more: Any) -> dict[str, Any]:
    return {"kind": "feddrift", "step": 1, "delta": 0.3, **more}


def owners(run: Run, round: int = -1) -> dict[tuple[int, int], str]:
    """The model that each client's rows of a step belong to; each pair has one."""
    table: Any = run.states[round].bank.memory["feddrift/owned"]
    cells = [((int(client), step), key) for client, cells in table.items() for step, key, _ in cells]
    assert len(dict(cells)) == len(cells)
    return dict(cells)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"local": {"batch_size": 5, "epochs": 2, "learner": "scaffold"}, "participation": {"count": 4}},
        {"method": {"server": {"kind": "adam", "lr": 0.1}}},
    ],
)
def test_where_nothing_counts_as_a_drift_it_is_fedavg(parts: dict[str, Any], eager: bool) -> None:
    """On streams whose rows stay, the rows of all steps are those of the present one."""
    rest = {name: value for name, value in parts.items() if name != "method"}
    still = {"stream": {"fresh": False}, "rounds": 4, **rest}
    ours = play(method(delta=INFINITE, eager=eager, **parts.get("method", {})), **still)
    theirs = play({"kind": "fedavg", **parts.get("method", {})}, **still)
    assert torch.equal(ours.bank["concept/0"].vector, theirs.bank["global"].vector)
    assert ours.bank.entries.keys() == {"concept/0"}


def test_where_nothing_counts_as_a_drift_it_is_fedavg_on_the_rows_of_all_steps() -> None:
    plan = [[0, 1, 2, 0, 1, 2], [1, 1, 1, 0, 0, 0], [2, 1, 0, 2, 1, 0]]
    parts: dict[str, Any] = {"rounds": 6, "local": {"batch_size": 7}}
    ours = play(method(delta=INFINITE, step=2), stream={"plan": plan, "lasting": 2}, **parts)
    theirs = play("fedavg", stream={"plan": plan, "lasting": 2, "united": True}, **parts)
    assert torch.equal(ours.bank["concept/0"].vector, theirs.bank["global"].vector)
    present = play(method(delta=INFINITE, step=2, keep_rows=False), stream={"plan": plan, "lasting": 2}, **parts)
    theirs = play("fedavg", stream={"plan": plan, "lasting": 2}, **parts)
    assert torch.equal(present.bank["concept/0"].vector, theirs.bank["global"].vector)
    kept = present.states[-1].clients[0]
    assert [name for name, rows in kept.items() if rows is not None] == ["feddrift/rows/2"]


@pytest.mark.parametrize("eager", [False, True])
def test_one_way_drifts_end_with_two_models(eager: bool) -> None:
    """FedDrift's pattern Y in small: from concept 0 to concept 1 for good, at different times."""
    plan = [[0] * 9, [0] * 8 + [1], [0, 0, 1] * 3, [1] * 9]
    run = play(method(step=4, eager=eager), stream={**NINE, "plan": plan, "lasting": 4}, rounds=16)
    assert len(run.bank.entries) == 2
    owned = owners(run)
    assert len(owned) == 9 * 4
    new = next(key for key in run.bank.entries if key != "concept/0")
    for (client, step), key in owned.items():
        assert key == ["concept/0", new][plan[step][client]]
    assert min(run.accuracies().values()) >= 0.85


def test_a_new_model_is_isolated_for_a_step_and_shared_afterwards() -> None:
    plan = [[0] * 9, [0] * 8 + [1], [0] * 7 + [1] * 2]
    run = play(method(step=3), stream={**NINE, "plan": plan, "lasting": 3}, rounds=9)
    (key,) = run.bank.entries.keys() - {"concept/0"}
    for round in (4, 5, 6):
        sent = {client: set(given.keys) for client, given in run.assigned[round - 1].items()}
        assert all(key not in keys for client, keys in sent.items() if client != 8 or round == 4)
    assert all(key in given.keys for given in run.assigned[6].values())  # the first round of the next step
    assert owners(run)[7, 2] == key
    # A drift in the same step in which nobody else's model is usable gives a model to each.
    plan = [[0] * 9, [0] * 7 + [1] * 2, [0] * 7 + [1] * 2]
    run = play(method(step=3), stream={**NINE, "plan": plan, "lasting": 3}, rounds=9)
    born, later = run.decided()[3], run.decided()[6]
    assert len(born["born"]) == 2
    assert born["drifted"] == [7, 8]
    assert later["joined"] == {born["born"][1]: born["born"][0]}
    assert {owners(run)[c, 2] for c in (7, 8)} == {born["born"][0]}


def test_eager_clients_that_drift_together_share_a_model() -> None:
    plan = [[0] * 9, [0] * 5 + [1] * 2 + [2] * 2]
    run = play(method(step=3, eager=True), stream={**NINE, "plan": plan, "lasting": 3}, rounds=6)
    assert [line["born"] for line in run.decided() if line["born"]] == [["concept/2"]]
    assert {owners(run)[c, 1] for c in (5, 6, 7, 8)} == {"concept/2"}


def test_two_drifts_in_a_row_are_both_found() -> None:
    """The authors' code keeps the score from before the training, and so misses the second one."""
    plan = [[0] * 6, [0] * 5 + [1], [0] * 5 + [2]]
    run = play(method(step=6, delta=0.6), stream={"plan": plan, "lasting": 6}, rounds=18)
    drifted = [line["drifted"] for line in run.decided()]
    assert drifted[6] == [5]
    assert drifted[12] == [5]
    assert len({owners(run)[5, step] for step in range(3)}) == 3


def test_the_own_score_is_that_of_the_end_of_the_step_before() -> None:
    run = play(method(step=3, delta=0.0), stream={"lasting": 3, "plan": [[0, 1, 2] * 2] * 2}, rounds=4)
    model = run.states[3].bank["concept/0"].vector.double().numpy()
    drifted = [
        client for client in range(6) if loss(model, *data_of(run, client, 4)) > loss(model, *data_of(run, client, 1))
    ]
    assert run.decided()[3]["drifted"] == drifted
    assert 0 < len(drifted) < 6


def test_every_model_is_trained_on_its_rows_of_all_steps_and_weighed_by_them() -> None:
    plan = [[0] * 6, [0, 0, 0, 1, 1, 1]]
    run = play(method(step=4), stream={"plan": plan, "lasting": 4}, rounds=6)
    owned = owners(run)
    before = {key: entry.vector.double().numpy() for key, entry in run.states[5].bank.entries.items()}
    assert len(before) > 1
    for key, start in before.items():
        vectors, weights = [], []
        for client in range(6):
            data = [data_of(run, client, round) for step, round in ((0, 4), (1, 6)) if owned[client, step] == key]
            if data:
                x, y = (np.concatenate(parts) for parts in zip(*data, strict=True))
                vectors.append(descended(start, x, y))
                weights.append(len(y))
        np.testing.assert_allclose(run.bank[key].vector, np.average(vectors, axis=0, weights=weights), atol=1e-5)


def test_each_client_may_begin_with_a_model_of_its_own() -> None:
    plan = [[0, 1, 2] * 3, [1, 2, 0] * 3]
    forty: dict[str, Any] = {"sizes": [40] * 9}
    run = play(method(step=6, first="each"), stream={**forty, "plan": plan, "lasting": 6}, rounds=12)
    assert run.decided()[0]["drifted"] == list(range(9))
    assert len(run.states[1].bank.entries) == 10
    assert "concept/0" not in run.bank.entries  # nobody's rows belong to it
    owned = owners(run)
    models = [{owned[c, step] for c in range(9) for step in (0, 1) if plan[step][c] == k} for k in range(3)]
    assert [len(model) for model in models] == [1, 1, 1]
    assert len(run.bank.entries) == len(set.union(*models)) == 3


@pytest.mark.parametrize("born", ["copy", "fresh"])
def test_where_there_is_no_room_a_drift_is_refused_and_said(born: str) -> None:
    plan = [[0] * 6, [0, 0, 0, 1, 1, 1]]
    run = play(method(step=3, most=2, born=born), stream={"plan": plan, "lasting": 3}, rounds=5)
    told = run.decided()[3]
    assert told["drifted"] == [3, 4, 5]
    assert told["refused"] == [4, 5]
    assert len(told["born"]) == 1
    assert len(run.bank.entries) == 2
    assert {owners(run)[c, 1] for c in (4, 5)} == {"concept/0"}
    old = run.states[3].bank["concept/0"].vector.double().numpy()
    x_y = {c: data_of(run, c, 1) for c in range(6)}
    now = {c: data_of(run, c, 4) for c in range(6)}
    vectors, weights = [], []
    for c in range(6):
        if c < 3:  # rows of both steps
            data = tuple(np.concatenate(parts) for parts in zip(now[c], x_y[c], strict=True))
        else:  # the rows of the first step; and those of the second, where the answer was trained from a copy
            data = x_y[c]
            if born == "copy" and c > 3:
                vectors.append(descended(old, *now[c]))
                weights.append(len(now[c][1]))
        vectors.append(descended(old, *data))
        weights.append(len(data[1]))
    np.testing.assert_allclose(
        run.states[4].bank["concept/0"].vector, np.average(vectors, axis=0, weights=weights), atol=1e-5
    )


def test_a_new_model_starts_as_a_copy_of_the_best_or_fresh() -> None:
    models = {f"concept/{k}": perfect(k, 3.0) for k in (0, 1)}
    plan = [[0, 1] * 3, [2] * 6]
    memory = {
        "feddrift/born": {"concept/0": -1, "concept/1": -1},
        "feddrift/owned": {},
    }
    for born in ("copy", "fresh"):
        wanted = method(born=born, eager=True, delta=0.8)
        run = play(wanted, state=like(wanted, models, memory), stream={"plan": plan}, rounds=2)
        assert run.decided()[1]["drifted"] == list(range(6))
        fresh = run.setup.method.start()["concept/0"].vector.double().numpy()
        vectors = []
        for client in range(6):
            x, y = data_of(run, client, 2)
            known = [run.states[1].bank[key].vector.double().numpy() for key in models]
            start = min(known, key=lambda w: loss(w, x, y)) if born == "copy" else fresh
            vectors.append(descended(start, x, y))
        expected = np.average(vectors, axis=0, weights=[12, 20, 16, 12, 20, 16])
        np.testing.assert_allclose(run.bank["concept/2"].vector, expected, atol=1e-5)


def test_accuracy_as_the_score() -> None:
    plan = [[0] * 6, [0] * 5 + [1]]
    for delta, drifted in ((0.4, [5]), (1.0, [])):
        run = play(method(step=6, score="accuracy", delta=delta), stream={"plan": plan, "lasting": 6}, rounds=7)
        assert run.decided()[6]["drifted"] == drifted


def test_a_client_is_served_by_the_model_of_its_rows() -> None:
    run = play(method(step=2), stream={"plan": [[0] * 6, [0, 0, 0, 1, 1, 1]], "lasting": 2}, rounds=4)
    served = run.setup.method
    for client in range(6):
        assert served.candidates(run.bank, {"client": client}) == [(owners(run)[client, 1],)]
    assert len(served.candidates(run.bank, {"concept": 0})) == len(set(owners(run).values()))
    assert served.candidates(run.states[0].bank, {"client": 0}) == [("concept/0",)]


def test_clients_that_come_later_in_a_step_begin_it_then() -> None:
    parts: dict[str, Any] = {"rounds": 8, "participation": {"count": 2}}
    run = play(method(step=4, first="each"), stream={"plan": [[0, 1, 2] * 2, [1, 2, 0] * 2], "lasting": 4}, **parts)
    began: set[tuple[int, int]] = set()
    for round, given in enumerate(run.assigned, start=1):
        for client, assignment in given.items():
            step = (round - 1) // 4
            assert (assignment.note["usable"] is None) == ((client, step) in began)
            began.add((client, step))
    assert owners(run).keys() == began


def test_a_learners_numbers_stay_with_their_model() -> None:
    plan = [[0] * 6, [0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0]]
    scaffold = {"learner": {"kind": "scaffold"}, "lr": 0.3}
    run = play(method(step=6, eager=True), stream={"plan": plan, "lasting": 6}, rounds=18, local=scaffold)
    assert len(run.bank.entries) > 1
    for key, entry in run.bank.entries.items():
        own = [state[f"control/{key}"] for state in run.states[-1].clients.values() if f"control/{key}" in state]
        total = sum((c for c in own if isinstance(c, torch.Tensor)), torch.zeros(12))
        torch.testing.assert_close(total / 6, entry.extra["control/c"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("keep_rows", [True, False])
@pytest.mark.parametrize("lost", [{}, {"feddrift/rows/1": torch.empty(0, dtype=torch.int64)}])
def test_who_has_lost_the_rows_of_the_step_before_fails_in_words(lost: dict[str, Any], keep_rows: bool) -> None:
    plan = [[0] * 6, [0] * 6, [1] * 6]
    parts: dict[str, Any] = {"stream": {"plan": plan, "lasting": 2}}
    wanted = method(step=2, eager=True, keep_rows=keep_rows)
    before = play(wanted, rounds=4, **parts).states[-1]
    broken = replace(before, clients={**before.clients, 3: lost})
    run = play(wanted, state=broken, rounds=5, clean=False, **parts)
    (failed,) = run.told("failed")
    assert failed["client"] == 3
    # The first one that is missing: all are needed where they are trained on, else the last one.
    assert f"client 3 has kept none of time step {0 if keep_rows else 1}" in failed["reason"]
    # The others found what they were trained on, and that the concept is another one.
    assert run.decided()[0]["drifted"] == [0, 1, 2, 4, 5]
    assert play(wanted, state=before, rounds=5, **parts).decided()[0]["drifted"] == list(range(6))


# ---- distances and joins ------------------------------------------------------------------------------------


def test_distances_by_hand() -> None:
    losses = np.array([[1.0, 4.0, 1.5], [2.0, 0.5, 3.0], [0.8, 5.0, 1.0]])
    apart = distances(losses)
    # max(L01 - L00, L10 - L11) = max(3, 1.5); L02 - L00 = .5, L20 - L22 = -.2; L12 - L11 = 2.5, L21 - L22 = 4.
    np.testing.assert_allclose(apart, [[0, 3, 0.5], [3, 0, 4], [0.5, 4, 0]])
    assert (distances(np.full((2, 2), 0.7)) == 0).all()
    assert (distances(np.array([[1.0, 0.2], [0.5, 1.0]])) == 0).all()  # better elsewhere than at home
    assert np.isnan(distances(np.array([[1.0, np.nan], [2.0, np.nan]]))).sum() == 3


def test_cross_losses_are_means_by_rows() -> None:
    rows = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), torch.tensor([9.0, 7.0])]
    np.testing.assert_allclose(cross_losses(rows, [0, 0, 1], [1.0, 3.0, 5.0]), [[2.5, 9.0], [3.5, 7.0]])
    found = cross_losses(rows, [0, None, None], [1.0, 3.0, 5.0])
    np.testing.assert_array_equal(found, [[1.0, np.nan], [2.0, np.nan]])


def test_groups_by_complete_linkage() -> None:
    chain = np.array([[0, 1, 2], [1, 0, 1.5], [2, 1.5, 0]])
    assert alike(chain, 1.0) == [0, 0, 1]
    assert alike(chain, 1.6) == [0, 0, 1]  # single linkage would join all
    assert alike(chain, 2.0) == [0, 0, 0]
    assert alike(chain, INFINITE) == [0, 0, 0]
    assert alike(np.zeros((2, 2)), 0.0) == [0, 0]
    assert alike(np.array([[0, np.nan], [np.nan, 0]]), INFINITE) == [0, 1]
    assert alike(np.zeros((1, 1)), 0.0) == [0]


def test_joined_models_are_the_mean_by_rows_and_identical_ones_themselves() -> None:
    entry = built(method()).method.start()["concept/0"]
    a = entry.new(vector=torch.tensor([0.0, 3.0]), weight=1.0, server={"m": torch.ones(2)}, extra={"c": torch.ones(2)})
    b = entry.new(vector=torch.tensor([4.0, -1.0]), weight=3.0)
    found = joined(a, [a, b])
    assert found.vector.tolist() == [3.0, 0.0]
    assert found.weight == 4.0
    assert found.server is a.server
    assert found.extra is a.extra
    odd = entry.new(weight=0.0)
    assert torch.equal(joined(odd, [odd, odd.new(weight=7.0)]).vector, entry.vector)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"step": 0}, "step"),
        ({"delta": -0.1}, "delta"),
        ({"eager": True, "join": 0.1}, "joins no models"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        built(method(**settings))
    with pytest.raises(ConfigError, match="2 exchanges"):
        built(method(), local={"learner": {"kind": "svrg", "anchor": "global"}})
