"""Need: a number of one's own about a run. Here: how good the choice among candidates was."""

from __future__ import annotations

import json
from itertools import pairwise

from example_lab import config, on_digits, play, prove

from shoal.metrics.base import Measure


class Regret(Measure):
    """Per target: test loss of the candidate that validation rows choose, less that of the best; and how often the
    choice moved so far. A measure may look at test rows; nothing that trains sees it."""

    def observe(self, seen, memory):
        lines, memory = [], dict(memory)
        for target in self.context.stream.targets(seen.when.round):
            name = json.dumps(target.labels, sort_keys=True)
            groups = [tuple(keys) for keys in self.context.method.candidates(seen.after, target.labels)]
            models = [self.context.method.compose(seen.after, keys) for keys in groups]
            validation, test = seen.score([(models, target.validation), (models, target.test)])
            chosen = min(range(len(groups)), key=lambda i: validation[i].loss)
            entry = "+".join(groups[chosen])
            before, moves = memory.get(name, [entry, 0])
            memory[name] = [entry, moves + (entry != before)]
            regret = test[chosen].loss - min(score.loss for score in test)
            lines.append(
                {"metric": "regret", "value": regret, "moves": memory[name][1], "entry": entry, **target.labels}
            )
        return lines, memory

    @staticmethod
    def summarise(lines):
        found = [line["value"] for line in lines if line.get("metric") == "regret"]
        return {"regret": sum(found) / len(found) if found else None}


MEASURES = {"measures": ["accuracy", "test_example_measure:Regret"]}
CONCEPTS = {"kind": "test_example_concepts:Concepts", "count": 3}
WORLD = {"sizes": [40, 40, 40, 40], "concepts": ["identity", "invert"]}


def test_the_laws():
    run = prove(config(stream=WORLD, method=CONCEPTS, evaluate=MEASURES, rounds=4))
    assert run.states[-1].measured["test_example_measure:Regret"]


def test_it_agrees_with_the_choice_of_the_accuracy_and_is_never_negative():
    run = play(config(stream=WORLD, method=CONCEPTS, evaluate=MEASURES, rounds=5))
    regrets = run.all(metric="regret")
    assert len(regrets) == 10
    for line in regrets:
        (other,) = run.all(metric="accuracy", round=line["round"], concept=line["concept"])
        assert other["entry"] == line["entry"]
        assert line["value"] >= 0
    for concept in (0, 1):
        entries = [line["entry"] for line in regrets if line["concept"] == concept]
        moves = sum(a != b for a, b in pairwise(entries))
        assert [line["moves"] for line in regrets if line["concept"] == concept][-1] == moves


def test_a_measure_changes_nothing_else():
    with_it = play(config(stream=WORLD, method=CONCEPTS, evaluate=MEASURES))
    without = play(config(stream=WORLD, method=CONCEPTS, evaluate={"measures": ["accuracy"]}))
    assert [line for line in with_it.all() if line.get("metric") != "regret"] == without.all()


def test_on_digits(tmp_path):
    stream = {"kind": "tasks", "tasks": 2, "by": "transform", "transforms": ["identity", "invert"], "clients": 4}
    method = {"kind": "test_example_concepts:Concepts"}
    evaluate = {"measures": ["accuracy", "costs", "test_example_measure:Regret"]}
    result = on_digits(tmp_path / "run", stream={**stream, "head": "shared"}, method=method, evaluate=evaluate)
    frame = result.frame()
    found = frame[frame["metric"] == "regret"]["value"]
    assert len(found) == 12
    assert result.summary["regret"] == found.mean()
