"""By which number a sweep chooses, which numbers it refuses, and which cells are no candidates."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import Shoal

import shoal as library
from shoal.choice import Choice, conclude, number_in, parse_choice, pick
from shoal.errors import ConfigError
from shoal.folder import RunFolder
from shoal.metrics.base import Line, Measure
from shoal.registry import PARTS, find
from shoal.summary import NUMBERS

BASE: dict[str, Any] = {
    "name": "small",
    "rounds": 2,
    "data": {"kind": "digits", "limit": 200, "limit_test": 60},
    "stream": {"kind": "static", "clients": 3, "validation": 0.2},
    "model": {"kind": "mlp", "hidden": [4]},
    "execution": {"kind": "serial"},
    "local": {"lr": 0.1},
}


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("validation_accuracy", Choice("validation_accuracy", "max")),
        ("validation_loss", Choice("validation_loss", "min")),
        ("max:validation_loss", Choice("validation_loss", "max")),
        ("min:client_drift", Choice("client_drift", "min")),
        ("max:mine.b@1", Choice("mine.b@1", "max")),
    ],
)
def test_numbers_to_choose_by(text: str, choice: Choice) -> None:
    assert parse_choice(text) == choice


@pytest.mark.parametrize(
    "text",
    [
        "acc",
        "loss",
        "min:loss",
        "accuracy_by_target.task=3",
        "bwt_f.seen",
        "max:acc_last5",
        "accuracy",
        "mean_accuracy",
        "f1",
        "max:over_targets.f1.mean",
        "forward_transfer.mean",
        "min:forgetting.best",
    ],
)
def test_numbers_of_test_rows_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="Settings are chosen on validation rows"):
        parse_choice(text)


class Fair(Measure):
    """Says that none of its numbers comes from test rows."""

    from_test_rows = ()
    lines = ("fair",)

    @staticmethod
    def summarise(lines: Sequence[Line]) -> dict[str, Any]:
        return {"fairness": float(len(lines))}


class Honest(Measure):
    """Says that one of its numbers does."""

    from_test_rows = ("gain",)

    @staticmethod
    def summarise(lines: Sequence[Line]) -> dict[str, Any]:
        return {"gain": 1.0, "work": float(len(lines))}


class Silent(Measure):
    """Says nothing."""

    @staticmethod
    def summarise(lines: Sequence[Line]) -> dict[str, Any]:
        return {"boast": 1.0}


class Heir(Silent, Honest):
    """Has inherited what is said."""


def own(kind: type[Measure]) -> str:
    return f"{__name__}:{kind.__name__}"


def test_a_measure_of_ones_own_says_which_numbers_come_from_test_rows() -> None:
    assert parse_choice("max:fairness", [own(Fair)]).number == "fairness"
    assert parse_choice("min:work", [own(Honest)]).number == "work"
    for kind in (Honest, Heir):
        with pytest.raises(ConfigError, match="--best gain: this number comes from test rows"):
            parse_choice("max:gain", [own(kind)])
    with pytest.raises(ConfigError, match=r"--best boast: .*Silent, it is not known .*: from_test_rows = \(\) if"):
        parse_choice("max:boast", ["accuracy", own(Silent)])
    # What somebody else gives is known beside it.
    for number in ("client_drift", "median_sqrt_v", "fairness", "total_bytes_up", "updates", "validation_loss"):
        assert parse_choice(f"min:{number}", [own(Silent), own(Fair)]).number == number


def test_the_measures_of_a_sweep_are_asked_before_the_first_run(tmp_path: Path) -> None:
    for measures, best in (([own(Silent)], "max:boast"), ([own(Honest)], "max:gain")):
        changes = {"evaluate.measures": ["accuracy", *measures]}
        with pytest.raises(ConfigError, match="test rows"):
            library.sweep(BASE, {"local.lr": [0.1, 0.2]}, out=tmp_path / "s", best=best, overrides=changes)
    assert not (tmp_path / "s").exists()


TASKS = {"kind": "tasks", "tasks": 2, "by": "class", "clients": 4, "validation": 0.2}
SHIFTS = {"kind": "shifts", "clusters": [[0, 1], [2, 3]], "clients": 4, "steps": 2, "rounds_per_step": 5}


@pytest.mark.parametrize(
    ("stream", "at_least"),
    [
        (TASKS, {"acc", "loss", "bwt_f", "forgetting", "over_targets"}),
        ({**SHIFTS, "rows": 10, "validation_rows": 3}, {"acc", "drop_after_shift", "step_end_accuracy"}),
    ],
)
def test_the_numbers_of_every_measure_that_test_rows_enter_are_named(
    tmp_path: Path, stream: dict[str, Any], at_least: set[str]
) -> None:
    """Two runs that differ in nothing but their test rows' labels: what differs comes from test rows."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (240, 2, 2, 1), dtype=np.uint8)
    labels = np.arange(240) % 4
    raw = {
        **BASE,
        "rounds": 10,
        "data": "arrays",
        "stream": stream,
        "method": {"kind": "fedadam"},
        "evaluate": {"measures": list(PARTS["measure"])},
    }
    data = library.from_arrays(images, labels)
    known, flipped = [], data.labels.clone()
    flipped[data.test] = data.labels[data.test] ^ 1  # the other class of the same task or cluster
    for labels_of_test in (data.labels, flipped):
        changed = dataclasses.replace(data, labels=labels_of_test)
        known.append(library.run(raw, data=changed, out=tmp_path / str(len(known))).summary)
    timed = {"seconds", "evaluation_seconds", "client_steps_per_second", "peak_memory_mb"}
    differ = {name for name in known[0] if known[0][name] != known[1][name]} - timed
    named = {name for kind in PARTS["measure"] for name in find("measure", kind).from_test_rows}
    assert at_least <= differ <= named & set(known[0])
    assert set(NUMBERS) <= set(known[0])


@pytest.mark.parametrize("text", ["validation_acuracy", "client_drift", "", "min:", "most:client_drift"])
def test_numbers_without_a_better_end_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="with its better end"):
        parse_choice(text)


def test_numbers_of_a_summary() -> None:
    summary = {"a": 1, "b": {"c.d": {"e": 2.5}, "n": None, "t": True}, "x": math.inf}
    assert [number_in(summary, name) for name in ("a", "b.c.d.e", "b.n", "b.t", "x", "b", "no", "a.b")] == [
        1.0, 2.5, None, None, None, None, None, None,
    ]  # fmt: skip


def cell(name: str, mean: float | None) -> dict[str, Any]:
    return {"cell": name, "mean": mean}


def test_ties_go_to_the_first_and_missing_means_are_passed_over() -> None:
    cells = [cell("a", None), cell("b", 0.5), cell("c", 0.7), cell("d", 0.7), cell("e", -1.0), cell("f", -1.0)]
    assert pick(cells, "max") == "c"
    assert pick(cells, "min") == "e"
    assert pick(cells[:1], "max") is None
    assert pick([cell("zero", 0.0), cell("one", -0.5)], "max") == "zero"


def made(
    path: Path, values: dict[str, list[float | None]], take: str = "max", number: str = "validation_loss"
) -> RunFolder:
    """A folder like that of a finished sweep, with these numbers by cell and seed."""
    folder = RunFolder(path)
    path.mkdir()
    variants = {name: {"local.lr": i + 1} for i, name in enumerate(values)}
    seeds = list(range(len(next(iter(values.values())))))
    folder.write_yaml("config.yaml", {**BASE, "variants": variants, "seeds": seeds})
    folder.write_json("sweep.json", {"grid": {}, "best": {"number": number, "take": take}, "finished": False})
    for name, numbers in values.items():
        for seed, value in enumerate(numbers):
            (path / name / str(seed)).mkdir(parents=True)
            RunFolder(path / name / str(seed)).write_json("summary.json", {number: value, "client_drift": 1.0})
    return folder


def test_a_cell_that_lacks_a_seed_is_left_out_and_named(tmp_path: Path) -> None:
    # By hand: a has the mean (1 + 2 + 6) / 3 = 3 and the deviation sqrt((4 + 1 + 9) / 2) = sqrt(7), c has 2 and 0.
    folder = made(tmp_path / "s", {"a": [1.0, 2.0, 6.0], "b": [0.1, None, 0.1], "c": [2.0, 2.0, 2.0]}, "min")
    conclude(tmp_path / "s")
    found = folder.sweep()
    a, b, c = found["cells"]
    assert (a["mean"], a["sd"], a["n"]) == (3.0, pytest.approx(math.sqrt(7)), 3)
    assert (b["mean"], b["sd"], b["n"]) == (None, None, 2)
    assert (c["mean"], c["sd"], c["n"]) == (2.0, 0.0, 3)
    assert found["chosen"] == "c"
    assert found["left_out"] == ["b"]
    assert found["finished"] is True
    assert yaml.safe_load((tmp_path / "s" / "best.yaml").read_text())["local"] == {"lr": 3}


def test_a_cell_in_which_nothing_was_trained_is_no_candidate(tmp_path: Path) -> None:
    # Were it counted, the loss 0.1 of b's untrained second seed, or that of c, would win.
    folder = made(tmp_path / "s", {"a": [1.0, 2.0], "b": [1.2, 0.1], "c": [0.2, 0.2], "d": [1.0, None]}, "min")
    for place in ("b/1", "c/0", "c/1"):
        run = RunFolder(tmp_path / "s" / place)
        run.write_json("summary.json", {**run.summary(), "updates": 0})
    conclude(tmp_path / "s")
    found = folder.sweep()
    assert (found["chosen"], found["left_out"], found["untrained"]) == ("a", ["b", "c", "d"], ["b", "c"])
    assert found["cells"][1]["values"] == {"0": 1.2, "1": None}
    for place in ("a/0", "d/0"):
        run = RunFolder(tmp_path / "s" / place)
        run.write_json("summary.json", {**run.summary(), "updates": 0})
    with pytest.raises(ConfigError, match=r"in every cell there is a seed in which nothing was trained.*runs are kept"):
        conclude(tmp_path / "s")


def test_an_untrained_cell_is_named_on_the_command_line(
    shoal: Shoal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(yaml.safe_dump(BASE))
    crash = "participation.crash_probability=0,1"
    said = shoal("sweep", "small.yaml", crash, "rounds=1", "--best", "validation_accuracy", "--out", "s")
    assert said.code == 1, said.err
    assert "left out, because nothing was trained: crash_probability=1\n" in said.out
    assert "is missing" not in said.out
    assert "best: crash_probability=0, as a configuration: s/best.yaml" in said.out


def test_accuracies_choose_nothing_where_values_are_learned(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    data = library.from_arrays(x, x[:, 0], learn="values")
    raw = {**BASE, "data": "arrays", "local": {"loss": "mse"}}
    grid = {"local.lr": [0.1, 0.2]}
    with pytest.raises(ConfigError, match="neither right nor wrong; use --best validation_loss"):
        library.sweep(raw, grid, out=tmp_path / "s", best="validation_accuracy", data=data)
    assert not (tmp_path / "s").exists()
    found = library.sweep(raw, grid, out=tmp_path / "s", best="validation_loss", data=data)
    assert found.chosen is not None
    run = found.runs[f"{found.chosen}/0"]
    assert set(run.frame()["metric"]) >= {"validation_loss"}
    assert not set(run.frame()["metric"]) & {"validation_accuracy", "mean_validation_accuracy"}


def test_a_number_that_no_cell_has_is_an_error_that_keeps_the_runs(tmp_path: Path) -> None:
    made(tmp_path / "s", {"a": [None], "b": [None]}, number="client_drft")
    with pytest.raises(ConfigError, match=r"no cell has this number.*did you mean 'client_drift'"):
        conclude(tmp_path / "s")
    assert not (tmp_path / "s" / "best.yaml").exists()
