"""What all methods without a server share: mixing, who can be met, servers and learners of each client's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gossip_lab import Run, built, data_of, descended, flat, forward, mean, play, weights_of

from shoal.bank import Bank, Entry, Key
from shoal.errors import ConfigError
from shoal.learners.proximal import Proximal
from shoal.messages import Client, Group, Part, Participant
from shoal.randomness import Moment
from shoal.requests import Served

KINDS = ["local", "random", "dac", "hast", "pens", "oracle"]
CLUSTERS = {"clusters": [0, 1, 0, 1, 0]}
EQUAL = {"sizes": [12] * 5}
SIZES = [9, 17, 6, 13, 21]


def settings(kind: str, **more: Any) -> dict[str, Any]:
    """Every method, with few contacts."""
    few = {"local": {}, "pens": {"drawn_peers": 3, "best": 1, "selection_rounds": 2, "contacts": 2}}
    return {"kind": kind, **few.get(kind, {"contacts": 2}), **more}


def drawn(bank: Bank, run: Run, round: int, seats: list[int]) -> dict[int, dict[str, list[int]]]:
    given = run.setup.method.assign(bank, Moment(0, round), [Participant(c) for c in seats])
    return {assignment.client: dict(assignment.note) for assignment in given}


@pytest.mark.parametrize("kind", KINDS)
def test_the_warm_up_is_local_training_alone(kind: str) -> None:
    run = play(stream=CLUSTERS, method=settings(kind), rounds=0)
    first = weights_of(run.vector(-1, 0))
    for i in range(5):
        np.testing.assert_array_equal(run.vector(-1, i), run.vector(-1, 0))
        expected = descended(first, *data_of(run, i), 2, 0.3)
        np.testing.assert_allclose(run.vector(0, i), flat(expected), rtol=1e-4, atol=1e-5)
        assert run.state(0).bank[f"client/{i}"].weight == SIZES[i]


@pytest.mark.parametrize("kind", ["random", "dac", "hast"])
def test_with_all_peers_and_equal_rows_everyone_gets_one_model(kind: str) -> None:
    """Of HAST the first mix: the classifier is mixed once more, with all again."""
    warm = play(stream=EQUAL, rounds=0).states[-1]
    run = play(stream=EQUAL, rounds=1, method={"kind": kind, "contacts": 4, "finetune": "off"}, local={"lr": 1e-30},
               state=warm)  # fmt: skip
    expected = np.mean([warm.bank[f"client/{i}"].vector.double().numpy() for i in range(5)], axis=0)
    found = [run.states[-1].bank[f"client/{i}"].vector.numpy() for i in range(5)]
    features = slice(0, 25)
    for vector in found:
        assert np.array_equal(vector[features], found[0][features])  # to the bit
        np.testing.assert_allclose(vector[features], expected[features], rtol=1e-5, atol=1e-7)
        if kind != "hast":
            assert np.array_equal(vector, found[0])


def test_random_rounds_are_those_of_a_loop_by_hand() -> None:
    run = play(method=settings("random"), rounds=3)
    models = [weights_of(run.vector(0, i)) for i in range(5)]
    for number in (1, 2, 3):
        given = run.assigned(number)
        assert len({g.keys for g in given.values()}) > 1
        mixes = [mean({k: models[k] for k in [i, *given[i].note["random"]]}, SIZES) for i in range(5)]
        models = [descended(mixes[i], *data_of(run, i), 2, 0.3) for i in range(5)]
        for i in range(5):
            np.testing.assert_allclose(run.vector(number, i), flat(models[i]), rtol=3e-4, atol=3e-5)


def test_local_clients_never_hear_of_each_other() -> None:
    run = play(method={"kind": "local"}, rounds=2)
    other = play(method={"kind": "local"}, rounds=2, stream={"sizes": [12, 20, 9, 16, 7]})
    for i in range(4):
        assert np.array_equal(run.vector(2, i), other.vector(2, i))
    assert sum(line["value"] for line in run.all(metric="total_bytes_down")) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_draws_and_results_do_not_depend_on_the_order_of_clients(kind: str) -> None:
    run = play(stream=CLUSTERS, method=settings(kind), rounds=3)
    if kind != "oracle":  # that is told the truth by the loop
        for round in (1, 3):
            bank = run.state(round - 1).bank
            assert drawn(bank, run, round, [0, 1, 2, 3, 4]) == drawn(bank, run, round, [3, 0, 4, 2, 1])


@pytest.mark.parametrize("kind", ["random", "dac", "hast", "pens"])
def test_a_client_meets_only_neighbours_that_take_part(kind: str) -> None:
    ring = {"topology": {"kind": "ring"}}
    run = play(method=settings(kind, **ring), rounds=2)
    bank = run.state(1).bank
    for i, note in drawn(bank, run, 2, [0, 1, 3, 4]).items():
        met = {*note["random"], *note["similar"]}
        assert met <= ({(i + 1) % 5, (i - 1) % 5} & {0, 1, 3, 4})
    away = play(method=settings(kind, offline="reachable", **ring), rounds=1)
    notes = drawn(away.state(0).bank, away, 1, [0])
    assert {*notes[0]["random"], *notes[0]["similar"]} == {1, 4}


@pytest.mark.parametrize("kind", ["random", "dac", "hast", "pens"])
def test_an_isolated_client_trains_alone(kind: str) -> None:
    lone = {"topology": {"kind": "listed", "edges": [[0, 1], [1, 2], [2, 4]]}, "finetune": "off"}
    run = play(method=settings(kind, **lone), rounds=2)
    alone = play(method={"kind": "local"}, rounds=2)
    assert np.array_equal(run.vector(2, 3), alone.vector(2, 3))
    assert not np.array_equal(run.vector(2, 0), alone.vector(2, 0))


@pytest.mark.parametrize("kind", KINDS)
def test_partial_participation_stragglers_and_crashes(kind: str) -> None:
    part = {"count": 3, "straggler_probability": 0.3, "crash_probability": 0.3}
    run = play(stream=CLUSTERS, method=settings(kind), participation=part, rounds=6, clean=False)
    assert run.all(record="straggler")
    assert all("crash" in line["reason"] for line in run.all(record="failed"))
    assert not run.all(record="rejected")


def test_the_oracle_meets_its_cluster_and_says_that_it_saw_the_truth() -> None:
    run = play(stream=CLUSTERS, method=settings("oracle", contacts=9), rounds=1)
    one = play(stream=CLUSTERS, method=settings("oracle", contacts=9), rounds=1, local={"lr": 1e-30},
               state=run.state(0))  # fmt: skip
    for cluster in ([0, 2, 4], [1, 3]):
        models = {i: weights_of(run.vector(0, i)) for i in cluster}
        for i in cluster:
            vector = one.states[-1].bank[f"client/{i}"].vector.numpy()
            np.testing.assert_allclose(vector, flat(mean(models, SIZES)), rtol=1e-4, atol=1e-6)
    purity = {line["drawn"]: line["value"] for line in run.all(metric="contact_purity")}
    assert purity == {"truth": 1.0, "chance": pytest.approx((3 * 2 / 4 + 2 * 1 / 4) / 5)}
    assert any("oracle" in note for note in run.setup.notes)
    assert not any("oracle" in note for note in built().notes)


def test_the_oracle_needs_a_stream_that_has_the_truth() -> None:
    with pytest.raises(ConfigError, match=r"told the true cluster or concept or domain or task .* has nothing"):
        built(method=settings("oracle"))
    with pytest.raises(ConfigError, match=r"told the true colour .* has \['cluster'\]"):
        built(stream=CLUSTERS, method=settings("oracle", by="colour"))


def test_nobody_else_is_told_the_truth() -> None:
    run = play(stream=CLUSTERS, method=settings("dac"), rounds=0)
    assert run.setup.method.needs_truth == ()
    assert Participant(0).truth is None


@pytest.mark.parametrize(("finetune", "held", "said"), [("if_better", 0, True), ("if_better", 3, False),
                                                        ("always", 0, False), ("off", 0, False)])  # fmt: skip
def test_a_fine_tuning_that_is_never_tried_is_said(finetune: str, held: int, said: bool) -> None:
    notes = built(method=settings("random", finetune=finetune), stream={"held": held}).notes
    wanted = ["5 of 5 clients hold no validation rows in round 1: what the method judges on them is left out "
              "(finetune: if_better) (see stream.validation)"]  # fmt: skip
    assert list(notes) == (wanted if said else [])


def test_models_start_the_same_or_each_on_its_own() -> None:
    own = play(method=settings("random", initial="own"), rounds=0)
    assert len({own.vector(-1, i).tobytes() for i in range(5)}) == 5


def stepped(kind: str, x: np.ndarray, delta: np.ndarray, kept: dict[str, Any]) -> np.ndarray:
    """A server's step from x, by the papers' formulas; ``kept`` are the client's moments."""
    if kind == "sgd":
        return x + 0.5 * delta
    if kind == "momentum":
        kept["m"] = 0.5 * kept.get("m", 0) + 0.5 * delta
        return x + 0.8 * kept["m"]
    kept["m"] = 0.6 * kept.get("m", 0) + 0.4 * delta
    kept["v"] = 0.9 * kept.get("v", 0.05**2) + 0.1 * delta**2
    return x + 0.2 * kept["m"] / (np.sqrt(kept["v"]) + 0.05)


SERVERS = {
    "sgd": {"lr": 0.5},
    "momentum": {"lr": 0.8, "beta": 0.5},
    "adam": {"lr": 0.2, "beta1": 0.6, "beta2": 0.9, "tau": 0.05},
}


@pytest.mark.parametrize("kind", SERVERS)
def test_the_server_steps_from_the_mixed_model_along_the_training(kind: str) -> None:
    """The warm-up and two rounds by hand: Delta is the trained model minus the mix, and the step begins at the mix."""
    run = play(method={**settings("random"), "server": {"kind": kind, **SERVERS[kind]}}, rounds=2)
    models = [run.vector(-1, i) for i in range(5)]
    kept: list[dict[str, Any]] = [{} for _ in range(5)]
    for number in (0, 1, 2):
        mixes = models
        if number:
            given, known = run.assigned(number), [weights_of(model) for model in models]
            mixes = [flat(mean({k: known[k] for k in [i, *given[i].note["random"]]}, SIZES)) for i in range(5)]
            assert all(np.abs(mixes[i] - models[i]).max() > 1e-3 for i in range(5))
        trained = [flat(descended(weights_of(mixes[i]), *data_of(run, i), 2, 0.3)) for i in range(5)]
        models = [stepped(kind, mixes[i], trained[i] - mixes[i], kept[i]) for i in range(5)]
        for i in range(5):
            np.testing.assert_allclose(run.vector(number, i), models[i], rtol=1e-3, atol=1e-5)


def test_a_base_is_where_the_step_of_the_one_answer_begins() -> None:
    method = built(method={**settings("random"), "server": {"kind": "momentum", "beta": 0.5}}).method
    old = Entry(torch.tensor([9.0, 9.0]), server={"m": torch.tensor([4.0, -2.0])})
    part = Part(torch.tensor([3.0, 2.0]), base=torch.tensor([1.0, 4.0]))
    # m = (4, -2) / 2 + (2, -2) / 2.
    new = method.merge_entry("client/0", old, Group((part,), (2.0,)), Moment(0, 1))
    assert new.server["m"].tolist() == [3.0, -2.0]
    assert new.vector.tolist() == [4.0, 2.0]
    assert new.server["step/change"].tolist() == [2.0] * 5
    plain = built().method.merge_entry("client/0", old, Group((part,), (2.0,)), Moment(0, 1))
    assert plain.vector.tolist() == [3.0, 2.0]
    both = Group((Part(torch.zeros(2), client=4), replace(part, client=7)), (1.0, 1.0))
    with pytest.raises(ValueError, match=r"entry 'client/0' has 2 answers, and those of clients \[7\] have a base"):
        method.merge_entry("client/0", old, both, Moment(0, 1))
    assert part.bytes == 16


def test_a_momentum_is_each_clients_own() -> None:
    run = play(method={**settings("random"), "server": {"kind": "momentum", "beta": 0.5}}, rounds=1)
    warm, start = run.state(0), run.state(-1)
    for i in range(5):
        m = warm.bank[f"client/{i}"].server["m"].double().numpy()
        np.testing.assert_allclose(run.vector(0, i), start.bank[f"client/{i}"].vector.numpy() + m, rtol=1e-4, atol=1e-6)
    assert len({run.state(1).bank[f"client/{i}"].server["m"].numpy().tobytes() for i in range(5)}) == 5


@pytest.mark.parametrize("name", ["median", "uniform"])
def test_other_means_mix(name: str) -> None:
    warm = play(rounds=0).states[-1]
    method = {**settings("random", contacts=4), "mean": {"kind": name}}
    run = play(rounds=1, method=method, local={"lr": 1e-30}, state=warm)
    models = np.stack([warm.bank[f"client/{i}"].vector.double().numpy() for i in range(5)])
    expected = np.median(models, axis=0) if name == "median" else models.mean(0)
    for i in range(5):
        vector = run.states[-1].bank[f"client/{i}"].vector.numpy()
        np.testing.assert_allclose(vector, expected, rtol=1e-4, atol=1e-6)


def test_a_clipped_mean_bounds_the_mix_and_not_the_training() -> None:
    method = {**settings("random", contacts=4), "mean": {"kind": "clipped", "bound": 1e-9}}
    run = play(method=method, rounds=2)
    alone = play(method={"kind": "local"}, rounds=2)
    for i in range(5):
        np.testing.assert_allclose(run.vector(2, i), alone.vector(2, i), rtol=1e-4, atol=1e-6)


def test_means_and_learners_that_need_a_server_are_refused() -> None:
    with pytest.raises(ConfigError, match="mean fednova divides by local steps, and peers mix models"):
        built(method={**settings("random"), "mean": "fednova"})
    # SCAFFOLD's c would be a fifth of c_i, and take four fifths of every gradient away.
    for learner in ("scaffold", "svrg", {"kind": "svrg", "anchor": "global"}):
        with pytest.raises(ConfigError, match="joins numbers of all clients on a server"):
            built(method=settings("hast"), local={"learner": learner})


class Counting(Proximal):
    """A learner with numbers of its own, at the client and in the entry."""

    def fit(self, key: Key, start: Served, entry: Entry, client: Client, **request: Any) -> Any:
        part, _ = yield from super().fit(key, start, entry, client, **request)
        before = client.state.get("counting/fits", 0)
        assert isinstance(before, int)
        return part, {"counting/fits": before + 1}

    def extra(self, key: Key, old: Entry, new: Entry, group: Group, when: Moment) -> dict[str, torch.Tensor | None]:
        return {"counting/merges": old.extra.get("counting/merges", torch.zeros(1)) + 1}


@pytest.mark.parametrize(
    "learner",
    [{"kind": "svrg", "anchor": "local"}, {"kind": "proximal", "mu": 1.0}, {"kind": "test_gossip:Counting", "mu": 1.0}],
)
def test_learners_go_with_it(learner: Any) -> None:
    changes: Any = {"lr": 0.1, "epochs": 3, "batch_size": 4}
    run = play(method=settings("hast"), local={"learner": learner, **changes}, rounds=2)
    plain = play(method=settings("hast"), local=changes, rounds=2)
    assert not np.array_equal(run.vector(2, 0), plain.vector(2, 0))
    if learner["kind"] == "test_gossip:Counting":  # beside the method's own numbers; the warm-up counts, too
        extra, state = run.state(2).bank["client/0"].extra, run.state(2).clients[0]
        assert set(extra) == {"counting/merges", "gossip/similarities"}
        assert (extra["counting/merges"].tolist(), state["counting/fits"]) == ([3.0], 3)
        assert "gossip/contacted/client/0" in state


@pytest.mark.parametrize(("mu", "moves"), [(0.0, True), (1e9, False)])
def test_the_fine_tuning_has_the_terms_of_the_learner(mu: float, moves: bool) -> None:
    local = {"learner": {"kind": "proximal", "mu": mu, "implicit": True}}
    on, off = (play(method=settings("hast", finetune=how), local=local, rounds=1) for how in ("always", "off"))
    for i in range(5):
        assert (np.abs(on.vector(1, i) - off.vector(1, i)).max() > 1e-3) == moves


class Remembering(Proximal):
    """A learner whose private number is the purpose of its last fit that counts."""

    def fit(self, key: Key, start: Served, entry: Entry, client: Client, **request: Any) -> Any:
        part, _ = yield from super().fit(key, start, entry, client, **request)
        return part, {"last": request.get("purpose", "fit")}


def test_the_learners_private_state_is_that_of_the_fine_tuning_where_it_is_kept() -> None:
    local = {"learner": {"kind": "test_gossip:Remembering", "mu": 0.1}}
    runs = {how: play(method=settings("hast", finetune=how), local=local, rounds=1) for how in ("off", "if_better")}
    kept = [not np.array_equal(runs["off"].vector(1, i), runs["if_better"].vector(1, i)) for i in range(5)]
    assert any(kept)
    assert not all(kept)
    for i in range(5):
        assert runs["off"].state(1).clients[i]["last"] == "fit"
        assert runs["if_better"].state(1).clients[i]["last"] == ("finetune" if kept[i] else "fit")
        assert "gossip/contacted/client/0" in runs["if_better"].state(1).clients[0]


def test_probes_are_measured_before_the_contacts_once_mixed_and_trained() -> None:
    run = play(method=settings("random", probes=True), rounds=1)
    lines = [line for line in run.all(metric="probe") if line["round"] == 1 and line["client"] == 2]
    assert [line["label"] for line in lines] == ["before", "mixed", "trained"]
    x, y = data_of(run, 2, "test")
    mixed = mean({k: weights_of(run.vector(0, k)) for k in [2, *run.assigned(1)[2].note["random"]]}, SIZES)
    models = [weights_of(run.vector(0, 2)), mixed, weights_of(run.vector(1, 2))]
    for line, model in zip(lines, models, strict=True):
        assert line["loss"] == pytest.approx(forward(model, x, y)[0], rel=1e-3)
    without = play(method=settings("random"), rounds=1)
    assert not without.all(metric="probe")
    assert np.array_equal(run.vector(1, 2), without.vector(1, 2))


def test_a_model_per_task_is_mixed_with_those_of_the_same_task() -> None:
    """Client i is at task (i + round) % 2: in round 1 clients 1 and 3 are at task 0, which 0, 2 and 4 have trained."""
    method = {"kind": "random", "contacts": 4, "per": "task"}
    stream = {"tasks": 2}
    run = play(stream=stream, method=method, rounds=1)
    bank = run.state(0).bank
    assert set(bank.entries) == {f"client/{i}/task/{t}" for i in range(5) for t in range(2)}
    frozen = play(stream=stream, method=method, rounds=1, local={"lr": 1e-30}, state=run.state(0))
    # The warm-up had the rows and tasks of round 1, so who trained task 0 then trains it now.
    who = {0: [1, 3], 1: [0, 2, 4]}
    for task, clients in who.items():
        trained = [bank[f"client/{i}/task/{task}"] for i in clients]
        assert [entry.weight for entry in trained] == [SIZES[i] for i in clients]
        others = [bank[f"client/{i}/task/{task}"].weight for i in range(5) if i not in clients]
        assert not any(others)  # never trained: they count for nothing
        expected = np.average([e.vector.double().numpy() for e in trained], axis=0, weights=[e.weight for e in trained])
        for i in clients:
            vector = frozen.states[-1].bank[f"client/{i}/task/{task}"].vector.numpy()
            np.testing.assert_allclose(vector, expected, rtol=1e-4, atol=1e-6)
    assert run.setup.method.candidates(bank, {"task": 1, "client": 2}) == [("client/2/task/1",)]
    with pytest.raises(ConfigError, match="per: 'task' needs a stream with tasks"):
        built(method=method)


def test_a_round_changes_entries_and_states_of_participants_alone() -> None:
    run = play(method=settings("hast"), participation={"count": 2}, rounds=1)
    (record,) = [line for line in run.all(record="round") if line["round"] == 1]
    for i in range(5):
        same = torch.equal(run.state(0).bank[f"client/{i}"].vector, run.state(1).bank[f"client/{i}"].vector)
        assert same == (i not in record["participants"])
