"""Mistakes that users made, and what they are told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import Shoal

import shoal as library
from shoal import api, running
from shoal.errors import ConfigError, RunError
from shoal.experiment import Experiment
from shoal.folder import RunFolder
from shoal.loading import expand, load, parse_overrides
from shoal.participation import Selection
from shoal.setup import resolve_config

STREAM = {"kind": "static", "clients": 4}
SMALL: dict[str, Any] = {"rounds": 3, "stream": STREAM, "model": {"kind": "mlp", "hidden": [8]}}

OWN_PARTS = '''
from shoal.learners.base import Learner
from shoal.methods.fedavg import FedAvg

class Good(FedAvg):
    """FedAvg."""

class Failing(Learner):
    """Raises."""
    def fit(self, *args, **more):
        raise ZeroDivisionError("nothing to share")
        yield

class Tiring(Learner):
    """Trains in a warm-up, and raises from round 1 on."""
    def fit(self, *args, **more):
        if any(getattr(getattr(a, "when", None), "round", 0) for a in args):
            raise ZeroDivisionError("nothing left")
        return (yield from super().fit(*args, **more))

class Leaving(Learner):
    """Leaves."""
    def fit(self, *args, **more):
        raise SystemExit(3)
        yield

class Keeping(Learner):
    """Keeps what no checkpoint can hold."""
    def fit(self, *args, **more):
        part, state = yield from super().fit(*args, **more)
        return part, {"object": object()}

class Forgetful(FedAvg):
    """Merges nothing."""
    def merge(self, bank, updates, when):
        super().merge(bank, updates, when)
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration and with parts of one's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mistaken_parts.py").write_text(OWN_PARTS)
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SMALL))
    return tmp_path


def test_mistaken_parts_are_found_in_the_working_directory(here: Path, shoal: Shoal) -> None:
    assert shoal("run", "small.yaml", "method=mistaken_parts:Good", "--out", "a").code == 0
    assert shoal("show", "small.yaml", "method=mistaken_parts:Good").code == 0
    assert shoal("resume", "a").code == 0


@pytest.mark.parametrize("kind", ["Failing", "Leaving", "Keeping"])
def test_a_run_that_trained_nothing_says_so_first_and_fails(here: Path, shoal: Shoal, kind: str) -> None:
    said = shoal("run", "small.yaml", f"local.learner=mistaken_parts:{kind}", "--out", "a")
    assert said.code == 1
    reason = {"Failing": "ZeroDivisionError: nothing to share", "Leaving": "SystemExit", "Keeping": "is a object"}[kind]
    (line,) = [line for line in said.out.splitlines() if line.startswith("Nothing was trained")]
    assert reason in line
    assert "Nothing was trained" in (here / "a" / "report.html").read_text(encoding="utf-8")


def test_a_run_that_trained_in_its_warm_up_alone_fails_too(here: Path, shoal: Shoal) -> None:
    settings = ("method=random", "local.learner=mistaken_parts:Tiring", "rounds=2")
    said = shoal("run", "small.yaml", *settings, "--out", "a")
    assert said.code == 1
    (line,) = [line for line in said.out.splitlines() if line.startswith("Nothing was trained")]
    assert line.startswith("Nothing was trained after the warm-up: no update was accepted in any round; the first")
    assert "ZeroDivisionError: nothing left" in line
    assert RunFolder(here / "a").summary()["warmup_updates"] == 4
    # Its models are those of the warm-up, and no untrained ones.
    assert library.predict("a", np.zeros((1, 8, 8), np.uint8), entry="client/0").attrs["notes"] == []
    said = shoal("run", "small.yaml", *settings[:2], "rounds=0", "--out", "b")
    assert (said.code, "Nothing was trained" in said.out) == (0, False)
    assert RunFolder(here / "b").summary()["updates"] == 4


def test_a_merge_without_a_bank_is_explained(here: Path) -> None:
    with pytest.raises(TypeError, match="merge must give a Bank; got NoneType"):
        library.run(SMALL, {"method": "mistaken_parts:Forgetful"}, out="a")


def test_an_edited_configuration_is_refused(here: Path, shoal: Shoal) -> None:
    assert shoal("run", "small.yaml", "--out", "a").code == 0
    folder = RunFolder(here / "a")
    (here / "a" / "summary.json").unlink()
    before = folder.config()
    for key, value in (("seed", 1), ("rounds", 5), ("rounds", 1)):
        folder.write_yaml("config.yaml", {**before, key: value})
        said = shoal("resume", "a")
        assert said.code == 2
        assert f"{key} ({before[key]} -> {value})" in said.err
    folder.write_yaml("config.yaml", {**before, "execution": {**before["execution"], "workers": 1}})
    assert shoal("resume", "a").code == 0


def test_an_interrupted_sweep_goes_on_with_one_command(
    here: Path, shoal: Shoal, monkeypatch: pytest.MonkeyPatch
) -> None:
    play, count = Experiment.play, [0]

    def interrupted(self: Experiment, state: Any) -> Any:
        count[0] += 1
        if count[0] == 5:
            raise KeyboardInterrupt
        return play(self, state)

    monkeypatch.setattr(Experiment, "play", interrupted)
    said = shoal("run", "small.yaml", "seeds=[0, 1, 2]", "--out", "many")
    assert said.code == 130
    assert said.err.strip().endswith("go on with: shoal resume many")
    assert shoal("resume", "many").code == 0
    whole = library.run(SMALL, {"seeds": [0, 1, 2]}, out="whole")
    for place in whole.runs:
        ours, theirs = (here / name / place / "metrics.jsonl" for name in ("many", "whole"))
        assert ours.read_bytes() == theirs.read_bytes()
    again = shoal("run", "small.yaml", "seeds=[0, 1, 2]", "--out", "many")
    assert "finished run" in again.err


@pytest.mark.parametrize("place", ["estimate", "assemble", "write_report"])
def test_an_interrupt_at_any_time_says_how_to_go_on(
    here: Path, shoal: Shoal, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def interrupted(*arguments: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(running, place, interrupted)
        said = shoal("run", "small.yaml", "--out", "a")
    assert said.code == 130
    assert "go on with: shoal resume" in said.err
    if place != "assemble":  # nothing was written before
        assert shoal("resume", "a").code == 0
        assert RunFolder(here / "a").finished


def test_a_full_disk_is_an_error_that_says_how_to_go_on(
    here: Path, shoal: Shoal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any, **more: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(running.RunFolder, "append", full)
        said = shoal("run", "small.yaml", "--out", "a")
    assert said.code == 3
    assert "No space left on device; when that is mended go on with: shoal resume a" in said.err
    assert shoal("resume", "a").code == 0


def test_only_the_runs_of_the_configuration_are_compared(here: Path, shoal: Shoal) -> None:
    changes = ["variants={a: {}, b: {local.lr: 0.2}}", "--out", "many"]
    assert shoal("run", "small.yaml", *changes).code == 0
    shutil.copytree(here / "many" / "a", here / "many" / "mybackup")
    assert shoal("resume", "many").code == 0
    assert set(json.loads((here / "many" / "comparison.json").read_text())["variants"]) == {"a", "b"}


def test_a_damaged_time_does_not_stop_a_resume(here: Path, shoal: Shoal) -> None:
    assert shoal("run", "small.yaml", "--out", "a").code == 0
    (here / "a" / "summary.json").unlink()
    times = (here / "a" / "timings.jsonl").read_text().splitlines()
    (here / "a" / "timings.jsonl").write_text("\n".join([times[0], '{"a": 1}', "7", times[2]]) + "\n")
    assert shoal("resume", "a").code == 0


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"variants": {"a": {"seed": 5}}}, r"variants.a: \['seed'\] cannot vary"),
        ({"variants": {"a": {"seeds": [1]}}}, r"variants.a: \['seeds'\] cannot vary"),
        ({"variants": {True: {}}}, "YAML reads on, off"),
        ({"variants": {"config.yaml": {}}}, "a run's own files"),
        ({"variants": {"checkpoint": {}}}, "a run's own files"),
    ],
)
def test_variants_that_cannot_be(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        expand(raw)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": True}, "rounds: a number, not true or false"),
        ({"stream": {**STREAM, "clients": True}}, "stream.clients: a number"),
        ({"model": {"kind": "mlp", "hidden": [True]}}, "model.hidden: a number"),
        ({"local": {"lr": True}}, "local.lr: a number"),
    ],
)
def test_booleans_are_no_numbers(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_config({**SMALL, **changes})


def test_a_key_given_twice_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text("rounds: 2\nlocal: {lr: 1, lr: 2}\nrounds: 3\n")
    with pytest.raises(ConfigError, match="given more than once"):
        load(path)
    with pytest.raises(ConfigError, match="lr: given more than once"):
        parse_overrides(["local={lr: 1, lr: 2}"])
    path.write_text("rounds: 2\nlocal:\n")
    assert load(path) == {"rounds": 2}


def test_settings_of_parts_that_are_not_named(tmp_path: Path) -> None:
    config = resolve_config({"stream": STREAM, "data": {"limit": 100}, "model": {"hidden": [8]}})
    assert (config.data["kind"], config.data["limit"]) == ("digits", 100)
    assert (config.model["kind"], list(config.model["hidden"])) == ("mlp", [8])


def test_augmentations_need_images(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    table = library.from_arrays(x, np.arange(40) % 2)
    with pytest.raises(ConfigError, match="need images"):
        library.run(SMALL, {"local.augment": ["flip"]}, out=tmp_path / "a", data=table)
    assert not (tmp_path / "a").exists()


def test_huge_probabilities_are_normalised() -> None:
    config = resolve_config({**SMALL, "participation": {"probabilities": [1e308, 1e308, 1e-300, 0]}})
    found = Selection(config.participation, 4, lambda c: 1).probabilities
    assert found is not None
    np.testing.assert_allclose(found, [0.5, 0.5, 0, 0], atol=1e-12)


def test_batch_normalisation_with_single_rows_is_refused_or_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = library.from_arrays(rng.integers(0, 256, (30, 8, 8, 1), dtype=np.uint8), np.arange(30) % 3)
    config = {**SMALL, "model": {"kind": "resnet20", "width": 2}, "rounds": 1}
    with pytest.raises(ConfigError, match="BatchNorm, which cannot train on a single row"):
        library.run(config, {"local.batch_size": 1}, out=tmp_path / "a", data=images)
    sizes = {"kind": "sizes", "sizes": [1, 1, 10, 12]}
    changes = {"stream.partition": sizes, "stream.validation": 0}
    result = library.run(config, changes, out=tmp_path / "b", data=images)
    assert result.summary["problems"]["clients"]["skipped"] == [0, 1]
    assert "took no training step" in result.summary["first_problem"]
    assert result.summary["updates"] == 2


def test_a_sweep_refuses_an_edited_configuration(here: Path) -> None:
    library.run(SMALL, {"seeds": [0, 1]}, out="many")
    parent = RunFolder(here / "many")
    parent.write_yaml("config.yaml", {**parent.config(), "local": {"lr": 0.3}})
    with pytest.raises(RunError, match=r"local.lr \(0.05 -> 0.3\)"):
        api.resume("many")


def test_a_second_process_is_kept_out_of_a_whole_sweep(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play = Experiment.play
    tried: list[str] = []

    def meanwhile(self: Experiment, state: Any) -> Any:
        for again in (
            lambda: library.run(SMALL, {"seeds": [0, 1]}, out="many", force=True),
            lambda: api.resume("many"),
        ):
            with pytest.raises(RunError, match="another process"):
                again()
            tried.append("x")
        return play(self, state)

    with monkeypatch.context() as patched:
        patched.setattr(Experiment, "play", meanwhile)
        library.run(SMALL, {"seeds": [0, 1], "rounds": 1}, out="many")
    assert len(tried) == 4


def test_force_replaces_old_runs_even_where_the_sweep_lost_its_configuration(here: Path) -> None:
    library.run(SMALL, {"seeds": [0], "rounds": 1}, out="many")
    (here / "many" / "config.yaml").unlink()
    again = library.run(SMALL, {"seeds": [0], "rounds": 2}, out="many", force=True)
    assert again.runs["run/0"].summary["rounds"] == 2


def test_an_infinite_alpha_survives_a_resume(here: Path) -> None:
    partition = {"kind": "dirichlet", "by": "class", "alpha": float("inf")}
    library.run(SMALL, {"stream.partition": partition}, out="a")
    (here / "a" / "summary.json").unlink()
    assert RunFolder(here / "a").config()["stream"]["partition"]["alpha"] == float("inf")
    assert api.resume("a").summary["finished"]


def test_a_part_added_to_the_configuration_is_an_edit(here: Path) -> None:
    library.run(SMALL, {"method": "fedadam"}, out="a")
    (here / "a" / "summary.json").unlink()
    folder = RunFolder(here / "a")
    config = folder.config()
    config["method"]["server"]["calibration"] = {"kind": "softplus", "beta": 10.0}
    folder.write_yaml("config.yaml", config)
    with pytest.raises(RunError, match=r"method\.server\.calibration"):
        api.resume("a")


def test_a_report_that_is_missing_is_written_by_a_resume(here: Path, shoal: Shoal) -> None:
    library.run(SMALL, out="a")
    (here / "a" / "report.html").unlink()
    assert shoal("resume", "a").code == 0
    assert (here / "a" / "report.html").exists()


MORE_PARTS = '''
from shoal.metrics.base import Measure
from shoal.server.base import Mean

class Double(Mean):
    """A mean of float64."""
    def combine(self, old, group):
        return group.parts[0].vector.double()

class Boaster(Measure):
    """Claims another measure's number, and has one of its own."""
    @staticmethod
    def summarise(lines):
        return {"acc": 7.0, "boasts": 1}
'''


def test_a_mean_of_another_type_is_named_at_once(here: Path) -> None:
    (here / "more_parts.py").write_text(MORE_PARTS)
    with pytest.raises(TypeError, match=r"merge made entry 'global' torch.float64 .* vectors are flat float32"):
        library.run(SMALL, {"method.mean": "more_parts:Double"}, out="a")


def test_a_measure_cannot_replace_the_number_of_another(here: Path) -> None:
    (here / "more_parts.py").write_text(MORE_PARTS)
    result = library.run(SMALL, {"evaluate.measures": ["accuracy", "more_parts:Boaster"]}, out="a")
    assert result.summary["boasts"] == 1
    assert result.summary["acc"] <= 1
