"""Concept Matching: a round by hand, what is left alone, whose numbers are whose, and what is sent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from clustered_lab import CLASSES, ROWS, Plan, built, data_of, descended, like, loss, perfect, play, same_models

from shoal.errors import ConfigError
from shoal.messages import Assignment, Client
from shoal.methods.base import Program
from shoal.methods.clustered_matching import ConceptMatching
from shoal.methods.clustered_memory import learnt, placed
from shoal.streams.base import Holding

KEYS = tuple(f"concept/{k}" for k in range(CLASSES))
SIZES = [12, 20, 16, 12, 20, 16]


def method(**more: Any) -> dict[str, Any]:
    return {"kind": "concept-matching", "concepts": 3, **more}


class Alike(Plan):
    """All clients hold the rows of the first one."""

    def holding(self, client: int, round: int) -> Holding:
        return super().holding(0, round)


class Failing(ConceptMatching):
    """Client 0 fails in the first round."""

    def train(self, given: Assignment, client: Client) -> Program:
        if client.id == 0 and client.when.round == 1:
            raise RuntimeError("no power")
        return (yield from super().train(given, client))


def good(order: tuple[int, ...] = (0, 1, 2), size: float = 2.0) -> dict[str, np.ndarray]:
    """Models that know a concept each, in this order."""
    return {f"concept/{k}": perfect(concept, size) for k, concept in enumerate(order)}


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_everyone_trains_the_model_with_the_lowest_loss_and_each_is_the_mean_of_its_clients(precision: str) -> None:
    """Under autocast, too, which may keep the first model's weights for all that are measured after it."""
    models = good((2, 0, 1))
    parts: dict[str, Any] = {"rounds": 1, "execution": {"precision": precision}}
    run = play(method(), state=like(method(), models, **parts), **parts)
    after: dict[str, dict[int, np.ndarray]] = {}
    for client in range(6):
        x, y = data_of(run, client, 1)
        losses = {key: loss(w, x, y) for key, w in models.items()}
        assert len({round(value, 1) for value in losses.values()}) > 1
        chosen = min(losses, key=lambda key: losses[key])
        assert run.answered[0][client].parts.keys() == {chosen}
        after.setdefault(chosen, {})[client] = descended(models[chosen], x, y)
    tolerance = 1e-5 if precision == "float32" else 1e-2
    for key, vectors in after.items():
        assert len(vectors) == 2
        expected = np.average(list(vectors.values()), axis=0, weights=[SIZES[c] for c in vectors])
        np.testing.assert_allclose(run.bank[key].vector, expected, atol=tolerance)


class Misled(Plan):
    """The first two rows of every client are of the next concept."""

    def holding(self, client: int, round: int) -> Holding:
        held = super().holding(client, round)
        rows = held.train.clone()
        rows[:2] = (rows[:2] + ROWS) % (CLASSES * ROWS)
        return replace(held, train=rows)


def test_only_the_first_rows_are_compared() -> None:
    """One or two rows mislead everyone; with more the client's own concept has the majority."""
    models = good()
    misled = {"kind": "test_concept_matching:Misled", "sizes": SIZES, "plan": [[0, 1, 2, 0, 1, 2]]}
    for rows, away in ((1, 1), (2, 1), (12, 0), (None, 0)):
        run = play(method(rows=rows), state=like(method(), models, rounds=1), stream=misled, rounds=1)
        for client in range(6):
            assert run.answered[0][client].parts.keys() == {KEYS[(client + away) % 3]}
            x, y = data_of(run, client, 1)
            losses = [loss(w, x[:rows], y[:rows]) for w in models.values()]
            assert int(np.argmin(losses)) == (client + away) % 3


def test_a_model_whose_loss_is_not_finite_is_not_chosen() -> None:
    models = good()
    models["concept/0"] = np.full(12, 1e38)  # overflows in the first product
    run = play(method(), state=like(method(), models, rounds=1), rounds=1, clean=False)
    assert {next(iter(update.parts)) for update in run.answered[0].values()} <= {"concept/1", "concept/2"}


def test_concepts_separate_from_identical_models_and_are_learnt() -> None:
    run = play(method(), rounds=8)
    first, last = run.decided()[0], run.decided()[-1]
    assert set(first["choices"]) == {"concept/0"}
    assert first["fates"].count("claimed") == len(first["fates"])
    assert last["labels"] == [0, 1, 2, 0, 1, 2]
    assert len(set(last["models"])) == 3
    assert min(run.accuracies().values()) >= 0.9
    # A single model for all cannot know more than one answer of three.
    assert np.mean(list(play("fedavg", rounds=8).accuracies().values())) < 0.6


@pytest.mark.parametrize("present", [(0, 1), (1, 2)])
def test_the_model_of_a_concept_that_is_missing_is_left_alone(present: tuple[int, int]) -> None:
    plan = [[0, 1, 2, 0, 1, 2]] * 6 + [[*present] * 3]
    run = play(method(), stream={"plan": plan}, rounds=7)
    owner = dict(zip(run.decided()[5]["labels"], run.decided()[5]["models"], strict=False))
    (missing,) = {0, 1, 2} - set(present)
    key = owner[missing]
    before, after = run.states[-2].bank, run.bank
    assert after[key] is before[key]
    assert sum(after[k] is not before[k] for k in after.entries) == 2


@pytest.mark.parametrize("concepts", [3, "auto"])
@pytest.mark.parametrize("lr", [1.0, 0.25])
def test_the_gate_of_a_late_concept_follows_what_its_clients_did(concepts: Any, lr: float) -> None:
    """They trained from the models of other concepts, and their cluster claims one that is far away from these."""
    models = {"concept/0": perfect(0, 0.1), "concept/1": perfect(1, 0.1), "concept/2": perfect(2, -20.0)}
    known = torch.tensor([True, True, False])
    memory = {"matching/claimed": known, "matching/usual": 2.0 * known.double()}
    wanted = method(concepts=concepts, server={"kind": "sgd", "lr": lr})
    parts: dict[str, Any] = {"rounds": 1, "stream": {"sizes": [20] * 6, "plan": [[0, 1, 2, 0, 1, 2]]}}
    run = play(wanted, state=like(wanted, models, memory, **parts), **parts)
    (told,) = run.decided()
    assert (told["models"], told["fates"]) == (list(models), ["accepted", "accepted", "claimed"])
    choices = [choice for choice, label in zip(told["choices"], told["labels"], strict=True) if label == 2]
    assert "concept/2" not in choices
    answers = [run.answered[0][client].parts[key].vector for client, key in zip((2, 5), choices, strict=True)]
    mean = np.mean([vector.double().numpy() for vector in answers if vector is not None], axis=0)
    moved = np.abs(mean - np.mean([models[key] for key in choices], axis=0)).sum()
    left = np.abs(mean - run.bank["concept/2"].vector.double().numpy()).sum()
    usual = told["kept"]["usual"][2]
    np.testing.assert_allclose(usual, min(moved + left, told["distances"][2][2]), rtol=1e-5)
    assert run.bank.memory["matching/usual"].tolist() == [*told["kept"]["usual"], *[0.0] * (concepts == "auto")]  # type: ignore[union-attr]
    if lr == 1:
        assert usual < 5 < 50 < told["distances"][2][2]
    else:  # three quarters of the way are left, which a model that is born has begun where its clients did
        way = moved if concepts == "auto" else told["distances"][2][2]
        np.testing.assert_allclose(left, 0.75 * way, rtol=1e-4)


def test_clients_that_are_the_same_are_one_cluster_whose_mean_they_are() -> None:
    # One row: with more the order of a batch's rows makes a difference in the last bits.
    same: dict[str, Any] = {"sizes": [1] * 4, "plan": [[1] * 4], "kind": "test_concept_matching:Alike"}
    for rule in ("gated", "paper", "one-to-one"):
        run = play(method(matching=rule), stream=same, rounds=1)
        (told,) = run.decided()
        assert told["labels"] == [0, 0, 0, 0]
        vectors = [update.parts["concept/0"].vector for update in run.answered[0].values()]
        assert all(torch.equal(run.bank["concept/0"].vector, vector) for vector in vectors if vector is not None)
        # The others stay as they were made.
        assert torch.equal(run.bank["concept/1"].vector, run.states[0].bank["concept/1"].vector)


def test_more_clusters_than_clients() -> None:
    few: dict[str, Any] = {"sizes": [9, 9], "plan": [[0, 1]]}
    run = play(method(concepts=6, number="fixed", clusterer={"kind": "agglomerative"}), stream=few, rounds=4)
    for told in run.decided():
        assert told["labels"] == [0, 1]
        assert np.shape(told["distances"]) == (2, 6)
    assert sum(bool(value) for value in run.bank.memory["matching/claimed"]) == 2  # type: ignore[union-attr]


def test_a_client_alone_is_its_own_cluster() -> None:
    alone: dict[str, Any] = {"sizes": [9], "plan": [[2]]}
    run = play(method(), stream=alone, rounds=3)
    expected = run.states[0].bank["concept/0"].vector.double().numpy()
    for round in (1, 2, 3):
        expected = descended(expected, *data_of(run, 0, round))
        np.testing.assert_allclose(run.states[round].bank["concept/0"].vector, expected, atol=1e-5)


class Apart(Plan):
    """Clients 0 to 2 hold rows of the classes 0 and 1, the others of class 2."""

    def holding(self, client: int, round: int) -> Holding:
        held = super().holding(client, round)
        labels = self.dataset.labels
        every = torch.arange(ROWS)
        own = every[(labels[every] == 2) == (client > 2)]
        return replace(held, train=own[client % 3 :: 3][:30])


def test_clients_that_own_different_classes() -> None:
    """After the averaging the class that a client owns alone is known by the model that it chooses."""
    run = play(
        method(concepts=2),
        stream={"kind": "test_concept_matching:Apart", "sizes": [9] * 6, "plan": [[0] * 6]},
        rounds=6,
    )
    last = run.decided()[-1]
    assert last["labels"] == [0, 0, 0, 1, 1, 1]
    x, y = data_of(run, 5, 6)
    assert set(y) == {2}
    vectors = {key: entry.vector.double().numpy() for key, entry in run.bank.entries.items()}
    assert loss(vectors[last["models"][1]], x, y) < 0.2 < loss(vectors[last["models"][0]], x, y)


def test_answers_of_a_rejected_cluster_change_no_model() -> None:
    """In `paper` a record never rises: with full batches and a rate that grows, everything is rejected."""
    run = play(method(matching="paper"), rounds=4)
    rejected = 0
    for told, old, new in zip(run.decided(), run.states, run.states[1:], strict=False):
        kept = {key for key in told["models"] if key is not None}
        assert {key for key in new.bank.entries if new.bank[key] is not old.bank[key]} == kept
        rejected += told["fates"].count("rejected") + told["fates"].count("overwritten")
    assert rejected > 0


@pytest.mark.parametrize("option", ["I", "II"])
def test_control_variates_stay_with_the_model_that_was_trained(option: str) -> None:
    """Whatever the server does with the answers: c is the mean of all c_i, for every model by itself."""
    scaffold = {"local": {"learner": {"kind": "scaffold", "option": option}, "lr": 0.3}}
    run = play(method(matching="paper"), rounds=5, **scaffold)
    moved = 0
    for told in run.decided():
        for choice, label in zip(told["choices"], told["labels"], strict=True):
            moved += told["models"][label] != choice
    assert moved > 3  # else nothing was tried
    found = 0
    for key, entry in run.bank.entries.items():
        own = [state[f"control/{key}"] for state in run.states[-1].clients.values() if f"control/{key}" in state]
        total = sum((c for c in own if isinstance(c, torch.Tensor)), torch.zeros(12))
        expected = entry.extra.get("control/c", torch.zeros(12))
        torch.testing.assert_close(total / 6, expected, atol=1e-5, rtol=1e-5)
        found += bool(own)
    assert found > 1


def test_a_global_anchor_takes_two_exchanges() -> None:
    svrg = {"local": {"learner": {"kind": "svrg", "anchor": "global"}}}
    run = play(method(matching="paper"), rounds=4, **svrg)
    assert [told["exchange"] for told in run.decided()] == [1] * 4
    unmatched = [set(told["choices"]) - set(told["models"]) for told in run.decided()]
    assert any(unmatched)  # models that were trained, and whose answers went elsewhere or nowhere
    for state in run.states:
        assert all("svrg/gradient" not in entry.extra for entry in state.bank.entries.values())


def test_moments_are_of_each_model() -> None:
    models = good()
    parts: dict[str, Any] = {"rounds": 2, "stream": {"plan": [[0, 1, 0, 0, 1, 1]]}}
    slow = method(server={"kind": "momentum", "beta": 0.5, "lr": 1.0})
    run = play(slow, state=like(slow, models, **parts), **parts)
    assert run.bank["concept/2"].server == {}
    assert "m" in run.bank["concept/0"].server
    assert "m" in run.bank["concept/1"].server


def test_any_mean_makes_the_clusters_and_the_models() -> None:
    models = good()
    parts: dict[str, Any] = {"rounds": 1, "stream": {"plan": [[0, 0, 0, 1, 1, 1]]}}
    median = method(mean="median")
    run = play(median, state=like(median, models, **parts), **parts)
    for key, clients in (("concept/0", range(3)), ("concept/1", range(3, 6))):
        vectors = [descended(models[key], *data_of(run, client, 1)) for client in clients]
        np.testing.assert_allclose(run.bank[key].vector, np.median(vectors, axis=0), atol=1e-5)


def test_a_remembered_task_is_sent_one_model_and_measures_nothing() -> None:
    known = {"named": True, "plan": [[0, 1, 2, 0, 1, 2]] * 4 + [[1, 2, 0, 1, 2, 0]]}
    run = play(method(client_matching="remembered", learn=2), stream=known, rounds=6)
    everything = play(method(), stream=known, rounds=6)
    for round, (given, asked) in enumerate(zip(run.assigned, run.asked, strict=True), start=1):
        for client, assignment in given.items():
            table: Any = run.states[round - 1].bank.memory.get("matching-tasks", {})
            entry = table.get(str(run.concept(client, round)), {}).get("entry")
            assert assignment.keys == (KEYS if entry is None else (entry,))
            assert asked[client] == (["Evaluate", "Fit"] if entry is None else ["Fit"])
        spared = sum(len(assignment.keys) == 1 for assignment in given.values())
        assert run.decided()[round - 1]["remembered"] == spared
    assert "remembered" not in everything.decided()[0]
    assert all(len(given.keys) == 1 for given in run.assigned[-1].values())
    # In the end a third of the bytes, and the same models as far as clients choose what is remembered.
    down = [
        [line["value"] for line in r.lines[-1] if line.get("metric") == "total_bytes_down"] for r in (run, everything)
    ]
    assert down[0][0] * 3 == down[1][0]
    assert same_models(run.bank, everything.bank)


def test_what_is_learnt_of_tasks() -> None:
    def follow(rounds: list[list[str | None]], learn: int) -> Any:
        known: Any = {}
        for homes in rounds:
            known = learnt(known, ["t"] * len(homes), homes, learn)
        return known.get("t")

    a, b = "concept/1", "concept/4"
    assert follow([[a, a, b]], 1) == {"last": a, "rounds": 1, "entry": a}
    assert follow([[a, b], [b, a]], 2) == {"last": a, "rounds": 2, "entry": a}  # of equal ones the first
    assert follow([[a], [None, None], [a]], 2) == {"last": a, "rounds": 2, "entry": a}  # rejected: no round
    assert follow([[a], [b], [a]], 2) == {"last": a, "rounds": 1, "entry": None}
    assert follow([[a], [a], [b]], 2) == {"last": b, "rounds": 1, "entry": a}
    assert follow([[a], [a], [b], [b]], 2) == {"last": b, "rounds": 2, "entry": b}
    assert follow([[None]], 1) is None


def test_true_concepts_that_appear_together_are_placed_by_size() -> None:
    assert placed({"matching-truths": ["9"]}, [3, 9, "west"]) == {"9": 0, "3": 1, "west": 2}
    assert list(placed({}, [10, 2, 33, 2])) == ["2", "10", "33"]
    assert list(placed({}, ["10", "2", "a10", "-3", "a2", 0])) == ["-3", "0", "2", "10", "a10", "a2"]
    assert list(placed({"matching-truths": ["10", "west"]}, ["2", "1", "10"])) == ["10", "west", "1", "2"]


def test_an_oracle_keeps_the_model_of_a_concept_whose_first_answer_did_not_come() -> None:
    """Client 0 alone meets concept 0, and fails in the first round."""
    told = method(client_matching="oracle", server_matching="choices", kind="test_concept_matching:Failing")
    run = play(told, stream={"plan": [[0, 1, 2, 2, 1, 2]]}, rounds=3, clean=False)
    assert [sorted(given) for given in run.answered] == [[1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]]
    for given in run.assigned:
        assert [given[client].keys[0] for client in range(6)] == [f"concept/{k}" for k in (0, 1, 2, 2, 1, 2)]


def test_an_oracle_gives_every_true_concept_a_model_and_says_so() -> None:
    told = method(client_matching="oracle", server_matching="choices")
    plan = [[2, 2, 2, 2, 2, 2], [0, 1, 2, 0, 1, 2]]
    run = play(told, stream={"plan": plan}, rounds=5)
    assert any("oracle" in note for note in run.setup.notes)
    for round, given in enumerate(run.assigned, start=1):
        for client, assignment in given.items():
            # Concept 2 was met first; 0 and 1 came together, in their order.
            assert assignment.keys == (f"concept/{[1, 2, 0][run.concept(client, round)]}",)
    assert all(kinds == ["Fit"] for kinds in run.asked[-1].values())
    # Nothing is served by a model that nobody trained, but before the first update.
    served = [run.setup.method.candidates(state.bank, {"concept": 1}) for state in run.states[:3]]
    assert served == [[(key,) for key in KEYS], [("concept/0",)], [(key,) for key in KEYS]]
    assert "oracle" not in " ".join(play(method(), rounds=1).setup.notes)


def test_without_client_matching_models_are_sent_at_random() -> None:
    run = play(method(client_matching=False), rounds=6)
    keys = [given.keys for given in run.assigned for given in given.values()]
    assert {len(key) for key in keys} == {1}
    assert len(set(keys)) == 3
    assert run.assigned[0][0].keys == play(method(client_matching="off"), rounds=1).assigned[0][0].keys


def test_what_the_record_says() -> None:
    models = good((1, 0, 2))
    parts: dict[str, Any] = {"rounds": 1, "stream": {"plan": [[0, 1, 2, 0, 1, 2]]}}
    run = play(method(), state=like(method(), models, **parts), **parts)
    (told,) = run.decided()
    assert told["clients"] == [0, 1, 2, 3, 4, 5]
    assert told["choices"] == [f"concept/{k}" for k in (1, 0, 2, 1, 0, 2)]
    assert told["labels"] == [0, 1, 2, 0, 1, 2]
    assert told["models"] == ["concept/1", "concept/0", "concept/2"]
    assert told["fates"] == ["claimed"] * 3
    after = {k: run.bank[k].vector.double().numpy() for k in KEYS}  # the means, since the server is one
    expected = [[np.abs(after[m] - models[k]).sum() for k in KEYS] for m in told["models"]]
    np.testing.assert_allclose(told["distances"], expected, rtol=1e-4)
    np.testing.assert_allclose(told["kept"]["usual"], np.min(expected, axis=0), rtol=1e-4)


@pytest.mark.parametrize("projection", ["pca", "random"])
def test_clusters_of_a_projection(projection: str) -> None:
    models = good()
    wanted = method(projection=projection, dimensions=2, distance="euclidean", clusterer={"kind": "birch"})
    run = play(wanted, state=like(wanted, models, rounds=1), rounds=1)
    assert run.decided()[0]["labels"] == [0, 1, 2, 0, 1, 2]


def test_a_bound_that_no_silhouette_reaches_makes_one_cluster() -> None:
    models = good()
    for least, clusters in ((0.25, 3), (1.0, 1)):
        run = play(method(least=least), state=like(method(), models, rounds=1), rounds=1)
        assert max(run.decided()[0]["labels"]) + 1 == clusters


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"client_matching": "remembered"}, "stream has no tasks"),
        ({"births": True, "client_matching": "off"}, "need the losses of all models"),
        ({"concepts": "auto", "server_matching": "choices"}, "need the losses of all models"),
        ({"concepts": "auto", "number": "fixed"}, "none could be born"),
        ({"concepts": 12, "births": True}, "at least concepts = 12"),
        ({"concepts": 0}, "a whole number of 1 or more"),
        ({"concepts": "many"}, "auto"),
        ({"clusterer": "kmeens"}, "kmeans"),
        ({"distance": "manhatten"}, "manhattan"),
    ],
)
def test_what_cannot_be_is_refused_before_any_training(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        built(method(**settings))


def test_models_start_as_the_matching_says() -> None:
    for rule, distinct in (("gated", 1), ({"kind": "paper", "start": "independent"}, 3), ("nearest", 3)):
        bank = built(method(matching=rule)).method.start()
        assert len({entry.vector.numpy().tobytes() for entry in bank.entries.values()}) == distinct
    # The first is the model of every other method with this seed.
    assert torch.equal(bank["concept/0"].vector, built("fedavg").method.start()["global"].vector)
