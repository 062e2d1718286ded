"""summary.json from hand-written run folders."""

from __future__ import annotations

import json

import pytest
import yaml

from shoal.errors import ConfigError, RunError
from shoal.folder import RunFolder
from shoal.metrics.base import Measure
from shoal.summary import summarise

MEASURES = ["accuracy", "backward_transfer", "drift", "costs", "probes"]
CLASHING = f"{__name__}:Clashing"


class Clashing(Measure):
    """Gives a number of its own, and one that is the summary's."""

    @staticmethod
    def summarise(lines):
        return {"seed": 99, "mine": float("nan")}


def record(round, **counts):
    return {"round": round, "record": "round", "trained_tasks": {"0": [0]}, **counts}


def metric(round, name, value, **more):
    return {"round": round, "metric": name, "value": value, **more}


def accuracy(round, value):
    return [
        metric(round, "accuracy", value, rows=4, entry="task/0", task=0),
        metric(round, "loss", 1 - value, rows=4, entry="task/0", task=0),
        metric(round, "mean_accuracy", value, weighting="targets", targets=1),
        metric(round, "mean_accuracy", value, weighting="rows", targets=1),
    ]


HEADER = [
    {"round": 0, "record": "stream", "boundaries": [1], "tasks": 1, "rounds": 3, "clients": 2},
    {
        "round": 0,
        "record": "model",
        "trainable_parameters": 10,
        "model_bytes": 40,
        "entries": 1,
        "server": {"class": "Adam", "lr": 0.1},
    },
]
RUN = [
    *HEADER,
    {"round": 1, "record": "rejected", "client": 5, "reason": "not finite"},
    {"round": 1, "record": "straggler", "client": 2, "reason": "late"},
    record(1, rejected=1, failed=0, stragglers=1, skipped=0),
    metric(1, "client_steps", 6),
    *accuracy(1, 0.8),
    {"round": 2, "record": "rejected", "client": 5, "reason": "not finite"},
    {"round": 2, "record": "rejected", "client": 1, "reason": "not finite"},
    record(2, rejected=2, failed=0, stragglers=0, skipped=0),
    metric(2, "client_steps", 4),
    *accuracy(2, 0.6),
    record(3, rejected=0, failed=0, stragglers=0, skipped=0),
    metric(3, "client_steps", 10),
    *accuracy(3, 0.7),
]
TIMES = [
    {"round": 1, "seconds": 2.0, "evaluation_seconds": 0.5, "peak_memory_mb": 300, "engine": "serial"},
    {"round": 2, "seconds": 99.0, "evaluation_seconds": 50.0, "peak_memory_mb": 100, "engine": "serial"},
    # Round 2 was done again after a resume, with other workers.
    {"round": 2, "seconds": 1.0, "evaluation_seconds": 0.25, "peak_memory_mb": 200, "engine": "workers"},
    {"round": 3, "seconds": 1.0, "evaluation_seconds": 0.25, "peak_memory_mb": 200, "engine": "workers"},
]


@pytest.fixture
def write(tmp_path):
    def folder(lines=None, times=None, rounds=3, measures=MEASURES, tail=""):
        config = {
            "method": {"kind": "fedavg"},
            "seed": 7,
            "rounds": rounds,
            "evaluate": {"every": 1, "measures": list(measures)},
        }
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
        for name, found in (("metrics.jsonl", lines), ("timings.jsonl", times)):
            if found is not None:
                (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in found) + tail)
        return tmp_path

    return folder


def test_a_finished_run(write):
    summary = summarise(write(RUN, TIMES))
    expected = {
        "method": "fedavg",
        "seed": 7,
        "rounds": 3,
        "finished": True,
        "acc": 0.7,
        "acc_weighted": 0.7,
        "acc_last5": pytest.approx(0.7),
        "loss": pytest.approx(0.3),
        "accuracy_by_target": {"task=0": 0.7},
        "trainable_parameters": 10,
        "model_bytes": 40,
        "entries": 1,
        "server": {"class": "Adam", "lr": 0.1},
        "seconds": 4.0,
        "evaluation_seconds": 1.0,
        "client_steps": 20,
        "client_steps_per_second": 5.0,
        "engine": "workers",
        "peak_memory_mb": 300,
        "client_drift": None,
        "problems": {
            "rejected": 3,
            "failed": 0,
            "stragglers": 1,
            "skipped": 0,
            "clients": {"rejected": [1, 5], "stragglers": [2]},
        },
    }
    assert {name: summary[name] for name in expected} == expected
    # One task, trained in both phases: .8 -> .6, then .7.
    assert summary["bwt_f"]["seen"] == pytest.approx(-0.2)
    assert summary["bwt_f"]["events"] == 1


def test_an_unfinished_run_with_a_broken_last_line(write):
    cut = RUN.index(next(line for line in RUN if line["round"] == 3))
    summary = summarise(write(RUN[:cut], TIMES[:1], tail='{"round": 3, "rec'))
    assert (summary["rounds"], summary["finished"], summary["acc"], summary["seconds"]) == (2, False, 0.6, 2.0)


def test_a_run_that_was_only_configured(write):
    assert summarise(write(rounds=0))["finished"] is False
    summary = summarise(write())
    assert (summary["rounds"], summary["finished"], summary["acc"]) == (0, False, None)
    assert (summary["seconds"], summary["engine"], summary["client_steps_per_second"]) == (None, None, None)
    assert (summary["trainable_parameters"], summary["server"]) == (None, None)
    assert summary["problems"]["clients"] == {}


def test_no_rounds_at_all(write):
    summary = summarise(write(HEADER, [], rounds=0))
    assert (summary["rounds"], summary["finished"], summary["acc"], summary["acc_last5"]) == (0, True, None, None)
    assert summary["seconds"] is None


def test_a_warm_up_is_no_round(write):
    lines = [*HEADER, record(0, failed=1), {"round": 0, "record": "failed", "client": 3, "reason": "x"}]
    summary = summarise(write(lines))
    assert (summary["rounds"], summary["finished"]) == (0, False)
    assert (summary["problems"]["failed"], summary["problems"]["clients"]) == (1, {"failed": [3]})


def test_updates_are_those_after_the_warm_up(write):
    lines = [
        *HEADER,
        record(0, trained={"client/0": [0], "client/1": [1]}),
        record(1, trained={"client/0": [0]}),
        record(2, trained={"client/0": [0, 1], "client/1": [1]}),
        record(3, trained={}),
    ]
    found = summarise(write(lines))
    assert (found["updates"], found["warmup_updates"]) == (3, 2)
    found = summarise(write(lines[:3], rounds=0))
    assert (found["updates"], found["warmup_updates"]) == (2, 2)
    found = summarise(write([*HEADER, record(1, trained={"global": [0, 1]})], rounds=1))
    assert found["updates"] == 2
    assert "warmup_updates" not in found


def test_all_switches_off(write):
    lines = [*HEADER, *(record(r) for r in (1, 2, 3))]
    summary = summarise(write(lines, TIMES, measures=[]))
    assert (summary["finished"], summary["acc"], summary["client_steps_per_second"]) == (True, None, None)
    assert "bwt_f" not in summary


def test_measuring_off_but_measures_on(write):
    lines = [*HEADER, *(record(r) for r in (1, 2, 3))]
    summary = summarise(write(lines, TIMES))
    assert (summary["acc"], summary["accuracy_by_target"], summary["client_steps"]) == (None, {}, 0)
    assert "bwt_f" not in summary


def test_a_measure_of_the_users_own_cannot_replace_what_the_summary_says(write):
    folder = write(RUN, TIMES, measures=[*MEASURES, CLASHING])
    summary = summarise(folder)
    assert summary["seed"] == 7
    RunFolder(folder).write_json("summary.json", summary)
    assert RunFolder(folder).summary()["mine"] is None


def test_faults_are_named(tmp_path, write):
    with pytest.raises(RunError, match="holds no run"):
        summarise(tmp_path / "nowhere")
    (tmp_path / "config.yaml").write_text("seeds: [0, 1]\nmethod: {kind: fedavg}\n")
    with pytest.raises(RunError, match=r"lacks.*'seed'.*sweep"):
        summarise(tmp_path)
    with pytest.raises(ConfigError, match="did you mean 'accuracy'"):
        summarise(write(RUN, measures=["acuracy"]))
