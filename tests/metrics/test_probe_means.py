"""Means over the probes of clients, and the rounds in which anything is probed at all."""

from __future__ import annotations

import math
import statistics

import pytest
from measure_fakes import FakeStream, context, seen

from shoal.messages import Failure, Outcome, Update
from shoal.metrics.probes import Probes
from shoal.metrics.rounds import due
from shoal.requests import Score
from shoal.setup import assemble, resolve_config
from shoal.track.tensorboard import tag_of


def outcome(client: int, *probes: tuple[str, float]) -> Outcome:
    return Outcome(
        client, Update({}, 1.0), probes=tuple((label, Score(1 - value, value, 5)) for label, value in probes)
    )


def means(*outcomes: Outcome) -> dict[str, dict]:
    lines, _ = Probes(context()).observe(seen(3, outcomes=outcomes), {})
    return {line["label"]: line for line in lines if line["metric"] == "mean_probe"}


def test_mean_and_spread_over_clients_by_label() -> None:
    found = means(
        outcome(1, ("before", 0.0), ("mixed", 0.5), ("trained", 0.9)),
        outcome(0, ("before", 0.2), ("mixed", 0.7), ("trained", 0.8)),
        outcome(4, ("before", 0.7), ("mixed", 0.0)),
    )
    assert list(found) == ["before", "mixed", "trained"]  # in the order of the programs
    assert found["before"]["value"] == pytest.approx(0.3)
    assert found["before"]["sd"] == pytest.approx(statistics.stdev([0.0, 0.2, 0.7]))
    assert found["before"]["worst_decile"] == 0.0
    assert found["before"]["loss"] == pytest.approx(0.7)
    assert (found["before"]["clients"], found["trained"]["clients"]) == (3, 2)


def test_a_tracker_knows_a_number_by_the_same_name_in_every_round() -> None:
    first, second = (means(outcome(0, ("before", v)), outcome(1, ("before", v * v)))["before"] for v in (0.2, 0.9))
    assert tag_of(first) == tag_of(second) == "mean_probe/label=before"
    lines, _ = Probes(context()).observe(seen(3, outcomes=[outcome(4, ("before", 0.3))]), {})
    assert tag_of(lines[0]) == "probe/label=before,client=4"


def test_a_client_without_a_number_and_one_that_was_measured_twice() -> None:
    empty = Outcome(2, Failure("crash"), probes=(("before", Score(math.nan, math.nan, 0)),))
    found = means(outcome(0, ("before", 0.1), ("before", 0.5)), outcome(1, ("before", 0.7)), empty)
    assert found["before"]["value"] == pytest.approx(0.6)
    assert found["before"]["clients"] == 2
    lonely = means(empty)["before"]
    assert (lonely["value"], lonely["sd"], lonely["loss"], lonely["clients"]) == (None, None, None, 0)


@pytest.mark.parametrize(
    ("every", "rounds", "boundaries", "expected"),
    [
        (0, 9, (2,), []),
        (1, 4, (), [1, 2, 3, 4]),
        (100, 30, (), [26, 27, 28, 29, 30]),
        (10, 40, (20,), [10, 20, 21, 22, 23, 24, 25, 30, 36, 37, 38, 39, 40]),
        (100, 30, (3, 12), [3, 4, 5, 6, 7, 8, 12, 13, 14, 15, 16, 17, 26, 27, 28, 29, 30]),
    ],
)
def test_due_rounds(every: int, rounds: int, boundaries: tuple[int, ...], expected: list[int]) -> None:
    assert [r for r in range(rounds + 1) if due(r, every, rounds, boundaries)] == expected


def test_no_lines_in_rounds_that_are_not_due() -> None:
    stream = FakeStream([], boundaries=(20,))
    measure = Probes(context(stream, every=10, rounds=40))
    found = [r for r in range(41) if measure.observe(seen(r, outcomes=[outcome(0, ("before", 0.5))]), {})[0]]
    assert found == [10, 20, 21, 22, 23, 24, 25, 30, 36, 37, 38, 39, 40]


def test_the_engine_gets_test_rows_in_due_rounds_only() -> None:
    from shoal.engine import Serial
    from shoal.experiment import Experiment

    stream = {"kind": "static", "clients": 2}
    raw = {"data": {"kind": "digits", "limit": 60, "limit_test": 20}, "stream": stream, "rounds": 9,
           "model": {"kind": "mlp", "hidden": [4]}, "evaluate": {"every": 3}}  # fmt: skip
    setup = assemble(resolve_config(raw))
    rows: dict[int, set[int]] = {}

    class Watching(Serial):
        def run(self, train, jobs, *args, **kwargs):
            for job in jobs:
                rows.setdefault(job.client.when.round, set()).add(len(job.test))
            return super().run(train, jobs, *args, **kwargs)

    import torch

    experiment = Experiment(setup, Watching(setup.world.models, setup.stream.dataset, torch.device("cpu")))
    state = experiment.start()
    while state.round < 9:
        state = experiment.play(state).state
    held = len(setup.stream.holding(0, 1).test)
    assert held > 0
    assert rows == {r: {held if r in (3, 5, 6, 7, 8, 9) else 0} for r in range(1, 10)}
