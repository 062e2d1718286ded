"""Need: entries of different shapes in one bank. Here: an entry per task, each with a head of its own size."""

from __future__ import annotations

import torch
from example_lab import config, on_digits, play, prove

from shoal.bank import Bank
from shoal.messages import Assignment, Update
from shoal.methods.base import Method
from shoal.requests import Served


class PerTask(Method):
    """One model per task; a client trains that of its current task."""

    def __init__(self, world, learner, mean, server):
        super().__init__(world, learner, mean, server)
        if not world.tasks:
            raise ValueError("a model per task needs a stream with tasks")

    @classmethod
    def keeps_task_models(cls, settings):
        return True

    def start(self):
        names = self.world.task_models or ("main",) * self.world.tasks
        return Bank().put({f"task/{t}": self.initial(f"task/{t}", name) for t, name in enumerate(names)})

    def assign(self, bank, when, clients):
        return [Assignment(seat.id, (f"task/{seat.task}",), times=seat.times) for seat in clients]

    def train(self, given, client):
        ((key, entry),) = given.entries.items()
        part, state = yield from self.learner.fit(key, Served.of(entry), entry, client)
        return Update({key: part}, weight=len(client.train), state=state)

    def candidates(self, bank, target):
        return [(f"task/{target['task']}",)]


HEADS = {"kind": "test_example_heads:PerTask"}
TASKS = {"kind": "tasks", "tasks": 3, "by": "class", "classes": [[0, 1], [2, 3, 4, 5, 6], [7, 8]], "clients": 4}


def test_the_laws():
    run = prove(config(method=HEADS, stream=TASKS, rounds=6))
    # An 8x8 image, 8 hidden units: 64 * 8 + 8, and 9 numbers for each output.
    assert [run.bank[f"task/{t}"].vector.numel() for t in range(3)] == [520 + 9 * outputs for outputs in (2, 5, 2)]
    assert run.bank["task/0"].model == run.bank["task/2"].model != run.bank["task/1"].model


def test_with_a_server_optimiser_and_a_learner():
    scaffold = {"learner": {"kind": "test_example_scaffold:Scaffold"}}
    run = play(config(method={**HEADS, "server": {"kind": "yogi"}}, stream=TASKS, rounds=6, local=scaffold))
    for entry in run.bank.entries.values():
        assert entry.server["v"].shape == entry.extra["control/c"].shape == entry.vector.shape


def test_labels_are_the_tasks_own():
    run = play(config(method=HEADS, stream=TASKS, rounds=3))
    stream = run.setup.stream
    assert stream.task_outputs == (2, 5, 2)
    held = stream.holding(0, 1)
    assert int(stream.dataset.wanted(held.train).max()) < stream.task_outputs[held.task]
    assert not torch.equal(stream.dataset.wanted(held.train), stream.dataset.labels_of(held.train)) or held.task == 0


def test_on_digits(tmp_path):
    result = on_digits(tmp_path / "run", method=HEADS, stream={**TASKS, "order": "multi-task"})
    assert result.summary["acc"] > 0.6
    assert set(result.summary["accuracy_by_target"]) == {"task=0", "task=1", "task=2"}
