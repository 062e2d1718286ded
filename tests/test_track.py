"""Trackers: every number once, whatever stops the run; and a run that does not care whether they work."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from conftest import Shoal

import shoal as library
from shoal.errors import ConfigError
from shoal.experiment import Experiment
from shoal.folder import RunFolder
from shoal.progress import Quiet
from shoal.running import Interrupted
from shoal.track.tensorboard import scalars, tag_of

CONFIG: dict[str, Any] = {
    "name": "small",
    "rounds": 4,
    "stream": {"kind": "tasks", "tasks": 2, "clients": 3},
    "model": {"kind": "mlp", "hidden": [4]},
    "data": {"kind": "digits", "limit": 200, "limit_test": 60},
    "execution": {"kind": "serial"},
}
SAME = ("metrics.jsonl", "model.safetensors")

OWN = '''
import json
from shoal.track.base import Tracker

class Notebook(Tracker):
    """Writes down what it is told; fails where it is told to."""
    def __init__(self, folder, config, *, fails: str = "", spoil: bool = False):
        super().__init__(folder, config)
        self.fails = fails
        self.spoil = spoil
        self.note("init")

    def note(self, what, *more):
        with (self.folder / "notebook.txt").open("a") as file:
            file.write(" ".join(map(str, [what, *more])) + "\\n")
        if what == self.fails:
            raise RuntimeError(f"no network in {what}")

    def begin(self, round, lines):
        self.note("begin", round, len(lines))

    def write(self, round, lines):
        if self.spoil:
            lines[0].clear()
        self.note("write", round)

    def close(self):
        self.note("close")

def given(folder, config, *, tracker: bool = True):
    """Gives a tracker, or something else."""
    return Notebook(folder, config) if tracker else {}
'''


class Listener(Quiet):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tracker of one's own, and the run without one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_tracker.py").write_text(OWN)
    library.run(CONFIG, out="plain")
    return tmp_path


def same(folder: Path, other: Path) -> bool:
    return all((folder / name).read_bytes() == (other / name).read_bytes() for name in SAME)


def written(folder: Path) -> dict[tuple[str, int], list[float]]:
    """What TensorBoard itself reads, by tag and step."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    reader.Reload()
    found: dict[tuple[str, int], list[float]] = {}
    for tag in reader.Tags()["scalars"]:
        for event in reader.Scalars(tag):
            found.setdefault((tag, event.step), []).append(event.value)
    return found


def expected(folder: Path) -> dict[tuple[str, int], float]:
    """By hand, from the lines: accuracy by task, and those that have one label or none."""
    found = {}
    for line in RunFolder(folder).lines():
        if line.get("metric") in ("accuracy", "loss") and line["value"] is not None:
            found[f"{line['metric']}/task={line['task']}", line["round"]] = line["value"]
        if line.get("metric") == "mean_accuracy":
            found[f"mean_accuracy/weighting={line['weighting']}", line["round"]] = line["value"]
        if line.get("metric") == "client_steps":
            found["client_steps", line["round"]] = line["value"]
    return found


def test_every_number_is_a_scalar_with_its_labels_in_the_tag(own: Path) -> None:
    library.run(CONFIG, {"track": "tensorboard"}, out="a")
    assert same(own / "a", own / "plain")
    seen, wanted = written(own / "a"), expected(own / "a")
    assert len(wanted) == 4 * (2 + 2 + 2 + 1)
    assert {key: seen[key] for key in wanted} == {key: [pytest.approx(value)] for key, value in wanted.items()}
    assert sum(len(values) for values in seen.values()) == len(list(scalars(RunFolder(own / "a").lines())))
    assert RunFolder(own / "a").config()["track"] == {"kind": "tensorboard"}


@pytest.mark.parametrize("lost", [False, True])
def test_a_resumed_run_doubles_no_point_and_lacks_none(own: Path, monkeypatch: pytest.MonkeyPatch, lost: bool) -> None:
    play = Experiment.play

    def interrupted(self: Experiment, state: Any) -> Any:
        if state.round == 2:
            raise KeyboardInterrupt
        return play(self, state)

    with monkeypatch.context() as patched:
        patched.setattr(Experiment, "play", interrupted)
        with pytest.raises(Interrupted):
            library.run(CONFIG, {"track": "tensorboard"}, out="a")
    assert {step for _, step in written(own / "a")} == {1, 2}
    if lost:  # the last checkpoint is gone, as after a kill: round 2 is played again
        RunFolder(own / "a").checkpoints.path(2).unlink()
        assert RunFolder(own / "a").checkpoints.rounds()[0] == 1
    library.resume("a")
    assert same(own / "a", own / "plain")
    seen = written(own / "a")
    assert all(len(values) == 1 for values in seen.values())
    assert {key: seen[key][0] for key in expected(own / "a")} == pytest.approx(expected(own / "a"))


def test_a_tracker_may_be_added_and_taken_away_before_a_resume(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library.run(CONFIG, out="a")
    folder = RunFolder(own / "a")
    (own / "a" / "summary.json").unlink()
    folder.write_yaml("config.yaml", {**folder.config(), "track": {"kind": "tensorboard"}})
    library.resume("a")
    assert set(expected(own / "a")) <= set(written(own / "a"))
    (own / "a" / "summary.json").unlink()
    folder.write_yaml("config.yaml", {**folder.config(), "track": None})
    library.resume("a")
    assert same(own / "a", own / "plain")


def test_a_tracker_of_ones_own_is_told_each_round_once(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library.run(CONFIG, {"track": "own_tracker:Notebook"}, out="a")
    header = sum(1 for line in RunFolder(own / "a").lines() if line["round"] == 0)
    said = (own / "a" / "notebook.txt").read_text().splitlines()
    assert said == ["init", f"begin 0 {header}", "write 1", "write 2", "write 3", "write 4", "close"]
    assert RunFolder(own / "a").config()["track"] == {"kind": "own_tracker:Notebook", "fails": "", "spoil": False}


@pytest.mark.parametrize("fails", ["init", "begin", "write", "close"])
def test_a_tracker_that_fails_is_a_warning(own: Path, fails: str) -> None:
    listener = Listener()
    library.run(CONFIG, {"track": {"kind": "own_tracker:Notebook", "fails": fails}}, out="a", progress=listener)
    assert same(own / "a", own / "plain")
    (warning,) = [text for text in listener.said if "tracker failed" in text]
    assert f"RuntimeError: no network in {fails}" in warning
    said = (own / "a" / "notebook.txt").read_text().splitlines()
    assert sum(line.startswith("write") for line in said) == {"init": 0, "begin": 0, "write": 1, "close": 4}[fails]


def test_a_function_may_give_a_tracker_and_anything_else_is_left_out(own: Path) -> None:
    listener = Listener()
    for tracker in (True, False):
        changes = {"track": {"kind": "own_tracker:given", "tracker": tracker}}
        library.run(CONFIG, changes, out=str(tracker), progress=listener)
        assert same(own / str(tracker), own / "plain")
    assert "write 4" in (own / "True" / "notebook.txt").read_text()
    (warning,) = [text for text in listener.said if "tracker failed" in text]
    assert "track.kind: own_tracker:given gives a dict" in warning


def test_a_tracker_cannot_change_the_run(own: Path) -> None:
    library.run(CONFIG, {"track": {"kind": "own_tracker:Notebook", "spoil": True}}, out="a")
    assert same(own / "a", own / "plain")


def test_an_interrupted_run_closes_its_tracker(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Experiment, state: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Experiment, "play", interrupted)
    with pytest.raises(Interrupted):
        library.run(CONFIG, {"track": "own_tracker:Notebook"}, out="a")
    assert (own / "a" / "notebook.txt").read_text().splitlines()[-1] == "close"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"track": "tensorbord"}, "did you mean 'tensorboard'"),
        ({"track": {"kind": "tensorboard", "colour": "red"}}, r"track\.colour: no such setting"),
        ({"track": "no_module_here:Tracker"}, r"^track\.kind: cannot import"),
        (
            {"track": "shoal.errors:ConfigError"},
            r"^track\.kind: .*ConfigError is no tracker; .* derived from shoal\.track",
        ),
        ({"track": "shoal.server.base:Mean"}, "is no tracker"),
        ({"track": {"folder": "x"}}, "needs a mapping with a 'kind'"),
    ],
)
def test_mistakes_are_found_before_any_training(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        library.run(CONFIG, changes, out=tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_missing_package_is_an_error_with_the_command_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shoal: Shoal
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "tensorboard" else find(name, *a))
    said = shoal("run", "quickstart", "variants={}", "seeds=[]", "track=tensorboard", "--out", str(tmp_path / "a"))
    assert said.code == 2
    assert "pip install 'shoal[track]'" in said.err
    with pytest.raises(ConfigError, match=r"pip install 'shoal\[track\]'"):
        library.run(CONFIG, {"track": "tensorboard", "seeds": [0, 1]}, out=tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("line", "tag"),
    [
        ({"metric": "accuracy", "value": 1, "rows": 9, "entry": "task/3", "task": 3}, "accuracy/task=3"),
        ({"metric": "client_drift", "value": 1, "over": "head", "clients": 5}, "client_drift/over=head"),
        ({"metric": "effective_step", "value": 1, "entry": "task/3"}, "effective_step/entry=task/3"),
        ({"metric": "client_steps", "value": 1}, "client_steps"),
        ({"metric": "m", "value": 1, "task": 0, "client": "a"}, "m/task=0,client=a"),
    ],
)
def test_tags(line: dict[str, Any], tag: str) -> None:
    assert tag_of({"round": 1, **line}) == tag


def test_only_numbers_are_scalars() -> None:
    lines = [
        {"round": 1, "metric": "a", "value": None},
        {"round": 1, "record": "round", "phase": 0},
        {"round": 2, "metric": "per_class", "value": [0.5, None, 1]},
        {"round": 3, "metric": "b", "value": 0},
    ]
    assert list(scalars(lines)) == [("per_class/0", 0.5, 2), ("per_class/2", 1.0, 2), ("b", 0.0, 3)]
